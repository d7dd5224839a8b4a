"""FLTrust (Cao et al. 2021): trust each update as far as it points the way of one the server trained itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.layout import BadWeightsError, largest_usable
from ..core.numerics import Array, cosine
from ..core.threads import in_parallel
from .base import ClientId, Outcome, Round, Verdict
from .context import NeedsServer

_SHORTEST = 1e-20
"""An update shorter than this beside the server's has no direction: to scale it up would be to scale up rounding."""
_CHUNK = 1 << 20
"""How many numbers are multiplied at a time."""


class FLTrust(NeedsServer):
    """G' = G + Σ TS_i (||g0|| / ||g_i||) g_i / Σ TS_i, with the trust score TS_i = max(0, cos(g_i, g0)).

    g_i are updates, weights minus the global model's; g0 is the server's own, from `ServerContext.root_update`. Every
    update is brought to the length of g0, be it longer or shorter. Clients with a trust score of 0 are held out, and
    where all of them are, or the server's own training moved nothing, the global model is kept.
    """

    name = "fltrust"
    summary = "trusts updates by their angle to one trained on the server's own root data"
    needs = "root data of its own to train on (root_update)"
    takes_root_data = True

    def combine(self, round_: Round) -> Outcome:
        """Score, rescale, average."""
        server_update, note = self._server_update(round_)
        self.round += 1
        along, squared = _products(round_.updates, server_update)
        length = float(torch.linalg.vector_norm(server_update.double()))
        norms = np.sqrt(squared)
        cosines = np.where(norms > _SHORTEST * length, cosine(along, squared, np.asarray(length**2)), 0.0)
        trust = np.maximum(cosines, 0.0)
        if not trust.any():
            note = note or "No update points the server's way: the global model was kept."
            shares = scales = np.zeros(len(trust))
        else:
            shares = trust / trust.sum()
            scales = length / np.where(trust > 0, norms, 1.0)
        weights = shares * scales
        return Outcome(round_.weighted_sum(weights), shares, _verdicts(round_, cosines, shares, weights), note)

    def _server_update(self, round_: Round) -> tuple[Tensor, str]:
        """g0; zeros, and a sentence that says so, where the server's training went out of all bounds."""
        weights = self.server.root_update(round_.global_weights, self.round + 1)
        try:
            round_.layout.check(weights)
        except BadWeightsError as error:
            raise ConfigError(
                f"the server's root_update {error}: it has to return a model like the global one"
            ) from error
        update = torch.empty_like(round_.global_vector)
        round_.layout.subtract(weights, round_.global_vector, out=update)
        if float(torch.linalg.vector_norm(update)) <= largest_usable(update.dtype):
            return update, ""
        return torch.zeros_like(update), "The server's own training went out of bounds: the global model was kept."


def _products(updates: Tensor, vector: Tensor) -> tuple[Array, Array]:
    """Each update's inner products with `vector` and with itself, in float64, some columns at a time."""
    size = max(1, _CHUNK // len(updates))
    chunks = [slice(start, start + size) for start in range(0, len(vector), size)]

    def products(columns: slice) -> Tensor:
        u = updates[:, columns].double()
        return torch.stack([u @ vector[columns].double(), torch.linalg.vecdot(u, u)])

    total = np.zeros((2, len(updates)))
    for part in in_parallel(products, chunks):
        total += part.cpu().numpy()
    return total[0], total[1]


def _verdicts(round_: Round, cosines: Array, shares: Array, weights: Array) -> dict[ClientId, Verdict]:
    verdicts: dict[ClientId, Verdict] = {}
    for client, angle, share, weight in zip(round_.clients, cosines, shares, weights, strict=True):
        if share > 0:
            reason = f"Accepted: cosine {angle:.4f} with the server's update, {share:.1%} of all trust."
            verdicts[client] = Verdict("accepted", reason, weight=float(weight))
        else:
            reason = f"Held out: its update does not point the way of the server's (cosine {angle:.4f})."
            verdicts[client] = Verdict("held_out", reason, weight=0.0)
    return verdicts
