"""What some rules need besides the updates: a server that has a little data of its own and can run the model.

Most rules look at weights and nothing else. FLTrust compares every update with one the server trained itself, DeepSight
looks at what a model answers to random inputs. Both subclass `NeedsServer` and are given a `ServerContext` before their
first round; a simulation attaches one itself, whoever runs a real federation writes a small class:

    class Server(ServerContext):
        def root_update(self, global_weights, round_number):
            return my_training_loop(global_weights, my_root_data)

    rule = g2uardfl.aggregators.create("fltrust")
    rule.attach(Server())
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..core.errors import ConfigError
from ..core.layout import Weights
from ._rounds import CountsRounds


@dataclass(frozen=True)
class OutputLayer:
    """The names that the output layer's arrays have in a model's mapping."""

    weight: str
    """Its first dimension counts the classes."""
    bias: str | None = None
    """One number a class; None for a layer without."""


class ServerContext:
    """What a server can do for a rule. A subclass overrides what its rule asks for; the rest says that it is missing.

    Models come and go as mappings like those passed to `aggregate`, running statistics included.
    """

    @property
    def output_layer(self) -> OutputLayer:
        """Which arrays of the model are its output layer (DeepSight)."""
        raise _missing("output_layer")

    def root_update(self, global_weights: Weights, round_number: int) -> Weights:
        """The global model after training on the server's own root data with the clients' recipe (FLTrust).

        Rounds are counted from 1 by the rule that asks. The same round and model must give the same answer.
        """
        raise _missing("root_update")

    def random_inputs(self, count: int, seed: int) -> Tensor:
        """`count` inputs that mean nothing, drawn from `seed`, in whatever form `probabilities` takes (DeepSight).

        For images that is uniform noise between 0 and 1 before normalisation, for text random token ids.
        """
        raise _missing("random_inputs")

    def probabilities(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(inputs x classes): the softmax outputs, not the logits, of a model in evaluation mode (DeepSight).

        It is called with a limited number of inputs at a time.
        """
        raise _missing("probabilities")


class NeedsServer(CountsRounds):
    """A rule that cannot decide on updates alone. It counts its rounds, since what a server draws depends on them."""

    needs: ClassVar[str]
    """What of a `ServerContext` the rule uses, for the error when there is none."""
    takes_root_data: ClassVar[bool] = False
    """Whether the server must have data of its own, which is then not tested on."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._context: ServerContext | None = None

    def attach(self, context: ServerContext) -> None:
        """Give the rule its server, before its first round and again after loading; it is no part of the state."""
        self._context = context

    @property
    def server(self) -> ServerContext:
        """The attached context."""
        if self._context is None:
            raise ConfigError(
                f"{self.name} needs a server with {self.needs}: "
                "call attach() with a ServerContext (g2uardfl.aggregators.context) before the first round"
            )
        return self._context


def _missing(what: str) -> ConfigError:
    return ConfigError(f"this server context has no {what}: override it in your subclass of ServerContext")
