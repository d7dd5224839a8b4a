"""Decodes 8-bit RGB PNG images with Pillow, an optional dependency that only these files need."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError


def decode_png(content: bytes) -> NDArray[np.uint8]:
    """Return the pixels (height, width, 3) of an 8-bit RGB PNG file.

    Raises
    ------
    DataError
        Pillow is not installed.
    ValueError
        The file is damaged or in another format.
    """
    image_module = _pillow()
    try:
        with image_module.open(io.BytesIO(content), formats=["PNG"]) as image:
            image.verify()  # the checksums of all chunks; afterwards the image has to be opened again
        with image_module.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.mode != "RGB":
                raise ValueError(f"not an 8-bit RGB PNG file: its mode is {image.mode}")
            return np.array(image)
    except (OSError, SyntaxError, image_module.DecompressionBombError) as error:
        raise ValueError(f"a damaged PNG file, or no PNG file: {error}") from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "PNG files need Pillow: pip install 'g2uardfl[png]', or import the binary or Python batches"
        ) from error
    return Image
