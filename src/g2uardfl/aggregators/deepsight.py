"""DeepSight (Rieger et al. 2022): inspect the output layer, cluster similar clients, drop suspicious clusters.

The clustering compares clients in three ways: by how their update's energy is distributed over the output neurons
(NEUP), by how their outputs on random inputs differ from the global model's (DDif), and by the cosine similarity of
their output biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.clipping import clip_factors
from ..core.errors import ConfigError
from ..core.layout import Entry, Weights
from ..core.numerics import Array, cosine
from ..core.settings import number, seed
from ._distances import update_norms
from .base import ClientId, Outcome, Round, Verdict, model_kept
from .context import NeedsServer, OutputLayer, ServerContext

Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BATCH_INPUTS = 1 << 10
"""The largest number of random inputs at a time: enough to keep a device busy at little memory."""
_BATCH_PROBABILITIES = 1 << 24
"""The largest number of output probabilities of one model at a time: 64 MiB in float32."""
_LARGEST = float(torch.finfo(torch.float32).max)
"""Replaces the probability quotient of a model whose outputs are not finite."""
_ROUNDING = 1e-12
"""A cosine similarity that differs from 1 by less than this counts as 1: the difference is rounding error."""


@dataclass(frozen=True)
class DeepSightSettings:
    """Settings of `DeepSight`; see its docstring."""

    suspicious_share: float = number(1 / 3, 0, 1)
    random_inputs: int = number(2000, 1, 10**7)
    input_sets: int = number(3, 1, 100)
    min_samples: int = number(1, 1, 10**6)
    min_cluster_size: int = number(2, 2, 10**6)
    seed: int | None = seed()


class DeepSight(NeedsServer):
    """Mean of the updates in unsuspicious clusters, each clipped to the median norm over all clients.

    - Energy of output neuron c: E_c = |Δb_c| + Σ_h |ΔW_ch|; NEUP_c = E_c² / Σ E². The threshold exceedings TE of a
      client are the number of NEUP_c above max(0.01, 1/C) max_c NEUP_c. Training on few labels leaves few of them:
      a client is suspicious if TE_i <= median(TE) / 2.
    - DDif_c: the mean over random inputs of p_c / p_c of the global model, with softmax outputs. The inputs are
      processed in batches, so an output layer of any width fits into memory.
    - HDBSCAN clusters the cosine distances of the output bias updates (of the weight updates if the layer has no
      bias), the NEUPs and each DDif. Each clustering gives distances: 0 within a cluster and 1 otherwise; a client
      outside all clusters has distance 1 to all others. Their mean (the DDifs count as one) is clustered again, and
      here a single cluster of all clients is allowed.
    - A final cluster is accepted if its share of suspicious clients is below τ. Clients outside all clusters are held
      out.

    HDBSCAN's `min_samples` counts the client itself in scikit-learn but not in the `hdbscan` package that public ports
    use; here it does not. Both sizes are lowered to what a small round allows, and a single client is accepted. Their
    defaults are for rounds of ten clients: with the usual 3 and 5, the few attackers of such a round form no cluster of
    their own. For rounds of a hundred clients the usual ones are less affected by chance.

    Parameters
    ----------
    suspicious_share
        τ: a cluster is accepted if less than this share of its clients is suspicious (default: 1/3).
    random_inputs
        The number of random inputs per DDif; the authors use 20,000 (default: 2000).
    input_sets
        The number of DDifs, each on its own random inputs (default: 3).
    min_samples
        HDBSCAN: a client's core distance is that to its neighbour of this rank, the client itself not counted
        (default: 1).
    min_cluster_size
        HDBSCAN: the smallest number of clients in a cluster (default: 2).
    seed
        Determines the random inputs, together with the number of the round; None draws one (default: None).

    Notes
    -----
    Needs a server that can run the model (`ServerContext`). Assumes that attackers train on fewer labels than honest
    clients, and that a cluster of attackers has few honest members.

    References
    ----------
    Rieger et al., "DeepSight: Mitigating Backdoor Attacks in Federated Learning Through Deep Model Inspection",
    NDSS 2022.
    """

    name = "deepsight"
    summary = "clusters clients by their output layer and outputs on random inputs, drops suspicious clusters"
    takes_seed = True
    needs = "the model at hand (output_layer, random_inputs, probabilities)"
    Settings = DeepSightSettings

    def __init__(
        self,
        *,
        suspicious_share: float = DeepSightSettings.suspicious_share,
        random_inputs: int = DeepSightSettings.random_inputs,
        input_sets: int = DeepSightSettings.input_sets,
        min_samples: int = DeepSightSettings.min_samples,
        min_cluster_size: int = DeepSightSettings.min_cluster_size,
        seed: int | None = DeepSightSettings.seed,
    ) -> None:
        super().__init__(
            suspicious_share=suspicious_share,
            random_inputs=random_inputs,
            input_sets=input_sets,
            min_samples=min_samples,
            min_cluster_size=min_cluster_size,
            seed=seed,
        )

    def combine(self, round_: Round) -> Outcome:
        """Inspect, cluster, filter, clip and average the clients."""
        weight, bias = _output_layer(round_, self.server.output_layer)
        self.round += 1
        neups = normalised_energies(update_energies(round_.updates, weight, bias))
        exceedings = threshold_exceedings(neups)
        suspicious = exceedings <= np.median(exceedings) / 2
        if len(round_.clients) == 1:
            labels, suspicious = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
        else:
            directions = round_.updates[:, weight.columns if bias is None else bias.columns]
            labels = self._clusters(round_, neups, directions, weight.shape[0])
        accepted = accepted_clients(labels, suspicious, self.settings.suspicious_share)

        norms = update_norms(round_.updates)
        shares = accepted / max(1, accepted.sum())
        weights = shares * clip_factors(norms, float(np.median(norms)))
        verdicts = _verdicts(round_, labels, suspicious, accepted, exceedings, weights)
        return Outcome(
            round_.weighted_sum(weights),
            shares,
            verdicts,
            self._note(len(accepted)),
            () if accepted.any() else (model_kept("No cluster was accepted"),),
        )

    def _clusters(self, round_: Round, neups: Array, directions: Tensor, classes: int) -> Labels:
        """Each client's label in the final clustering."""
        models = [round_.client_weights[client] for client in round_.clients]
        by_ddifs = []
        for set_number in range(self.settings.input_sets):
            ddifs = division_differences(
                self.server,
                round_.global_weights,
                models,
                classes=classes,
                count=self.settings.random_inputs,
                seed=[self._secret, self.round, set_number],
            )
            by_ddifs.append(self._labels(euclidean_distances(ddifs)))
        merged = merged_distances(
            self._labels(cosine_distances(directions)), self._labels(euclidean_distances(neups)), by_ddifs
        )
        return self._labels(merged, allow_single_cluster=True)

    def _labels(self, distances: Array, *, allow_single_cluster: bool = False) -> Labels:
        from sklearn.cluster import HDBSCAN

        clients = len(distances)
        clustering = HDBSCAN(
            min_cluster_size=min(self.settings.min_cluster_size, clients),
            min_samples=min(self.settings.min_samples + 1, clients),
            allow_single_cluster=allow_single_cluster,
            metric="precomputed",
            copy=True,
        )
        return np.asarray(clustering.fit_predict(distances), dtype=np.int64)

    def _note(self, clients: int) -> str:
        fewest = self.settings.min_cluster_size
        if clients >= fewest:
            return ""
        return f"Fewer than {fewest} usable clients: only all {clients} together can be a cluster."


def update_energies(updates: Tensor, weight: Entry, bias: Entry | None) -> Array:
    """(clients x classes): E_c = |Δb_c| + Σ_h |ΔW_ch|."""
    rows = []
    for update in updates:
        by_class = update[weight.columns].reshape(weight.shape[0], -1)
        energies = torch.linalg.vector_norm(by_class, ord=1, dim=1, dtype=torch.float64)
        rows.append(energies if bias is None else energies + update[bias.columns].abs())
    return torch.stack(rows).cpu().numpy()


def normalised_energies(energies: Array) -> Array:
    """NEUP of each client: E_c² / Σ E²; zeros for an update of zeros.

    >>> normalised_energies(np.array([[3.0, 1.0], [0.0, 0.0]]))
    array([[0.9, 0.1],
           [0. , 0. ]])
    """
    largest = energies.max(axis=1, keepdims=True)
    squared = (energies / np.where(largest > 0, largest, 1.0)) ** 2
    total = squared.sum(axis=1, keepdims=True)
    result: Array = squared / np.where(total > 0, total, 1.0)
    return result


def threshold_exceedings(neups: Array) -> Labels:
    """TE of each client: the number of its NEUPs above max(0.01, 1/C) times the largest of them.

    >>> threshold_exceedings(np.array([[0.5, 0.3, 0.2], [0.9, 0.05, 0.05]]))
    array([3, 1])
    """
    thresholds = max(0.01, 1 / neups.shape[1]) * neups.max(axis=1, keepdims=True)
    return np.asarray(np.count_nonzero(neups > thresholds, axis=1), dtype=np.int64)


def division_differences(
    server: ServerContext,
    global_weights: Weights,
    models: Sequence[Weights],
    *,
    classes: int,
    count: int,
    seed: Sequence[int],
) -> Array:
    """DDifs (clients x classes): the mean over `count` random inputs of p / p of the global model.

    Only the probabilities of two models on one batch of inputs are in memory at a time.
    """
    size = max(1, min(_BATCH_INPUTS, _BATCH_PROBABILITIES // classes))
    sums = torch.zeros(len(models), classes, dtype=torch.float64)
    for batch, start in enumerate(range(0, count, size)):
        batch_seed = np.random.SeedSequence([*seed, batch]).generate_state(1)[0]
        inputs = server.random_inputs(min(size, count - start), int(batch_seed))
        reference = server.probabilities(global_weights, inputs)
        reference = reference.clamp_min(torch.finfo(reference.dtype).tiny)
        for total, model in zip(sums, models, strict=True):
            total += (server.probabilities(model, inputs) / reference).sum(dim=0).to(sums)
    ddifs: Array = np.nan_to_num(sums.numpy() / count, nan=_LARGEST, posinf=_LARGEST)
    return ddifs


def disagreement(labels: Labels) -> Array:
    """0 for two clients of one cluster, 1 otherwise; a client outside all clusters (-1) is 0 from itself alone.

    >>> disagreement(np.array([0, 0, -1, -1]))
    array([[0., 0., 1., 1.],
           [0., 0., 1., 1.],
           [1., 1., 0., 1.],
           [1., 1., 1., 0.]])
    """
    together = (labels[:, None] == labels[None, :]) & (labels[:, None] >= 0)
    np.fill_diagonal(together, True)
    return np.where(together, 0.0, 1.0)


def merged_distances(by_angle: Labels, by_neup: Labels, by_ddifs: Sequence[Labels]) -> Array:
    """The mean disagreement of the three kinds of clusterings; those by DDif count as one."""
    of_ddifs: Array = np.mean([disagreement(labels) for labels in by_ddifs], axis=0)
    return (disagreement(by_angle) + disagreement(by_neup) + of_ddifs) / 3


def accepted_clients(labels: Labels, suspicious: Mask, threshold: float) -> Mask:
    """The members of all clusters whose share of suspicious clients is below `threshold`.

    >>> accepted_clients(np.array([0, 0, 1, 1, -1]), np.array([False, False, True, False, False]), 1 / 3)
    array([ True,  True, False, False, False])
    """
    accepted = np.zeros(len(labels), dtype=np.bool_)
    for cluster in set(labels[labels >= 0]):
        members = labels == cluster
        accepted[members] = suspicious[members].mean() < threshold
    return accepted


def _output_layer(round_: Round, names: OutputLayer) -> tuple[Entry, Entry | None]:
    """The position of the output layer in the flattened model."""
    entries = {entry.name: entry for entry in round_.layout.parameters}
    for name in (names.weight, names.bias):
        if name is not None and name not in entries:
            raise ConfigError(
                f"the server's output_layer names {name!r}, which is not a parameter of this model: "
                f"choose among {', '.join(entries)}"
            )
    weight, bias = entries[names.weight], None if names.bias is None else entries[names.bias]
    classes = weight.shape[0] if len(weight.shape) >= 2 else 0
    if classes < 2 or (bias is not None and bias.shape != (classes,)):
        raise ConfigError(
            f"the server's output_layer {names.weight!r} is not an output layer: it needs two or more classes, "
            "its weight one row per class, and its bias, if it has one, one number per class"
        )
    return weight, bias


def cosine_distances(vectors: Tensor) -> Array:
    """Cosine distances between the rows."""
    wide = vectors.double()
    products = (wide @ wide.T).cpu().numpy()
    squared = np.diagonal(products)
    distances = 1.0 - cosine(products, squared[:, None], squared[None, :])
    distances[distances < _ROUNDING] = 0.0
    np.fill_diagonal(distances, 0.0)
    return distances


def euclidean_distances(rows: Array) -> Array:
    """Distances between the rows, computed from differences, because inner products would lose digits."""
    points = torch.from_numpy(rows)
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").numpy()


def _verdicts(
    round_: Round, labels: Labels, suspicious: Mask, accepted: Mask, exceedings: Labels, weights: Array
) -> dict[ClientId, Verdict]:
    median = np.median(exceedings)
    verdicts: dict[ClientId, Verdict] = {}
    for i, client in enumerate(round_.clients):
        own = f"it has {exceedings[i]} threshold exceedings, the median client {median:g}"
        if labels[i] < 0:
            verdicts[client] = Verdict("held_out", f"Held out: it is in no cluster ({own}).", weight=0.0)
            continue
        members = labels == labels[i]
        cluster = f"{suspicious[members].sum()} of {members.sum()} clients in its cluster are suspicious"
        verdicts[client] = Verdict(
            "accepted" if accepted[i] else "held_out",
            f"{'Accepted' if accepted[i] else 'Held out'}: {cluster} ({own}).",
            cluster=int(labels[i]),
            weight=float(weights[i]),
        )
    return verdicts
