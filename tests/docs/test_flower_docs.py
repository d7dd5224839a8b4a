"""The code, settings and messages on the pages about Flower and in the READMEs of the examples are real."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import Context, RecordDict

from g2uardfl import G2uardFL
from g2uardfl.aggregators.base import Event, RoundReport, Verdict
from g2uardfl.federation import log
from g2uardfl.federation.audit import MAX_BYTES, AuditWriter
from g2uardfl.flower import Audit, G2uardFLStrategy, array_record, mods
from helpers.flower import LocalGrid, client_weights, sending, train_round
from helpers.models import odd_mlp

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL, OPERATION, RED_TEAM, SETTINGS, MESSAGES = (
    DOCS / name
    for name in (
        "tutorials/flower.md",
        "how-to/operate-a-federation.md",
        "how-to/red-team.md",
        "how-to/choose-settings.md",
        "reference/log-messages.md",
    )
)


def text(page):
    return page.read_text(encoding="utf-8")


def code(page):
    """The only block of Python on a page."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", text(page), flags=re.M | re.S)
    return block


class OddModel:
    def state_dict(self):
        return odd_mlp()


def test_the_server_of_the_page_runs_and_writes_state_and_audit(tmp_path):
    scope = {"my_model": OddModel}
    assert "100 - strategy.rounds_done" in code(TUTORIAL)
    exec(compile(code(TUTORIAL).replace("100 -", "3 -"), TUTORIAL, "exec"), scope)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"state": str(tmp_path)})
    scope["main"](LocalGrid(sending(client_weights(odd_mlp(), clients=20))), context)
    assert (tmp_path / "guard.state").exists()
    assert [len(record["verdicts"]) for record in Audit(tmp_path / "audit.jsonl").rounds] == [10, 10, 10]


def test_the_identity_of_the_page_identifies_clients_by_their_keys():
    scope: dict = {}
    exec(compile(code(OPERATION), OPERATION, "exec"), scope)
    clients = client_weights(odd_mlp())

    class Keyed(LocalGrid):
        def get_nodes(self):
            return [type("Node", (), {"node_id": c, "public_key": bytes([i])}) for i, c in enumerate(clients)]

    strategy = G2uardFLStrategy(identity=scope["by_public_key"](Keyed({})))
    train_round(strategy, array_record(odd_mlp()), sending(clients))
    assert set(strategy.verdicts) == {f"{i:02x}" for i in range(len(clients))}


def test_the_red_team_app_of_the_page_can_be_built():
    scope: dict = {}
    exec(compile(code(RED_TEAM), RED_TEAM, "exec"), scope)
    assert len(scope["app"]._mods) == 2


def test_every_setting_of_the_table_exists_with_its_default():
    own = {"min_replies": "half of the sampled clients", "timeout": 3600, "audit_max_bytes": MAX_BYTES, "seed": "drawn"}
    defaults = {**G2uardFL().configuration(), **own}
    table = text(SETTINGS).partition("## Settings worth changing")[2].partition("Every keyword of")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table, flags=re.M)
    assert len(rows) >= 8
    for names, values in rows:
        for name, value in zip(re.findall(r"`(\w+)`", names), values.split(", "), strict=False):
            assert value.strip('`"').removesuffix(" s") == str(defaults[name]).removesuffix(".0"), name


def test_every_event_of_the_log_table_has_the_level_that_the_page_says():
    rows = re.findall(r"^\| `(\w+): .*?`( \(WARNING\))? \|", text(MESSAGES), flags=re.M)
    assert {kind for kind, _ in rows} >= {"rolled_back", "eliminated", "model_kept"}
    for kind, warning in rows:
        report = RoundReport({}, events=(Event(kind, "message"),))
        assert log.level(report) == (logging.WARNING if warning else logging.INFO)


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_the_commands_for_jq_find_what_they_say(tmp_path):
    rejected = Verdict("malicious", "Its update is too large.")
    writer = AuditWriter(tmp_path / "audit.jsonl", "g2uardfl")
    writer.write(1, RoundReport({2**63: rejected, 8: Verdict("accepted", "It is not.")}), {})
    writer.write(2, RoundReport({2**63: rejected}, "Kept.", (Event("model_kept", "Kept."),)), {})
    commands = [line for line in text(OPERATION).splitlines() if line.startswith("jq ")]
    found = [
        subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
        for command in commands
    ]
    assert [text.split() for text in found] == [["2", str(2**63)], ['[2,"Kept."]']]


def test_every_mod_that_is_named_exists():
    for name in re.findall(r"`(\w+)\((?:target|trigger|factor|deviation)", text(RED_TEAM)):
        assert issubclass(getattr(mods, name), mods.RedTeamMod)


@pytest.mark.parametrize("page", sorted((ROOT / "examples").glob("*/README.md")), ids=lambda page: page.parent.name)
def test_every_page_that_is_linked_exists(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)(?:#[\w-]*)?\)", text(page)):
        assert (page.parent / link).exists(), link


def test_every_run_setting_in_a_readme_is_a_setting_of_the_app():
    for readme in (ROOT / "examples").glob("*/README.md"):
        config = (readme.parent / "pyproject.toml").read_text().partition("[tool.flwr.app.config]")[2]
        known = set(re.findall(r"^([\w-]+) =", config, flags=re.M))
        for given in re.findall(r"--run-config '([^']*)'", readme.read_text()):
            assert set(re.findall(r"([\w-]+)=", given)) <= known
