"""The same federation under the same attack, once for each rule, and a table of the results."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp

from g2uardfl.flower import AggregatorStrategy, Audit
from g2uardfl.report.page import write_report

from .attack import TARGET, trigger
from .task import load_task, share_predicted

app = ServerApp()
MIN_NODES = 4
"""Below this number of nodes a quarter of them is less than one attacker."""
MAX_TEST_SAMPLES = 1000
"""The number of test samples, with which an evaluation takes about a second."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run each rule in turn and print accuracy and attack success rate."""
    nodes = len(list(grid.get_node_ids()))
    if nodes < MIN_NODES:
        raise ValueError(
            f"{nodes} SuperNodes are too few for this exercise: flwr run . --stream --federation-config "
            '"num-supernodes=12 client-resources-num-cpus=1"'
        )
    rules = str(context.run_config["rules"]).split()
    results = {rule: federate(rule, grid, context, nodes) for rule in rules}
    print(f"\n{'rule':<12}{'ACC %':>8}{'ASR %':>8}   after {context.run_config['rounds']} rounds")
    for rule, scores in results.items():
        print(f"{rule:<12}{100 * scores['acc']:>8.1f}{100 * scores['asr']:>8.1f}")


def federate(rule: str, grid: Grid, context: Context, nodes: int) -> MetricRecord:
    """Run one federation with one rule; returns its last ACC and ASR."""
    settings = context.run_config
    task, seed, rounds = load_task(str(settings["task"])), int(settings["seed"]), int(settings["rounds"])
    torch.manual_seed(seed)
    model = task.build_model()
    test = task.test.take(torch.arange(min(len(task.test), MAX_TEST_SAMPLES)))
    triggered = trigger(test.x[test.y != TARGET])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord(
            {
                "acc": share_predicted(task, model, test.x, test.y),
                "asr": share_predicted(task, model, triggered, torch.full((len(triggered),), TARGET)),
            }
        )

    out = Path(str(settings["out"]))
    out.mkdir(parents=True, exist_ok=True)
    audit = out / f"{rule.replace(':', '-')}.jsonl"
    audit.unlink(missing_ok=True)
    strategy = AggregatorStrategy(
        rule,
        fraction_evaluate=0.0,
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        min_replies=MIN_NODES,
        identity=partition_of,
        audit_path=audit,
    )
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=evaluate)
    print(f"{rule}: report in {write_report([Audit(audit)], audit.with_suffix('.html')).resolve()}")
    return result.evaluate_metrics_serverapp[rounds]


def partition_of(reply: Message) -> int:
    """The identity that a client claims. This is for exercises only: in a real federation clients may lie."""
    return int(reply.content["who"]["client"])
