"""The store of encoded n-grams, against what an encoder would say anew."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.draft_hosts import TOY
from tests.head_parts import saved_chimera
from tests.helpers import generate, unweighted

from paceline.drafters import Chimera, Host, ngram_cache
from paceline.drafters.ngram_cache import Ngram, NgramCache, State
from paceline.drafters.trained_heads import ChimeraParts
from paceline.errors import UsageError
from paceline.targets.toy import ToyTarget


class Encoder:
    """Any function of the ids; counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, ngrams: Sequence[Ngram]) -> list[torch.Tensor]:
        self.asked += len(ngrams)
        return [torch.tensor([sum(ngram), ngram[-1]]).float() for ngram in ngrams]


def same(found: Sequence[State], expected: Sequence[State]) -> bool:
    """Whether these are the same states."""
    return len(found) == len(expected) and all(
        torch.equal(torch.as_tensor(one), torch.as_tensor(other))
        for one, other in zip(found, expected, strict=True)
    )


Ngrams = st.lists(
    st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=5), max_size=20
)


@given(calls=Ngrams, capacity=st.integers(0, 6), beforehand=st.booleans())
def test_it_says_what_the_encoder_says(
    calls: list[list[tuple[int, ...]]], capacity: int, beforehand: bool
) -> None:
    encoder = Encoder()
    known = {(0, 0, 0): encoder([(0, 0, 0)])[0]} if beforehand else None
    encoder.asked = 0
    cache = NgramCache(encoder, capacity, known)
    for ngrams in calls:
        assert same(cache.states(ngrams), Encoder()(ngrams))
    wanted = [ngram for ngrams in calls for ngram in set(ngrams) if ngram not in (known or {})]
    least = len(set(wanted)) if capacity else len(wanted)
    assert least <= encoder.asked <= len(wanted)


def test_states_not_to_be_kept_are_encoded_again() -> None:
    encoder = Encoder()
    cache = NgramCache(encoder, capacity=9)
    for asked in (1, 2):
        assert same(cache.states([(1, 2, 3)], keep=False), Encoder()([(1, 2, 3)]))
        assert encoder.asked == asked


def test_who_was_not_used_for_longest_leaves_first() -> None:
    encoder = Encoder()
    cache = NgramCache(encoder, capacity=2)
    for ngram in [(1,), (2,), (1,), (3,), (1,)]:  # 3 drives out 2, since 1 was used later
        cache.states([ngram])
    assert encoder.asked == 3
    cache.states([(2,)])
    assert encoder.asked == 4


def test_what_leaves_memory_is_found_on_disk_by_the_next_process_too(tmp_path: Path) -> None:
    file = tmp_path / "spill.sqlite"
    encoder = Encoder()
    cache = NgramCache(encoder, capacity=1, spill=file)
    for number in range(5):
        cache.states([(number,)])
    assert same(cache.states([(0,)]), Encoder()([(0,)]))
    assert encoder.asked == 5
    another = NgramCache(encoder, capacity=1, spill=file)
    another.states([(1,), (2,)])
    assert encoder.asked == 5


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "text.sqlite"
    file.write_text("this is no database, but a text that is long enough to be read as one" * 20)
    with pytest.raises(UsageError, match=r"text\.sqlite"):
        NgramCache(Encoder(), capacity=1, spill=file)


def test_a_file_that_fails_is_a_warning_and_states_are_encoded_anew(tmp_path: Path) -> None:
    file, encoder = tmp_path / "spill.sqlite", Encoder()
    cache = NgramCache(encoder, capacity=1, spill=file)
    cache.states([(0,)])
    database = sqlite3.connect(file)
    database.execute("DROP TABLE states")
    database.close()
    with pytest.warns(RuntimeWarning, match=r"no longer kept in .*spill\.sqlite"):
        cache.states([(1,)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in [2, 1, 0, 3]:
            assert same(cache.states([(number,)]), Encoder()([(number,)]))
    assert encoder.asked == 6


def test_a_file_holds_the_states_evicted_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram_cache, "_MOST_ON_DISK", 20)
    file = tmp_path / "spill.sqlite"
    caches = [NgramCache(Encoder(), 1, spill=file, parts=name) for name in ("one", "two")]
    for number in range(30):
        for cache in caches:
            cache.states([(number,)])
    (rows,) = sqlite3.connect(file).execute("SELECT COUNT(*) FROM states").fetchone()
    assert rows == 20
    encoder = Encoder()
    again = NgramCache(encoder, 1, spill=file, parts="two")
    again.states([(number,) for number in range(30)])
    assert encoder.asked == 30 - 10


def test_encoders_share_a_file_and_never_get_one_anothers_states(tmp_path: Path) -> None:
    file, encoder = tmp_path / "spill.sqlite", Encoder()

    def doubled(ngrams: Sequence[Ngram]) -> list[torch.Tensor]:
        return [2 * state for state in encoder(ngrams)]

    def wide(ngrams: Sequence[Ngram]) -> list[torch.Tensor]:
        return [state.repeat(3) for state in encoder(ngrams)]

    caches = {
        name: (NgramCache(encode, capacity=1, spill=file, parts=name), encode)
        for name, encode in (("one", encoder), ("two", doubled), ("three", wide))
    }
    for _ in range(2):
        for cache, encode in caches.values():
            for number in range(4):
                assert same(cache.states([(number,)]), encode([(number,)]))
    # Each cache has encoded each n-gram once; the other two times are for the comparison.
    assert encoder.asked == 3 * 4 * 3
    again = NgramCache(doubled, capacity=1, spill=file, parts="two")
    found = again.states([(2,)])
    assert encoder.asked == 3 * 4 * 3
    assert same(found, doubled([(2,)]))


def test_a_damaged_file_is_named_before_anything_is_decoded(tmp_path: Path) -> None:
    file = tmp_path / "spill.sqlite"
    cache = NgramCache(Encoder(), capacity=1, spill=file)
    for number in range(2000):
        cache.states([(number,)])
    del cache
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8192] = b"\xff" * 8192
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"spill\.sqlite.*name another file"):
        NgramCache(Encoder(), capacity=1, spill=file)


def test_a_file_of_an_older_layout_is_named(tmp_path: Path) -> None:
    file = tmp_path / "old.sqlite"
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE states (ngram TEXT PRIMARY KEY, state BLOB)")
    database.close()
    with pytest.raises(UsageError, match=r"old\.sqlite.*name another file"):
        NgramCache(Encoder(), capacity=1, spill=file)


def test_chimera_draws_no_states_of_other_parts_from_a_shared_file(tmp_path: Path) -> None:
    first, spill = saved_chimera(), str(tmp_path / "spill.sqlite")
    parts = ChimeraParts.from_pretrained(first)
    other = {name: -tensor for name, tensor in parts.tensors.items()}
    second = tmp_path / "other"
    replace(parts, tensors=other).save_pretrained(second)

    def trees(folder: Path, **settings: Any) -> list[Any]:
        drafter = Chimera(
            Host(ToyTarget(), TOY), parts=str(folder), depth=4, least=0.0, cache=1, **settings
        )
        _, rounds, _ = generate(ToyTarget(), drafter, [3, 1, 4, 1, 5], 20)
        return [unweighted(round.tree) for round in rounds]

    expected = [trees(folder) for folder in (first, second)]
    assert expected[0] != expected[1]
    for _ in range(2):
        assert [trees(folder, spill=spill) for folder in (first, second)] == expected


def test_parts_that_differ_in_anything_have_other_fingerprints() -> None:
    parts = ChimeraParts.from_pretrained(saved_chimera())
    name, tensor = next(iter(parts.tensors.items()))
    changed = tensor.clone()
    changed.view(-1)[-1] += 1e-3
    assert parts.fingerprint() == ChimeraParts.from_pretrained(saved_chimera()).fingerprint()
    others = [
        replace(parts, tensors={**parts.tensors, name: changed}),
        replace(parts, config=replace(parts.config, order=parts.config.order + 1)),
        replace(parts, base=replace(parts.base, fingerprint="another")),
    ]
    assert len({parts.fingerprint(), *(other.fingerprint() for other in others)}) == 4
