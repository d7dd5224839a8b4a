"""The encoding of the CIFAR-10 images."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from g2uardfl import data


@given(arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.just(3))))
@settings(deadline=None)
def test_decoding_inverts_encoding(images):
    residual = data.encode_images(images)
    assert residual.shape == (3, *images.shape[:3])
    np.testing.assert_array_equal(data.decode_images(residual), images)


def test_the_residual_is_the_difference_of_neighbouring_pixels():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (1, 4, 5, 3), dtype=np.uint8)
    residual = data.encode_images(image)
    for channel in range(3):
        for y in range(4):
            for x in range(5):

                def plane(row: int, column: int, channel: int = channel) -> int:
                    if row < 0 or column < 0:
                        return 0
                    red_green_blue = [int(value) for value in image[0, row, column]]
                    return red_green_blue[channel] - (red_green_blue[1] if channel != 1 else 0)

                down = plane(y, x) - plane(y - 1, x)
                down_on_the_left = plane(y, x - 1) - plane(y - 1, x - 1)
                assert residual[channel, 0, y, x] == (down - down_on_the_left) % 256
