"""Whoever leaves, waits too long or comes at the wrong time."""

from __future__ import annotations

import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from weakref import ReferenceType, ref

import httpx
import pytest
import torch
from tests.serve.live import (
    MODEL,
    TRUSTS_NOBODY,
    Live,
    SlowToy,
    live,
    tool_session,
    wait_for,
)

from paceline.drafters import Plain
from paceline.records import Round, TextStart
from paceline.serve import engine, handling

LONG = {"max_tokens": 3500, "ignore_eos": True}


def slow(**settings: Any) -> Any:
    return live(tool_session(SlowToy, "plain"), **settings)


def open_stream(served: Live, **fields: Any) -> Any:
    """A long stream, as a context."""
    body = {"model": MODEL, "prompt": "once", "stream": True, **LONG, **fields}
    return served.http.stream("POST", "/v1/completions", json=body)


def idle(served: Live) -> bool:
    return served.server.engine.load == (0, 0)


@pytest.mark.parametrize("texts", [1, 3])
def test_a_stream_that_nobody_reads_any_more_ends(texts: int) -> None:
    with slow(time_limit=100) as served:
        with open_stream(served, n=texts) as response:
            lines = response.iter_lines()  # which hangs up when it is collected
            next(lines)
            assert served.server.engine.load[0] == texts
        wait_for(lambda: idle(served))
        left = f'finished_reason="abort",model_name="{MODEL}"}} {texts}.0'
        assert left in served.http.get("/metrics").text
        assert served.chat().status_code == 200


def test_an_answer_that_nobody_waits_for_any_more_ends() -> None:
    with slow() as served:
        with pytest.raises(httpx.ReadTimeout):
            served.http.post(
                "/v1/completions", json={"model": MODEL, "prompt": "a", **LONG}, timeout=0.3
            )
        wait_for(lambda: idle(served))


def test_a_full_queue_says_so_and_whoever_leaves_it_makes_room() -> None:
    with slow(max_batch=1, max_queue=1) as served, ThreadPoolExecutor() as threads:
        with open_stream(served) as response:
            lines = response.iter_lines()  # which hangs up when it is collected
            next(lines)
            waiting = threads.submit(
                httpx.post,
                f"{served.url}/v1/completions",
                json={"model": MODEL, "prompt": "b", **LONG},
                timeout=0.5,
            )
            wait_for(lambda: served.server.engine.load == (1, 1))
            refused = served.complete("c")
            assert refused.status_code == 429
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert int(refused.headers["retry-after"]) >= 1
            with pytest.raises(httpx.ReadTimeout):
                waiting.result()
            wait_for(lambda: served.server.engine.load == (1, 0))
        wait_for(lambda: idle(served))
        assert 'reason="queue_full"} 1.0' in served.http.get("/metrics").text


@pytest.mark.parametrize("most", [0, 2])
def test_requests_that_find_room_are_not_counted_as_waiting(most: int) -> None:
    with slow(max_batch=4, max_queue=most) as served, ThreadPoolExecutor() as threads:
        asked = [
            threads.submit(served.complete, "a", max_tokens=8, ignore_eos=True)
            for _ in range(4 + most)
        ]
        assert [each.result().status_code for each in asked] == [200] * (4 + most)


def test_a_request_that_takes_too_long_is_broken_off() -> None:
    with slow(time_limit=1) as served:
        late = served.complete("a", **LONG)
        assert late.status_code == 408
        assert late.headers["x-should-retry"] == "false"
        assert late.json()["error"]["code"] == "timeout"
        streamed = served.complete("a", stream=True, **LONG)
        assert streamed.status_code == 200
        last = json.loads(streamed.text.strip().split("\n\n")[-1].removeprefix("data: "))
        assert last["error"]["code"] == "timeout"
        assert "[DONE]" not in streamed.text
        assert idle(served)


TOOL = {"name": "stop", "parameters": {"type": "object", "additionalProperties": False}}
CALL = {
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@pytest.mark.parametrize("fields", [{}, CALL], ids=["nothing is written", "a call is held back"])
def test_a_silent_stream_says_that_it_goes_on(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies and clients close connections on which nothing comes."""
    monkeypatch.setattr(handling, "_SILENCE", 0.005)  # a pass takes longer
    asked = {"seed": 1, "max_tokens": 40, **fields}
    with slow() as served:
        blocks = served.chat(**asked, stream=True).text.split("\n\n")[:-1]
        whole = served.chat(**asked).json()["choices"][0]
    assert blocks.pop() == "data: [DONE]"
    lines = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    assert len(lines) < len(blocks)
    choices = [json.loads(line)["choices"][0] for line in lines]
    said = "".join(choice["delta"].get("content", "") for choice in choices)
    assert said == (whole["message"]["content"] or "")
    assert choices[-1]["finish_reason"] == whole["finish_reason"]


def test_stopping_lets_requests_finish() -> None:
    with slow(grace=30) as served, ThreadPoolExecutor() as threads:
        running = threads.submit(served.complete, "a", max_tokens=60, ignore_eos=True)
        wait_for(lambda: served.server.engine.load == (1, 0))
        served.stop()
        wait_for(lambda: served.http.get("/ready").status_code == 503)
        assert served.http.get("/health").status_code == 200
        turned_away = served.complete("b")
        assert turned_away.status_code == 503
        assert turned_away.json()["error"]["code"] == "stopping"
        answer = running.result()
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 60
        served.thread.join(20)
        assert not served.thread.is_alive()


def test_after_the_grace_period_requests_are_cut_off() -> None:
    with slow(grace=0) as served, ThreadPoolExecutor() as threads:
        whole = threads.submit(served.complete, "a", **LONG)
        streamed = threads.submit(served.complete, "b", stream=True, **LONG)
        wait_for(lambda: served.server.engine.load == (2, 0))
        time.sleep(0.2)
        served.stop()
        assert whole.result().status_code == 503
        assert '"code": "stopping"' in streamed.result().text
        served.thread.join(20)
        assert not served.thread.is_alive()


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with slow(body_limit=1) as served:
        connection = HTTPConnection(served.url.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b'{"model":')
        assert connection.getresponse().status == 408
        connection.close()


def test_a_body_without_a_length_is_limited() -> None:
    with slow(max_body=1000) as served:
        response = served.http.post(
            "/v1/completions",
            content=(b" " * 100 for _ in range(100)),
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code == 413


def test_an_error_in_a_round_ends_its_requests_and_not_the_server() -> None:
    class Breaking(SlowToy):
        broken = False

        def commit(self, *work: Any) -> None:
            if Breaking.broken:
                Breaking.broken = False
                raise RuntimeError("/secret/path is on fire")
            super().commit(*work)

    with live(tool_session(Breaking, "plain")) as served, ThreadPoolExecutor() as threads:
        running = threads.submit(served.complete, "a", **LONG)
        wait_for(lambda: served.server.engine.load == (1, 0))
        Breaking.broken = True
        failed = running.result()
        assert failed.status_code == 500
        assert failed.json()["error"]["type"] == "server_error"
        assert "secret" not in failed.text
        assert served.complete("a").status_code == 200
        assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize("name", ["deliver", "give_back"])
def test_an_error_between_rounds_ends_its_requests_and_not_the_server(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = getattr(engine, name), threading.Event()

    def breaking(*given: Any) -> Any:
        if broken.is_set():
            broken.clear()
            raise MemoryError
        return real(*given)

    monkeypatch.setattr(engine, name, breaking)
    monkeypatch.setattr(engine, "_TIDY", 0.0)
    with slow() as served, ThreadPoolExecutor() as threads:
        running = threads.submit(served.complete, "a", **LONG)
        wait_for(lambda: served.server.engine.load == (1, 0))
        broken.set()
        assert running.result().status_code == 500
        assert served.complete("a").status_code == 200
        assert served.http.get("/health").status_code == 200


def test_a_request_that_fails_leaves_no_logits_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ReferenceType[torch.Tensor]] = []

    class Broken(SlowToy):
        def score(self, *work: Any) -> Any:
            found = {slot: rows * torch.nan for slot, rows in super().score(*work).items()}
            made.extend(map(ref, found.values()))
            return found

    monkeypatch.setattr(
        engine, "log_error", lambda *line, **more: None
    )  # pytest keeps errors logged
    with live(tool_session(Broken, "plain")) as served:
        gc.disable()
        try:
            assert served.complete("a", temperature=0).status_code == 500
            wait_for(lambda: made and all(each() is None for each in made))
        finally:
            gc.enable()


def test_a_panic_while_a_text_joins_ends_its_request() -> None:
    class PanicError(BaseException):
        pass

    class Panicking(SlowToy):
        def open(self, prompt: Any, *more: Any) -> Any:
            if len(prompt) == 3:
                raise PanicError
            return super().open(prompt, *more)

    with live(tool_session(Panicking, "plain")) as served, ThreadPoolExecutor() as threads:
        running = threads.submit(served.complete, "a", max_tokens=60, ignore_eos=True)
        wait_for(lambda: served.server.engine.load == (1, 0))
        assert served.complete("abc").status_code == 500
        assert running.result().status_code == 200
        assert served.http.get("/health").status_code == 200


def test_a_panic_in_a_round_ends_the_request_of_its_text_alone() -> None:
    class PanicError(BaseException):
        pass

    failing: list[Plain] = []

    class Panicking(Plain):
        def start(self, text: TextStart) -> None:
            self.fails = len(text.context) == 3 and not failing
            failing.extend([self] * self.fails)

        def observe(self, round: Round) -> None:
            if self.fails:
                raise PanicError

    with live(tool_session(SlowToy, Panicking)) as served, ThreadPoolExecutor() as threads:
        running = threads.submit(served.complete, "a", max_tokens=60, ignore_eos=True)
        wait_for(lambda: served.server.engine.load == (1, 0))
        # The other text of the request ends in the same round.
        assert served.complete("abc", n=2, max_tokens=1).status_code == 500
        assert running.result().status_code == 200


def test_many_come_and_go() -> None:
    """Half of them leave at some time; the others get what they get alone."""
    with slow(max_batch=4, max_queue=100) as served:
        alone = [
            served.complete("x" * (1 + i), seed=i, max_tokens=15).json()["choices"]
            for i in range(8)
        ]
        found: dict[int, Any] = {}

        def ask(place: int) -> None:
            body = {"model": MODEL, "prompt": "x" * (1 + place % 8), "seed": place % 8}
            url = f"{served.url}/v1/completions"
            if place % 2:
                try:
                    with httpx.Client(timeout=0.01 * place, verify=TRUSTS_NOBODY) as client:
                        client.post(url, json={**body, **LONG})
                except httpx.TimeoutException:
                    return
            answer = httpx.post(
                url, json={**body, "max_tokens": 15}, timeout=60, verify=TRUSTS_NOBODY
            )
            found[place] = answer.json()

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for place in range(0, 32, 2):
            assert found[place]["choices"] == alone[place % 8]
        wait_for(lambda: idle(served), 10)
