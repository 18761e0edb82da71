"""When repeated work is recorded; with recorders for the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.cpu_recorder import CpuRecorder, Refuses

from paceline.kernels.cuda_graph import NoWaiting, Repeated, Run


class NoMemory:
    def record(self, run: Run) -> Run:
        raise torch.OutOfMemoryError


def test_work_is_recorded_in_a_thread_that_has_done_it_before() -> None:
    numbers = torch.arange(3.0)
    work = Repeated(lambda: numbers + 1, CpuRecorder())  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as other:
        found = [work(), other.submit(work).result()]
        assert not work.recorded
        found.append(other.submit(work).result())
        assert work.recorded
    assert [each.tolist() for each in found] == [[1, 2, 3]] * 3
    numbers += 1
    assert work().tolist() == [2, 3, 4]


def test_work_can_be_recorded_in_its_first_call() -> None:
    numbers, runs = torch.zeros(3), []

    def run() -> torch.Tensor:
        runs.append(1)
        return numbers + 1

    work = Repeated(run, CpuRecorder(), at_once=True)  # type: ignore[arg-type]
    assert work().tolist() == [1, 1, 1] and work.recorded
    assert len(runs) == 2  # once to set things up, once to record
    numbers += 1
    assert work().tolist() == [2, 2, 2] and len(runs) == 2


def test_without_memory_for_a_recording_work_runs_as_before() -> None:
    work = Repeated(lambda: torch.ones(2), NoMemory())  # type: ignore[arg-type]
    assert [work().tolist() for _ in range(3)] == [[1, 1]] * 3
    assert not work.recorded and work.failed is None


def test_a_failed_recording_is_not_tried_again() -> None:
    work = Repeated(lambda: torch.ones(2), Refuses())  # type: ignore[arg-type]
    assert [work().tolist() for _ in range(3)] == [[1, 1]] * 3
    assert not work.recorded and work.failed is not None


@pytest.mark.parametrize(
    "wait",
    [
        lambda numbers: numbers.sum().item(),
        lambda numbers: numbers[numbers > 1],
        lambda numbers: numbers.to("meta"),
        lambda numbers: torch.empty(3, device="meta").copy_(numbers),
    ],
)
def test_work_that_waits_for_the_device_is_found_in_its_own_thread(wait: object) -> None:
    assert callable(wait)
    numbers = torch.arange(3.0)
    with ThreadPoolExecutor(1) as other, NoWaiting():  # type: ignore[no-untyped-call]
        assert numbers.to(torch.float64).clone().add_(1).dtype == torch.float64
        other.submit(wait, numbers).result()
        with pytest.raises(RuntimeError, match="waits for the device"):
            wait(numbers)
