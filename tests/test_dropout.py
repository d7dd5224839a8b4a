"""Dropout that follows from a key alone."""

from __future__ import annotations

import torch
from torch import nn

from g2uardfl.simulation.dropout import KeyedDropout, keyed_uniform, set_key, step_key, with_keyed_dropout


def kept_by_hand(key: int, layer: int, position: int) -> float:
    """The same hash in Python's unbounded integers."""

    def mix(x: int) -> int:
        x &= 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ (x >> 16)

    return (mix(position + mix(key + layer * 40_503)) & 0xFFFFFF) / (1 << 24)


def test_the_numbers_are_the_hash_worked_out_by_hand():
    for key in (0, 1, -(2**31), 2**31 - 1, 123_456_789):
        found = keyed_uniform(torch.tensor(key, dtype=torch.int32), 3, torch.Size([2, 5]), torch.device("cpu"))
        assert found.flatten().tolist() == [kept_by_hand(key, 3, position) for position in range(10)]


def test_the_numbers_look_uniform_and_differ_by_key_and_layer():
    shape, cpu = torch.Size([100_000]), torch.device("cpu")
    draws = [
        keyed_uniform(torch.tensor(step_key(7, step), dtype=torch.int32), layer, shape, cpu)
        for step in range(3)
        for layer in range(2)
    ]
    for numbers in draws:
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert abs(numbers.mean() - 0.5) < 0.005
        assert abs(numbers.var() - 1 / 12) < 0.002
        assert abs(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]) < 0.01
    correlations = torch.corrcoef(torch.stack(draws)) - torch.eye(6)
    assert correlations.abs().max() < 0.02


def test_dropout_zeroes_the_stated_share_and_keeps_the_mean():
    dropout = KeyedDropout(0.25, layer=0)
    x = torch.ones(200_000)
    y = dropout(x)
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((y == 0).float().mean() - 0.25) < 0.01
    dropout.eval()
    assert torch.equal(dropout(x), x)


def test_replacing_dropout_keeps_parameters_names_and_evaluation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.25)))
    names, x = list(model.state_dict()), torch.randn(3, 4)
    expected = model.eval()(x)
    replaced = with_keyed_dropout(model)
    assert list(replaced.state_dict()) == names
    assert torch.equal(replaced.eval()(x), expected)
    assert [(m.p, m.layer) for m in replaced.modules() if isinstance(m, KeyedDropout)] == [(0.5, 0), (0.25, 1)]


def test_the_same_key_gives_the_same_masks_whatever_was_drawn_before():
    model = with_keyed_dropout(nn.Sequential(nn.Dropout(0.5)))
    x = torch.ones(1000)
    set_key(model, step_key(3, 0))
    first = model(x)
    set_key(model, step_key(3, 1))
    second = model(x)
    torch.rand(5)
    set_key(model, step_key(3, 0))
    assert torch.equal(model(x), first)
    assert not torch.equal(first, second)
