"""The command line as its user meets it: what is printed where, exit codes, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import string
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.forked import Forked
from tests.tiny import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from typer.main import get_command

import paceline
from paceline.cli import app, main
from paceline.cli.bench.shared import split_methods
from paceline.cli.common import interruptible, print_table
from paceline.cli.show import print_stream
from paceline.errors import ModelError
from paceline.models import ModelStore, load_causal_lm
from paceline.session import Chunk, Completion, Session
from paceline.stats import Stats
from paceline.tables import Table

ANSI = re.compile(r"\x1b\[[0-9;]*m")


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


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as usual: who runs the tests in the background has it ignored, here and in children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Typed(io.TextIOWrapper):
    """Standard input at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `paceline` in this process."""

    def run(*words: object, stdin: str | bytes = b"", terminal: bool = False) -> Result:
        given = io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin)
        monkeypatch.setattr(sys, "argv", ["paceline", *map(str, words)])
        kind = Typed if terminal else io.TextIOWrapper
        monkeypatch.setattr(sys, "stdin", kind(given, encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model that greedily writes printable ASCII, and never ends."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.4,
    )
    model = LlamaForCausalLM(config)
    printable = set(tokenizer(string.ascii_letters + string.digits + " :[]\t\r").input_ids)
    with torch.no_grad():
        for token in set(range(len(tokenizer))) - printable:
            model.lm_head.weight[token] = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def untemplated(tiny: Path) -> Path:
    """The same model without a chat template."""
    folder = tiny.parent / "untemplated"
    shutil.copytree(tiny, folder)
    byte_tokenizer(template=None).save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    return folder


@cache
def _plain_session(folder: Path) -> Session:
    return paceline.load(str(folder), "plain")


def greedy(folder: Path, messages: Sequence[dict[str, str]] | str, count: int) -> str:
    """What the library writes, to compare with what the command prints."""
    return _plain_session(folder).generate(messages, max_new_tokens=count).text


def asked(*texts: str) -> list[dict[str, str]]:
    """A conversation, the user first."""
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# What cannot be done.


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> dict[str, object]:
    """Names for the placeholders of the commands below."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "latin").write_bytes(b"caf\xe9")
    (folder / "junk.db").write_bytes(b"this is no database " * 100)
    (folder / "list.jsonl").write_text('{"prompt": "x"}\n["y"]\n', encoding="utf-8")
    (folder / "good.jsonl").write_text('{"prompt": "x"}\n', encoding="utf-8")
    (folder / "schema.json").write_text("{}", encoding="utf-8")
    (folder / "twins.jsonl").write_text('{"id": "a", "prompt": "x"}\n' * 2, encoding="utf-8")
    return {"dir": folder, "tiny": tiny, "long": "x" * 5000}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Words that are no command or option.
        ("frobnicate", "No such command"),
        ("generate hi --frobnicate", "No such option"),
        ("generate hi there", "unexpected extra argument"),
        ("generate hi --model", "requires an argument"),
        ("generate hi -n many", "--max-new-tokens"),
        ("generate hi --threads 0", "--threads"),
        ("generate hi --limit 0", "--limit"),
        ("compare --limit 0", "--limit"),
        ("compare --repeats 0", "--repeats"),
        ("models path", "Missing argument"),
        ("models frobnicate", "No such command"),
        # Models.
        ("generate hi --model smolm2-135m", "unknown model 'smolm2-135m' (did you mean"),
        ("generate hi --model nonsense", "unknown model 'nonsense': use one of"),
        ("generate hi --model [/b]:smile:", "unknown model '[/b]:smile:'"),
        ("generate hi --model {dir}", "no config.json"),
        ("generate hi --model {dir}/junk.db", "is neither a GGUF file nor a folder"),
        ("chat --model nonsense", "unknown model"),
        ("chat --limit 2", "give --prompt-file"),
        ("compare hi --gguf nope", "--gguf is for llama.cpp"),
        ("compare --model nonsense", "unknown model"),
        ("models path nonsense", "unknown model"),
        ("models pull smollm2", "did you mean"),
        ("models remove nonsense", "unknown model"),
        # Methods.
        ("generate hi --method anpdd", "unknown method 'anpdd' (did you mean anpd?)"),
        ("generate hi --method anpd:q=3", "no setting 'q'"),
        ("generate hi --method anpd:n", "cannot read 'n'"),
        ("generate hi --method anpd:n=x", "anpd:n must be a whole number, got 'x'"),
        ("generate hi --method anpd:n=0", "n must be a whole number >= 2, got 0"),
        ("chat --method nonsense", "unknown method"),
        ("compare --methods plain,lmla", "did you mean llma"),
        ("compare --methods n=5", "unknown method 'n=5'"),
        ("compare --methods ,", "at least one method"),
        ("generate hi --method ppd:size=1", "size must be a whole number >= 2, got 1"),
        ("generate hi --method ppd:parts=/no", "there is no folder /no with prompt tokens"),
        ("generate hi --model {tiny} --method ppd", "there are no prompt tokens for this model"),
        ("compare hi --model {tiny} --methods plain,ppd", "there are no prompt tokens for this"),
        # Settings of the request.
        ("generate hi -n 0", "max_new_tokens must be at least 1, got 0"),
        ("generate hi -n -3", "max_new_tokens must be at least 1, got -3"),
        ("chat -n 0", "max_new_tokens must be at least 1"),
        ("compare -n 0", "max_new_tokens must be at least 1"),
        ("generate hi --typical", "typical acceptance needs a temperature above 0"),
        ("generate hi --temperature -1", "temperature must be a number >= 0"),
        ("generate hi --temperature nan", "temperature must be a number >= 0"),
        ("generate hi --temperature inf", "temperature must be a number >= 0"),
        ("generate hi --top-p 2", "top_p must be in (0, 1]"),
        ("generate hi --min-p -1", "min_p must be in [0, 1]"),
        ("generate hi --top-k 0", "top_k must be >= 1"),
        ("generate hi --budget -1", "budget must be at least 0"),
        ("generate hi --regex a --json-object", "give only one of --json-object, --json-schema"),
        ("generate hi --json-schema {dir}/missing", "cannot read the JSON schema"),
        ("generate hi --json-schema {dir}/list.jsonl", "cannot read the JSON schema"),
        ("generate hi --grammar {dir}/latin", "cannot read the grammar file"),
        (
            "generate hi --json-schema {dir}/schema.json --json {dir}/schema.json",
            "is read by this command",
        ),
        (
            "chat --prompt-file {dir}/good.jsonl --model {tiny} --json {dir}/good.jsonl",
            "is read by this command",
        ),
        # Prompts and references.
        ("generate", "either a prompt or --prompt-file"),
        ("generate hi --prompt-file {dir}/good.jsonl", "either a prompt or --prompt-file"),
        ("compare hi --prompt-file {dir}/good.jsonl", "either a prompt or --prompt-file"),
        ("generate hi --limit 2", "--limit counts the records of a prompt file"),
        ("compare hi --limit 2", "--limit counts the records of a prompt file"),
        ("generate -", "the prompt is empty"),
        ("generate --prompt-file {dir}/missing", "cannot read the prompt file"),
        ("generate --prompt-file {dir}", "cannot read the prompt file"),
        ("generate --prompt-file {dir}/latin", "not UTF-8"),
        ("generate --prompt-file {dir}/list.jsonl", "list.jsonl, line 2 is not a JSON object"),
        ("compare --prompt-file {dir}/list.jsonl", "list.jsonl, line 2 is not a JSON object"),
        (
            "compare --prompt-file {dir}/twins.jsonl --model {tiny} --methods pld",
            "a' is the id of several prompts",
        ),
        ("generate hi --reference {dir}/missing", "cannot read the reference file"),
        ("generate hi --reference {dir}", "cannot read the reference file"),
        ("chat --reference {dir}/latin", "not UTF-8"),
        ("generate {long} --model {tiny}", "but the model's context is 4096"),
        # Files to write, and devices.
        ("generate hi --model {tiny} --json {dir}", "cannot write"),
        (
            "generate --prompt-file {dir}/good.jsonl --model {tiny} --json {dir}/good.jsonl",
            "is read by this command",
        ),
        ("generate hi --model {tiny} --json {dir}/good.jsonl/below", "cannot write"),
        ("compare hi --model {tiny} --json {dir}", "cannot write"),
        (f"generate hi --model {{tiny}} --json {{dir}}/{'x' * 300}", "cannot write"),
        (f"store info {{dir}}/{'x' * 300}", "cannot use"),
        (
            "tune --model {tiny} --plot {dir}/plots",
            "--verify, --plot, --prompt-file, --limit and --max-new-tokens need a method",
        ),
        ("tune --model {tiny} --prompt-file {dir}/good.jsonl", "add --method ppd"),
        ("tune --model {tiny} --limit 3", "--limit and --max-new-tokens need a method"),
        ("tune --model {tiny} -n 9", "--limit and --max-new-tokens need a method"),
        ("tune --method ppd -n 9", "need texts to decode: add --verify"),
        ("tune --method ppd --limit 3", "need texts to decode: add --verify"),
        ("generate hi --model {tiny} --store {dir}", "cannot use the reference store"),
        ("generate hi --model {tiny} --store {dir}/junk.db", "not an SQLite database"),
        ("store info {dir}/missing.db", "there is no store"),
        ("store info {dir}/junk.db", "not an SQLite database"),
        ("store clear {dir}/missing.db", "there is no store"),
        ("store clear {dir}", "cannot use the reference store"),
        ("generate hi --model {tiny} --device nonsense", "no device 'nonsense'"),
        ("generate hi --model {tiny} --dtype int8", "dtype 'int8'"),
        ("generate hi --model {tiny} --weights int9", "unknown weights 'int9'"),
        ("tune --model {tiny} --weights int9", "unknown weights 'int9'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(
    command: Command, places: dict[str, object], words: str, expected: str
) -> None:
    result = command(*(word.format(**places) for word in words.split()))
    assert result.code == 2
    assert result.out == ""
    (sentence,) = result.notes
    assert sentence.startswith("error: ")
    assert expected in sentence


@pytest.mark.parametrize("prompt", ["", "  \n\t", "\udcff"])
def test_a_prompt_without_text_is_refused(command: Command, prompt: str) -> None:
    for words in (("generate", prompt), ("compare", prompt)):
        result = command(*words)
        assert (result.code, result.out, len(result.notes)) == (2, "", 1)
        assert "error: the prompt is " in result.err


@pytest.mark.parametrize("stdin", [b"", b" \n", b"caf\xe9"])
def test_standard_input_without_text_is_refused(command: Command, stdin: bytes) -> None:
    result = command("generate", "-", stdin=stdin)
    assert (result.code, result.out, len(result.notes)) == (2, "", 1)
    assert "error: the prompt is " in result.err


def test_what_is_no_text_hears_which_coding_is_expected(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the prompt is not UTF-8 text" in command("generate", "-", stdin=b"caf\xe9").err
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert "the prompt is not ASCII text" in command("generate", "\udcc3\udca9").err


def test_empty_words_are_refused(command: Command) -> None:
    for words, expected in (
        (("generate", "hi", "--stop", ""), "a stop string is empty"),
        (("generate", "hi", "--model", ""), "unknown model ''"),
        (("generate", "hi", "--method", ""), "unknown method ''"),
        (("compare", "--methods", ""), "at least one method"),
    ):
        result = command(*words)
        assert (result.code, result.out, len(result.notes)) == (2, "", 1)
        assert expected in result.err


def test_a_failed_command_leaves_no_result_file(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    assert command("generate", "hi", "--model", tmp_path, "--json", path).code == 2
    assert not path.exists()
    path.write_text("[1]", encoding="utf-8")
    assert command("generate", "hi", "--model", tmp_path, "--json", path).code == 2
    assert path.read_text(encoding="utf-8") == "[1]"


def test_a_refused_prompt_leaves_earlier_results_alone(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    path.write_text("[1]", encoding="utf-8")
    assert command("generate", "x" * 5000, "--model", tiny, "--json", path).code == 2
    assert path.read_text(encoding="utf-8") == "[1]"


def _commands(found: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    yield " ".join(words)
    for name, each in getattr(found, "commands", {}).items():
        yield from _commands(each, (*words, name))


COMMANDS = [*_commands(get_command(app))]


def test_every_command_is_tried() -> None:
    assert len(COMMANDS) > 30 and {"", "serve", "bench run", "train eagle"} <= {*COMMANDS}


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_explains_itself(command: Command, words: str) -> None:
    result = command(*words.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert f"paceline {words}".strip() in result.out
    assert "Usage" in result.out


def test_the_version_is_printed(command: Command) -> None:
    assert command("--version") == Result(0, f"paceline {paceline.__version__}\n", "")


@pytest.mark.parametrize("words", [(), ("models",), ("store",)])
def test_a_command_group_alone_shows_its_help(command: Command, words: tuple[str, ...]) -> None:
    result = command(*words)
    assert "Commands" in result.out
    assert result.err == ""


# Output as it is.


class Told(Iterator[Chunk]):
    """A stream that tells what it is given, and is broken off where it ends with None."""

    def __init__(self, *texts: str | None) -> None:
        self.text = "".join(text or "" for text in texts)
        self._chunks = iter(
            [text and Chunk(text, place % 2 == 1) for place, text in enumerate(texts)]
        )

    def __next__(self) -> Chunk:
        chunk = next(self._chunks)
        if chunk is None:
            raise KeyboardInterrupt
        return chunk

    @property
    def completion(self) -> Completion:
        return Completion(self.text, [], "length", Stats(), 1)


STRANGE = (
    "a\tb ",
    ":smile: [bold]",
    "x\r\ny\x07\x08\x0c ",
    "é 你好 🚲 \x1b[31m",
    "z" * 3000,
    " \n\n",
)


@pytest.mark.parametrize("show_drafts", [False, True])
def test_text_is_printed_character_for_character(show_drafts: bool) -> None:
    file = io.StringIO(newline="")
    print_stream(Told(*STRANGE), Console(file=file, width=40), show_drafts)  # type: ignore[arg-type]
    assert file.getvalue() == "".join(STRANGE) + "\n"


def test_drafted_text_is_green_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    texts = ("one ", "two\t", "three\n", "four")
    file = io.StringIO(newline="")
    console = Console(file=file, width=40, force_terminal=True, color_system="standard")
    print_stream(Told(*texts), console, show_drafts=True)  # type: ignore[arg-type]
    assert file.getvalue() == "one \x1b[32mtwo\t\x1b[0mthree\n\x1b[32mfour\x1b[0m\n"


def test_drafted_text_has_the_colour_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    told = Told("one")
    told._chunks = iter(
        [Chunk("a", True, ("x",)), Chunk("b", True, ("y",)), Chunk("c", True, ("x", "y"))]
    )
    told.text = "abc"
    file = io.StringIO(newline="")
    console = Console(file=file, width=40, force_terminal=True, color_system="standard")
    print_stream(told, console, show_drafts=True)  # type: ignore[arg-type]
    green, cyan, end = "\x1b[32m", "\x1b[36m", "\x1b[0m"
    shown = f"{green}a{end}{cyan}b{end}\x1b[1;32mc{end}\n"
    assert file.getvalue() == f"{shown}{green}x {end}{cyan}y {end}\n"


def test_what_was_held_back_is_printed_where_a_text_is_broken_off() -> None:
    stream = Told("one ", "two ", None, "held back")
    file = io.StringIO(newline="")
    print_stream(stream, Console(file=file), False)  # type: ignore[arg-type]
    assert file.getvalue() == "one two held back\n"


def test_a_terminal_without_unicode_loses_no_more_than_a_character(
    command: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("generate", "hello", "-m", tiny, "-n", 30, "--temperature", 8)
    text = command(*words).out
    assert not text.isascii()
    ascii_only = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(ascii_only, "ascii", newline=""))
    result = command(*words)
    assert (result.code, len(result.notes)) == (0, 1)
    assert ascii_only.getvalue() == text.encode("ascii", "replace")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("plain,anpd:n=4,k=5,llma", ["plain", "anpd:n=4,k=5", "llma"]),
        ("anpd:n=4, k=5 , llma:n=2", ["anpd:n=4,k=5", "llma:n=2"]),
        (" plain ,, pld,", ["plain", "pld"]),
        ("anpd", ["anpd"]),
        ("auto:-llma,-medusa,pld", ["auto:-llma,-medusa", "pld"]),
        (
            "plain,x:draft=a/b,inner=anpd,length=3,pld",
            ["plain", "x:draft=a/b,inner=anpd,length=3", "pld"],
        ),
        ("x:draft=a,in=x:draft=b,llma", ["x:draft=a,in=x:draft=b", "llma"]),
        ("x:in=(anpd:n=4,k=5),k=2,llma:n=1", ["x:in=(anpd:n=4,k=5),k=2", "llma:n=1"]),
    ],
)
def test_settings_stay_with_their_method(text: str, names: list[str]) -> None:
    assert split_methods(text) == names


# generate


def test_generate_prints_the_text_and_writes_the_record(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "below" / "result.json"
    result = command("generate", "hello", "-m", tiny, "-n", 40, "--json", path)
    text = greedy(tiny, asked("hello"), 40)
    assert (result.code, result.out) == (0, text + "\n")
    (summary,) = result.notes
    assert summary.startswith("[40 tokens in ")
    assert summary.endswith("ended by: length]")
    (record,) = read_json(path)
    assert record["id"] == "prompt"
    assert record["text"] == text
    assert byte_tokenizer().decode(record["tokens"]) == text
    assert record["finish_reason"] == "length"
    assert record["prompt_tokens"] == len("<user>hello\n<assistant>")
    assert record["cached_tokens"] == 0
    assert record["rounds"] == sum(record["acceptance_histogram"].values()) <= 40
    assert record["mean_acceptance_length"] == 40 / record["rounds"]
    assert record["tokens_per_second"] == pytest.approx(40 / sum(record["seconds"].values()))


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no names here")
def test_the_record_may_go_into_a_pipe(command: Command, tiny: Path) -> None:
    # As a shell writes `--json >(jq .)`.
    reading, writing = os.pipe()
    result = command("generate", "hello", "-m", tiny, "-n", 3, "--json", f"/dev/fd/{writing}")
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        (record,) = json.load(pipe)
    assert (result.code, result.out) == (0, record["text"] + "\n")


def test_generate_reads_standard_input_as_it_stands(command: Command, tiny: Path) -> None:
    words = ("--raw", "-m", tiny, "-n", 12)
    for text in ("plain words", " naïve 你好 🚲\n\n", "- x"):
        piped = command("generate", "-", *words, stdin=text)
        assert piped.out == greedy(tiny, text, 12) + "\n"
        assert command("generate", *words, "--", text).out == piped.out
    assert command("generate", "-", *words, stdin=f"\ufeff{text}").out == piped.out


def test_generate_answers_a_file_of_prompts(command: Command, tiny: Path, tmp_path: Path) -> None:
    prompts, path = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    records = [{"id": "talk", "turns": ["hello", "go on"]}, {"prompt": "once"}, {"prompt": "no"}]
    prompts.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    words = ("generate", "--prompt-file", prompts, "-m", tiny, "-n", 9, "--json", path)
    result = command(*words, "--limit", 2)
    first = greedy(tiny, asked("hello"), 9)
    second = greedy(tiny, asked("hello", first, "go on"), 9)
    texts = [first, second, greedy(tiny, "once", 9)]
    assert (result.code, result.out) == (0, "".join(f"{text}\n" for text in texts))
    written = [(record["id"], record["text"]) for record in read_json(path)]
    assert written == list(zip(("talk", "talk", "2"), texts, strict=True))
    raw = command(*words, "--limit", 1, "--raw")
    assert raw.out == greedy(tiny, "hello\n\ngo on", 9) + "\n"
    assert len(result.notes) == 3


def test_generate_keeps_what_was_done_before_an_error(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    prompts, path = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    long = {"id": "long", "turns": ["talk", "x" * 5000]}
    records = [{"prompt": "once"}, long, {"prompt": "twice"}]
    prompts.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    result = command("generate", "--prompt-file", prompts, "-m", tiny, "-n", 5, "--json", path)
    assert result.code == 2
    assert result.notes[-1].startswith("error: record long: the prompt has 50")
    assert [record["id"] for record in read_json(path)] == ["1", "long"]


def test_generate_works_without_a_chat_template(
    command: Command, tiny: Path, untemplated: Path
) -> None:
    result = command("generate", "hello", "-m", untemplated, "-n", 9)
    assert (result.code, result.out) == (0, greedy(tiny, "hello", 9) + "\n")


def test_references_save_rounds_and_change_nothing(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    reference, path = tmp_path / "reference.txt", tmp_path / "result.json"
    words = ("generate", "hello", "-m", tiny, "-n", 40, "--method", "llma", "--budget", 16)
    words += ("--json", path)
    alone = command(*words)
    rounds = read_json(path)[0]["rounds"]
    reference.write_text(alone.out, encoding="utf-8", newline="")
    helped = command(*words, "--reference", reference)
    assert helped.out == alone.out
    assert read_json(path)[0]["rounds"] < rounds


def test_a_stop_string_ends_the_output(command: Command, tiny: Path) -> None:
    text = greedy(tiny, asked("hello"), 40)
    stop = text[20:22]
    result = command("generate", "hello", "-m", tiny, "-n", 40, "--stop", "never", "--stop", stop)
    assert result.out == text[: text.find(stop)] + "\n"
    assert "ended by: stop" in result.err


def test_a_seed_decides_the_text(command: Command, tiny: Path) -> None:
    words = ("generate", "hello", "-m", tiny, "-n", 40, "--temperature", 1.5)
    first = command(*words, "--seed", 7)
    assert command(*words, "--seed", 7, "--method", "plain").out == first.out
    assert command(*words, "--seed", -8, "--method", "plain").out != first.out


def test_colours_are_for_terminals_only(
    command: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("generate", "hello", "-m", tiny, "-n", 60, "--show-drafts", "--budget", 16)
    words += ("--method", "anpd")  # which sources of auto have a say depends on the clock
    plain = command(*words)
    assert "\x1b" not in plain.out
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    coloured = command(*words)
    assert "\x1b[32m" in coloured.out
    assert ANSI.sub("", coloured.out) == plain.out


def test_a_store_keeps_answers_until_it_is_cleared(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "answers.db"
    words = ("generate", "tell me a story", "-m", tiny, "-n", 40, "--method", "llma")
    words += ("--budget", 16)
    first = command(*words, "--store", path)
    second = command(*words, "--store", path)
    assert first.out == second.out
    rounds = [re.search(r"; (\d+) rounds", result.err) for result in (first, second)]
    assert int(rounds[1][1]) < int(rounds[0][1])  # type: ignore[index]
    info = command("store", "info", path)
    assert info.out.startswith(f"{path}: 1 answer, ")
    cleared = command("store", "clear", path)
    assert (cleared.code, cleared.out) == (0, "")
    assert "1 answer removed" in cleared.err
    assert ": 0 answers" in command("store", "info", path).out


# chat


def test_chat_continues_a_conversation_until_it_is_cleared(command: Command, tiny: Path) -> None:
    talk = "hello\n\n  hello \n/clear\nhello\n/quit\nnever\n"
    result = command("chat", "-m", tiny, "-n", 9, stdin=talk)
    first = greedy(tiny, asked("hello"), 9)
    second = greedy(tiny, asked("hello", first, "hello"), 9)
    assert first != second
    assert (result.code, result.out) == (0, f"{first}\n{second}\n{first}\n")
    assert command("chat", "-m", tiny, "-n", 9, stdin=f"\ufeff{talk}").out == result.out
    assert "/clear" in result.notes[0]
    assert len(result.notes) == 1 + 3


def test_chat_ends_with_its_input_and_hides_figures(command: Command, tiny: Path) -> None:
    result = command(
        "chat", "-m", tiny, "-n", 5, stdin="/stats\nhello\n/stats\n/what\n/etc is what"
    )
    assert result.code == 0
    assert len(result.out.splitlines()) == 2
    assert [line[0] for line in result.notes] == ["T", "T", "["]
    assert command("chat", "-m", tiny).out == ""


def test_chat_reads_bytes_that_are_no_text(command: Command, tiny: Path) -> None:
    result = command("chat", "-m", tiny, "-n", 5, stdin=b"caf\xe9\n")
    assert (result.code, len(result.out.splitlines())) == (0, 1)


def test_chat_needs_a_chat_template(command: Command, untemplated: Path) -> None:
    result = command("chat", "-m", untemplated, stdin="hello\n")
    assert (result.code, result.out, len(result.notes)) == (2, "", 1)
    assert "no chat template" in result.err


def test_a_message_beyond_the_context_is_refused(command: Command, tiny: Path) -> None:
    result = command("chat", "-m", tiny, "-n", 5, stdin="hello\n" + "x" * 5000 + "\n")
    assert (result.code, len(result.out.splitlines())) == (2, 1)
    assert "the model's context is 4096" in result.notes[-1]


def test_at_a_terminal_a_chat_goes_on_after_an_error(command: Command, tiny: Path) -> None:
    talk = "x" * 5000 + "\nhello\n"
    result = command("chat", "-m", tiny, "-n", 9, stdin=talk, terminal=True)
    assert result.code == 0
    assert result.out == f"> > {greedy(tiny, asked('hello'), 9)}\n> \n"
    (error,) = [line for line in result.notes if line.startswith("error: ")]
    assert "the model's context is 4096" in error
    assert "/clear starts over" in error


# compare


def test_compare_reports_every_method(command: Command, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    methods = "plain,anpd:n=4,k=5,llma"
    words = ("compare", "-m", tiny, "-n", 8, "--repeats", 1, "--methods", methods, "--json", path)
    result = command(*words)
    assert result.code == 0
    for part in ("plain", "anpd:n=4,k=5", "llma", "question", "documents", "1.00x", "yes"):
        assert part in result.out
    report = read_json(path)
    assert report["command"] == "paceline " + " ".join(map(str, words))
    assert {"processor", "cores", "threads", "device", "system"} <= set(report["machine"])
    assert {"paceline", "torch", "transformers", "numpy"} <= set(report["versions"])
    assert report["model"] == {"name": str(tiny), "fingerprint": load_causal_lm(str(tiny))[2]}
    assert report["options"]["repeats"] == 1
    assert [prompt["task"] for prompt in report["prompts"]] == [
        "chat",
        "summarization",
        "code_edit",
        "rag",
    ]
    assert [entry["method"] for entry in report["methods"]] == ["plain", "anpd:n=4,k=5", "llma"]
    for entry in report["methods"]:
        assert (entry["identical"], entry["mismatches"], entry["tokens"]) == (True, [], 32)
        assert set(entry["speedup_per_prompt"]) == {prompt["id"] for prompt in report["prompts"]}
    assert report["methods"][0]["speedup"] == 1.0


def test_compare_prints_names_as_they_are(command: Command, tiny: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    names = ("[/b]", "[bold]x", ":smile:")
    prompts.write_text(
        "".join(json.dumps({"id": name, "prompt": "hi"}) + "\n" for name in names), encoding="utf-8"
    )
    words = ("-m", tiny, "-n", 3, "--repeats", 1, "--methods", "anpd")
    result = command("compare", "--prompt-file", prompts, *words)
    assert result.code == 0
    assert all(name in result.out for name in names)


# models


def test_an_empty_cache_holds_no_model(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "none"))
    listed = command("models", "list")
    assert listed.code == 0
    for alias in ModelStore().aliases:
        (line,) = [line for line in listed.out.splitlines() if f" {alias} " in line]
        assert " no " in line
    for words in (("path",), ("remove",)):
        result = command("models", *words, "smollm2-135m")
        assert (result.code, result.out, len(result.notes)) == (2, "", 1)
        assert "is not on this machine" in result.err


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_narrow_terminal_cuts_nothing_off(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = ANSI.sub("", command("models", "list").out).splitlines()
    assert max(map(len, lines)) <= max(columns, 80)
    cells = "".join(line.split("│")[-2] for line in lines if "│" in line)
    described = "".join(alias.description for alias in ModelStore().aliases.values())
    assert "".join(cells.split()) == "".join(described.split())


@pytest.mark.parametrize("columns", [2, 20, 45])
def test_a_terminal_cuts_no_column_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    speeds = [f"{100 + place}.25x" for place in range(columns)]
    headings = ["prompt", *(f"anpd:n={place}" for place in range(columns))]
    print_table(Table("", headings, [["first", *speeds]]))
    _, *rows = ANSI.sub("", capsys.readouterr().out).partition("┡")[2].splitlines()[:-1]
    cells = zip(*([cell.strip() for cell in row.split("│")[1:-1]] for row in rows), strict=True)
    assert ["".join(cell) for cell in cells] == ["first", *speeds]


# Processes of their own: Ctrl-C, pipes, the module as a command.


STREAMS: dict[str, Any] = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "bufsize": 0,  # what a buffered read takes ahead would be lost to `communicate`
}


def start(*words: object, **environment: str) -> subprocess.Popen[bytes]:
    """Python in the background."""
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, env=os.environ | environment, **STREAMS)


def fork(*words: object, **environment: str) -> subprocess.Popen[bytes]:
    """The command in the background, which need not import what the tests have imported."""
    return Forked(["paceline", *words], env=os.environ | environment, **STREAMS)


def read(process: subprocess.Popen[bytes], count: int) -> str:
    """The next bytes of its output; an unbuffered read alone may bring fewer."""
    assert process.stdout is not None
    data = b""
    while len(data) < count and (more := process.stdout.read(count - len(data))):
        data += more
    return data.decode()


def finish(process: subprocess.Popen[bytes], stdin: bytes = b"") -> tuple[str, str]:
    """Wait for its end; returns what was not read yet of stdout and stderr."""
    out, err = process.communicate(stdin, timeout=120)
    return out.decode(errors="replace"), err.decode(errors="replace")


def test_ctrl_c_ends_generate_with_what_there_is(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    process = fork("generate", "hello", "-m", tiny, "-n", 4000, "--json", path)
    assert process.stdout is not None
    began = read(process, 3)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == 130
    (record,) = read_json(path)
    assert (began + out).removesuffix("\n") == record["text"]
    assert record["finish_reason"] == "interrupted"
    assert 3 <= len(record["tokens"]) < 4000
    (summary,) = err.split("\n")[:-1][-1:]
    assert summary.endswith("ended by: interrupted]")
    assert "Traceback" not in err


ENDINGS = [one for name in ("SIGTERM", "SIGHUP") if (one := getattr(signal, name, None))]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_signal_ends_generate_and_keeps_what_there_is(
    tiny: Path, tmp_path: Path, ending: signal.Signals
) -> None:
    path = tmp_path / "result.json"
    process = fork("generate", "hello", "-m", tiny, "-n", 4000, "--json", path)
    began = read(process, 3)
    process.send_signal(ending)
    _, err = finish(process)
    assert process.returncode == 128 + ending
    (record,) = read_json(path)
    assert record["text"].startswith(began)
    assert record["finish_reason"] == "interrupted"
    assert "Traceback" not in err


def test_sigterm_ends_a_chat(tiny: Path) -> None:
    process = fork("chat", "-m", tiny, "-n", 3000)
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    read(process, 3)
    process.send_signal(signal.SIGTERM)
    assert "Traceback" not in finish(process)[1]
    assert process.returncode == 143


def test_ctrl_c_in_a_chat_returns_to_the_prompt(tiny: Path) -> None:
    process = fork("chat", "-m", tiny, "-n", 3000)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    began = read(process, 3)
    process.send_signal(signal.SIGINT)
    # The next message is answered, for as long as nobody interrupts again.
    rest = process.stdout.readline().decode()
    process.stdin.write(b"/clear\nhello\n")
    process.stdin.flush()
    again = read(process, 3)
    process.send_signal(signal.SIGINT)
    out, err = finish(process, b"/quit\n")
    assert process.returncode == 0
    assert began == again
    assert len(rest) < 3000
    assert out.endswith("\n")
    assert err.count("ended by: interrupted]") == 2
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["generate", "chat", "compare"])
def test_ctrl_c_ends_the_loading_of_a_model_whoever_swallows_it(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: object, **more: object) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ModelError("this module cannot be imported")

    monkeypatch.setattr("paceline.api.load", load)
    assert command(name, *(() if name == "chat" else ("hello",))).code == 130


def test_ctrl_c_ends_compare(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    # The progress bar of a terminal tells that the comparison has begun.
    process = fork(
        *("compare", "hello", "-m", tiny, "-n", 3000, "--json", path),
        FORCE_COLOR="1",
        TERM="xterm",
    )
    assert process.stderr is not None
    seen = b""
    while b"comparing" not in seen and (more := process.stderr.read(1)):
        seen += more
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert not path.exists()


@pytest.mark.parametrize("module", ["numpy.linalg", "torch", "transformers.utils"])
def test_ctrl_c_ends_loading(tiny: Path, module: str) -> None:
    # Python tells on standard error what it has imported, this module among others.
    process = start("-X", "importtime", "-m", "paceline", "generate", "hello", "-m", tiny)
    assert process.stderr is not None
    for line in process.stderr:
        if line.decode().split("|")[-1].strip().startswith(module):
            process.send_signal(signal.SIGINT)
            break
    out, err = finish(process)
    # Where C code that imports Python code was interrupted, CPython remembers it and ends the
    # process by the signal itself, whatever the exit code: a shell shows 130 for both.
    assert process.returncode in (130, -signal.SIGINT) and out == ""
    assert [line for line in err.splitlines() if not line.startswith("import time:")] == []


@pytest.mark.parametrize("outcome", ["swallowed", "mistaken", "raised"])
def test_an_interrupt_while_loading_is_nothing_else(outcome: str) -> None:
    def load() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if outcome == "mistaken":
                raise ImportError("your installation is broken") from None
            if outcome == "raised":
                raise

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        load()
    assert signal.getsignal(signal.SIGINT) is before
    with interruptible():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_can_wait_for_what_is_under_way() -> None:
    done = []

    def write(interrupts: int) -> None:
        for _ in range(interrupts):
            signal.raise_signal(signal.SIGINT)
        done.append(interrupts)

    with pytest.raises(KeyboardInterrupt), interruptible(at_once=False):
        write(1)
    with pytest.raises(KeyboardInterrupt), interruptible(at_once=False):
        write(2)
    assert done == [1]


def test_an_error_while_loading_stays_what_it_is() -> None:
    with pytest.raises(ImportError), interruptible():
        raise ImportError


@pytest.mark.parametrize("name", ["generate", "models"])
def test_a_reader_that_has_enough_is_no_error(name: str, tiny: Path) -> None:
    if name == "generate":
        process = fork("generate", "hello", "-m", tiny, "-n", 3000)
        assert len(read(process, 5)) == 5
    else:  # to the end of Python itself, which writes what is left
        process = start("-m", "paceline", "models", "list")
    assert process.stdin is not None and process.stdout is not None
    process.stdout.close()
    process.stdin.close()
    assert process.stderr is not None
    err = process.stderr.read().decode()
    assert process.wait(timeout=120) != 130
    assert "Traceback" not in err
    assert "rror" not in err


def test_compare_keeps_its_file_if_nobody_reads_its_tables(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    words = ("hi", "--raw", "-m", tiny, "-n", 3, "--repeats", 1, "--methods", "pld")
    process = fork("compare", *words, "--json", path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stdin is not None and process.stderr is not None
    process.stdin.close()
    assert b"rror" not in process.stderr.read()
    process.wait(timeout=120)
    assert len(read_json(path)["methods"]) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["store", "info", "{store}"]])
def test_a_full_disk_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    store.touch()
    command = ["paceline", *(word.format(store=store) for word in words)]
    with Path("/dev/full").open("w") as full:
        ended = Forked(command, stdout=full, stderr=subprocess.PIPE)
        _, said = ended.communicate(timeout=120)
    assert ended.returncode == 2
    assert said.decode().strip() == "error: cannot write: No space left on device"


def test_without_a_network_a_hub_model_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # as the variable does
    process = fork("generate", "hi", "-m", "nobody/nothing")
    out, err = finish(process)
    assert (process.returncode, out) == (2, "")
    assert "error: cannot reach the model hub to get nobody/nothing" in err
    assert len(err.strip().splitlines()) == 1


# The default model.


@pytest.mark.model
def test_the_default_model_writes_the_same_with_every_method(command: Command) -> None:
    texts = {
        command("generate", "Count from one to ten.", "-n", 24, "--method", method).out
        for method in ("plain", "anpd")
    }
    assert len(texts) == 1
    assert len(texts.pop()) > 20


@pytest.mark.model
def test_a_prompt_longer_than_the_context_is_refused(command: Command) -> None:
    result = command("generate", "-", stdin="word " * 9000)
    assert (result.code, result.out, len(result.notes)) == (2, "", 1)
    assert "but the model's context is 8192: shorten the prompt" in result.err


@pytest.mark.model
@pytest.mark.parametrize("size", [0, 100, 1 << 20])
def test_weights_cut_short_are_refused(command: Command, tmp_path: Path, size: int) -> None:
    folder = tmp_path / "copy"
    original = paceline.models.pull(paceline.models.DEFAULT_MODEL)
    shutil.copytree(original, folder, ignore=shutil.ignore_patterns("*.gguf"))
    with (original / "model.gguf").open("rb") as weights:
        (folder / "model.gguf").write_bytes(weights.read(size))
    result = command("generate", "hi", "-m", folder)
    assert (result.code, result.out, len(result.notes)) == (2, "", 1)
    assert ("damaged" if size else "is not a GGUF file") in result.err


def test_chat_says_the_turns_of_a_file_first_and_writes_the_conversation(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    prompts, path = tmp_path / "prompts.jsonl", tmp_path / "talk.json"
    prompts.write_text('{"turns": ["one"]}\n{"turns": ["hello", "hello"]}\n{"turns": ["no"]}\n')
    words = ("chat", "-m", tiny, "-n", 9, "--prompt-file", prompts, "--limit", 2, "--json", path)
    result = command(*words)
    first = greedy(tiny, asked("hello"), 9)
    second = greedy(tiny, asked("hello", first, "hello"), 9)
    assert (result.code, result.out) == (0, f"{greedy(tiny, asked('one'), 9)}\n{first}\n{second}\n")
    third = {"role": "assistant", "content": second}
    assert read_json(path) == [
        [*asked("one"), {"role": "assistant", "content": greedy(tiny, asked("one"), 9)}],
        [*asked("hello", first, "hello"), third],
    ]


def test_chat_takes_no_turn_of_a_file_for_a_command(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    prompts, path = tmp_path / "prompts.jsonl", tmp_path / "talk.json"
    prompts.write_text('{"turns": ["/usr/bin fails", "/quit"]}\n{"turns": ["/clear"]}\n')
    words = ("chat", "-m", tiny, "-n", 3, "--prompt-file", prompts, "--json", path)
    assert command(*words).code == 0
    said = [[each["content"] for each in talk[::2]] for talk in read_json(path)]
    assert said == [["/usr/bin fails", "/quit"], ["/clear"]]
