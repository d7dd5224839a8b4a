"""The curves of a run as TensorBoard events; needs TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError
from .run import Callback, Record

if TYPE_CHECKING:
    from .run import Simulation


class TensorBoard(Callback):
    """Writes ACC, ASR, the number of refused clients and the seconds of each round into the run directory."""

    def __init__(self, path: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("--tensorboard needs TensorBoard: pip install tensorboard") from error
        self._writer = SummaryWriter(str(path / "tensorboard"))

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Add one point to each curve."""
        refused = sum(verdict["decision"] != "accepted" for verdict in record["verdicts"].values())
        scalars = {"acc": record["acc"], "asr": record["asr"], "refused": refused}
        scalars |= {f"seconds/{name}": value for name, value in record["seconds"].items()}
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, record["round"])

    def on_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """Flush and close."""
        self._writer.close()
