"""The restricted pickle reader: arrays and plain values are read, everything else is rejected and never executed."""

from __future__ import annotations

import io
import os
import pickle
import struct

import numpy as np
import pytest

from g2uardfl import data
from g2uardfl.core.errors import DataError
from g2uardfl.data.formats.restricted_pickle import load_pickle
from helpers.data_sets import files_in

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


def python_2_pickle_of_a_batch() -> bytes:
    """`{'data': array 2 x 3072 of ones, 'labels': [3, 5]}` as written by Python 2 and its NumPy (protocol 2)."""
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


class Malicious:
    def __reduce__(self):
        return os.system, ("touch MALICIOUS",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_a_function_is_rejected_and_not_executed(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "southwest_images_new_train.pkl").write_bytes(pickle.dumps(Malicious(), protocol=protocol))
    (tmp_path / "southwest_images_new_test.pkl").write_bytes(pickle.dumps(IMAGES[0]))
    with pytest.raises(DataError, match=r"rejected.*\.system") as error:
        data.import_dataset("southwest", [tmp_path], tmp_path / "data")
    assert "\n" not in str(error.value)
    assert files_in(tmp_path) == ["southwest_images_new_test.pkl", "southwest_images_new_train.pkl"]


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(np.array([Malicious()], dtype=object)),
        pickle.dumps(np.array([1, 2], dtype=object)),
        pickle.dumps([1, eval]),
        pickle.dumps(np.zeros(1, dtype=[("a", "u1")])),
        pickle.dumps(np.memmap),
        pickle.dumps({1, 2}),
        pickle.dumps(IMAGES[0])[:-100],
        pickle.dumps(np.arange(4, dtype=np.uint8), protocol=2).replace(b"K\x04\x85", b"K\x09\x85"),
        b"\x80\x04cnumpy\nndarray\n.",
        b"\x80\x02cnumpy\nndarray\n)R.",
        b"",
    ],
)
def test_pickles_of_other_values_and_damaged_pickles_are_rejected(content):
    with pytest.raises(DataError, match="rejected"):
        load_pickle(io.BytesIO(content), "file.pkl")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "array",
    [
        IMAGES[0],
        np.asfortranarray(np.arange(12, dtype=np.int64).reshape(3, 4)),
        np.array([1.5, -2.0], dtype=">f4"),
        np.array([True, False]),
        np.zeros((0, 3), np.uint8),
    ],
)
def test_pickled_arrays_of_numbers_are_read(array, protocol):
    value = load_pickle(io.BytesIO(pickle.dumps({"a": [array, "text", b"bytes", None, 1.5]}, protocol=protocol)), "p")
    (loaded, *rest) = value["a"]
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype == array.dtype.newbyteorder("=")
    assert rest == ["text", b"bytes", None, 1.5]
