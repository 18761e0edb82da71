"""Cores of a container are no more than its time is worth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.kernels.native.cores import usable_cores


@pytest.mark.parametrize(
    ("name", "content", "most"),
    [
        ("cpu.max", "150000 100000", 1),
        ("cpu.max", "50000 100000", 1),
        ("cpu.max", "max 100000", None),
        ("cpu.max", "broken", None),
        ("cpu.max", "", None),
        ("cpu.max", "100000 0", None),
    ],
)
def test_a_container_s_time_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, most: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: range(8), raising=False)
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / name).write_text(content)
    assert usable_cores(tmp_path) == (most or 8)


def test_older_containers_say_it_in_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: range(8), raising=False)
    folder = tmp_path / "sys/fs/cgroup/cpu"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("300000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == 3
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(tmp_path) == 8


@pytest.mark.parametrize("where", ["system.slice/some.service", "system.slice"])
def test_a_service_is_limited_by_its_group_and_those_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: range(8), raising=False)
    folder = tmp_path / "sys/fs/cgroup" / where
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text("200000 100000\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("broken\n0::/system.slice/some.service\n")
    assert usable_cores(tmp_path) == 2
