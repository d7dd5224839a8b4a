"""Models in Flower's messages, and malformed files in their place."""

from __future__ import annotations

import warnings
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import Array, ArrayRecord

from g2uardfl.core.errors import StateError
from g2uardfl.core.layout import BadWeightsError
from g2uardfl.core.state_files import SavedState
from g2uardfl.flower import array_record, state_dict
from g2uardfl.flower.arrays import RecordWeights, decode, encode, loaded_record, saved_record
from helpers.flower import raw

GOOD = np.arange(3, dtype=np.float32)


def saved(array: np.ndarray, **options) -> bytes:
    file = BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def claim(shape: str, dtype: str = "'<f4'", size: int = 12, version: bytes = b"\x01\x00") -> Array:
    """A file with this header and `size` zero bytes."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}"
    return raw(header(text, version) + b"\x00" * size)


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    encoded = text.encode("latin1") + b"\n"
    size = len(encoded).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + encoded


@pytest.mark.parametrize("dtype", [">f4", "<f2", "<f8", "<f4", "i8", "i4", "u1", "?", "<u2", "g"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3)])
def test_every_dtype_and_shape_survives_decoding_and_encoding(dtype, shape):
    array = np.asarray(np.random.default_rng(0).normal(size=shape) * 3).astype(dtype)
    sent = Array(array)
    back = encode(decode(sent), sent).numpy()
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array)


def test_arrays_in_fortran_order_are_read_in_the_right_order():
    array = np.asfortranarray(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4))
    sent = Array(array)
    assert b"'fortran_order': True" in sent.data
    assert torch.equal(decode(sent), torch.from_numpy(np.ascontiguousarray(array)))


def test_a_single_number_in_fortran_order_is_read():
    text = "{'descr': '<f4', 'fortran_order': True, 'shape': ()}"
    assert decode(raw(header(text) + np.float32(2.5).tobytes())).item() == 2.5


@pytest.mark.parametrize("field", ["data", "stype", "dtype"])
@pytest.mark.parametrize("value", [None, 7, [], "\x00", b""])
def test_fields_of_any_type_are_read_or_bad(field, value):
    array = Array(GOOD)
    setattr(array, field, value)
    with suppress(BadWeightsError):
        assert decode(array).tolist() == GOOD.tolist()


def test_no_warning_quotes_what_a_client_wrote():
    with warnings.catch_warnings(record=True) as caught, suppress(BadWeightsError):
        warnings.simplefilter("always")
        decode(raw(header(r"{'descr': '\:', 'fortran_order': False, 'shape': ()}")))
    assert not caught


def test_floats_are_not_copied():
    sent = Array(np.arange(1000, dtype=np.float32))
    start = len(sent.data) - 4000
    inside = np.frombuffer(sent.data, np.uint8)[start:]
    assert decode(sent).data_ptr() == inside.ctypes.data


def test_unaligned_numbers_are_read():
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"
    data = header(text) + np.array([1.5, -2.0], np.float32).tobytes()
    assert (len(data) - 8) % 4 != 0
    assert decode(raw(data)).tolist() == [1.5, -2.0]


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_bfloat16_keeps_every_bit(shape):
    model = {"w": torch.randn(shape).to(torch.bfloat16), "b": torch.randn(3)}
    record = array_record(model)
    assert record["w"].dtype == "bfloat16"
    back = state_dict(ArrayRecord({name: encode(decode(array), array) for name, array in record.items()}))
    assert all(torch.equal(back[name], value) and back[name].dtype == value.dtype for name, value in model.items())


def test_bfloat16_stored_as_integers_is_encoded_as_integers():
    value = torch.tensor([1.0, -3.5]).to(torch.bfloat16)
    sent = raw(saved(value.view(torch.int16).numpy()), "bfloat16", (2,))
    assert torch.equal(decode(sent), value)
    assert encode(decode(sent), sent).numpy().dtype == np.int16


def test_without_bfloat16_our_record_equals_flowers():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).half().state_dict()
    ours, theirs = array_record(model), ArrayRecord(model)
    assert ours == theirs
    assert list(state_dict(ours)) == list(model)


def test_a_state_dict_is_a_copy():
    sent = array_record({"w": torch.zeros(3)})
    state_dict(sent)["w"] += 1
    assert decode(sent["w"]).tolist() == [0, 0, 0]


def test_a_saved_record_is_loaded_unchanged():
    model = {
        "w": torch.ones(2, 3, dtype=torch.bfloat16),
        "b/c": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "n": 3,
    }
    record = array_record(model)
    assert loaded_record(saved_record(record)) == record


@pytest.mark.parametrize("values", [{}, {"arrays": [["w", "float32", [3], "numpy.ndarray"]]}, {"arrays": [["w"]]}])
def test_an_incomplete_saved_record_is_rejected(values):
    with pytest.raises(StateError, match="the saved model is incomplete"):
        loaded_record(SavedState(values, {}))


BAD = {
    "nothing": raw(b""),
    "garbage": raw(b"\x00\xff garbage" * 100),
    "text": raw(b"NaN, NaN, NaN"),
    "truncated": raw(saved(GOOD)[:-1]),
    "truncated in the header": raw(saved(GOOD)[:20]),
    "additional bytes": raw(saved(GOOD) + b"\x00" * 4),
    "a huge claim": claim("(1000000000000,)"),
    "a claim beyond 64 bits": claim(f"({10**300},)"),
    "a huge claim without bytes": claim(f"({10**30}, 0)", size=0),
    "negative sizes": claim("(-1, -3)"),
    "objects": claim("(3,)", "'|O'", 24),
    "a pickle": raw(saved(np.array([{}, []], dtype=object), allow_pickle=True)),
    "text fields": raw(saved(np.array(["a", "bcd"]))),
    "complex": raw(saved(np.array([1j, 2, 3]))),
    "dates": raw(saved(np.array(["2026-01-01"], dtype="datetime64[D]"))),
    "records": raw(saved(np.zeros(3, dtype=[("a", "<f4"), ("b", "<f4")]))),
    "arrays of arrays": claim("(1,)", "('<f4', (3,))"),
    "opaque bytes": raw(saved(np.zeros(3, dtype="V2"))),
    "items of no bytes": claim("(3,)", "'|V0'", 0),
    "bfloat16 of four bytes": raw(saved(np.zeros(3, "V4")), "bfloat16"),
    "a newer format": claim("(3,)", version=b"\x03\x00"),
    "deep nesting": raw(header("(" * 9000)),
    "a long header": raw(header(" " * 60000)),
    "an expression": raw(header("__import__('os').getpid()")),
    "a size that is a bool": claim("(True, 20)", size=80),
    "a size that is a word": claim("('3',)"),
    "sizes whose product overflows": claim(f"(0, {2**40 - 1}, {2**40 - 1}, {2**40 - 1})", size=0),
    "a header of 400 MB": raw(b"\x93NUMPY\x02\x00" + (4 * 10**8).to_bytes(4, "little") + b" " * 10**6),
    "another serialisation": raw(saved(GOOD), stype="torch.save"),
}


@pytest.mark.parametrize("array", BAD.values(), ids=BAD)
def test_a_malformed_file_raises_bad_weights_and_nothing_else(array):
    with pytest.raises(BadWeightsError, match=r"^is "):
        RecordWeights(ArrayRecord({"w": array}))["w"]
