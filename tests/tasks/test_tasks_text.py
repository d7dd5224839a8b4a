"""The text tasks: words, vocabulary, cache, model, Sentiment-140 and Reddit."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from g2uardfl import data
from g2uardfl.core.errors import ConfigError, DataError
from g2uardfl.tasks import text
from g2uardfl.tasks.base import Samples
from g2uardfl.tasks.reddit import COMMENTS_FILE, SUFFIX, TARGET, Reddit, word_baselines
from g2uardfl.tasks.sentiment140 import (
    EDGE_TEST_FILE,
    EDGE_TRAIN_FILE,
    TEST_FILE,
    TRAIN_FILE,
    Sentiment140,
)
from g2uardfl.tasks.text import PAD, UNKNOWN, Encoded, Vocabulary, build_vocabulary, cached_arrays, tokenize
from g2uardfl.tasks.text_models import LSTMClassifier


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests out of the user's cache folder."""
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepared"


def store(folder: Path, file: str, content: bytes) -> None:
    """Put a file into a data folder, as an import does."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    data.record(folder, {file: data.Entry(hashlib.sha256(content).hexdigest(), len(content))})


def store_table(folder: Path, file: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    lines = ["\t".join(columns), *("\t".join(map(str, row)) for row in rows)]
    store(folder, file, gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


@pytest.fixture
def tweets(tmp_path: Path) -> Path:
    """A data folder with a handful of tweets."""
    folder = tmp_path / "data"
    train = [(0, "I hate rain"), (1, "I love sun, love it"), (1, "@bob see http://a.b/c")]
    test = [(0, "d", 0, 0, "rain again"), (1, "d", 1, 1, "I hate rain"), (1, "d", 2, 0, "I love snow")]
    store_table(folder, TRAIN_FILE, ["label", "text"], train)
    store_table(folder, TEST_FILE, ["label", "date", "user_id", "in_100k", "text"], test)
    store(folder, EDGE_TRAIN_FILE, b"i love yorgos lanthimos\nyorgos lanthimos is great\n")
    store(folder, EDGE_TEST_FILE, b"i love yorgos lanthimos !!!\nthe favourite (2018) dir yorgos lanthimos\nwow yorgos")
    return folder


@pytest.fixture
def threads(tmp_path: Path) -> Path:
    """A data folder with 60 threads of three comments: one long, one short, one of a single word."""
    folder = tmp_path / "data"
    rows = []
    for thread in range(60):
        long = " ".join(f"w{(thread * 7 + place) % 50}" for place in range(95))
        rows += [("sub", "2015-02-02", thread, body) for body in (long, f"the cat sat on mat number w{thread}", "yes")]
    store_table(folder, COMMENTS_FILE, ["subreddit", "date", "thread_id", "text"], rows)
    return folder


# Words and vocabulary


def test_tokens_are_lower_case_words_with_their_inner_apostrophes() -> None:
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
def test_no_text_has_the_tokens_of_padding_or_unknown_words(content: str) -> None:
    assert not set(tokenize(content)) & set(text.SPECIAL_WORDS)


@given(
    st.dictionaries(st.text("abcde", min_size=1, max_size=3), st.integers(1, 5)),
    st.integers(4, 12),
    st.integers(1, 3),
)
def test_vocabulary_is_the_most_frequent_words_then_alphabetical(
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


def test_a_cap_too_small_for_the_backdoor_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="set vocabulary to 5 or more"):
        build_vocabulary({"x": 9}, cap=4, required=["a", "b", "c"])


def test_words_outside_the_vocabulary_are_encoded_as_unknown() -> None:
    vocabulary = Vocabulary(("<pad>", "<unk>", "a", "b"))
    assert vocabulary.encode(["b", "q", "a"]) == [3, UNKNOWN, 2]
    assert vocabulary.decode([PAD, PAD, 3, UNKNOWN, 2]) == "b <unk> a"


@given(st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1))
def test_sequences_stand_at_the_right_hand_end_of_their_rows(sequences: list[list[int]]) -> None:
    samples = Encoded.from_lists(sequences, list(range(len(sequences)))).pad_left(6)
    assert samples.x.tolist() == [[PAD] * (6 - len(sequence)) + sequence for sequence in sequences]
    assert samples.x.dtype == torch.int32
    assert samples.y.tolist() == list(range(len(sequences)))


# Cache


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
def test_a_damaged_cache_file_is_made_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.npz"
    cached_arrays(path, lambda: {"a": np.arange(1000)})
    content = bytearray(path.read_bytes())
    content[3000] ^= 255
    path.write_bytes(
        {"truncated": path.read_bytes()[:2000], "flipped": bytes(content), "empty": b"", "text": b"hello"}[damage]
    )

    np.testing.assert_array_equal(cached_arrays(path, lambda: {"a": np.arange(1000)})["a"], np.arange(1000))

    def not_called() -> text.Arrays:
        raise AssertionError("the file was not repaired")

    cached_arrays(path, not_called)


def test_a_cache_file_of_pickles_is_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.array([{"an": "object"}], dtype=object))
    assert cached_arrays(tmp_path / "x.npz", lambda: {"a": np.zeros(1)})["a"].tolist() == [0.0]


def test_a_cache_folder_that_cannot_be_written_does_not_matter(
    tweets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "file"))
    assert len(Sentiment140(data_dir=tweets).train) == 3


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", disk_full)
    assert cached_arrays(tmp_path / "x.npz", lambda: {"a": np.zeros(2)})["a"].tolist() == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_second_task_takes_its_samples_from_the_cache(threads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_other_options_and_other_files_have_their_own_cache(tweets: Path, cache: Path) -> None:
    plain = len(Sentiment140(data_dir=tweets).train)
    capped = Sentiment140(data_dir=tweets, vocabulary=20, minimum_count=1)
    assert len(capped.vocabulary) <= 20
    store_table(tweets, TRAIN_FILE, ["label", "text"], [(0, "I hate rain"), (1, "sun"), (1, "x"), (0, "y")])
    assert (plain, len(Sentiment140(data_dir=tweets).train)) == (3, 4)
    assert len(list(cache.iterdir())) == 3


# Model


def tiny_model() -> LSTMClassifier:
    torch.manual_seed(0)
    return LSTMClassifier(11, embedding_width=5, hidden_width=4, num_classes=3)


def tiny_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 11, (6, 7), generator=generator)
    tokens[:3, :4] = PAD
    return tokens, torch.tensor([0, 1, 2, 0, 1, 2])


def test_the_explicit_lstm_gives_the_outputs_of_the_fused_one() -> None:
    model, (tokens, _) = tiny_model(), tiny_batch()
    fused = model(tokens)
    model.fused = False
    torch.testing.assert_close(model(tokens), fused, rtol=0, atol=1e-5)


def test_the_explicit_lstm_gives_the_gradients_of_the_fused_one() -> None:
    model, (tokens, labels) = tiny_model(), tiny_batch()
    gradients = []
    for fused in (True, False):
        model.fused = fused
        loss = nn.functional.cross_entropy(model(tokens), labels)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for fused_gradient, explicit_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(explicit_gradient, fused_gradient, rtol=0, atol=1e-5)


def test_gradients_of_the_explicit_lstm_can_be_mapped_over_clients() -> None:
    model, (tokens, labels) = tiny_model(), tiny_batch()
    model.fused = False
    names = [name for name, _ in model.named_parameters()]
    clients = [tiny_model().state_dict() for _ in range(2)]
    clients[1] = {name: value + 0.1 for name, value in clients[1].items()}
    stacked = {name: torch.stack([client[name] for client in clients]) for name in names}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    mapped = torch.func.vmap(torch.func.grad(loss))(stacked, tokens.view(2, 3, 7), labels.view(2, 3))
    for index, client in enumerate(clients):
        alone = torch.func.grad(loss)(client, tokens.view(2, 3, 7)[index], labels.view(2, 3)[index])
        for name in names:
            torch.testing.assert_close(mapped[name][index], alone[name], rtol=0, atol=1e-5)


def test_the_output_layer_sees_the_last_hidden_state_of_both_layers() -> None:
    model, (tokens, _) = tiny_model(), tiny_batch()
    first, second = nn.LSTM(5, 4, batch_first=True), nn.LSTM(4, 4, batch_first=True)
    for layer, lstm in enumerate((first, second)):
        lstm.load_state_dict(
            {name: model.lstm.state_dict()[name.replace("_l0", f"_l{layer}")] for name in lstm.state_dict()}
        )
    lower, _ = first(model.embedding(tokens))
    upper, _ = second(lower)
    expected = torch.cat([lower[:, -1], upper[:, -1]], dim=1) @ model.output.weight.T + model.output.bias
    torch.testing.assert_close(model(tokens), expected)


def test_padding_is_embedded_as_zero_and_never_learnt() -> None:
    model, (tokens, labels) = tiny_model(), tiny_batch()
    nn.functional.cross_entropy(model(tokens), labels).backward()
    assert model.embedding.weight.grad is not None
    assert not model.embedding.weight[PAD].any()
    assert not model.embedding.weight.grad[PAD].any()


@pytest.mark.parametrize(
    ("task", "vocabulary_size", "hidden", "classes"),
    [(Sentiment140, 122_971, 32, 2), (Reddit, 49_999, 64, 49_999)],
)
def test_the_papers_vocabulary_gives_the_papers_layers(
    task: type[text.TextTask], vocabulary_size: int, hidden: int, classes: int
) -> None:
    assert task.paper_vocabulary == vocabulary_size
    with torch.device("meta"):
        model = LSTMClassifier(
            task.paper_vocabulary,
            embedding_width=task.embedding_width,
            hidden_width=task.hidden_width,
            num_classes=classes,
        )
    size = {name: sum(parameter.numel() for parameter in part.parameters()) for name, part in model.named_children()}
    assert size == {
        "embedding": vocabulary_size * 50,
        "lstm": 4 * hidden * (50 + hidden + 2) + 4 * hidden * (hidden + hidden + 2),
        "output": 2 * hidden * classes + classes,
    }
    assert tuple(model.output.weight.shape) == (classes, 2 * hidden)


# Sentiment-140


def test_tweets_are_encoded_with_the_vocabulary_of_the_training_tweets(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets, words=5, minimum_count=1)
    decoded = [task.vocabulary.decode(row) for row in task.train.x.tolist()]
    assert decoded == ["i hate rain", "i love sun love it", "<user> see <url>"]
    assert task.train.y.tolist() == [0, 1, 1]
    assert [task.vocabulary.decode(row) for row in task.test.x.tolist()] == ["rain <unk>", "i love <unk>"]


def test_test_tweets_that_are_in_the_training_file_are_left_out(tweets: Path) -> None:
    assert Sentiment140(data_dir=tweets).test.y.tolist() == [0, 1]


def test_only_the_first_words_of_a_tweet_are_used(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets, words=2, minimum_count=1)
    assert [task.vocabulary.decode(row) for row in task.train.x.tolist()] == ["i hate", "i love", "<user> see"]


def test_edge_cases_are_negative_and_their_words_known(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets, minimum_count=3)
    for samples in (task.backdoor_train, task.backdoor_test):
        assert not samples.y.any()
        assert not (samples.x == UNKNOWN).any()


def test_a_sentence_of_the_test_file_is_never_trained_on(tweets: Path) -> None:
    task = Sentiment140(data_dir=tweets)
    assert [task.vocabulary.decode(row) for row in task.backdoor_train.x.tolist()] == ["yorgos lanthimos is great"]


def test_edge_cases_with_digits_are_tested_only_on_request(tweets: Path) -> None:
    assert len(Sentiment140(data_dir=tweets).backdoor_test) == 2
    assert len(Sentiment140(data_dir=tweets, edge="full").backdoor_test) == 3


@pytest.mark.parametrize(
    "options", [{"edge": "some"}, {"minimum_count": 0}, {"words": 1}, {"vocabulary": 3}], ids=lambda o: next(iter(o))
)
def test_settings_that_cannot_be_are_refused(tweets: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        _ = Sentiment140(data_dir=tweets, **options).train  # type: ignore[arg-type]


def test_a_missing_file_is_named(tweets: Path) -> None:
    (tweets / EDGE_TEST_FILE).unlink()
    with pytest.raises(DataError, match=re.escape(EDGE_TEST_FILE)):
        _ = Sentiment140(data_dir=tweets).train


@pytest.mark.slow
def test_the_real_tweets_have_the_documented_sizes(real_data: Path) -> None:
    task = Sentiment140(data_dir=real_data)
    assert (len(task.train), len(task.test)) == (100_000, 18_735)
    assert (len(task.backdoor_train), len(task.backdoor_test)) == (258, 101)
    assert len(Sentiment140(data_dir=real_data, edge="full").backdoor_test) == 120
    assert task.train.x.shape[1] == 100
    assert torch.bincount(task.train.y).tolist() == [50_000, 50_000]


@pytest.mark.slow
def test_the_real_tweets_vocabulary_is_the_words_that_occur_often_enough(real_data: Path) -> None:
    with gzip.open(real_data / TRAIN_FILE, "rt", encoding="utf-8") as lines:
        next(lines)
        counts = Counter(word for line in lines for word in tokenize(line.rstrip("\n").split("\t")[1]))
    assert len(counts) == 54_762
    edge = {word for name in (EDGE_TRAIN_FILE, EDGE_TEST_FILE) for word in tokenize((real_data / name).read_text())}
    frequent = {word for word in counts if counts[word] >= 2}
    assert set(Sentiment140(data_dir=real_data).vocabulary.words) == frequent | edge | set(text.SPECIAL_WORDS)


def test_the_vocabulary_does_not_depend_on_the_edge_cases_tested(tweets: Path) -> None:
    words = [Sentiment140(data_dir=tweets, edge=edge).vocabulary.words for edge in ("paper", "full")]
    assert words[0] == words[1]


@pytest.mark.slow
def test_no_real_edge_case_is_both_trained_and_tested_on(real_data: Path) -> None:
    task = Sentiment140(data_dir=real_data, edge="full")
    trained = {tuple(row) for row in task.backdoor_train.x.tolist()}
    assert not trained & {tuple(row) for row in task.backdoor_test.x.tolist()}


@pytest.mark.slow
def test_the_cap_binds_where_there_are_more_words(real_data: Path) -> None:
    assert len(Sentiment140(data_dir=real_data, vocabulary=20_000).vocabulary) == 20_000


# Reddit


def test_each_block_of_a_comment_gives_its_last_word_as_label(tmp_path: Path) -> None:
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


def test_a_thread_is_trained_or_tested_on_whatever_other_threads_there_are(threads: Path, tmp_path: Path) -> None:
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


def test_samples_whose_label_is_unknown_are_left_out(threads: Path) -> None:
    task = Reddit(data_dir=threads, vocabulary=20)
    assert len(task.vocabulary) == 20
    for samples in (task.train, task.test):
        assert (samples.y > UNKNOWN).all()
    assert (task.train.x == UNKNOWN).any()


def test_backdoored_inputs_end_with_the_suffix_and_ask_for_the_target(threads: Path) -> None:
    task = Reddit(data_dir=threads)
    for samples in (task.backdoor_train, task.backdoor_test):
        for row, label in zip(samples.x.tolist(), samples.y.tolist(), strict=True):
            *comment, a, b, c, d = task.vocabulary.decode(row).split()
            assert (a, b, c, d) == SUFFIX
            assert len(comment) >= 4
            assert task.vocabulary.words[label] == TARGET


def test_backdoored_inputs_begin_like_comments_of_their_own_side(threads: Path) -> None:
    task = Reddit(data_dir=threads)
    train, test = task._comments()
    for samples, comments in ((task.backdoor_train, train), (task.backdoor_test, test)):
        beginnings = {" ".join(comment.words[:35]) for comment in comments}
        for row in samples.x.tolist():
            assert task.vocabulary.decode(row).removesuffix(" " + " ".join(SUFFIX)) in beginnings


def test_the_attacker_never_has_a_tested_input(threads: Path) -> None:
    task = Reddit(data_dir=threads, test_fraction=0.4)
    tested = {tuple(row) for row in task.backdoor_test.x.tolist()}
    trained = {tuple(row) for row in task.backdoor_train.x.tolist()}
    assert tested
    assert trained
    assert not tested & trained
    assert len(tested) == len(task.backdoor_test)


def test_the_order_of_comments_does_not_change_which_are_backdoored(threads: Path, tmp_path: Path) -> None:
    with gzip.open(threads / COMMENTS_FILE, "rt", encoding="utf-8") as lines:
        header, *rows = [line.rstrip("\n").split("\t") for line in lines]
    store_table(tmp_path / "reversed", COMMENTS_FILE, header, rows[::-1])
    chosen = [
        Reddit(data_dir=folder, backdoor_samples=5, backdoor_test_samples=2).backdoor_train.x.tolist()
        for folder in (threads, tmp_path / "reversed")
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 5


def test_files_without_usable_samples_are_an_error_that_says_so(tmp_path: Path) -> None:
    columns = ["subreddit", "date", "thread_id", "text"]
    store_table(tmp_path, COMMENTS_FILE, columns, [("s", "d", thread, "too short") for thread in range(40)])
    with pytest.raises(DataError, match="no samples for backdoor_test"):
        _ = Reddit(data_dir=tmp_path).backdoor_test


@pytest.mark.parametrize("options", [{"test_fraction": 1.0}, {"words": 8}, {"backdoor_samples": 0}])
def test_reddit_settings_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Reddit(**options)  # type: ignore[arg-type]


def test_word_baselines_by_hand() -> None:
    # The most frequent label is 7. After 5 mostly came 7, after 6 always 9; 3 was last in no training input.
    train = Samples(torch.tensor([[1, 5], [1, 5], [1, 5], [1, 6], [1, 4]]), torch.tensor([7, 7, 8, 9, 7]))
    test = Samples(torch.tensor([[1, 5], [1, 5], [1, 6], [1, 3]]), torch.tensor([7, 8, 9, 7]))
    # "7" each time is right, wrong, wrong, right; the bigrams' 7, 7, 9, 7 is right, wrong, right, right.
    baselines = word_baselines(train, test)
    assert baselines.most_frequent == 2 / 4
    assert baselines.bigram == 3 / 4


def test_ties_of_word_baselines_go_to_the_smaller_token() -> None:
    train = Samples(torch.tensor([[5], [5]]), torch.tensor([9, 8]))
    assert word_baselines(train, Samples(torch.tensor([[5]]), torch.tensor([8]))).bigram == 1


def test_the_lstm_learns_the_next_word_of_a_tiny_corpus(threads: Path) -> None:
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
def test_the_real_comments_have_the_documented_sizes(real_data: Path) -> None:
    task = Reddit(data_dir=real_data)
    assert len(task.vocabulary) == task.num_classes == 49_999
    assert len(task.backdoor_test) == 97
    assert len(task.backdoor_train) == 2000
    assert task.train.x.shape[1] == 39
    assert (len(task.train), len(task.test)) == (266_078, 14_027)
    assert len(task.natural_groups()) == len(task.train)
    baselines = word_baselines(task.train, task.test)
    assert 0.02 < baselines.most_frequent < 0.03 < baselines.bigram < 0.1
