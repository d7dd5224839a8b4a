"""Metrics of a run, against values computed by hand."""

from __future__ import annotations

import pytest

from g2uardfl.simulation.metrics import FIGURES, Detection, defense_score, detection_of, figures, shown, summarise

DECISIONS = {"1": "malicious", "2": "held_out", "3": "accepted", "4": "accepted", "5": "invalid", "6": "held_out"}
VERDICTS = {client: {"decision": decision} for client, decision in DECISIONS.items()}


def test_detection_rates_of_one_round():
    # Of the attackers 1, 2, 3 and 5, the last is invalid and not counted; 4 and 6 are benign.
    rates = detection_of([{"round": 1, "malicious": [1, 2, 3, 5], "verdicts": VERDICTS}])
    assert rates["precision"] == pytest.approx(2 / 3)
    assert rates["recall"] == pytest.approx(2 / 3)
    assert rates["benign_refused"] == pytest.approx(1 / 2)
    assert rates["malicious_only"]["precision"] == 1.0
    assert rates["malicious_only"]["recall"] == pytest.approx(1 / 3)
    assert rates["malicious_only"]["f1"] == pytest.approx(0.5)


def test_malicious_clients_that_do_not_attack_are_not_counted():
    # 2 is flagged and 3 accepted, but only 1 attacks.
    rates = detection_of([{"round": 1, "malicious": [1, 2, 3], "attacking": [1], "verdicts": VERDICTS}])
    assert rates["precision"] == pytest.approx(1 / 2)
    assert rates["recall"] == 1.0


@pytest.mark.parametrize(
    ("counts", "rates"),
    [
        ({"false_negatives": 5}, {"precision": None, "recall": 0.0, "f1": 0.0, "benign_refused": None}),
        ({"true_negatives": 5}, {"precision": None, "recall": None, "f1": None, "benign_refused": 0.0}),
        (
            {"false_positives": 1, "true_negatives": 4},
            {"precision": 0.0, "recall": None, "f1": 0.0, "benign_refused": 0.2},
        ),
        ({}, {"precision": None, "recall": None, "f1": None, "benign_refused": None}),
    ],
    ids=["everybody attacks, nobody is flagged", "nobody attacks or is flagged", "one false positive", "no rounds"],
)
def test_a_rate_is_none_only_if_its_denominator_is_0(counts, rates):
    assert Detection(**counts).as_dict() == rates


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    counts = Detection(true_positives=3, false_positives=1, false_negatives=2)
    assert counts.f1 == pytest.approx(2 / (1 / counts.precision + 1 / counts.recall))


def attacked_round(number, attacking, flagged):
    verdicts = {str(client): {"decision": "held_out" if client in flagged else "accepted"} for client in range(4)}
    return {"round": number, "malicious": attacking, "verdicts": verdicts}


@pytest.mark.parametrize(
    ("rounds", "waited"),
    [
        ([([], [3]), ([0], [3]), ([0], [0])], 2),
        ([([0], [0])], 1),
        ([([0], []), ([], []), ([1], [1])], 3),
        ([([0], [3])], None),
        ([([], [3])], None),
    ],
    ids=["in the second round", "at once", "rounds without attackers count", "never", "no attack"],
)
def test_rounds_to_detection_counts_from_the_first_attack_to_the_first_flagged_attacker(rounds, waited):
    records = [attacked_round(number, *one) for number, one in enumerate(rounds, start=7)]
    assert detection_of(records)["rounds_to_detection"] == waited


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


def test_the_summary_has_the_false_positive_rate_and_the_rounds_to_detection():
    records = [record(number, 0.5, 0.5, 1.0) for number in range(1, 21)]
    for one in records:
        one["verdicts"]["2"] = {"decision": "held_out" if one["round"] <= 5 else "accepted"}
    summary = summarise(records, defend_from=1)
    assert summary["benign_refused"] == pytest.approx(5 / 20)
    assert summary["rounds_to_detection"] == 11


def test_a_run_without_an_evaluated_round_has_a_summary_without_scores():
    for records in ([], [record(1, None, None, 1.0)]):
        summary = summarise(records, defend_from=1)
        assert [summary[name] for name in ("acc", "asr", "ds", "acc_tail_mean", "asr_tail_mean", "asr_max")] == [
            None
        ] * 6


def test_figures_are_percentages_and_a_dash_where_a_rate_is_not_defined():
    records = [record(number, 0.5, 0.25, 1.0) for number in range(1, 11)]
    found = {name: shown(value) for name, value in figures(summarise(records, defend_from=1)).items()}
    assert list(found) == list(FIGURES)
    assert (found["ACC %"], found["ASR %, peak"], found["recall %"]) == ("50.00", "25.00", "0.00")
    assert (found["precision %"], found["rounds to detection"]) == ("-", "-")


def test_detection_counts_the_rounds_of_the_defence_only():
    records = [record(number, 0.5, 0.5, 1.0) for number in range(1, 21)]
    assert summarise(records, defend_from=11)["detection"]["recall"] == 1.0
    assert summarise(records, defend_from=1)["detection"]["recall"] == 0.5
