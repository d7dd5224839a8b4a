"""The paper's profile: each module of the paper as one stage, each equation as printed where that can run.

The four stages are `construction`, `clustering`, `filtering` and `elimination`; the other files hold their formulas.
Where the text cannot be followed as printed there is a setting, and "printed" always means the printed equation.
"""

from __future__ import annotations

from ..profiles import Profile
from .clustering import GraphClustering
from .construction import GraphConstruction
from .elimination import PoisonElimination
from .filtering import ClusterFiltering
from .observation import PaperObserver


class Paper(Profile):
    """G²uardFL as the paper describes it."""

    summary = "the paper's equations: attributed client graph, graph auto-encoder, percentiles, G+ and G-"
    observer = PaperObserver
    construction = GraphConstruction
    clustering = GraphClustering
    filtering = ClusterFiltering
    elimination = PoisonElimination
