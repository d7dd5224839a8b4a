"""The client graph of each round: clients placed by their clusters and joined by their strongest edges."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from .charts import Axis, Figure, Frame, Key, Mark, Panel, Point, circle
from .subjects import Record, Subject, attacking, words

_SIZE = 420.0
_EDGE_CLASSES = 4
"""Edges have one of this many widths."""
_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


def has_graph(subject: Subject) -> bool:
    """Whether the rule builds a graph of the clients."""
    return any(record.get("edges") for record in subject.rounds)


def graph(subject: Subject) -> Figure:
    """The graphs of all rounds that have one, as frames."""
    rounds = [record for record in subject.rounds if record.get("edges")]
    strongest = max(weight for record in rounds for *_, weight in record["edges"])
    panel = Panel(Axis(0, 1), Axis(0, 1), "", _SIZE, _SIZE, 0, 0, 0, 0, role="graph")
    panel.frames = [Frame(str(record["round"]), tuple(_marks(record, strongest))) for record in rounds]
    decided = {verdict["decision"] for record in rounds for verdict in record["verdicts"].values()}
    legend = [
        Key(words(name), name, "box") for name in ("accepted", "held_out", "malicious", "invalid") if name in decided
    ]
    caption = (
        "Each circle of clients is a cluster; the further from its centre, the less a client fits in. "
        "Lines join each client with those most similar to it; the wider, the more similar."
    )
    if subject.is_simulated:
        legend += [Key("attacked", "ring attacked", "ring"), Key("did not attack", "ring behaved", "ring")]
    return Figure("graph", "Client graph", [panel], legend, caption, 1, "square")


def _marks(record: Record, strongest: float) -> list[Mark]:
    verdicts = record["verdicts"]
    places, radius = layout(verdicts)
    marks = []
    widths: dict[int, list[str]] = defaultdict(list)
    for first, second, weight in record["edges"]:
        if str(first) in places and str(second) in places:
            (x0, y0), (x1, y1) = places[str(first)], places[str(second)]
            strength = min(_EDGE_CLASSES, 1 + int(_EDGE_CLASSES * max(0.0, weight) / strongest)) if strongest else 1
            widths[strength].append(f"M{x0:.0f} {y0:.0f}L{x1:.0f} {y1:.0f}")
    marks += [Mark(f"edge w{strength}", "".join(paths)) for strength, paths in sorted(widths.items())]
    attacked = attacking(record)
    for client, (x, y) in places.items():
        ring = "" if "malicious" not in record else " attacked" if client in attacked else " behaved"
        data = {"client": client}
        marks.append(Mark(f"node {verdicts[client]['decision']}{ring}", circle(x, y, radius), data=data))
    return marks


def layout(verdicts: Mapping[str, Mapping[str, object]]) -> tuple[dict[str, Point], float]:
    """The place of each client in a square, and the radius of its circle.

    Clusters are discs on a circle around the centre, the largest one first. Within a disc the clients lie on a spiral,
    those that fit in best in the middle.
    """
    clusters: dict[object, list[str]] = defaultdict(list)
    for client, verdict in verdicts.items():
        clusters[verdict.get("cluster")].append(client)
    ordered = sorted(clusters.values(), key=len, reverse=True)
    # Discs have areas in proportion to their clients, and room between them.
    sizes = [math.sqrt(len(members)) + 0.8 for members in ordered]
    centres, extent = _packed(sizes)
    unit = (_SIZE / 2 - 4) / extent
    places = {}
    for members, (x, y) in zip(ordered, centres, strict=True):
        by_fit = sorted(members, key=lambda client: (_distance(verdicts[client]), client))
        for rank, client in enumerate(by_fit):
            away, angle = 0.95 * math.sqrt(rank + (0.5 if len(members) > 1 else 0.0)), rank * _GOLDEN_ANGLE
            places[client] = (
                _SIZE / 2 + unit * (x + away * math.cos(angle)),
                _SIZE / 2 + unit * (y + away * math.sin(angle)),
            )
    return places, max(2.5, min(11.0, 0.55 * unit))


def _distance(verdict: Mapping[str, object]) -> float:
    distance = verdict.get("distance")
    return float(distance) if isinstance(distance, int | float) else 0.0


def _packed(sizes: Sequence[float]) -> tuple[list[Point], float]:
    """Centres of discs of these radii that do not overlap, and the radius of the whole.

    Each disc goes to the place nearest to the middle that is free, on rings of growing radius around the first.
    """
    centres: list[Point] = []
    for number, size in enumerate(sizes):
        away, spot = 0.0, (0.0, 0.0)
        while any(math.dist(spot, centres[other]) < size + sizes[other] - 1e-9 for other in range(number)):
            away += 0.15
            spots = [(away * math.cos(turn * math.pi / 12), away * math.sin(turn * math.pi / 12)) for turn in range(24)]
            spot = max(
                spots,
                key=lambda place: min(
                    math.dist(place, centres[other]) - size - sizes[other] for other in range(number)
                ),
            )
        centres.append(spot)
    extent = max(math.hypot(x, y) + size for (x, y), size in zip(centres, sizes, strict=True))
    return centres, extent
