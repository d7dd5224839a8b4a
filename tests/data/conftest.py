"""Fixtures of this folder."""

from helpers.command_line import cli as cli
from helpers.data_sets import small_mnist_is_published as small_mnist_is_published
