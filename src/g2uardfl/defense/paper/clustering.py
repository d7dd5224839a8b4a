"""Graph clustering: the auto-encoder's clusters of the round's clients (section Graph Clustering)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.settings import check, number, switch
from ...core.state_files import SavedState
from ..stages import Clustering, Prior
from .autoencoder import GraphAutoEncoder, LatentClusters, cluster_count, cluster_graph
from .construction import FEWEST_CLIENTS, AttributedGraph


@dataclass(frozen=True)
class ClusteringSettings:
    """Settings of the graph auto-encoder.

    The paper specifies only d3. The defaults were chosen with `benchmarks/autoencoder_settings.py`: the longer and
    faster the auto-encoder is trained, the closer the latent representations of all clients, so a small learning rate
    and few steps separate attackers best.
    """

    min_clusters: int = number(2, 1, 100)
    """The smallest number Q of clusters."""
    min_cluster_size: int = number(2, 2, 1000)
    """HDBSCAN's minimum cluster size."""
    latent_dim: int = number(32, 1, 4096)
    """d3: the dimension of the latent representations Z."""
    hidden_dim: int = number(32, 1, 4096)
    """The width of the encoder's first layer."""
    pretrain_epochs: int = number(30, 0, 10_000)
    """E_p: steps on the reconstruction loss alone."""
    cluster_epochs: int = number(30, 0, 10_000)
    """E_c: steps on reconstruction and clustering loss together."""
    learning_rate: float = number(0.001, 0, 10, above=True)
    """Adam's learning rate for the encoder and the centres."""
    clustering_weight: float = number(0.1, 0, 1)
    """λ: the weight of the clustering loss."""
    keep_encoder: bool = switch(False)
    """Whether training continues from the encoder of the last round, not from a new one."""

    def __post_init__(self) -> None:
        check(self)


class GraphClustering(Clustering[AttributedGraph, Prior, LatentClusters]):
    """Embeds the graph with an auto-encoder and clusters the embedding."""

    Settings = ClusteringSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._encoder: GraphAutoEncoder | None = None

    def weaknesses(self, clients: int) -> list[str]:
        """Too few clients for clusters."""
        if clients >= FEWEST_CLIENTS:
            return []
        return [f"A round has {clients} clients: fewer than {FEWEST_CLIENTS} are not compared with each other at all."]

    def cluster(self, evidence: AttributedGraph, prior: Prior) -> LatentClusters | None:
        """The clusters; None where there are too few clients to compare."""
        if not evidence.comparable:
            return None
        config = self.settings
        seed = int(np.random.SeedSequence([self.secret, evidence.round]).generate_state(1)[0])
        encoder = self._encoder or GraphAutoEncoder(
            evidence.attributes.shape[1], config.hidden_dim, config.latent_dim, seed
        )
        if config.keep_encoder:
            self._encoder = encoder
        return cluster_graph(
            evidence.attributes,
            evidence.edges,
            encoder,
            clusters=cluster_count(
                evidence.attributes, min_clusters=config.min_clusters, min_cluster_size=config.min_cluster_size
            ),
            pretrain_epochs=config.pretrain_epochs,
            cluster_epochs=config.cluster_epochs,
            learning_rate=config.learning_rate,
            clustering_weight=config.clustering_weight,
            seed=seed,
        )

    def state(self) -> SavedState:
        """The encoder that is kept."""
        return SavedState() if self._encoder is None else SavedState(arrays=self._encoder.state())

    def restore(self, state: SavedState) -> None:
        """Continue with a saved encoder."""
        if state.arrays and self.settings.keep_encoder:
            self._encoder = GraphAutoEncoder.of(state.arrays)
