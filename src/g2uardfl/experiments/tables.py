"""Runs as tidy tables by run, round and verdict; needs pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError
from ..simulation.config import RunConfig
from ..simulation.metrics import FIGURES
from ..simulation.naming import attack_name, defense_name, flat_settings, task_name
from .results import read_runs, shown_settings

if TYPE_CHECKING:
    import pandas as pd

    from ..simulation.directory import FinishedRun

DECISIONS = ("accepted", "held_out", "malicious", "invalid")


class RunTables:
    """Tables of runs. A share is between 0 and 1; a value that is not defined is missing (NaN).

    Every table begins with the columns `run` (the run directory), `task`, `attack`, `defense` (with the profile, unless
    that is the default), `seed`, and the other settings in which the runs differ.

    Parameters
    ----------
    runs
        Finished runs.
    unfinished
        Run directories that were left out (default: none).

    Attributes
    ----------
    unfinished
        Run directories that were left out, because the run is not finished.
    """

    def __init__(self, runs: Sequence[FinishedRun], unfinished: Sequence[Path] = ()) -> None:
        self.unfinished = list(unfinished)
        self._runs = list(runs)
        self._pandas = _pandas()
        differing = shown_settings([run.config for run in runs])
        self._keys = [
            {
                "run": str(run.path),
                **_names(run.config),
                "seed": run.config.seed,
                **_without(settings, _NAMES),
            }
            for run, settings in zip(runs, differing, strict=True)
        ]

    def __repr__(self) -> str:
        left_out = f", {len(self.unfinished)} unfinished left out" if self.unfinished else ""
        return f"RunTables({len(self._runs)} runs{left_out})"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row for each run: its figures as in `summary.json`, and the settings that every run has."""
        rows = []
        for key, run in zip(self._keys, self._runs, strict=True):
            values = {**run.summary, **run.summary["detection"]}
            figures = {name: values.get(name) for name in (*FIGURES.values(), *_MORE_FIGURES)}
            start = {f"start_{name}": value for name, value in run.summary["start"].items()}
            general = {name: value for name, value in flat_settings(run.config).items() if "." not in name}
            rows.append({**key, **figures, **start, **_without(general, (*key, *figures))})
        return self._pandas.DataFrame(rows)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row for each round: ACC, ASR, numbers of decisions and of attacking clients, and seconds."""
        rows = []
        for key, run in zip(self._keys, self._runs, strict=True):
            for record in run.rounds:
                attacking = {str(client) for client in record["attacking"]}
                decisions = [verdict["decision"] for verdict in record["verdicts"].values()]
                refused = {
                    name for name, verdict in record["verdicts"].items() if verdict["decision"] in DECISIONS[1:3]
                }
                rows.append(
                    {
                        **key,
                        **{name: record[name] for name in ("round", "acc", "asr")},
                        "attacking": len(attacking),
                        "attacking_refused": len(attacking & refused),
                        "benign_refused": len(refused - {str(client) for client in record["malicious"]}),
                        **{decision: decisions.count(decision) for decision in DECISIONS},
                        **{f"{stage}_seconds": value for stage, value in record["seconds"].items()},
                        "events": " ".join(event["kind"] for event in record["events"]),
                    }
                )
        return self._pandas.DataFrame(rows)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row for each submission: round, client, the truth (`malicious`, `attacking`) and the verdict."""
        rows = []
        for key, run in zip(self._keys, self._runs, strict=True):
            for record in run.rounds:
                malicious, attacking = ({str(client) for client in record[name]} for name in ("malicious", "attacking"))
                for client, verdict in record["verdicts"].items():
                    truth = {"malicious": client in malicious, "attacking": client in attacking}
                    fields = {name: verdict.get(name) for name in _VERDICT}
                    rows.append({**key, "round": record["round"], "client": client, **truth, **fields})
        return self._pandas.DataFrame(rows)


_NAMES = ("task", "attack", "defense")
_MORE_FIGURES = ("rounds_per_second", "defend_seconds_median", "peak_memory_mb")
_VERDICT = ("decision", "benign_score", "cluster", "distance", "suspicion", "reason")


def load_runs(*paths: str | Path | Iterable[str | Path]) -> RunTables:
    """Load finished runs as tables.

    Parameters
    ----------
    paths
        Run directories, folders that hold some at any depth, or patterns such as `"runs/**"`.

    Returns
    -------
    RunTables
        With the pandas tables `.runs`, `.rounds` and `.verdicts`.

    Examples
    --------
    >>> tables = load_runs("runs/**")  # doctest: +SKIP
    >>> tables.runs.groupby(["attack", "defense"])[["acc", "asr"]].mean()  # doctest: +SKIP
    """
    each = [[path] if isinstance(path, str | Path) else path for path in paths]
    return RunTables(*read_runs([path for some in each for path in some]))


def _names(config: RunConfig) -> dict[str, str]:
    return dict(zip(_NAMES, (task_name(config), attack_name(config), defense_name(config)), strict=True))


def _without(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in set(names)}


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise ConfigError("tables of runs need pandas: pip install 'g2uardfl[analysis]'") from error
    return pd
