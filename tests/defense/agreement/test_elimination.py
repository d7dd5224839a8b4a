"""Bounded elimination on synthetic federations, beside a guard without it that is given the same rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from g2uardfl import G2uardFL
from g2uardfl.aggregators.base import AggregationResult, Round
from g2uardfl.core.layout import ModelLayout
from g2uardfl.defense.agreement.construction import SubmissionGraph
from g2uardfl.defense.agreement.elimination import EliminationSettings, RollbackAndElimination
from g2uardfl.defense.agreement.filtering import AgreementJudgement
from g2uardfl.defense.agreement.removal import bounded_removal, initial_poison, mean_pairwise_cosine
from helpers.federations import ATTACKERS, Federation, drawn, first_model, messages
from helpers.models import flat

DEFAULT = EliminationSettings()


def norm(vector: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


@dataclass(frozen=True)
class Compared:
    """One round of a guard, and of one without elimination that was given the same."""

    model: dict
    sent: dict
    result: AggregationResult
    without: AggregationResult
    usual: float
    """The norm of a usual update."""

    @property
    def accepted(self) -> torch.Tensor:
        """The step of the accepted clients."""
        return flat(self.without.weights) - flat(self.model)

    @property
    def removed(self) -> torch.Tensor:
        return flat(self.without.weights) - flat(self.result.weights)

    @property
    def colluding(self) -> list:
        return [client for client, verdict in self.result.verdicts.items() if verdict.cluster]

    @property
    def poison(self) -> torch.Tensor:
        """The mean update of the colluding clients beyond the accepted step."""
        updates = [flat(self.sent[client]) - flat(self.model) for client in self.colluding]
        return torch.stack(updates).mean(dim=0) - self.accepted


def compared(sent_in, rounds, **settings) -> list[Compared]:
    """Rounds in which `sent_in(model, number)` is sent."""
    settings = {"rollback": False, **settings}
    eliminating, plain, model = (
        G2uardFL(seed=0, **settings),
        G2uardFL(seed=0, eliminate=False, **settings),
        first_model(),
    )
    found = []
    for number in range(1, rounds + 1):
        sent = sent_in(model, number)
        both = eliminating.aggregate(model, sent), plain.aggregate(model, sent)
        found.append(Compared(model, sent, *both, eliminating.filtering.history.usual_norm))
        model = both[0].weights
    return found


@cache
def side_by_side(**settings) -> list[Compared]:
    return compared(Federation().messages, 12, **settings)


def test_elimination_changes_no_verdict_but_the_weights():
    for one in side_by_side():
        for client, verdict in one.result.verdicts.items():
            plain = one.without.verdicts[client]
            assert replace(verdict, weight=0) == replace(plain, weight=0)
            # What the colluding clients have in common with the accepted ones stays, so that these weigh more.
            assert verdict.weight >= plain.weight or (verdict.decision == "malicious" and verdict.weight < 0)
            assert verdict.weight <= 0 or verdict.decision == "accepted"


@pytest.mark.parametrize("settings", [{}, {"elimination_bound": 0.02}], ids=str)
def test_the_model_moves_away_from_the_malicious_mean_by_at_most_the_bound(settings):
    bound, moved = settings.get("elimination_bound", DEFAULT.elimination_bound), 0
    for one in side_by_side(**settings):
        removed = norm(one.removed)
        assert removed <= bound * norm(one.accepted) * (1 + 1e-3) + 1e-6
        if not one.colluding:
            assert removed == 0
        elif removed > 1e-4:
            assert float(one.removed @ one.poison) / removed / norm(one.poison) > 0.99
            moved += 1
    assert moved >= 5


def test_what_is_removed_follows_the_formulas():
    initial, removed, estimates, checked = 0.0, 0.0, [], 0
    for one in side_by_side():
        if len(one.colluding) > 1:
            norms = np.array([norm(flat(one.sent[client]) - flat(one.model)) for client in one.colluding])
            similarity = mean_pairwise_cosine(one.poison, one.accepted, norms)
            estimates.append(
                initial_poison(
                    norm(one.poison),
                    one.usual,
                    similarity,
                    allowance=DEFAULT.elimination_allowance,
                    poisoned_pull=DEFAULT.poisoned_pull,
                    poisoned_similarity=DEFAULT.poisoned_similarity,
                )
            )
            # The first two rounds with attackers may mislead.
            initial = max(initial, sorted(estimates[-3:])[1]) if len(estimates) >= 3 else initial
            expected = bounded_removal(
                norm(one.poison),
                norm(one.accepted),
                one.usual,
                initial - removed,
                share=DEFAULT.elimination_share,
                bound=DEFAULT.elimination_bound,
                max_pull=DEFAULT.max_pull,
            )
            assert norm(one.removed) == pytest.approx(expected, rel=0.02, abs=1e-5)
            for client in one.colluding:
                weight = one.result.verdicts[client].weight
                assert weight == pytest.approx(-expected / norm(one.poison) / len(one.colluding), rel=0.02, abs=1e-5)
            removed += expected
            checked += expected > 0.01
    assert checked >= 3


def test_an_event_names_the_clients_and_the_norm_of_each_removal():
    for one in side_by_side():
        events = [event for event in one.result.report.events if event.kind == "eliminated"]
        assert len(events) == (norm(one.removed) > 0)
        for event in events:
            assert event.details["clients"] == len(one.colluding)
            assert event.details["norm"] == pytest.approx(norm(one.removed), rel=1e-3)


def test_removal_ends_where_nothing_is_left_to_remove():
    rounds = side_by_side(elimination_allowance=0.0, elimination_share=1.0)
    pulls = [(norm(one.poison), one.usual) for one in rounds if one.colluding]
    # No more than three small updates of the attackers.
    largest = max(min(pull, usual - pull) for pull, usual in pulls)
    assert 0 < sum(norm(one.removed) for one in rounds) <= 3.03 * largest


def opposing(model, number, clients, strength):
    """Messages of clients of whom the honest move against the backdoor by `strength`, and have little else to learn."""
    backdoor = drawn(0, 0, 0)
    sent = messages(model, 0, number, clients)
    for client in set(clients) - ATTACKERS:
        update = {name: 0.2 * (sent[client][name] - model[name]) - 0.002 * strength * backdoor[name] for name in model}
        sent[client] = {name: (model[name] + update[name]).astype(np.float32) for name in model}
    return sent


def against_opposition(strengths) -> list[Compared]:
    """Rounds in which three attackers meet seven clients who oppose the backdoor that strongly, one a round."""
    clients = [*range(3), *range(10, 17)]
    return compared(lambda model, number: opposing(model, number, clients, strengths[number - 1]), len(strengths))


def test_what_accepted_clients_oppose_is_removed_and_half_as_much_after_they_reversed_it():
    rounds = against_opposition([0.2] * 6 + [-0.21] * 4)
    assert all(one.colluding == [0, 1, 2] for one in rounds)
    shares = [norm(one.removed) / norm(one.poison) for one in rounds]
    assert shares == pytest.approx([0, 0, 0.1, 0.1, 0.1, 0.1, 0, 0.05, 0, 0.025], rel=1e-3, abs=1e-5)
    kinds = [[event.kind for event in one.result.report.events if event.kind != "small_steps"] for one in rounds]
    reversed_ = ["elimination_reversed"]
    assert kinds == [[], [], *[["eliminated"]] * 4, reversed_, ["eliminated"], reversed_, ["eliminated"]]


@pytest.mark.parametrize("strength", [0.0, -0.3])
def test_what_accepted_clients_do_not_oppose_is_kept(strength):
    assert max(norm(one.removed) for one in against_opposition([strength] * 6)) < 1e-6


def test_opposition_counts_only_once_clients_have_stopped_learning_the_same():
    """The mean cosine of the honest clients' updates is one half."""
    assert max(norm(one.removed) for one in against_opposition([1.0] * 6)) < 1e-6


# The stage by itself, on updates made to measure.

SIZE, COUNT = 400, 10


def stage_and_round(step: torch.Tensor, pull: torch.Tensor, **settings):
    """The stage, and a round in which seven accepted clients move by `step` and three colluding ones by `pull`."""
    layout = ModelLayout.of({"w": np.zeros(SIZE, np.float32)})
    updates = torch.stack([step] * 7 + [pull] * 3).float()
    colluding = np.arange(COUNT) >= 7
    weights = {"w": np.zeros(SIZE, np.float32)}
    round_ = Round(layout, torch.zeros(SIZE), tuple(range(COUNT)), updates, np.ones(COUNT), global_weights=weights)
    sketches = np.random.default_rng(0).normal(size=(COUNT, 1, 512)).astype(np.float32)
    evidence = SubmissionGraph(
        round=5, clients=round_.clients, norms=updates.norm(dim=1).double().numpy(), nodes=round_.clients,
        edges=np.zeros((COUNT, COUNT)), shapes=np.zeros((COUNT, 2)), people=np.arange(COUNT),
        rounds=np.full(COUNT, 5), accepted=np.zeros(COUNT, bool),
        sketches=sketches / np.linalg.norm(sketches, axis=-1, keepdims=True),
    )  # fmt: skip
    judgement = AgreementJudgement(
        accepted=~colluding, malicious=colluding, scores=np.zeros(COUNT), clipping=np.ones(COUNT),
        reasons=("",) * COUNT, noise=np.zeros(COUNT, bool), membership=colluding * 1.0, colluding=colluding,
        usual_norm=1.0, heterogeneous=False, small_steps=False,
    )  # fmt: skip
    return RollbackAndElimination(EliminationSettings(**settings), 0), round_, evidence, judgement


def axis(place: int) -> torch.Tensor:
    return torch.eye(SIZE)[place]


def kinds_of(step) -> list[str]:
    return [event.kind for event in step.events]


def test_a_pull_of_which_the_model_lacks_most_is_removed_in_part():
    stage, *round_ = stage_and_round(0.5 * axis(0), 0.5 * axis(0) + 0.5 * axis(1))
    for _ in range(2):
        step = stage.step(*round_)
    assert kinds_of(step) == ["eliminated"]
    assert step.vector[0] == pytest.approx(0.5, abs=1e-6)
    assert step.vector[1] < 0
    assert step.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {"eliminate": False}),
        ({}, {"elimination_share": 0.0}),
        ({}, {"elimination_bound": 0.0}),
        ({"heterogeneous": True}, {}),
        ({"colluding": np.arange(COUNT) == 9}, {}),
    ],
    ids=["switched off", "no share", "no bound", "heterogeneous clients", "a single attacker"],
)
def test_nothing_is_removed(changes, settings):
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(1), **settings)
    for _ in range(4):
        step = stage.step(round_, evidence, replace(judgement, **changes))
        assert torch.equal(step.vector, round_.weighted_sum(judgement.accepted / 7))
        assert step.events == ()


@pytest.mark.parametrize(("cosine", "expected"), [(0.5, True), (0.1, False), (-0.5, False)])
@pytest.mark.parametrize("saved", [False, True])
def test_a_removal_that_accepted_clients_reverse_is_halved_from_then_on(cosine, expected, saved):
    stage, *round_ = stage_and_round(0.3 * (cosine * axis(1) + (1 - cosine**2) ** 0.5 * axis(0)), 0.5 * axis(2))
    stage.removed = 0.1 * axis(1)
    if saved:
        state = stage.state()
        stage = RollbackAndElimination(EliminationSettings(), 0)
        stage.restore(state)
    kinds = kinds_of(stage.step(*round_))
    assert ("elimination_reversed" in kinds) == expected
    assert ("eliminated" in kinds) != expected
    assert stage.memory.removal_share == (0.5 if expected else 1.0)
    assert "elimination_reversed" not in kinds_of(stage.step(*round_))


def test_models_from_before_a_removal_are_not_restored():
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(0) + 0.5 * axis(1))
    quiet = replace(judgement, colluding=np.zeros(COUNT, bool), membership=np.zeros(COUNT))
    for number in (3, 4):
        stage.step(round_, replace(evidence, round=number, rounds=np.repeat([3, number], 5)), quiet)
    assert [one.rounds for one in stage.snapshots.kept] == [(3,), (4,)]
    step = stage.step(round_, replace(evidence, rounds=np.repeat([3, 5], 5)), judgement)
    assert kinds_of(step) == ["eliminated"]
    assert [one.rounds for one in stage.snapshots.kept] == [(5,)]


@pytest.mark.parametrize(("probability", "rolled_back"), [(0.9, False), (0.98, False), (0.999, True)])
def test_the_model_is_rolled_back_only_if_an_accepted_submission_almost_certainly_attacks(probability, rolled_back):
    stage, round_, evidence, judgement = stage_and_round(0.5 * axis(0), 0.5 * axis(1), eliminate=False)
    quiet = replace(judgement, membership=np.zeros(COUNT))
    suspected = replace(judgement, membership=np.where(np.arange(COUNT) == 0, probability, 0.0))
    stage.step(round_, replace(evidence, round=3, rounds=np.full(COUNT, 3)), quiet)
    stage.step(round_, replace(evidence, round=4, rounds=np.repeat([3, 4], 5)), quiet)
    step = stage.step(round_, replace(evidence, rounds=np.repeat([4, 5], 5)), suspected)
    assert kinds_of(step) == (["rolled_back"] if rolled_back else [])
    assert (step.restored is not None) == rolled_back
