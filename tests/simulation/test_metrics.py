"""Metrics of a run, against values computed by hand."""

from __future__ import annotations

import pytest

from g2uardfl.simulation.metrics import defense_score, detection_of, summarise

DECISIONS = {"1": "malicious", "2": "held_out", "3": "accepted", "4": "accepted", "5": "invalid", "6": "held_out"}
VERDICTS = {client: {"decision": decision} for client, decision in DECISIONS.items()}


def test_detection_rates_of_one_round():
    # Of the attackers 1, 2, 3 and 5, the last is invalid and not counted; 4 and 6 are benign.
    rates = detection_of([{"malicious": [1, 2, 3, 5], "verdicts": VERDICTS}])
    assert rates["precision"] == pytest.approx(2 / 3)
    assert rates["recall"] == pytest.approx(2 / 3)
    assert rates["benign_flagged"] == pytest.approx(1 / 2)
    assert rates["malicious_only"]["precision"] == 1.0
    assert rates["malicious_only"]["recall"] == pytest.approx(1 / 3)
    assert rates["malicious_only"]["f1"] == pytest.approx(0.5)


def test_malicious_clients_that_do_not_attack_are_not_counted():
    # 2 is flagged and 3 accepted, but only 1 attacks.
    rates = detection_of([{"malicious": [1, 2, 3], "attacking": [1], "verdicts": VERDICTS}])
    assert rates["precision"] == pytest.approx(1 / 2)
    assert rates["recall"] == 1.0


def test_the_defence_score_is_the_harmonic_mean_of_accuracy_and_resistance():
    assert defense_score(0.9784, 0.0998) == pytest.approx(0.9377, abs=1e-4)
    assert defense_score(0.0, 1.0) == 0.0
    assert defense_score(1.0, 0.0) == 1.0


def record(number, acc, asr, defend):
    return {
        "round": number,
        "acc": acc,
        "asr": asr,
        "malicious": [1],
        "verdicts": {"1": {"decision": "accepted" if number < 11 else "malicious"}},
        "seconds": {"train": 1.0, "defend": defend, "evaluate": 0.0},
    }


def test_the_summary_has_the_last_scores_the_mean_of_the_last_tenth_and_the_largest_asr():
    records = [record(number, 0.5, 0.9, 1.0) for number in range(1, 19)]
    records += [record(19, None, None, 3.0), record(20, 0.8, 0.2, 3.0)]
    summary = summarise(records, defend_from=11)
    assert (summary["acc"], summary["asr"], summary["rounds"]) == (0.8, 0.2, 20)
    assert summary["ds"] == pytest.approx(0.8)
    assert (summary["acc_tail_mean"], summary["asr_tail_mean"]) == (0.8, 0.2)
    assert summary["asr_max"] == 0.9
    assert summary["rounds_per_second"] == pytest.approx(20 / 44)
    assert summary["defend_seconds_median"] == 1.0


def test_detection_counts_the_rounds_of_the_defence_only():
    records = [record(number, 0.5, 0.5, 1.0) for number in range(1, 21)]
    assert summarise(records, defend_from=11)["detection"]["recall"] == 1.0
    assert summarise(records, defend_from=1)["detection"]["recall"] == 0.5
