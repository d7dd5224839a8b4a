"""Groups of updates so large that they must attack, and when they need not."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.agreement.history import ShapeHistory


def history_of(*norms: float) -> ShapeHistory:
    history = ShapeHistory()
    history.add(np.array([[norm, -3.0] for norm in norms]).reshape(-1, 2))
    return history


def directions(seed, count=10):
    return np.random.default_rng(seed).normal(size=(count, 2, 512))


def unit(sketches):
    return (sketches / np.linalg.norm(sketches, axis=-1, keepdims=True)).astype(np.float32)


def two_groups(peak=-5.0, common=0.0, larger=7):
    """A round in which some send updates 36 times as large, and all directions; the others learn the same.

    `peak` is the log peak-to-norm ratio of the larger ones (-3 for the others), `common` the strength of what their
    directions share (3 for the others).
    """
    rng = np.random.default_rng(1)
    shapes = np.stack([rng.normal(0.0, 0.2, size=10), np.full(10, -3.0)], axis=1)
    shapes[:larger] = [3.6, peak]
    sketches = directions(1)
    sketches[:larger] += common * directions(101, 1)
    sketches[larger:] += 3 * directions(201, 1)
    return shapes, unit(sketches)


def test_large_updates_as_flat_as_noise_are_outsized():
    assert ShapeHistory().outsized(*two_groups(peak=-5.0)).tolist() == [True] * 7 + [False] * 3


def test_large_updates_with_nothing_in_common_may_be_honest_beside_attackers_with_small_updates():
    assert not ShapeHistory().outsized(*two_groups(peak=-3.0)).any()


def test_large_updates_with_as_much_in_common_as_the_others_are_outsized():
    assert ShapeHistory().outsized(*two_groups(peak=-3.0, common=3.0)).tolist() == [True] * 7 + [False] * 3


@pytest.mark.parametrize(("history", "expected"), [(history_of(), False), (history_of(0.0), True)])
def test_less_flat_updates_are_outsized_once_accepted_ones_were_small(history, expected):
    assert history.outsized(*two_groups(peak=-4.5)).any() == expected


def test_updates_as_large_as_accepted_ones_are_not_outsized():
    assert not history_of(*[0.0] * 8, 3.7, 3.7).outsized(*two_groups(peak=-5.0)).any()


@pytest.mark.parametrize(("larger", "expected"), [(0, 0), (1, 0), (2, 2), (7, 7), (8, 0), (10, 0)])
def test_at_least_two_are_outsized_and_at_least_three_are_not(larger, expected):
    assert np.count_nonzero(ShapeHistory().outsized(*two_groups(larger=larger))) == expected


@pytest.mark.parametrize(
    ("norm", "common", "history", "expected"),
    [
        pytest.param(3.6, 0.0, history_of(), True, id="noise above all other norms"),
        pytest.param(0.5, 0.0, history_of(), False, id="some of the others are larger"),
        pytest.param(3.6, 3.0, history_of(), False, id="the others have much in common and may attack"),
        pytest.param(3.6, 3.0, history_of(0.0), True, id="the others are as large as an accepted update"),
    ],
)
def test_noise_is_recognised_by_its_peaks_where_norms_form_no_groups(norm, common, history, expected):
    shapes = np.stack([np.linspace(-5.0, 2.0, 10), np.full(10, -3.0)], axis=1)
    shapes[:4] = [norm, -5.4]
    sketches = directions(1)
    sketches[4:] += common * directions(201, 1)
    assert history.outsized(shapes, unit(sketches)).tolist() == [expected] * 4 + [False] * 6
