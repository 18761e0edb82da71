"""`paceline compare` and `paceline bench run` on the toy: files, tables, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from paceline.bench.entries import Entry, LeftOut
from paceline.bench.report.folder import read_folder
from paceline.bench.results import read_results
from paceline.bench.trial import Contender, Method, Request, Trial
from paceline.cli import common, main
from paceline.cli.bench import shared
from paceline.cli.findings import Findings
from paceline.datastore import Datastore
from paceline.session import Session
from tests.bench.rig import Fixed
from tests.tiny import toy_session

KEYS = {
    *("method", "tokens", "seconds", "tokens_per_second", "speedup", "interval", "decode_speedup"),
    *("speedup_per_prompt", "mean_acceptance_length", "draft_acceptance_rate"),
    *("acceptance_by_position", "acceptance_histogram", "seconds_by_part"),
    *("sources", "lossy", "identical", "mismatches"),
}
PROMPTS = [
    {"id": "talk", "task": "chat", "turns": ["hello", "go on"]},
    {"id": "raw", "prompt": "once upon"},
]
LONG = {"id": "long", "turns": ["x" * 5000]}
REASON = "prompt and 6 new tokens do not fit into the model's context of 4096"


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def notes(self) -> list[str]:
        """The lines on standard error that are not blank."""
        return [line for line in self.err.splitlines() if line.strip()]


Command = Callable[..., Result]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """The toy, in the place of whatever model is asked for."""
    session = toy_session("plain", fingerprint="toy")
    monkeypatch.setattr(common, "open_session", lambda model, method, **options: session)
    return session


@pytest.fixture
def command(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run `paceline` in this process."""

    def run(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["paceline", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> list[Contender]:
    """Contenders that take part besides those that are asked for."""
    found: list[Contender] = []
    make = shared.Contenders.made

    def with_strangers(*asked: Any) -> list[Contender]:
        return [*make(*asked), *found]

    monkeypatch.setattr(shared.Contenders, "made", with_strangers)
    return found


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of suites."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "small.jsonl", *PROMPTS)
    write(folder / "humaneval.jsonl", {"prompt": "def f():"}, {"prompt": "def g():"})
    return folder


# compare


def compare(command: Command, path: Path, *words: object, repeats: int = 1) -> Result:
    given = ("--prompt-file", path, "-n", 6, "--repeats", repeats, *words)
    return command("compare", "--methods", "anpd,pld", *given)


def test_compare_writes_what_it_shows(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    prompts = write(tmp_path / "prompts.jsonl", *PROMPTS)
    result = compare(command, prompts, "--json", path, repeats=2)
    assert (result.code, result.notes) == (0, [])
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["options"] == {
        "max_new_tokens": 6,
        "temperature": 0.0,
        "seed": 0,
        "repeats": 2,
    }
    assert report["prompts"] == [
        {"id": "talk", "task": "chat", "turns": 2},
        {"id": "raw", "task": "", "turns": 1},
    ]
    assert (report["left_out"], report["failures"]) == ([], [])
    assert [each["method"] for each in report["methods"]] == ["plain", "anpd", "pld"]
    for each in report["methods"]:
        assert set(each) == KEYS
        assert (each["identical"], each["mismatches"], each["tokens"]) == (True, [], 18)
        assert list(each["speedup_per_prompt"]) == ["talk#1", "talk#2", "raw"]
        assert each["tokens_per_second"] == 18 / each["seconds"]
        assert each["mean_acceptance_length"] == 18 / sum(each["acceptance_histogram"].values())
        assert set(each["seconds_by_part"]) == {"prefill", "draft", "target", "commit"}
        low, high = each["interval"]
        assert low <= each["speedup"] * 1.001 and each["speedup"] <= high * 1.001
        for number in (f"{each['speedup']:.2f}x", f"{each['tokens_per_second']:.1f}"):
            assert number in result.out
    assert report["methods"][0]["speedup"] == 1.0
    for label in ("talk#1", "talk#2", "raw", "yes"):
        assert label in result.out


def test_compare_names_where_a_text_differs(
    command: Command, strangers: list[Contender], session: Session, tmp_path: Path
) -> None:
    ids = session.encode("once upon")
    tokens = session.generate(ids, max_new_tokens=6).tokens
    other = (tokens[3] + 1) % 256
    strangers.append(Fixed("liar", [[*tokens[:3], other, *tokens[4:]]]))
    strangers.append(Fixed("short", [tokens[:2]]))
    path = tmp_path / "report.json"
    prompts = write(tmp_path / "prompts.jsonl", PROMPTS[1])
    result = compare(command, prompts, "--json", path, repeats=3)
    assert (result.code, result.notes) == (0, [])
    report = {each["method"]: each for each in json.loads(path.read_bytes())["methods"]}
    (found,) = report["liar"]["mismatches"]  # three times the same is once
    gap = found.pop("logit_gap")
    assert gap > 0
    assert found == {
        "prompt": "raw",
        "position": 3,
        "plain_token": tokens[3],
        "method_token": other,
    }
    line = f"liar differs on raw at token 3: {other} instead of {tokens[3]}, logit gap {gap:.2e}"
    assert line in result.out
    assert f"short differs on raw at token 2: None instead of {tokens[2]}" in result.out
    assert result.out.count("no (1)") == 2
    assert (report["liar"]["identical"], report["anpd"]["identical"]) == (False, True)
    # It tells nothing about single rounds, which is not the same as that nothing was accepted.
    assert report["liar"]["acceptance_by_position"] is None


def test_compare_keeps_what_came_through(
    command: Command, strangers: list[Contender], tmp_path: Path
) -> None:
    strangers += [
        Fixed("crashing", [RuntimeError("it\nbroke")]),
        Fixed("half", [[1], ValueError("not twice"), [1]]),
    ]
    path = tmp_path / "report.json"
    prompts = write(tmp_path / "prompts.jsonl", PROMPTS[1], {"id": "more", "prompt": "twice"})
    result = compare(command, prompts, "--json", path)
    assert result.code == 1
    assert sorted(result.notes) == [
        "error: crashing failed on more: RuntimeError: it broke",
        "error: crashing failed on raw: RuntimeError: it broke",
        "error: half failed on raw: ValueError: not twice",
    ]
    report = json.loads(path.read_bytes())
    assert [each["method"] for each in report["methods"]] == ["plain", "anpd", "pld", "half"]
    assert list(report["methods"][3]["speedup_per_prompt"]) == ["more"]
    assert {(each["method"], each["prompt"]) for each in report["failures"]} == {
        ("crashing", "raw"),
        ("crashing", "more"),
        ("half", "raw"),
    }
    (row,) = [line for line in result.out.splitlines() if line.startswith("│ raw")]
    assert row.rstrip(" │").endswith("-")


def test_compare_has_no_interval_of_one_text(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    compare(command, write(tmp_path / "prompts.jsonl", PROMPTS[1]), "--json", path)
    methods = json.loads(path.read_bytes())["methods"]
    assert [each["interval"] for each in methods] == [None] * 3


def test_prompt_files_may_have_names_that_are_no_text(command: Command, tmp_path: Path) -> None:
    prompts = write(tmp_path / "caf\udce9.jsonl", *PROMPTS)
    path = tmp_path / "report.json"
    assert compare(command, prompts, "--json", path).code == 0
    assert str(prompts) in json.loads(path.read_bytes())["command"]
    words = ("bench", "run", prompts, "--methods", "pld", "-n", 5, "--out", tmp_path / "out")
    assert command(*words).code == 0
    assert command(*words, "--resume").code == 0
    assert command("bench", "report", tmp_path / "out").code == 0


def test_compare_says_what_was_left_out(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    prompts = write(tmp_path / "prompts.jsonl", LONG, PROMPTS[1])
    result = compare(command, prompts, "--json", path)
    assert (result.code, result.notes) == (0, [f"long was left out: {REASON}"])
    assert json.loads(path.read_bytes())["left_out"] == result.notes
    assert "long" not in result.out


@pytest.mark.parametrize("written", [True, False])
def test_compare_says_that_it_was_interrupted(
    command: Command, strangers: list[Contender], tmp_path: Path, written: bool
) -> None:
    prompts, path = write(tmp_path / "prompts.jsonl", *PROMPTS), tmp_path / "report.json"
    given = ("--json", path) if written else ()
    assert compare(command, prompts, *given).code == 0
    assert not written or json.loads(path.read_bytes())["interrupted"] is False
    strangers.append(Fixed("stranger", [[1], [1], KeyboardInterrupt()]))
    result = compare(command, prompts, *given)
    assert result.code == 130
    shown = f"{path} and these tables show" if written else "these tables show"
    assert result.notes == [f"interrupted: {shown} what was measured so far"]
    assert "stranger" in result.out
    assert not written or json.loads(path.read_bytes())["interrupted"] is True


def test_where_nothing_can_be_compared_compare_says_why(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    result = compare(command, write(tmp_path / "prompts.jsonl", LONG), "--json", path)
    assert (result.code, result.out) == (2, "")
    assert result.notes == [f"error: there is nothing to compare: long was left out: {REASON}"]
    broken: Any = lambda *asked: [Fixed("plain", [RuntimeError("broken")])]  # noqa: E731
    monkeypatch.setattr(shared.Contenders, "made", broken)
    result = compare(command, write(tmp_path / "prompts.jsonl", PROMPTS[1]), "--json", path)
    assert (result.code, result.out) == (2, "")
    assert result.notes == ["error: there is nothing to compare: RuntimeError: broken"]
    assert not path.exists()


@pytest.mark.parametrize(
    ("methods", "names"),
    [
        ("anpd,llma", ["plain", "anpd", "llma"]),
        ("anpd,plain", ["plain", "anpd"]),
        ("pld,pld", ["plain", "pld"]),
        ("anpd:n=3,k=2,anpd", ["plain", "anpd:n=3,k=2", "anpd"]),
        (
            "transformers,transformers-lookup:k=3",
            ["plain", "transformers", "transformers-lookup:k=3"],
        ),
    ],
)
def test_plain_decoding_comes_first_and_every_name_once(methods: str, names: list[str]) -> None:
    assert shared.Contenders(methods).names() == names


def test_prompts_of_two_suites_with_one_id_stay_apart() -> None:
    lines = [
        Entry(suite, "", "1", turn, 0, method, 3, 1, 1.0, error="broke" if method == "x" else "")
        for suite, turn in (("a", 0), ("a", 1), ("b", 0))
        for method in ("plain", "x")
    ]
    found = Findings([*lines])
    assert set(found.failures) == {("x", "a/1#1"), ("x", "a/1#2"), ("x", "b/1")}


# bench run


def bench(command: Command, data: Path, *words: object, methods: str = "anpd,pld") -> Result:
    repeats = 1 if "--warm" in words else 2
    given = ("--data", data, "--out", data.parent / "out", "--repeats", repeats, "-n", 5)
    return command("bench", "run", *words, "--methods", methods, *given, "-m", "some/toy")


def result_file(data: Path) -> Path:
    return data.parent / "out" / "run-some-toy.jsonl"


def test_bench_run_writes_a_line_for_each_trial(command: Command, data: Path) -> None:
    result = bench(command, data, "small", "humaneval", "--limit", 1)
    path = result_file(data)
    assert (result.code, result.out) == (0, "")
    assert str(path) in result.err
    header, entries = read_results(path)
    run = header["run"]
    assert run["methods"] == ["plain", "anpd", "pld"]
    assert run["options"] == {"max_new_tokens": 5, "temperature": 0.0, "seed": 0}
    assert (run["suites"], run["limit"], run["repeats"]) == (["small", "humaneval"], 1, 2)
    assert run["model"] == {"name": "some/toy", "fingerprint": "toy"}
    assert {"machine", "versions", "preparation", "budget", "texts", "kind"} <= run.keys()
    assert header["command"].startswith("paceline bench run small humaneval")
    assert len(entries) == 4 * 3 * 2
    assert {entry.key[:2] for entry in entries} == {
        ("small", "talk"),
        ("small", "raw"),
        ("humaneval", "1"),
    }
    assert not any(isinstance(entry, LeftOut) or entry.error for entry in entries)


@pytest.mark.parametrize("words", [(), ("--warm",)])
def test_bench_run_says_how_its_texts_begin(
    command: Command, data: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    seen: list[bool] = []
    generate = Method.generate

    def watched(method: Method, request: Request) -> Trial:
        seen.append(method.warm)
        return generate(method, request)

    monkeypatch.setattr(Method, "generate", watched)
    assert bench(command, data, "small", *words).code == 0
    assert set(seen) == {bool(words)}
    state = "warm" if words else "cold"
    (path,) = (data.parent / "out").glob("*.jsonl")
    assert read_results(path)[0]["run"]["state"] == state
    (run,) = read_folder(path.parent).runs
    assert run.asked["state"] == state
    # What warm methods knew is lost; files from before there was a choice are cold.
    assert (bench(command, data, "small", "--resume", *words).code == 0) == (state == "cold")
    path.write_text(path.read_text("utf-8").replace(f'"state":"{state}",', ""), "utf-8")
    assert read_folder(path.parent).runs[0].asked["state"] == "cold"
    again = bench(command, data, "small", "--resume", *words)
    assert (again.code == 0) == (state == "cold")
    assert words == () or "a --warm run cannot be continued" in again.err


def test_bench_run_by_category_and_with_typical_acceptance(command: Command, data: Path) -> None:
    records = [
        {"id": number, "task": "multi_turn", "category": category, "turns": ["hello"]}
        for number, category in enumerate(["writing", "math", "math"])
    ]
    write(data / "mt_bench.jsonl", *records)
    words = ["--by-category", "--limit", 1, "--typical", "--temperature", 1, "--budget", 3]
    command("bench", "run", "mt-bench", "--data", data, "--out", data, "-m", "toy", "-n", 4,
            "--repeats", 1, "--methods", "anpd", *words)  # fmt: skip
    header, lines = read_results(data / "run-toy.jsonl")
    options = header["run"]["options"]
    assert (options["typical"], options["temperature"], options["budget"]) == (True, 1.0, 3)
    found = {(line.task, line.method, line.lossy) for line in lines}
    tasks = ("writing", "math")
    assert found == {(task, *each) for task in tasks for each in (("plain", False), ("anpd", True))}


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_bench_run_goes_on_where_it_was_interrupted(
    command: Command, data: Path, strangers: list[Contender], end: BaseException, code: int
) -> None:
    strangers.append(Fixed("stranger", [[1], [1], [1], end, [1]]))
    result = bench(command, data, "small")
    assert result.code == code
    assert "interrupted: " in result.err and "--resume" in result.err
    before = result_file(data).read_bytes()
    refused = bench(command, data, "small")
    assert (refused.code, len(refused.notes)) == (2, 1)
    assert "already holds results" in refused.err
    assert result_file(data).read_bytes() == before
    assert bench(command, data, "small", "--resume").code == 0
    after = result_file(data).read_bytes()
    assert after.startswith(before)
    _, entries = read_results(result_file(data))
    trials = {(each.key, each.method, each.repeat) for each in entries if isinstance(each, Entry)}
    assert len(entries) == len(trials) == 3 * 4 * 2
    assert bench(command, data, "small", "--resume").code == 0
    assert result_file(data).read_bytes() == after


@pytest.mark.parametrize(
    ("words", "methods", "named"),
    [
        (["small"], "anpd", "methods"),
        (["small"], "anpd,pld:k=3", "methods"),
        (["small", "--temperature", 1], "anpd,pld", "options"),
        (["small", "--dtype", "bfloat16"], "anpd,pld", "dtype"),
        (["small", "--limit", 1], "anpd,pld", "limit"),
        (["humaneval"], "anpd,pld", "suites"),
    ],
)
def test_bench_run_goes_on_with_nothing_else(
    command: Command, data: Path, words: list[object], methods: str, named: str
) -> None:
    assert bench(command, data, "small").code == 0
    before = result_file(data).read_bytes()
    result = bench(command, data, *words, "--resume", methods=methods)
    assert (result.code, result.out, len(result.notes)) == (2, "", 1)
    assert f"holds a run with another {named} " in result.err
    assert result_file(data).read_bytes() == before


def test_bench_run_goes_on_with_the_same_model_and_prompts_only(
    command: Command, data: Path, session: Session
) -> None:
    assert bench(command, data, "small").code == 0
    session.host = replace(session.host, fingerprint="another")
    assert "another model " in bench(command, data, "small", "--resume").err
    session.host = replace(session.host, fingerprint="toy")
    # Where prompts were read does not matter.
    assert bench(command, data / ".." / data.name, "small", "--resume").code == 0
    write(data / "small.jsonl", *PROMPTS, LONG)
    assert "another texts " in bench(command, data, "small", "--resume").err


def test_bench_run_goes_on_with_the_same_files_only(
    command: Command, data: Path, session: Session
) -> None:
    store, mark = data.parent / "some texts", "c" * 32
    session.host = replace(session.host, vocabulary=lambda: mark)
    Datastore(store, mark).build([[1, 2, 3]])
    how = {"methods": f"rest:n=1,datastore={store},anpd"}
    for words in ((), ("--resume",)):
        assert bench(command, data, "small", *words, **how).code == 0
    assert [*read_results(result_file(data))[0]["run"]["files"]] == [str(store)]
    Datastore(store, mark).add([[4, 5, 6]])
    assert "another files " in bench(command, data, "small", "--resume", **how).err


def test_bench_run_leaves_no_file_if_it_cannot_begin(command: Command, data: Path) -> None:
    refused = bench(command, data, "small", methods="anpd,medusa")
    assert (refused.code, "there are no Medusa heads" in refused.err) == (2, True)
    write(data / "twice.jsonl", *PROMPTS, *PROMPTS)
    assert "is the id of several prompts" in bench(command, data, "twice").err
    assert bench(command, data, "small").code == 0
    assert [*result_file(data).parent.iterdir()] == [result_file(data)]


def test_bench_run_waits_for_nobody_who_writes_the_same_file(command: Command, data: Path) -> None:
    assert bench(command, data, "small").code == 0
    before = result_file(data).read_bytes()
    with FileLock(result_file(data).with_name(f".{result_file(data).name}.lock")):
        refused = bench(command, data, "small", "--resume")
    assert (refused.code, len(refused.notes)) == (2, 1)
    assert f"another process is writing to {result_file(data)}" in refused.err
    assert bench(command, data, "small", "--resume").code == 0
    assert result_file(data).read_bytes() == before


def test_bench_run_leaves_out_what_does_not_fit(command: Command, data: Path) -> None:
    write(data / "small.jsonl", LONG, *PROMPTS)
    result = bench(command, data, "small")
    assert result.code == 0
    reason = REASON.replace("6", "5", 1)
    assert result.notes[0] == f"long was left out: {reason}"
    left_out = [each for each in read_results(result_file(data))[1] if isinstance(each, LeftOut)]
    assert [(each.prompt, each.reason) for each in left_out] == [("long", reason)]


def test_bench_run_says_that_it_measured_nothing(command: Command, data: Path) -> None:
    write(data / "small.jsonl", LONG)
    reason = REASON.replace("6", "5", 1)
    result = bench(command, data, "small")
    assert (result.code, result.out) == (2, "")
    assert result.notes == [f"error: there is nothing to compare: long was left out: {reason}"]
    refused = command("bench", "report", result_file(data).parent)
    assert refused.code == 2
    assert f"there is nothing to compare with (left out: {reason})" in refused.err


def test_bench_run_names_what_failed(
    command: Command, data: Path, strangers: list[Contender]
) -> None:
    strangers.append(Fixed("crashing", [[1], RuntimeError("it\nbroke"), [1]]))
    result = bench(command, data, "small")
    assert result.code == 1
    assert result.notes[0] == "error: crashing failed on talk#1: RuntimeError: it broke"
    assert len(result.notes) == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("smal --data {data}", "unknown suite 'smal' (did you mean small?)"),
        ("mbpp --data {data}", "has no mbpp.jsonl for the suite 'mbpp'"),
        ("small", "cannot find 'small'"),
        ("small --data {data}/none", "is not a folder"),
        ("all --data {data}/..", "holds no JSONL files"),
        ("{data}/none.jsonl", "cannot read the prompt file"),
        ("small {data}/../small.jsonl --data {data}", "two files are named small.jsonl"),
        ("small --data {data} --methods anpdd", "did you mean anpd"),
        ("small --data {data} --methods transformers:k=1", "no setting 'k'"),
        ("small --data {data} --methods transformers-assisted", "needs a draft model"),
        ("small --data {data} --methods ,", "at least one method"),
        ("small --data {data} --repeats 0", "--repeats"),
        ("small --data {data} --limit 0", "--limit"),
        ("small --data {data} -n 0", "max_new_tokens must be at least 1"),
        ("small --data {data} --out {data}/small.jsonl", "cannot write results to"),
    ],
)
def test_what_bench_run_cannot_do_is_one_sentence(
    command: Command, data: Path, words: str, expected: str
) -> None:
    out = () if "--out" in words else ("--out", data.parent / "out")
    result = command("bench", "run", *words.format(data=data).split(), *out)
    assert (result.code, result.out, len(result.notes)) == (2, "", 1)
    assert result.notes[0].startswith("error: ")
    assert expected in result.err
    assert not (data.parent / "out").exists()
