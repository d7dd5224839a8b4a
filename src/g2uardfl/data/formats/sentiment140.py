"""The published format of Sentiment-140: a csv file with 1.6 million tweets in Latin-1.

The tweets are stored in the two tables that the task reads: training data (`sentiment140_100k.tsv.gz`, whatever their
number) and test data (`sentiment140_random20k.tsv.gz`). The test data are the tweets whose texts have the smallest
hashes: 20,000 tweets, or a fifth if that is less. The split is therefore random but reproducible, and no text is in
both tables.
"""

from __future__ import annotations

import csv
import hashlib
import io
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...core.errors import DataError
from ..progress import Progress
from ..sources import Source, pick
from ..staging import Staging
from .text import clean

HELD_OUT = 20_000
"""Maximum number of test tweets, as in the reference copy."""
_REPORT_EVERY = 10_000
"""Number of tweets between two reports of progress: often enough for a progress bar."""
_LABELS = {"0": 0, "4": 1}
"""The stored label of each published polarity."""


class Tweet(NamedTuple):
    """A row of the csv file; `label` is 0 (negative) or 1 (positive)."""

    label: int
    date: str
    user: str
    text: str


def read_tweets(source: Source) -> Iterator[Tweet]:
    """The tweets with cleaned text; empty tweets are skipped."""
    with source.open() as stream:
        rows = csv.reader(io.TextIOWrapper(stream, encoding="latin-1", newline=""))
        try:
            for number, row in enumerate(rows, start=1):
                if number == 1 and row and row[0].strip() in ("polarity", "target", "sentiment"):
                    continue
                if len(row) != 6 or row[0] not in _LABELS:
                    raise DataError(
                        f"{source.origin}, row {number}: expected polarity (0 or 4), id, date, query, user, text"
                    )
                text = clean(row[5])
                if text:
                    yield Tweet(_LABELS[row[0]], clean(row[2]), row[4], text)
        except csv.Error as error:
            raise DataError(f"{source.origin}, line {rows.line_num}: {error}") from error


def text_hash(text: str) -> int:
    """A 64-bit hash of the text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def cutoff(hashes: array[int], held_out: int = HELD_OUT) -> int | None:
    """The largest hash in the test data; None if there are fewer than two distinct hashes.

    >>> cutoff(array("Q", [50, 10, 30, 20, 40]))
    10
    >>> cutoff(array("Q", [7, 9, 9, 9, 9, 9, 9, 9, 9, 9]))
    7
    """
    ordered = np.sort(np.frombuffer(hashes, dtype=np.uint64))
    below_the_largest = int(np.searchsorted(ordered, ordered[-1])) if len(ordered) else 0
    count = min(held_out, max(1, len(ordered) // 5), below_the_largest)
    return int(ordered[count - 1]) if count else None


def convert(sources: Sequence[Source], staging: Staging, progress: Progress) -> None:
    """Store the tweets as the two tables of `sentiment140/`; the file is read twice, so it is never held in memory."""
    source = pick(sources, {"tweets": r"^(?!testdata).*\.csv$"}, "sentiment140")["tweets"]
    hashes = array("Q")
    for tweet in read_tweets(source):
        hashes.append(text_hash(tweet.text))
        if len(hashes) % _REPORT_EVERY == 0:
            progress("selecting the test tweets", len(hashes), 0)
    largest_held_out = cutoff(hashes)
    if largest_held_out is None:
        raise DataError(f"{source.origin} has fewer than two distinct tweets")
    users: dict[str, int] = {}
    with (
        staging.open_table("sentiment140/sentiment140_100k.tsv.gz", "label", "text") as write_train,
        staging.open_table(
            "sentiment140/sentiment140_random20k.tsv.gz", "label", "date", "user_id", "in_100k", "text"
        ) as write_test,
    ):
        for done, (hashed, tweet) in enumerate(zip(hashes, read_tweets(source), strict=True)):
            if hashed <= largest_held_out:
                write_test(tweet.label, tweet.date, users.setdefault(tweet.user, len(users)), 0, tweet.text)
            else:
                write_train(tweet.label, tweet.text)
            if done % _REPORT_EVERY == 0:
                progress("storing", done, len(hashes))
