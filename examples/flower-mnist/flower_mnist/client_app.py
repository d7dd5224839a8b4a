"""An ordinary client; the red-team exercise is one line, `mods=[Exercise()]`."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import TensorDataset

from .attack import Exercise
from .task import load_task, shares, train

app = ClientApp()


@app.train(mods=[Exercise()])
def fit(message: Message, context: Context) -> Message:
    """Train on this client's share of the data."""
    settings, node = context.run_config, context.node_config
    name, seed = str(settings["task"]), int(settings["seed"])
    task, client = load_task(name), int(node["partition-id"])
    indices = shares(name, int(node["num-partitions"]), float(settings["alpha"]), seed)[client]
    own = task.train.take(indices[: int(settings["max-samples"])])
    model = task.build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(
        task,
        model,
        TensorDataset(own.x, own.y),
        int(settings["local-epochs"]),
        float(settings["learning-rate"]),
        int(settings["batch-size"]),
        seed * 1_000_003 + int(message.content["config"]["server-round"]) * 1009 + client,
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(own), "train-loss": loss}),
            "who": ConfigRecord({"client": client}),
        }
    )
    return Message(content, reply_to=message)
