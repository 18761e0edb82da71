"""The most memory that a stretch of work holds."""

from __future__ import annotations

from mmap import mmap

import pytest
import torch

from paceline.bench import memory
from paceline.bench.memory import MemoryUse, peak_meter

CPU = torch.device("cpu")
LARGE = 64 << 20


def new_pages() -> mmap:
    """Memory that the process has not held before, unlike what its heap may have kept."""
    pages = mmap(-1, LARGE)
    for _ in range(LARGE >> 20):
        pages.write(b"x" * (1 << 20))
    return pages


def watched() -> tuple[int, int, int, int] | None:
    """What a meter says before, with and after a large allocation, and what a new one says then."""
    meter = peak_meter(CPU)
    before = meter()
    large = new_pages()
    held = meter()
    large.close()
    said = before, held, meter(), peak_meter(CPU)()
    return None if None in said else said  # type: ignore[return-value]


def test_an_allocation_is_noticed_and_then_forgotten() -> None:
    for last in (False, False, True):  # the kernel may take other pages of ours back meanwhile
        said = watched()
        if said is None:
            pytest.skip("nobody can say here what a process holds")
        before, held, after, again = said
        noticed = LARGE * 0.9 < held - before < LARGE * 2
        if last or (noticed and after > held - LARGE / 10 and again < held - LARGE / 2):
            break
    assert noticed
    assert after > held - LARGE / 10
    assert again < held - LARGE / 2


def test_where_nobody_can_say_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(memory, "_RESET", memory.Path("/nowhere/clear_refs"))
    assert peak_meter(CPU)() is None
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert peak_meter(CPU)() is None


def test_what_stays_loaded_counts_for_who_loaded_it() -> None:
    use = MemoryUse(CPU, "plain")
    if use.trial("plain")() is None:
        pytest.skip("nobody can say here what a process holds")
    loading = use.trial("own")
    own = new_pages()
    loading()
    loading = use.trial("plain")
    shared = new_pages()
    loading()
    taken = {name: use.trial(name)() for name in ("own", "plain", "other")}
    own.close()
    shared.close()
    assert taken["own"] is not None and LARGE * 0.9 < taken["own"] < LARGE * 2
    assert all(taken[name] is not None and taken[name] < LARGE / 2 for name in ("plain", "other"))


def test_what_is_loaded_before_the_first_trial_counts_too() -> None:
    own, loaded = memory.measure_load(CPU, new_pages)
    use = MemoryUse(CPU, "plain", {"own": loaded})
    taken = use.trial("own")()
    own.close()
    if taken is None:
        pytest.skip("nobody can say here what a process holds")
    assert LARGE * 0.9 < loaded <= taken < LARGE * 2
