"""Runs on `digits` in which earlier default profiles let attackers in, or rejected honest clients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from g2uardfl import G2uardFL
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation

pytestmark = pytest.mark.slow


def finished(guard: G2uardFL | None = None, rounds: int = 15, **settings) -> Simulation:
    config = RunConfig(defense="g2uardfl", engine="loop", rounds=rounds, evaluate_every=rounds, **settings)
    simulation = Simulation(config, *([guard] if guard else []))
    simulation.run()
    return simulation


def rejected_share(simulation: Simulation) -> float:
    """The share of the honest clients' updates that were not accepted."""
    decisions = [
        verdict["decision"]
        for record in simulation.records
        for client, verdict in record["verdicts"].items()
        if int(client) not in record["attacking"]
    ]
    return sum(decision != "accepted" for decision in decisions) / len(decisions)


@pytest.mark.parametrize("pmr", [0.1, 0.2])
def test_one_or_two_attackers_of_ten_in_every_round_plant_no_backdoor(pmr):
    """All ten clients take part in each round under the same ids."""
    simulation = finished(attack="black_box", clients=10, per_round=10, pmr=pmr)
    assert {len(record["attacking"]) for record in simulation.records} == {round(10 * pmr)}
    assert simulation.records[-1]["asr"] < 0.1


def test_attackers_who_first_send_tiny_updates_cause_no_false_positives():
    """An earlier profile learnt the usual norm from the tiny updates of the first round."""
    assert rejected_share(finished(attack="adaptive_attackers:TinyFirst(black_box)")) <= 0.02


class ChangingIds(G2uardFL):
    """The guard in a federation where each client has a new id in each round."""

    def aggregate(self, global_weights, client_weights, num_examples=None, **options):
        ids = {client: f"{client}-{options['round_number']}" for client in client_weights}
        counts = None if num_examples is None else {ids[client]: count for client, count in num_examples.items()}
        sent = {ids[client]: weights for client, weights in client_weights.items()}
        result = super().aggregate(global_weights, sent, counts, **options)
        verdicts = {client: result.verdicts[ids[client]] for client in client_weights}
        return replace(result, report=replace(result.report, verdicts=verdicts))


def test_a_federation_without_attackers_loses_nothing_to_new_ids():
    """Earlier profiles flagged clients that resemble their own past under other ids, and rolled back the model."""
    simulation = finished(ChangingIds(seed=0), clients=10, per_round=10, alpha=0.5)
    assert rejected_share(simulation) <= 0.02
    assert [event["kind"] for record in simulation.records for event in record["events"]] == []
