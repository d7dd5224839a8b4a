"""What the default profile measures of a round: the direction and the shape of each update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
from torch import Tensor

from ...aggregators.base import Round
from ...core.errors import StateError
from ...core.settings import check, number
from ...core.state_files import SavedState
from ..observation import Observer
from .shapes import update_shapes
from .sketches import directions, random_signs


@dataclass(frozen=True)
class ObserverSettings:
    """Settings of the sketches."""

    sketch_width: int = number(512, 16, 65536)
    """How many numbers are kept of each layer of an update."""

    def __post_init__(self) -> None:
        check(self)


class SketchObserver(Observer):
    """Measures shapes and sketches; the seed determines the sketches' random signs."""

    Settings = ObserverSettings
    client_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"shapes": (0,), "directions": (0,)}
    """`shapes` are those of `update_shapes`, `directions` those of `sketches.directions`."""

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._signs: Tensor | None = None

    def measure(self, round_: Round) -> dict[str, npt.NDArray[Any]]:
        """Shapes and directions."""
        if self._signs is None:
            self._signs = random_signs(len(round_.global_vector), self.seed).to(round_.global_vector)
        shapes = update_shapes(round_.sent)
        width, layers = self.settings.sketch_width, round_.layout.layers
        return {
            "shapes": shapes,
            "directions": directions(round_.sent, round_.global_vector, self._signs, layers, width),
        }

    def state(self) -> SavedState:
        """The width, since sketches of different widths cannot be compared."""
        return SavedState({"sketch_width": self.settings.sketch_width})

    def restore(self, state: SavedState) -> None:
        """Check that later sketches can be compared with the saved ones."""
        saved, own = state.values["sketch_width"], self.settings.sketch_width
        if saved != own:
            raise StateError(
                f"this state has sketches of sketch_width={saved}, which cannot be compared with those of "
                f"sketch_width={own}: set it back, or start anew"
            )
