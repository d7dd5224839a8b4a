"""The recurrent model of the paper's text tasks (appendix "Dataset")."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EMBEDDING_DEVIATION = 0.1
"""Standard deviation of the embedding's initial values; torch's default is 1. Words that never occur in the training
text, such as the names in the backdoor, keep their initial values. With a deviation of 1 such a word outweighs the rest
of the sentence, and the clean model's predictions for backdoored sentences depend on the seed."""


class LSTMClassifier(nn.Module):
    """Embedding, stacked LSTM layers, and a linear layer on the concatenated last hidden states of all LSTM layers.

    The paper's linear layers have twice as many inputs as its LSTM layers have units (64 for 2 x 32, 128 for 2 x 64),
    so the last hidden states of both layers are concatenated. The outputs are logits, one per class. The softmax in the
    cross-entropy replaces the paper's sigmoid over two outputs: the softmax of two logits is the sigmoid of their
    difference.

    Parameters
    ----------
    vocabulary_size
        The number of rows of the embedding (V); row 0 is the padding and stays zero.
    embedding_width
        The number of columns of the embedding.
    hidden_width
        The number of units of each LSTM layer.
    num_classes
        The number of outputs.
    layers
        The number of LSTM layers (default: 2).
    fused
        Use torch's fused LSTM, which is fast but not supported by `torch.func.vmap`. With False, the same parameters
        are used in an explicit loop over words, which vmap supports. The attribute may be changed at any time
        (default: True).
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
        """The result of `_fused_states`, computed from the equations of the LSTM one word at a time."""
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
