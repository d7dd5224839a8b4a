"""FoolsGold (Fung et al. 2020): updates that look too alike come from one attacker behind several clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError, StateError
from ..core.layout import ModelLayout
from ..core.numerics import Array, cosine, inner_products
from ..core.settings import number, switch
from ..core.state_files import SavedState
from .base import Aggregator, ClientId, Outcome, Round, Verdict

_SAME = 1e-10
"""Cosines and weights that differ from 1 by less than this differ by rounding."""


@dataclass(frozen=True)
class FoolsGoldSettings:
    """The settings of FoolsGold."""

    layer: str = ""
    """The parameter whose updates are compared; empty means the last one with two dimensions or more, in the order of
    the model's mapping, which is the output layer's weight in the usual model."""
    history: bool = switch(False)
    """Compare the sums of all updates a client has sent so far instead of this round's."""
    confidence: float = number(1.0, 0, 1e6, above=True)
    """κ: how sharply weights are driven to 0 and 1."""


class FoolsGold(Aggregator):
    """G' = G + 1/n Σ α_i Δw_i, with α_i near 0 for clients whose updates resemble somebody else's.

    With cs_ij the cosine between clients i and j (0 for i = j) and v_i = max_j cs_ij, honest clients are pardoned:
    where v_i < v_j, cs_ij shrinks by v_i/v_j. Then α_i = 1 - max_j cs_ij, in [0, 1], is divided by the largest of all
    and stretched: α_i = κ (ln(α_i / (1 - α_i)) + 0.5), in [0, 1] again.

    The α do not sum to 1 and are not made to: what is taken from Sybils goes to nobody. The sum is divided by the
    number of clients, as in the authors' code for deep learning, so that FedAvg's plain mean comes out where everybody
    has weight 1. (Their code for linear models leaves it out, since its clients send single gradients and not whole
    local trainings.) Where all updates point the same way, every α is 0 and the global model is kept; one client alone
    has weight 1. The authors' filter of important features is left out, as in the paper's comparison.

    With `history`, one vector of the compared layer's size is kept for every client ever seen, by its id. A model
    without any matrix is compared whole.

    >>> model = {"w": np.zeros((1, 2))}
    >>> clients = {"a": [[1.0, 0]], "b": [[0, 1.0]], "sybil": [[-1.0, -1]], "twin": [[-1.0, -1]]}
    >>> clients = {name: {"w": np.array(update)} for name, update in clients.items()}
    >>> FoolsGold().aggregate(model, clients).weights["w"]
    array([[0.25, 0.25]])
    """

    name = "foolsgold"
    summary = "weighs down clients whose output-layer updates are too similar to another's"
    Settings = FoolsGoldSettings

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._history: dict[ClientId, Tensor] = {}

    def accept_layout(self, layout: ModelLayout) -> None:
        """Find the layer to compare; refuse a model that does not fit the remembered updates."""
        self._layer, self._columns = _compared(layout, self.settings.layer)
        remembered = next(iter(self._history.values()), None)
        if remembered is not None and len(remembered) != self._columns.stop - self._columns.start:
            raise ValueError("this FoolsGold remembers updates of another model: make a new one for this model")

    def combine(self, round_: Round) -> Outcome:
        """Weigh the round's clients by how little they resemble each other."""
        vectors = self._vectors(round_)
        products = inner_products(vectors, round_.global_vector[self._columns], [slice(0, vectors.shape[1])]).uu[0]
        squared = np.diagonal(products)
        similarities = cosine(products, squared[:, None], squared[None, :])
        alphas = learning_rates(similarities, self.settings.confidence)
        weights = alphas / len(alphas)
        note = "" if alphas.any() else "All updates point the same way: the global model was kept."
        verdicts = self._verdicts(round_, similarities, alphas, weights)
        return Outcome(round_.weighted_sum(weights), weights, verdicts, note)

    def _vectors(self, round_: Round) -> Tensor:
        """(clients x size of the layer): what is compared."""
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
        for i, client in enumerate(round_.clients):
            other = nearest[i]
            seen = f"cosine {similarities[i, other]:.4f} with the update of {self._layer} of {round_.clients[other]!r}"
            if len(alphas) == 1:
                seen = "there was nobody to compare it with"
            if alphas[i] > 0:
                verdicts[client] = Verdict(
                    "accepted", f"Accepted at {alphas[i]:.3f}: {seen}.", weight=float(weights[i])
                )
            else:
                verdicts[client] = Verdict("held_out", f"Held out: {seen}.", weight=0.0)
        return verdicts

    def state(self) -> SavedState:
        """The remembered sums, by client."""
        clients = [int(client) if isinstance(client, np.integer) else client for client in self._history]
        if not clients:
            return SavedState({"clients": []})
        return SavedState({"clients": clients}, {"history": torch.stack(list(self._history.values())).numpy()})

    def restore(self, state: SavedState) -> None:
        """Go on from the remembered sums."""
        try:
            clients = state.values["clients"]
            rows = torch.from_numpy(state.arrays["history"]).unbind() if clients else ()
            self._history = dict(zip(clients, rows, strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"this state of foolsgold is incomplete ({error}): restore it from a copy or start anew"
            ) from error


def learning_rates(similarities: Array, confidence: float = 1.0) -> Array:
    """α of each client from the cosines between all of them; the diagonal is not looked at.

    >>> learning_rates(np.array([[1, 0, 0], [0, 1, 1], [0, 1, 1.0]]))
    array([1., 0., 0.])
    """
    cs = np.array(similarities, dtype=np.float64)
    np.fill_diagonal(cs, 0.0)
    v = cs.max(axis=1)
    pardoned = v[:, None] < v[None, :]
    cs = np.where(pardoned, cs * v[:, None] / np.where(pardoned, v[None, :], 1.0), cs)
    alphas: Array = np.clip(1.0 - cs.max(axis=1), 0.0, 1.0)
    alphas[alphas < _SAME] = 0.0
    if not alphas.any():
        return alphas
    alphas /= alphas.max()
    alphas[alphas > 1.0 - _SAME] = 0.99
    with np.errstate(divide="ignore"):
        stretched: Array = np.clip(confidence * (np.log(alphas / (1.0 - alphas)) + 0.5), 0.0, 1.0)
    return stretched


def _compared(layout: ModelLayout, layer: str) -> tuple[str, slice]:
    """The name for the reader and the columns of the compared parameter."""
    if layer:
        columns = {entry.name: entry.columns for entry in layout.parameters}
        if layer not in columns:
            raise ConfigError(f"layer={layer!r} is no parameter of this model: choose one of {', '.join(columns)}")
        return repr(layer), columns[layer]
    matrices = [entry for entry in layout.parameters if len(entry.shape) >= 2]
    if not matrices:
        return "all parameters", slice(0, layout.num_parameters)
    return repr(matrices[-1].name), matrices[-1].columns
