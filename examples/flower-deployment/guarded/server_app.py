"""The server: settings of FedAvg and of the guard, two files that survive every crash, and the final model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from g2uardfl.flower import G2uardFLStrategy

from . import model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the remaining rounds."""
    settings = context.run_config
    folder = Path(str(settings["state"]))
    if not folder.is_absolute() or not folder.is_dir():
        raise ValueError("set the folder of the state: flwr run . --run-config 'state=\"/a/folder/on/the/server\"'")
    strategy = G2uardFLStrategy(
        fraction_evaluate=0.0,
        min_train_nodes=3,
        min_available_nodes=3,
        min_replies=3,
        authenticated_nodes=True,
        state_path=folder / "guard.state",
        audit_path=folder / "audit.jsonl",
    )
    pixels, digits = model.test_data()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        found = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": model.accuracy(found, pixels, digits)})

    result = strategy.start(
        grid,
        ArrayRecord({name: Array(array) for name, array in model.fresh().items()}),
        num_rounds=max(0, int(settings["rounds"]) - strategy.rounds_done),
        timeout=float(settings["timeout"]),
        evaluate_fn=evaluate,
    )
    unfinished = folder / "unfinished.npz"
    np.savez(unfinished, **{name: array.numpy() for name, array in result.arrays.items()})
    unfinished.replace(folder / "model.npz")
    final = evaluate(strategy.rounds_done, result.arrays)
    print(f"after round {strategy.rounds_done}: accuracy {100 * float(final['accuracy']):.1f} %")
