"""The comparison of detectors: figures against hand-counted cases, and every detector on recorded rounds."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest

import detectors
from g2uardfl.defense.recording import Record, without
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.metrics import Detection


@pytest.fixture
def record(digits_record) -> Record:
    return Record.load(digits_record)


@pytest.fixture
def four_clients(record) -> Record:
    """One round of two attackers and two honest clients."""
    number = next(number for number, truth in enumerate(record.attacking) if truth.sum() >= 2)
    observation, truth = record.rounds[number], record.attacking[number]
    excluded = np.ones(len(truth), dtype=bool)
    excluded[[*np.flatnonzero(truth)[:2], *np.flatnonzero(~truth)[:2]]] = False
    return Record([without(observation, excluded)], [1], [truth[~excluded]])


@pytest.mark.slow
def test_two_clusters_with_an_attacker_each_have_the_rand_index_of_a_count_by_hand(four_clients):
    (truth,) = four_clients.attacking
    labels = np.zeros(4, dtype=np.int64)
    labels[[np.flatnonzero(truth)[0], np.flatnonzero(~truth)[0]]] = 1
    tally = detectors.Tally()

    def decide(observation):
        return detectors.Decision(labels[: len(observation.clients)], labels[: len(observation.clients)] == 1)

    tally.add(four_clients, lambda: decide)
    # No pair is together in both. Expected by chance: 2 * 2 / 6; at most: 2. (0 - 2/3) / (2 - 2/3)
    assert tally.indices == [pytest.approx(-0.5)]


@pytest.mark.slow
def test_false_positives_are_counted_in_rounds_without_the_attackers(four_clients):
    observation, truth = four_clients.rounds[0], four_clients.attacking[0]
    attackers = {client for client, one in zip(observation.clients, truth, strict=True) if one}
    rounds = []

    def decide(seen):
        rounds.append(set(seen.clients))
        labels = np.array([int(client in attackers) for client in seen.clients])
        return detectors.Decision(labels, np.arange(len(labels)) == 0)

    tally = detectors.Tally()
    tally.add(four_clients, lambda: decide)
    assert rounds == [set(observation.clients), set(observation.clients) - attackers]
    assert (tally.indices, tally.rejected, tally.honest) == ([1.0], 1, 2)


@pytest.mark.slow
def test_every_detector_separates_these_attackers_and_gives_the_same_figures_twice(record, tmp_path):
    """The second time in the first rounds only."""
    names, path = list(detectors.DETECTORS), tmp_path / "digits-black_box.npz"
    first, second = {}, {}
    for found, count in ((first, 12), (second, 3)):
        rounds = record.rounds[:count], record.numbers[:count], record.attacking[:count]
        Record(*rounds, notes={"task": "digits"}).save(path)
        found |= detectors.compare([path], names)["digits, clean, iid"]
    for name in names:
        assert first[name].indices[: len(second[name].indices)] == second[name].indices != []
        assert all(-1 <= index <= 1 for index in first[name].indices)
        # Chance is 0; black-box attackers on a clean model are easy to separate.
        assert np.mean(first[name].indices) > 0.5
    assert first["default profile"].rejected < first["one propagation"].rejected


@pytest.mark.parametrize(
    ("notes", "group"),
    [
        ({"task": "mnist", "alpha": 0.5, "clean": False}, "mnist, poisoned, α 0.5"),
        ({"task": "digits", "alpha": math.inf, "clean": True}, "digits, clean, iid"),
        ({"config": RunConfig(task="cifar10", defend_from=21).to_toml()}, "cifar10, poisoned, iid"),
        ({"config": RunConfig(task="mnist", alpha=0.05).to_toml()}, "mnist, clean, α 0.05"),
    ],
)
def test_the_notes_of_a_record_determine_its_group(notes, group):
    assert detectors.group_of(Record([], [], notes=notes)) == group


def test_tables_have_a_row_for_each_group_and_number_of_attackers_and_a_column_for_each_detector(digits_record):
    names = ["2-means on the attributes", "one propagation"]
    lines = detectors.tables(detectors.compare([digits_record], names), names).splitlines()
    assert [line.count("|") for line in lines if line] == [4] * 15
    assert sum(line.startswith("| digits, clean, iid") for line in lines) == 2
    assert sum(line.startswith("| seconds per round") for line in lines) == 1
    assert lines[-1].startswith("| 5 or more")


def test_a_record_without_the_ground_truth_is_rejected(record, tmp_path):
    Record(record.rounds, record.numbers, notes={"task": "digits"}).save(tmp_path / "digits.npz")
    with pytest.raises(SystemExit, match="does not say who attacked"):
        detectors.compare([tmp_path / "digits.npz"], ["one propagation"])


def attackers_of(errors: Detection) -> int:
    return errors.true_positives + errors.false_negatives


def test_errors_are_counted_by_the_number_of_attackers_in_a_round(record):
    tally = detectors.Tally()
    # The first client of each round is rejected.
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
