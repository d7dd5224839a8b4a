"""What `docs/flower.md` and the examples' pages show is what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import Context, RecordDict

from g2uardfl import GuardConfig
from g2uardfl.flower import G2uardFLStrategy, array_record, mods
from g2uardfl.flower import strategy as strategies
from helpers.flower import LocalGrid, decisions, honest, play, sends
from helpers.models import odd_mlp

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)


class OddModel:
    def state_dict(self):
        return odd_mlp()


def test_the_server_of_the_page_runs_and_leaves_state_and_audit(tmp_path, monkeypatch):
    scope = {"my_model": OddModel}
    exec(compile(BLOCKS[0], "docs/flower.md", "exec"), scope)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"state": str(tmp_path)})
    # Three of the hundred rounds are enough.
    monkeypatch.setattr(strategies.AggregatorStrategy, "rounds_done", property(lambda _: 97, lambda *_: None), False)
    scope["main"](LocalGrid({c: sends(w) for c, w in honest(odd_mlp(), clients=20).items()}), context)
    assert (tmp_path / "guard.state").exists()
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 3 * 10


def test_the_identity_of_the_page_names_clients_by_their_keys():
    scope: dict = {}
    exec(compile(BLOCKS[1], "docs/flower.md", "exec"), scope)
    clients = honest(odd_mlp())

    class Keyed(LocalGrid):
        def get_nodes(self):
            return [type("Node", (), {"node_id": c, "public_key": bytes([i])}) for i, c in enumerate(clients)]

    strategy = G2uardFLStrategy(identity=scope["by_public_key"](Keyed({})))
    play(strategy, array_record(odd_mlp()), {c: sends(w) for c, w in clients.items()})
    assert set(decisions(strategy)) == {f"{i:02x}" for i in range(len(clients))}


def test_the_red_team_of_the_page_can_be_put_together():
    scope: dict = {}
    exec(compile(BLOCKS[2], "docs/flower.md", "exec"), scope)
    assert len(scope["app"]._mods) == 2


def test_every_setting_and_mod_that_is_named_exists():
    settings = {item.name for item in dataclasses.fields(GuardConfig)}
    table = PAGE.partition("## Settings worth touching")[2].partition("Every field of")[0]
    named = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)?", table, flags=re.M))
    ours = {"min_replies", "timeout", "profile", ""}
    assert {name for pair in named for name in pair} - ours <= settings
    assert len(named) >= 6
    for name in re.findall(r"`(\w+)\((?:target|trigger|factor|deviation)", PAGE):
        assert issubclass(getattr(mods, name), mods.RedTeamMod)


@pytest.mark.parametrize(
    "page", [ROOT / "docs/flower.md", *(ROOT / "examples").glob("*/README.md")], ids=lambda page: page.parent.name
)
def test_every_page_that_is_linked_exists(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_every_run_setting_that_a_readme_sets_is_one_of_the_apps():
    for readme in (ROOT / "examples").glob("*/README.md"):
        config = (readme.parent / "pyproject.toml").read_text().partition("[tool.flwr.app.config]")[2]
        known = set(re.findall(r"^([\w-]+) =", config, flags=re.M))
        for given in re.findall(r"--run-config '([^']*)'", readme.read_text()):
            assert set(re.findall(r"([\w-]+)=", given)) <= known
