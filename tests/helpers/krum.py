"""Krum's scores a second time, by the definition, one pair of clients at a time."""

from __future__ import annotations

from collections.abc import Sequence


def slow_scores(points: Sequence[Sequence[float]], f: int) -> list[float]:
    """For each point the sum of its n - f - 2 (at least one) smallest squared distances to others."""
    scores = []
    for i, point in enumerate(points):
        others = [other for j, other in enumerate(points) if j != i]
        distances = sorted(sum((a - b) ** 2 for a, b in zip(point, other, strict=True)) for other in others)
        scores.append(sum(distances[: max(len(points) - f - 2, 1)]))
    return scores


def lowest(scores: Sequence[float], count: int) -> list[int]:
    """The positions of the `count` lowest scores, in ascending order."""
    return sorted(sorted(range(len(scores)), key=lambda i: scores[i])[:count])
