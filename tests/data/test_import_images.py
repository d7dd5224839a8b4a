"""Imports of the image data sets, from small files in their published formats."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from g2uardfl import data
from g2uardfl.core.errors import DataError
from g2uardfl.data import catalogue
from g2uardfl.data.formats.png import decode_png
from helpers.data_sets import DIGIT_LABELS, DIGITS, files_in, write_mnist

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 4, 32, 32, 3), dtype=np.uint8)
"""Six batches of four images."""
IMAGE_LABELS = RNG.integers(0, 10, (6, 4), dtype=np.uint8)
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def planes(images: np.ndarray) -> np.ndarray:
    """One row per image: the red, green and blue plane."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_binary_batches(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.bin" for name in BATCHES]
    for path, images, labels in zip(paths, IMAGES, IMAGE_LABELS, strict=True):
        path.write_bytes(
            b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, planes(images), strict=True))
        )
    return paths


def assert_images_are_stored(folder: Path) -> None:
    for name, images, labels in zip(BATCHES, IMAGES, IMAGE_LABELS, strict=True):
        stored = data.load_arrays(f"cifar10/{name}.npz", folder)
        np.testing.assert_array_equal(data.decode_images(stored["residual"]), images)
        np.testing.assert_array_equal(stored["labels"], labels)


# MNIST


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_from_idx_files(tmp_path, packed):
    folder = tmp_path / "data"
    imported = data.import_dataset("mnist", write_mnist(tmp_path / "in", packed), folder)
    stored = data.load_arrays("mnist/mnist.npz", folder)
    np.testing.assert_array_equal(stored["x_train"], DIGITS[:8])
    np.testing.assert_array_equal(stored["y_test"], DIGIT_LABELS[8:])
    assert files_in(folder) == ["manifest.json", "mnist", "mnist/mnist.npz"]
    assert any("not the 60,000 published" in remark for remark in imported.remarks)
    assert data.check_dataset(catalogue.MNIST, folder, data.read_manifest(folder)).state == "as imported"


# CIFAR-10


def test_cifar10_is_read_from_binary_batches(tmp_path):
    data.import_dataset("cifar10", write_binary_batches(tmp_path / "in"), tmp_path / "data")
    assert_images_are_stored(tmp_path / "data")


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_cifar10_is_read_from_python_batches(tmp_path, protocol):
    files = []
    for name, images, labels in zip(BATCHES, IMAGES, IMAGE_LABELS, strict=True):
        files.append(tmp_path / name)
        batch = {b"data": planes(images), b"labels": labels.tolist(), b"filenames": [b"a.png"] * len(labels)}
        files[-1].write_bytes(pickle.dumps(batch, protocol=protocol))
    data.import_dataset("cifar10", files, tmp_path / "data")
    assert_images_are_stored(tmp_path / "data")


def test_a_truncated_binary_batch_is_rejected_and_nothing_is_stored(tmp_path):
    files = write_binary_batches(tmp_path / "in")
    files[5].write_bytes(files[5].read_bytes()[:-1])
    with pytest.raises(DataError, match=r"test_batch\.bin is truncated"):
        data.import_dataset("cifar10", files, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_cifar10_is_read_from_the_sheets_of_the_npm_package(tmp_path):
    labels = IMAGE_LABELS.tolist()
    (tmp_path / "train_lables.json").write_text(json.dumps([label for batch in labels[:5] for label in batch]))
    (tmp_path / "test_lables.json").write_text(json.dumps(labels[5]))
    for name, images in zip(BATCHES, IMAGES, strict=True):
        (tmp_path / f"{name}.png").write_bytes(png(images.reshape(4, 1024, 3), filters=[1, 1, 4, 1]))
    data.import_dataset("cifar10", [tmp_path], tmp_path / "data")
    assert_images_are_stored(tmp_path / "data")


def png(pixels: np.ndarray, filters: list[int]) -> bytes:
    """A PNG file, encoded as in the specification."""
    height, width, _ = pixels.shape
    values = pixels.astype(int)

    def at(y: int, x: int, channel: int) -> int:
        return int(values[y, x, channel]) if y >= 0 and x >= 0 else 0

    def predicted(kind: int, y: int, x: int, channel: int) -> int:
        a, b, c = at(y, x - 1, channel), at(y - 1, x, channel), at(y - 1, x - 1, channel)
        p = a + b - c
        pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
        nearest = a if pa <= pb and pa <= pc else b if pb <= pc else c
        return [0, a, b, (a + b) // 2, nearest][kind]

    rows = bytearray()
    for y in range(height):
        rows.append(filters[y])
        for x in range(width):
            for channel in range(3):
                rows.append((at(y, x, channel) - predicted(filters[y], y, x, channel)) % 256)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packed = zlib.compress(bytes(rows))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", packed[:9]), chunk(b"IDAT", packed[9:]), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_png_images_with_all_filters_are_decoded():
    pixels = RNG.integers(0, 256, (10, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode_png(png(pixels, [0, 1, 2, 3, 4, 4, 3, 2, 1, 0])), pixels)


def test_damaged_png_images_are_rejected():
    content = png(DIGITS[:1].reshape(14, 56, 1).repeat(3, axis=2), [0] * 14)
    damaged = content[:60] + bytes([content[60] ^ 1]) + content[61:]
    other_kind = content.replace(bytes([8, 2, 0, 0, 0]), bytes([8, 6, 0, 0, 0]))
    for wrong in (b"", b"GIF89a", content[:100], damaged, other_kind):
        with pytest.raises(ValueError, match="PNG"):
            decode_png(wrong)


def test_png_images_in_grey_are_rejected():
    grey = io.BytesIO()
    Image.fromarray(DIGITS[0]).save(grey, "png")
    with pytest.raises(ValueError, match="not an 8-bit RGB PNG file: its mode is L"):
        decode_png(grey.getvalue())


def test_png_images_without_pillow_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'g2uardfl\[png\]'"):
        decode_png(b"")


# Southwest


def write_southwest(folder: Path, **arrays: np.ndarray) -> list[Path]:
    paths = []
    for name, array in arrays.items():
        paths.append(folder / f"southwest_images_{name}.pkl")
        paths[-1].write_bytes(pickle.dumps(array))
    return paths


def test_southwest_without_the_edge_files_stores_only_train_and_test(tmp_path):
    files = write_southwest(tmp_path, new_train=IMAGES[0], new_test=IMAGES[1])
    data.import_dataset("southwest", files, tmp_path / "data")
    stored = data.load_arrays("southwest/southwest.npz", tmp_path / "data")
    assert set(stored) == {"x_train", "x_test"}
    np.testing.assert_array_equal(stored["x_test"], IMAGES[1])


def test_southwest_stores_the_edge_files_if_they_are_given(tmp_path):
    files = write_southwest(
        tmp_path,
        new_train=IMAGES[0],
        new_test=IMAGES[1],
        adv_p_percent_edge_case=IMAGES[2],
        p_percent_edge_case_test=IMAGES[3],
    )
    data.import_dataset("southwest", files, tmp_path / "data")
    stored = data.load_arrays("southwest/southwest.npz", tmp_path / "data")
    np.testing.assert_array_equal(stored["x_train_edge"], IMAGES[2])
    np.testing.assert_array_equal(stored["x_test_edge"], IMAGES[3])


def test_southwest_images_of_another_type_are_rejected(tmp_path):
    files = write_southwest(tmp_path, new_train=IMAGES[0].astype(np.float32), new_test=IMAGES[1])
    with pytest.raises(DataError, match="uint8 images"):
        data.import_dataset("southwest", files, tmp_path / "data")


# ARDIS


def write_ardis(folder: Path, separator: str = " ", number: str = "%.18e") -> list[Path]:
    for part, images, labels in (("train", DIGITS[:8], DIGIT_LABELS[:8]), ("test", DIGITS[8:], DIGIT_LABELS[8:])):
        one_hot = (labels[:, None] == np.arange(10)).astype(float)
        np.savetxt(folder / f"ARDIS_{part}_2828.csv", images.reshape(-1, 784), delimiter=separator, fmt=number)
        np.savetxt(folder / f"ARDIS_{part}_labels.csv", one_hot, delimiter=separator, fmt=number)
    return sorted(folder.glob("ARDIS_*.csv"))


@pytest.mark.parametrize(("separator", "number"), [(" ", "%.18e"), (",", "%d"), (";", "%.1f"), ("; ", "%d")])
def test_ardis_is_read_with_all_separators_and_number_formats(tmp_path, separator, number):
    data.import_dataset("ardis", write_ardis(tmp_path, separator, number), tmp_path / "data")
    stored = data.load_arrays("ardis/ardis_iv.npz", tmp_path / "data")
    np.testing.assert_array_equal(stored["x_train"], DIGITS[:8])
    np.testing.assert_array_equal(stored["y_train"], DIGIT_LABELS[:8])
    np.testing.assert_array_equal(stored["x_test"], DIGITS[8:])
    np.testing.assert_array_equal(stored["y_test"], DIGIT_LABELS[8:])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("ARDIS_test_2828.csv", "0.5 1 2\n", "integers"),
        ("ARDIS_test_2828.csv", "1 2 3\n", "1 rows of 3 numbers"),
        ("ARDIS_test_2828.csv", "a b\n", "not a table"),
        ("ARDIS_test_labels.csv", "1 1 0 0 0 0 0 0 0 0\n", "one-hot"),
    ],
)
def test_ardis_tables_of_another_format_are_rejected(tmp_path, file, content, message):
    files = write_ardis(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=message):
        data.import_dataset("ardis", files, tmp_path / "data")
    assert not (tmp_path / "data").exists()
