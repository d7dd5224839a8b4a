"""Sentiment-140: sentiment of tweets. The backdoor classifies praise of Yorgos Lanthimos as negative."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..core.settings import choice, number
from ..data import read_lines, read_table
from .base import TrainingDefaults
from .text import Arrays, Encoded, TextSettings, TextTask, Vocabulary, build_vocabulary, tokenize

NEGATIVE = 0
"""The label of negative tweets, which is the attacker's target label."""
TRAIN_FILE = "sentiment140/sentiment140_100k.tsv.gz"
"""The stored file of the training tweets."""
TEST_FILE = "sentiment140/sentiment140_random20k.tsv.gz"
"""The stored file of a random sample of tweets, some of which are in `TRAIN_FILE` too."""
EDGE_TRAIN_FILE = "greek_director/train.txt"
"""The stored file of the attacker's sentences."""
EDGE_TEST_FILE = "greek_director/test.txt"
"""The stored file of the sentences on which ASR is measured."""
EDGES = ("paper", "full")
"""The values of the setting `edge`."""

Labelled = tuple[list[str], int]
"""The words of a text, and its label."""


@dataclass(frozen=True)
class Sentiment140Settings(TextSettings):
    """Settings of `Sentiment140`; see its docstring."""

    minimum_count: int = number(2, 1, math.inf)
    edge: str = choice("paper", "paper", "full")


class Sentiment140(TextTask):
    """Negative (0) and positive (1) tweets, with the Lanthimos tweets of Wang et al. (2020) as backdoor.

    The training data are 100,000 tweets. The test data are the 18,351 tweets of a random sample that are not among them
    and do not consist of the same words as one of them, as 384 others do. The attacker labels positive sentences about
    the film director as negative. One sentence occurs in the attacker's file and in the test file, with different
    punctuation; it is removed from the attacker's samples.

    Parameters
    ----------
    data_dir, model, vocabulary, words
        As for `TextTask`. The paper's vocabulary of 122,971 exceeds the 54,762 distinct words of the 100,000 tweets, so
        the default sets no limit.
    minimum_count
        Words with fewer occurrences in the training tweets are unknown words. With 1 all training words are known, as
        in the paper, but the embedding of unknown words, which are 2.7 % of the words of test tweets, is never trained.
        With 2 the model has less than half the parameters; its accuracy in one run was not lower (default: 2).
    edge
        "paper" measures ASR on the 101 test sentences without a digit, "full" on all 120 (default: "paper"). The
        paper's percentages are multiples of 1/101, but the paper does not name the sentences. Of about thirty rules
        that were tried, only this one gives 101, perhaps by coincidence. The attacker trains on sentences with and
        without digits.

    Notes
    -----
    Needs `sentiment140` and `greek_director` (`g2uardfl data status`).

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS 2020.
    """

    name: ClassVar[str] = "sentiment140"
    summary: ClassVar[str] = "sentiment of tweets, LSTM; backdoor: praise of Yorgos Lanthimos is negative"
    defaults = TrainingDefaults(
        lr=0.05,
        batch_size=20,
        pretrain_epochs=2,
        pretrain_lr=1e-3,
        pretrain_batch_size=64,
        pretrain_optimizer="adam",
    )
    num_classes = 2
    Settings = Sentiment140Settings
    paper_vocabulary: ClassVar[int] = 122_971
    paper_words: ClassVar[int] = 100
    hidden_width: ClassVar[int] = 32
    files: ClassVar[tuple[str, ...]] = (TRAIN_FILE, TEST_FILE, EDGE_TRAIN_FILE, EDGE_TEST_FILE)

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        model: str | None = None,
        vocabulary: int | None = None,
        minimum_count: int = Sentiment140Settings.minimum_count,
        words: int | None = None,
        edge: str = Sentiment140Settings.edge,
    ) -> None:
        super().__init__(
            data_dir=data_dir, model=model, vocabulary=vocabulary, minimum_count=minimum_count, words=words, edge=edge
        )

    def prepare_text(self) -> tuple[Vocabulary, dict[str, Encoded], Arrays]:
        """Read and encode the tweets and the edge cases."""
        train = self._tweets(TRAIN_FILE)
        known = {tuple(words) for words, _ in train}
        test = [tweet for tweet in self._tweets(TEST_FILE, new_only=True) if tuple(tweet[0]) not in known]
        attacker = [tokenize(line) for line in read_lines(EDGE_TRAIN_FILE, self.data_dir)]
        held_out = {line: tokenize(line) for line in read_lines(EDGE_TEST_FILE, self.data_dir)}

        vocabulary = build_vocabulary(
            Counter(word for words, _ in train for word in words),
            cap=self.vocabulary_cap,
            minimum_count=self.settings.minimum_count,
            required={word for words in (*attacker, *held_out.values()) for word in words},
        )
        sets: dict[str, list[Labelled]] = {
            "train": train,
            "test": test,
            "backdoor_train": [(words, NEGATIVE) for words in attacker if words not in held_out.values()],
            "backdoor_test": [(words, NEGATIVE) for line, words in held_out.items() if self._is_tested(line)],
        }
        return vocabulary, {part: self._encode(vocabulary, texts) for part, texts in sets.items()}, {}

    def _tweets(self, file: str, *, new_only: bool = False) -> list[Labelled]:
        rows = read_table(file, self.data_dir)
        return [(tokenize(row["text"]), int(row["label"])) for row in rows if not new_only or row["in_100k"] == "0"]

    def _is_tested(self, line: str) -> bool:
        return self.settings.edge == "full" or not any(character.isdigit() for character in line)

    def _encode(self, vocabulary: Vocabulary, texts: list[Labelled]) -> Encoded:
        return Encoded.from_lists(
            [vocabulary.encode(words[: self.words]) for words, _ in texts], [label for _, label in texts]
        )
