"""ReferenceStore: search by words, limits, hostile input."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.messages import query_of
from paceline.references import ReferenceStore

HOSTILE = [
    '"',
    '""" AND',
    "cats AND OR NOT",
    "NEAR(cats dogs, 3)",
    "(((",
    "cats) OR (1=1",
    "terms: cats*",
    "{query_terms} : ^cats",
    "'; DROP TABLE entries; --",
    "cats -dogs + \\ / ~",
    "🙂",
    "🙂 cats 🧿",
    "\0",
    "cats\0dogs",
    "\ud800 cats \udfff",
    "\U0001e900\U0001e901",
    "cats " * 50_000,
    " ".join(f"word{number}" for number in range(20_000)),
]


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "references.db"


def outputs(store: ReferenceStore, query: str, limit: int = 4) -> list[str]:
    return [entry.output for entry in store.search(query, limit)]


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with ReferenceStore("~/answers.db") as store:
        assert store.path == tmp_path / "answers.db"


def test_finds_similar_queries_best_first(path: Path) -> None:
    with ReferenceStore(path) as store:
        store.add("How do I boil an egg?", "Put it into water.")
        store.add("How do I boil an egg without a pan?", "Use a kettle.")
        store.add("How do I fix a bicycle?", "Find the hole.")
        store.add("Capital of France", "Paris.")
        found = store.search("boil an EGG!")
        assert [entry.output for entry in found][:2] == ["Put it into water.", "Use a kettle."]
        assert found[0].query == "How do I boil an egg?"
        assert [entry.score for entry in found] == sorted(
            (entry.score for entry in found), reverse=True
        )
        assert len(store.search("how do I", limit=1)) == 1
        assert len(store.search("how do I", limit=1 << 62)) > 1
        assert outputs(store, "France") == ["Paris."]
        assert outputs(store, "zebra") == []
        assert store.search("France", limit=0) == []


QUESTIONS = [
    "How do I boil an egg?",
    "What is the capital of France?",
    "Why is the sky blue in the morning?",
    "How is the weather in the north?",
]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("How is the moon made of the dust?", []),  # shares "how is the" alone
        ("the", ["How is the weather in the north?"]),  # all there is to go by
        ("capital of Spain", ["What is the capital of France?"]),
        ("what is the capital of France", ["What is the capital of France?"]),
        ("How do I poach an egg?", ["How do I boil an egg?"]),
    ],
)
def test_what_shares_little_but_common_words_is_not_found(
    path: Path, query: str, expected: list[str]
) -> None:
    with ReferenceStore(path) as store:
        for question in QUESTIONS:
            store.add(question, question)
        found = outputs(store, query)
        assert found[: len(expected)] == expected and bool(found) == bool(expected)


@pytest.mark.parametrize("floor", [-0.1, 1.1])
def test_a_floor_is_a_share(path: Path, floor: float) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        ReferenceStore(path, floor=floor)


def chat(first: str, answer: str, last: str) -> list[dict[str, str]]:
    said = {"role": "system", "content": "You are a helpful assistant who answers in English."}
    turns = [("user", first), ("assistant", answer), ("user", last)]
    return [said, *({"role": role, "content": content} for role, content in turns)]


def test_the_same_last_words_in_another_conversation_are_another_query(path: Path) -> None:
    poem = chat("Write about autumn", "Leaves fall down, red and gold.", "make it shorter")
    network = chat("Explain TCP", "A handshake opens every connection.", "make it shorter")
    with ReferenceStore(path) as store:
        store.add(query_of(poem), "Leaves fall.")
        assert outputs(store, query_of(network)) == []
        store.add(query_of(network), "It shakes hands.")
        assert outputs(store, query_of(network)) == ["It shakes hands."]
        assert outputs(store, query_of(poem)) == ["Leaves fall."]


@pytest.mark.parametrize("query", ["", " ", "?!…", "\n\t", "_"])
def test_a_query_without_words_finds_nothing(path: Path, query: str) -> None:
    with ReferenceStore(path) as store:
        store.add("cats", "purr")
        store.add(query, "output")
        assert store.search(query) == []
        assert len(store) == 2


def test_scripts_without_spaces_are_searched_by_character(path: Path) -> None:
    with ReferenceStore(path) as store:
        store.add("法国的首都是哪里", "巴黎")
        store.add("怎么煮鸡蛋", "放进水里")
        assert outputs(store, "煮蛋") == ["放进水里"]
        assert outputs(store, "德国的首都")[0] == "巴黎"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_only_text(path: Path, text: str) -> None:
    with ReferenceStore(path, floor=0) as store:
        store.add("cats and dogs", "purr")
        store.add(text, text)
        store.add(text, text)
        assert len(store) == 2
        storable = text.encode("utf-8", "replace").decode()
        for entry in store.search(text):
            assert entry.output in ("purr", storable)
        if "cats" in text:
            assert set(outputs(store, text)) == {"purr", storable}


def test_the_same_pair_is_kept_once_and_renewed(path: Path) -> None:
    with ReferenceStore(path, clock=Clock()) as store:
        store.add("cats", "purr")
        first = store.search("cats")[0].added
        store.add("cats", "purr")
        store.add("cats", "meow")
        store.add("catsp", "urr")  # the same letters
        assert len(store) == 3
        assert sorted(outputs(store, "cats")) == ["meow", "purr"]
        assert min(entry.added for entry in store.search("cats")) > first


def test_the_oldest_used_go_first(path: Path) -> None:
    with ReferenceStore(path, max_entries=3, clock=Clock()) as store:
        for name in ("one", "two", "three"):
            store.add(name, f"output {name}")
        store.search("one")
        store.add("two", "output two")
        store.add("four", "output four")
        assert outputs(store, "three") == []
        assert [len(store.search(name)) for name in ("one", "two", "four")] == [1, 1, 1]
        assert len(store) == 3


def test_max_bytes(path: Path) -> None:
    with ReferenceStore(path, max_bytes=100, clock=Clock()) as store:
        for number in range(10):
            store.add(f"q{number}", "é" * 19)  # 40 bytes
        assert len(store) == 2
        assert store.info().text_bytes == 80
        assert outputs(store, "q9") and outputs(store, "q8")
        store.add("large", "x" * 200)
        assert len(store) == 2 and outputs(store, "large") == []


def test_max_age(path: Path) -> None:
    clock = Clock()
    with ReferenceStore(path, max_age_days=1, clock=clock) as store:
        store.add("cats", "purr")
        clock.now += 80_000
        assert outputs(store, "cats") == ["purr"]
        clock.now += 10_000  # being found does not make it younger
        assert outputs(store, "cats") == []
        store.add("dogs", "bark")
        assert len(store) == 1


def test_a_full_store_keeps_what_is_new_after_the_clock_was_set_back(path: Path) -> None:
    clock = Clock()
    with ReferenceStore(path, max_entries=3, clock=clock) as store:
        for number in range(3):
            store.add(f"old {number}", f"old output {number}")
        clock.now -= 500_000
        store.add("new 0", "new output 0")
        assert outputs(store, "new") == ["new output 0"]
        store.search("old 1")  # was used after all others, so it stays longest
        store.add("new 1", "new output 1")
        assert sorted(outputs(store, "new")) == ["new output 0", "new output 1"]
        for number in range(2, 5):
            assert outputs(store, "old 1") == ["old output 1"]
            store.add(f"new {number}", f"new output {number}")
        assert sorted(outputs(store, "new")) == ["new output 3", "new output 4"]


def test_what_was_added_before_the_clock_was_set_back_expires(path: Path) -> None:
    clock = Clock()
    with ReferenceStore(path, max_age_days=1, clock=clock) as store:
        store.add("old cats", "purr")
        clock.now -= 500_000
        store.add("new cats", "meow")
        assert sorted(outputs(store, "cats")) == ["meow", "purr"]
        newest = store.info().newest
        assert newest is not None and newest <= clock.now
        clock.now += 90_000
        assert outputs(store, "cats") == []
        store.add("dogs", "bark")
        assert len(store) == 1


@pytest.mark.parametrize("limits", [{"max_entries": 0}, {"max_bytes": -1}, {"max_age_days": 0.0}])
def test_limits_are_positive(path: Path, limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="above 0"):
        ReferenceStore(path, **limits)  # type: ignore[arg-type]


def test_reopening_keeps_everything_and_applies_the_new_limits(path: Path) -> None:
    with ReferenceStore(str(path)) as store:
        for number in range(5):
            store.add(f"q{number} cats", f"output {number}")
    with ReferenceStore(path, max_entries=2) as store:
        assert len(store) == 5
        store.add("q5 cats", "output 5")
        assert sorted(outputs(store, "cats")) == ["output 4", "output 5"]


def test_clear_takes_the_text_off_the_disk(path: Path) -> None:
    with ReferenceStore(path) as store:
        for number in range(50):
            store.add(f"secretquery{number}", f"secretoutput{number} " * 100)
        assert store.clear() == 50
        assert len(store) == 0 and store.search("secretquery1") == []
        kept = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert b"secret" not in kept
        store.add("cats", "purr")
        assert outputs(store, "cats") == ["purr"]


def test_info(path: Path) -> None:
    clock = Clock()
    with ReferenceStore(path, clock=clock) as store:
        assert (store.info().oldest, store.info().newest) == (None, None)
        store.add("cats", "purr")
        store.add("dogs", "bark")
        info = store.info()
        assert (info.path, info.entries, info.text_bytes) == (path, 2, 16)
        assert info.file_bytes > 0 and info.newest == clock.now and info.oldest == clock.now - 1
