"""The client graph of each round: clients placed by their clusters and joined by their strongest edges."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..federation.audit import DECISIONS
from .charts import Axis, Figure, Frame, Key, Mark, Panel, Point, circle
from .subjects import Record, Subject, attacking, words

_WIDTH = 460.0
_MAX_UNIT = 30.0
"""The largest distance of neighbours, in pixels, so that small rounds do not fill the panel."""
_EDGE_CLASSES = 4
"""Edges have one of this many widths."""
_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


@dataclass(frozen=True)
class Layout:
    """Places of clients and discs of their clusters, in units of the distance of neighbours, around the middle."""

    places: dict[str, Point]
    discs: list[tuple[Point, float]]
    """Centre and radius."""
    width: float
    height: float


def has_graph(subject: Subject) -> bool:
    """Whether the rule builds a graph of the clients."""
    return any(record.get("edges") for record in subject.rounds)


def graph(subject: Subject) -> Figure:
    """The graphs of all rounds that have one, as frames."""
    rounds = [record for record in subject.rounds if record.get("edges")]
    layouts = [layout(record["verdicts"]) for record in rounds]
    unit = min(_MAX_UNIT, (_WIDTH - 8) / max(one.width for one in layouts))
    height = 8 + unit * max(one.height for one in layouts)
    strongest = max(weight for record in rounds for *_, weight in record["edges"])
    panel = Panel(Axis(0, 1), Axis(0, 1), "", _WIDTH, round(height), 0, 0, 0, 0, role="graph")
    panel.frames = [
        Frame(str(record["round"]), tuple(_marks(record, one, (_WIDTH / 2, height / 2), unit, strongest)))
        for record, one in zip(rounds, layouts, strict=True)
    ]
    decided = {verdict["decision"] for record in rounds for verdict in record["verdicts"].values()}
    legend = [Key(words(name), name, "box") for name in DECISIONS if name in decided]
    caption = (
        "Each disc is a cluster; a client farther from its centre is less typical of it. "
        "Lines join each client to the most similar ones; a wider line means a higher similarity."
    )
    if subject.is_simulated:
        legend += [Key("attacked", "ring attacked", "ring"), Key("did not attack", "ring behaved", "ring")]
    return Figure("graph", "Client graph", [panel], legend, caption, 1, "square")


def _marks(record: Record, one: Layout, middle: Point, unit: float, strongest: float) -> list[Mark]:
    def at(place: Point) -> Point:
        return middle[0] + unit * place[0], middle[1] + unit * place[1]

    marks = [Mark("hull", "".join(circle(*at(centre), unit * radius) for centre, radius in one.discs))]
    places = {client: at(place) for client, place in one.places.items()}
    widths: dict[int, list[str]] = defaultdict(list)
    for first, second, weight in record["edges"]:
        if first in places and second in places:
            (x0, y0), (x1, y1) = places[first], places[second]
            width = min(_EDGE_CLASSES, 1 + int(_EDGE_CLASSES * max(0.0, weight) / strongest)) if strongest > 0 else 1
            widths[width].append(f"M{x0:.0f} {y0:.0f}L{x1:.0f} {y1:.0f}")
    marks += [Mark(f"edge w{width}", "".join(paths)) for width, paths in sorted(widths.items())]
    attacked = attacking(record)
    for client, (x, y) in places.items():
        ring = "" if "malicious" not in record else " attacked" if client in attacked else " behaved"
        style = f"node {record['verdicts'][client]['decision']}{ring}"
        marks.append(Mark(style, circle(x, y, max(2.5, 0.36 * unit)), data={"client": client}))
    return marks


def layout(verdicts: Mapping[str, Mapping[str, object]]) -> Layout:
    """Clusters as discs that do not overlap; in each the clients lie on a spiral, those that fit in best inside."""
    clusters: dict[object, list[str]] = defaultdict(list)
    for client, verdict in verdicts.items():
        clusters[verdict.get("cluster")].append(client)
    ordered = sorted(clusters.values(), key=len, reverse=True)
    # Discs have areas in proportion to their clients, and room between them.
    sizes = [math.sqrt(len(members)) + 0.7 for members in ordered]
    centres = _packed(sizes)
    bounds = [
        (
            min(centre[axis] - size for centre, size in zip(centres, sizes, strict=True)),
            max(centre[axis] + size for centre, size in zip(centres, sizes, strict=True)),
        )
        for axis in (0, 1)
    ]
    middle = [(low + high) / 2 for low, high in bounds]
    places, discs = {}, []
    for members, centre, size in zip(ordered, centres, sizes, strict=True):
        x, y = centre[0] - middle[0], centre[1] - middle[1]
        discs.append(((x, y), size - 0.1))
        by_fit = sorted(members, key=lambda client: (_misfit(verdicts[client]), client))
        for rank, client in enumerate(by_fit):
            away, angle = 0.95 * math.sqrt(rank + (0.4 if len(members) > 1 else 0.0)), rank * _GOLDEN_ANGLE
            places[client] = (x + away * math.cos(angle), y + away * math.sin(angle))
    return Layout(places, discs, *(high - low for low, high in bounds))


def _misfit(verdict: Mapping[str, object]) -> float:
    """The distance from the cluster's centre, or the suspicion."""
    misfit = verdict.get("distance", verdict.get("suspicion"))
    return float(misfit) if isinstance(misfit, int | float) else 0.0


def _packed(sizes: Sequence[float]) -> list[Point]:
    """Centres of discs of these radii, the largest first, that do not overlap: on rings of growing radius."""
    centres: list[Point] = []
    away, spot = 0.0, (0.0, 0.0)
    for number, size in enumerate(sizes):

        def room(place: Point, number: int = number, size: float = size) -> float:
            return min((math.dist(place, centres[one]) - size - sizes[one] for one in range(number)), default=0.0)

        while room(spot) < -1e-9:
            away += 0.15
            turns = [turn * math.pi / 12 for turn in range(24)]
            spot = max(((away * math.cos(turn), away * math.sin(turn)) for turn in turns), key=room)
        centres.append(spot)
    return centres
