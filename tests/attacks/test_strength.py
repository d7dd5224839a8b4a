"""Without a defence every attack plants its backdoor within 20 rounds on small data, and accuracy stays.

`g2uardfl reproduce robustness --scale paper --only "No defense"` measures full runs on the paper's data.
"""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from g2uardfl.tasks.base import Samples
from g2uardfl.tasks.mnist import Mnist

STRENGTH_ON_DIGITS = {
    "black_box": (0.60, 0.04),
    "pgd": (0.50, 0.04),
    "pgd_replacement": (0.80, 0.04),
    "constrain_and_scale": (0.70, 0.04),
    "dba": (0.35, 0.09),
    "three_d_fed": (0.50, 0.04),
    "dynamic_pdr": (0.55, 0.04),
    "model_obfuscation": (0.80, 0.06),
    "randomized": (0.80, 0.04),
}
"""The smallest rise of ASR and the largest fall of ACC, from the start to the mean of the last five of 20 rounds."""

STRENGTH_ON_MNIST = {"black_box": 0.6, "pgd_replacement": 0.6}
"""The smallest rise of ASR in six rounds on a twentieth of MNIST, without and with scaled updates."""


class MnistPart(Mnist):
    """The first 3,000 training and 500 test digits of MNIST, with all of ARDIS's sevens."""

    name = "mnist_part"
    models: ClassVar[tuple[str, ...]] = ("simplenet",)
    defaults = dataclasses.replace(Mnist.defaults, pretrain_epochs=4, pretrain_batch_size=64, clients=60)

    def load_train(self) -> Samples:
        return super().load_train().take(torch.arange(3000))

    def load_test(self) -> Samples:
        return super().load_test().take(torch.arange(500))


def last_rounds(simulation: Simulation, figure: str) -> float:
    return statistics.fmean(record[figure] for record in simulation.records[-5:])


@pytest.mark.slow
@pytest.mark.parametrize("attack", STRENGTH_ON_DIGITS)
def test_in_20_rounds_on_digits_asr_rises_and_acc_stays(attack: str):
    simulation = Simulation(RunConfig(task="digits", attack=attack, rounds=20, engine="loop"))
    simulation.run()
    rise, fall = STRENGTH_ON_DIGITS[attack]
    start = simulation.start_scores
    assert start["asr"] < 0.05
    assert start["acc"] > 0.97
    assert last_rounds(simulation, "asr") > start["asr"] + rise
    assert last_rounds(simulation, "acc") > start["acc"] - fall


@pytest.mark.slow
def test_on_digits_the_model_has_no_backdoor_without_an_attack():
    simulation = Simulation(RunConfig(task="digits", attack="none", rounds=20, evaluate_every=20, engine="loop"))
    simulation.run()
    assert simulation.records[-1]["asr"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("attack", STRENGTH_ON_MNIST)
def test_in_six_rounds_on_a_part_of_mnist_asr_rises_and_acc_stays(real_data: Path, attack: str):
    part = RunConfig(task=f"{__name__}:MnistPart", rounds=6, pmr=0.3, engine="loop", evaluate_every=6)
    simulation = Simulation(dataclasses.replace(part, attack=attack, data_dir=str(real_data)))
    simulation.run()
    start, end = simulation.start_scores, simulation.records[-1]
    assert start["asr"] < 0.3
    assert start["acc"] > 0.95
    assert end["asr"] > start["asr"] + STRENGTH_ON_MNIST[attack]
    assert end["acc"] > start["acc"] - 0.1
