"""A graph auto-encoder and the clustering of its latent space (section Graph Clustering).

The encoder is two graph-convolution layers (Kipf and Welling), Z = Â relu(Â X W1 + b1) W2 + b2 with
Â = D^-1/2 (E with ones on the diagonal) D^-1/2. It is pre-trained to reconstruct E as sigmoid(Z Zᵀ). Then encoder and
cluster centres are trained together on L_rec + λ L_clus. HDBSCAN on the attributes determines the number of clusters,
and k-means on Z initialises their centres.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from ...core.numerics import Array
from ...core.threads import one_thread
from ..stages import Clusters, Edges


@dataclass(frozen=True)
class LatentClusters(Clusters):
    """Clusters in the auto-encoder's latent space. The label of client i is argmax_j P_ij; a cluster may be empty."""

    latent: Array
    """Z, (clients x latent dimensions)."""
    centres: Array
    """Q, (clusters x latent dimensions)."""
    soft: Array
    """P, (clients x clusters): rows sum to 1."""

    @staticmethod
    def of(latent: Array, centres: Array, soft: Array) -> LatentClusters:
        """Clusters with the labels and membership probabilities of `soft`."""
        return LatentClusters(soft.argmax(axis=1), soft.max(axis=1), latent, centres, soft)

    @property
    def distances(self) -> Array:
        """d_i, the distance of each client from the centre of its cluster."""
        distances: Array = np.linalg.norm(self.latent - self.centres[self.labels], axis=1)
        return distances


def cluster_count(attributes: Array, *, min_clusters: int, min_cluster_size: int) -> int:
    """Q: the number of clusters that HDBSCAN finds among the attributes, where noise counts as one cluster.

    The result is at most half the number of clients, and at least `min_clusters`.
    """
    from sklearn.cluster import HDBSCAN

    clients = len(attributes)
    size = max(2, min(min_cluster_size, clients))
    labels = HDBSCAN(min_cluster_size=size, copy=True).fit_predict(attributes)
    found = len(np.unique(labels))
    return int(max(min_clusters, min(found, clients // 2)))


def normalised_adjacency(adjacency: Edges) -> Array:
    """Â = D^-1/2 A D^-1/2, where A is the adjacency matrix with ones on the diagonal and D its row sums."""
    connected = np.array(adjacency, dtype=np.float64)
    np.fill_diagonal(connected, 1.0)
    scale = 1.0 / np.sqrt(connected.sum(axis=1))
    result: Array = scale[:, None] * connected * scale[None, :]
    return result


def soft_assignment(latent: Tensor, centres: Tensor) -> Tensor:
    """P_ij, the softmax over clusters of -||Z_i - Q_j||² / 2."""
    squared = (latent[:, None, :] - centres[None, :, :]).square().sum(dim=2)
    return torch.softmax(-0.5 * squared, dim=1)


def reconstruction_loss(latent: Tensor, adjacency: Tensor) -> Tensor:
    """L_rec: the cross-entropy between the adjacency matrix (soft labels) and sigmoid(Z Zᵀ), summed over pairs."""
    return torch.nn.functional.binary_cross_entropy_with_logits(latent @ latent.T, adjacency, reduction="sum")


def clustering_loss(soft: Tensor) -> Tensor:
    """L_clus = KL(hard || soft): with a one-hot hard assignment, the sum of -log of each row's largest entry."""
    return -soft.max(dim=1).values.clamp_min(torch.finfo(soft.dtype).tiny).log().sum()


class GraphAutoEncoder:
    """Two graph-convolution layers with Glorot initialisation, drawn from `seed`."""

    def __init__(self, inputs: int, hidden: int, latent: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.first = _glorot(inputs, hidden, generator)
        self.first_bias = torch.zeros(hidden, dtype=torch.float64, requires_grad=True)
        self.second = _glorot(hidden, latent, generator)
        self.second_bias = torch.zeros(latent, dtype=torch.float64, requires_grad=True)

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> GraphAutoEncoder:
        """The encoder with the parameters that `state` returned."""
        inputs, hidden = arrays["first"].shape
        encoder = cls(inputs, hidden, arrays["second"].shape[1], seed=0)
        for name in vars(encoder):
            setattr(encoder, name, torch.tensor(arrays[name], requires_grad=True))
        return encoder

    def state(self) -> dict[str, Array]:
        """The parameters by name."""
        return {name: tensor.detach().numpy().copy() for name, tensor in vars(self).items()}

    def parameters(self) -> list[Tensor]:
        """The trainable tensors."""
        return [self.first, self.first_bias, self.second, self.second_bias]

    def encode(self, propagated: Tensor, propagation: Tensor) -> Tensor:
        """Z from `propagated` = Â X, which is constant during training, and `propagation` = Â."""
        hidden = torch.relu(propagated @ self.first + self.first_bias)
        return propagation @ (hidden @ self.second) + self.second_bias


@one_thread()
def cluster_graph(
    attributes: Array,
    adjacency: Edges,
    encoder: GraphAutoEncoder,
    *,
    clusters: int,
    pretrain_epochs: int,
    cluster_epochs: int,
    learning_rate: float,
    clustering_weight: float,
    seed: int,
) -> LatentClusters:
    """Train `encoder` on the graph of the round's clients, and assign them to at most `clusters` clusters.

    The result is deterministic for the same inputs and `seed`.
    """
    propagation = torch.from_numpy(normalised_adjacency(adjacency))
    target = torch.from_numpy(np.ascontiguousarray(adjacency, dtype=np.float64))
    propagated = propagation @ torch.from_numpy(np.ascontiguousarray(attributes, dtype=np.float64))

    optimizer = _Adam(encoder.parameters(), learning_rate)
    for _ in range(pretrain_epochs):
        optimizer.step(reconstruction_loss(encoder.encode(propagated, propagation), target))

    with torch.no_grad():
        start = encoder.encode(propagated, propagation).numpy()
    centres = torch.from_numpy(_kmeans_centres(start, clusters, seed)).requires_grad_()
    optimizer = _Adam([*encoder.parameters(), centres], learning_rate)
    for _ in range(cluster_epochs):
        latent = encoder.encode(propagated, propagation)
        loss = clustering_loss(soft_assignment(latent, centres))
        optimizer.step(reconstruction_loss(latent, target) + clustering_weight * loss)

    with torch.no_grad():
        latent = encoder.encode(propagated, propagation)
        soft = soft_assignment(latent, centres)
    return LatentClusters.of(latent.numpy(), centres.detach().numpy(), soft.numpy())


class _Adam:
    """Adam with torch's defaults, without the overhead of `torch.optim.Adam`, which would double the time of a step."""

    def __init__(self, parameters: list[Tensor], learning_rate: float) -> None:
        self.parameters, self.learning_rate = parameters, learning_rate
        self._means, self._squares = ([torch.zeros_like(one) for one in parameters] for _ in range(2))
        self._steps = [torch.tensor(0.0) for _ in parameters]

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of `loss`."""
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            adam(
                self.parameters,
                list(gradients),
                self._means,
                self._squares,
                max_exp_avg_sqs=[],
                state_steps=self._steps,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self.learning_rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


def _glorot(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    bound = (6.0 / (inputs + outputs)) ** 0.5
    uniform = torch.rand(inputs, outputs, generator=generator, dtype=torch.float64)
    weights: Tensor = (2 * uniform - 1) * bound
    return weights.requires_grad_()


def _kmeans_centres(latent: Array, clusters: int, seed: int) -> Array:
    """The centres of k-means; if there are fewer distinct points than clusters, centres are repeated."""
    from sklearn.cluster import KMeans

    distinct = len(np.unique(latent, axis=0))
    found = KMeans(min(clusters, distinct), n_init=10, random_state=seed).fit(latent).cluster_centers_
    return np.asarray(found[np.arange(clusters) % len(found)], dtype=np.float64)
