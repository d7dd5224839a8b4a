"""Run directories with made-up rounds, for reports: no training, any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import FinishedRun
from g2uardfl.simulation.metrics import summarise


def made_up_run(
    path: Path,
    *,
    rounds: int = 12,
    clients: int = 20,
    per_round: int = 8,
    succeeds: bool = False,
    scored: bool = True,
    finished: bool = True,
    **settings: Any,
) -> FinishedRun:
    """Write a run in which most verdicts are right, and read it back.

    A quarter of the clients is malicious. Round 3 has a rollback and the last one an elimination. With `succeeds` the
    attack does; without `scored` the rule has neither scores nor a graph.
    """
    config = RunConfig(rounds=max(1, rounds), clients=clients, per_round=per_round, **settings)
    random = np.random.default_rng([config.seed, len(config.defense), len(config.attack)])
    scores = np.zeros(clients)
    records = []
    for number in range(1, rounds + 1):
        selected = sorted(random.choice(clients, per_round, replace=False).tolist())
        malicious = [client for client in selected if client % 4 == 0 and config.attack != "none"]
        attacking = malicious if number >= config.attack_from else []
        verdicts, edges = {}, []
        for client in selected:
            flagged = (client in attacking) != (random.random() < 0.08)
            scores[client] += (-0.3 - scores[client]) * 0.3 if flagged else (1 - scores[client]) * 0.1
            verdict = {
                "decision": random.choice(["malicious", "held_out"], p=[0.8, 0.2]) if flagged else "accepted",
                "reason": f"Its robust z-score is {3 + random.random():.1f}." if flagged else "It is like the others.",
            }
            if scored:
                other = selected[int(random.integers(per_round))]
                edges += [[str(client), str(other), round(float(random.random()), 3)]] if other != client else []
                verdict |= {"benign_score": float(scores[client]), "cluster": int(flagged)}
                verdict |= {"suspicion": float(random.random())}
            verdicts[str(client)] = verdict
        events = [{"kind": "rolled_back", "message": "The model was rolled back to round 1."}] if number == 3 else []
        events += [{"kind": "eliminated", "message": "Something was removed."}] if number == rounds else []
        asr = 1 - np.exp(-number / 4) if succeeds else 0.02 * random.random()
        records.append({
            "round": number, "acc": 0.92 + 0.01 * random.random(), "asr": float(asr), "selected": selected,
            "malicious": malicious, "attacking": attacking, "verdicts": verdicts,
            "seconds": {"train": 0.2, "defend": 0.05, "evaluate": 0.01},
            "note": " ".join(event["message"] for event in events), "events": events,
            "stage_seconds": {"reading": 0.01, "clustering": 0.03 + 0.01 * random.random(), "filtering": 0.01},
            **({"edges": edges} if scored else {}),
        })  # fmt: skip
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    if finished:
        summary = summarise(records, config.defend_from) | {"start": {"acc": 0.92, "asr": 0.01}, "seed": config.seed}
        summary["environment"] = {"g2uardfl": "0.0", "python": "3.11"}
        (path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return FinishedRun(path, unfinished_too=not finished)
