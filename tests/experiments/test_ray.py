"""Sweeps on a Ray cluster: two machines on loopback."""

from __future__ import annotations

import pytest

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import FinishedRun, RunDirectory
from g2uardfl.simulation.run import Simulation
from helpers.command_line import PROGRAM, run_process
from helpers.runs import timeless_rounds

FAILS = '''
from g2uardfl.aggregators.fedavg import FedAvg


class Fails(FedAvg):
    """Fails."""

    name = "fails"
    summary = "fails"

    def combine(self, round_):
        raise ValueError("no such thing")
'''


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep on two machines with one core each, and what the command printed."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'g2uardfl[ray]'")
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("ray")
    (folder / "fails.py").write_text(FAILS)
    grid = ("--defense", "fedavg", "median", "fails:Fails", "--rounds", "3", "--local-steps", "1")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        command = [*PROGRAM, "sweep", *grid, "--set", "start=scratch", "--out", "runs", "--ray", cluster.address]
        yield folder, run_process(command, folder)
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_runs_on_a_cluster_have_the_results_of_runs_here(swept, tmp_path):
    folder, result = swept
    finished = [FinishedRun(path.parent) for path in sorted(folder.glob("runs/*/summary.json"))]
    assert [run.config.defense for run in finished] == ["fedavg", "median"], result.stderr
    Simulation(RunConfig(rounds=3, local_steps=1, start="scratch")).run([RunDirectory(tmp_path / "here")])
    assert timeless_rounds(finished[0].path) == timeless_rounds(tmp_path / "here")


@pytest.mark.slow
def test_a_run_that_fails_on_a_cluster_is_listed(swept):
    _, result = swept
    assert result.status == 1
    assert "ValueError: no such thing" in result.stderr
    assert "1 of 3 runs failed" in result.stderr


def test_an_address_at_which_nothing_listens_is_a_one_line_error(cli):
    result = cli("sweep", "--rounds", "1", "--set", "start=scratch", "--ray", "127.0.0.1:1")
    assert result.status == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "ray start --head" in result.stderr


def test_without_ray_the_error_names_the_extra(cli, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    result = cli("sweep", "--rounds", "1", "--set", "start=scratch", "--ray", "local")
    assert result.status == 2
    assert "pip install 'g2uardfl[ray]'" in result.stderr
