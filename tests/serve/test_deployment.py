"""The files in deploy/ and the container file: nothing here runs them, but they fit together, and
the dashboard asks for what the server has."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.serve.live import live, tool_session

from paceline.cli import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/paceline.json").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
CONTAINERFILE = (ROOT / "Containerfile").read_text()

SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("",), "gauge": ("",)}
IN_METRIC = re.compile(r"(vllm:\w+)(?:\{([^}]*)\})?")


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        yield variable["query"]["query"]


def exported(text: str) -> set[str]:
    """Names of all time series that there are, or will be once something has happened."""
    kinds = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)
    return {name + suffix for name, kind in kinds for suffix in SUFFIXES.get(kind, ())}


@pytest.fixture(scope="module")
def metrics() -> str:
    """What the server exports after a text that repeats itself, so that guesses came true."""
    session = tool_session()
    session.budget = 4
    with live(session) as served:
        assert served.chat(logit_bias={"65": 100}, max_tokens=30).status_code == 200
        return served.http.get("/metrics").text


def test_every_metric_of_the_dashboard_is_exported(metrics: str) -> None:
    names = {name for query in queries() for name, _ in IN_METRIC.findall(query)}
    assert len(names) > 12
    assert names <= exported(metrics)


def test_every_label_of_the_dashboard_is_exported(metrics: str) -> None:
    known = set(re.findall(r'(\w+)="', metrics)) | {"reason"}  # of requests turned away
    for query in queries():
        used = {
            label.strip()
            for each in re.findall(r"by \(([^)]*)\)", query)
            for label in each.split(",")
        }
        used |= {
            label
            for _, inside in IN_METRIC.findall(query)
            for label in re.findall(r"(\w+)=~?", inside)
        }
        assert used <= known, query


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )
    assert {panel["datasource"]["uid"] for panel in panels} == {source["datasources"][0]["uid"]}
    for query in queries():
        assert query.count("(") == query.count(")")
        assert query.count("{") == query.count("}")


def test_what_is_mounted_is_there_and_where_it_is_looked_for() -> None:
    mounts = {
        target: DEPLOY / source
        for service in COMPOSE["services"].values()
        for source, target, *_ in (volume.split(":") for volume in service.get("volumes", ()))
        if source.startswith(".")
    }
    assert all(path.exists() for path in mounts.values())
    provider = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/dashboards/paceline.yaml").read_text()
    )
    folder = provider["providers"][0]["options"]["path"]
    assert (mounts[folder] / "paceline.json").exists()
    home = COMPOSE["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert Path(home).parent == Path(folder)
    named = [volume.split(":")[0] for each in COMPOSE["services"].values() for volume in each.get("volumes", ())]  # fmt: skip
    assert {name for name in named if not name.startswith(".")} == COMPOSE["volumes"].keys()


def test_services_find_each_other_and_listen_to_this_machine_alone() -> None:
    services = COMPOSE["services"]
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    assert [job["static_configs"][0]["targets"] for job in scraped] == [["server:8000"]]
    assert "server" in services
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    build = services["server"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()


@pytest.mark.parametrize("words", [COMPOSE["services"]["server"]["command"], None])
def test_the_container_runs_a_command_that_there_is(words: list[str] | None) -> None:
    if words is None:
        words = json.loads(re.findall(r"^CMD (.*)$", CONTAINERFILE, re.MULTILINE)[-1])
    assert app(["--help"], standalone_mode=False) == 0
    context: Any = app([*words, "--help"], standalone_mode=False)
    assert context == 0
    assert '"$' not in shlex.join(words)


def test_what_the_container_file_copies_is_there_and_not_ignored() -> None:
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", CONTAINERFILE, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert {"pyproject.toml", "src", "constraints.txt"} <= set(copied)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
