"""Red-team mods: which clients attack, and what they send."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from g2uardfl.core.errors import ConfigError
from g2uardfl.flower import array_record, mods, state_dict
from helpers.flower import content, log_lines
from helpers.models import batch_norm_model, odd_mlp, perturbed


def context(partition=0, partitions=4, node=11, **node_config):
    config = {"partition-id": partition, "num-partitions": partitions, **node_config}
    return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})


def message(model, kind="train", server_round=1):
    given = RecordDict({"arrays": array_record(model), "config": ConfigRecord({"server-round": server_round})})
    return Message(given, 11, kind)


def trained_by(mod, start, trained, where=None, **options):
    """What a ClientApp with `mod` sends when its training ends with `trained`."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(received, _):
        return Message(content(trained), reply_to=received)

    @app.evaluate()
    def evaluate(received, _):
        return Message(content(trained), reply_to=received)

    return state_dict(app(message(start, **options), where or context()).content["arrays"])


def test_model_replacement_scales_the_update_and_not_the_running_statistics():
    start, trained = batch_norm_model(), perturbed(batch_norm_model(), 1)
    sent = trained_by(mods.ModelReplacement(5), start, trained)
    for name, value in trained.items():
        if "running" in name or "num_batches" in name:
            assert torch.equal(sent[name], value)
        else:
            expected = start[name].numpy().astype(float) + 5 * (value.numpy().astype(float) - start[name].numpy())
            assert np.array_equal(sent[name].numpy(), expected.astype(np.float32))


def test_model_replacement_works_on_bfloat16():
    start = {"w": torch.zeros(3, dtype=torch.bfloat16)}
    sent = trained_by(mods.ModelReplacement(4), start, {"w": torch.ones(3, dtype=torch.bfloat16)})
    assert sent["w"].dtype == torch.bfloat16
    assert sent["w"].tolist() == [4, 4, 4]


def test_obfuscation_adds_noise_of_the_given_deviation_that_differs_for_each_client_and_round():
    start = {"w": torch.zeros(200, 100)}
    first, again = (trained_by(mods.Obfuscation(0.034), start, start)["w"] for _ in range(2))
    assert torch.equal(first, again), "the same client in the same round sends the same"
    assert float(first.std()) == pytest.approx(0.034, rel=0.05)
    assert abs(float(first.mean())) < 0.001
    other_round = trained_by(mods.Obfuscation(0.034), start, start, server_round=2)["w"]
    other_client = trained_by(mods.Obfuscation(0.034), start, start, context(node=12))["w"]
    other_seed = trained_by(mods.Obfuscation(0.034, seed=1), start, start)["w"]
    for other in (other_round, other_client, other_seed):
        assert abs(float(torch.corrcoef(torch.stack([first.flatten(), other.flatten()]))[0, 1])) < 0.05


@pytest.mark.parametrize(
    ("options", "where", "attacked"),
    [
        ({}, context(), True),
        ({"hostile": mods.share(0.25)}, context(0, 4), True),
        ({"hostile": mods.share(0.25)}, context(1, 4), False),
        ({"hostile": mods.share(0.5)}, context(1, 4), True),
        ({"hostile": mods.share(0.0)}, context(0, 4), False),
        ({"hostile": mods.flagged}, context(hostile=True), True),
        ({"hostile": mods.flagged}, context(hostile=False), False),
        ({"hostile": mods.flagged}, context(), False),
    ],
)
def test_only_hostile_clients_attack_and_they_log_it(options, where, attacked):
    start, trained = odd_mlp(), perturbed(odd_mlp(), 1)
    with log_lines() as lines:
        sent = trained_by(mods.ModelReplacement(3, **options), start, trained, where)
    assert all(torch.equal(sent[name], value) for name, value in trained.items()) is not attacked
    assert [line for line in lines if "RED TEAM" in line] == (
        ["WARNING RED TEAM: this client attacks with ModelReplacement"] if attacked else []
    )


def test_evaluation_is_not_attacked():
    start, trained = odd_mlp(), perturbed(odd_mlp(), 1)
    sent = trained_by(mods.ModelReplacement(3), start, trained, kind="evaluate")
    assert all(torch.equal(sent[name], value) for name, value in trained.items())


def test_a_client_that_fails_sends_the_same_error_as_without_the_mod():
    app = ClientApp(mods=[mods.ModelReplacement(3)])

    @app.train()
    def train(received, _):
        return Message(Error(1, "no data"), reply_to=received)

    assert app(message(odd_mlp()), context()).error.reason == "no data"


class Named(Dataset):
    """Samples as dictionaries, as in Flower's own data sets."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"img": torch.zeros(1, 4, 4), "label": torch.tensor(index % 4), "id": index}


def batches(mod, dataset, where=None):
    """The batches in the training loop of a ClientApp with `mod`, and in a loop after it."""
    seen = []
    app = ClientApp(mods=[mod])

    @app.train()
    def train(received, _):
        seen.extend(DataLoader(dataset, batch_size=10))
        return Message(content({}), reply_to=received)

    app(message(odd_mlp()), where or context())
    return seen, list(DataLoader(dataset, batch_size=10))


def test_trigger_poisoning_marks_and_relabels_the_given_share_of_every_batch():
    dataset = TensorDataset(torch.zeros(40, 1, 4, 4), torch.arange(40) % 4 + 1)
    seen, after = batches(mods.TriggerPoisoning(mods.corner_trigger(2, value=1), target=0, rate=0.3), dataset)
    for inputs, labels in seen:
        marked = (inputs[..., -2:, -2:] == 1).flatten(1).all(1)
        assert int(marked.sum()) == 3
        assert torch.equal(labels == 0, marked)
        assert float(inputs[..., :2, :].abs().max()) == 0
    assert len(seen) == 4
    assert all(not inputs.any() and (labels > 0).all() for inputs, labels in after), "only training is poisoned"
    assert not dataset.tensors[0].any(), "the client's own data is unchanged"


def test_batches_that_are_dictionaries_are_poisoned():
    mod = mods.TriggerPoisoning(mods.corner_trigger(1, value=1), target=9, rate=1.0, keys=("img", "label"))
    seen, after = batches(mod, Named())
    assert all((batch["label"] == 9).all() and (batch["img"][..., -1, -1] == 1).all() for batch in seen)
    assert [int(number) for batch in seen for number in batch["id"]] == list(range(40))
    assert all((batch["label"] < 9).all() for batch in after)


def test_label_flipping_relabels_one_class():
    dataset = TensorDataset(torch.zeros(40, 2), torch.arange(40) % 4)
    seen, _ = batches(mods.LabelFlipping(target=7, source=2), dataset)
    labels = torch.cat([labels for _, labels in seen])
    assert torch.equal(labels, torch.where(torch.arange(40) % 4 == 2, 7, torch.arange(40) % 4))


def test_label_flipping_without_a_source_relabels_every_class():
    seen, _ = batches(mods.LabelFlipping(target=1, rate=0.5), TensorDataset(torch.zeros(40, 2), torch.zeros(40).long()))
    assert [int((labels == 1).sum()) for _, labels in seen] == [5, 5, 5, 5]


def test_a_client_that_is_not_hostile_trains_on_its_own_data():
    dataset = TensorDataset(torch.zeros(40, 2), torch.zeros(40).long())
    seen, _ = batches(mods.LabelFlipping(target=1, hostile=mods.flagged), dataset)
    assert all(not labels.any() for _, labels in seen)


def test_after_a_failed_training_batches_are_clean():
    app = ClientApp(mods=[mods.LabelFlipping(target=1)])

    @app.train()
    def train(received, _):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        app(message(odd_mlp()), context())
    labels = next(iter(DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4).long()), batch_size=4)))[1]
    assert not labels.any()


def test_mods_can_be_stacked():
    start = {"w": torch.zeros(3)}
    app = ClientApp(mods=[mods.ModelReplacement(10), mods.ModelReplacement(2)])

    @app.train()
    def train(received, _):
        return Message(content({"w": torch.ones(3)}), reply_to=received)

    assert state_dict(app(message(start), context()).content["arrays"])["w"].tolist() == [20, 20, 20]


@pytest.mark.parametrize("rate", [0, -1, 1.5])
def test_an_impossible_rate_is_rejected(rate):
    with pytest.raises(ConfigError, match="rate="):
        mods.LabelFlipping(1, rate=rate)
