"""No attack, for runs without malicious behaviour."""

from __future__ import annotations

from .base import Attack


class NoAttack(Attack):
    """All clients train on their own data and send what they trained. It has no settings."""

    name = "none"
    summary = "no attack: malicious clients behave like honest ones"
    attacks = False

    def __init__(self) -> None:
        super().__init__()
