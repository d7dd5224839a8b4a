"""Models as Flower carries them, and files that pretend to be some."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import Array, ArrayRecord

from g2uardfl.core.layout import BadWeightsError
from g2uardfl.flower import array_record, state_dict
from g2uardfl.flower.arrays import RecordWeights, decode, encode
from helpers.flower import raw


def saved(array: np.ndarray, **options) -> bytes:
    file = BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def claim(shape: str, dtype: str = "'<f4'", size: int = 12, version: bytes = b"\x01\x00") -> Array:
    """A file that says it holds this, and holds `size` zero bytes."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}"
    return raw(header(text, version) + b"\x00" * size)


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    encoded = text.encode("latin1") + b"\n"
    size = len(encoded).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + encoded


@pytest.mark.parametrize("dtype", [">f4", "<f2", "<f8", "<f4", "i8", "i4", "u1", "?", "<u2", "g"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3)])
def test_every_dtype_and_shape_comes_back_as_it_went(dtype, shape):
    array = np.asarray(np.random.default_rng(0).normal(size=shape) * 3).astype(dtype)
    sent = Array(array)
    back = encode(decode(sent), sent).numpy()
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array)


def test_columns_first_is_read_in_the_right_order():
    array = np.asfortranarray(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4))
    sent = Array(array)
    assert b"'fortran_order': True" in sent.data
    assert torch.equal(decode(sent), torch.from_numpy(np.ascontiguousarray(array)))


def test_floats_are_not_copied():
    sent = Array(np.arange(1000, dtype=np.float32))
    start = len(sent.data) - 4000
    inside = np.frombuffer(sent.data, np.uint8)[start:]
    assert decode(sent).data_ptr() == inside.ctypes.data


def test_numbers_that_do_not_lie_on_their_boundary_are_read_all_the_same():
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"
    data = header(text) + np.array([1.5, -2.0], np.float32).tobytes()
    assert (len(data) - 8) % 4 != 0
    assert decode(raw(data)).tolist() == [1.5, -2.0]


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_bfloat16_travels_and_keeps_every_bit(shape):
    model = {"w": torch.randn(shape).to(torch.bfloat16), "b": torch.randn(3)}
    record = array_record(model)
    assert record["w"].dtype == "bfloat16"
    back = state_dict(ArrayRecord({name: encode(decode(array), array) for name, array in record.items()}))
    assert all(torch.equal(back[name], value) and back[name].dtype == value.dtype for name, value in model.items())


def test_bfloat16_that_somebody_stored_as_whole_numbers_goes_back_so():
    value = torch.tensor([1.0, -3.5]).to(torch.bfloat16)
    sent = raw(saved(value.view(torch.int16).numpy()), "bfloat16", (2,))
    assert torch.equal(decode(sent), value)
    assert encode(decode(sent), sent).numpy().dtype == np.int16


def test_without_bfloat16_our_record_is_flowers():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).half().state_dict()
    ours, theirs = array_record(model), ArrayRecord(model)
    assert ours == theirs
    assert list(state_dict(ours)) == list(model)


def test_a_state_dict_may_be_written_to():
    sent = array_record({"w": torch.zeros(3)})
    state_dict(sent)["w"] += 1
    assert decode(sent["w"]).tolist() == [0, 0, 0]


GOOD = np.arange(3, dtype=np.float32)
BAD = {
    "nothing": raw(b""),
    "garbage": raw(b"\x00\xff garbage" * 100),
    "text": raw(b"NaN, NaN, NaN"),
    "cut off": raw(saved(GOOD)[:-1]),
    "cut in the header": raw(saved(GOOD)[:20]),
    "bytes too many": raw(saved(GOOD) + b"\x00" * 4),
    "a huge claim": claim("(1000000000000,)"),
    "an endless claim": claim(f"({10**300},)"),
    "an endless claim to nothing": claim(f"({10**30}, 0)", size=0),
    "negative sizes": claim("(-1, -3)"),
    "objects": claim("(3,)", "'|O'", 24),
    "a pickle": raw(saved(np.array([{}, []], dtype=object), allow_pickle=True)),
    "text fields": raw(saved(np.array(["a", "bcd"]))),
    "complex": raw(saved(np.array([1j, 2, 3]))),
    "dates": raw(saved(np.array(["2026-01-01"], dtype="datetime64[D]"))),
    "records": raw(saved(np.zeros(3, dtype=[("a", "<f4"), ("b", "<f4")]))),
    "arrays of arrays": claim("(1,)", "('<f4', (3,))"),
    "opaque bytes": raw(saved(np.zeros(3, dtype="V2"))),
    "no bytes each": claim("(3,)", "'|V0'", 0),
    "bfloat16 of four bytes": raw(saved(np.zeros(3, "V4")), "bfloat16"),
    "a newer format": claim("(3,)", version=b"\x03\x00"),
    "deep nesting": raw(header("(" * 9000)),
    "a long header": raw(header(" " * 60000)),
    "no literal": raw(header("__import__('os').getpid()")),
    "another serialisation": raw(saved(GOOD), stype="torch.save"),
}


@pytest.mark.parametrize("array", BAD.values(), ids=BAD)
def test_a_file_that_is_no_array_is_bad_weights_and_nothing_worse(array):
    with pytest.raises(BadWeightsError, match=r"^is "):
        RecordWeights(ArrayRecord({"w": array}))["w"]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 127), st.integers(0, 255), st.integers(0, 20))
def test_a_file_with_a_byte_changed_and_some_cut_off_is_read_or_bad(position, byte, cut):
    data = bytearray(saved(np.arange(6, dtype=np.float32).reshape(2, 3)))
    data[position] = byte
    try:
        value = decode(raw(bytes(data[: len(data) - cut])))
    except BadWeightsError:
        return
    assert value.numel() * value.element_size() <= len(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_after_the_magic_are_read_or_bad(tail):
    try:
        value = decode(raw(b"\x93NUMPY\x01\x00" + tail))
    except BadWeightsError:
        return
    assert value.numel() <= len(tail)
