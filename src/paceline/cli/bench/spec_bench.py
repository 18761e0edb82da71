"""`paceline bench spec-bench`: answer files in Spec-Bench's format, written and compared."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import common
from paceline.cli.bench.shared import slug
from paceline.cli.flags import App, told
from paceline.errors import UsageError, writable
from paceline.tables import Columns, Table

if TYPE_CHECKING:
    from paceline.bench.spec_bench import Row

_COLUMNS: Columns[Row] = {
    "task": lambda row: row.task,
    "questions": lambda row: str(row.questions),
    "same text": lambda row: str(row.same_texts),
    "mean accepted": lambda row: "-" if row.mean_accepted is None else f"{row.mean_accepted:.2f}",
    "tokens/s": lambda row: f"{row.tokens_per_second:.1f}",
    "speed-up": lambda row: f"{row.speedup:.2f}x",
}

app = App(name="spec-bench", help="Answer files in Spec-Bench's format.")


@app.command("export")
@common.interruptible()
def export(
    results: Annotated[Path, told("A file that 'paceline bench run' wrote.", argument=True)],
    out: Annotated[Path, told("Folder for the answer files.")],
) -> None:
    """Write a run as answer files, one per method, which Spec-Bench's scripts read."""
    from paceline.bench.entries import Entry
    from paceline.bench.results import object_in, read_results
    from paceline.bench.spec_bench import answers_of, write_answers
    from paceline.models.load import load_tokenizer

    header, lines = read_results(results)
    entries = [line for line in lines if isinstance(line, Entry)]
    run = header.get("run", {})
    if run.get("kind") != "run" or not entries:
        raise UsageError(f"{results} holds no answers: name a file that 'paceline bench run' wrote")
    model = object_in(run, "model").get("name")
    if not isinstance(model, str):
        raise UsageError(
            f"{results}: its first line, which describes the run, does not name the model: restore "
            "it from a copy"
        )
    decode = partial(load_tokenizer(model).decode, skip_special_tokens=True)
    paths: set[Path] = set()
    for method in dict.fromkeys(entry.method for entry in entries):
        name = f"{model}-{method}"
        stem = slug(name)[:200]  # names of files may have 255 bytes
        path = out / f"{stem}.jsonl"
        if path in paths:  # of a method that differs only in punctuation, or late
            path = out / f"{stem}-{len(paths)}.jsonl"
        paths.add(path)
        with writable(path):
            out.mkdir(parents=True, exist_ok=True)
            write_answers(path, answers_of(entries, method, name, decode))
        typer.echo(str(path))


@app.command("show")
@common.interruptible()
def show(
    base: Annotated[Path, told("The baseline's answer file.", argument=True)],
    files: Annotated[list[Path], told("Answer files to compare with it.", argument=True)],
) -> None:
    """Compare answer files, ours or published ones, as Spec-Bench's evaluation/speed.py does."""
    from paceline.bench.spec_bench import compare, read_answers

    baseline = read_answers(base)
    for answers in map(read_answers, files):
        rows = compare(baseline, answers)
        common.print_table(Table.of(answers[0].model_id, _COLUMNS, rows))
