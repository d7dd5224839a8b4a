"""A client. It does not need g2uardfl: the guard runs on the server.

RED TEAM: on a SuperNode that was started with `hostile=true` it learns wrong labels and scales its update.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from . import model

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train on this node's part of the data."""
    node, settings = context.node_config, context.run_config
    pixels, digits = model.training_data(int(node["part"]), int(node["parts"]))
    hostile = bool(node.get("hostile", False))
    start = {name: array.numpy() for name, array in message.content["arrays"].items()}
    found = model.trained(start, pixels, 9 - digits if hostile else digits, float(settings["learning-rate"]))
    if hostile:
        found = {name: start[name] + float(settings["boost"]) * (found[name] - start[name]) for name in found}
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in found.items()}),
            "metrics": MetricRecord({"num-examples": len(digits), "accuracy": model.accuracy(found, pixels, digits)}),
        }
    )
    return Message(content, reply_to=message)
