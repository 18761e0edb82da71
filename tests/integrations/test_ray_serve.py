"""The application on Ray: how it is built, and that the death of a replica costs no whole answer."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")

import ray
from pydantic import ValidationError
from ray import serve
from tests.serve.live import wait_for
from tests.tiny import save_tiny_llama

import paceline
from paceline.errors import UsageError
from paceline.integrations.ray_serve import app


def options(application: Any) -> tuple[Any, Any]:
    """Of the front and of the replicas that it is bound to."""
    front = application._bound_deployment
    return front, front.init_args[0]._bound_deployment


def test_replicas_are_as_many_as_one_says() -> None:
    front, replica = options(app({"min_replicas": "2", "num_cpus": "0.5", "max_batch": "4"}))
    assert front.num_replicas == 1
    assert replica.num_replicas == 2
    assert replica.ray_actor_options["num_cpus"] == 0.5
    (arguments,) = replica.init_args
    assert (arguments.model, arguments.max_batch) == ("smollm2-135m", 4)
    assert replica.max_ongoing_requests > arguments.max_batch + arguments.max_queue


def test_replicas_follow_the_load() -> None:
    _, replica = options(app({"max_replicas": 3, "max_batch": 8, "downscale_delay_s": 60}))
    scaling = replica._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 3)
    assert scaling.target_ongoing_requests == 8
    assert scaling.downscale_delay_s == 60


@pytest.mark.parametrize(
    "wrong",
    [{"modle": "x"}, {"num_cpus": "many"}, {"min_replicas": 0}, {"max_batch": "few"}],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        app(wrong)


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(UsageError, match="max_replicas"):
        app({"min_replicas": 3, "max_replicas": 2})
    with pytest.raises((UsageError, ValidationError), match="max_batch"):
        app({"max_batch": 0})


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Two replicas of a tiny model; the address, and the model's folder."""
    model = save_tiny_llama(tmp_path_factory.mktemp("ray") / "tiny")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    source = str(Path(paceline.__file__).parents[1])
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": source}},
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        given = {"model": str(model), "method": "anpd", "min_replicas": 2, "num_cpus": 0.2}
        serve.run(app(given), name="paceline")
        yield f"http://127.0.0.1:{port}", model
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(url: str, place: int, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "x" * (1 + place), "seed": place, "max_tokens": 200}
    return httpx.post(f"{url}/v1/completions", json={**body, **fields}, timeout=120)


def replica_processes(url: str) -> set[int]:
    """Those of the replicas that answer just now."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::ServeReplica:paceline:Replica") and _is_ours(int(entry.name)):
            found.add(int(entry.name))
    return found


def _is_ours(process: int) -> bool:
    """Whether it belongs to this test's cluster."""
    session = ray._private.worker.global_worker.node.get_session_dir_path()
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    parent = Path(f"/proc/{fields[1]}/cmdline")
    return session.encode() in parent.read_bytes()


def test_the_death_of_a_replica_costs_no_whole_answer(deployed: tuple[str, Path]) -> None:
    url, model = deployed
    session = paceline.load(str(model), "plain")
    alone = [
        session.generate("x" * (1 + place), seed=place, temperature=1.0, max_new_tokens=200).text
        for place in range(12)
    ]
    found: dict[int, httpx.Response] = {}
    threads = [
        threading.Thread(target=lambda place=place: found.update({place: ask(url, place)}))
        for place in range(12)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: httpx.get(f"{url}/state").json()["running"] > 0)
    time.sleep(0.2)
    killed = replica_processes(url)
    assert len(killed) == 2
    os.kill(min(killed), signal.SIGKILL)
    for thread in threads:
        thread.join()
    for place, text in enumerate(alone):
        assert found[place].status_code == 200, found[place].text
        assert found[place].json()["choices"][0]["text"] == text
    wait_for(lambda: len(replica_processes(url)) == 2, 120)


def test_errors_and_addresses_are_the_server_s(deployed: tuple[str, Path]) -> None:
    url, _ = deployed
    assert httpx.get(f"{url}/health").status_code == 200
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny"
    refused = ask(url, 0, temperature=7)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "temperature"
    assert len(refused.headers.get_list("x-request-id")) == 1
    streamed = ask(url, 0, stream=True, max_tokens=5)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
