"""The filtering stage: suspicion from communities, twins and outliers, noise, decisions and their reasons."""

from __future__ import annotations

import math

import numpy as np
import pytest

from g2uardfl.defense.agreement.clustering import ClusteringSettings, CommunityClustering, CommunityClusters
from g2uardfl.defense.agreement.communities import Community
from g2uardfl.defense.agreement.construction import ConstructionSettings, SimilarityConstruction
from g2uardfl.defense.agreement.filtering import FilteringSettings, ReputationFiltering
from g2uardfl.defense.observation import Observation

SETTINGS = FilteringSettings()
ALLOWED = SETTINGS.outlier_z_score
NAMES = ("a", "b", "c", "d", "e")


def directions(count, seed, layers=2, width=512):
    return np.random.default_rng(seed).normal(size=(count, layers, width))


def evidence_of(*rounds, shapes=None):
    """The graph of rounds of (clients, directions); `shapes` are those of the last one, by default all equal."""
    construction = SimilarityConstruction(ConstructionSettings(window=1000), 0)
    for number, (clients, vectors) in enumerate(rounds, start=1):
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        own = np.tile([0.0, -3.0], (len(vectors), 1)) if shapes is None or number < len(rounds) else shapes
        unit = unit.astype(np.float32)
        measured = {"shapes": own, "directions": unit, "renewed_directions": unit[:, :0], "renewals": np.array(0)}
        evidence = construction.build(number, Observation(tuple(clients), ("layer",) * 2, measured))
    return evidence


def filtering_after(rounds=4, scores=None, **settings) -> ReputationFiltering:
    """The stage after so many rounds of ten updates of one shape, with the benign scores of some clients."""
    filtering = ReputationFiltering(FilteringSettings(**settings), 0)
    for _ in range(rounds):
        filtering.shapes.add(np.tile([0.0, -3.0], (10, 1)), np.ones(10))
    filtering.reputation.scores.update(scores or {})
    return filtering


def judged(evidence, filtering=None, clusters=None):
    """The judgement of the stage, by default on the communities that the clustering finds."""
    filtering = filtering_after() if filtering is None else filtering
    prior = filtering.prior(evidence)
    clusters = CommunityClustering(ClusteringSettings(), 0).cluster(evidence, prior) if clusters is None else clusters
    return filtering.judge(evidence, prior, clusters)


def found(*communities, count=5, twins=None) -> CommunityClusters:
    """Clusters of (evidence, similarity, probabilities of all submissions)."""
    all_ = [Community(evidence, 0.0, np.asarray(belonging, float), mean) for evidence, mean, belonging in communities]
    labels, membership = np.zeros(count, dtype=np.int64), np.zeros(count)
    for number, community in enumerate(all_, start=1):
        labels[community.members] = number
        membership = np.maximum(membership, community.belonging)
    return CommunityClusters(labels, membership, tuple(all_), twins=tuple(twins or [None] * count))


def of_five(shapes=None):
    return evidence_of((NAMES, directions(5, 0)), shapes=shapes)


def letters(judgement) -> str:
    pairs = zip(judgement.accepted, judgement.malicious, strict=True)
    return "".join("a" if accepted else "m" if malicious else "h" for accepted, malicious in pairs)


def test_a_judgement_carries_communities_suspicion_and_scores():
    clusters = found((20.0, 3.0, [0, 0.9, 0, 0, 0]), (12.0, 3.0, [0, 0, 0.2, 0.7, 0]))
    judgement = judged(of_five(), clusters=clusters)
    assert letters(judgement) == "amama"
    assert judgement.clusters.tolist() == [0, 1, 0, 2, 0]
    assert judgement.distances.tolist() == [0, 0.9, 0.2, 0.7, 0]
    assert judgement.scores[1] < 0 < judgement.scores[0]
    assert judgement.colluding.tolist() == [False, True, False, True, False]


def test_members_of_communities_alone_show_the_backdoor():
    shapes = np.tile([0.0, -3.0], (5, 1))
    shapes[4, 0] = 9.0
    judgement = judged(of_five(shapes), clusters=found((20.0, 3.0, [0, 1, 1, 0, 0])))
    assert letters(judgement) == "ammam"
    assert judgement.colluding.tolist() == [False, True, True, False, False]


@pytest.mark.parametrize(("score", "decision"), [(0.0, "a"), (-1.0, "m")])
def test_a_bad_reputation_turns_a_doubt_into_a_conviction(score, decision):
    judgement = judged(of_five(), filtering_after(scores={"a": score}), found((20.0, 3.0, [0.4, 0, 0, 0, 0])))
    assert letters(judgement)[0] == decision


@pytest.mark.parametrize(("score", "decision"), [(-0.3, "a"), (-0.8, "h"), (-1.0, "h")])
def test_a_client_of_bad_reputation_is_held_out_although_nothing_is_suspicious(score, decision):
    judgement = judged(of_five(), filtering_after(scores={"c": score}), found())
    assert letters(judgement) == f"aa{decision}aa"
    assert judgement.scores[2] > score or score == -1.0


@pytest.mark.parametrize(
    ("filtering", "clusters", "row", "parts"),
    [
        pytest.param(
            {}, found((23.4, 4.56, [0.8, 0.9, 0.8, 0.9, 0.1])), 1,
            ["similar to 3 others", "mean similarity 4.6", "evidence 23"], id="community",
        ),
        pytest.param({}, found(twins=[None] * 4 + [1]), 4, ["almost the same as that of client 'b'"], id="twin"),
        pytest.param(
            {"scores": {"a": -1.0}}, found((20.0, 3.0, [0.4, 0, 0, 0, 0])), 0,
            ["probability 0.40", "benign score is low"], id="reputation",
        ),
        pytest.param({"scores": {"c": -0.95}}, found(), 2, ["Held out", "benign score is -0.9"], id="held out"),
        pytest.param({}, found(), 3, ["Accepted", "no community", "norm is usual"], id="accepted"),
    ],
)  # fmt: skip
def test_a_reason_names_what_decided(filtering, clusters, row, parts):
    reasons = judged(of_five(), filtering_after(**filtering), clusters).reasons
    assert all(part in reasons[row] for part in parts)
    assert all(reason[0].isupper() and reason.endswith(".") for reason in reasons)


def test_a_reason_names_the_norm_before_everything_else():
    shapes = np.tile([0.0, -3.0], (5, 1))
    shapes[[1, 2], 0] = 10.0
    clusters = found((20.0, 3.0, [0, 0, 1, 0, 0]), twins=[None, None, 0, None, None])
    assert "norm or peak is far above the usual (z-score 40)" in judged(of_five(shapes), clusters=clusters).reasons[2]


def test_a_reason_says_where_there_is_too_little_to_compare_with():
    few = evidence_of((("a", "b"), directions(2, 0)))
    assert all("unexamined" in reason for reason in judged(few, clusters=found(count=2)).reasons)
    assert not any("unexamined" in reason for reason in judged(of_five(), clusters=found()).reasons)


def test_attackers_of_this_round_and_of_the_window_are_found_by_their_common_direction():
    backdoor = directions(1, 99)
    rounds = []
    for number in range(6):
        vectors = directions(10, number)
        vectors[:2] += 1.5 * backdoor
        honest = [100 + client % 40 for client in range(8 * number, 8 * number + 8)]
        rounds.append(([2 * number, 2 * number + 1, *honest], vectors))
    judgement = judged(evidence_of(*rounds))
    assert letters(judgement) == "mm" + "a" * 8
    assert np.flatnonzero(judgement.membership > 0.5).tolist() == sorted([*range(0, 60, 10), *range(1, 60, 10)])


def test_two_clients_of_one_round_with_almost_the_same_update_are_flagged():
    vectors = directions(10, 0)
    vectors[7] = vectors[2]
    judgement = judged(evidence_of((range(10), vectors)))
    assert letters(judgement) == "aamaaaamaa"
    assert judgement.distances[[2, 7]].tolist() == [1, 1]


@pytest.mark.parametrize(("times", "flagged"), [(50, True), (200, False)])
def test_twins_with_negligible_updates_are_not_flagged(times, flagged):
    vectors = directions(10, 0)
    vectors[7] = vectors[2]
    shapes = np.tile([0.0, -3.0], (10, 1))
    shapes[[2, 7], 0] -= math.log(times)
    judgement = judged(evidence_of((range(10), vectors), shapes=shapes))
    assert letters(judgement) == ("aamaaaamaa" if flagged else "a" * 10)


def test_a_client_is_no_twin_of_its_own_past():
    vectors = directions(10, 0)
    judgement = judged(evidence_of((range(10), vectors), (range(10), vectors)))
    assert letters(judgement) == "a" * 10


def test_the_suspicion_of_an_outlier_grows_from_one_half_with_its_z_score():
    suspicion = []
    for log_norm in (0.9, 1.2, 3.0, 30.0):
        shapes = np.tile([0.0, -3.0], (5, 1))
        shapes[[1, 3], 0] = log_norm
        judgement = judged(of_five(shapes), clusters=found())
        assert judgement.distances[[0, 2, 4]].tolist() == [0, 0, 0]
        suspicion.append(judgement.distances[1])
    assert suspicion[0] == 0
    assert 0.5 < suspicion[1] < suspicion[2] < suspicion[3] < 1


@pytest.mark.parametrize("known", [0, 4])
def test_a_large_update_similar_to_none_is_noise(known):
    vectors = directions(10, 3)
    vectors[4] = vectors[5]
    shapes = np.tile([0.0, -3.0], (10, 1))
    shapes[[1, 4, 5], 0] = 2.25
    evidence = evidence_of((range(100, 110), directions(10, 4)), (range(10), vectors), shapes=shapes)
    judgement = judged(evidence, filtering_after(known))
    assert letters(judgement) == "amaammaaaa"
    assert np.flatnonzero(judgement.noise).tolist() == [1]


def test_a_community_does_not_determine_which_norms_are_usual():
    """Six of the ten clients of the first round send small updates in one direction."""
    vectors = directions(10, 0)
    vectors[:6] += 3 * directions(1, 99)
    shapes = np.random.default_rng(1).normal([0.0, -3.0], 0.1, size=(10, 2))
    shapes[:6, 0] = -3.0
    judgement = judged(evidence_of((range(10), vectors), shapes=shapes), filtering_after(rounds=0))
    assert letters(judgement) == "m" * 6 + "a" * 4
    assert judgement.usual_norm == pytest.approx(1.0, rel=0.2)


def test_accepted_updates_are_clipped_to_one_norm_and_refused_ones_do_not_count():
    shapes = np.tile([0.0, -3.0], (5, 1))
    shapes[:, 0] = np.log([1.0, 1.5, 2.0, 500.0, 500.0])
    judgement = judged(of_five(shapes), filtering_after(), found())
    assert letters(judgement) == "aaamm"
    clipped = judgement.clipping[:3] * [1.0, 1.5, 2.0]
    assert clipped[1:] == pytest.approx(clipped[1])
    assert clipped[0] == pytest.approx(min(1.0, clipped[1]))
    assert 1.0 <= clipped[1] < 1.5
    assert judgement.usual_norm == pytest.approx(1.0)


@pytest.mark.parametrize(("large", "decided"), [(2, "mmaaa"), (3, "aaaaa"), (5, "aaaaa")])
def test_no_round_convicts_most_of_its_clients_for_their_norms(large, decided):
    shapes = np.tile([0.0, -3.0], (5, 1))
    shapes[:large, 0] = 2.0
    assert letters(judged(of_five(shapes), clusters=found())) == decided


@pytest.mark.parametrize(("score", "decided"), [(0.0, "aaaaa"), (-0.6, "mmmaa")])
def test_clients_of_bad_reputation_count_as_little_as_they_are_trusted_in_what_is_usual(score, decided):
    """Three of five send large updates: at half of their weight and less they are no majority."""
    shapes = np.tile([0.0, -3.0], (5, 1))
    shapes[:3, 0] = 2.0
    filtering = filtering_after(scores=dict.fromkeys("abc", score))
    assert letters(judged(of_five(shapes), filtering, found())) == decided
    assert filtering.shapes.rounds[-1][:, 2].tolist() == pytest.approx([1 + score] * 3 + [1, 1])


def test_a_good_reputation_adds_no_weight_to_what_is_usual():
    filtering = filtering_after(scores={"a": 0.9})
    judged(of_five(), filtering, found())
    assert filtering.shapes.rounds[-1][:, 2].tolist() == [1.0] * 5


def test_members_of_communities_count_in_what_is_usual_as_little_as_their_probability_says():
    filtering = filtering_after()
    judged(of_five(), filtering, found((20.0, 3.0, [0, 0.25, 1.0, 0.75, 0])))
    assert filtering.shapes.rounds[-1][:, 2].tolist() == pytest.approx([1.0, 0.75, 0.0, 0.25, 1.0])


def alike(count: int, seed: int, common: float) -> np.ndarray:
    """Directions with a common part of that norm beside an independent part of norm 1, in each of two layers."""
    return directions(count, seed) / 512**0.5 + common * directions(1, 99) / 512**0.5


def test_learning_is_measured_between_accepted_clients_alone():
    """Two malicious clients of five go their own way; the other three have a cosine of about one half."""
    vectors = alike(5, 0, 1.0)
    vectors[3:] = directions(2, 7)
    filtering = filtering_after()
    judged(evidence_of((NAMES, vectors)), filtering, found((20.0, 3.0, [0, 0, 0, 1, 1])))
    assert filtering.learning.cosines == pytest.approx([0.5], abs=0.1)


def test_clipping_allows_twice_the_usual_norm_while_clients_learn_the_same():
    filtering, limits = filtering_after(), []
    shapes = np.tile([0.0, -3.0], (5, 1))
    shapes[0, 0] = 0.9
    for common in (0.0, 1.0):
        for seed in range(5):
            judgement = judged(evidence_of((NAMES, alike(5, seed, common)), shapes=shapes), filtering, found())
        limits.append(judgement.clipping[0] * math.exp(0.9))
        assert judgement.learning == pytest.approx(common)
    assert limits == pytest.approx([1.0, 2.0])


def test_heterogeneity_is_known_to_the_clustering_of_the_next_round():
    filtering = filtering_after(rounds=0)
    shapes = np.column_stack([[-4.0, -2.0, 0.0, 2.0, 4.0], np.full(5, -3.0)])
    evidence = of_five(shapes)
    assert filtering.prior(evidence).heterogeneity == 1.0
    judgement = judged(evidence, filtering, found())
    # The median distance from the median is 2, and five times as much as usual counts as twice.
    assert judgement.heterogeneity == 2.0
    assert filtering.prior(evidence).heterogeneity == judgement.heterogeneity


def test_a_restored_stage_judges_as_the_saved_one():
    filtering = filtering_after(scores={"b": -0.4})
    judged(evidence_of((NAMES, alike(5, 0, 1.0))), filtering, found())
    restored = ReputationFiltering(SETTINGS, 0)
    restored.restore(filtering.state())
    shapes = np.tile([0.7, -3.0], (5, 1))
    first, second = (judged(of_five(shapes), one, found()) for one in (filtering, restored))
    assert first.scores.tolist() == second.scores.tolist()
    assert first.clipping.tolist() == second.clipping.tolist()
    assert (first.learning, first.usual_norm) == (second.learning, second.usual_norm)
