"""What the default profile measures of a round: the direction and the shape of each update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...aggregators.base import Round
from ...core.errors import StateError
from ...core.settings import check, number
from ...core.state_files import SavedState
from ..observation import Observer
from ..stages import Evidence
from .construction import SubmissionGraph
from .renewal import SketchSecrets
from .shapes import update_shapes
from .sketches import directions


@dataclass(frozen=True)
class ObserverSettings:
    """Settings of the sketches."""

    sketch_width: int = number(512, 16, 65536)
    """The width of the sketch of each layer; with more than 16 layers, 16 times this in total."""

    def __post_init__(self) -> None:
        check(self)


class SketchObserver(Observer):
    """Measures shapes, and sketches under a secret that is renewed over time."""

    Settings = ObserverSettings
    client_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "shapes": (0,),
        "directions": (0,),
        "renewed_directions": (0,),
        "renewals": (),
    }
    """`shapes` are those of `update_shapes`, `directions` those of `sketches.directions`. `renewals` is the number of
    the secret of these directions, and `renewed_directions` are those under the next one: of no layer, except during a
    renewal."""

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.secrets = SketchSecrets(self.secret, settings.sketch_width)

    def measure(self, round_: Round) -> dict[str, npt.NDArray[Any]]:
        """Shapes and directions."""
        layouts = self.secrets.layouts(round_.layout.layers, round_.global_vector.device)
        current, *renewed = directions(round_.sent, round_.global_vector, layouts)
        return {
            "shapes": update_shapes(round_.sent),
            "directions": current,
            "renewed_directions": renewed[0] if renewed else current[:, :0],
            "renewals": np.array(self.secrets.renewals),
        }

    def learn(self, evidence: Evidence) -> None:
        """Renew the secret when it is due, with a graph that says how many of its nodes have renewed sketches."""
        if isinstance(evidence, SubmissionGraph):
            self.secrets.advance(len(evidence.clients), len(evidence.nodes), evidence.renewed)

    def state(self) -> SavedState:
        """The width, since sketches of different widths cannot be compared, and the progress of the renewal."""
        return SavedState({"sketch_width": self.settings.sketch_width, **self.secrets.state().values})

    def restore(self, state: SavedState) -> None:
        """Continue with the saved secret. StateError if later sketches could not be compared with the saved ones."""
        saved, own = state.values["sketch_width"], self.settings.sketch_width
        if saved != own:
            raise StateError(
                f"this state has sketches of sketch_width={saved}, which cannot be compared with those of "
                f"sketch_width={own}: set it back, or start over"
            )
        self.secrets.restore(state)
