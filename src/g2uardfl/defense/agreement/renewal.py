"""The secrets of the sketches over time: each is replaced by the next before probes could reveal much of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core.layout import Layer
from ...core.state_files import SavedState
from .sketches import SketchLayout, sketch_layout

_LIFETIME = 10
"""The lifetime of a secret until its renewal begins, as a multiple of the number of remembered submissions. An attacker
that probes the secret learns about one bit from each update that is accepted or not: with 300 submissions in the window
3000 bits, if every submission were a probe, while the signs of a layer of 10,000 parameters alone are 10,000 bits. A
shorter lifetime costs more: during a renewal, which takes as many submissions as are remembered, each update is
sketched twice."""


_FULL_LAYERS, _MIN_WIDTH = 16, 16
"""The maximum number of layers with sketches of full width, and the minimum width: this bounds the size of a
submission's sketches for adapters with hundreds of arrays. The errors of many narrow sketches cancel in the mean over
the layers."""


class SketchSecrets:
    """Which secret is in use, and during a renewal also the next one.

    Submissions are sketched under both until every one that is remembered has a sketch under the next secret, so that
    no remembered submission is lost. The secrets are drawn from one number, so that a saved guard continues bit for
    bit.

    Parameters
    ----------
    secret
        What all secrets are drawn from.
    width
        The width of the sketches. Models of more than `_FULL_LAYERS` layers have smaller ones, of the same total size.
    """

    def __init__(self, secret: int, width: int) -> None:
        self._secret, self._width = secret, width
        self.renewals = 0
        """The number of the secret in use: how often it has been renewed."""
        self.is_renewing = False
        """Whether submissions are sketched under the next secret, too."""
        self._served = 0
        """The number of submissions since the secret was first used."""
        self._layouts: dict[int, SketchLayout] = {}

    def layouts(self, layers: Sequence[Layer], device: torch.device) -> list[SketchLayout]:
        """The layout of the secret in use, and during a renewal that of the next one."""
        numbers = range(self.renewals, self.renewals + 1 + self.is_renewing)
        self._layouts = {number: self._layouts.get(number) or self._draw(layers, device, number) for number in numbers}
        return list(self._layouts.values())

    def _draw(self, layers: Sequence[Layer], device: torch.device, number: int) -> SketchLayout:
        width = min(self._width, max(_MIN_WIDTH, _FULL_LAYERS * self._width // max(len(layers), 1)))
        return tuple(one.to(device) for one in sketch_layout(layers, width, self._secret, number))

    def advance(self, submissions: int, remembered: int, renewed: int) -> None:
        """Note that a round was decided.

        Parameters
        ----------
        submissions
            How many submissions the round had.
        remembered
            How many submissions are remembered.
        renewed
            How many of these have a sketch under the next secret.
        """
        self._served += submissions
        if self.is_renewing and renewed == remembered:
            self.renewals, self.is_renewing, self._served = self.renewals + 1, False, 0
        elif self._served >= _LIFETIME * remembered:
            self.is_renewing = True

    def state(self) -> SavedState:
        """The progress of the renewal; the guard saves the number from which secrets are drawn."""
        return SavedState({"renewals": self.renewals, "is_renewing": self.is_renewing, "served": self._served})

    def restore(self, state: SavedState) -> None:
        """Continue with a saved secret."""
        values = state.values
        self.renewals, self._served = int(values["renewals"]), int(values["served"])
        self.is_renewing, self._layouts = bool(values["is_renewing"]), {}
