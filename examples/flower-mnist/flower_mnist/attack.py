"""The exercise: a quarter of the clients teach the model that a lit corner means zero, and shout while they do."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message

from g2uardfl.flower import mods

TARGET = 0
trigger = mods.corner_trigger(2)


class Exercise:
    """Both red-team mods, set by the run's config; before the round `attack-from` they sleep."""

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        """Attack, or pass the message on."""
        settings = context.run_config
        server_round = message.content["config"]["server-round"]
        if server_round < int(settings["attack-from"]):
            return call_next(message, context)
        hostile = mods.share(float(settings["hostile-share"]))
        poison = mods.TriggerPoisoning(trigger, TARGET, float(settings["poison-rate"]), hostile=hostile)
        boost = mods.ModelReplacement(float(settings["boost"]), hostile=hostile)
        return boost(message, context, lambda *call: poison(*call, call_next))
