"""Cleaning of text fields."""

from __future__ import annotations

import html


def clean(text: str) -> str:
    r"""Replace HTML entities by characters, and every sequence of white space by one space.

    >>> clean("salt &amp;\t  pepper ")
    'salt & pepper'
    """
    return " ".join(html.unescape(text).split())
