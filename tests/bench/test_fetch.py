"""Public evaluation sets, from a server of the tests' own: what is written, and what is refused."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import paceline.bench.fetch
from paceline.bench.fetch import Fetcher
from paceline.bench.sources import SOURCES, HubTable, RepositoryFiles, find_sources
from paceline.bench.suites import ALL, SUITES, read_suites
from paceline.cli import main
from paceline.errors import UsageError
from paceline.prompts import read_prompts
from tests.bench.samples import DOCUMENTS, SAMPLES, TURNS


@dataclass
class Site:
    """Files and tables, or whatever else answers."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    tables: dict[str, list[Any]] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)
    """What the next requests are answered with, before all goes well."""
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.codes:
            return self.codes.pop(0), b"no"
        parts = urlsplit(path)
        if parts.path == "/rows":
            query = {name: value for name, (value,) in parse_qs(parts.query).items()}
            table = self.tables.get(f"{query['dataset']} {query['config']} {query['split']}")
            if table is not None:
                return 200, self.page(table, int(query["offset"]), int(query["length"]))
        return (200, self.files[path]) if path in self.files else (404, b"no")

    @staticmethod
    def page(rows: list[Any], offset: int, length: int) -> bytes:
        chosen = enumerate(rows[offset : offset + length], start=offset)
        entries = [{"row_idx": n, "row": row, "truncated_cells": []} for n, row in chosen]
        page = {"features": [], "rows": entries, "num_rows_total": len(rows)}
        return json.dumps(page | {"num_rows_per_page": 100, "partial": False}).encode()


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server on this machine."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, content = site.answer(self.path)
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def fetcher(site: Site, tmp_path: Path) -> Fetcher:
    return Fetcher(tmp_path / "data", github=site.url, hub=site.url, waits=(0.0, 0.0))


def offer(site: Site, stem: str, rows: list[Any] | None = None) -> None:
    """Put the sample of a set, or these rows, where its source says that it is."""
    rows = SAMPLES[stem] if rows is None else rows
    place = SOURCES[stem].place
    if isinstance(place, HubTable):
        site.tables[f"{place.dataset} {place.config} {place.split}"] = rows
        return
    columns = [[json.dumps(row) for row in rows]] if len(place.paths) == 1 else zip(*rows)
    for path, lines in zip(place.paths, columns, strict=True):
        content = "".join(f"{line}\n" for line in lines).encode()
        content = gzip.compress(content) if path.endswith(".gz") else content
        site.files[f"/{place.repository}/{place.commit}/{path}"] = content


def records(fetcher: Fetcher, stem: str) -> list[dict[str, Any]]:
    text = fetcher.path(stem).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def refusal(fetcher: Fetcher, stem: str) -> str:
    with pytest.raises(UsageError) as caught:
        fetcher.fetch(stem, SOURCES[stem])
    message = str(caught.value)
    assert "\n" not in message
    assert not fetcher.path(stem).exists()
    return message


# What is written.


@pytest.mark.parametrize("stem", SOURCES)
def test_every_set_becomes_prompts(site: Site, fetcher: Fetcher, stem: str) -> None:
    offer(site, stem)
    count = fetcher.fetch(stem, SOURCES[stem])
    prompts = read_prompts(fetcher.path(stem))
    assert len(prompts) == count == len({prompt.id for prompt in prompts}) > 0
    assert list(prompts[0].turns) == TURNS[stem]
    assert list(prompts[0].references) == DOCUMENTS.get(stem, [])
    assert not prompts[0].raw
    for record in records(fetcher, stem):
        assert record["task"]
        assert record["id"].startswith(f"{stem}/")
        assert record["source"] == SOURCES[stem].place.page
        assert record["licence"] == SOURCES[stem].licence
        documents = record.get("reference_documents", [])
        assert all(any(document in turn for turn in record["turns"]) for document in documents)
    assert [path.name for path in fetcher.folder.iterdir()] == [f"{stem}.jsonl"]


def test_what_is_fetched_can_be_read_as_suites(site: Site, fetcher: Fetcher) -> None:
    for stem, source in SOURCES.items():
        offer(site, stem)
        fetcher.fetch(stem, source)
    for suite in SUITES:
        assert read_suites([suite], fetcher.folder, None)


def test_a_table_is_had_page_by_page(site: Site, fetcher: Fetcher) -> None:
    rows = [{"translation": {"de": f"Satz {n}", "en": f"sentence {n}"}} for n in range(250)]
    offer(site, "wmt16_deen", rows)
    heard: list[tuple[int, int | None]] = []
    source = SOURCES["wmt16_deen"]
    assert fetcher.fetch("wmt16_deen", source, on_records=lambda *told: heard.append(told)) == 250
    assert heard == [(100, 250), (200, 250), (250, 250)]
    assert [record["id"] for record in records(fetcher, "wmt16_deen")][::249] == [
        "wmt16_deen/0",
        "wmt16_deen/249",
    ]
    assert len(site.asked) == 3
    assert "dataset=wmt%2Fwmt16&config=de-en&split=test&offset=200&length=100" in site.asked[2]
    assert fetcher.fetch("wmt16_deen", source, limit=100) == 100
    assert len(site.asked) == 4  # no page that is not needed


def test_a_limit_counts_each_task(site: Site, fetcher: Fetcher) -> None:
    rows = [
        {"question_id": n, "category": category, "turns": ["x"]}
        for n, category in enumerate(["qa"] * 3 + ["translation"] * 2)
    ]
    offer(site, "spec_bench", rows)
    assert fetcher.fetch("spec_bench", SOURCES["spec_bench"], limit=2) == 4
    ids = [record["id"] for record in records(fetcher, "spec_bench")]
    assert ids == [f"spec_bench/{n}" for n in (0, 1, 3, 4)]


def test_what_is_no_question_is_left_out(site: Site, fetcher: Fetcher) -> None:
    (row,) = SAMPLES["mbpp"]
    offer(site, "mbpp", [row | {"task_id": number} for number in (10, 11, 510, 511)])
    assert fetcher.fetch("mbpp", SOURCES["mbpp"]) == 2
    offer(site, "xsum", [*SAMPLES["xsum"], {"document": " \n", "summary": "x", "id": "9"}])
    assert fetcher.fetch("xsum", SOURCES["xsum"]) == 1
    offer(site, "jfleg", [*SAMPLES["jfleg"], (" ", *"abcd")])
    assert fetcher.fetch("jfleg", SOURCES["jfleg"]) == 1


def test_a_busy_server_is_asked_again(site: Site, fetcher: Fetcher) -> None:
    offer(site, "gsm8k")
    site.codes = [429, 503]
    assert fetcher.fetch("gsm8k", SOURCES["gsm8k"]) == 1
    assert len(site.asked) == 3


# What is refused.


def test_an_answer_that_is_none_names_the_url(site: Site, fetcher: Fetcher) -> None:
    message = refusal(fetcher, "gsm8k")
    assert f"{site.url}/openai/grade-school-math/" in message
    assert "(HTTP 404): it has moved or is closed" in message and "cannot fetch " in message
    assert len(site.asked) == 1
    site.codes = [503] * 9
    assert "(HTTP 503): try again later" in refusal(fetcher, "xsum")
    assert len(site.asked) == 1 + 3


def test_without_a_network_the_url_is_named(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"  # the port that discards
    message = refusal(Fetcher(tmp_path, nowhere, nowhere), "gsm8k")
    assert message.startswith(f"cannot reach {nowhere}/openai/grade-school-math/")
    assert "check the connection" in message


@pytest.mark.parametrize(
    ("stem", "content"),
    [
        pytest.param("gsm8k", b"<!DOCTYPE html>\n<p>Sign in", id="a page"),
        pytest.param("gsm8k", b'{"question": "x"}\n', id="a field is missing"),
        pytest.param("gsm8k", b'["x"]\n', id="a list"),
        pytest.param("mteval_refine", b"[]\n", id="an empty list"),
        pytest.param("mteval_refine", b'[{"user": 1, "sys": "", "id": ""}]', id="a number"),
        pytest.param("gsm8k", b"\xff\xfe", id="no text"),
        pytest.param("gsm8k", b"\n", id="nothing"),
        pytest.param("humaneval", b"hello", id="no gzip"),
        pytest.param("humaneval", gzip.compress(b"x" * 999)[:-12], id="gzip cut short"),
        pytest.param("humaneval", gzip.compress(b"x")[:10] + b"\xff" * 20, id="gzip spoilt"),
    ],
)
def test_other_content_is_refused(site: Site, fetcher: Fetcher, stem: str, content: bytes) -> None:
    place = SOURCES[stem].place
    assert isinstance(place, RepositoryFiles)
    path = f"/{place.repository}/{place.commit}/{place.paths[0]}"
    site.files[path] = content
    assert f"unexpected response from {site.url}{path} (" in refusal(fetcher, stem)


def test_files_of_different_lengths_are_refused(site: Site, fetcher: Fetcher) -> None:
    offer(site, "jfleg")
    last = next(path for path in site.files if path.endswith("ref3"))
    site.files[last] += b"one more\n"
    assert "unexpected response from" in refusal(fetcher, "jfleg")


@pytest.mark.parametrize(
    "page",
    [
        {"error": "the dataset is gated"},
        {"rows": [], "num_rows_total": 5},
        {"rows": [{"row": {"de": ""}, "truncated_cells": ["de"]}], "num_rows_total": 1},
        {"rows": [{"row": None}], "num_rows_total": 1},
        [],
    ],
)
def test_other_pages_are_refused(
    site: Site, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, page: Any
) -> None:
    offer(site, "wmt16_deen")
    monkeypatch.setattr(Site, "page", lambda *args: json.dumps(page).encode())
    assert f"unexpected response from {site.url}/rows?dataset=wmt%2Fwmt16" in refusal(
        fetcher, "wmt16_deen"
    )


def test_a_folder_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    offer(site, "gsm8k")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        Fetcher(tmp_path / "file", site.url).fetch("gsm8k", SOURCES["gsm8k"])


# Names.


def test_names_stand_for_sources() -> None:
    assert list(find_sources([ALL])) == list(SOURCES)
    assert list(find_sources(["cnndm"])) == ["cnndm", "llma_cnndm"]
    assert list(find_sources(["llma_rag", "rag", "gsm8k"])) == ["llma_rag", "gsm8k"]
    with pytest.raises(
        UsageError, match=r"'xsun' \(did you mean xsum\?\): choose one of all, spec"
    ):
        find_sources(["xsun"])


def test_every_suite_has_a_source() -> None:
    assert {stem for suite in SUITES.values() for stem in suite} > set(SOURCES)
    for suite in SUITES:
        assert find_sources([suite])


# On the command line.

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], site: Site
) -> Command:
    """Run `paceline bench fetch` in this process: exit code, standard output and error."""
    there = partial(Fetcher, github=site.url, hub=site.url, waits=())
    monkeypatch.setattr(paceline.bench.fetch, "Fetcher", there)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["paceline", "bench", "fetch", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_source_and_licence_are_printed(command: Command, site: Site, tmp_path: Path) -> None:
    offer(site, "cnndm")
    offer(site, "llma_cnndm")
    code, out, err = command("cnndm", "--data", tmp_path / "new", "--limit", 5)
    assert (code, err.strip()) == (0, "")
    first, second = out.splitlines()
    assert first.startswith(f"{tmp_path / 'new' / 'cnndm.jsonl'}: 1 records of https://hugging")
    assert first.endswith(f"licence: {SOURCES['cnndm'].licence}")
    assert "https://github.com/microsoft/LMOps" in second


def test_what_is_there_is_left_alone(command: Command, site: Site, tmp_path: Path) -> None:
    offer(site, "gsm8k")
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("mine")
    code, out, err = command("gsm8k", "--data", tmp_path)
    assert (code, out) == (0, "")
    assert f"{path} already exists: use --force to fetch it again" in " ".join(err.split())
    assert (path.read_text(), site.asked) == ("mine", [])
    assert command("gsm8k", "--data", tmp_path, "--force")[0] == 0
    assert len(read_prompts(path)) == 1
    site.files.clear()
    assert command("gsm8k", "--data", tmp_path, "--force")[0] == 2
    assert len(read_prompts(path)) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("gsm8k",), "--data"),
        (("nonsense", "--data", "here"), "unknown set 'nonsense'"),
        (("gsm8k", "--data", "here", "--limit", 0), "--limit"),
        (("gsm8k", "--data", "here"), "(HTTP 404)"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[object, ...],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    (sentence,) = [line for line in err.splitlines() if line.strip()]
    assert sentence.startswith("error: ") and expected in sentence
