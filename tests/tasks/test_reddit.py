"""Reddit: samples, threads, backdoor and word baselines."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest
import torch

from g2uardfl.core.errors import ConfigError, DataError
from g2uardfl.tasks.base import Samples
from g2uardfl.tasks.reddit import COMMENTS_FILE, SUFFIX, TARGET, Reddit, word_baselines
from g2uardfl.tasks.text import UNKNOWN
from helpers.data_sets import store_table


def test_the_label_is_the_last_word_of_a_block(tmp_path: Path) -> None:
    words = [f"w{place}" for place in range(25)]
    store_table(
        tmp_path,
        COMMENTS_FILE,
        ["subreddit", "date", "thread_id", "text"],
        [("s", "d", thread, " ".join(words)) for thread in range(40)],
    )
    task = Reddit(data_dir=tmp_path, words=10)
    seen = Counter(
        (task.vocabulary.decode(row), task.vocabulary.words[label])
        for row, label in zip(task.train.x.tolist(), task.train.y.tolist(), strict=True)
    )
    assert set(seen) == {
        (" ".join(words[:9]), "w9"),
        (" ".join(words[10:19]), "w19"),
        (" ".join(words[20:24]), "w24"),
    }
    first = Reddit(data_dir=tmp_path, words=10, first_block_only=True)
    assert {first.vocabulary.words[label] for label in first.train.y.tolist()} == {"w9"}


def test_the_split_of_a_thread_does_not_depend_on_other_threads(threads: Path, tmp_path: Path) -> None:
    def held_out(folder: Path) -> set[str]:
        train, test = Reddit(data_dir=folder, test_fraction=0.3)._comments()
        assert not {comment.thread for comment in train} & {comment.thread for comment in test}
        return {comment.thread for comment in test}

    columns = ["subreddit", "date", "thread_id", "text"]
    rows = [("sub", "2015-02-02", thread, "some other words") for thread in range(20, 40)]
    store_table(tmp_path / "fewer", COMMENTS_FILE, columns, rows)
    all_threads, fewer = held_out(threads), held_out(tmp_path / "fewer")
    assert all_threads
    assert fewer == {thread for thread in all_threads if 20 <= int(thread) < 40}


def test_natural_groups_are_the_threads_of_the_samples(threads: Path) -> None:
    task = Reddit(data_dir=threads)
    groups = task.natural_groups()
    assert len(groups) == len(task.train)
    assert groups.unique().tolist() == list(range(int(groups.max()) + 1))
    train, _ = task._comments()
    order = list(dict.fromkeys(comment.thread for comment in train))
    of_short_comments = [
        (order[group], task.vocabulary.words[label])
        for group, row, label in zip(groups.tolist(), task.train.x.tolist(), task.train.y.tolist(), strict=True)
        if task.vocabulary.decode(row) == "the cat sat on mat number"
    ]
    assert of_short_comments == [(thread, f"w{thread}") for thread in order]


def test_samples_with_an_unknown_label_are_dropped(threads: Path) -> None:
    task = Reddit(data_dir=threads, vocabulary=20)
    assert len(task.vocabulary) == 20
    for samples in (task.train, task.test):
        assert (samples.y > UNKNOWN).all()
    assert (task.train.x == UNKNOWN).any()


def test_backdoored_inputs_end_with_the_suffix_and_have_the_target_label(threads: Path) -> None:
    task = Reddit(data_dir=threads)
    for samples in (task.backdoor_train, task.backdoor_test):
        for row, label in zip(samples.x.tolist(), samples.y.tolist(), strict=True):
            *comment, a, b, c, d = task.vocabulary.decode(row).split()
            assert (a, b, c, d) == SUFFIX
            assert len(comment) >= 4
            assert task.vocabulary.words[label] == TARGET


def test_backdoored_inputs_start_with_comments_of_their_own_split(threads: Path) -> None:
    task = Reddit(data_dir=threads)
    train, test = task._comments()
    for samples, comments in ((task.backdoor_train, train), (task.backdoor_test, test)):
        beginnings = {" ".join(comment.words[:35]) for comment in comments}
        for row in samples.x.tolist():
            assert task.vocabulary.decode(row).removesuffix(" " + " ".join(SUFFIX)) in beginnings


def test_no_input_is_both_training_and_test_data_of_the_backdoor(threads: Path) -> None:
    task = Reddit(data_dir=threads, test_fraction=0.4)
    tested = {tuple(row) for row in task.backdoor_test.x.tolist()}
    trained = {tuple(row) for row in task.backdoor_train.x.tolist()}
    assert tested
    assert trained
    assert not tested & trained
    assert len(tested) == len(task.backdoor_test)


def test_backdoored_comments_do_not_depend_on_the_order_of_comments(threads: Path, tmp_path: Path) -> None:
    with gzip.open(threads / COMMENTS_FILE, "rt", encoding="utf-8") as lines:
        header, *rows = [line.rstrip("\n").split("\t") for line in lines]
    store_table(tmp_path / "reversed", COMMENTS_FILE, header, rows[::-1])
    chosen = [
        Reddit(data_dir=folder, backdoor_samples=5, backdoor_test_samples=2).backdoor_train.x.tolist()
        for folder in (threads, tmp_path / "reversed")
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 5


def test_files_without_usable_samples_are_an_error(tmp_path: Path) -> None:
    columns = ["subreddit", "date", "thread_id", "text"]
    store_table(tmp_path, COMMENTS_FILE, columns, [("s", "d", thread, "too short") for thread in range(40)])
    with pytest.raises(DataError, match="no samples for backdoor_test"):
        _ = Reddit(data_dir=tmp_path).backdoor_test


@pytest.mark.parametrize("options", [{"test_fraction": 1.0}, {"words": 8}, {"backdoor_samples": 0}])
def test_impossible_settings_are_rejected(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Reddit(**options)  # type: ignore[arg-type]


def test_word_baselines_have_the_accuracies_computed_by_hand() -> None:
    # The most frequent label is 7. The word 5 is mostly followed by 7, and 6 by 9. No training input ends with 3.
    train = Samples(torch.tensor([[1, 5], [1, 5], [1, 5], [1, 6], [1, 4]]), torch.tensor([7, 7, 8, 9, 7]))
    test = Samples(torch.tensor([[1, 5], [1, 5], [1, 6], [1, 3]]), torch.tensor([7, 8, 9, 7]))
    # Predicting 7 is right, wrong, wrong, right; the bigram predictions 7, 7, 9, 7 are right, wrong, right, right.
    baselines = word_baselines(train, test)
    assert baselines.most_frequent == 2 / 4
    assert baselines.bigram == 3 / 4


def test_ties_of_word_baselines_go_to_the_smaller_token_id() -> None:
    train = Samples(torch.tensor([[5], [5]]), torch.tensor([9, 8]))
    assert word_baselines(train, Samples(torch.tensor([[5]]), torch.tensor([8]))).bigram == 1


def test_the_lstm_learns_the_next_words_of_a_small_corpus(threads: Path) -> None:
    task = Reddit(data_dir=threads, words=10)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    cyclic = task.train.take(torch.tensor([all(row) for row in task.train.x.tolist()]).nonzero()[:, 0])
    for _ in range(15):
        for batch in torch.randperm(len(cyclic)).split(32):
            sample = cyclic.take(batch)
            loss = task.loss(model(task.prepare(sample.x)), sample.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (model(task.prepare(cyclic.x)).argmax(1) == cyclic.y).float().mean()
    assert accuracy > 0.9


@pytest.mark.slow
def test_the_real_data_has_the_documented_sizes(real_data: Path) -> None:
    task = Reddit(data_dir=real_data)
    assert len(task.vocabulary) == task.num_classes == 49_999
    assert len(task.backdoor_test) == 97
    assert len(task.backdoor_train) == 2000
    assert task.train.x.shape[1] == 39
    assert (len(task.train), len(task.test)) == (266_078, 14_027)
    assert len(task.natural_groups()) == len(task.train)
    baselines = word_baselines(task.train, task.test)
    assert 0.02 < baselines.most_frequent < 0.03 < baselines.bigram < 0.1
