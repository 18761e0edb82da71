"""Memory that is taken when it is written."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from paceline.kernels import memory
from paceline.kernels.memory import FilePages, WeightMemory, lazy_zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(1, 3, 70, 8), (1, 1, 0, 8), (1, 2, 5, 0)])
def test_they_are_zeros_that_can_be_written(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = lazy_zeros(shape, dtype)
    assert found.shape == shape and found.dtype == dtype
    assert not found.any()
    found += 1
    assert bool((found == 1).all())
    assert found.data_ptr() % 64 == 0 or not found.numel()


def test_a_reservation_beyond_memory_takes_what_is_written_only() -> None:
    large = lazy_zeros((1, 1, 1 << 17, 4096), torch.float32)  # 2 GB
    large[0, 0, -1] = 1
    assert float(large[0, 0, -1].sum()) == 4096


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="only Linux says so")
def test_its_pages_are_never_made_huge() -> None:
    tensor = lazy_zeros((1 << 20,), torch.float32)
    assert "nh" in flags_of(tensor)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has them")
def test_weights_ask_for_huge_pages() -> None:
    assert "hg" in flags_of(WeightMemory().empty(5 << 20))


def flags_of(tensor: torch.Tensor) -> list[str]:
    """The system's flags of a tensor's memory."""
    begins = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            start, end = (int(side, 16) for side in name.split("-"))
            begins = start <= tensor.data_ptr() < end
        elif name == "VmFlags:" and begins:
            return words
    return []


REGIONS = {
    "10000-20000 rw-p 00000000 08:01 42   /a model.safetensors": (0, 0),
    "20000-30000 rw-p 00000000 08:01 43   /written.safetensors": (4, 0),
    "30000-40000 rw-p 00000000 08:01 44   /written-long-ago.safetensors": (0, 4),
    "40000-50000 rw-p 00000000 00:00 0    [heap]": (0, 0),
    "50000-60000 r--s 00000000 08:01 45   /shared.safetensors": (0, 0),
    "60000-70000 rw-p 00000000 08:01 46   /last.safetensors": (0, 0),
}


def test_pages_that_were_written_are_never_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it an error that the system does not list them."""
    maps = tmp_path / "smaps"
    maps.write_text(
        "".join(
            f"{region}\nRss: 64 kB\nAnonymous: {written} kB\nSwap: {swapped} kB\nSwapPss: 0 kB\n"
            for region, (written, swapped) in REGIONS.items()
        )
    )
    monkeypatch.setattr(memory, "_MAPS", maps)
    assert FilePages()._unwritten == [(0x10000, 0x20000), (0x60000, 0x70000)]
    for unreadable in (tmp_path, tmp_path / "missing"):
        monkeypatch.setattr(memory, "_MAPS", unreadable)
        assert FilePages()._unwritten == []
