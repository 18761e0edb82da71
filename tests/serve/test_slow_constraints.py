"""Constraints that take too long to compile, and the requests beside them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from tests.serve.live import MODEL, Live, SlowToy, live, tool_session, wait_for

from paceline.constraints import Constraint, grammars
from paceline.options import Options
from paceline.serve import compiler as module
from paceline.serve.compiler import Compiler
from paceline.serve.errors import ApiError
from paceline.serve.ticket import Order
from paceline.session import Session

pytest.importorskip("llguidance", reason="needs paceline[constraints]")

FOREVER = 1e9


class Stuck:
    """A session whose constraints do not compile before `free` is set. begun: their number."""

    def __init__(self) -> None:
        self.session, self.free, self.begun = tool_session(), Event(), 0
        compiled = self.session._grammars.matcher

        def matcher(constraint: Constraint) -> Any:
            self.begun += 1
            self.free.wait(60)
            return compiled(constraint)

        self.session._grammars.matcher = matcher  # type: ignore[method-assign]


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.free.set()


def impatient(served: Live, **settings: Any) -> None:
    """Let the server give up its constraints early."""
    compiler = Compiler(served.server.session, **settings)
    object.__setattr__(served.server.handler, "compiler", compiler)
    served.server.compiler = compiler


def held(served: Live, place: int = 0, **fields: Any) -> httpx.Response:
    """Ask for an answer with a constraint of its own."""
    return served.complete(structured_outputs={"choice": ["yes", f"no {place}"]}, **fields)


def choice(place: int) -> Constraint:
    return Constraint.choice(["yes", f"no {place}"])


def order(place: int) -> Order:
    return Order([1], Options(constraint=choice(place)))


def test_other_requests_and_stopping_do_not_wait_for_constraints(stuck: Stuck) -> None:
    with live(stuck.session) as served, ThreadPoolExecutor(6) as threads:
        asked: list[Future[httpx.Response]] = [
            threads.submit(held, served, place) for place in range(6)
        ]
        wait_for(lambda: stuck.begun == 2)
        assert served.chat().status_code == 200
        assert served.complete(logprobs=1).status_code == 200
        served.stop()
        for each in asked:
            assert each.result(30).status_code == 503
            assert each.result().json()["error"]["code"] == "stopping"
        served.thread.join(30)
        assert not served.thread.is_alive()
    assert stuck.begun == 2


def test_a_constraint_that_takes_too_long_is_given_up(stuck: Stuck) -> None:
    with live(stuck.session) as served:
        impatient(served, patience=0.2, threads=1)
        late = held(served)
        assert late.status_code == 400
        assert "takes too long to compile" in late.json()["error"]["message"]
        assert held(served).status_code == 400  # it takes no second thread
        refused = held(served, 1)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "compilers_stuck"
        assert int(refused.headers["retry-after"]) >= 1
        assert stuck.begun == 1
        assert served.chat().status_code == 200
        stuck.free.set()
        wait_for(lambda: held(served).status_code == 200)
        assert held(served, 1).status_code == 200


def test_no_constraint_is_blamed_for_a_vocabulary_that_takes_long_to_read() -> None:
    session = tool_session()
    read = session._grammars._read_vocabulary

    def slowly() -> Any:
        sleep(0.6)
        return read()

    session._grammars._read_vocabulary = slowly  # type: ignore[method-assign]
    with live(session) as served:
        impatient(served, patience=0.5)
        assert held(served).status_code == 200


def test_a_thread_that_cannot_start_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    compiler = Compiler(tool_session(), threads=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "in_own_thread", full)
        for place in (0, 0, 1):
            with pytest.raises(ApiError, match="take too long to compile") as caught:
                asyncio.run(compiler.compiled(order(place), monotonic() + 60))
            assert caught.value.status == 503
    assert asyncio.run(compiler.compiled(order(0), monotonic() + 60)) is not None


def test_the_time_limit_counts_from_before_a_constraint_is_compiled(stuck: Stuck) -> None:
    with live(stuck.session, time_limit=1) as served:
        late = held(served)
        assert late.status_code == 400
        assert "takes too long to compile" in late.json()["error"]["message"]


def test_whoever_leaves_does_not_keep_a_constraint_waiting(stuck: Stuck) -> None:
    with live(stuck.session) as served:
        impatient(served, patience=FOREVER, threads=1)
        compiler = served.server.compiler
        for count, pattern in enumerate(("a+", "b+"), start=1):
            wanted = {"model": MODEL, "prompt": "a", "structured_outputs": {"regex": pattern}}
            with pytest.raises(httpx.ReadTimeout):
                served.http.post("/v1/completions", json=wanted, timeout=0.5)
            wait_for(lambda: not any(each.wanted for each in compiler._jobs.values()))
            assert len(compiler._jobs) == count
        stuck.free.set()
        wait_for(lambda: not compiler._jobs)
        assert stuck.begun == 1


def test_requests_with_one_constraint_share_its_thread_and_its_outcome(stuck: Stuck) -> None:
    async def ask() -> list[Any]:
        compiler = Compiler(stuck.session, FOREVER, 1)
        waits = [
            asyncio.ensure_future(compiler.compiled(order(place), FOREVER)) for place in (0, 0, 1)
        ]
        await asyncio.sleep(0)
        waits[1].cancel()
        stuck.free.set()
        return await asyncio.gather(*waits, return_exceptions=True)

    first, left, other = asyncio.run(ask())
    assert first and other
    assert isinstance(left, asyncio.CancelledError)
    assert stuck.begun == 2


def test_what_is_compiled_needs_no_thread(stuck: Stuck) -> None:
    stuck.free.set()
    wanted = choice(0)
    assert stuck.session.compiled(wanted) is None
    stuck.session._grammars.matcher(wanted)
    compiler = Compiler(stuck.session, FOREVER, 0)  # with which nothing would be compiled
    found = asyncio.run(compiler.compiled(order(0), FOREVER))
    assert found is stuck.session.compiled(wanted) is not None


def test_the_engine_compiles_nothing_however_many_constraints_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammars, "MOST_COMPILED", 1)
    session, compiled = tool_session(SlowToy), []
    compile_one = session._grammars._compile

    def counted(constraint: Constraint) -> Any:
        compiled.append(constraint)
        return compile_one(constraint)

    session._grammars._compile = counted  # type: ignore[method-assign]
    with live(session, max_batch=1) as served, ThreadPoolExecutor(4) as threads:
        running = threads.submit(served.complete, "a", max_tokens=100, ignore_eos=True)
        wait_for(lambda: served.server.engine.load == (1, 0))
        asked = [threads.submit(held, served, place) for place in range(3)]
        wait_for(lambda: served.server.engine.load == (1, 3))
        assert [each.result().status_code for each in (running, *asked)] == [200] * 4
    assert len(compiled) == 3


def test_a_library_that_panics_fails_its_request_alone() -> None:
    class PanicError(BaseException):
        pass

    def matcher(constraint: Constraint) -> Any:
        raise PanicError

    session: Session = tool_session()
    session._grammars.matcher = matcher  # type: ignore[method-assign]
    with pytest.raises(ApiError) as failed:
        asyncio.run(Compiler(session).compiled(order(0), FOREVER))
    assert failed.value.status == 500


def test_the_process_ends_while_a_constraint_is_compiled() -> None:
    script = """
        from threading import Event
        from paceline.constraints.own_thread import in_own_thread
        in_own_thread(Event().wait)
        print("done")
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "done\n"
