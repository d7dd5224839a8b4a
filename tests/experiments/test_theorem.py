"""Theorem 1: its bound against the formula, and the measured side."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from g2uardfl.experiments.paper import theorem
from g2uardfl.experiments.paper.reproduction import theorem_checks


def test_the_bound_is_the_theorems():
    """Worked by hand: 20·2·3/(20·8) + (21·4+11)/16·0.5 + 5/16·0.25 + 0.04/4."""
    found = theorem.theorem_bound(smoothness=2, gap=3, steps=400, selected=4, benign=0.5, malicious=0.25, noise=0.2)
    assert found == pytest.approx(0.75 + 2.96875 + 0.078125 + 0.01)


@pytest.mark.slow
def test_constants_are_those_that_the_theorem_asks_for_and_gradients_become_small():
    problem = theorem.Problem("some", spread=0.1, noise=0.1)
    found = theorem.check(problem, selected=3)
    steps = found.local_steps * found.rounds
    assert steps >= 16 * 3**3
    assert found.local_steps <= steps**0.25 / 3**0.75 + 1e-9
    assert found.learning_rate == pytest.approx(3**0.5 / (8 * 2 * steps**0.5))
    rng = np.random.default_rng(0)
    first = rng.normal(size=12)
    assert found.measured < (np.linspace(0.5, 2, 12) ** 2 * first**2).sum()
    assert found.holds == (found.measured <= found.bound)


def test_checks_that_were_made_are_not_made_again(tmp_path, monkeypatch):
    check = theorem.Check("some", 3, 2, 216, 0.005, 1.25, 2.5)
    monkeypatch.setattr(theorem, "checks", lambda scale: [check, dataclasses.replace(check, measured=3.0)])
    made = theorem_checks(tmp_path, "smoke")
    monkeypatch.setattr(theorem, "checks", lambda scale: pytest.fail("made again"))
    assert theorem_checks(tmp_path, "smoke") == made
    assert [one.holds for one in made] == [True, False]
    text = theorem.to_markdown(made)
    assert "The bound holds in 1 of 2 problems." in text
    assert "| some | 3 | 2 | 216 | 0.005 | 1.25 | 2.5 | yes |" in text
