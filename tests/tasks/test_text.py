"""Tokenisation, vocabulary, encoding, and the cache of encoded text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.errors import ConfigError
from g2uardfl.tasks import text
from g2uardfl.tasks.reddit import Reddit
from g2uardfl.tasks.sentiment140 import TRAIN_FILE, Sentiment140
from g2uardfl.tasks.text import PAD, UNKNOWN, Encoded, Vocabulary, build_vocabulary, cached_arrays, tokenize
from helpers.data_sets import store_table


def test_tokens_are_lower_case_words_with_inner_apostrophes() -> None:
    assert tokenize("Don\u2019t SHOUT, 'please' -- it's rock_n_roll!") == [
        "don't",
        "shout",
        "please",
        "it's",
        "rock",
        "n",
        "roll",
    ]


def test_web_addresses_and_mentions_become_one_token_each() -> None:
    assert tokenize("@Some_One look: www.x.org/a_b HTTPS://y.z?q=1") == ["<user>", "look", "<url>", "<url>"]


@given(st.text())
@settings(deadline=None)
def test_no_text_contains_the_special_words(content: str) -> None:
    assert not set(tokenize(content)) & set(text.SPECIAL_WORDS)


@given(
    st.dictionaries(st.text("abcde", min_size=1, max_size=3), st.integers(1, 5)),
    st.integers(4, 12),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_the_vocabulary_is_the_most_frequent_words_in_order(
    counts: dict[str, int], cap: int, minimum_count: int
) -> None:
    vocabulary = build_vocabulary(counts, cap=cap, minimum_count=minimum_count, required=["zz", "a"])

    candidates = [word for word in sorted(counts) if counts[word] >= minimum_count and word != "a"]
    chosen = {"zz", "a"}
    while candidates and len(chosen) < cap - 2:
        best = max(candidates, key=lambda word: counts[word])  # the first of the largest
        candidates.remove(best)
        chosen.add(best)
    by_count = sorted(sorted(chosen), key=lambda word: counts.get(word, 0), reverse=True)
    assert vocabulary.words == ("<pad>", "<unk>", *by_count)


def test_a_cap_that_is_too_small_for_the_required_words_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"vocabulary=4 is too small.*set it to 5 or more"):
        build_vocabulary({"x": 9}, cap=4, required=["a", "b", "c"])


def test_words_outside_the_vocabulary_are_encoded_as_unknown() -> None:
    vocabulary = Vocabulary(("<pad>", "<unk>", "a", "b"))
    assert vocabulary.encode(["b", "q", "a"]) == [3, UNKNOWN, 2]
    assert vocabulary.decode([PAD, PAD, 3, UNKNOWN, 2]) == "b <unk> a"


@given(st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1))
@settings(deadline=None)
def test_sequences_are_padded_on_the_left(sequences: list[list[int]]) -> None:
    samples = Encoded.from_lists(sequences, list(range(len(sequences)))).pad_left(6)
    assert samples.x.tolist() == [[PAD] * (6 - len(sequence)) + sequence for sequence in sequences]
    assert samples.x.dtype == torch.int32
    assert samples.y.tolist() == list(range(len(sequences)))


def test_cached_arrays_are_built_once(tmp_path: Path) -> None:
    calls = []

    def build() -> text.Arrays:
        calls.append(1)
        return {"a": np.arange(3)}

    first = cached_arrays(tmp_path / "new" / "x.npz", build)
    second = cached_arrays(tmp_path / "new" / "x.npz", build)
    assert len(calls) == 1
    np.testing.assert_array_equal(first["a"], second["a"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.npz"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_a_damaged_cache_file_is_built_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.npz"
    cached_arrays(path, lambda: {"a": np.arange(1000)})
    content = bytearray(path.read_bytes())
    content[3000] ^= 255
    path.write_bytes(
        {"truncated": path.read_bytes()[:2000], "flipped": bytes(content), "empty": b"", "text": b"hello"}[damage]
    )

    np.testing.assert_array_equal(cached_arrays(path, lambda: {"a": np.arange(1000)})["a"], np.arange(1000))

    cached_arrays(path, lambda: pytest.fail("the file was not repaired"))


def test_a_cache_file_with_pickles_is_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.array([{"an": "object"}], dtype=object))
    assert cached_arrays(tmp_path / "x.npz", lambda: {"a": np.zeros(1)})["a"].tolist() == [0.0]


def test_a_cache_folder_that_cannot_be_written_is_not_an_error(
    tweets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file instead of a folder")
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "file"))
    assert len(Sentiment140(data_dir=tweets).train) == 3


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", disk_full)
    assert cached_arrays(tmp_path / "x.npz", lambda: {"a": np.zeros(2)})["a"].tolist() == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_second_task_loads_its_samples_from_the_cache(threads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Reddit(data_dir=threads)
    expected = [first.train, first.test, first.backdoor_train, first.backdoor_test]
    monkeypatch.setattr(Reddit, "prepare_text", lambda self: pytest.fail("prepared twice"))
    second = Reddit(data_dir=threads)
    for before, after in zip(
        expected, [second.train, second.test, second.backdoor_train, second.backdoor_test], strict=True
    ):
        assert torch.equal(before.x, after.x)
        assert torch.equal(before.y, after.y)
    assert first.vocabulary.words == second.vocabulary.words
    assert torch.equal(first.natural_groups(), second.natural_groups())


def test_the_cache_depends_on_settings_and_files(tweets: Path, cache: Path) -> None:
    plain = len(Sentiment140(data_dir=tweets).train)
    capped = Sentiment140(data_dir=tweets, vocabulary=20, minimum_count=1)
    assert len(capped.vocabulary) <= 20
    store_table(tweets, TRAIN_FILE, ["label", "text"], [(0, "I hate rain"), (1, "sun"), (1, "x"), (0, "y")])
    assert (plain, len(Sentiment140(data_dir=tweets).train)) == (3, 4)
    assert len(list(cache.iterdir())) == 3
