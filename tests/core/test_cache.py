"""The cache folder."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from g2uardfl.core.cache import cache_dir


def test_the_environment_variable_sets_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path


@pytest.mark.parametrize("value", [None, ""])
def test_the_default_is_the_platforms_cache_folder(monkeypatch, value):
    if value is None:
        monkeypatch.delenv("G2UARDFL_CACHE", raising=False)
    else:
        monkeypatch.setenv("G2UARDFL_CACHE", value)
    assert cache_dir() == Path(platformdirs.user_cache_dir("g2uardfl", appauthor=False))
