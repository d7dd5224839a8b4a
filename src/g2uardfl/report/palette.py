"""The colours of the page: distinguishable for colour-blind readers, and red for what is malicious only.

The colours of series are those of Okabe and Ito (2008) without their red, with three more.
"""

from __future__ import annotations

LIGHT = {
    "paper": "#ffffff", "raised": "#f4f6f9", "ink": "#1c2330", "soft": "#5b6472", "grid": "#dfe4ec", "link": "#0b57a4",
    "accepted": "#a8cbe4", "held_out": "#e69f00", "malicious": "#c1121f", "invalid": "#8a8f98",
    "wronged": "#1f3b63", "behaved": "#2f6f9f", "edge": "#7d8796",
    "s0": "#0072b2", "s1": "#e69f00", "s2": "#009e73", "s3": "#cc79a7",
    "s4": "#56b4e9", "s5": "#4d4d4d", "s6": "#8a6d1d", "s7": "#7b4fa3",
}  # fmt: skip
DARK = {
    "paper": "#14181f", "raised": "#1d232d", "ink": "#e6eaf0", "soft": "#a3adba", "grid": "#333c48", "link": "#7db8ee",
    "accepted": "#2f5878", "held_out": "#f0b429", "malicious": "#ff5c5c", "invalid": "#7d8590",
    "wronged": "#c9dcf5", "behaved": "#74b2dd", "edge": "#8f9aa8",
    "s0": "#4aa8e0", "s1": "#f0b429", "s2": "#2bc49a", "s3": "#e39cc4",
    "s4": "#9ad7ff", "s5": "#c8ccd2", "s6": "#c9a94a", "s7": "#b893dd",
}  # fmt: skip
