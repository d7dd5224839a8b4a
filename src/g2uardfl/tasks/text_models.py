"""The recurrent model of the paper's two text tasks (appendix "Dataset")."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EMBEDDING_DEVIATION = 0.1
"""Spread of the embedding's first values. Rows of words that the training text never shows (a backdoor's names) keep
them for good: at torch's default of 1 such a word outweighs the sentence around it, and what the clean model says about
backdoored sentences is decided by the seed."""


class LSTMClassifier(nn.Module):
    """Embedding, stacked LSTM layers, and one linear layer on the layers' last hidden states side by side.

    The paper's linear layers are twice as wide as its LSTM layers (64 on 2 x 32, 128 on 2 x 64): the last hidden
    states of both layers are concatenated. The outputs are logits, one a class. Where the paper writes a Sigmoid over
    its two outputs, the softmax of the cross-entropy takes its place: of two logits it is the sigmoid of their
    difference.

    Parameters
    ----------
    vocabulary_size
        Rows of the embedding (V); row 0 is the padding and stays zero.
    embedding_width
        Columns of the embedding.
    hidden_width
        Width of each LSTM layer.
    num_classes
        Number of outputs.
    layers
        Number of LSTM layers.
    fused
        Use torch's fused LSTM (fast, the default). `torch.func.vmap` has no rule for it; with `fused = False` the same
        parameters go through an explicit loop over words that vmap can map. It may be switched at any time.
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        embedding_width: int,
        hidden_width: int,
        num_classes: int,
        layers: int = 2,
        fused: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_width, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.mul_(EMBEDDING_DEVIATION)
        self.lstm = nn.LSTM(embedding_width, hidden_width, num_layers=layers, batch_first=True)
        self.output = nn.Linear(layers * hidden_width, num_classes)
        self.fused = fused

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits (samples x classes) of a batch of token ids (samples x words)."""
        embedded = self.embedding(tokens)
        last = self._fused_states(embedded) if self.fused else self._explicit_states(embedded)
        logits: Tensor = self.output(last)
        return logits

    def _fused_states(self, embedded: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(embedded)
        return torch.cat(list(hidden), dim=-1)

    def _explicit_states(self, embedded: Tensor) -> Tensor:
        """What `_fused_states` gives, by the LSTM's equations one word at a time."""
        inputs, last_states = embedded, []
        for layer in range(self.lstm.num_layers):
            from_input: Tensor = getattr(self.lstm, f"weight_ih_l{layer}")
            from_hidden: Tensor = getattr(self.lstm, f"weight_hh_l{layer}")
            bias: Tensor = getattr(self.lstm, f"bias_ih_l{layer}") + getattr(self.lstm, f"bias_hh_l{layer}")
            projected = inputs @ from_input.T + bias
            hidden = cell = projected.new_zeros(len(projected), self.lstm.hidden_size)
            states = []
            for word in projected.unbind(1):
                i, f, g, o = (word + hidden @ from_hidden.T).chunk(4, dim=-1)
                cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                hidden = o.sigmoid() * cell.tanh()
                states.append(hidden)
            inputs = torch.stack(states, dim=1)
            last_states.append(hidden)
        return torch.cat(last_states, dim=-1)
