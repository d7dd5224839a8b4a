"""The LSTM of the text tasks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from g2uardfl.tasks import text
from g2uardfl.tasks.reddit import Reddit
from g2uardfl.tasks.sentiment140 import Sentiment140
from g2uardfl.tasks.text import PAD
from g2uardfl.tasks.text_models import LSTMClassifier


def tiny_model() -> LSTMClassifier:
    torch.manual_seed(0)
    return LSTMClassifier(11, embedding_width=5, hidden_width=4, num_classes=3)


def tiny_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 11, (6, 7), generator=generator)
    tokens[:3, :4] = PAD
    return tokens, torch.tensor([0, 1, 2, 0, 1, 2])


def test_the_explicit_lstm_has_the_outputs_of_the_fused_one() -> None:
    model, (tokens, _) = tiny_model(), tiny_batch()
    fused = model(tokens)
    model.fused = False
    torch.testing.assert_close(model(tokens), fused, rtol=0, atol=1e-5)


def test_the_explicit_lstm_has_the_gradients_of_the_fused_one() -> None:
    model, (tokens, labels) = tiny_model(), tiny_batch()
    gradients = []
    for fused in (True, False):
        model.fused = fused
        loss = nn.functional.cross_entropy(model(tokens), labels)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for fused_gradient, explicit_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(explicit_gradient, fused_gradient, rtol=0, atol=1e-5)


def test_vmap_computes_the_gradients_of_the_explicit_lstm() -> None:
    model, (tokens, labels) = tiny_model(), tiny_batch()
    model.fused = False
    names = [name for name, _ in model.named_parameters()]
    clients = [tiny_model().state_dict() for _ in range(2)]
    clients[1] = {name: value + 0.1 for name, value in clients[1].items()}
    stacked = {name: torch.stack([client[name] for client in clients]) for name in names}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    mapped = torch.func.vmap(torch.func.grad(loss))(stacked, tokens.view(2, 3, 7), labels.view(2, 3))
    for index, client in enumerate(clients):
        alone = torch.func.grad(loss)(client, tokens.view(2, 3, 7)[index], labels.view(2, 3)[index])
        for name in names:
            torch.testing.assert_close(mapped[name][index], alone[name], rtol=0, atol=1e-5)


def test_the_output_layer_uses_the_last_hidden_states_of_both_layers() -> None:
    model, (tokens, _) = tiny_model(), tiny_batch()
    first, second = nn.LSTM(5, 4, batch_first=True), nn.LSTM(4, 4, batch_first=True)
    for layer, lstm in enumerate((first, second)):
        lstm.load_state_dict(
            {name: model.lstm.state_dict()[name.replace("_l0", f"_l{layer}")] for name in lstm.state_dict()}
        )
    lower, _ = first(model.embedding(tokens))
    upper, _ = second(lower)
    expected = torch.cat([lower[:, -1], upper[:, -1]], dim=1) @ model.output.weight.T + model.output.bias
    torch.testing.assert_close(model(tokens), expected)


def test_the_embedding_of_padding_is_zero_and_not_trained() -> None:
    model, (tokens, labels) = tiny_model(), tiny_batch()
    nn.functional.cross_entropy(model(tokens), labels).backward()
    assert model.embedding.weight.grad is not None
    assert not model.embedding.weight[PAD].any()
    assert not model.embedding.weight.grad[PAD].any()


@pytest.mark.parametrize(
    ("task", "vocabulary_size", "hidden", "classes"),
    [(Sentiment140, 122_971, 32, 2), (Reddit, 49_999, 64, 49_999)],
)
def test_the_layers_have_the_sizes_of_the_paper(
    task: type[text.TextTask], vocabulary_size: int, hidden: int, classes: int
) -> None:
    assert task.paper_vocabulary == vocabulary_size
    with torch.device("meta"):
        model = LSTMClassifier(
            task.paper_vocabulary,
            embedding_width=task.embedding_width,
            hidden_width=task.hidden_width,
            num_classes=classes,
        )
    size = {name: sum(parameter.numel() for parameter in part.parameters()) for name, part in model.named_children()}
    assert size == {
        "embedding": vocabulary_size * 50,
        "lstm": 4 * hidden * (50 + hidden + 2) + 4 * hidden * (hidden + hidden + 2),
        "output": 2 * hidden * classes + classes,
    }
    assert tuple(model.output.weight.shape) == (classes, 2 * hidden)
