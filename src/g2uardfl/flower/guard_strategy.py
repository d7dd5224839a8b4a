"""The guard as a Flower strategy: a drop-in replacement for `FedAvg` that defends the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ..aggregators.base import RoundObserver
from ..federation.audit import MAX_BYTES
from .metrics import MetricsFn
from .replies import Identity
from .strategy import AggregatorStrategy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defense.g2uardfl import G2uardFL, GuardSettings


class G2uardFLStrategy(AggregatorStrategy):
    """The G²uardFL defence as a Flower strategy.

    Parameters
    ----------
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        As in Flower's `FedAvg`.
    weighted_by_key, arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        As in Flower's `FedAvg`.
    profile
        The guard's profile, "default" or "paper" (default: "default").
    seed
        Determines everything random about the guard; only None, which draws a secret, is safe in a real federation
        (default: None).
    min_replies, identity, authenticated_nodes, state_path, audit_path, audit_max_bytes, observers, buffers
        As in `AggregatorStrategy`.
    **guard_settings
        Any keyword of `G2uardFL`, or a setting of your own profile.

    Examples
    --------
    >>> strategy = G2uardFLStrategy(fraction_train=0.5, min_replies=5, profile="paper", score_percentile=10.0)
    >>> strategy.fraction_train, strategy.guard.configuration()["score_percentile"]
    (0.5, 10.0)
    """

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
        *,
        profile: str = "default",
        seed: int | None = None,
        min_replies: int | None = None,
        identity: Identity | None = None,
        authenticated_nodes: bool = False,
        state_path: str | os.PathLike[str] | None = None,
        audit_path: str | os.PathLike[str] | None = None,
        audit_max_bytes: int = MAX_BYTES,
        observers: Sequence[RoundObserver] = (),
        buffers: Sequence[str] = (),
        **guard_settings: Unpack[GuardSettings],
    ) -> None:
        super().__init__(
            "g2uardfl",
            fraction_train,
            fraction_evaluate,
            min_train_nodes,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
            min_replies=min_replies,
            identity=identity,
            authenticated_nodes=authenticated_nodes,
            state_path=state_path,
            audit_path=audit_path,
            audit_max_bytes=audit_max_bytes,
            observers=observers,
            buffers=buffers,
            profile=profile,
            seed=seed,
            **guard_settings,
        )

    @property
    def guard(self) -> G2uardFL:
        """The guard, with its settings and its memory."""
        return cast("G2uardFL", self.aggregator)
