"""The default profile: attackers are detected by how similar their updates are, over the rounds of a window.

The four stages are `construction`, `clustering`, `filtering` and `elimination`; the other files hold their components.
"""

from __future__ import annotations

from ..profiles import Profile
from .clustering import GroupClustering
from .construction import SimilarityConstruction
from .elimination import RobustStepAndRollback
from .filtering import ReputationFiltering
from .observation import SketchObserver


class Default(Profile):
    """The profile that protects best in our measurements."""

    summary = "similarity graph of the last rounds, groups beyond chance, reputations, robust mean, rollback"
    observer = SketchObserver
    construction = SimilarityConstruction
    clustering = GroupClustering
    filtering = ReputationFiltering
    elimination = RobustStepAndRollback
