"""The comparison of detectors: its figures against hand cases, every detector on recorded rounds, twice the same."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from g2uardfl.defense.recording import Record
from g2uardfl.simulation.metrics import Detection

RECORDS = Path(__file__).parents[1] / "records"
ATTACKED = RECORDS / "digits-black_box-alphainf-pmr0.25-clean-seed5.npz"
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "detectors.py"


@pytest.fixture(scope="module")
def detectors():
    spec = importlib.util.spec_from_file_location("benchmark_detectors", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def four_clients(detectors):
    """One round of two attackers and two others."""
    record = Record.load(ATTACKED)
    attackers, others = np.flatnonzero(record.attacking[0])[:2], np.flatnonzero(~record.attacking[0])[:2]
    left_out = np.ones(len(record.attacking[0]), dtype=bool)
    left_out[[*attackers, *others]] = False
    return Record([detectors.without(record.rounds[0], left_out)], [record.attacking[0][~left_out]])


def test_a_cut_across_the_truth_has_the_rand_index_of_a_hand_count(detectors, four_clients):
    truth = four_clients.attacking[0]
    across = np.zeros(4, dtype=np.int64)
    across[[np.flatnonzero(truth)[0], np.flatnonzero(~truth)[0]]] = 1
    tally = detectors.Tally()

    def decide(seen):
        labels = across[: len(seen.clients)]
        return detectors.Decision(labels, labels == 1)

    tally.add(four_clients, lambda: decide)
    # No pair is together in both; 2 * 2 / 6 would be by chance, 2 at most: (0 - 2/3) / (2 - 2/3).
    assert tally.indices == [pytest.approx(-0.5)]


def test_refused_are_counted_among_the_honest_alone(detectors, four_clients):
    observation, truth = four_clients.rounds[0], four_clients.attacking[0]
    attackers = {client for client, one in zip(observation.clients, truth, strict=True) if one}
    seen_clients = []

    def decide(seen):
        seen_clients.append(set(seen.clients))
        labels = np.array([int(client in attackers) for client in seen.clients])
        return detectors.Decision(labels, np.arange(len(labels)) == 0)

    tally = detectors.Tally()
    tally.add(four_clients, lambda: decide)
    assert seen_clients == [set(observation.clients), set(observation.clients) - attackers]
    assert (tally.indices, tally.refused, tally.honest) == ([1.0], 1, 2)


def test_a_round_without_some_clients_keeps_the_numbers_of_the_others(detectors):
    observation = Record.load(ATTACKED).rounds[1]
    left_out = np.arange(len(observation.clients)) % 3 == 0
    fewer = detectors.without(observation, left_out)
    for row, client in enumerate(fewer.clients):
        old = observation.clients.index(client)
        np.testing.assert_array_equal(fewer.attributes[row], observation.attributes[old])
        np.testing.assert_array_equal(fewer.shapes[row], observation.shapes[old])
        np.testing.assert_array_equal(fewer.directions[row], observation.directions[old])
        np.testing.assert_array_equal(fewer.products.gu[:, row], observation.products.gu[:, old])
        for column, other in enumerate(fewer.clients):
            place = observation.clients.index(other)
            np.testing.assert_array_equal(fewer.products.uu[:, row, column], observation.products.uu[:, old, place])
    assert len(fewer.clients) == (~left_out).sum()


def test_every_detector_gives_the_same_figures_twice_and_tells_these_attackers(detectors):
    names = list(detectors.DETECTORS)
    paths = sorted(RECORDS.glob("*.npz"))
    first, second = (detectors.compare(paths, names)["digits, clean, iid"] for _ in range(2))
    assert len(names) == 7
    for name in names:
        assert first[name].indices == second[name].indices
        assert (first[name].refused, first[name].honest) == (second[name].refused, second[name].honest)
        assert all(-1 <= index <= 1 for index in first[name].indices)
        # At random it would be 0; all of them tell black-box attackers on a clean model.
        assert np.mean(first[name].indices) > 0.5
    assert first["agreement graph"].refused < first["one propagation"].refused


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("mnist-dba-alpha0.5-pmr0.25-poisoned-seed0.npz", "mnist, poisoned, α 0.5"),
        ("cifar10-black_box-defend_from21-rounds80-g2uardfl-0.npz", "cifar10, poisoned, iid"),
        ("digits-dba-alphainf-pmr0.25-clean-seed1.npz", "digits, clean, iid"),
        ("mnist-none-alpha0.05-g2uardfl-0.npz", "mnist, clean, α 0.05"),
    ],
)
def test_a_record_is_filed_by_its_name(detectors, name, group):
    assert detectors.group_of(Path(name)) == group


def test_tables_have_a_row_a_group_or_count_and_a_column_a_detector(detectors):
    names = ["2-means on the attributes", "one propagation"]
    lines = detectors.tables(detectors.compare([ATTACKED], names), names).splitlines()
    assert [line.count("|") for line in lines if line] == [4] * 15
    assert sum(line.startswith("| digits, clean, iid") for line in lines) == 2
    assert sum(line.startswith("| seconds a round") for line in lines) == 1
    assert lines[-1].startswith("| 5 or more")


def attackers_of(errors: Detection) -> int:
    return errors.true_positives + errors.false_negatives


def test_errors_are_counted_by_how_many_attackers_a_round_has(detectors):
    record = Record.load(ATTACKED)
    tally = detectors.Tally()
    # Whoever is first in a round is refused.
    tally.add(
        record, lambda: lambda seen: detectors.Decision(np.zeros(len(seen.clients)), np.arange(len(seen.clients)) < 1)
    )
    for count, errors in tally.by_attackers.items():
        rounds = [truth for truth in record.attacking if truth.sum() == count or truth.sum() >= count == 5]
        assert attackers_of(errors) == sum(int(truth.sum()) for truth in rounds)
        assert sum(astuple(errors)) == sum(len(truth) for truth in rounds)
        assert errors.true_positives == sum(bool(truth[0]) for truth in rounds)
        assert errors.true_positives + errors.false_positives == len(rounds)
    assert sum(map(attackers_of, tally.by_attackers.values())) == sum(map(np.sum, record.attacking)) > 0


def test_an_error_rate_says_where_there_is_nobody(detectors):
    counts = [
        Detection(true_positives=3, false_negatives=1, false_positives=1, true_negatives=7),
        Detection(true_negatives=2),
    ]
    assert detectors.error_rates(detectors.together(counts)) == "75.0 / 10.0"
    assert detectors.error_rates(Detection(false_positives=2, true_negatives=6)) == "- / 25.0"
