"""The step of the model: the mean or the consensus of the clients, and the rollback of accepted attacks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from g2uardfl import G2uardFL
from g2uardfl.aggregators.base import Round
from g2uardfl.core.layout import ModelLayout
from g2uardfl.defense.agreement.consensus import consensus
from g2uardfl.defense.agreement.elimination import EliminationSettings, RobustStepAndRollback
from g2uardfl.defense.agreement.filtering import AgreementJudgement
from helpers.federations import PRECISIONS, converted, first_model, messages, run_late_detection, widened
from helpers.graphs import drawn_sketches, evidence_of
from helpers.models import batch_norm_model, same

CLIENTS, SIZE = 10, 400


def stage_of(**settings) -> RobustStepAndRollback:
    return RobustStepAndRollback(EliminationSettings(**settings), 0)


def round_of(updates: torch.Tensor, number: int | None = None, start: float = 0.0) -> Round:
    weights = {"w": torch.full((SIZE,), float(start))}
    layout = ModelLayout.of(weights)
    examples = np.arange(1.0, CLIENTS + 1)
    return Round(layout, weights["w"], tuple(range(CLIENTS)), updates, examples, global_weights=weights, number=number)


def updates_of(common: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(CLIENTS, SIZE, generator=generator) + common


def evidence_after(rounds: int, accepted: bool = True):
    """The graph of some rounds, and whether all submissions of earlier ones were accepted."""
    graph = evidence_of(*((range(CLIENTS), drawn_sketches(number, CLIENTS, 1, 16)) for number in range(rounds)))
    return replace(graph, accepted=(graph.rounds < rounds) & accepted)


def judgement_of(rounds: int = 1, **changes) -> AgreementJudgement:
    accepted = changes.pop("accepted", np.ones(CLIENTS, bool))
    values = {
        "accepted": accepted,
        "malicious": ~accepted,
        "scores": np.zeros(CLIENTS),
        "clipping": np.linspace(0.5, 1.0, CLIENTS) * accepted,
        "reasons": ("",) * CLIENTS,
        "membership": np.zeros(CLIENTS * rounds),
        "learning": 0.0,
        "has_history": True,
    }
    return AgreementJudgement(**{**values, **changes})


def step_of(updates: torch.Tensor, **changes):
    judgement = judgement_of(**changes)
    return stage_of().step(round_of(updates), evidence_after(1), judgement), judgement


SOME = np.arange(CLIENTS) < 7


@pytest.mark.parametrize("accepted", [np.ones(CLIENTS, bool), SOME])
def test_clients_that_learn_the_same_move_the_model_by_the_clipped_mean(accepted):
    updates = updates_of()
    step, judgement = step_of(updates, learning=1.0, accepted=accepted)
    samples = [number * one for number, one in zip(range(1, CLIENTS + 1), accepted, strict=True)]
    shares = [number / sum(samples) * factor for number, factor in zip(samples, judgement.clipping, strict=True)]
    assert step.weights.tolist() == pytest.approx(shares)
    expected = sum(share * update for share, update in zip(shares, updates, strict=True))
    torch.testing.assert_close(step.vector, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("has_history", "dissent"), [(True, 0.15), (False, 0.0)])
def test_clients_of_a_converged_model_move_it_by_their_consensus_and_in_the_first_rounds_only_unanimously(
    has_history, dissent
):
    updates = updates_of(common=1.5)
    step, judgement = step_of(updates, has_history=has_history)
    assert torch.equal(step.vector, consensus(updates, judgement.clipping, dissent))
    # Of ten clients one may dissent.
    signs = (updates > 0).sum(dim=0)
    assert torch.equal(step.vector > 0, signs >= 10 - has_history)


def test_in_between_the_step_is_between_mean_and_consensus():
    updates = updates_of(common=1.0)
    mean, agreed, between = (step_of(updates, learning=learning)[0].vector for learning in (1.0, 0.0, 0.25))
    torch.testing.assert_close(between, 0.25 * mean + 0.75 * agreed)


@pytest.mark.parametrize("size", [1.0, -1e6])
def test_a_lone_attacker_among_ten_moves_no_parameter_that_honest_clients_do_not_support(size):
    """The honest updates are noise."""
    updates = updates_of()
    updates[3] = size
    factors = np.ones(CLIENTS)
    step, _ = step_of(updates, clipping=factors)
    honest = updates[np.arange(CLIENTS) != 3]
    supported = ((honest * size) > 0).sum(dim=0) >= 8
    against = ((honest * size) < 0).sum(dim=0) >= 9
    assert not step.vector[~supported & ~against].any()
    assert (step.vector.abs() <= honest.abs().amax(dim=0)).all()
    assert 0 < step.vector.count_nonzero() < 0.1 * SIZE


def test_rejected_clients_have_no_part():
    updates = updates_of(common=2.0)
    first, _ = step_of(updates, accepted=SOME)
    updates[7:] = 1e6
    second, _ = step_of(updates, accepted=SOME)
    assert torch.equal(first.vector, second.vector)
    assert not second.weights[7:].any()


def test_the_model_is_kept_if_nobody_is_accepted():
    step, _ = step_of(updates_of(common=2.0), accepted=np.zeros(CLIENTS, bool))
    assert not step.vector.any()
    assert not step.shares.any()


# Rollback.


def after_three_rounds(probability: float, accepted: bool = True, learning: float = 0.0, **settings):
    """The step of round 3, in which a submission of round 2 belongs to a group with that probability."""
    stage = stage_of(**settings)
    for number in (1, 2, 3):
        membership = np.zeros(CLIENTS * number)
        if number == 3:
            membership[CLIENTS + 4] = probability
        judgement = judgement_of(membership=membership, learning=learning if number == 3 else 0.0)
        evidence = evidence_after(number, accepted)
        step = stage.step(round_of(updates_of(), 100 + number, start=number), evidence, judgement)
    return stage, step


@pytest.mark.parametrize(
    ("case", "rolled_back"),
    [
        ({"probability": 0.98}, False),
        ({"probability": 0.999}, True),
        ({"probability": 0.999, "accepted": False}, False),
        ({"probability": 0.999, "rollback": False}, False),
    ],
    ids=["doubt", "certain", "rejected", "switched off"],
)
def test_the_model_is_rolled_back_if_an_accepted_submission_almost_certainly_attacked(case, rolled_back):
    _, step = after_three_rounds(**case)
    assert [event.kind for event in step.events] == ["rolled_back"] * rolled_back
    assert (step.restored is not None) == rolled_back
    assert step.weights.any() != rolled_back


@pytest.mark.parametrize(
    ("last", "learning", "attack", "rolled_back"),
    [
        (25, (), 9, True),  # a converged model: 16 rounds are undone
        (25, (25,), 17, True),  # clients learn: 8 rounds are undone
        (25, (25,), 9, False),
        (25, range(10, 16), 9, False),  # a phase of learning is undone
        (25, range(10, 16), 17, True),
        (7, range(1, 8), 5, True),
        (7, range(1, 8), 3, False),  # four of seven rounds are more than half
    ],
    ids=str,
)
def test_where_clients_learn_only_a_short_rollback_is_worth_it(last, learning, attack, rolled_back):
    """An attacker of round `attack`, in which a snapshot begins, is detected in the last round."""
    stage = stage_of()
    for number in range(1, last + 1):
        membership = np.zeros(CLIENTS * number)
        membership[CLIENTS * (attack - 1) : CLIENTS * attack][:1] = float(number == last)
        judgement = judgement_of(membership=membership, learning=float(number in learning))
        step = stage.step(round_of(updates_of()), evidence_after(number), judgement)
        assert (step.restored is not None) == (rolled_back and number == last)


def test_the_restored_model_is_that_from_before_the_attack_and_the_event_names_its_round():
    stage, step = after_three_rounds(0.999)
    assert step.restored.vector.tolist() == [2.0] * SIZE
    assert step.events[0].details["round"] == 102
    assert step.events[0].message == (
        "The model was rolled back to the start of round 102: attackers were detected whose updates had been accepted "
        "since."
    )
    assert [one.rounds for one in stage.snapshots.kept] == [(1,)]


@pytest.mark.parametrize(("attack", "rolled_back"), [(3, False), (5, True)])
def test_where_clients_learn_a_rollback_undoes_at_most_half_of_the_rounds_since_the_last(attack, rolled_back):
    stage = stage_of()
    stage.last_rollback = 1
    for number in range(1, 8):
        membership = np.zeros(CLIENTS * number)
        membership[CLIENTS * (attack - 1) : CLIENTS * attack][:1] = float(number == 7)
        step = stage.step(
            round_of(updates_of()), evidence_after(number), judgement_of(membership=membership, learning=1.0)
        )
    assert (step.restored is not None) == rolled_back


def test_a_restored_stage_rolls_back_as_the_saved_one():
    stage, _ = after_three_rounds(0.0)
    restored = stage_of()
    restored.restore(stage.state())
    membership = np.zeros(CLIENTS * 4)
    membership[0] = 1.0
    arguments = round_of(updates_of(), 104), evidence_after(4), judgement_of(membership=membership)
    first, second = (one.step(*arguments) for one in (stage, restored))
    assert first.events == second.events != ()
    assert torch.equal(first.restored.vector, second.restored.vector)


@pytest.mark.parametrize(
    ("precision", "saved"), [(torch.float32, False), *((one, True) for one in PRECISIONS)], ids=str
)
def test_parameters_and_running_statistics_are_those_of_the_named_round_bit_for_bit(precision, saved, tmp_path):
    guard, models, rolled_back = G2uardFL(seed=0), [converted(batch_norm_model(), precision)], []
    while not rolled_back:
        if saved:
            guard.save(tmp_path / "guard")
            guard = G2uardFL.load(tmp_path / "guard")
        [result] = run_late_detection(guard, 1, models[-1], first=len(models))
        rolled_back = [event.details["round"] for event in result.report.events if event.kind == "rolled_back"]
        models.append(result.weights)
    # The first attacker is in round 2; one snapshot may cover rounds 1 and 2 by then.
    assert rolled_back in ([1], [2])
    expected, before, found = models[rolled_back[0] - 1], models[-2], models[-1]
    assert {name: value.dtype for name, value in found.items()} == {n: v.dtype for n, v in expected.items()}
    assert same(widened(found), widened(expected))
    assert not same(widened(before), widened(expected))


@pytest.mark.parametrize("rollback", [True, False])
def test_a_guard_without_rollback_does_not_roll_back_to_the_snapshots_of_a_saved_one(rollback):
    saved, guard, model = G2uardFL(seed=0), G2uardFL(seed=0, rollback=rollback), first_model()
    saved.aggregate(model, messages(model, 4, 1, [0, *range(10, 19)]))
    guard.restore(saved.state())
    result = guard.aggregate(model, messages(model, 4, 2, [1, *range(20, 29)]))
    assert result.verdicts[1].decision == "malicious"
    assert [event.kind for event in result.report.events] == ["rolled_back"] * rollback
