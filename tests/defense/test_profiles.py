"""Profiles by name, and a third party's profile: a third clustering stage in one file."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from g2uardfl import G2uardFL, aggregators
from g2uardfl.core.errors import ConfigError, StateError
from g2uardfl.core.state_files import read_state
from g2uardfl.defense import profiles
from g2uardfl.defense.profiles import PARTS, Profile
from g2uardfl.defense.recording import Record, RoundRecorder, without
from g2uardfl.defense.stages import Stage
from helpers.federations import ATTACKERS, Federation, first_model
from helpers.models import federation, odd_mlp, same
from helpers.rounds import decisions

SPECTRAL = '''
"""Spectral clustering of the similarity graph in place of groups beyond chance."""

from dataclasses import dataclass

import numpy as np
from sklearn.cluster import SpectralClustering
from sklearn.mixture import GaussianMixture

from g2uardfl.core.settings import check, number
from g2uardfl.defense.agreement import Default
from g2uardfl.defense.paper import Paper
from g2uardfl.defense.paper.observation import PaperObserver
from g2uardfl.defense.stages import Clusters, Clustering


@dataclass(frozen=True)
class SpectralSettings:
    """Settings of the spectral clustering."""

    min_mean_edge: float = number(1.0, 0, 100)
    """The mean edge within a cluster from which its members are flagged."""

    def __post_init__(self):
        check(self)


class Spectral(Clustering):
    """The smaller of two spectral clusters, if its members are similar enough."""

    Settings = SpectralSettings

    def cluster(self, evidence, prior):
        if len(evidence.nodes) < 4:
            return None
        affinity = np.exp(evidence.edges)
        found = SpectralClustering(2, affinity="precomputed", random_state=self.seed).fit(affinity).labels_
        smaller = found == np.argmin(np.bincount(found))
        within = evidence.edges[np.ix_(smaller, smaller)]
        flagged = smaller & (smaller.sum() > 1) & (within.mean() > self.settings.min_mean_edge)
        return Clusters(flagged.astype(np.int64), flagged * 1.0)


class Mine(Default):
    """The default profile with this clustering."""

    summary = "spectral clustering of the similarity graph"
    clustering = Spectral


class MinePaper(Paper):
    """The paper's profile with this clustering."""

    summary = "spectral clustering of the attributed client graph"
    clustering = Spectral


class Mixture(Clustering):
    """Two Gaussian clusters of the attributes, with their probabilities."""

    def cluster(self, evidence, prior):
        found = GaussianMixture(2, covariance_type="diag", reg_covar=0.1, random_state=self.seed)
        probabilities = found.fit(evidence.attributes).predict_proba(evidence.attributes)
        return Clusters(probabilities.argmax(axis=1), probabilities.max(axis=1))


class PaperMixture(Paper):
    """The paper's profile with a mixture model, and a measurement of its own."""

    clustering = Mixture

    class observer(PaperObserver):
        client_axes = {**PaperObserver.client_axes, "signs": (1,)}

        def measure(self, round_):
            signs = np.sign(np.stack([round_.update(row)[:5].numpy() for row in range(len(round_.clients))], axis=1))
            return {**super().measure(round_), "signs": signs}


class Unfit(Default):
    """A clustering that forgets that the filtering needs clusters."""

    class clustering(Clustering):
        def cluster(self, evidence, prior):
            return None
'''


@pytest.fixture
def mine(tmp_path, monkeypatch) -> str:
    """The address of a third party's profile in a file."""
    (tmp_path / "spectral_profile.py").write_text(SPECTRAL)
    monkeypatch.syspath_prepend(tmp_path)
    yield "spectral_profile:Mine"
    sys.modules.pop("spectral_profile", None)


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_has_a_class_for_each_part_and_a_summary_of_one_line(name):
    found = profiles.find(name)
    assert issubclass(found, Profile)
    assert list(found.parts()) == list(PARTS)
    assert all(issubclass(part, Stage) for part in found.parts().values())
    assert found.summary
    assert "\n" not in found.summary


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best", "unknown profile 'best': choose from default, paper (or write "),
        ("no_such_module:Mine", "cannot import no_such_module"),
        ("g2uardfl.defense.agreement:Mine", "has no Mine"),
        ("g2uardfl.aggregators.fedavg:FedAvg", "must subclass g2uardfl.defense.profiles.Profile"),
    ],
)
def test_a_profile_that_cannot_be_used_is_rejected(name, message):
    with pytest.raises(ConfigError) as caught:
        G2uardFL(profile=name)
    assert message in str(caught.value)


def test_a_profile_with_another_clustering_detects_attackers(mine):
    truth = [
        (client in ATTACKERS, verdict.refused)
        for result in Federation().run(G2uardFL(mine, seed=0, min_mean_edge=1.5), 12)[2:]
        for client, verdict in result.verdicts.items()
    ]
    caught = sum(attacks and rejected for attacks, rejected in truth)
    assert caught >= 0.8 * sum(attacks for attacks, _ in truth)
    assert caught >= 0.8 * sum(rejected for _, rejected in truth)


@pytest.mark.parametrize("name", ["MinePaper", "PaperMixture"])
def test_the_papers_profile_with_another_clustering_detects_colluding_attackers(mine, name):
    guard = G2uardFL(f"spectral_profile:{name}", seed=0, **({"min_mean_edge": 0.0} if name == "MinePaper" else {}))
    model, flagged = odd_mlp(), []
    for number in range(4):
        result = guard.aggregate(model, federation(model, 12, 3, seed=number))
        flagged.append([client for client, one in result.verdicts.items() if one.decision == "malicious"])
        model = result.weights
        assert all(one.reason.endswith(".") for one in result.verdicts.values())
        assert {result.verdicts[client].cluster for client in flagged[-1]} <= {0, 1}
    assert flagged == [[9, 10, 11]] * 4
    assert all(result.verdicts[client].benign_score < -0.5 for client in (9, 10, 11))


def test_the_papers_profile_does_not_ask_about_too_few_clients_to_compare(mine):
    model = odd_mlp()
    result = G2uardFL("spectral_profile:PaperMixture", seed=0).aggregate(model, federation(model, 2, 1))
    assert [event.kind for event in result.report.events] == ["not_compared"]
    assert {one.decision for one in result.verdicts.values()} == {"accepted"}


def test_a_record_of_its_own_measurement_is_saved_replayed_and_cut(mine, tmp_path):
    guard, recorder, model = G2uardFL("spectral_profile:PaperMixture", seed=0), RoundRecorder(), odd_mlp()
    sent = federation(model, 12, 3)
    verdicts = guard.aggregate(model, sent, observers=[recorder]).verdicts
    recorder.record.save(tmp_path / "record")
    [observation] = Record.load(tmp_path / "record").rounds
    again = G2uardFL("spectral_profile:PaperMixture", seed=0).judge(observation)
    assert again == {client: replace(verdict, weight=None) for client, verdict in verdicts.items()}
    excluded = np.array([client in (9, 10, 11) for client in observation.clients])
    rest = without(observation, excluded)
    assert np.array_equal(rest["signs"], observation["signs"][:, ~excluded])
    assert np.array_equal(rest["attributes"], observation["attributes"][~excluded])
    assert set(G2uardFL("spectral_profile:PaperMixture", seed=0).judge(rest)) == set(range(9))


def test_its_verdicts_and_events_have_reasons(mine):
    guard = G2uardFL(mine, seed=0)
    results = Federation().run(guard, 8)
    reasons = [verdict.reason for one in results for verdict in one.verdicts.values() if verdict.cluster]
    assert reasons
    assert all("its update is in a cluster with" in reason and reason.endswith(".") for reason in reasons)


def test_its_settings_are_keywords_of_the_guard_and_checked(mine):
    guard = G2uardFL(profile=mine, min_mean_edge=2.0, window=50)
    assert guard.configuration()["min_mean_edge"] == 2.0
    assert guard.clustering.settings.min_mean_edge == 2.0
    assert "min_mean_edge=2.0" in repr(guard)
    assert eval(repr(guard), {"G2uardFL": G2uardFL}).configuration() == guard.configuration()
    with pytest.raises(ConfigError, match="min_mean_edge=101"):
        G2uardFL(profile=mine, min_mean_edge=101)
    with pytest.raises(ConfigError, match="did you mean min_mean_edge"):
        G2uardFL(profile=mine, min_mean_edges=2.0)


def test_settings_of_the_clustering_that_it_replaces_are_rejected(mine):
    for name in ("false_alarm_rate", "max_malicious_share"):
        with pytest.raises(ConfigError, match=f"{name} is a setting of profile='default', not of profile='{mine}'"):
            G2uardFL(profile=mine, **{name: 0.1})
    with pytest.raises(ConfigError, match="score_percentile is a setting of profile='paper'"):
        G2uardFL(profile=mine, score_percentile=1.0)
    with pytest.raises(ConfigError, match="unknown setting 'min_mean_edge'"):
        G2uardFL(min_mean_edge=1.0)


def test_it_is_created_by_the_registry_of_aggregators(mine):
    rule = aggregators.create("g2uardfl", profile=mine, min_mean_edge=2.0, seed=3)
    assert rule.configuration() == G2uardFL(mine, seed=3, min_mean_edge=2.0).configuration()


def test_it_is_saved_and_loaded_and_continues_bit_for_bit(mine, tmp_path):
    guard = G2uardFL(mine, seed=0, min_mean_edge=1.5)
    model = Federation().run(guard, 5)[-1].weights
    guard.save(tmp_path / "guard")
    loaded = G2uardFL.load(tmp_path / "guard")
    assert loaded.configuration() == guard.configuration()
    again = Federation().run(loaded, 3, model, first=6)
    for first, second in zip(Federation().run(guard, 3, model, first=6), again, strict=True):
        assert first.verdicts == second.verdicts
        assert same(first.weights, second.weights)
    with pytest.raises(StateError, match="belongs to profile='spectral_profile:Mine', not to profile='default'"):
        G2uardFL(seed=0).restore(read_state(tmp_path / "guard", "guard"))


def test_a_saved_profile_that_can_no_longer_be_imported_is_a_clear_error(mine, tmp_path):
    G2uardFL(mine, seed=0).save(tmp_path / "guard")
    (tmp_path / "spectral_profile.py").unlink()
    del sys.modules["spectral_profile"]
    with pytest.raises(ConfigError, match="cannot import spectral_profile"):
        G2uardFL.load(tmp_path / "guard")


def test_a_clustering_that_finds_too_few_clients_to_compare_flags_nobody(mine):
    guard = G2uardFL(profile="spectral_profile:Unfit")
    result = guard.aggregate(first_model(), Federation().messages(first_model(), 1))
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}


def test_an_own_profile_changes_nothing_of_the_built_in_ones(mine):
    G2uardFL(mine, seed=0).aggregate(first_model(), Federation().messages(first_model(), 1))
    first, second = (G2uardFL(seed=0) for _ in range(2))
    for one, other in zip(Federation().run(first, 3), Federation().run(second, 3), strict=True):
        assert decisions(one) == decisions(other)
    assert profiles.names() == ["default", "paper"]
