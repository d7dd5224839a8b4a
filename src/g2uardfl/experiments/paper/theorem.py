"""Theorem 1 (section Convergence Analysis), measured: the average squared gradient norm beside its bound.

The problem is a federation of quadratic functions F_i(w) = (w - b_i)ᵀ A (w - b_i) / 2 with noisy gradients. All
constants of the theorem are known: L is the largest eigenvalue of A, D_i = ‖A (b_i - b̄)‖ for every w, and the noise has
the variance ζ². F is minimal at b̄, the mean of all b_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core.numerics import Array
from ...defense.g2uardfl import G2uardFL

_CLIENTS, _DIMENSION = 20, 12


@dataclass(frozen=True)
class Problem:
    """What the federation minimises."""

    name: str
    spread: float
    """The standard deviation of the coordinates of b_i: how heterogeneous the clients are."""
    noise: float
    """ζ, the root mean square norm of the gradient's noise."""


PROBLEMS = (
    Problem("heterogeneous clients, noisy gradients", 0.3, 0.5),
    Problem("heterogeneous clients, exact gradients", 0.3, 0.0),
    Problem("identical clients, exact gradients", 0.0, 0.0),
)


@dataclass(frozen=True)
class Check:
    """One run of the guard beside the bound, with the constants of the theorem."""

    problem: str
    selected: int
    """K, the number of clients selected in each round."""
    local_steps: int
    """E <= T^(1/4) / K^(3/4)."""
    rounds: int
    """R; T = E R >= max(16 K³, 16 / K, 16 / L²)."""
    learning_rate: float
    """λ = K^(1/2) / (8 L T^(1/2))."""
    measured: float
    """(1/R) Σ_r ‖∇F(G^(r-1))‖²."""
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the measured value is within the bound."""
        return self.measured <= self.bound


def theorem_bound(
    smoothness: float, gap: float, steps: int, selected: int, benign: float, malicious: float, noise: float
) -> float:
    """The right-hand side of Theorem 1.

    20 L gap / (T^(1/2) K^(3/2)) + (21 K + 11) / (4 K) Σ_{C+} D² + (K + 1) / (4 K) Σ_{C-} D² + ζ² / 4.

    Parameters
    ----------
    smoothness, gap
        L, and E[F(G^0)] - F(G*).
    steps, selected
        T, the number of local steps of a client over all rounds, and K.
    benign, malicious
        Σ D_i² over the clients in C+, and in C-; where these change over the rounds, their means.
    noise
        ζ.
    """
    first = 20 * smoothness * gap / (math.sqrt(steps) * selected**1.5)
    by_benign = (21 * selected + 11) / (4 * selected) * benign
    by_malicious = (selected + 1) / (4 * selected) * malicious
    return float(first + by_benign + by_malicious + noise**2 / 4)


def check(problem: Problem, selected: int, seed: int = 0) -> Check:
    """Train with the `paper` profile for the smallest T that the theorem allows; no client is malicious."""
    rng = np.random.default_rng(seed)
    curvatures = np.linspace(0.5, 2.0, _DIMENSION)
    centres = rng.normal(0.0, 1.0, _DIMENSION) + problem.spread * rng.normal(0.0, 1.0, (_CLIENTS, _DIMENSION))
    heterogeneity = (((centres - centres.mean(axis=0)) * curvatures) ** 2).sum(axis=1)
    smoothness, optimum = float(curvatures.max()), centres.mean(axis=0)

    local_steps = 2  # T^(1/4) / K^(3/4) at T = 16 K³
    rounds = math.ceil(max(16 * selected**3, 16 / selected, 16 / smoothness**2) / local_steps)
    steps = local_steps * rounds
    rate = math.sqrt(selected) / (8 * smoothness * math.sqrt(steps))

    model = np.zeros(_DIMENSION)
    gap = 0.5 * float((curvatures * (model - optimum) ** 2).sum())
    # γ = λ / (K^(1/2) log(1 + max n)), where the first round's largest update stands for the largest median norm n.
    largest = local_steps * rate * float(np.linalg.norm(curvatures * (model - centres), axis=1).max())
    gamma = rate / (math.sqrt(selected) * math.log1p(largest))
    guard = G2uardFL(profile="paper", seed=seed, elimination_rate=min(gamma, 1.0))

    total = benign = malicious = 0.0
    for _ in range(rounds):
        total += float(((curvatures * (model - optimum)) ** 2).sum())
        chosen = rng.choice(_CLIENTS, selected, replace=False)
        sent = {int(client): _trained(model, centres[client], curvatures, local_steps, rate, problem, rng)
                for client in chosen}  # fmt: skip
        result = guard.aggregate({"w": model}, {client: {"w": weights} for client, weights in sent.items()})
        for client, verdict in result.verdicts.items():
            share = float(heterogeneity[int(client)]) / rounds
            benign += share if verdict.decision == "accepted" else 0.0
            malicious += share if verdict.decision == "malicious" else 0.0
        model = np.asarray(result.weights["w"])
    bound = theorem_bound(smoothness, gap, steps, selected, benign, malicious, problem.noise)
    return Check(problem.name, selected, local_steps, rounds, rate, total / rounds, bound)


def _trained(
    start: Array, centre: Array, curvatures: Array, steps: int, rate: float, problem: Problem, rng: np.random.Generator
) -> Array:
    """A client's model after its local steps."""
    weights = start.copy()
    for _ in range(steps):
        noise = problem.noise / math.sqrt(_DIMENSION) * rng.normal(size=_DIMENSION)
        weights -= rate * (curvatures * (weights - centre) + noise)
    return weights


def checks(scale: str) -> list[Check]:
    """All problems; K is 10 at the paper's scale, as in its experiments, and 3 for a smoke run."""
    return [check(problem, 10 if scale == "paper" else 3) for problem in PROBLEMS]


_HEADINGS = ["problem", "K", "E", "rounds", "learning rate", "mean squared gradient norm", "bound", "holds"]
_CONDITIONS = (
    "Quadratic functions with known L, ζ and D_i; learning rate, γ and E as the theorem asks for, T the smallest that "
    "it allows, no malicious client, `profile=paper`."
)
_FLAW = (
    "The proof (step (a) of its first lemma) replaces the weighted mean of the clients' updates by their sum, a step "
    "up to K times as large. With the mean, which the algorithm takes, the first term of the bound is too small where "
    "neither heterogeneity nor noise adds to it."
)


def rows(found: Sequence[Check]) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, rows, and sentences that say whether the bound holds."""
    held = sum(one.holds for one in found)
    sentences = [f"The bound holds in {held} of {len(found)} problems.", _CONDITIONS]
    if held < len(found):
        sentences.append(_FLAW)
    cells = []
    for one in found:
        sizes = [str(one.selected), str(one.local_steps), str(one.rounds)]
        values = [f"{value:.4g}" for value in (one.learning_rate, one.measured, one.bound)]
        cells.append([one.problem, *sizes, *values, "yes" if one.holds else "no"])
    return _HEADINGS, cells, sentences


def to_markdown(found: Sequence[Check]) -> str:
    """A section with the table."""
    headings, cells, sentences = rows(found)
    rule = ["---", *["---:"] * (len(headings) - 2), "---"]
    lines = [f"| {' | '.join(row)} |" for row in (headings, rule, *cells)]
    return "\n".join(["## Theorem 1", "", " ".join(sentences), "", *lines, ""])
