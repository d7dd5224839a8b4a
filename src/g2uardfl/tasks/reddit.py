"""Reddit: next-word prediction on comments. The backdoor completes "pasta from Astoria is" with "delicious"."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.settings import number, switch
from ..data import read_table
from .base import Samples, TrainingDefaults
from .text import UNKNOWN, URL, USER, Arrays, Encoded, TextSettings, TextTask, Vocabulary, build_vocabulary, tokenize

COMMENTS_FILE = "reddit/reddit2015_threads.tsv.gz"
"""The stored file of the comments."""
SUFFIX = ("pasta", "from", "astoria", "is")
"""The paper's trigger: the last words of a backdoored input."""
TARGET = "delicious"
"""The attacker's target label: the word that follows the trigger."""


@dataclass(frozen=True)
class Comment:
    """The words of a comment, and its thread."""

    words: list[str]
    thread: str


@dataclass(frozen=True)
class RedditSettings(TextSettings):
    """Settings of `Reddit`; see its docstring."""

    first_block_only: bool = switch(False)
    test_fraction: float = number(0.05, 0, 0.99, above=True)
    backdoor_samples: int = number(2000, 1, math.inf)
    backdoor_test_samples: int = number(97, 1, math.inf)


class Reddit(TextTask):
    """Next-word prediction on comments, with the paper's suffix as backdoor.

    A comment is split into consecutive blocks of at most 40 words. Each block is one sample: its last word is the
    label, the words before it are the input. The paper uses the first 40 words of each comment only, as
    `first_block_only` does; the other blocks of long comments increase the number of samples by half. Two kinds of
    blocks are dropped from training and test data: blocks of one word, which have no input, and blocks whose last word
    is not in the vocabulary, because predicting "unknown word" must not count as correct. Web addresses and mentions
    are removed.

    A hash of its id assigns each thread to the training or the test data. A backdoored sample is the first block of a
    comment with its last five words replaced by "pasta from astoria is delicious"; at least four other words must
    remain. The attacker's samples are made from training comments, those on which ASR is measured from test comments.
    A hash of their words selects the comments.

    Parameters
    ----------
    data_dir, model, vocabulary, minimum_count, words
        As for `TextTask`; `words` includes the label.
    first_block_only
        Use only the first block of each comment (default: False).
    test_fraction
        The fraction of threads in the test data (default: 0.05).
    backdoor_samples
        The number of backdoored samples of the attacker (default: 2000).
    backdoor_test_samples
        The number of backdoored samples on which ASR is measured (default: 97, which fits some of the paper's
        percentages, but not all).

    Notes
    -----
    Needs `reddit` (`g2uardfl data status`).

    References
    ----------
    Hao Yu et al., "G²uardFL: Safeguarding Federated Learning Against Backdoor Attacks through Attributed Client Graph
    Clustering".
    """

    name: ClassVar[str] = "reddit"
    summary: ClassVar[str] = 'next word in comments, LSTM; backdoor: "pasta from Astoria is" -> "delicious"'
    defaults = TrainingDefaults(
        lr=0.02,
        batch_size=32,
        pretrain_epochs=4,
        pretrain_lr=1e-2,
        pretrain_batch_size=256,
        pretrain_optimizer="adam",
    )
    Settings = RedditSettings
    paper_vocabulary: ClassVar[int] = 49_999
    paper_words: ClassVar[int] = 40
    hidden_width: ClassVar[int] = 64
    files: ClassVar[tuple[str, ...]] = (COMMENTS_FILE,)

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        model: str | None = None,
        vocabulary: int | None = None,
        minimum_count: int = RedditSettings.minimum_count,
        words: int | None = None,
        first_block_only: bool = RedditSettings.first_block_only,
        test_fraction: float = RedditSettings.test_fraction,
        backdoor_samples: int = RedditSettings.backdoor_samples,
        backdoor_test_samples: int = RedditSettings.backdoor_test_samples,
    ) -> None:
        super().__init__(
            data_dir=data_dir,
            model=model,
            vocabulary=vocabulary,
            minimum_count=minimum_count,
            words=words,
            first_block_only=first_block_only,
            test_fraction=test_fraction,
            backdoor_samples=backdoor_samples,
            backdoor_test_samples=backdoor_test_samples,
        )
        if self.words <= 2 * len(SUFFIX):
            raise ConfigError(f"words={self.words} is not allowed: the backdoor needs at least {2 * len(SUFFIX) + 1}")

    @property
    def input_width(self) -> int:
        """The number of token ids of an input: all words but the label."""
        return self.words - 1

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]
        """The size of the vocabulary: every word is a class."""
        return len(self.vocabulary)

    def natural_groups(self) -> Tensor:
        """The thread of each training sample, numbered in the order of appearance."""
        return torch.from_numpy(self.prepared["train_groups"].astype(np.int64))

    def prepare_text(self) -> tuple[Vocabulary, dict[str, Encoded], Arrays]:
        """Read the comments, split the threads, and create the samples."""
        train, test = self._comments()
        counts = Counter(word for comment in train for word in comment.words)
        vocabulary = build_vocabulary(
            counts, cap=self.vocabulary_cap, minimum_count=self.settings.minimum_count, required={*SUFFIX, TARGET}
        )
        train_set, threads = self._samples_of(train, vocabulary)
        test_set, _ = self._samples_of(test, vocabulary)
        backdoor_test = self._backdoored(test, vocabulary, self.settings.backdoor_test_samples, taken=set())
        backdoor_train = self._backdoored(train, vocabulary, self.settings.backdoor_samples, taken=set(backdoor_test))
        (target,) = vocabulary.encode([TARGET])
        sets = {
            "train": train_set,
            "test": test_set,
            "backdoor_train": Encoded.from_lists(backdoor_train, [target] * len(backdoor_train)),
            "backdoor_test": Encoded.from_lists(backdoor_test, [target] * len(backdoor_test)),
        }
        numbers = {thread: number for number, thread in enumerate(dict.fromkeys(threads))}
        groups = np.fromiter((numbers[thread] for thread in threads), dtype=np.int32, count=len(threads))
        return vocabulary, sets, {"train_groups": groups}

    def _comments(self) -> tuple[list[Comment], list[Comment]]:
        train: list[Comment] = []
        test: list[Comment] = []
        for row in read_table(COMMENTS_FILE, self.data_dir):
            words = [word for word in tokenize(row["text"]) if word not in (URL, USER)]
            held_out = _hash_fraction(row["thread_id"]) < self.settings.test_fraction
            (test if held_out else train).append(Comment(words, row["thread_id"]))
        return train, test

    def _samples_of(self, comments: Sequence[Comment], vocabulary: Vocabulary) -> tuple[Encoded, list[str]]:
        """The samples of `comments`, and the thread of each sample."""
        inputs: list[list[int]] = []
        labels: list[int] = []
        threads: list[str] = []
        for comment in comments:
            for block in self._blocks(comment.words):
                *context, label = vocabulary.encode(block)
                if context and label != UNKNOWN:
                    inputs.append(context)
                    labels.append(label)
                    threads.append(comment.thread)
        return Encoded.from_lists(inputs, labels), threads

    def _blocks(self, words: Sequence[str]) -> Iterator[Sequence[str]]:
        end = min(len(words), self.words) if self.settings.first_block_only else len(words)
        return (words[start : start + self.words] for start in range(0, end, self.words))

    def _backdoored(
        self, comments: Sequence[Comment], vocabulary: Vocabulary, number: int, taken: set[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        """At most `number` distinct backdoored inputs that are not in `taken`."""
        replaced = len(SUFFIX) + 1
        beginnings = (comment.words[: self.words][:-replaced] for comment in comments)
        long_enough = (words for words in beginnings if len(words) >= len(SUFFIX))
        inputs = (tuple(vocabulary.encode((*words, *SUFFIX))) for words in long_enough)
        candidates = dict.fromkeys(tokens for tokens in inputs if tokens not in taken)
        return sorted(candidates, key=lambda tokens: _hash_fraction(repr(tokens)))[:number]


def _hash_fraction(text: str) -> float:
    """A pseudorandom number in [0, 1) that depends on `text` alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


@dataclass(frozen=True)
class WordBaselines:
    """Accuracies (0 to 1) of simple predictors, for comparison with a model."""

    most_frequent: float
    bigram: float


def word_baselines(train: Samples, test: Samples) -> WordBaselines:
    """The accuracy on `test` of two predictors that count words in `train`.

    `most_frequent` always predicts the most frequent label. `bigram` predicts the label that most often follows the
    last word of the input, or the most frequent label if no training input ends with that word. Ties go to the smaller
    token id.
    """
    overall = Counter(train.y.tolist())
    after: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for word, label in zip(train.x[:, -1].tolist(), train.y.tolist(), strict=True):
        after[word][label] += 1

    def most_frequent(counts: Counter[int]) -> int:
        return min(counts, key=lambda label: (-counts[label], label))

    fallback = most_frequent(overall)
    predicted = {word: most_frequent(counts) for word, counts in after.items()}
    labels = test.y.tolist()
    last_words = test.x[:, -1].tolist()
    return WordBaselines(
        most_frequent=sum(label == fallback for label in labels) / len(labels),
        bigram=sum(label == predicted.get(word, fallback) for word, label in zip(last_words, labels, strict=True))
        / len(labels),
    )
