"""What every aggregation rule guarantees, whatever clients send."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from .. import aggregators
from ..aggregators.base import AggregationResult, Aggregator, Decision
from ..aggregators.context import NeedsServer
from ..core.layout import Weights, as_tensor
from ..core.state_files import read_state, write_state
from . import BrokenError, Check, Make, check_settings, require
from .federation import StandInServer, batch_norm_model, federation, numpy_model, odd_mlp, perturbed, same
from .messages import UNUSABLE, WELL_FORMED, Model

MODELS = {"an MLP": odd_mlp, "a model with BatchNorm": batch_norm_model, "NumPy arrays": numpy_model}
"""The models that rules are checked on."""
_ROUNDS = 3


def ready(rule: Aggregator, model: Model) -> Aggregator:
    """The rule with a stand-in server for `model`, if it needs one."""
    if isinstance(rule, NeedsServer):
        rule.attach(StandInServer(model))
    return rule


def made(name: str, settings: Mapping[str, Any]) -> Aggregator:
    """A rule by name, with seed 0 where it takes one and none is given."""
    seed = {"seed": 0} if aggregators.find(name).takes_seed else {}
    return aggregators.create(name, **{**seed, **settings})


def _once(make: Make, clients: Mapping[Any, Any], model: Model) -> AggregationResult:
    found: AggregationResult = ready(make(), model).aggregate(model, clients)
    return found


def _require_finite(weights: Weights, when: str = "") -> None:
    for name, value in weights.items():
        require(
            torch.isfinite(as_tensor(value).double()).all(),
            f"the new model has values in {name!r} that are not finite{when}",
        )


def _require_same(first: AggregationResult, second: AggregationResult, what: str) -> None:
    require(same(first.weights, second.weights), f"{what} changes the new model")
    require(first.verdicts == second.verdicts, f"{what} changes the verdicts")


def _verdicts(make: Make) -> None:
    model = odd_mlp()
    result = _once(make, federation(model), model)
    require(
        list(result.verdicts) == list(federation(model)),
        "there is not exactly one verdict for each client, in their order",
    )
    for client, verdict in result.verdicts.items():
        require(verdict.decision in get_args(Decision), f"the decision on client {client!r} is {verdict.decision!r}")
        require(verdict.reason.endswith("."), f"the reason of client {client!r} is not a sentence: {verdict.reason!r}")
        numbers = (verdict.benign_score, verdict.distance, verdict.suspicion, verdict.weight)
        require(all(x is None or np.isfinite(x) for x in numbers), f"a number in {verdict} is not finite")
    report = result.report.as_dict()
    require(json.loads(json.dumps(report)) == report, "the report is not made of plain values")


def _form(make: Make) -> None:
    for name, build in MODELS.items():
        model = build()
        result = _once(make, federation(model), model)
        _require_finite(result.weights, f" for {name}")
        require(list(result.weights) == list(model), f"for {name} the arrays have other names or another order")
        for key, value in model.items():
            new = result.weights[key]
            kept = type(new) is type(value) and new.dtype == value.dtype and new.shape == value.shape
            require(kept, f"for {name} {key!r} has another type, dtype or shape")
            require(new is not value, f"for {name} {key!r} is the array of the old model")


def _precisions(make: Make) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        model = {key: value.to(dtype) for key, value in odd_mlp().items()}
        clients = {i: {key: value.to(dtype) for key, value in perturbed(odd_mlp(), i).items()} for i in range(6)}
        result = _once(make, clients, model)
        _require_finite(result.weights, f" in {dtype}")
        require(all(value.dtype == dtype for value in result.weights.values()), f"{dtype} is not kept")


def _one_client(make: Make) -> None:
    model = odd_mlp()
    for sent in (perturbed(model, 1), model):
        result = _once(make, {"only": sent}, model)
        require(list(result.verdicts) == ["only"], "the only client has no verdict")
        _require_finite(result.weights)


def _zero_updates(make: Make) -> None:
    model = odd_mlp()
    clients = {**federation(model), "copy": federation(model)[0], "zero": model}
    for sent in (clients, dict.fromkeys(range(6), model)):
        result = _once(make, sent, model)
        require(len(result.verdicts) == len(sent), "a client has no verdict")
        _require_finite(result.weights)


def _nothing_usable(make: Make) -> None:
    for build in MODELS.values():
        model = build()
        result = _once(make, {1: {}, "two": None}, model)
        require(same(result.weights, model), "the global model changes")
        require({one.decision for one in result.verdicts.values()} == {"invalid"}, "a client is not invalid")
        events = [event.kind for event in result.report.events]
        require(events == ["model_kept"], f"the events are {events} and not ['model_kept']")


def _callers_errors(make: Make) -> None:
    model = odd_mlp()
    wrong: dict[str, tuple[Any, Any]] = {
        "no clients": (model, {}),
        "an empty model": ({}, {0: {}}),
        "a model that is not finite": ({"w": np.array([np.nan])}, {0: {}}),
        "a client id that is a tuple": (model, {(1, 2): model}),
    }
    for what, (weights, clients) in wrong.items():
        try:
            ready(make(), model).aggregate(weights, clients)
        except ValueError:
            continue
        require(False, f"{what} raises no ValueError")


def _order(make: Make) -> None:
    model = odd_mlp()
    clients = {(f"c{i}" if i % 2 else i): weights for i, weights in federation(model, 7, 2).items()}
    first, second = ready(make(), model), ready(make(), model)
    for _ in range(2):
        backwards = dict(reversed(clients.items()))
        _require_same(
            first.aggregate(model, clients), second.aggregate(model, backwards), "another order of the clients"
        )


def _repeatable(make: Make) -> None:
    first, second, model = make(), make(), batch_norm_model()
    for _ in range(_ROUNDS):
        result = ready(first, model).aggregate(model, federation(model))
        _require_same(result, ready(second, model).aggregate(model, federation(model)), "a second object")
        model = result.weights


def _no_global_randomness(make: Make) -> None:
    model = odd_mlp()
    rule, clients = ready(make(), model), federation(model)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    rule.aggregate(model, clients)
    require(torch.equal(torch_state, torch.get_rng_state()), "torch's global generator is used")
    kept = all(np.array_equal(old, new) for old, new in zip(numpy_state, np.random.get_state(), strict=True))  # noqa: NPY002
    require(kept, "NumPy's global generator is used")


def _inputs_kept(make: Make) -> None:
    model = odd_mlp()
    clients, copies = federation(model), federation(model)
    _once(make, clients, model)
    require(same(model, odd_mlp()), "the global model that was passed in is changed")
    for client, weights in clients.items():
        require(same(weights, copies[client]), f"what client {client} sent is changed")


def _state(make: Make) -> None:
    model = batch_norm_model()
    sent = [
        {(i if i % 2 else f"c{i + number}"): weights for i, weights in federation(model, 6, 2, number).items()}
        for number in range(_ROUNDS)
    ]
    whole = ready(make(), model)
    with tempfile.TemporaryDirectory() as folder:
        expected = []
        for number, clients in enumerate(sent):
            write_state(Path(folder, str(number)), "rule", whole.state())
            expected.append(whole.aggregate(model, clients))
        for number in range(_ROUNDS):
            restored = ready(make(), model)
            restored.restore(read_state(Path(folder, str(number)), "rule"))
            require(restored.configuration() == whole.configuration(), "restoring a state changes the settings")
            for result, clients in zip(expected[number:], sent[number:], strict=True):
                _require_same(restored.aggregate(model, clients), result, f"restoring the state after {number} rounds")


def _unusable(make: Make) -> None:
    for build in MODELS.values():
        model: Any = build()
        clients = federation(model)
        expected = _once(make, clients, model)
        for kind, lie in UNUSABLE.items():
            with _about(kind):
                result = _once(make, {**clients, "hostile": lie(perturbed(model, 99), model)}, model)
                verdict = result.verdicts["hostile"]
                require(verdict.decision == "invalid", f"the decision is {verdict.decision!r}, not 'invalid'")
                reason = verdict.reason
                readable = reason.startswith("The client ") and reason.isprintable() and len(reason) < 1000
                require(readable, f"the reason is {reason[:200]!r}")
                require(all(result.verdicts[one] == expected.verdicts[one] for one in clients), "other verdicts change")
                require(same(result.weights, expected.weights), "the new model changes")


def _judged(make: Make) -> None:
    for kind, lie in WELL_FORMED.items():
        model: Any = batch_norm_model()
        rule = ready(make(), model)
        for number in range(2):
            clients: dict[Any, Any] = {**federation(model, attackers=0, seed=number)}
            clients |= {f"hostile {i}": lie(perturbed(model, 1000 + 10 * number + i), model) for i in range(2)}
            with _about(kind):
                result = rule.aggregate(model, clients)
                require(len(result.verdicts) == 10, "a client has no verdict")
                _require_finite(result.weights)
                report = result.report.as_dict()
                require(json.loads(json.dumps(report)) == report, "the report is not made of plain values")
            model = result.weights


@contextmanager
def _about(kind: str) -> Iterator[None]:
    """Add to every error the name of the message that was sent."""
    try:
        yield
    except BrokenError as error:
        raise BrokenError(f"with a client that sends {kind}: {error}") from error
    except Exception as error:  # a custom rule may raise anything
        raise BrokenError(f"a client that sends {kind} causes {type(error).__name__}: {error}") from error


CHECKS = [
    Check("Its representation shows all settings, and unknown ones are rejected.", check_settings),
    Check("Every client has a verdict with a reason, and the report is made of plain values.", _verdicts),
    Check("The new model has the names, types, dtypes and shapes of the old one.", _form),
    Check("Models of 16 and 64 bits keep their precision and stay finite.", _precisions),
    Check("Clients that send NaN, infinity, wrong names, shapes or dtypes are invalid alone.", _unusable),
    Check("Clients that send huge, tiny or opposite updates are judged, and the model stays finite.", _judged),
    Check("Updates of zero and copies are judged.", _zero_updates),
    Check("A single client is enough.", _one_client),
    Check("If no message is usable, the model is kept with an event.", _nothing_usable),
    Check("Mistakes of the caller raise ValueError.", _callers_errors),
    Check("The order of the clients has no influence, and ids may be mixed.", _order),
    Check("The same seed gives the same result.", _repeatable),
    Check("The global random generators are not used.", _no_global_randomness),
    Check("What is passed in is not changed.", _inputs_kept),
    Check("A rule restored between any two rounds continues bit for bit.", _state),
]
"""The checks of a rule; `make` makes a fresh one, with a seed if it takes one."""
