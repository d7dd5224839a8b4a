"""Fixtures of this folder."""

import pytest

from helpers.models import Patches
from helpers.records import digits_record as digits_record


@pytest.fixture(scope="session")
def patches() -> Patches:
    return Patches()
