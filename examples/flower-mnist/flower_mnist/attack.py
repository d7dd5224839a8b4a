"""The exercise: a quarter of the clients train a backdoor (a bright corner means zero) and scale their updates."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message

from g2uardfl.flower import mods

TARGET = 0
trigger = mods.corner_trigger(2)


class Exercise:
    """Both red-team mods, configured by the run; before round `attack-from` all clients are honest."""

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        """Attack, or forward the message."""
        settings = context.run_config
        server_round = message.content["config"]["server-round"]
        if server_round < int(settings["attack-from"]):
            return call_next(message, context)
        hostile = mods.share(float(settings["hostile-share"]))
        poison = mods.TriggerPoisoning(trigger, TARGET, float(settings["poison-rate"]), hostile=hostile)
        boost = mods.ModelReplacement(float(settings["boost"]), hostile=hostile)
        return boost(message, context, lambda *call: poison(*call, call_next))
