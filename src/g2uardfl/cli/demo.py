"""`g2uardfl demo`: an attack without a defence, with a classic one and with the guard, on built-in data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


TASK, ATTACK = "digits", "black_box"
WRONG_LABELS = 0.15
"""The share of training images with a wrong label. Honest clients then go on learning from the converged model, so that
the norm of an update does not give an attacker away."""
DEFENSES = ("fedavg", "krum", "g2uardfl")
"""No defence, a classic rule, and the guard."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and report.html; existing runs are replaced.")] = Path(
        "runs/demo"
    ),
    rounds: Annotated[int, typer.Option(help="Number of rounds.", min=1)] = 60,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
) -> None:
    """Attack a federation without a defence, with a classic one and with the guard; write report.html.

    Fifty clients learn 8x8 digits, some of them with wrong labels. A quarter of the clients is malicious and trains the
    model to classify images with a white corner as zero. The demo takes about a minute and needs no download.
    """
    from rich.console import Console

    from ..report.page import write_report
    from ..simulation.config import RunConfig
    from ..simulation.directory import FinishedRun, RunDirectory
    from ..simulation.run import Simulation
    from .progress import PretrainingProgress, ProgressBar, bar
    from .tables import results_table

    console = Console()
    runs = []
    with bar(console) as progress:
        for defense in DEFENSES:
            settings = {"wrong_labels": WRONG_LABELS}
            simulation = Simulation(
                RunConfig(TASK, ATTACK, defense, rounds=rounds, seed=seed, engine="loop", task_settings=settings)
            )
            directory = RunDirectory(out / defense, overwrite=True)
            simulation.prepare(PretrainingProgress(progress))
            simulation.run([directory, ProgressBar(progress, f"{defense:>8}")])
            runs.append(FinishedRun(directory.path))
    page = write_report(
        runs, out / "report.html", "g2uardfl demo: a backdoor without a defence, with one, and with ours"
    )
    console.print(results_table(runs, f"{TASK}, {ATTACK} attack by a quarter of the clients, {rounds} rounds"))
    for run in runs:
        console.print(_sentence(run.config.defense, run.summary))
    console.print(
        f"Open {page} in a browser: it shows every submission, the reason for its verdict and the client graph."
    )


def _sentence(defense: str, summary: Mapping[str, float]) -> str:
    with_it = "Without a defence" if defense == "fedavg" else f"With {defense}"
    return (
        f"{with_it}, {100 * summary['asr_tail_mean']:.1f} % of the images with the trigger are classified as zero; "
        f"the accuracy is {100 * summary['acc_tail_mean']:.1f} %."
    )
