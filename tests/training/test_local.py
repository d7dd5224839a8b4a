"""Local training: batches and plain SGD."""

from __future__ import annotations

import torch

from g2uardfl import tasks
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.training.local import Job, Recipe, batches, train_locally

DIGITS = tasks.create("digits")


def test_batches_contain_every_sample_once_per_epoch():
    found = list(batches(10, 4, epochs=2, steps=0, generator=torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in found] == [4, 4, 2, 4, 4, 2]
    assert sorted(torch.cat(found[:3]).tolist()) == sorted(torch.cat(found[3:]).tolist()) == list(range(10))
    assert torch.cat(found[:3]).tolist() != torch.cat(found[3:]).tolist()


def test_a_number_of_steps_shortens_or_repeats_epochs():
    assert len(list(batches(10, 4, epochs=1, steps=2, generator=torch.Generator()))) == 2
    assert len(list(batches(10, 4, epochs=1, steps=8, generator=torch.Generator()))) == 8


def test_local_training_is_plain_sgd_with_momentum_and_weight_decay():
    weights = fresh_weights(DIGITS, 0)
    samples = DIGITS.train.take(torch.arange(40))
    recipe = Recipe(lr=0.1, batch_size=16, epochs=2, steps=0, momentum=0.9, weight_decay=1e-2)
    trained = train_locally(DIGITS, DIGITS.build_model(), weights, Job(0, samples, recipe, seed=3))

    model = DIGITS.build_model()
    model.load_state_dict(weights)
    velocity = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for batch in batches(40, 16, 2, 0, torch.Generator().manual_seed(3)):
        loss = torch.nn.functional.cross_entropy(model(samples.x[batch].float() / 16), samples.y[batch])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                velocity[name] = 0.9 * velocity[name] + parameter.grad + 1e-2 * parameter
                parameter -= 0.1 * velocity[name]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value)
