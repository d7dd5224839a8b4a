"""The published formats of Reddit comments: JSON lines, or plain text with one comment per line.

In JSON lines (`body`, `subreddit`, `link_id`, `created_utc`), all comments on a submission are a thread. In plain text,
each file is a thread. To use authors or conversations as natural groups, pass one file for each.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from ...core.errors import DataError
from ..progress import Progress
from ..sources import Source
from ..staging import Staging
from .text import clean

_REPORT_EVERY = 10_000
"""Number of comments between two reports of progress: often enough for a progress bar."""
_WITHDRAWN = frozenset({"[deleted]", "[removed]"})
"""The texts with which Reddit replaces withdrawn comments."""


class Comment(NamedTuple):
    """A comment; `thread` is the dump's id of its thread."""

    subreddit: str
    date: str
    thread: str
    text: str


def read_comments(source: Source) -> Iterator[Comment]:
    """The comments with cleaned text; deleted and empty comments are skipped."""
    with source.open() as stream:
        try:
            is_json = None
            for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8", newline="\n"), start=1):
                if not line.strip():
                    continue
                if is_json is None:
                    is_json = _looks_like_json(line)
                comment = _from_json(line, source, number) if is_json else Comment("", "", source.origin, clean(line))
                if comment.text and comment.text not in _WITHDRAWN:
                    yield comment
        except UnicodeDecodeError as error:
            raise DataError(f"{source.origin} is not UTF-8: expected JSON lines or one comment per line") from error


def convert(sources: Sequence[Source], staging: Staging, progress: Progress) -> None:
    """Store the comments of all `sources`, in order, as `reddit/reddit2015_threads.tsv.gz`."""
    threads: dict[str, int] = {}
    written = 0
    columns = ("subreddit", "date", "thread_id", "text")
    with staging.open_table("reddit/reddit2015_threads.tsv.gz", *columns) as write_row:
        for source in sources:
            for comment in read_comments(source):
                thread_id = threads.setdefault(comment.thread, len(threads))
                write_row(comment.subreddit, comment.date, thread_id, comment.text)
                written += 1
                if written % _REPORT_EVERY == 0:
                    progress("storing", written, 0)
    if not written:
        raise DataError(f"no comments in {', '.join(source.origin for source in sources) or 'the given files'}")


def _looks_like_json(line: str) -> bool:
    return re.match(r'\s*\{\s*"', line) is not None


def _from_json(line: str, source: Source, number: int) -> Comment:
    try:
        fields = json.loads(line)
        date = datetime.fromtimestamp(int(float(fields["created_utc"])), tz=timezone.utc).strftime("%Y-%m-%d")
        return Comment(clean(str(fields["subreddit"])), date, str(fields["link_id"]), clean(str(fields["body"])))
    except (ValueError, KeyError, TypeError, OverflowError, OSError) as error:
        raise DataError(
            f"{source.origin}, line {number}: expected a JSON object with body, subreddit, link_id and created_utc "
            f"({type(error).__name__}: {error})"
        ) from error
