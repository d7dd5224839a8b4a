"""`g2uardfl demo`: an attack without a defence, with a classic one and with the guard, on built-in data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

_FEDERATION: dict[str, Any] = {
    "task": "digits",
    "attack": "pgd",
    "alpha": 0.3,
    "task_settings": {"wrong_labels": 0.15},
    "attack_settings": {"radius": 0.3},
}
"""Clients are heterogeneous and 15 % of the labels are wrong, so honest clients keep learning from the converged model:
the norms of their updates are between 0.01 and 0.7. Those of attackers are 0.3, so no limit on norms excludes them."""
_DEFENSES: dict[str, dict[str, Any]] = {"fedavg": {}, "multi_krum": {"malicious_clients": 3}, "g2uardfl": {}}
"""No defence; a classic rule, for as many attackers as it allows in rounds of ten; and the guard."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and report.html; existing runs are replaced.")] = Path(
        "runs/demo"
    ),
    rounds: Annotated[int, typer.Option(help="Number of rounds.", min=1)] = 60,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
) -> None:
    """Attack a federation without a defence, with a classic one and with the guard; write report.html.

    Fifty clients with different data learn 8x8 digits. After a sixth of the rounds a quarter of them trains the model
    to classify images with a white corner as zero. The norms of their updates are within the range of the honest ones.
    The demo takes about a minute and needs no download.
    """
    from rich.console import Console

    from ..report.page import write_report
    from ..simulation.config import RunConfig
    from ..simulation.directory import FinishedRun, RunDirectory
    from ..simulation.run import Simulation
    from .progress import PretrainingProgress, ProgressBar, bar
    from .tables import results_table

    console, begin = Console(), rounds // 6 + 1
    console.print(
        f"50 clients with different data, 10 in each round. From round {begin} of {rounds} on, a quarter of them "
        "trains a backdoor. The norms of their updates are within the range of the honest ones."
    )
    runs = []
    with bar(console) as progress:
        for defense, settings in _DEFENSES.items():
            values: dict[str, Any] = {"defense": defense, "defense_settings": settings, "attack_from": begin}
            simulation = Simulation(RunConfig(rounds=rounds, seed=seed, engine="loop", **_FEDERATION, **values))
            directory = RunDirectory(out / defense, overwrite=True)
            simulation.prepare(PretrainingProgress(progress))
            simulation.run([directory, ProgressBar(progress, f"{defense:>10}")])
            runs.append(FinishedRun(directory.path))
    page = write_report(runs, out / "report.html", "g2uardfl demo: no defence, Multi-Krum and the guard")
    console.print(results_table(runs, "Results"))
    for run in runs:
        console.print(_sentence(run.config.defense, run.summary))
    console.print(f"Open {page} in a browser: every submission, the reason for its verdict, and the client graph.")


def _sentence(defense: str, summary: Mapping[str, float]) -> str:
    with_it = "Without a defence" if defense == "fedavg" else f"With {defense}"
    return (
        f"{with_it}, {100 * summary['asr_tail_mean']:.1f} % of the images with the trigger are classified as zero; "
        f"the accuracy is {100 * summary['acc_tail_mean']:.1f} %."
    )
