"""The headline of the README: its table and its figure, made from the results in `docs/results`.

`python docs/headline.py` writes both; a test compares them with the files.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass
from pathlib import Path

from g2uardfl.core.files import atomic_write
from g2uardfl.report.charts import PERCENT, Axis, Figure, Key, Mark, Panel, box
from g2uardfl.report.page import svg

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
README, FIGURE = ROOT / "README.md", RESULTS / "headline.svg"
BEGIN, END = "<!-- headline: python docs/headline.py -->\n", "<!-- end of headline -->\n"
ATTACKS = ("Black-box", "PGD with replacement")
DEFENCES = {
    "FedAvg": ("robustness", "No defense", ""),
    "FLAME": ("rules", "FLAME", ""),
    "Multi-Krum": ("rules", "Multi-Krum", ""),
    "G²uardFL, `paper` profile": ("robustness", "G²uardFL", "paper"),
    "**G²uardFL, `default` profile**": ("robustness", "G²uardFL", "default"),
}
"""For each row the table of its runs, the label of the defence there, and the profile."""
_STYLES = ("s0", "s1")
_ROW, _LABEL = 34.0, 170.0
"""The height of a row of the figure, and the width of its labels."""


@dataclass(frozen=True)
class Row:
    """One defence: for each attack the means over its runs, in percent; nothing for an attack that was not run."""

    name: str
    asr: dict[str, float]
    acc: dict[str, float]
    rejected: dict[str, float]
    rounds: tuple[int, ...]

    @property
    def plain_name(self) -> str:
        """The name without markup."""
        return self.name.replace("*", "").replace("`", "")


def rows() -> list[Row]:
    """The rows of the table."""
    return [_row(name, *source) for name, source in DEFENCES.items()]


def table(found: list[Row]) -> str:
    """The rows in Markdown."""
    heading = ["defence", *(f"ASR %, {_short(attack)}" for attack in ATTACKS), "ACC %", "honest rejected %", "rounds"]
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)]]
    for row in found:
        rates = [f"{row.asr[attack]:.0f}" if attack in row.asr else "not run" for attack in ATTACKS]
        means = [
            f"{statistics.fmean(values.values()):.1f}" if values else "not run" for values in (row.acc, row.rejected)
        ]
        lines.append([row.name, *rates, *means, ", ".join(map(str, row.rounds))])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def figure(found: list[Row]) -> Figure:
    """Bars of the attack success rate and of the honest submissions that are rejected."""
    names = [row.plain_name for row in found]
    panels = [
        _panel("Attack success rate, %", [row.asr for row in found], names),
        _panel("Honest submissions rejected, %", [row.rejected for row in found], names),
    ]
    keys = [Key(attack, style, "box") for attack, style in zip(ATTACKS, _STYLES, strict=True)]
    return Figure("headline", "Attack success rate and false positives on MNIST", panels, keys)


def readme(text: str, found: list[Row]) -> str:
    """The README with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(found)}{END}{after}"


def _row(name: str, source: str, label: str, profile: str) -> Row:
    path = RESULTS / f"{source}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        runs = [
            run
            for run in csv.DictReader(file)
            if (run["defense"], run["profile"], run.get("task", "mnist")) == (label, profile, "mnist")
            and run["attack"] in ATTACKS
        ]

    def means(figure_name: str) -> dict[str, float]:
        return {
            attack: statistics.fmean(float(run[figure_name]) for run in runs if run["attack"] == attack)
            for attack in ATTACKS
            if any(run["attack"] == attack for run in runs)
        }

    rounds = tuple(sorted({int(run["rounds"]) for run in runs}))
    return Row(name, means("asr"), means("acc"), means("benign_refused"), rounds)


def _panel(title: str, values: list[dict[str, float]], names: list[str]) -> Panel:
    panel = Panel(
        PERCENT, Axis(0.0, 1.0), title, width=_LABEL + 260.0, right=24.0, height=44.0 + _ROW * len(values), left=_LABEL
    )
    panel.bottom = 20.0
    bottom = panel.height - panel.bottom
    for tick in PERCENT.ticks:
        panel.marks.append(Mark("grid", f"M{panel.px(tick):.1f} {panel.top}V{bottom}"))
        panel.marks.append(Mark("small middle", text=f"{tick:g}", at=(panel.px(tick), bottom + 14.0)))
    for index, (name, shares) in enumerate(zip(names, values, strict=True)):
        y = panel.top + _ROW * index + 4.0
        panel.marks.append(Mark("end", text=name, at=(_LABEL - 10.0, y + 16.0)))
        for number, (attack, style) in enumerate(zip(ATTACKS, _STYLES, strict=True)):
            if attack not in shares:
                panel.marks.append(Mark("small", text="not run", at=(panel.px(0.0) + 3.0, y + 10.0 + 13.0 * number)))
                continue
            start, width = panel.px(0.0), panel.px(shares[attack]) - panel.px(0.0)
            panel.marks.append(
                Mark(
                    f"bar {style}",
                    box(start, y + 13.0 * number, width, 12.0),
                    title=f"{attack}: {shares[attack]:.1f} %",
                )
            )
            at = (start + width + 4.0, y + 10.0 + 13.0 * number)
            panel.marks.append(Mark("small", text=f"{shares[attack]:.0f}", at=at))
    return panel


def _short(attack: str) -> str:
    return attack[0].lower() + attack[1:] if not attack.startswith("PGD") else attack


def main() -> None:
    """Write the figure, and the table into the README."""
    found = rows()
    for path, text in (
        (FIGURE, svg(figure(found), is_themed=True)),
        (README, readme(README.read_text("utf-8"), found)),
    ):
        with atomic_write(path) as file:
            file.write(text.encode())


if __name__ == "__main__":
    main()
