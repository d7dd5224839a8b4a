"""The server context of rules that need more than updates: some data of the server, and a way to run the model.

Most rules use weights alone. FLTrust compares every update with one that the server trained, and DeepSight compares
the models' outputs on random inputs. Both subclass `NeedsServer` and receive a `ServerContext` before their first
round. A simulation attaches one itself; a real federation writes a small class:

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
    """The names of the output layer's arrays in a model's mapping."""

    weight: str
    """The array whose first dimension is the number of classes."""
    bias: str | None = None
    """The array with one number per class; None for a layer without bias."""


class ServerContext:
    """What a server provides to a rule. Override the methods that the rule uses; all others raise `ConfigError`.

    Models are mappings like those passed to `aggregate`, running statistics included.
    """

    @property
    def output_layer(self) -> OutputLayer:
        """The arrays of the model's output layer (DeepSight)."""
        raise _missing("output_layer")

    def root_update(self, global_weights: Weights, round_number: int) -> Weights:
        """The global model after training on the server's own root data with the clients' recipe (FLTrust).

        The rule counts its rounds from 1. The same round and model must give the same result.
        """
        raise _missing("root_update")

    def random_inputs(self, count: int, seed: int) -> Tensor:
        """`count` random inputs, drawn from `seed`, in the form that `probabilities` takes (DeepSight).

        For images that is uniform noise between 0 and 1 before normalisation, for text random token ids.
        """
        raise _missing("random_inputs")

    def probabilities(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(inputs x classes): the softmax outputs, not the logits, of a model in evaluation mode (DeepSight).

        The rule passes a limited number of inputs at a time.
        """
        raise _missing("probabilities")


class NeedsServer(CountsRounds):
    """A rule that needs a `ServerContext`; it counts its rounds, because the server's random inputs depend on them."""

    needs: ClassVar[str]
    """What the rule uses of a `ServerContext`, for the error if there is none."""
    takes_root_data: ClassVar[bool] = False
    """Whether the server must have data of its own, which is then left out of the test set."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._context: ServerContext | None = None

    def attach(self, context: ServerContext) -> None:
        """Set the rule's server, before its first round and again after loading; it is not part of the state."""
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
