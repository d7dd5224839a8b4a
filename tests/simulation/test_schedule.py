"""The schedule of a run: selection, malicious clients and churn."""

from __future__ import annotations

import numpy as np

from g2uardfl.simulation.schedule import Schedule


def rounds_of(schedule, client):
    """The rounds in which a client is selected."""
    return [number for number, selected in enumerate(schedule.selected) if client in selected]


def test_the_schedule_depends_only_on_the_seed_and_selects_no_client_twice():
    first, again, other = (Schedule.draw(seed, 50, 40, 10, 0.25) for seed in (1, 1, 2))
    assert first.malicious == again.malicious
    assert all((one == two).all() for one, two in zip(first.selected, again.selected, strict=True))
    assert first.malicious != other.malicious
    assert len(first.malicious) == 10
    assert all(len(set(selected)) == 10 for selected in first.selected)


def test_a_shorter_schedule_is_the_beginning_of_a_longer_one():
    long, short = (Schedule.draw(1, rounds, 40, 10, 0.25).selected for rounds in (50, 20))
    assert all((one == two).all() for one, two in zip(short, long, strict=False))


def test_churn_lets_clients_join_and_leave_at_some_round():
    rounds, clients = 400, 40
    schedule = Schedule.draw(3, rounds, clients, 10, 0.25, churn=0.5)
    selected = {client: rounds_of(schedule, client) for client in range(clients)}
    joined = [client for client, numbers in selected.items() if numbers and numbers[0] > 60]
    left = [client for client, numbers in selected.items() if numbers and numbers[-1] < rounds - 60]
    assert len(joined) >= 3
    assert len(left) >= 3
    assert len({*joined, *left}) <= 20
    assert all(len(numbers) > 60 for client, numbers in selected.items() if client not in joined + left)


def test_without_churn_all_clients_are_selected_throughout():
    schedule = Schedule.draw(3, 400, 40, 10, 0.25)
    for numbers in (rounds_of(schedule, client) for client in range(40)):
        assert min(numbers) < 60
        assert max(numbers) > 340


def test_churn_leaves_at_least_one_client_in_every_round():
    schedule = Schedule.draw(0, 50, 5, 5, 0.2, churn=1.0)
    assert all(1 <= len(selected) <= 5 for selected in schedule.selected)
    assert all(len(np.unique(selected)) == len(selected) for selected in schedule.selected)
