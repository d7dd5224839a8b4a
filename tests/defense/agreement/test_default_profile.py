"""The guard's default profile on synthetic federations: who is refused, what is remembered, what the model becomes."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl import G2uardFL
from g2uardfl.aggregators.base import AggregationResult
from g2uardfl.core.errors import StateError
from g2uardfl.core.state_files import SavedState
from g2uardfl.defense.agreement.examination import common_cosine, examine
from helpers.models import same

SHAPES = {"a.weight": (24, 16), "b.weight": (16, 24), "c.weight": (8, 16)}
CLIENTS, PER_ROUND = 40, 10
ATTACKERS = frozenset(range(8))
DEFAULT = G2uardFL().config


def first_model() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(99)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def drawn(*seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def selected(seed: int, number: int) -> list[int]:
    return np.random.default_rng([seed, number]).choice(CLIENTS, PER_ROUND, replace=False).tolist()


def message(model, seed, number, client, attacks=False, length=1.0):
    """What a client sends: independent noise, and for an attacker, beside it, the direction that all of them share."""
    update, backdoor = drawn(seed, number, client + 1), drawn(seed, 0, 0)
    if attacks:
        update = {name: 0.8 * update[name] + 0.6 * backdoor[name] for name in update}
    return {name: (model[name] + length * 0.01 * update[name]).astype(np.float32) for name in model}


def messages(model, seed, number, clients, attackers=ATTACKERS):
    return {client: message(model, seed, number, client, client in attackers) for client in clients}


def play(guard, rounds=25, seed=0, attackers=ATTACKERS, model=None, first=1):
    """The results of the rounds `first`, `first` + 1 and so on."""
    model, results = model or first_model(), []
    for number in range(first, first + rounds):
        results.append(guard.aggregate(model, messages(model, seed, number, selected(seed, number), attackers)))
        model = results[-1].weights
    return results


def decisions(results):
    return [{client: verdict.decision for client, verdict in result.verdicts.items()} for result in results]


def flat(model):
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in model.values()])


@pytest.fixture(scope="module")
def attacked():
    """A guard after 25 attacked rounds, and their results."""
    guard = G2uardFL()
    return guard, play(guard)


@pytest.mark.parametrize("seed", [1, 2])
def test_attackers_who_share_a_direction_are_refused_and_the_others_are_not(seed):
    # Measured: recall 0.98 to 1, precision 1.
    truth = [
        (client in ATTACKERS, verdict.refused)
        for result in play(G2uardFL(), seed=seed)
        for client, verdict in result.verdicts.items()
    ]
    caught = sum(attacks and refused for attacks, refused in truth)
    assert caught >= 0.9 * sum(attacks for attacks, _ in truth)
    assert caught >= 0.95 * sum(refused for _, refused in truth)


def test_where_nobody_attacks_hardly_anybody_is_refused():
    # Measured over 15 seeds: 16 of 4500 updates, in 2 of the seeds.
    refused = [
        sum(
            verdict.refused
            for result in play(G2uardFL(), seed=seed, attackers=())
            for verdict in result.verdicts.values()
        )
        for seed in range(3, 7)
    ]
    assert sum(refused) <= 0.01 * 2 * 25 * PER_ROUND
    assert 0 in refused


def test_where_nobody_attacks_the_model_is_the_mean_of_clipped_updates():
    guard, model, seen = G2uardFL(), first_model(), []
    for number in range(1, 8):
        sent = with_long(model, number, range(10), 4, 1.5)
        updates = [flat(weights) - flat(model) for _, weights in sorted(sent.items())]
        norms = [float(np.sqrt(sum(x * x for x in update))) for update in updates]
        seen += norms
        lower, usual = float(np.quantile(norms, 0.25)), float(np.exp(np.median(np.log(seen))))
        limit = 0.3 * lower if len(seen) < 50 else max(usual, lower)
        step = sum(update * min(1.0, limit / norm) for update, norm in zip(updates, norms, strict=True)) / PER_ROUND
        result = guard.aggregate(model, sent)
        assert norms[4] > 1.2 * limit
        np.testing.assert_allclose(flat(result.weights) - flat(model), step, atol=1e-6)
        model = result.weights


def test_an_attacker_alone_in_its_round_is_recognised_by_the_earlier_ones(attacked, tmp_path):
    guard, results = attacked
    guard.save(tmp_path / "guard")
    guard = G2uardFL.load(tmp_path / "guard")
    model = results[-1].weights
    honest = range(50, 59)
    # None of the clients was ever seen before.
    result = guard.aggregate(model, messages(model, 0, 26, [*honest, 77], {77}))
    assert result.verdicts[77].decision == "malicious"
    assert "points the same way" in result.verdicts[77].reason
    assert all(result.verdicts[client].decision == "accepted" for client in honest)


def test_an_attacker_alone_in_the_first_round_is_not(attacked):
    model = first_model()
    result = G2uardFL().aggregate(model, messages(model, 0, 1, range(7, 17), {7}))
    assert result.verdicts[7].decision == "accepted"


@pytest.mark.parametrize("attackers", [3, 4])
def test_attackers_who_agree_clearly_are_refused_in_the_first_round(attackers):
    model, names = first_model(), range(16)
    sent = messages(model, 5, 1, names, range(attackers))
    result = G2uardFL().aggregate(model, sent)
    assert {client for client, verdict in result.verdicts.items() if verdict.refused} == set(range(attackers))
    assert all("points the same way" in result.verdicts[client].reason for client in range(attackers))


def test_attackers_have_bad_scores_and_the_others_good_ones(attacked):
    guard, _ = attacked
    scores = {client: score for client, (score, _) in guard.scores.scores.items()}
    assert max(score for client, score in scores.items() if client in ATTACKERS) < 0
    honest = [score for client, score in scores.items() if client not in ATTACKERS]
    assert sum(score > 0 for score in honest) >= 0.9 * len(honest)


def test_a_reason_and_a_negative_weight_go_with_each_member_of_the_community(attacked):
    _, results = attacked
    verdicts = [verdict for result in results[10:] for verdict in result.verdicts.values() if verdict.cluster]
    assert verdicts
    for verdict in verdicts:
        assert verdict.decision == "malicious"
        assert verdict.weight <= 0
        assert verdict.reason.endswith(".")


@settings(max_examples=2, deadline=None)
@given(order=st.permutations(range(PER_ROUND)))
def test_the_order_of_clients_changes_nothing(order):
    plain, turned, model = G2uardFL(window=60), G2uardFL(window=60), first_model()
    for number in range(1, 7):
        sent = messages(model, 0, number, selected(0, number))
        names = list(sent)
        first = plain.aggregate(model, sent)
        second = turned.aggregate(model, {names[i]: sent[names[i]] for i in order})
        assert first.verdicts == second.verdicts
        assert same(first.weights, second.weights)
        model = first.weights


def test_the_same_seed_gives_the_same_bits(attacked):
    _, results = attacked
    again = play(G2uardFL(), rounds=12)
    assert [result.verdicts for result in again] == [result.verdicts for result in results[:12]]
    assert all(same(first.weights, second.weights) for first, second in zip(again, results, strict=False))


def test_another_seed_gives_other_sketches_and_the_same_decisions(attacked):
    guard, results = attacked
    other = G2uardFL(seed=5)
    again = play(other, rounds=12)
    assert not np.array_equal(other.window.sketches[:10], guard.window.sketches[:10])
    assert decisions(again) == decisions(results[:12])


@pytest.mark.parametrize("when", [0, 1, 12])
def test_a_saved_guard_goes_on_bit_for_bit(attacked, when, tmp_path):
    _, results = attacked
    guard = G2uardFL()
    play(guard, rounds=when)
    guard.save(tmp_path / "guard")
    model = results[when - 1].weights if when else None
    again = play(G2uardFL.load(tmp_path / "guard"), rounds=6, model=model, first=when + 1)
    for first, second in zip(again, results[when:], strict=False):
        assert first.verdicts == second.verdicts
        assert same(first.weights, second.weights)


@pytest.mark.parametrize(
    "name",
    [
        "window_clients",
        "window_rounds",
        "window_accepted",
        "step_rounds",
        "usual",
        "poison_before",
        "taken_out",
        "poison_signs",
        "opposition",
        "supported",
    ],
)
def test_a_state_that_lacks_something_is_one_clear_error(attacked, name):
    state = attacked[0].state()
    values = {key: value for key, value in state.values.items() if key != name}
    with pytest.raises(StateError, match="incomplete"):
        G2uardFL().restore(SavedState(values, state.arrays))


def test_a_state_is_not_changed_by_later_rounds(attacked):
    guard = G2uardFL()
    results = play(guard, rounds=8)
    state = guard.state()
    play(guard, rounds=4, first=9, model=results[-1].weights)
    kept = G2uardFL()
    kept.restore(state)
    again = play(kept, rounds=2, first=9, model=results[-1].weights)
    assert [result.verdicts for result in again] == [result.verdicts for result in attacked[1][8:10]]


def test_the_window_is_as_long_as_was_asked_for():
    guard = G2uardFL(window=35)
    play(guard, rounds=6)
    assert guard.window.rounds == [4] * 10 + [5] * 10 + [6] * 10
    assert guard.window.sketches.shape == (30, 3, DEFAULT.sketch_width)


def test_a_newcomer_starts_at_score_0(attacked, tmp_path):
    guard, results = attacked
    guard.save(tmp_path / "guard")
    guard, model = G2uardFL.load(tmp_path / "guard"), results[-1].weights
    newcomers = [100, 101, "new"]
    sent = messages(model, 0, 40, range(20, 26))
    sent |= {name: message(model, 0, 40, 100 + i) for i, name in enumerate(newcomers)}
    result = guard.aggregate(model, sent)
    for name in newcomers:
        verdict = result.verdicts[name]
        assert verdict.decision == "accepted"
        assert verdict.distance < 0.05
        # From 0 a share of the way to 1 - 2 x suspicion.
        assert verdict.benign_score == pytest.approx(DEFAULT.recovery_step * (1 - 2 * verdict.distance))


def with_long(model, number, clients, client, length):
    return messages(model, 3, number, clients, ()) | {client: message(model, 3, number, client, length=length)}


@pytest.mark.parametrize("when", [1, 2, 6])
def test_an_update_50_times_as_long_is_refused_for_its_length(when):
    guard, model = G2uardFL(), first_model()
    for number in range(1, when):
        model = guard.aggregate(model, messages(model, 3, number, range(10), ())).weights
    result = guard.aggregate(model, with_long(model, when, range(10), 4, 50.0))
    assert result.verdicts[4].decision == "malicious"
    assert "far longer" in result.verdicts[4].reason
    assert result.verdicts[4].weight == 0
    assert all(verdict.decision == "accepted" for client, verdict in result.verdicts.items() if client != 4)


def test_an_update_refused_for_its_length_may_be_compared_with_but_does_not_say_what_is_usual():
    guard, model = G2uardFL(), first_model()
    guard.aggregate(model, with_long(model, 1, range(10), 4, 50.0))
    assert guard.window.clients == list(range(10))
    assert guard.window.accepted.tolist() == [client != 4 for client in range(10)]
    assert len(guard.usual.seen) == 9
    assert max(length for length, _ in guard.usual.seen) < math.log(1.0)


@pytest.mark.parametrize("length", [0.2, 1.0, 20.0])
@pytest.mark.parametrize("attackers", [5, 6, 7])
def test_attackers_who_are_most_of_the_first_rounds_are_told(attackers, length):
    guard, model, decided = G2uardFL(), first_model(), []
    for number in range(1, 6):
        clients = [10 * number + place for place in range(10)]
        sent = {
            client: message(model, 3, number, client, attacks, length if attacks else 1.0)
            for client, attacks in ((client, client % 10 < attackers) for client in clients)
        }
        result = guard.aggregate(model, sent)
        decided.append([result.verdicts[client].decision for client in clients])
        model = result.weights
    for decisions_ in decided[2:]:
        assert decisions_ == ["malicious"] * attackers + ["accepted"] * (10 - attackers)


def test_noise_is_forgotten_once_it_is_known_what_is_usual():
    guard, model = G2uardFL(), first_model()
    for number in range(1, 4):
        guard.aggregate(model, messages(model, 3, number, range(10), ()))
    result = guard.aggregate(model, with_long(model, 4, range(10), 4, 50.0))
    assert result.verdicts[4].decision == "malicious"
    assert guard.window.clients == [*range(10), *range(10), *range(10), 0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert guard.window.rounds == [1] * 10 + [2] * 10 + [3] * 10 + [4] * 9
    assert len(guard.window.sketches) == len(guard.window.accepted) == 39
    assert guard.window.accepted.all()


def test_who_was_refused_wrongly_gets_its_standing_back_after_clean_rounds():
    guard, model, found, expected, score = G2uardFL(), first_model(), [], [], 0.0
    for number in range(1, 21):
        result = guard.aggregate(model, with_long(model, number, range(10), 4, 50.0 if number <= 4 else 1.0))
        found.append(result.verdicts[4])
        if number <= 4:
            decision, score = "malicious", score + DEFAULT.score_step * (-1 - score)
        else:
            decision = "accepted" if score >= DEFAULT.poor_record else "held_out"
            score += DEFAULT.recovery_step * min(1, 1 + score) * (1 - score)
        expected.append((decision, score))
        model = result.weights
    assert [verdict.decision for verdict in found] == [decision for decision, _ in expected]
    assert [verdict.benign_score for verdict in found] == pytest.approx([score for _, score in expected], abs=0.02)
    assert found[4].decision == "held_out"
    assert found[-1].decision == "accepted"
    assert found[-1].benign_score > 0.5


def test_who_was_refused_often_takes_longer_to_get_its_standing_back():
    clean_rounds_needed = []
    for convictions in (2, 4):
        guard, model, clean = G2uardFL(), first_model(), 0
        for number in range(1, 40):
            length = 50.0 if number <= convictions else 1.0
            verdict = guard.aggregate(model, with_long(model, number, range(10), 4, length)).verdicts[4]
            clean += verdict.decision == "held_out"
        clean_rounds_needed.append(clean)
    # One more than these rounds, and it is accepted again.
    assert clean_rounds_needed == [3, 8]


def test_if_every_client_is_refused_the_model_is_kept_and_that_is_said():
    guard, model = G2uardFL(), first_model()
    for number in range(1, 5):
        guard.aggregate(model, with_long(model, number, range(10), 4, 50.0))
    result = guard.aggregate(model, messages(model, 3, 5, [4], ()))
    assert result.verdicts[4].decision == "held_out"
    assert same(result.weights, model)
    assert result.note == "Every client was refused: the global model was kept."


def test_an_idle_client_is_not_taken_for_an_attacker():
    guard, model = G2uardFL(), first_model()
    for number in range(1, 4):
        sent = messages(model, 3, number, range(10), ()) | {4: {name: value.copy() for name, value in model.items()}}
        result = guard.aggregate(model, sent)
        assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}
        model = result.weights


def test_a_client_with_a_tiny_update_is_not_taken_for_an_attacker():
    model = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    sent = messages(model, 3, 1, range(10), ()) | {4: message(model, 3, 1, 4, length=1e-26)}
    result = G2uardFL().aggregate(model, sent)
    assert result.verdicts[4].decision == "accepted"


def test_two_clients_who_send_the_same_are_refused_at_once():
    guard, model = G2uardFL(), first_model()
    sent = messages(model, 3, 1, range(10), ())
    sent[8] = sent[2]
    result = guard.aggregate(model, sent)
    assert {client for client, verdict in result.verdicts.items() if verdict.decision == "malicious"} == {2, 8}
    assert "client 2" in result.verdicts[8].reason


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_clients_are_accepted_unexamined(count):
    model = first_model()
    result = G2uardFL().aggregate(model, messages(model, 3, 1, range(count), ()))
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}
    assert all("unexamined" in verdict.reason for verdict in result.verdicts.values())


@dataclass(frozen=True)
class Compared:
    """One round of a guard, and of one without elimination that was given the same."""

    model: dict
    sent: dict
    result: AggregationResult
    without: AggregationResult
    usual: float
    """The length of a usual update."""

    @property
    def accepted(self):
        return flat(self.without.weights) - flat(self.model)

    @property
    def away(self):
        return flat(self.result.weights) - flat(self.without.weights)

    @property
    def colluding(self):
        return [client for client, verdict in self.result.verdicts.items() if verdict.cluster]

    @property
    def poison(self):
        """What the colluding do beyond the accepted."""
        updates = [flat(self.sent[client]) - flat(self.model) for client in self.colluding]
        return np.mean(updates, axis=0) - self.accepted


def compared(sent_in, rounds, **settings):
    """Rounds in which `sent_in(model, number)` is sent."""
    settings = {"undo": False, **settings}
    eliminating, plain, model = G2uardFL(**settings), G2uardFL(eliminate=False, **settings), first_model()
    found = []
    for number in range(1, rounds + 1):
        sent = sent_in(model, number)
        both = eliminating.aggregate(model, sent), plain.aggregate(model, sent)
        usual = math.exp(statistics.median(length for length, _ in eliminating.usual.seen))
        found.append(Compared(model, sent, *both, usual))
        model = both[0].weights
    return found


@cache
def side_by_side(**settings):
    return compared(lambda model, number: messages(model, 0, number, selected(0, number)), 12, **settings)


def test_elimination_changes_no_verdict_but_the_weights():
    for one in side_by_side():
        for client, verdict in one.result.verdicts.items():
            plain = one.without.verdicts[client]
            assert replace(verdict, weight=0) == replace(plain, weight=0)
            # What the colluding have in common with the accepted stays: these weigh more.
            assert verdict.weight >= plain.weight or (verdict.decision == "malicious" and verdict.weight < 0)
            assert verdict.weight <= 0 or verdict.decision == "accepted"


@pytest.mark.parametrize("settings", [{}, {"elimination_bound": 0.02}])
def test_elimination_moves_away_from_the_malicious_mean_and_no_further_than_its_bound(settings):
    bound, moved = settings.get("elimination_bound", DEFAULT.elimination_bound), 0
    for one in side_by_side(**settings):
        length = np.linalg.norm(one.away)
        assert length <= bound * np.linalg.norm(one.accepted) * (1 + 1e-3) + 1e-6
        if not one.colluding:
            assert length == 0
        elif length > 1e-4:
            assert one.away @ one.poison / length / np.linalg.norm(one.poison) < -0.99
            moved += 1
    assert moved >= 5


def test_the_elimination_is_as_long_as_the_formula_says():
    before, taken_out, signs, checked = 0.0, 0.0, [], 0
    for one in side_by_side():
        if len(one.colluding) > 1:
            lengths = [np.linalg.norm(flat(one.sent[client]) - flat(one.model)) for client in one.colluding]
            poison, accepted, usual = np.linalg.norm(one.poison), np.linalg.norm(one.accepted), one.usual
            alike = common_cosine(torch.from_numpy(one.poison), torch.from_numpy(one.accepted), np.array(lengths))
            signs.append(20 * usual * max(0, 1 - alike / 0.6) * max(0, 1 - poison / usual / 3))
            if len(signs) >= 3:
                before = max(before, sorted(signs[-3:])[1])
            allowed = before - taken_out + 3 * max(0, min(poison, usual - poison))
            wanted = 0.5 * max(0, 1 - poison / usual / 8) * min(poison, usual)
            expected = max(0, min(wanted, 2 * accepted, allowed))
            assert np.linalg.norm(one.away) == pytest.approx(expected, rel=0.02, abs=1e-5)
            for client in one.colluding:
                weight = one.result.verdicts[client].weight
                assert weight == pytest.approx(-expected / poison / len(one.colluding), rel=0.02, abs=1e-5)
            taken_out += expected
            checked += expected > 0.01
    assert checked >= 3


def test_elimination_ends_where_nothing_is_left_to_take_out():
    rounds = side_by_side(elimination_allowance=0.0, elimination_rate=1.0)
    pulls = [(np.linalg.norm(one.poison), one.usual) for one in rounds if one.colluding]
    # No more than three of the attackers' own steps.
    longest = max(min(pull, usual - pull) for pull, usual in pulls)
    assert 0 < sum(np.linalg.norm(one.away) for one in rounds) <= 3.03 * longest


def undoing(model, number, clients, undone):
    """Messages of clients of whom the honest move against the backdoor by `undone`, and have little else to learn."""
    backdoor = drawn(0, 0, 0)
    sent = messages(model, 0, number, clients)
    for client in set(clients) - ATTACKERS:
        update = {name: 0.2 * (sent[client][name] - model[name]) - 0.002 * undone * backdoor[name] for name in model}
        sent[client] = {name: (model[name] + update[name]).astype(np.float32) for name in model}
    return sent


def taken_out_of(undone):
    """Rounds in which three attackers meet seven clients who move against the backdoor that far, one share a round."""
    clients = [*range(3), *range(10, 17)]
    return compared(lambda model, number: undoing(model, number, clients, undone[number - 1]), len(undone))


def test_what_accepted_clients_undo_is_taken_out_and_half_as_much_once_they_wanted_it_back():
    rounds = taken_out_of([0.2] * 6 + [-0.21] * 4)
    assert all(one.colluding == [0, 1, 2] for one in rounds)
    shares = [np.linalg.norm(one.away) / np.linalg.norm(one.poison) for one in rounds]
    assert shares == pytest.approx([0, 0, 0.1, 0.1, 0.1, 0.1, 0, 0.05, 0, 0.025], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("undone", [0.0, -0.3])
def test_what_accepted_clients_do_not_undo_is_not(undone):
    assert max(np.linalg.norm(one.away) for one in taken_out_of([undone] * 6)) < 1e-6


def test_while_everybody_learns_the_same_it_says_nothing_that_attackers_do_not():
    # The honest clients' updates have a mean cosine of a half.
    assert max(np.linalg.norm(one.away) for one in taken_out_of([1.0] * 6)) < 1e-6


def recognised_in_round_3(guard, rounds=3):
    """The models before and after each round, and the results: two attackers are no community, three more are."""
    models, results = [first_model()], []
    for number, attackers in enumerate([[0], [1], [2, 3, 4], [5, 6]][:rounds], start=1):
        sent = messages(models[-1], 4, number, [*attackers, *range(10 * number, 10 * number + 9)])
        results.append(guard.aggregate(models[-1], sent))
        models.append(results[-1].weights)
    return models, results


def test_the_model_goes_back_once_attackers_are_recognised_who_had_been_accepted():
    models, results = recognised_in_round_3(G2uardFL(eliminate=False))
    without, _ = recognised_in_round_3(G2uardFL(eliminate=False, undo=False))
    refused = [[client for client, verdict in one.verdicts.items() if verdict.refused] for one in results]
    assert refused == [[], [], [2, 3, 4]]
    assert same(models[2], without[2])
    # The first model is back, half precision leaves a little; what was learnt from the one given up is of no use.
    assert np.linalg.norm(flat(models[3]) - flat(models[0])) < 0.01 * np.linalg.norm(flat(models[2]) - flat(models[0]))
    assert np.linalg.norm(flat(models[2]) - flat(models[0])) > 0.03
    assert {verdict.weight for verdict in results[2].verdicts.values()} == {0.0}
    back = "The model went back to before round 1: attackers had been accepted who are recognised now."
    assert [one.note for one in results] == ["", "", back]


@pytest.mark.parametrize(("sure", "goes_back"), [(0.98, False), (0.995, True)])
def test_it_goes_back_only_for_submissions_that_belong_almost_surely(monkeypatch, sure, goes_back):
    def no_surer(*arguments):
        found = examine(*arguments)
        return replace(found, belonging=np.minimum(found.belonging, sure))

    monkeypatch.setattr("g2uardfl.defense.guard.examine", no_surer)
    _, results = recognised_in_round_3(G2uardFL())
    assert "went back" not in results[1].note
    assert ("went back" in results[2].note) == goes_back


def test_it_goes_back_only_once():
    models, results = recognised_in_round_3(G2uardFL(eliminate=False), rounds=4)
    accepted = [flat(messages(models[3], 4, 4, [client])[client]) for client in range(40, 49)]
    moved = flat(models[4]) - flat(models[3])
    assert np.linalg.norm(moved) <= 1.01 * np.linalg.norm(np.mean(accepted, axis=0) - flat(models[3]))
    assert results[3].note == ""


def alike_in(rounds, guard):
    """As `recognised_in_round_3`, but in some of the rounds all honest clients pull one way."""
    models, results, shared = [first_model()], [], drawn(7, 7)
    for number, attackers in enumerate([[], [0], [1], [2, 3, 4]], start=1):
        sent = messages(models[-1], 4, number, [*attackers, *range(10 * number, 10 * number + 9)])
        for who in sent.keys() - set(attackers) if number in rounds else ():
            sent[who] = {name: (one + 0.01 * shared[name]).astype(np.float32) for name, one in sent[who].items()}
        results.append(guard.aggregate(models[-1], sent))
        models.append(results[-1].weights)
    return models, results


def test_it_does_not_go_back_while_everybody_learns_the_same():
    """As in training from scratch."""
    _, results = alike_in([1, 2, 3], G2uardFL(eliminate=False))
    assert [result.note for result in results] == [""] * 4


def test_it_goes_back_to_where_everybody_began_to_learn_the_same_and_not_further():
    """The last model before attackers came is good enough if honest clients had little to learn then."""
    models, results = alike_in([1, 2], G2uardFL(eliminate=False))
    assert results[3].note.startswith("The model went back to before round 3:")
    assert np.linalg.norm(flat(models[4]) - flat(models[2])) < 0.01 * np.linalg.norm(flat(models[3]) - flat(models[2]))


def test_honest_clients_who_only_mend_what_attackers_did_are_not_learning():
    """They pull one way in the round in which the first attacker is accepted, but did not in the round before."""
    _, results = alike_in([2, 3], G2uardFL(eliminate=False))
    # By then the steps of the first two rounds are remembered as one.
    assert results[3].note.startswith("The model went back to before round 1:")


def eliminated_in_round_4(monkeypatch):
    """A guard, the model after its round 4, and what it took out then."""
    guard, plain = G2uardFL(), G2uardFL(eliminate=False)
    models, _ = recognised_in_round_3(guard)
    recognised_in_round_3(plain)
    monkeypatch.setattr(guard, "_elimination", lambda *_: 0.1)
    sent = messages(models[3], 4, 4, [5, 6, *range(40, 48)])
    result = guard.aggregate(models[3], sent)
    assert result.verdicts[5].weight < 0
    return guard, result.weights, flat(plain.aggregate(models[3], sent).weights) - flat(result.weights)


def test_it_does_not_go_back_to_before_an_elimination(monkeypatch):
    guard, model, _ = eliminated_in_round_4(monkeypatch)
    assert [block.rounds for block in guard.steps.blocks] == [(4,)]
    guard.aggregate(model, messages(model, 4, 5, range(50, 60)))
    assert [block.rounds for block in guard.steps.blocks] == [(4,), (5,)]


def answered(model, removed, cosine):
    """Messages of clients whose mean update has that cosine with what was removed."""
    sent, along = messages(model, 4, 5, range(50, 60)), removed / np.linalg.norm(removed)
    updates = np.stack([flat(one) - flat(model) for one in sent.values()])
    updates -= np.outer(updates @ along, along)
    updates += np.linalg.norm(updates.mean(axis=0)) * cosine / math.sqrt(1 - cosine**2) * along
    places = np.cumsum([value.size for value in model.values()])[:-1]
    for client, update in zip(sent, updates, strict=True):
        parts = zip(model.items(), np.split(update, places), strict=True)
        sent[client] = {name: (value + part.reshape(value.shape)).astype(np.float32) for (name, value), part in parts}
    return sent


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(("cosine", "wanted"), [(0.3, True), (0.2, False), (-0.5, False)])
def test_half_as_much_is_taken_out_once_clients_wanted_it_back(monkeypatch, tmp_path, saved, cosine, wanted):
    guard, after, removed = eliminated_in_round_4(monkeypatch)
    monkeypatch.undo()
    if saved:
        guard.save(tmp_path / "guard")
        guard = G2uardFL.load(tmp_path / "guard")
    usual = guard.usual.length(np.ones(1))
    bold = guard._elimination(usual / 2, usual, 0.1, 0.0)
    guard.aggregate(after, answered(after, removed, cosine))
    assert guard.removed is None
    guard.taken_out = 0.0
    usual = guard.usual.length(np.ones(1))
    assert guard._elimination(usual / 2, usual, 0.1, 0.0) == pytest.approx(bold / 2 if wanted else bold, rel=1e-6)
    assert bold > 0


def test_a_guard_that_was_saved_can_still_go_back(tmp_path):
    guard, (models, results) = G2uardFL(), recognised_in_round_3(G2uardFL())
    recognised_in_round_3(guard, rounds=2)
    guard.save(tmp_path / "guard.npz")
    sent = messages(models[2], 4, 3, [2, 3, 4, *range(30, 39)])
    resumed = G2uardFL.load(tmp_path / "guard.npz").aggregate(models[2], sent)
    assert resumed.note == results[2].note != ""
    assert same(resumed.weights, models[3])


def test_torch_models_are_judged_as_numpy_models_are(attacked):
    _, results = attacked
    guard, model = G2uardFL(), first_model()
    for number in range(1, 6):
        sent = messages(model, 0, number, selected(0, number))
        result = guard.aggregate(
            {name: torch.from_numpy(value) for name, value in model.items()},
            {
                client: {name: torch.from_numpy(value) for name, value in weights.items()}
                for client, weights in sent.items()
            },
        )
        assert result.verdicts == results[number - 1].verdicts
        model = {name: value.numpy() for name, value in result.weights.items()}
