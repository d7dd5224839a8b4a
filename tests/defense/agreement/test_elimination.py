"""The step of a round and bounded elimination: the stage by itself, and whole guards beside those without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl import G2uardFL
from g2uardfl.aggregators.base import AggregationResult, Round
from g2uardfl.core.layout import ModelLayout
from g2uardfl.defense.agreement.construction import SubmissionGraph
from g2uardfl.defense.agreement.elimination import EliminationSettings, RollbackAndElimination, cosine_of, norm_of
from g2uardfl.defense.agreement.filtering import AgreementJudgement
from helpers.federations import Federation, drawn, first_model, messages
from helpers.models import flat

# The stage by itself, on updates made to measure.

SIZE, COUNT = 400, 10


def round_of(updates: torch.Tensor, num_examples=None) -> Round:
    clients, size = updates.shape
    weights = {"w": np.zeros(size, np.float32)}
    examples = np.ones(clients) if num_examples is None else np.array(num_examples, dtype=float)
    layout = ModelLayout.of(weights)
    return Round(layout, torch.zeros(size), tuple(range(clients)), updates.float(), examples, global_weights=weights)


def evidence_of(round_: Round, number: int = 5) -> SubmissionGraph:
    count = len(round_.clients)
    return SubmissionGraph(
        round=number, clients=round_.clients, norms=round_.updates.norm(dim=1).double().numpy(), nodes=round_.clients,
        edges=np.zeros((count, count)), shapes=np.zeros((count, 2)), people=np.arange(count),
        rounds=np.full(count, number), accepted=np.zeros(count, bool), sketches=np.zeros((count, 1, 16), np.float32),
    )  # fmt: skip


def judgement_of(colluding: np.ndarray, **changes) -> AgreementJudgement:
    """The colluding clients are malicious, and the others accepted."""
    judgement = AgreementJudgement(
        accepted=~colluding, malicious=colluding, scores=np.zeros(len(colluding)), clipping=(~colluding).astype(float),
        reasons=("",) * len(colluding), noise=np.zeros(len(colluding), bool), membership=colluding * 1.0,
        colluding=colluding, usual_norm=1.0, heterogeneity=1.0, learning=0.0,
    )  # fmt: skip
    return replace(judgement, **changes)


def stage_of(**settings) -> RollbackAndElimination:
    return RollbackAndElimination(EliminationSettings(**settings), 0)


def stage_and_round(step: torch.Tensor, pull: torch.Tensor, **settings):
    """The stage, and a round in which seven accepted clients move by `step` and three colluding ones by `pull`."""
    round_ = round_of(torch.stack([step] * 7 + [pull] * 3))
    return stage_of(**settings), round_, evidence_of(round_), judgement_of(np.arange(COUNT) >= 7)


def axis(place: int) -> torch.Tensor:
    return torch.eye(SIZE)[place]


def kinds_of(step) -> list[str]:
    return [event.kind for event in step.events]


# The step.


def slow_step(updates, examples, clipping, dissent: float, learning: float) -> list[float]:
    """Between the smallest change that all but a share of the accepted clients support, and the mean by samples."""
    accepted = [row for row, factor in enumerate(clipping) if factor]
    clipped = [[clipping[row] * float(x) for x in updates[row]] for row in accepted]
    required = len(accepted) - min(int(dissent * len(accepted) + 1e-9), (len(accepted) - 1) // 2)
    total, result = sum(examples[row] for row in accepted), []
    for column in zip(*clipped, strict=True):
        supported = [t for t in column if sum(min(x / t, 1) == 1 for x in column if t) >= required and t]
        agreed = max(supported, key=abs, default=0.0)
        mean = sum(examples[row] * x for row, x in zip(accepted, column, strict=True)) / total
        result.append(learning * mean + (1 - learning) * agreed)
    return result


@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 12),
    dissent=st.sampled_from([0.0, 0.15, 0.5]),
    learning=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_step_lies_between_consensus_and_mean_as_far_as_clients_learn_the_same(seed, clients, dissent, learning):
    rng = np.random.default_rng(seed)
    updates, examples = rng.normal(0.5, 1.0, size=(clients, 8)).astype(np.float32), rng.integers(1, 50, size=clients)
    malicious = rng.random(clients) < 0.2
    malicious[0] = False
    clipping = rng.uniform(0.1, 1, size=clients) * ~malicious
    round_ = round_of(torch.from_numpy(updates), examples)
    judgement = judgement_of(malicious, clipping=clipping, learning=learning)
    step = stage_of(dissent=dissent, eliminate=False).step(round_, evidence_of(round_), judgement)
    expected = slow_step(updates.tolist(), examples.tolist(), clipping.tolist(), dissent, learning)
    assert step.vector.tolist() == pytest.approx(expected, abs=1e-5)


def test_shares_are_the_samples_of_accepted_clients_times_their_clipping():
    round_ = round_of(torch.ones(4, 3), [10, 30, 60, 100])
    clipping = np.array([1.0, 0.5, 1.0, 0.0])
    judgement = judgement_of(np.arange(4) == 3, clipping=clipping)
    step = stage_of().step(round_, evidence_of(round_), judgement)
    assert step.shares.tolist() == step.weights.tolist() == pytest.approx([0.1, 0.15, 0.6, 0.0])


def test_a_round_of_which_nobody_is_accepted_does_not_move_the_model():
    round_ = round_of(torch.ones(4, 3))
    step = stage_of().step(round_, evidence_of(round_), judgement_of(np.ones(4, bool), usual_norm=0.0))
    assert not step.vector.any()
    assert not step.weights.any()


# Elimination.


def test_half_of_the_attackers_pull_beyond_the_mean_is_removed():
    step = (one := stage_and_round(0.5 * axis(0), 0.5 * axis(0) + 0.4 * axis(1)))[0].step(*one[1:])
    torch.testing.assert_close(step.vector, 0.5 * axis(0) - 0.2 * axis(1))
    assert kinds_of(step) == ["eliminated"]
    assert dict(step.events[0].details) == pytest.approx({"clients": 3, "norm": 0.2})
    # The model moves by half of (accepted - malicious mean) beyond the mean of the accepted.
    assert step.weights.tolist() == pytest.approx([1.5 / 7] * 7 + [-0.5 / 3] * 3)
    assert step.shares.tolist() == pytest.approx([1 / 7] * 7 + [0.0] * 3)


def test_a_pull_is_clipped_to_the_usual_norm():
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(0) + 40 * axis(1))
    step = stage.step(round_, evidence, replace(judgement, usual_norm=0.3))
    torch.testing.assert_close(step.vector, 0.5 * axis(0) - 0.15 * axis(1))


@given(seed=st.integers(0, 2**32 - 1), size=st.floats(0.1, 10), usual=st.floats(0.1, 10))
def test_what_is_removed_is_half_of_the_pull_or_of_a_usual_update(seed, size, usual):
    rng = np.random.default_rng(seed)
    round_ = round_of(torch.from_numpy(rng.normal(size=(COUNT, 20)) * ([[1.0]] * 7 + [[size]] * 3)))
    judgement = judgement_of(np.arange(COUNT) >= 7, usual_norm=usual)
    plain, eliminating = (stage_of(eliminate=one).step(round_, evidence_of(round_), judgement) for one in (False, True))
    removed = (plain.vector - eliminating.vector).norm().item()
    pull = (round_.updates[7:].mean(dim=0) - round_.updates[:7].mean(dim=0)).norm().item()
    assert removed == pytest.approx(0.5 * min(pull, usual), rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {"eliminate": False}),
        ({"heterogeneity": 1.5}, {}),
        ({"learning": 0.51}, {}),
        ({"usual_norm": 0.0}, {}),
        ({"colluding": np.arange(COUNT) == 9}, {}),
        ({"colluding": np.zeros(COUNT, bool)}, {}),
    ],
    ids=["switched off", "heterogeneous", "learning", "no usual norm", "a single attacker", "outliers alone"],
)
def test_nothing_is_removed(changes, settings):
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(1), **settings)
    for _ in range(3):
        step = stage.step(round_, evidence, replace(judgement, **changes))
        torch.testing.assert_close(step.vector, 0.5 * axis(0))
        assert step.weights.tolist() == pytest.approx([1 / 7] * 7 + [0] * 3)
        assert step.events == ()


@pytest.mark.parametrize("changes", [{"heterogeneity": 1.49}], ids=str)
def test_something_is_removed_just_within_the_limits(changes):
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(1))
    assert kinds_of(stage.step(round_, evidence, replace(judgement, **changes))) == ["eliminated"]


def test_attackers_who_send_what_all_others_send_have_no_pull():
    step = (one := stage_and_round(0.5 * axis(0), 0.5 * axis(0)))[0].step(*one[1:])
    torch.testing.assert_close(step.vector, 0.5 * axis(0))


@pytest.mark.parametrize(("cosine", "expected"), [(0.5, True), (0.26, True), (0.24, False), (-0.5, False)])
@pytest.mark.parametrize("saved", [False, True])
def test_a_removal_that_accepted_clients_reverse_is_halved_from_then_on(cosine, expected, saved):
    stage, *round_ = stage_and_round(0.3 * (cosine * axis(1) + (1 - cosine**2) ** 0.5 * axis(0)), 0.5 * axis(2))
    stage.removed = 0.1 * axis(1)
    if saved:
        state = stage.state()
        stage = stage_of()
        stage.restore(state)
    kinds = kinds_of(stage.step(*round_))
    assert ("elimination_reversed" in kinds) == expected
    assert ("eliminated" in kinds) != expected
    assert stage.removal_share == (0.5 if expected else 1.0)
    assert "elimination_reversed" not in kinds_of(stage.step(*round_))


def test_half_as_much_is_removed_after_each_reversal_until_the_share_is_negligible():
    stage, *attacked = stage_and_round(0.5 * axis(0), 0.5 * axis(0) + 0.4 * axis(1))
    _, *reversing = stage_and_round(0.3 * axis(1), 0.3 * axis(1) + 0.4 * axis(2))
    removed = []
    for _ in range(11):
        removed.append(-stage.step(*attacked).vector[1].item())
        stage.step(*reversing)
    # 0.5 / 2^9 of the pull is less than a thousandth.
    assert removed == pytest.approx([0.4 * 0.5 / 2**number for number in range(9)] + [0, 0], abs=1e-7)


def test_a_share_that_was_halved_survives_a_restart():
    stage = stage_of()
    stage.removal_share = 0.25
    restored = stage_of()
    restored.restore(stage.state())
    assert restored.removal_share == 0.25
    assert restored.removed is None


def test_models_from_before_a_removal_are_not_restored():
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(0) + 0.5 * axis(1))
    quiet = replace(judgement, colluding=np.zeros(COUNT, bool), membership=np.zeros(COUNT))
    for number in (3, 4):
        stage.step(round_, replace(evidence, round=number, rounds=np.repeat([3, number], 5)), quiet)
    assert [one.rounds for one in stage.snapshots.kept] == [(3,), (4,)]
    step = stage.step(round_, replace(evidence, rounds=np.repeat([3, 5], 5)), judgement)
    assert kinds_of(step) == ["eliminated"]
    assert [one.rounds for one in stage.snapshots.kept] == [(5,)]


# Rollback.


@pytest.mark.parametrize(
    ("probability", "learning", "rolled_back"),
    [
        (0.9, 0.0, False),
        (0.98, 0.0, False),
        (0.999, 0.0, True),
        (0.999, 0.01, False),
        (0.999, 1.0, False),
    ],
)
def test_the_model_is_rolled_back_if_an_accepted_submission_almost_certainly_attacks_and_learning_is_over(
    probability, learning, rolled_back
):
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(1), eliminate=False)
    quiet = replace(judgement, membership=np.zeros(COUNT))
    suspected = np.where(np.arange(COUNT) == 0, probability, 0.0)
    stage.step(round_, replace(evidence, round=3, rounds=np.full(COUNT, 3)), quiet)
    stage.step(round_, replace(evidence, round=4, rounds=np.repeat([3, 4], 5)), quiet)
    now = replace(judgement, membership=suspected, learning=learning)
    step = stage.step(round_, replace(evidence, rounds=np.repeat([4, 5], 5)), now)
    assert kinds_of(step) == (["rolled_back"] if rolled_back else [])
    assert (step.restored is not None) == rolled_back
    assert step.weights.any() != rolled_back


def test_nothing_is_removed_from_a_model_that_is_rolled_back():
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(1))
    quiet = replace(judgement, colluding=np.zeros(COUNT, bool), membership=np.zeros(COUNT))
    stage.step(round_, replace(evidence, round=4, rounds=np.full(COUNT, 4)), quiet)
    malicious = judgement.colluding | (np.arange(COUNT) == 0)
    known = replace(judgement, membership=malicious * 1.0)
    step = stage.step(round_, replace(evidence, rounds=np.repeat([4, 5], 5)), known)
    assert kinds_of(step) == ["rolled_back"]
    assert not step.vector.any()
    assert stage.removed is None


# Whole guards.


@dataclass(frozen=True)
class Compared:
    """One round of a guard, and of one without elimination that was given the same."""

    model: dict
    sent: dict
    result: AggregationResult
    without: AggregationResult
    usual: float
    """The norm of a usual update."""
    share: float
    """The share of a removal that is carried out."""

    @property
    def removed(self) -> torch.Tensor:
        return flat(self.without.weights) - flat(self.result.weights)

    @property
    def colluding(self) -> list:
        return [client for client, verdict in self.result.verdicts.items() if verdict.cluster]

    @property
    def poison(self) -> torch.Tensor:
        """The mean update of the colluding clients beyond the mean of the accepted, clipped ones."""
        updates = {client: flat(weights) - flat(self.model) for client, weights in self.sent.items()}
        mean = sum(verdict.weight * updates[client] for client, verdict in self.without.verdicts.items())
        return torch.stack([updates[client] for client in self.colluding]).mean(dim=0) - mean


def compared(sent_in, rounds: int) -> list[Compared]:
    """Rounds in which `sent_in(model, number)` is sent."""
    eliminating, plain = (G2uardFL(seed=0, rollback=False, eliminate=eliminate) for eliminate in (True, False))
    model, found = first_model(), []
    for number in range(1, rounds + 1):
        sent = sent_in(model, number)
        both = eliminating.aggregate(model, sent), plain.aggregate(model, sent)
        usual, share = eliminating.filtering.shapes.usual_norm, eliminating.elimination.removal_share
        found.append(Compared(model, sent, *both, usual, share))
        model = both[0].weights
    return found


@cache
def side_by_side() -> list[Compared]:
    return compared(Federation().messages, 12)


def test_elimination_changes_no_verdict_but_the_weights():
    for one in side_by_side():
        for client, verdict in one.result.verdicts.items():
            plain = one.without.verdicts[client]
            assert replace(verdict, weight=0) == replace(plain, weight=0)
            # What the colluding clients have in common with the accepted ones stays, so that these weigh more.
            assert verdict.weight >= plain.weight or (verdict.decision == "malicious" and verdict.weight < 0)
            assert verdict.weight <= 0 or verdict.decision == "accepted"


def test_the_model_moves_away_from_the_malicious_mean_by_half_of_it_or_of_a_usual_update():
    moved = 0
    for one in side_by_side():
        if len(one.colluding) < 2:
            assert not one.removed.any()
            continue
        limit = 0.5 * min(norm_of(one.poison), one.usual)
        assert norm_of(one.removed) == pytest.approx(one.share * limit, rel=1e-3)
        assert cosine_of(one.removed, one.poison) > 0.999
        moved += 1
    assert moved >= 5


def test_an_event_names_the_clients_and_the_norm_of_each_removal():
    for one in side_by_side():
        events = [event for event in one.result.report.events if event.kind == "eliminated"]
        assert len(events) == (norm_of(one.removed) > 0)
        for event in events:
            assert event.details["clients"] == len(one.colluding)
            assert event.details["norm"] == pytest.approx(norm_of(one.removed), rel=1e-3)


def test_a_guard_halves_what_it_removes_once_honest_clients_want_it_back():
    """In round 4 the honest clients move a little towards what attackers pulled to, and was removed."""

    def sent_in(model, number):
        sent = messages(model, 0, number, [*range(3), *range(10, 17)])
        for client in range(10, 17) if number == 4 else ():
            back = drawn(0, 0, 0)
            sent[client] = {name: (sent[client][name] + 0.003 * back[name]).astype(np.float32) for name in model}
        return sent

    rounds = compared(sent_in, 6)
    assert all(one.colluding == [0, 1, 2] for one in rounds)
    kinds = [[event.kind for event in one.result.report.events] for one in rounds]
    assert kinds == [["eliminated"]] * 3 + [["elimination_reversed"]] + [["eliminated"]] * 2
    shares = [norm_of(one.removed) / min(norm_of(one.poison), one.usual) for one in rounds]
    assert shares == pytest.approx([0.5, 0.5, 0.5, 0.0, 0.25, 0.25], abs=1e-3)


# Norms and cosines.


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 20))
def test_norm_and_cosine_are_the_sums_of_products(seed, size):
    first, second = np.random.default_rng(seed).normal(size=(2, size))
    norms = [sum(x * x for x in vector) ** 0.5 for vector in (first, second)]
    assert norm_of(torch.from_numpy(first)) == pytest.approx(norms[0])
    cosine = sum(x * y for x, y in zip(first, second, strict=True)) / norms[0] / norms[1]
    assert cosine_of(torch.from_numpy(first), torch.from_numpy(second)) == pytest.approx(cosine)


@pytest.mark.parametrize(("first", "second"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_the_cosine_with_a_zero_vector_is_0(first, second):
    assert cosine_of(torch.full((3,), first), torch.full((3,), second)) == 0
