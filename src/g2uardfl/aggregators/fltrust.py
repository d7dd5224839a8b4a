"""FLTrust (Cao et al. 2021): updates are weighted by their cosine similarity with one that the server trained."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.layout import BadWeightsError, largest_usable
from ..core.numerics import Array, cosine
from ..core.threads import in_parallel
from .base import ClientId, Event, Outcome, Round, Verdict, model_kept
from .context import NeedsServer

_MIN_RELATIVE_NORM = 1e-20
"""The smallest norm of an update relative to the server's. Below it, the direction of the update is rounding error."""
_BLOCK_NUMBERS = 1 << 20
"""The number of values converted to float64 at a time: 8 MiB."""


class FLTrust(NeedsServer):
    """G' = G + Σ TS_i (||g_0|| / ||g_i||) g_i / Σ TS_i, with the trust score TS_i = max(0, cos(g_i, g_0)).

    g_i are the clients' updates, g_0 is the server's own from `ServerContext.root_update`. Every update is scaled to
    the norm of g_0, up or down. Clients with a trust score of 0 are held out. If all scores are 0, or the server's
    training changed nothing, the global model is kept. It has no settings.

    Notes
    -----
    Needs a server with clean data (`ServerContext`); the simulator takes 1 % of the test data, which is left out of
    ACC. The rule is as good as that data: on a converged model the server's own update is mostly noise.

    References
    ----------
    Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021.
    """

    name = "fltrust"
    summary = "weights updates by their cosine similarity with one trained on the server's own root data"
    needs = "root data of its own to train on (root_update)"
    takes_root_data = True

    def __init__(self) -> None:
        super().__init__()

    def combine(self, round_: Round) -> Outcome:
        """Score, rescale and average the updates."""
        server_update, events = self._server_update(round_)
        self.round += 1
        along, squared = _products(round_.updates, server_update)
        server_norm = float(torch.linalg.vector_norm(server_update.double()))
        norms = np.sqrt(squared)
        cosines = np.where(
            norms > _MIN_RELATIVE_NORM * server_norm, cosine(along, squared, np.asarray(server_norm**2)), 0.0
        )
        trust = np.maximum(cosines, 0.0)
        if not trust.any():
            events = events or (model_kept("No update has a positive cosine similarity with the server's"),)
            shares = scales = np.zeros(len(trust))
        else:
            shares = trust / trust.sum()
            scales = server_norm / np.where(trust > 0, norms, 1.0)
        weights = shares * scales
        verdicts = _verdicts(round_, cosines, shares, weights)
        return Outcome(round_.weighted_sum(weights), shares, verdicts, events=events)

    def _server_update(self, round_: Round) -> tuple[Tensor, tuple[Event, ...]]:
        """g_0; zeros and an event if the server's training diverged."""
        weights = self.server.root_update(round_.global_weights, self.round + 1)
        try:
            round_.layout.check(weights)
        except BadWeightsError as error:
            raise ConfigError(
                f"the server's root_update {error}: it must return a model like the global one"
            ) from error
        update = torch.empty_like(round_.global_vector)
        round_.layout.subtract(weights, round_.global_vector, out=update)
        if float(torch.linalg.vector_norm(update)) <= largest_usable(update.dtype):
            return update, ()
        return torch.zeros_like(update), (model_kept("The server's own training diverged"),)


def _products(updates: Tensor, vector: Tensor) -> tuple[Array, Array]:
    """Each update's inner products with `vector` and with itself, in float64."""
    size = max(1, _BLOCK_NUMBERS // len(updates))
    blocks = [slice(start, start + size) for start in range(0, len(vector), size)]

    def products(columns: slice) -> Tensor:
        u = updates[:, columns].double()
        return torch.stack([u @ vector[columns].double(), torch.linalg.vecdot(u, u)])

    total = np.zeros((2, len(updates)))
    for part in in_parallel(products, blocks):
        total += part.cpu().numpy()
    return total[0], total[1]


def _verdicts(round_: Round, cosines: Array, shares: Array, weights: Array) -> dict[ClientId, Verdict]:
    verdicts: dict[ClientId, Verdict] = {}
    for client, similarity, share, weight in zip(round_.clients, cosines, shares, weights, strict=True):
        if share > 0:
            reason = f"Accepted: cosine similarity {similarity:.4f} with the server's update, {share:.1%} of all trust."
            verdicts[client] = Verdict("accepted", reason, weight=float(weight))
        else:
            reason = f"Held out: its cosine similarity with the server's update is not positive ({similarity:.4f})."
            verdicts[client] = Verdict("held_out", reason, weight=0.0)
    return verdicts
