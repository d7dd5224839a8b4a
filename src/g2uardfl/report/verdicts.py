"""Decisions over the rounds: the timeline of rounds and clients, and how many submissions were judged correctly."""

from __future__ import annotations

from collections import Counter

from ..federation.audit import DECISIONS
from .charts import Axis, Figure, Key, Mark, Panel, box, circle
from .subjects import REFUSED, Subject, attacking, words

_MAX_BARS = 120
"""More rounds than this share bars."""
_HEIGHTS = {"held_out": 0.5, "invalid": 0.25}
"""Cells that are lower than others, so that they are recognised without colours."""
_OUTCOMES = {
    "attacks rejected": "hit",
    "attacks accepted": "missed",
    "honest rejected": "wronged",
    "honest accepted": "accepted",
    "invalid": "invalid",
}
"""Truth against decision, with the style of each."""


def timeline(subject: Subject) -> Figure:
    """One row for each client, one column for each round; a cell is a submission, coloured by the decision."""
    clients, rounds = subject.clients, subject.rounds
    row = 12.0 if len(clients) <= 60 else 8.0 if len(clients) <= 100 else 4.0
    column = min(18.0, max(3.0, 860.0 / max(1, len(rounds))))
    gap = 10.0 if 0 < len(subject.attackers) < len(clients) else 0.0
    left, top, bottom = 64.0, 8.0, 34.0
    width, height = left + column * len(rounds) + 10.0, top + row * len(clients) + gap + bottom
    axis = Axis.of_rounds(subject.first_round, subject.last_round)
    panel = Panel(axis, Axis(0, 1), "", width, height, left, 10.0, top, bottom, role="timeline")
    tops = {
        client: top + row * place + (0.0 if client in subject.attackers else gap)
        for place, client in enumerate(clients)
    }
    inset = min(1.0, column / 8)
    cells: dict[str, list[str]] = {decision: [] for decision in DECISIONS}
    dots = []
    for place, record in enumerate(rounds):
        x = left + column * place
        attacked = attacking(record)
        for client, verdict in record["verdicts"].items():
            y, filled = tops[client], _HEIGHTS.get(verdict["decision"], 1.0) * (row - 2 * inset)
            cells[verdict["decision"]].append(box(x + inset, y + row - inset - filled, column - 2 * inset, filled))
            if client in attacked:
                dots.append(circle(x + column / 2, y + row / 2, min(row, column) / 5))
    panel.marks += [Mark(f"bar {decision}", "".join(found)) for decision, found in cells.items() if found]
    if dots:
        panel.marks.append(Mark("truth", "".join(dots)))
    panel.marks += _row_names(subject, tops, row, gap, left)
    panel.marks += _round_names(subject, left, column, height - bottom)
    panel.readout = {
        "left": left, "column": column, "top": top, "row": row, "gap": gap, "attackers": len(subject.attackers),
    }  # fmt: skip
    decided = {verdict["decision"] for record in rounds for verdict in record["verdicts"].values()}
    legend = [Key(words(name), name, "low" if name in _HEIGHTS else "box") for name in DECISIONS if name in decided]
    caption = "One cell for each submission; point at it for the reason."
    if subject.is_simulated:
        legend += [Key("attacked in this round", "truth", "dot")] if dots else []
        caption += " Clients above the gap are malicious, those below are honest." if gap else ""
    return Figure("timeline", "Every submission", [panel], legend, caption, 1, "wide timeline")


def _row_names(subject: Subject, tops: dict[str, float], row: float, gap: float, left: float) -> list[Mark]:
    marks = []
    if row >= 8:
        size = "tiny end" if row < 12 else "small end"
        marks = [
            Mark(size, text=_short(client), at=(left - 6, tops[client] + row / 2 + 3.0)) for client in subject.clients
        ]
    elif gap:
        count, first = len(subject.attackers), min(tops.values())
        marks = [
            Mark("small end", text="malicious", at=(left - 6, first + row * count / 2 + 3)),
            Mark("small end", text="honest", at=(left - 6, first + row * count + gap + 12)),
        ]
    if gap:
        y = min(tops.values()) + row * len(subject.attackers)
        marks.append(Mark("bar malicious", box(left - 4, min(tops.values()), 2, y - min(tops.values()))))
    return marks


def _round_names(subject: Subject, left: float, column: float, y: float) -> list[Mark]:
    """Numbers below the columns, as many as have room."""
    every = max(1, -(-28 // int(column)))
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000) if step >= every)
    marks = [
        Mark("small middle", text=str(record["round"]), at=(left + column * (place + 0.5), y + 12))
        for place, record in enumerate(subject.rounds)
        if record["round"] % step == 0 or (step == 1)
    ]
    return [*marks, Mark("small middle", text="round", at=(left + column * len(subject.rounds) / 2, y + 27))]


def _short(name: str, length: int = 9) -> str:
    """A client's name that fits beside its row; long ones keep their end.

    >>> _short("12345678901234567890")
    '..4567890'
    """
    return name if len(name) <= length else f"..{name[2 - length :]}"


def outcomes(subject: Subject) -> Figure:
    """The number of correct decisions in each round, or of each decision if the ground truth is unknown."""
    if subject.is_simulated:
        names = _OUTCOMES
        title, caption = "Truth against decision", "Submissions in each round. Held out counts as rejected."
    else:
        names = {words(decision): decision for decision in DECISIONS}
        title, caption = "Decisions", "Submissions in each round; who attacked is unknown."
    counts = [_count(subject, index) for index in range(len(subject.rounds))]
    per_bar = -(-len(counts) // _MAX_BARS)
    groups = [counts[start : start + per_bar] for start in range(0, len(counts), max(1, per_bar))]
    highest = max((sum(one.values()) for one in counts), default=1)
    columns = Axis.of_columns(subject.first_round, subject.last_round)
    panel = Panel(columns, Axis.of_bars(highest, whole=True), "submissions", 720)
    floor = [0.0] * len(groups)
    used = []
    for label, style in names.items():
        bars = []
        for index, group in enumerate(groups):
            mean = sum(one[label] for one in group) / len(group)
            start = subject.rounds[index * per_bar]["round"] - 0.5
            end = subject.rounds[min(len(counts), (index + 1) * per_bar) - 1]["round"] + 0.5
            gap = 0.1 * (end - start) if len(groups) <= 60 else 0.0
            bars.append((start + gap, end - gap, floor[index], floor[index] + mean))
            floor[index] += mean
        if any(top > bottom for *_, bottom, top in bars):
            used.append(Key(label, style, "box"))
            panel.bars(bars, style, label)
    if per_bar > 1:
        caption += f" Each bar is the mean of {per_bar} rounds."
    return Figure("outcomes", title, [panel], used, caption, 1, "wide")


def _count(subject: Subject, index: int) -> Counter[str]:
    record = subject.rounds[index]
    if not subject.is_simulated:
        return Counter(words(verdict["decision"]) for verdict in record["verdicts"].values())
    attacked = attacking(record)
    return Counter(_outcome(client in attacked, verdict["decision"]) for client, verdict in record["verdicts"].items())


def _outcome(attacked: bool, decision: str) -> str:
    if decision == "invalid":
        return "invalid"
    return f"{'attacks' if attacked else 'honest'} {'rejected' if decision in REFUSED else 'accepted'}"


def totals(subject: Subject) -> Counter[str]:
    """The outcomes of all rounds together."""
    return sum((_count(subject, index) for index in range(len(subject.rounds))), Counter())
