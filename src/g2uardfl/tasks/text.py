"""Code of both text tasks: tokenisation, vocabulary, encoding, and the cache of encoded text.

Reading and encoding a corpus takes up to half a minute. The token ids are therefore cached, under a hash of everything
they depend on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import sys
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.cache import cache_dir
from ..core.errors import ConfigError, DataError
from ..core.files import atomic_write
from ..core.settings import number, optional_number
from ..data import locate
from ..data.checking import file_sha256
from .base import Samples, Task
from .text_models import LSTMClassifier

logger = logging.getLogger(__name__)

PAD, UNKNOWN = 0, 1
"""The token ids of padding and of words that are not in the vocabulary."""
SPECIAL_WORDS = ("<pad>", "<unk>")
"""The vocabulary's entries for `PAD` and `UNKNOWN`."""
URL, USER = "<url>", "<user>"
"""The tokens that replace web addresses and @mentions."""

PREPARED_FORMAT = 2
"""Version of the cached arrays; increase it when tokens, samples or arrays change, so that old files are not used."""

Arrays = dict[str, NDArray[np.generic]]
"""Arrays by name."""

_TOKEN = re.compile(
    r"""
    (?P<url>   https?://\S+ | www\.\S+ )
  | (?P<user>  @\w+ )
  | (?P<word>  [^\W_]+ (?: ' [^\W_]+ )* )
    """,
    re.VERBOSE,
)
"""A web address, an @mention, or a word."""


def tokenize(text: str) -> list[str]:
    """The words of `text`: lower-case sequences of letters, digits and inner apostrophes.

    Web addresses become `<url>` and @mentions become `<user>`, because names do not generalise to other tweets.
    Punctuation is dropped. The result never contains `<pad>` or `<unk>`.

    >>> tokenize("@Anna I can't open https://example.org/x?y=1 ... 2nd try!")
    ['<user>', 'i', "can't", 'open', '<url>', '2nd', 'try']
    """
    matches = _TOKEN.finditer(text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    return [sys.intern(match[0]) if match.lastgroup == "word" else f"<{match.lastgroup}>" for match in matches]


class Vocabulary:
    """Words and their token ids: the id of a word is its index in `words`."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._ids = {word: token for token, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def encode(self, words: Iterable[str]) -> list[int]:
        """The token ids of `words`; `UNKNOWN` for words that are not in the vocabulary."""
        ids = self._ids
        return [ids.get(word, UNKNOWN) for word in words]

    def decode(self, tokens: Iterable[int]) -> str:
        """The words of token ids, without padding."""
        return " ".join(self.words[token] for token in tokens if token != PAD)


def build_vocabulary(
    counts: Mapping[str, int], *, cap: int, minimum_count: int = 1, required: Collection[str] = ()
) -> Vocabulary:
    """The most frequent words, in descending order of frequency; ties are in alphabetical order.

    Parameters
    ----------
    counts
        The number of occurrences of each word in the training text.
    cap
        The maximum size of the vocabulary, including special words: the rows V of the embedding.
    minimum_count
        Words with fewer occurrences are excluded (default: 1).
    required
        Words that are included whatever their count, those of the backdoor (default: none).

    Examples
    --------
    >>> build_vocabulary({"a": 3, "b": 1, "c": 3, "d": 2}, cap=5, required=["b"]).words
    ('<pad>', '<unk>', 'a', 'c', 'b')
    """
    needed = set(required)
    room = cap - len(SPECIAL_WORDS) - len(needed)
    if room < 0:
        raise ConfigError(f"vocabulary={cap} is too small for the backdoor's words: set it to {cap - room} or more")

    def rank(word: str) -> tuple[int, str]:
        return -counts.get(word, 0), word

    frequent = (word for word, count in counts.items() if count >= minimum_count and word not in needed)
    kept = sorted(frequent, key=rank)[:room]
    return Vocabulary((*SPECIAL_WORDS, *sorted((*kept, *needed), key=rank)))


@dataclass(frozen=True)
class Encoded:
    """Token sequences of different lengths, concatenated into one array, and their labels."""

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    labels: NDArray[np.int64]

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]], labels: Sequence[int]) -> Encoded:
        """Concatenate lists of token ids."""
        return cls(
            tokens=np.fromiter((token for sequence in sequences for token in sequence), dtype=np.int32),
            lengths=np.fromiter((len(sequence) for sequence in sequences), dtype=np.int32, count=len(sequences)),
            labels=np.asarray(labels, dtype=np.int64),
        )

    def pad_left(self, width: int) -> Samples:
        """The sequences as rows of length `width`, padded on the left so that a recurrent model ends with a word.

        No sequence may be longer than `width`.
        """
        columns = np.arange(width) >= (width - self.lengths[:, None])
        table = np.full((len(self.lengths), width), PAD, dtype=np.int32)
        table[columns] = self.tokens
        return Samples(torch.from_numpy(table), torch.from_numpy(self.labels))


def cached_arrays(path: Path, build: Callable[[], Arrays], needed: Collection[str] = ()) -> Arrays:
    """The arrays cached at `path`, or else the result of `build`, which is then cached.

    A file that cannot be read or lacks one of the `needed` arrays is built again. If the folder cannot be written, the
    arrays are returned without being cached.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            if set(needed) <= set(stored.files):
                return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        logger.info("%s cannot be read (%s) and is built again", path, error)
    arrays = build()
    try:
        _write_arrays(path, arrays)
    except OSError as error:
        logger.info("encoded text cannot be cached: %s", error)
    return arrays


def _write_arrays(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TextSettings:
    """Settings of all text tasks; see the docstring of `TextTask`."""

    vocabulary: int | None = optional_number(1, math.inf, integer=True)
    minimum_count: int = number(1, 1, math.inf)
    words: int | None = optional_number(2, math.inf, integer=True)


class TextTask(Task):
    """A task on text with a vocabulary, a cache and an LSTM; subclasses implement `prepare_text`.

    Parameters
    ----------
    data_dir, model
        As for every task.
    vocabulary
        The maximum size of the vocabulary, including `<pad>` and `<unk>`; None means the paper's V (default: None).
    minimum_count
        Words with fewer occurrences in the training text are unknown words (default: 1).
    words
        The number of words of a text that are used; None means the paper's number (default: None).
    **further
        The settings of the subclass.
    """

    models: ClassVar[tuple[str, ...]] = ("lstm",)
    Settings = TextSettings
    paper_vocabulary: ClassVar[int]
    paper_words: ClassVar[int]
    hidden_width: ClassVar[int]
    embedding_width: ClassVar[int] = 50
    files: ClassVar[tuple[str, ...]]
    """The stored files from which the samples are made."""

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        model: str | None = None,
        vocabulary: int | None = None,
        minimum_count: int = TextSettings.minimum_count,
        words: int | None = None,
        **further: Any,
    ) -> None:
        settings = {"vocabulary": vocabulary, "minimum_count": minimum_count, "words": words, **further}
        super().__init__(data_dir=data_dir, model=model, **settings)
        self.vocabulary_cap = self.paper_vocabulary if vocabulary is None else vocabulary
        self.words = self.paper_words if words is None else words

    def configuration(self) -> dict[str, Any]:
        """The settings, with the paper's numbers where none are given; they determine the samples."""
        return {**super().configuration(), "vocabulary": self.vocabulary_cap, "words": self.words}

    @abstractmethod
    def prepare_text(self) -> tuple[Vocabulary, dict[str, Encoded], Arrays]:
        """Read the files; return the vocabulary, the sets of samples by name, and further arrays to cache.

        The sets are `train`, `test`, `backdoor_train` and `backdoor_test`.
        """

    @property
    def input_width(self) -> int:
        """The number of token ids of an input."""
        return self.words

    @cached_property
    def prepared(self) -> Arrays:
        """The arrays of the samples and the vocabulary, from the cache if possible."""
        path = cache_dir() / "prepared" / f"{self.name}-{self._cache_key()}.npz"
        return cached_arrays(path, self._prepare_arrays, ["vocabulary", *_names("backdoor_test")])

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of the rows of the embedding."""
        return Vocabulary(self.prepared["vocabulary"].tobytes().decode().split("\n"))

    def build_model(self) -> nn.Module:
        """The paper's LSTM for this vocabulary."""
        return LSTMClassifier(
            len(self.vocabulary),
            embedding_width=self.embedding_width,
            hidden_width=self.hidden_width,
            num_classes=self.num_classes,
        )

    def prepare(self, x: Tensor) -> Tensor:
        """Token ids as 64-bit integers, which the embedding needs; they are stored with 32 bits."""
        return x.long()

    def load_train(self) -> Samples:
        """The training samples."""
        return self._samples("train")

    def load_test(self) -> Samples:
        """The test samples."""
        return self._samples("test")

    def load_backdoor_train(self) -> Samples:
        """The attacker's samples."""
        return self._samples("backdoor_train")

    def load_backdoor_test(self) -> Samples:
        """The samples on which ASR is measured."""
        return self._samples("backdoor_test")

    def _samples(self, part: str) -> Samples:
        tokens, lengths, labels = (self.prepared[name] for name in _names(part))
        if not len(labels):
            raise DataError(f"task {self.name}: {', '.join(self.files)} contain no samples for {part}")
        encoded = Encoded(tokens.astype(np.int32), lengths.astype(np.int32), labels.astype(np.int64))
        return encoded.pad_left(self.input_width)

    def _cache_key(self) -> str:
        digests = {file: file_sha256(locate(file, self.data_dir)) for file in self.files}
        everything = json.dumps([PREPARED_FORMAT, self.name, self.configuration(), digests], sort_keys=True)
        return hashlib.sha256(everything.encode()).hexdigest()[:24]

    def _prepare_arrays(self) -> Arrays:
        vocabulary, sets, arrays = self.prepare_text()
        arrays["vocabulary"] = np.frombuffer("\n".join(vocabulary.words).encode(), dtype=np.uint8)
        for part, encoded in sets.items():
            arrays |= dict(zip(_names(part), (encoded.tokens, encoded.lengths, encoded.labels), strict=True))
        return arrays


def _names(part: str) -> list[str]:
    """The names of the cached arrays of one set of samples."""
    return [f"{part}_{field}" for field in ("tokens", "lengths", "labels")]
