"""FoolsGold (Fung et al. 2020): clients whose updates are very similar to another's lose weight, as likely Sybils."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError, StateError
from ..core.layout import ModelLayout
from ..core.numerics import Array, cosine, inner_products
from ..core.settings import number, switch
from ..core.state_files import SavedState
from .base import Aggregator, ClientId, Outcome, Round, Verdict, model_kept

_ROUNDING = 1e-10
"""A cosine similarity or a weight that differs from 1 by less than this counts as 1. Sums of a million float64 products
err by less."""


@dataclass(frozen=True)
class FoolsGoldSettings:
    """Settings of `FoolsGold`; see its docstring."""

    layer: str = ""
    history: bool = switch(False)
    confidence: float = number(1.0, 0, 1e6, above=True)


class FoolsGold(Aggregator):
    """G' = G + 1/n Σ α_i Δw_i, with α_i near 0 for clients whose update is very similar to another client's.

    With cs_ij the cosine similarity of clients i and j (0 for i = j) and v_i = max_j cs_ij, honest clients are
    pardoned: where v_i < v_j, cs_ij is multiplied by v_i/v_j. Then α_i = 1 - max_j cs_ij, in [0, 1], is divided by the
    largest of all and passed through a logit: α_i = κ (ln(α_i / (1 - α_i)) + 0.5), in [0, 1] again.

    The α are not scaled to sum 1: the weight taken from Sybils is not redistributed. The sum is divided by the number
    of clients, as in the authors' code for deep learning, so that full weights give FedAvg's plain mean. (Their code
    for linear models does not divide, because its clients send single gradients.) If every update has similarity 1
    with another, every α is 0 and the global model is kept. A single client has weight 1. The authors' filter of
    important features is left out, as in the comparison of the G²uardFL paper.

    Parameters
    ----------
    layer
        The parameter whose updates are compared. By default it is the last one with two or more dimensions in the
        order of the model's mapping, usually the output layer's weight; a model without one is compared as a whole
        (default: "").
    history
        Compare the sum of all updates of each client so far, instead of this round's. This stores one vector of the
        layer's size for every client ever seen (default: False).
    confidence
        κ: the slope of the logit; larger values drive more weights to 0 and 1 (default: 1.0).

    Notes
    -----
    Assumes that colluding clients send similar updates and honest ones do not. It penalises honest clients with similar
    data, and misses a single attacker.

    References
    ----------
    Fung, Yoon and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", RAID 2020.

    Examples
    --------
    >>> model = {"w": np.zeros((1, 2))}
    >>> clients = {"a": [[1.0, 0]], "b": [[0, 1.0]], "sybil": [[-1.0, -1]], "twin": [[-1.0, -1]]}
    >>> clients = {name: {"w": np.array(update)} for name, update in clients.items()}
    >>> FoolsGold().aggregate(model, clients).weights["w"]
    array([[0.25, 0.25]])
    """

    name = "foolsgold"
    summary = "reduces the weight of clients whose output-layer updates are too similar to another's"
    Settings = FoolsGoldSettings

    def __init__(
        self,
        *,
        layer: str = FoolsGoldSettings.layer,
        history: bool = FoolsGoldSettings.history,
        confidence: float = FoolsGoldSettings.confidence,
    ) -> None:
        super().__init__(layer=layer, history=history, confidence=confidence)
        self._history: dict[ClientId, Tensor] = {}

    def accept_layout(self, layout: ModelLayout) -> None:
        """Find the layer to compare; refuse a model that does not fit the stored sums."""
        self._layer, self._columns = _compared(layout, self.settings.layer)
        stored = next(iter(self._history.values()), None)
        if stored is not None and len(stored) != self._columns.stop - self._columns.start:
            raise ValueError("this FoolsGold stores updates of another model: create a new one for this model")

    def combine(self, round_: Round) -> Outcome:
        """Weigh the clients of the round by their similarity to each other."""
        vectors = self._vectors(round_)
        products = inner_products(vectors, round_.global_vector[self._columns], [slice(0, vectors.shape[1])]).uu[0]
        squared = np.diagonal(products)
        similarities = cosine(products, squared[:, None], squared[None, :])
        alphas = learning_rates(similarities, self.settings.confidence)
        weights = alphas / len(alphas)
        events = () if alphas.any() else (model_kept("Every update has cosine similarity 1 with another"),)
        verdicts = self._verdicts(round_, similarities, alphas, weights)
        return Outcome(round_.weighted_sum(weights), weights, verdicts, events=events)

    def _vectors(self, round_: Round) -> Tensor:
        """(clients x size of the layer): the vectors to compare."""
        updates = round_.updates[:, self._columns]
        if not self.settings.history:
            return updates
        for client, update in zip(round_.clients, updates.cpu(), strict=True):
            self._history[client] = self._history.get(client, 0) + update
        return torch.stack([self._history[client] for client in round_.clients]).to(updates)

    def _verdicts(self, round_: Round, similarities: Array, alphas: Array, weights: Array) -> dict[ClientId, Verdict]:
        similarities = np.where(np.eye(len(alphas), dtype=bool), -np.inf, similarities)
        nearest = similarities.argmax(axis=1)
        verdicts: dict[ClientId, Verdict] = {}
        for i, (client, j) in enumerate(zip(round_.clients, nearest, strict=True)):
            compared = (
                f"its update of {self._layer} has cosine similarity {similarities[i, j]:.4f} "
                f"with that of client {round_.clients[j]!r}"
                if len(alphas) > 1
                else "there is no other client to compare it with"
            )
            if alphas[i] > 0:
                reason = f"Accepted with learning rate {alphas[i]:.3f}: {compared}."
                verdicts[client] = Verdict("accepted", reason, weight=float(weights[i]))
            else:
                verdicts[client] = Verdict("held_out", f"Held out: {compared}.", weight=0.0)
        return verdicts

    def state(self) -> SavedState:
        """The sums of updates by client."""
        clients = list(self._history)
        if not clients:
            return SavedState({"clients": []})
        return SavedState({"clients": clients}, {"history": torch.stack(list(self._history.values())).numpy()})

    def restore(self, state: SavedState) -> None:
        """Continue with the stored sums."""
        try:
            clients = state.values["clients"]
            rows = torch.from_numpy(state.arrays["history"]).unbind() if clients else ()
            self._history = dict(zip(clients, rows, strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"this state of foolsgold is incomplete ({error}): restore it from a copy or start over"
            ) from error


def learning_rates(similarities: Array, confidence: float = 1.0) -> Array:
    """α of each client from the cosine similarities of all; the diagonal is ignored.

    >>> learning_rates(np.array([[1, 0, 0], [0, 1, 1], [0, 1, 1.0]]))
    array([1., 0., 0.])
    """
    cs = np.array(similarities, dtype=np.float64)
    np.fill_diagonal(cs, 0.0)
    v = cs.max(axis=1)
    pardoned = v[:, None] < v[None, :]
    cs = np.where(pardoned, cs * v[:, None] / np.where(pardoned, v[None, :], 1.0), cs)
    alphas: Array = np.clip(1.0 - cs.max(axis=1), 0.0, 1.0)
    alphas[alphas < _ROUNDING] = 0.0
    if not alphas.any():
        return alphas
    alphas /= alphas.max()
    alphas[alphas > 1.0 - _ROUNDING] = 0.99
    with np.errstate(divide="ignore"):
        stretched: Array = np.clip(confidence * (np.log(alphas / (1.0 - alphas)) + 0.5), 0.0, 1.0)
    return stretched


def _compared(layout: ModelLayout, layer: str) -> tuple[str, slice]:
    """The name, for verdicts, and the columns of the compared parameter."""
    if layer:
        columns = {entry.name: entry.columns for entry in layout.parameters}
        if layer not in columns:
            raise ConfigError(f"layer={layer!r} is not a parameter of this model: choose one of {', '.join(columns)}")
        return repr(layer), columns[layer]
    matrices = [entry for entry in layout.parameters if len(entry.shape) >= 2]
    if not matrices:
        return "all parameters", slice(0, layout.num_parameters)
    return repr(matrices[-1].name), matrices[-1].columns
