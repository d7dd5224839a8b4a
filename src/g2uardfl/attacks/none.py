"""No attack: malicious clients are as honest as the others."""

from __future__ import annotations

from .base import Attack


class NoAttack(Attack):
    """Everybody trains on their own data and sends what they learnt."""

    name = "none"
    summary = "nobody attacks"
    attacks = False
