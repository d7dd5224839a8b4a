"""Dropout whose masks are a function of a key."""

from __future__ import annotations

import torch
from torch import nn

from g2uardfl.training.dropout import LAYER_STRIDE, KeyedDropout, keyed_hash, set_key, step_key, with_keyed_dropout


def hash_by_hand(key: int, layer: int, position: int) -> int:
    """The same hash with Python's unbounded integers."""

    def signed(x: int) -> int:
        return (x + 2**31) % 2**32 - 2**31

    x = signed(layer * LAYER_STRIDE % 2**30 + position + key)
    x = signed((x ^ (x >> 16)) * 0x7FEB352D)
    return signed((x ^ (x >> 15)) * 0x846CA68B)


def test_the_numbers_equal_the_hash_computed_with_python_integers():
    for key in (0, 1, -(2**31), 2**31 - 1, 123_456_789):
        for layer in (0, 3, 200):
            found = keyed_hash(torch.tensor(key, dtype=torch.int32), layer, torch.Size([2, 5]), torch.device("cpu"))
            assert found.flatten().tolist() == [hash_by_hand(key, layer, position) for position in range(10)]


def test_masks_of_positions_steps_layers_and_clients_are_uncorrelated():
    shape, cpu = torch.Size([100_000]), torch.device("cpu")
    draws = torch.stack(
        [
            keyed_hash(torch.tensor(step_key(seed, step), dtype=torch.int32), layer, shape, cpu)
            for seed in (7, 8, 2**62 + 7)
            for step in range(3)
            for layer in range(2)
        ]
    )
    numbers = draws.double() / 2**32
    assert numbers.mean(dim=1).abs().max() < 0.005
    assert (numbers.var(dim=1) - 1 / 12).abs().max() < 0.002
    for p in (0.1, 0.25, 0.5):
        masks = (numbers >= p - 0.5).double()
        for lag in (1, 2, 3, 12, 64, 128, 144, 768, 1024, 9216, 65_536):
            pairs = zip(masks[:, :-lag], masks[:, lag:], strict=True)
            largest = max(abs(float(torch.corrcoef(torch.stack(pair))[0, 1])) for pair in pairs)
            assert largest < 5 / (len(masks[0]) - lag) ** 0.5, (p, lag)
        between = torch.corrcoef(masks) - torch.eye(len(masks))
        assert between.abs().max() < 0.02


def test_dropout_zeroes_the_given_fraction_and_scales_the_rest():
    dropout = KeyedDropout(0.25, layer=0)
    x = torch.ones(200_000)
    y = dropout(x)
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((y == 0).float().mean() - 0.25) < 0.01
    dropout.eval()
    assert torch.equal(dropout(x), x)


def test_replacing_dropout_keeps_parameters_names_and_outputs_in_evaluation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.25)))
    names, x = list(model.state_dict()), torch.randn(3, 4)
    expected = model.eval()(x)
    replaced = with_keyed_dropout(model)
    assert list(replaced.state_dict()) == names
    assert torch.equal(replaced.eval()(x), expected)
    assert [(m.p, m.layer) for m in replaced.modules() if isinstance(m, KeyedDropout)] == [(0.5, 0), (0.25, 1)]


def test_the_same_key_gives_the_same_masks_whatever_torch_drew_before():
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
