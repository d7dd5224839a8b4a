"""Decodes 8-bit RGB PNG images with zlib and NumPy, which avoids a dependency on an imaging library."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""The first eight bytes of every PNG file."""


def decode_png(content: bytes) -> NDArray[np.uint8]:
    """The pixels (height, width, 3) of an 8-bit RGB PNG file without interlacing.

    Raises
    ------
    ValueError
        The file is damaged or in another format.
    """
    width, height, compressed = _chunks(content)
    rows = np.frombuffer(zlib.decompress(compressed), dtype=np.uint8).reshape(height, 1 + 3 * width)
    pixels = np.zeros((height + 1, width + 1, 3), dtype=np.uint8)  # the border of zeros is for the filters
    for index, row in enumerate(rows):
        _unfilter(int(row[0]), row[1:].reshape(width, 3), pixels[index], pixels[index + 1])
    return pixels[1:, 1:]


def _chunks(content: bytes) -> tuple[int, int, bytes]:
    """Width, height and compressed image data of a PNG file; all checksums are verified."""
    if not content.startswith(_SIGNATURE):
        raise ValueError("not a PNG file")
    position, header, data = len(_SIGNATURE), b"", []
    while position + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, position)
        body = content[position + 8 : position + 8 + length]
        checksum = content[position + 8 + length : position + 12 + length]
        if len(checksum) < 4 or zlib.crc32(kind + body) != int.from_bytes(checksum, "big"):
            raise ValueError("a damaged PNG file")
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            data.append(body)
        position += 12 + length
    if len(header) != 13 or header[8:] != bytes([8, 2, 0, 0, 0]):
        raise ValueError("not an 8-bit RGB PNG file without interlacing")
    width, height = struct.unpack(">II", header[:8])
    return width, height, b"".join(data)


def _unfilter(kind: int, filtered: NDArray[np.uint8], above: NDArray[np.uint8], row: NDArray[np.uint8]) -> None:
    """Invert the filter of one row (PNG specification, section 9); `above` and `row` start with the border pixel."""
    if kind == 0:
        row[1:] = filtered
    elif kind == 1:
        np.add.accumulate(filtered, axis=0, out=row[1:])
    elif kind == 2:
        np.add(filtered, above[1:], out=row[1:])
    elif kind in (3, 4):
        predict = _average if kind == 3 else _paeth
        for x in range(len(filtered)):
            for channel in range(3):
                left, up, corner = int(row[x, channel]), int(above[x + 1, channel]), int(above[x, channel])
                row[x + 1, channel] = (int(filtered[x, channel]) + predict(left, up, corner)) & 255
    else:
        raise ValueError(f"a PNG file with the unknown filter {kind}")


def _average(left: int, up: int, corner: int) -> int:
    return (left + up) // 2


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))  # the specification gives ties to the first
