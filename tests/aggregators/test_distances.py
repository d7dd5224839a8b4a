"""Norms, distances, Krum scores and sorting against computations in float64, at the limits of float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from g2uardfl.aggregators._coordinates import _network_sorted, sorted_columns
from g2uardfl.aggregators._distances import krum_scores, squared_distances, update_distances, update_norms
from g2uardfl.core.layout import ModelLayout
from g2uardfl.core.updates import SentUpdates, each_block


@pytest.mark.parametrize("clients", [2, 10, 33])
def test_distances_of_nearly_equal_large_updates_keep_their_digits(clients):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 100_000, generator=generator).repeat(clients, 1)
    rows[:, ::7] += 1e-3 * torch.randn(clients, 14_286, generator=generator)
    exact = rows.double().numpy()
    expected = [[((first - second) ** 2).sum() for second in exact] for first in exact]
    np.testing.assert_allclose(update_distances(rows), expected, rtol=1e-5)


@pytest.mark.parametrize("clients", [6, 40])
@pytest.mark.parametrize("size", [1e-15, 1e-18, 1e-20, 1e-25, 1e-40])
def test_distances_keep_their_digits_where_squares_underflow_in_float32(size, clients):
    updates = (size * np.random.default_rng(0).normal(size=(clients, 70_000))).astype(np.float32)
    updates[5] = 1
    if clients == 6:
        updates[4] = updates[1]
    exact = np.array([np.square(update.astype(np.float64) - updates).sum(axis=1) for update in updates])
    np.testing.assert_allclose(update_distances(torch.from_numpy(updates)), exact, rtol=1e-5, atol=0)


def test_distances_of_many_clients_keep_their_digits_near_and_far():
    draw = np.random.default_rng(0)
    updates = draw.normal(size=(60, 30_000))
    updates[10:20] = updates[10] + 1e-4 * updates[10:20]
    updates[20:25] += 5
    updates[25:30] *= 1e6
    updates[30:40] = 3 + 0.2 * updates[30:40]
    updates[40] = updates[0]
    updates = updates.astype(np.float32)
    exact = np.array([np.square(update.astype(np.float64) - updates).sum(axis=1) for update in updates])
    found = update_distances(torch.from_numpy(updates))
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-9)
    model = {"w": np.zeros(30_000, np.float32)}
    sent = SentUpdates(ModelLayout.of(model), torch.zeros(30_000), [{"w": update} for update in updates])
    assert np.array_equal(update_distances(sent), found)


@pytest.mark.parametrize("clients", [10, 40])
def test_distances_are_the_same_bit_for_bit_on_any_number_of_threads(clients):
    rows = torch.randn(clients, 300_000, generator=torch.Generator().manual_seed(0))
    rows[3] = rows[2] + 1e-3 * rows[3]
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(update_distances(rows))
    finally:
        torch.set_num_threads(threads)
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_the_score_of_a_client_does_not_include_itself_even_among_copies():
    """Including the client itself, or excluding an equal one, would change the scores of copies."""
    points = np.array([[0.0], [0.0], [0.0], [5.0], [6.0]])
    assert krum_scores(squared_distances(points @ points.T), 0).tolist() == [25, 25, 25, 1 + 25 + 25, 1 + 36 + 36]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 3_000_001])
def test_norms_of_long_float32_updates_keep_their_digits(size):
    updates = torch.randn(2, size, generator=torch.Generator().manual_seed(0)) + 1
    exact = np.linalg.norm(updates.double().numpy(), axis=1)
    np.testing.assert_allclose(update_norms(updates), exact, rtol=1e-7)


@pytest.mark.parametrize("clients", range(1, 17))
def test_every_sequence_of_zeros_and_ones_is_sorted_so_all_numbers_are(clients):
    """The zero-one principle: a network of comparisons that sorts all zeros and ones sorts all numbers."""
    numbers = torch.arange(2**clients)
    block = torch.stack([(numbers >> i) & 1 for i in range(clients)]).float()
    ones = block.sum(dim=0)
    expected = torch.stack([ones > clients - 1 - i for i in range(clients)]).float()
    assert torch.equal(_network_sorted(block), expected)
    assert torch.equal(sorted_columns(block), expected)


@pytest.mark.parametrize("clients", [2, 16, 17, 100])
def test_sorting_does_not_change_the_updates(clients):
    for columns in (1, 5):
        block = torch.randn(clients, columns, generator=torch.Generator().manual_seed(0))
        before = block.clone()
        sorted_columns(block)
        assert torch.equal(block, before)


def test_blocks_cover_every_column_once():
    updates = torch.arange(3.0 * 700_001).reshape(3, -1)
    assert torch.equal(each_block(updates, lambda block: block[2] - block[0]), updates[2] - updates[0])
