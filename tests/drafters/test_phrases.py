"""The pool of phrases against a model that keeps everything in one list, and its file."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters import PhrasePool
from paceline.errors import ModelError, UsageError

Phrase = tuple[int, ...]


class Simple:
    """The same by brute force: a list of (key, phrase), oldest first, and when keys were used."""

    def __init__(self, per_key: int, most: int) -> None:
        self.per_key, self.most = per_key, most
        self.entries: list[tuple[int, Phrase]] = []
        self.used: list[int] = []

    def touch(self, key: int) -> None:
        self.used = [*(other for other in self.used if other != key), key]

    def of(self, key: int) -> list[Phrase]:
        return [phrase for other, phrase in self.entries if other == key]

    def add(self, key: int, phrase: Phrase) -> None:
        self.touch(key)
        self.entries = [*(each for each in self.entries if each != (key, phrase)), (key, phrase)]
        if len(self.of(key)) > self.per_key:
            self.entries.remove((key, self.of(key)[0]))
        if len(self.entries) > self.most:
            victim = next(other for other in self.used if self.of(other))
            self.entries.remove((victim, self.of(victim)[0]))

    def newest(self, key: int, count: int | None) -> list[Phrase]:
        if self.of(key):
            self.touch(key)
        found = self.of(key)[::-1]
        return found if count is None else found[:count]


keys = st.integers(0, 3)
phrases = st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple)
calls = st.lists(
    st.one_of(
        st.tuples(st.just("add"), keys, phrases),
        st.tuples(st.just("newest"), keys, st.one_of(st.none(), st.integers(0, 4))),
    ),
    max_size=40,
)


def filled(calls: list[tuple[str, int, Any]], per_key: int, most: int) -> tuple[PhrasePool, Simple]:
    pool, simple = PhrasePool(per_key, most), Simple(per_key, most)
    for name, key, argument in calls:
        if name == "add":
            pool.add(key, argument)
            simple.add(key, argument)
        else:
            assert list(pool.newest(key, argument)) == simple.newest(key, argument)
    return pool, simple


@given(calls, st.integers(1, 4), st.integers(1, 8))
def test_a_pool_is_the_simple_one(calls: Any, per_key: int, most: int) -> None:
    pool, simple = filled(calls, per_key, most)
    assert len(pool) == len(simple.entries) <= most
    for key in simple.used:
        assert list(pool.newest(key)) == simple.newest(key, None)


@given(calls, st.integers(1, 4), st.integers(1, 8))
def test_a_file_gives_the_same_pool_with_the_same_order_of_use(
    tmp_path_factory: pytest.TempPathFactory, calls: Any, per_key: int, most: int
) -> None:
    path = tmp_path_factory.mktemp("phrases") / "pool.jsonl"
    pool, _ = filled(calls, per_key, most)
    pool.save(path, 9, "abc")
    again = PhrasePool(per_key, most)
    again.load(path, 9, "abc")
    assert list(again) == list(pool) and len(again) == len(pool)
    assert {each.name for each in path.parent.iterdir()} == {"pool.jsonl", ".pool.jsonl.lock"}
    path.chmod(0o600)
    again.save(path, 9, "abc")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # as its owner wants it


def test_a_phrase_that_is_added_again_is_the_newest() -> None:
    pool = PhrasePool(2)
    for phrase in [(4, 9), (4, 2), (4, 9), (1, 1)]:
        pool.add(7, phrase)
    assert pool.newest(7) == ((1, 1), (4, 9))
    assert pool.newest(7, 1) == ((1, 1),)
    assert pool.newest(7, 0) == pool.newest(7, -3) == pool.newest(8) == ()


def test_what_was_asked_for_stays_longer() -> None:
    pool = PhrasePool(2, most=2)
    pool.add(1, (5,))
    pool.add(2, (5,))
    assert pool.newest(1) == ((5,),)
    pool.add(3, (5,))
    assert [key for key, _ in pool] == [1, 3]


def test_a_pool_never_outgrows_its_limit() -> None:
    pool = PhrasePool(3, most=100)
    for number in range(5000):
        pool.add(number % 700, (number, number + 1))
    assert len(pool) == 100 == sum(len(phrases) for _, phrases in pool)
    pool.clear()
    assert len(pool) == 0 and list(pool) == []


def test_limits_out_of_range_are_refused() -> None:
    with pytest.raises(UsageError, match="per_key must be a whole number >= 1"):
        PhrasePool(0)
    with pytest.raises(UsageError, match="most must be a whole number >= 1"):
        PhrasePool(1, 0)


def saved(path: Path) -> list[str]:
    pool = PhrasePool(4)
    for phrase in [(1, 2), (3, 4), (5,)]:
        pool.add(7, phrase)
    pool.add(8, (0,))
    pool.save(path, 16, "abc")
    return path.read_text(encoding="utf-8").splitlines()


def test_a_file_is_one_line_about_it_and_one_per_key(tmp_path: Path) -> None:
    head, *lines = map(json.loads, saved(tmp_path / "pool"))
    assert head == {
        "kind": "paceline phrases",
        "version": 1,
        "vocab_size": 16,
        "fingerprint": "abc",
        "phrases": 4,
    }
    assert lines == [[7, [1, 2], [3, 4], [5]], [8, [0]]]


def test_a_file_written_while_a_phrase_is_added_can_be_read(tmp_path: Path) -> None:
    """As a finaliser does, at any time and in any thread."""
    file, pool = tmp_path / "phrases.jsonl", PhrasePool(4)

    class Saving(int):
        def __eq__(self, other: object) -> bool:
            pool.save(file, 16)
            return super().__eq__(other)

        __hash__ = int.__hash__

    pool.add(2, [3, 4])
    pool.add(1, [Saving(3)])
    pool.add(1, [Saving(5)])
    again = PhrasePool(4)
    again.load(file, 16)
    assert again.newest(2) == ((3, 4),)


def test_a_pool_may_be_saved_while_another_thread_adds_a_phrase(tmp_path: Path) -> None:
    """Python asks how many there are before it lists them, and threads may change there."""

    class Growing(PhrasePool):
        def __len__(self) -> int:
            self.add(9, [1])
            return super().__len__()

    file, pool = tmp_path / "phrases.jsonl", Growing(4)
    pool.add(2, [3, 4])
    pool.save(file, 16)
    again = PhrasePool(4)
    again.load(file, 16)
    assert again.newest(2) == ((3, 4),)


def test_loading_adds_to_what_is_there_and_keeps_the_limits(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    saved(path)
    pool = PhrasePool(2, most=4)
    pool.add(7, (9, 9))
    pool.add(3, (1,))
    pool.load(path, 16)
    assert list(pool) == [(3, ((1,),)), (7, ((3, 4), (5,))), (8, ((0,),))]


@pytest.mark.parametrize(("vocab_size", "fingerprint"), [(16, "abc"), (16, "")])
def test_an_unknown_model_with_as_many_tokens_fits(
    tmp_path: Path, vocab_size: int, fingerprint: str
) -> None:
    saved(tmp_path / "pool")
    pool = PhrasePool(4)
    pool.load(tmp_path / "pool", vocab_size, fingerprint)
    assert len(pool) == 4


def refusal(path: Path, vocab_size: int = 16, fingerprint: str = "abc") -> str:
    pool = PhrasePool(4)
    with pytest.raises(ModelError) as caught:
        pool.load(path, vocab_size, fingerprint)
    assert len(pool) == 0
    return str(caught.value).replace(str(path), "FILE")


def test_phrases_of_another_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    saved(path)
    assert refusal(path, 17) == (
        "the phrase file FILE is for a model with 16 tokens, but this one has 17: name another file"
    )
    assert refusal(path, 16, "abd") == (
        "the phrase file FILE is for another model: name another file"
    )


DAMAGED = {
    "nothing": "",
    "no JSON": "hello\n",
    "a binary": "\x00\x01\x02",
    "another kind of JSON": '{"kind": "curve"}\n',
    "no object": "[1, 2]\n",
    "brackets": "[" * 100_000,
    "another version": '{"kind": "paceline phrases", "version": 2}\n',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_what_is_no_file_of_phrases_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pool"
    path.write_text(content, encoding="utf-8")
    assert refusal(path).startswith("the phrase file FILE is damaged (")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    path.write_bytes(b"\xff\xfe\xfa" * 9)
    assert refusal(path).startswith("the phrase file FILE is damaged (")


@pytest.mark.parametrize(
    "line",
    [
        "[7, [1, 2], [3, 16]]",
        "[7, [1, 2], [3, -1]]",
        "[7, [1, 2], [3, 1.0]]",
        "[7, [1, 2], [true]]",
        "[7, [1, 2], []]",
        "[7, [1, 2], 3]",
        "[16, [1, 2]]",
        "[7]",
        "[]",
        "{}",
        "null",
        "[7, [1",
    ],
)
def test_a_damaged_line_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "pool"
    lines = saved(path)
    path.write_text("\n".join([lines[0], line, lines[2]]), encoding="utf-8")
    assert refusal(path).startswith("the phrase file FILE is damaged (")


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    lines = saved(path)
    path.write_text("\n".join(lines[:-1]), encoding="utf-8")
    assert refusal(path) == (
        "the phrase file FILE is damaged (its number of phrases is not that of its first line): "
        "name another file"
    )


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no") == "cannot read the phrase file FILE: No such file or directory"
    (tmp_path / "file").write_text("", encoding="utf-8")
    for place in (tmp_path / "no" / "pool", tmp_path / "file" / "pool"):
        with pytest.raises(ModelError, match=f"^cannot write phrases to {place}: "):
            PhrasePool(1).save(place, 16)


def test_a_file_in_place_of_an_earlier_one_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    before = saved(path)
    tmp_path.chmod(0o500)
    try:
        PhrasePool(1).save(path, 16)
    except ModelError:
        assert path.read_text(encoding="utf-8").splitlines() == before
    finally:
        tmp_path.chmod(0o700)
    assert {each.name for each in tmp_path.iterdir()} == {"pool", ".pool.lock"}


def test_what_another_process_wrote_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "phrases.jsonl"
    one, other = PhrasePool(2), PhrasePool(2)
    one.add(1, [2, 3])
    one.save(path, 10)
    other.load(path, 10)
    other.add(1, [4])
    other.add(5, [6])
    one.replace(1, [2, 3], [7])
    other.save(path, 10)
    one.save(path, 10)
    both = PhrasePool(3)
    both.load(path, 10)
    assert both.newest(1) == ((7,), (4,)) and both.newest(5) == ((6,),)
    one.add(8, [9])
    one.save(path, 10)  # once more, as every drafter with this pool does in the end
    both.load(path, 10)
    assert both.newest(5) == ((6,),) and both.newest(8) == ((9,),)


def test_a_pool_may_be_saved_while_its_thread_saves_another(tmp_path: Path) -> None:
    path = tmp_path / "phrases.jsonl"

    class Saving(PhrasePool):
        def __iter__(self) -> Any:
            PhrasePool(1).save(path, 10)
            return super().__iter__()

    pool = Saving(1)
    pool.add(1, [2])
    pool.save(path, 10)
    again = PhrasePool(1)
    again.load(path, 10)
    assert again.newest(1) == ((2,),)


def test_whoever_may_write_the_folder_may_save(tmp_path: Path) -> None:
    path = tmp_path / "phrases.jsonl"
    PhrasePool(1).save(path, 10)
    assert (tmp_path / ".phrases.jsonl.lock").stat().st_mode & 0o777 == 0o666


def test_a_file_is_the_same_by_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pool = PhrasePool(4)
    pool.add(1, [2])
    pool.save(Path("phrases.jsonl"), 10)
    pool.clear()
    pool.save(tmp_path / "phrases.jsonl", 10)
    again = PhrasePool(4)
    again.load(tmp_path / "phrases.jsonl", 10)
    assert not len(again)


def test_what_was_corrected_does_not_come_back_from_the_own_file(tmp_path: Path) -> None:
    path = tmp_path / "phrases.jsonl"
    pool = PhrasePool(4)
    for phrase in ([2, 3], [2, 4]):
        pool.replace(1, [2, 3], phrase)
        pool.save(path, 10)
    again = PhrasePool(4)
    again.load(path, 10)
    assert again.newest(1) == ((2, 4),)


def test_a_file_damaged_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "phrases.jsonl"
    pool = PhrasePool(1)
    pool.save(path, 10)
    path.write_text("damaged")
    with pytest.raises(ModelError, match="is damaged"):
        pool.save(path, 10)
    assert path.read_text() == "damaged"


def test_phrases_end_in_what_is_new_up_to_its_last_token_and_are_counted() -> None:
    pool = PhrasePool(4)
    pool.add_text([1, 2, 3], [4, 5], 2)
    assert dict(pool) == {2: ((3, 4),), 3: ((4, 5),)}
    pool.add(2, (9, 9))
    pool.replace(2, (3, 4), (9, 9))
    assert dict(pool)[2] == ((9, 9),) and len(pool) == 2
