"""Every rule gives the same result on a GPU as on a CPU."""

from __future__ import annotations

import pytest
import torch

from helpers.gpu import MODELS, assert_same_on
from helpers.rules import RULES


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU to compare with")
@pytest.mark.parametrize("rule", RULES)
def test_a_gpu_gives_the_same_models_and_decisions(rule):
    for model in MODELS:
        for clients in (1, 2, 10, 30):
            assert_same_on("cuda", rule, model, clients)
