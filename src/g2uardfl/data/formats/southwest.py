"""The published format of the Southwest planes of Wang et al. (2020): pickled NumPy arrays.

`southwest_images_new_train.pkl` and `southwest_images_new_test.pkl` (784 and 196 images) are required. The p-percent
edge-case files, which the paper uses (100 images for the attacker, 180 for ASR), are optional; without them the stored
file has no `x_train_edge` and `x_test_edge`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ..progress import Progress
from ..sources import Source, pick
from ..staging import Staging
from .restricted_pickle import load_pickle

PATTERNS = {
    "x_train": r"^southwest_images_new_train\.pkl$",
    "x_test": r"^southwest_images_new_test\.pkl$",
    "x_train_edge": r"^southwest_images_adv_p_percent_edge_case\.pkl$",
    "x_test_edge": r"^southwest_images_p_percent_edge_case_test\.pkl$",
}
"""Regular expressions of the published file names, by stored array."""


def read_images(source: Source) -> NDArray[np.uint8]:
    """The `uint8` images (N, 32, 32, 3) in a pickle."""
    with source.open() as stream:
        images = load_pickle(stream, source.origin)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        raise DataError(f"{source.origin} does not contain uint8 images of 32 x 32 x 3")
    return images


def convert(sources: Sequence[Source], staging: Staging, progress: Progress) -> None:
    """Store the arrays as `southwest/southwest.npz`."""
    progress("reading", 0, 0)
    found = pick(sources, PATTERNS, "southwest", needed=("x_train", "x_test"))
    staging.write_arrays("southwest/southwest.npz", {name: read_images(source) for name, source in found.items()})
