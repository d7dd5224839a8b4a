"""Imports of the text data sets, from small files in their published formats."""

from __future__ import annotations

import csv
import gzip
import json
import zipfile
from pathlib import Path

import pytest

from g2uardfl import data
from g2uardfl.core.errors import DataError
from g2uardfl.data import catalogue

# Sentiment-140


def write_tweets(path: Path, count: int = 100) -> list[tuple[str, str]]:
    """Write a csv file in which every tenth text occurs twice; return polarity and text of each row."""
    rows = []
    with path.open("w", encoding="latin-1", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        for number in range(count):
            polarity = "0" if number < count // 2 else "4"
            text = f'caf\xe9 no {number - number % 10 // 9},\t"salt &amp; pepper"  '
            rows.append((polarity, text))
            writer.writerow(
                [polarity, str(number), "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", f"user{number % 7}", text]
            )
    return rows


def test_no_text_of_sentiment140_is_in_both_tables(tmp_path):
    rows = write_tweets(tmp_path / "training.1600000.processed.noemoticon.csv")
    data.import_dataset("sentiment140", [tmp_path], tmp_path / "data")
    train = list(data.read_table("sentiment140/sentiment140_100k.tsv.gz", tmp_path / "data"))
    test = list(data.read_table("sentiment140/sentiment140_random20k.tsv.gz", tmp_path / "data"))
    assert list(train[0]) == ["label", "text"]
    assert list(test[0]) == ["label", "date", "user_id", "in_100k", "text"]
    assert {row["text"] for row in train}.isdisjoint(row["text"] for row in test)
    assert {row["in_100k"] for row in test} == {"0"}
    assert 20 <= len(test) <= 21  # a fifth; one more if the last text occurs twice
    labelled = sorted((row["label"], row["text"]) for row in [*train, *test])
    assert labelled == sorted(
        ("0" if p == "0" else "1", t.strip().replace("\t", " ").replace("&amp;", "&")) for p, t in rows
    )


def test_users_of_sentiment140_are_stored_as_numbers(tmp_path):
    write_tweets(tmp_path / "tweets.csv")
    data.import_dataset("sentiment140", [tmp_path / "tweets.csv"], tmp_path / "data")
    rows = list(data.read_table("sentiment140/sentiment140_random20k.tsv.gz", tmp_path / "data"))
    ids = {int(row["user_id"]) for row in rows}
    assert ids == set(range(len(ids)))
    assert not any("user" in row["text"] for row in rows)


def test_the_split_of_sentiment140_is_reproducible_and_the_same_from_a_zip_archive(tmp_path):
    write_tweets(tmp_path / "tweets.csv")
    with zipfile.ZipFile(tmp_path / "trainingandtestdata.zip", "w") as archive:
        archive.writestr("testdata.manual.2009.06.14.csv", '"2","1","date","query","user","neutral"\n')
        archive.write(tmp_path / "tweets.csv", "training.csv")
    for number, source in enumerate(("tweets.csv", "trainingandtestdata.zip")):
        data.import_dataset("sentiment140", [tmp_path / source], tmp_path / str(number))
    for stored in catalogue.SENTIMENT140.files:
        assert (tmp_path / "0" / stored.path).read_bytes() == (tmp_path / "1" / stored.path).read_bytes()


@pytest.mark.parametrize(
    "row", ['"2","1","date","q","user","text"', '"0","1","date","text"', '"4","1","d","q","u","same"']
)
def test_sentiment140_rows_of_another_format_are_rejected(tmp_path, row):
    (tmp_path / "tweets.csv").write_text(f'"0","1","date","q","user","same"\n{row}\n')
    with pytest.raises(DataError, match=r"tweets\.csv"):
        data.import_dataset("sentiment140", [tmp_path / "tweets.csv"], tmp_path / "data")
    assert not (tmp_path / "data").exists()


# Reddit


def comment(body: str, link: str = "t3_a", created: object = 1509494400) -> str:
    return json.dumps({"body": body, "subreddit": "news", "link_id": link, "created_utc": created, "author": "x"})


@pytest.mark.parametrize("packed", [True, False])
def test_reddit_is_read_from_json_lines(tmp_path, packed):
    lines = [
        comment("one\n\ntwo &gt; three"),
        comment("[deleted]"),
        comment(" "),
        comment("four", "t3_b", "1509580800"),
        comment("five"),
    ]
    path = tmp_path / ("dump.jsonl.gz" if packed else "dump.jsonl")
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    data.import_dataset("reddit", [path], tmp_path / "data")
    rows = list(data.read_table("reddit/reddit2015_threads.tsv.gz", tmp_path / "data"))
    assert rows == [
        {"subreddit": "news", "date": "2017-11-01", "thread_id": "0", "text": "one two > three"},
        {"subreddit": "news", "date": "2017-11-02", "thread_id": "1", "text": "four"},
        {"subreddit": "news", "date": "2017-11-01", "thread_id": "0", "text": "five"},
    ]


def test_each_plain_text_file_of_reddit_is_a_thread(tmp_path):
    (tmp_path / "a.txt").write_text("first comment\n\nsecond\tcomment\n")
    (tmp_path / "b.txt").write_text("third {comment}")
    data.import_dataset("reddit", [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "data")
    rows = list(data.read_table("reddit/reddit2015_threads.tsv.gz", tmp_path / "data"))
    assert [(row["thread_id"], row["text"]) for row in rows] == [
        ("0", "first comment"),
        ("0", "second comment"),
        ("1", "third {comment}"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (comment("fine").encode() + b'\n{"body": "no link"}\n', "line 2"),
        (comment("fine").encode() + b"\n" + comment("cut").encode()[:-9], "line 2"),
        (b"\xff\xfe broken", "UTF-8"),
        (b"\n\n", "no comments"),
    ],
)
def test_damaged_reddit_dumps_are_rejected_and_nothing_is_stored(tmp_path, content, message):
    (tmp_path / "dump.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        data.import_dataset("reddit", [tmp_path / "dump.jsonl"], tmp_path / "data")
    assert not (tmp_path / "data").exists()


# Greek director


def test_the_greek_director_files_are_stored_unchanged(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"i love yorgos\r\nreally")
    (tmp_path / "test.txt").write_bytes(b"great film\n")
    data.import_dataset("greek_director", [tmp_path], tmp_path / "data")
    assert (tmp_path / "data" / "greek_director" / "train.txt").read_bytes() == b"i love yorgos\r\nreally"
    assert data.read_lines("greek_director/train.txt", tmp_path / "data") == ["i love yorgos", "really"]
