"""Models that do not fit into memory are refused before they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_models import save_tiny_gguf, save_tiny_llama
from safetensors.torch import save_file
from tests.c_library import needs_library

import paceline.models.memory as memory
from paceline.errors import ModelError
from paceline.models import load_causal_lm
from paceline.models.gguf_file import GgufFile
from paceline.models.memory import free_memory
from paceline.models.source import ModelSource

NO_LIMIT = "9223372036854771712"  # how version 1 says it


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Say how much main memory is free."""
    return lambda free: monkeypatch.setattr(memory, "free_memory", lambda: free)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


def parameters(folder: Path) -> int:
    return sum(
        each.numel() for each in load_causal_lm(str(folder), device="cpu").model.parameters()
    )


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float64", 8)])
def test_what_is_needed_is_the_parameters_in_the_wanted_format(
    tiny: Path, room: Callable[[int], None], dtype: str, size: int
) -> None:
    needed = parameters(tiny) * size
    room(needed)
    load_causal_lm(str(tiny), device="cpu", dtype=dtype)
    room(needed - 1)
    with pytest.raises(
        ModelError, match=f"{tiny} needs about 0.0 GB in {dtype} but only 0.0 GB are"
    ) as c:
        load_causal_lm(str(tiny), device="cpu", dtype=dtype)
    hint = "a smaller model" if size == 2 else r"a smaller dtype \(--dtype bfloat16\)"
    assert c.match(f"free: choose {hint} or close other programs$")


def test_shards_count_together(tiny: Path, tmp_path: Path, room: Callable[[int], None]) -> None:
    model, tokenizer, _ = load_causal_lm(str(tiny), device="cpu")
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    tokenizer.save_pretrained(tmp_path)
    room(parameters(tiny) * 4 - 1)
    with pytest.raises(ModelError, match="needs about"):
        load_causal_lm(str(tmp_path), device="cpu")


def test_a_gguf_file_is_counted_unpacked(tmp_path: Path, room: Callable[[int], None]) -> None:
    file = save_tiny_gguf(tmp_path / "tiny.gguf")
    needed = parameters(file) * 4
    assert needed > file.stat().st_size
    room(needed)
    model = load_causal_lm(str(file), device="cpu", attn_implementation="eager").model
    assert model.config._attn_implementation == "eager"
    room(needed - 1)
    with pytest.raises(ModelError, match=r"tiny\.gguf needs about"):
        load_causal_lm(str(file), device="cpu")


@needs_library
def test_a_gguf_file_in_blocks_is_counted_as_it_is(
    tmp_path: Path, room: Callable[[int], None]
) -> None:
    file = save_tiny_gguf(tmp_path / "tiny.gguf")
    needed = sum(each.nbytes for each in GgufFile(file).tensors.values())
    assert needed < file.stat().st_size
    room(needed)
    load_causal_lm(str(file), device="cpu", blocks=True)
    room(needed - 1)
    words = r"needs about 0\.0 GB but only 0\.0 GB are free: choose a smaller model"
    with pytest.raises(ModelError, match=words):
        load_causal_lm(str(file), device="cpu", blocks=True)


def test_whole_numbers_stay_as_they_are_stored(tmp_path: Path) -> None:
    tensors = {"packed": torch.zeros(10, dtype=torch.int8), "scales": torch.zeros(3)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = ModelSource("quantised", folder=tmp_path)
    stored = memory.stored_tensors(source, None)
    assert memory.bytes_needed(stored, torch.bfloat16) == 10 + 3 * 2


def test_what_is_not_known_is_not_judged(tiny: Path, room: Callable[[int | None], None]) -> None:
    room(None)
    load_causal_lm(str(tiny), device="cpu")
    room(0)
    load_causal_lm(str(tiny), device_map="cpu")  # the map may say more than one device
    nowhere = ModelSource("owner/never-seen", repo="owner/never-seen")
    assert memory.bytes_needed(memory.stored_tensors(nowhere, None), torch.float32) is None
    assert memory._free_on(torch.device("meta")) is None


def test_a_graphics_card_counts_what_pytorch_holds_unused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"mem_get_info": (100, 1000), "memory_reserved": 70, "memory_allocated": 50}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    card = torch.device("cuda:1")
    assert memory._free_on(card) == 120
    source = ModelSource("tiny", folder=tiny)
    with pytest.raises(ModelError, match=r"0\.0 GB are free on cuda:1: choose a smaller model"):
        memory.check_memory(source, 121, torch.float16, card)


# What the system says.


def system(root: Path, **files: Any) -> Path:
    """A file system; "/" in names is written as "__"."""
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


MACHINE = {"proc__meminfo": "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:    5 kB\nHuge: 0"}
V2 = {"proc__self__cgroup": "0::/a/b"}
V1 = {"proc__self__cgroup": "12:cpu,cpuacct:/\n4:memory:/docker/c\n0::/"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        pytest.param({}, None, id="not Linux"),
        pytest.param(MACHINE, 5 * 1024, id="no groups"),
        pytest.param(MACHINE | {"proc__self__cgroup": "0::/"}, 5 * 1024, id="the top group"),
        pytest.param(
            {**MACHINE, **V2, "sys__fs__cgroup__a__b/memory.max": "max"}, 5 * 1024, id="no limit"
        ),
        pytest.param(
            {
                **(MACHINE | V2),
                "sys__fs__cgroup__a__b__memory.max": "2000",
                "sys__fs__cgroup__a__b__memory.current": "1900",
                "sys__fs__cgroup__a__b__memory.stat": "anon 7\nactive_file 30\ninactive_file 400",
            },
            530,
            id="files make room",
        ),
        pytest.param(
            {
                **(MACHINE | V2),
                "sys__fs__cgroup__a__b__memory.max": "max",
                "sys__fs__cgroup__a__b__memory.current": "1900",
                "sys__fs__cgroup__a__memory.max": "3000",
                "sys__fs__cgroup__a__memory.current": "2000",
            },
            1000,
            id="the group around it",
        ),
        pytest.param(
            {
                **(MACHINE | V2),
                "sys__fs__cgroup__memory.max": "10",
                "sys__fs__cgroup__memory.current": "20",
            },
            0,
            id="seen from inside a container, and over its limit",
        ),
        pytest.param(
            {
                **(MACHINE | V1),
                "sys__fs__cgroup__memory__docker__c__memory.limit_in_bytes": "2000",
                "sys__fs__cgroup__memory__docker__c__memory.usage_in_bytes": "1500",
                "sys__fs__cgroup__memory__docker__c__memory.stat": "total_inactive_file 100",
                "sys__fs__cgroup__memory__memory.limit_in_bytes": NO_LIMIT,
                "sys__fs__cgroup__memory__memory.usage_in_bytes": "9000",
            },
            600,
            id="version 1",
        ),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    assert free_memory(system(tmp_path, **files)) == free


def test_this_machine_says_something_sensible() -> None:
    free = free_memory()
    assert free is None or 1 << 20 < free < 1 << 50
