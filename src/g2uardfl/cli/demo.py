"""`g2uardfl demo`: an attack without and with the defence, on built-in data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    """Attack a federation without and with the guard, print the results and write report.html.

    Fifty clients learn 8x8 digits. A quarter of them are malicious and train the model to classify images with a white
    corner as zero. The demo takes about a minute and needs no download.
    """
    from rich.console import Console

    from ..report.page import write_report
    from ..simulation.config import RunConfig
    from ..simulation.directory import FinishedRun, RunDirectory
    from ..simulation.run import Simulation
    from .experiment import pretraining_bar
    from .progress import ProgressBar, bar
    from .tables import results_table

    console = Console()
    runs = []
    with bar(console) as progress:
        for defense in ("fedavg", "g2uardfl"):
            simulation = Simulation(
                RunConfig(task="digits", attack="black_box", defense=defense, rounds=rounds, seed=seed)
            )
            directory = RunDirectory(out / defense, overwrite=True)
            simulation.prepare(on_epoch=pretraining_bar(progress))
            simulation.run([directory, ProgressBar(progress, f"{defense:>8}")])
            runs.append(FinishedRun(directory.path))
    page = write_report(runs, out / "report.html", "g2uardfl demo: a backdoor without and with the guard")
    console.print(results_table(runs, f"digits, black-box attack by a quarter of the clients, {rounds} rounds"))
    console.print(_sentence(runs[0].summary, runs[1].summary))
    console.print(f"Open {page} in a browser to see the curves and the verdicts on every client.")


def _sentence(without: dict[str, float], guarded: dict[str, float]) -> str:
    def percent(share: float) -> str:
        return f"{100 * share:.1f} %"

    prevented = guarded["asr"] <= without["asr"] / 2
    outcome = "The guard prevented the backdoor" if prevented else "The guard did not prevent the backdoor"
    if without["asr"] < 0.2:
        outcome = "The attack failed even without a defence"
    return (
        f"{outcome}: without a defence, {percent(without['asr'])} of the images with the trigger are classified "
        f"as zero, with the guard {percent(guarded['asr'])}; "
        f"the accuracy is {percent(without['acc'])} and {percent(guarded['acc'])}."
    )
