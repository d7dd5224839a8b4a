"""What the stored text fields have in common."""

from __future__ import annotations

import html


def clean(text: str) -> str:
    r"""`text` with HTML entities as characters and every run of white space as one space.

    >>> clean("salt &amp;\t  pepper ")
    'salt & pepper'
    """
    return " ".join(html.unescape(text).split())
