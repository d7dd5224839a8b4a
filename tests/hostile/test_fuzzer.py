"""A fuzzer: replies of any content, as bytes that the real encoder or nobody wrote, and arrays of any kind.

Each test sends one hostile reply and several honest ones. The round continues, the reply gets one verdict, and if it is
invalid, model and verdicts are those of the honest clients alone. HYPOTHESIS_PROFILE=fuzz tries 10,000 of each kind.
"""

from __future__ import annotations

import struct
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from g2uardfl.aggregators import create
from g2uardfl.core.layout import BadWeightsError
from g2uardfl.flower import AggregatorStrategy, array_record
from g2uardfl.flower.arrays import decode
from helpers.flower import answers, content, log_lines, raw, same_bits, sending, train_round
from helpers.models import batch_norm_model, flat, perturbed, same

MODEL = batch_norm_model()
CLIENTS = {node: perturbed(MODEL, node, size=0.05) for node in range(1, 6)}
HOSTILE = 99
RECORD = array_record(MODEL)
fuzz = settings(deadline=None, suppress_health_check=list(HealthCheck))

# Headers and files

sizes = st.one_of(st.integers(0, 6), st.integers(-(2**70), 2**70), st.booleans(), st.floats(), st.text(max_size=3))
descriptions = st.one_of(
    st.sampled_from(
        ["<f4", ">f4", "<f8", "<f2", "<i8", "|u1", "|b1", "|O", "<U3", "|V2", "<M8[D]", "<c8", "|S0", "<f16"]
    ),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["<f4", "|O"])), max_size=2),
    st.text(max_size=6),
)


@st.composite
def headers(draw) -> bytes:
    """A header of a NumPy file whose values have any type, or any text in place of it."""
    values = {
        "descr": draw(descriptions),
        "fortran_order": draw(st.one_of(st.booleans(), st.integers(), st.none())),
        "shape": draw(st.one_of(st.lists(sizes, max_size=5).map(tuple), sizes, st.none())),
    }
    text = draw(st.one_of(st.just(repr(values)), st.text(max_size=60)))
    encoded = text.encode("latin1", "replace") + b"\n"
    claimed = draw(st.one_of(st.just(len(encoded)), st.integers(0, 2**16 - 1)))
    version = draw(st.sampled_from([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"]))
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\x01\x00" else "<I", claimed) + encoded


@st.composite
def files(draw) -> bytes:
    """A valid file with some bytes changed and cut off, a header with some numbers, or any bytes."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return draw(st.binary(max_size=200))
    if kind == 1:
        return draw(headers()) + b"\x00" * draw(st.integers(0, 100))
    data = bytearray(RECORD[draw(st.sampled_from(sorted(RECORD)))].data)
    for position, byte in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)):
        data[position] = byte
    return bytes(data[: len(data) - draw(st.integers(0, 8))])


@st.composite
def arrays(draw) -> Array:
    """An `Array` by the real encoder, of any dtype and shape, or a file with any description."""
    if draw(st.booleans()):
        dtype = draw(
            st.sampled_from([">f4", "<f2", "<f8", "<f4", "i8", "i4", "u1", "?", "<u2", "g", "<U2", "V2", "c8"])
        )
        shape = draw(st.lists(st.integers(0, 4), max_size=4).map(tuple))
        order = draw(st.sampled_from("CF"))
        return Array(np.zeros(shape, dtype=dtype, order=order))
    return raw(
        draw(files()),
        draw(st.sampled_from(["float32", "bfloat16", "int64", "nonsense\n"])),
        draw(st.lists(st.integers(0, 9), max_size=3).map(tuple)),
        draw(st.sampled_from(["numpy.ndarray", "numpy.ndarray", "torch", "x" * 1000])),
    )


@fuzz
@given(arrays())
def test_any_array_is_decoded_or_bad(array):
    refusal, elements = "", 0
    try:
        elements = decode(array).numel()
    except BadWeightsError as error:
        refusal = str(error)
    assert elements <= len(array.data)
    assert refusal.isprintable()
    assert len(refusal) < 500


# Records, metrics and messages

names = st.one_of(st.sampled_from(list(MODEL)), st.text(max_size=10))
numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from([0, -1, 1e15, 9e14, float("nan"), float("inf"), 2**63 - 1]),
)
metric_records = st.dictionaries(
    st.one_of(st.sampled_from(["num-examples", "loss"]), st.text(max_size=5)),
    st.one_of(numbers, st.lists(st.integers(-9, 9), max_size=3), st.lists(st.floats(), max_size=3)),
    max_size=4,
)


@st.composite
def array_records(draw) -> ArrayRecord:
    """An honest record in which some arrays are replaced, added or missing."""
    record = dict(CLIENTS[1]) if draw(st.booleans()) else {}
    given = dict(array_record(record).items())
    given |= draw(st.dictionaries(names, arrays(), max_size=3))
    for name in draw(st.lists(st.sampled_from(list(MODEL)), max_size=1)):
        given.pop(name, None)
    return ArrayRecord(given)


@st.composite
def contents(draw) -> RecordDict:
    """A content of any records; mostly one of arrays and one of metrics, as in an honest one."""
    given = RecordDict()
    for index in range(draw(st.sampled_from([1, 1, 1, 0, 2]))):
        given[f"arrays {index}"] = draw(array_records())
    for index in range(draw(st.sampled_from([1, 1, 1, 0, 2]))):
        honest = {"num-examples": 10} if draw(st.booleans()) else {}
        given[f"metrics {index}"] = MetricRecord({**honest, **draw(metric_records)})
    if draw(st.booleans()):
        given[draw(st.text(max_size=5)) + " config"] = ConfigRecord({"name": draw(st.text(max_size=300))})
    return given


def survives(rule: str, node, identity=None) -> None:
    """A round with one hostile node: it gets one verdict, and the others theirs."""
    honest, alone = expected(rule)
    strategy = AggregatorStrategy(make(rule), identity=identity, min_replies=1)
    nodes = {**sending(CLIENTS), HOSTILE: node}
    with log_lines() as lines:
        record, metrics = train_round(strategy, RECORD, nodes)
    assert all(line.isprintable() and len(line) < 3000 for line in lines)
    assert record is not None
    assert all(np.isfinite(array.numpy()).all() for array in record.values())
    assert all(np.isfinite(value) for name, value in metrics.items() if name.startswith("g2uardfl"))
    (verdict,) = (verdict for client, verdict in strategy.verdicts.items() if client not in CLIENTS)
    assert len(verdict.reason) < 500
    if verdict.decision == "invalid":
        assert {client: strategy.verdicts[client] for client in CLIENTS} == alone
        assert same_bits(record, honest)


def make(rule: str):
    return create(rule, **({"seed": 0} if rule == "g2uardfl" else {}))


@cache
def expected(rule: str):
    result = make(rule).aggregate(MODEL, CLIENTS, dict.fromkeys(CLIENTS, 10))
    return result.weights, result.verdicts


@fuzz
@given(st.sampled_from(["fedavg", "g2uardfl"]), contents())
def test_any_content_of_a_reply_excludes_at_most_its_sender(rule, given):
    survives(rule, answers(given))


@fuzz
@given(metric_records)
def test_any_metrics_exclude_at_most_their_sender(given):
    survives("fedavg", answers(content(CLIENTS[1], **{**given, "num-examples": given.get("num-examples", 10)})))


METADATA = ["src_node_id", "dst_node_id", "reply_to_message_id", "message_type", "message_id", "group_id", "ttl"]


@fuzz
@given(
    st.one_of(st.none(), contents(), st.tuples(st.integers(-(2**31), 2**31 - 1), st.text(max_size=2000))),
    st.dictionaries(
        st.sampled_from(METADATA), st.one_of(st.integers(0, 9), st.text(max_size=5), st.none()), max_size=2
    ),
    st.text(max_size=1000),
)
def test_any_message_excludes_at_most_its_sender(given, metadata, name):
    def node(message):
        reply = Message(Error(*given) if isinstance(given, tuple) else given or RecordDict(), reply_to=message)
        for field, value in metadata.items():
            reply.metadata.__dict__[f"_{field}"] = value
        return reply

    def identity(reply):
        return name if reply.metadata.src_node_id not in CLIENTS else reply.metadata.src_node_id

    # A reply that claims to be another client's, or to answer another request, may not even reach its own node.
    honest, _ = expected("fedavg")
    strategy = AggregatorStrategy("fedavg", identity=identity, min_replies=1)
    with log_lines() as lines:
        record, _ = train_round(strategy, RECORD, {**sending(CLIENTS), HOSTILE: node})
    assert record is not None
    assert all(line.isprintable() and len(line) < 3000 for line in lines)
    assert {strategy.verdicts[client].decision for client in CLIENTS} <= {"accepted"}
    if all(verdict.decision != "accepted" for client, verdict in strategy.verdicts.items() if client not in CLIENTS):
        assert same_bits(record, honest)


# The library call

anything = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.sampled_from(
        [
            torch.zeros(3, device="meta"),
            torch.zeros(3, dtype=torch.complex64),
            torch.zeros(3, dtype=torch.float8_e5m2),
            torch.zeros(3).to_sparse(),
            torch.zeros(3, requires_grad=True),
            np.zeros(3, "O"),
            np.zeros((), "V8"),
            np.zeros(3, "datetime64[s]"),
            np.ma.masked_array([1.0, 2.0], [True, False]),
            np.broadcast_to(np.uint16(1), (2**40,)),
        ]
    ),
    arrays().map(lambda array: np.frombuffer(array.data, np.uint8)),
)


@fuzz
@given(
    st.sampled_from(["fedavg", "median", "g2uardfl"]),
    st.one_of(anything, st.dictionaries(st.one_of(names, st.integers()), anything, max_size=3)),
    st.booleans(),
    st.one_of(numbers, st.none(), st.text(max_size=3)),
)
def test_any_object_excludes_at_most_its_sender(rule, sent, is_complete, examples):
    if is_complete and isinstance(sent, dict):
        sent = {**CLIENTS[1], **sent}
    counts = {**dict.fromkeys(CLIENTS, 10), HOSTILE: examples}
    result = make(rule).aggregate(MODEL, {**CLIENTS, HOSTILE: sent}, counts)
    verdict = result.verdicts.pop(HOSTILE)
    assert verdict.reason.isprintable()
    assert len(verdict.reason) < 1000
    assert bool(torch.isfinite(flat(result.weights)).all())
    if verdict.decision == "invalid":
        honest, alone = expected(rule)
        assert same(result.weights, honest)
        assert result.verdicts == alone
