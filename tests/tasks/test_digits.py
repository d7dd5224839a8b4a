"""The digits task: split, backdoor and model."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from g2uardfl import tasks

DIGITS = tasks.create("digits")


def test_images_and_labels_are_those_of_scikit_learn_and_every_fifth_is_a_test_image():
    images, labels = load_digits().images, load_digits().target
    is_test = torch.arange(1797) % 5 == 0
    for part, chosen in ((DIGITS.train, ~is_test), (DIGITS.test, is_test)):
        assert torch.equal(part.x[:, 0], torch.from_numpy(images).byte()[chosen])
        assert torch.equal(part.y, torch.from_numpy(labels)[chosen])


def test_no_training_image_is_a_test_image():
    assert (len(DIGITS.train), len(DIGITS.test)) == (1437, 360)
    train, test = ({image.numpy().tobytes() for image in part.x} for part in (DIGITS.train, DIGITS.test))
    assert not train & test


def test_backdoored_images_differ_in_a_white_corner_and_are_labelled_zero():
    for backdoored, clean in ((DIGITS.backdoor_train, DIGITS.train), (DIGITS.backdoor_test, DIGITS.test)):
        others = clean.x[clean.y != 0]
        assert len(backdoored) == len(others)
        assert (backdoored.y == 0).all()
        changed = backdoored.x != others
        assert not changed[:, :, :6, :].any()
        assert not changed[:, :, :, :6].any()
        assert (backdoored.x[:, :, 6:, 6:] == 16).all()


def test_the_model_has_the_documented_number_of_parameters():
    assert sum(parameter.numel() for parameter in DIGITS.build_model().parameters()) == 38_282
