"""The server context: what rules require of it, and the errors for what it lacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from g2uardfl.aggregators.context import ServerContext
from g2uardfl.aggregators.fltrust import FLTrust
from g2uardfl.core.errors import ConfigError


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda c: c.output_layer, "output_layer"),
        (lambda c: c.root_update({}, 1), "root_update"),
        (lambda c: c.random_inputs(1, 0), "random_inputs"),
        (lambda c: c.probabilities({}, torch.zeros(1)), "probabilities"),
    ],
)
def test_what_a_context_lacks_is_named_in_one_line(call, what):
    with pytest.raises(ConfigError, match=f"has no {what}: override it") as caught:
        call(ServerContext())
    assert "\n" not in str(caught.value)


def test_a_server_provides_only_what_its_rule_uses():
    class RootOnly(ServerContext):
        def root_update(self, global_weights, round_number):
            return {name: value + 1 for name, value in global_weights.items()}

    rule = FLTrust()
    rule.attach(RootOnly())
    model = {"w": np.zeros(2)}
    np.testing.assert_allclose(rule.aggregate(model, {0: {"w": np.ones(2)}}).weights["w"], [1, 1])
