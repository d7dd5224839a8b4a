"""The filtering stage: suspicion from groups and outliers, reputations, decisions and clipping."""

from __future__ import annotations

import math

import numpy as np
import pytest

from g2uardfl.defense.agreement.clustering import GroupClusters
from g2uardfl.defense.agreement.filtering import AgreementJudgement, FilteringSettings, ReputationFiltering
from g2uardfl.defense.agreement.groups import Group
from helpers.graphs import drawn_sketches, evidence_of

NAMES = ("a", "b", "c", "d", "e")
OUTLIER = 4.0


def shapes_of(*log_norms: float) -> np.ndarray:
    return np.array([[log_norm, -3.0] for log_norm in log_norms])


def filtering_after(rounds: int = 4, suspicions: dict | None = None) -> ReputationFiltering:
    """The stage after rounds of ten updates of norm 1; some clients have sent updates with these suspicions."""
    filtering = ReputationFiltering(FilteringSettings(), 0)
    for _ in range(rounds):
        filtering.shapes.z_scores(shapes_of(*[0.0] * 10), np.ones(10, bool), OUTLIER)
    for client, values in (suspicions or {}).items():
        for value in values:
            filtering.reputation.add([client], np.array([value]), 1, 1000)
    return filtering


def clusters_of(*belonging: float) -> GroupClusters:
    """One group, or none where nobody belongs."""
    membership = np.array(belonging, dtype=float)
    labels = (membership > 0.5).astype(np.int64)
    return GroupClusters(labels, membership, (Group(membership, 10.0, 3.0),) if labels.any() else ())


def judged(
    filtering: ReputationFiltering | None = None,
    belonging=(0, 0, 0, 0, 0),
    log_norms=(0.0,) * 5,
    sketches: np.ndarray | None = None,
) -> AgreementJudgement:
    """The judgement of a round of five clients."""
    filtering = filtering_after() if filtering is None else filtering
    sketches = drawn_sketches(0, 5, 2, 512) if sketches is None else sketches
    evidence = evidence_of((NAMES, sketches), shapes=shapes_of(*log_norms))
    return filtering.judge(evidence, filtering.prior(evidence), clusters_of(*belonging))


def letters(judgement) -> str:
    pairs = zip(judgement.accepted, judgement.malicious, strict=True)
    return "".join("a" if accepted else "m" if malicious else "h" for accepted, malicious in pairs)


def test_members_of_groups_are_flagged():
    judgement = judged(belonging=[0, 0.9, 0.2, 0.7, 0])
    assert letters(judgement) == "amama"
    assert judgement.clusters.tolist() == [0, 1, 0, 1, 0]
    assert judgement.suspicion.tolist() == judgement.membership.tolist() == [0, 0.9, 0.2, 0.7, 0]
    assert judgement.distances is None


def test_the_suspicion_of_an_outlier_grows_from_one_half_with_its_z_score():
    # The smallest deviation is 0.25.
    for log_norm, suspicion in ((0.9, 0.0), (1.01, 1 - 2 / 4.04), (3.0, 1 - 2 / 12), (30.0, 1 - 2 / 120)):
        judgement = judged(log_norms=[0, log_norm, 0, 0, 0])
        assert judgement.suspicion.tolist() == pytest.approx([0, suspicion, 0, 0, 0])
        assert letters(judgement) == ("amaaa" if suspicion else "aaaaa")


@pytest.mark.parametrize(("large", "decided"), [(2, "mmaaa"), (3, "aaaaa"), (5, "aaaaa")])
def test_no_round_flags_most_of_its_clients_because_of_their_norms(large, decided):
    assert letters(judged(log_norms=[2.0] * large + [0.0] * (5 - large))) == decided


@pytest.mark.parametrize("size", [-5.0, 5.0])
def test_a_minority_of_the_first_round_does_not_define_the_usual_norm(size):
    """Two of five clients send tiny or huge updates before any norm is known."""
    filtering = filtering_after(rounds=0)
    judgement = judged(filtering, log_norms=[size, size, 0.1, 0.0, -0.1])
    assert letters(judgement)[2:] == "aaa"
    assert filtering.shapes.usual_norm == pytest.approx(1.0, rel=0.15)


def test_clients_of_negative_score_do_not_define_the_usual_norm():
    filtering = filtering_after(rounds=0, suspicions={client: [1.0] for client in "abc"})
    judged(filtering, log_norms=[2.0, 2.0, 2.0, 0.0, 0.0])
    assert filtering.shapes.usual_norm == pytest.approx(1.0)


def test_scores_fall_with_suspicion_and_rise_without():
    filtering = filtering_after(suspicions={"a": [1.0], "b": [0.0]})
    before = filtering.reputation.read(NAMES)
    suspicion = [0, 1, 0.5, 0.75, 0]
    judgement = judged(filtering, belonging=suspicion)
    after = filtering.reputation.read(NAMES)
    # Malicious and benign submissions count 0.9 times as much as the next one.
    expected = [[0.9 * m + s, 0.9 * b + 1 - s] for (m, b), s in zip(before, suspicion, strict=True)]
    assert after.tolist() == expected
    assert judgement.scores.tolist() == pytest.approx([(b - m) / (b + m + 2) for m, b in after])


@pytest.mark.parametrize(("convictions", "decision"), [(0, "a"), (2, "a"), (3, "h"), (8, "h")])
def test_a_client_is_held_out_after_three_convictions_although_its_update_is_clean(convictions, decision):
    judgement = judged(filtering_after(suspicions={"c": [1.0] * convictions}))
    assert letters(judgement) == f"aa{decision}aa"
    assert judgement.reasons[2].startswith("Held out" if decision == "h" else "Accepted")


def test_a_client_that_is_held_out_recovers_after_about_as_many_clean_rounds():
    filtering = filtering_after(suspicions={"c": [1.0] * 4})
    decided = "".join(letters(judged(filtering))[2] for _ in range(8))
    held_out = decided.count("h")
    assert decided == "h" * held_out + "a" * (8 - held_out)
    assert 1 <= held_out <= 4


def test_the_prior_is_how_often_the_client_of_each_submission_was_convicted():
    filtering = filtering_after(suspicions={"b": [1.0, 1.0], "c": [0.0]})
    rounds = [(("a", "b"), drawn_sketches(0, 2, 1, 16)), (("c", "b"), drawn_sketches(1, 2, 1, 16))]
    assert filtering.prior(evidence_of(*rounds)).scores.tolist() == [0, 1.9, 0, 1.9]


def test_accepted_updates_are_clipped_to_the_usual_norm_and_rejected_ones_have_no_part():
    judgement = judged(log_norms=np.log([0.5, 1.5, 2.0, 500.0, 500.0]))
    assert letters(judgement) == "aaamm"
    assert judgement.clipping.tolist() == pytest.approx([1.0, 1 / 1.5, 1 / 2.0, 0, 0])


def test_clipping_allows_twice_the_usual_norm_while_clients_learn_the_same():
    filtering, limits = filtering_after(), []
    for common in (0.0, 1.0):
        for seed in range(5):
            sketches = drawn_sketches(seed, 5, 2, 4096, common=common)
            judgement = judged(filtering, log_norms=[0.9, 0, 0, 0, 0], sketches=sketches)
        limits.append(judgement.clipping[0] * math.exp(0.9))
        assert judgement.learning == pytest.approx(common)
    assert limits == pytest.approx([1.0, 2.0])


def test_learning_is_measured_only_between_accepted_clients():
    """Two malicious clients of five go their own way; the others have a cosine of about one half."""
    sketches = drawn_sketches(0, 5, 2, 4096, common=1.0)
    sketches[3:] = drawn_sketches(7, 2, 2, 4096)
    filtering = filtering_after()
    judged(filtering, belonging=[0, 0, 0, 1, 1], sketches=sketches)
    assert filtering.learning.cosines == pytest.approx([0.5], abs=0.05)


def test_history_is_there_after_five_rounds():
    filtering = filtering_after()
    assert [judged(filtering).has_history for _ in range(6)] == [False] * 4 + [True] * 2


def test_a_restored_stage_judges_as_the_saved_one():
    filtering, restored = filtering_after(suspicions={"b": [1.0] * 3}), ReputationFiltering(FilteringSettings(), 0)
    for seed in range(5):
        judged(filtering, sketches=drawn_sketches(seed, 5, 2, 512, common=0.2))
    restored.restore(filtering.state())
    first, second = (judged(one, [0.3, 0, 0, 1, 1], [0.7, 0, 0, 0, 0]) for one in (filtering, restored))
    assert first.scores.tolist() == second.scores.tolist()
    assert first.clipping.tolist() == second.clipping.tolist()
    assert (first.learning, first.has_history, first.reasons) == (second.learning, second.has_history, second.reasons)
    assert 0 < first.learning < 1
