"""Create a certificate authority, a server certificate, and a key for each SuperNode.

    python make_certificates.py certificates --nodes 5 --host 127.0.0.1 --host localhost

For experiments. Use your own certificate authority (CA) if you have one.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

LIFETIME = datetime.timedelta(days=365)


def make_certificates(folder: Path, hosts: list[str], nodes: int) -> None:
    """Write `ca.crt`, `server.pem`, `server.key`, and for each node `node-N` and `node-N.pub`."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, ca_name = ec.generate_private_key(ec.SECP384R1()), _name("a certificate authority for experiments")
    ca = _certificate(ca_name, ca_name, ca_key.public_key(), None).sign(ca_key, hashes.SHA384())
    key = ec.generate_private_key(ec.SECP384R1())
    server = _certificate(_name(hosts[0]), ca_name, key.public_key(), hosts).sign(ca_key, hashes.SHA384())
    (folder / "ca.crt").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(Encoding.PEM))
    _write_secret(folder / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for number in range(1, nodes + 1):
        node = ec.generate_private_key(ec.SECP384R1())
        secret = node.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        _write_secret(folder / f"node-{number}", secret)
        public = node.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"node-{number}.pub").write_bytes(public + b"\n")


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, hosts: list[str] | None
) -> x509.CertificateBuilder:
    """An unsigned certificate: of a server for `hosts`, or of a CA without them."""
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now, now + LIFETIME)
    builder = builder.add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
    if hosts is None:
        return builder
    return builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def main() -> None:
    """Create what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--host", action="append", help="name or address of the SuperLink, as clients use it")
    options = parser.parse_args()
    make_certificates(options.folder, options.host or ["127.0.0.1", "localhost"], options.nodes)


if __name__ == "__main__":
    main()
