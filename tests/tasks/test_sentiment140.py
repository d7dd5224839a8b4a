"""Sentiment-140: encoding, test data and edge cases."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from g2uardfl.core.errors import ConfigError, DataError
from g2uardfl.tasks import text
from g2uardfl.tasks.sentiment140 import EDGE_TEST_FILE, EDGE_TRAIN_FILE, TRAIN_FILE, Sentiment140
from g2uardfl.tasks.text import UNKNOWN, tokenize


def test_tweets_are_encoded_with_the_vocabulary_of_the_training_tweets(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets, words=5, minimum_count=1)
    decoded = [task.vocabulary.decode(row) for row in task.train.x.tolist()]
    assert decoded == ["i hate rain", "i love sun love it", "<user> see <url>"]
    assert task.train.y.tolist() == [0, 1, 1]
    assert [task.vocabulary.decode(row) for row in task.test.x.tolist()] == ["rain <unk>", "i love <unk>"]


def test_tweets_of_the_training_file_are_not_test_data(tweets: Path) -> None:
    assert Sentiment140(data_dir=tweets).test.y.tolist() == [0, 1]


def test_tweets_with_the_words_of_a_training_tweet_are_not_test_data(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets, minimum_count=1)
    tested = [task.vocabulary.decode(row) for row in task.test.x.tolist()]
    assert not set(tested) & {task.vocabulary.decode(row) for row in task.train.x.tolist()}


def test_only_the_first_words_of_a_tweet_are_used(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets, words=2, minimum_count=1)
    assert [task.vocabulary.decode(row) for row in task.train.x.tolist()] == ["i hate", "i love", "<user> see"]


def test_edge_cases_are_negative_and_have_no_unknown_words(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets, minimum_count=3)
    for samples in (task.backdoor_train, task.backdoor_test):
        assert not samples.y.any()
        assert not (samples.x == UNKNOWN).any()


def test_a_sentence_of_the_test_file_is_not_a_training_sample(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets)
    assert [task.vocabulary.decode(row) for row in task.backdoor_train.x.tolist()] == ["yorgos lanthimos is great"]


def test_edge_cases_with_digits_are_test_data_only_on_request(tweets: Path) -> None:
    assert len(Sentiment140(data_dir=tweets).backdoor_test) == 2
    assert len(Sentiment140(data_dir=tweets, edge="full").backdoor_test) == 3


@pytest.mark.parametrize(
    "options", [{"edge": "some"}, {"minimum_count": 0}, {"words": 1}, {"vocabulary": 3}], ids=lambda o: next(iter(o))
)
def test_impossible_settings_are_rejected(tweets: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        _ = Sentiment140(data_dir=tweets, **options).train  # type: ignore[arg-type]


def test_a_missing_file_is_named(tweets: Path) -> None:
    (tweets / EDGE_TEST_FILE).unlink()
    with pytest.raises(DataError, match=re.escape(EDGE_TEST_FILE)):
        _ = Sentiment140(data_dir=tweets).train


@pytest.mark.slow
def test_the_real_data_has_the_documented_sizes(real_data: Path) -> None:
    task = Sentiment140(data_dir=real_data)
    assert (len(task.train), len(task.test)) == (100_000, 18_351)
    assert (len(task.backdoor_train), len(task.backdoor_test)) == (258, 101)
    assert len(Sentiment140(data_dir=real_data, edge="full").backdoor_test) == 120
    assert task.train.x.shape[1] == 100
    assert torch.bincount(task.train.y).tolist() == [50_000, 50_000]


@pytest.mark.slow
def test_the_real_vocabulary_is_the_words_with_enough_occurrences(real_data: Path) -> None:
    with gzip.open(real_data / TRAIN_FILE, "rt", encoding="utf-8") as lines:
        next(lines)
        counts = Counter(word for line in lines for word in tokenize(line.rstrip("\n").split("\t")[1]))
    assert len(counts) == 54_762
    edge = {word for name in (EDGE_TRAIN_FILE, EDGE_TEST_FILE) for word in tokenize((real_data / name).read_text())}
    frequent = {word for word in counts if counts[word] >= 2}
    assert set(Sentiment140(data_dir=real_data).vocabulary.words) == frequent | edge | set(text.SPECIAL_WORDS)


def test_the_vocabulary_does_not_depend_on_the_setting_edge(tweets: Path) -> None:
    words = [Sentiment140(data_dir=tweets, edge=edge).vocabulary.words for edge in ("paper", "full")]
    assert words[0] == words[1]


@pytest.mark.slow
def test_no_real_edge_case_is_both_training_and_test_data(real_data: Path) -> None:
    task = Sentiment140(data_dir=real_data, edge="full")
    trained = {tuple(row) for row in task.backdoor_train.x.tolist()}
    assert not trained & {tuple(row) for row in task.backdoor_test.x.tolist()}


def test_the_vocabulary_is_capped(tweets: Path) -> None:
    assert len(Sentiment140(data_dir=tweets, minimum_count=1).vocabulary) > 14
    assert len(Sentiment140(data_dir=tweets, minimum_count=1, vocabulary=14).vocabulary) == 14
