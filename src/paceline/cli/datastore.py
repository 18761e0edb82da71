"""`paceline datastore`: texts in which `rest` and `sam` look up guesses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import common
from paceline.cli.flags import App, told
from paceline.cli.groups import ModelOption
from paceline.defaults import DEFAULT_MODEL
from paceline.errors import StoreError, UsageError
from paceline.prompts import read_records
from paceline.tables import count

if TYPE_CHECKING:
    from paceline.datastore import DatastoreInfo
    from paceline.datastore.sorting import Int32

app = App(help="Build, inspect or clear a datastore of texts for a model.")

_FIELDS = ("outputs", "output", "answer", "text")
_AT_ONCE = 256  # texts tokenised together

Folder = Annotated[
    Path | None, told("Folder of the datastore; default: the model's own.", argument=True)
]


@app.command()
@common.interruptible()
def build(
    files: Annotated[
        list[Path], told("Text files, JSONL files of texts, or folders of either.", argument=True)
    ],
    model: ModelOption = DEFAULT_MODEL,
    out: Annotated[Path | None, told("Folder of the datastore; default: the model's own.")] = None,
    limit: Annotated[
        int | None,
        told(
            "Most tokens to keep, also later; the oldest texts are dropped. Default: the "
            "datastore's earlier limit, at first 20 million.",
            min=1,
        ),
    ] = None,
) -> None:
    """Add texts, and the contents of its log, to a datastore."""
    from paceline.datastore import Datastore
    from paceline.datastore.documents import checked
    from paceline.models.vocabulary import vocabulary_mark

    texts = [text for path in files for text in _texts(path)]
    tokenizer = _tokenizer(model)
    mark = vocabulary_mark(tokenizer)
    store = Datastore(out or Datastore.default_folder(mark), mark)
    documents: list[Int32] = []  # lists of numbers would take nine times the memory
    with common.progress("tokenising") as bar:
        task = bar.add_task("", total=len(texts))
        for begin in range(0, len(texts), _AT_ONCE):
            some = texts[begin : begin + _AT_ONCE]
            documents += map(checked, tokenizer(some, add_special_tokens=False).input_ids)
            bar.advance(task, len(some))
    store.build(documents, limit)
    common.note(f"built {store.folder}, {_summary(store.info())}")


@app.command()
def info(folder: Folder = None, model: ModelOption = DEFAULT_MODEL) -> None:
    """Show how much a datastore holds."""
    from paceline.datastore import Datastore

    place = _existing(folder, model)
    typer.echo(f"{place}: {_summary(Datastore(place, '').info())}")


@app.command()
def clear(folder: Folder = None, model: ModelOption = DEFAULT_MODEL) -> None:
    """Delete everything a datastore holds."""
    from paceline.datastore import clear_datastore

    place = _existing(folder, model)
    common.note(f"cleared {place}, {count(clear_datastore(place), 'byte')} freed")


def _summary(found: DatastoreInfo) -> str:
    logged = f", {found.logged} of them in its log" if found.logged else ""
    held = f"{count(found.documents, 'text')}, {count(found.tokens, 'token')}{logged}"
    return f"{held}, {found.bytes / 1e6:.1f} MB on disk"


def _tokenizer(model: str) -> Any:
    from paceline.models import RichProgress, load_tokenizer

    with RichProgress(model) as progress:
        return load_tokenizer(model, progress=progress)


def _existing(folder: Path | None, model: str) -> Path:
    if folder is None:
        from paceline.datastore import Datastore
        from paceline.models.vocabulary import vocabulary_mark

        folder = Datastore.default_folder(vocabulary_mark(_tokenizer(model)))
    if not folder.is_dir():
        raise StoreError(
            f"there is no datastore at {folder}: build one with 'paceline datastore build'"
        )
    return folder


def _texts(path: Path) -> Iterator[str]:
    """The texts of a file, or of all files below a folder, except names that begin with a dot.

    Raises UsageError, naming the file, for one that cannot be read.
    """
    if path.is_dir():
        inside = (each.relative_to(path) for each in sorted(path.rglob("*")))
        names = [each for each in inside if not any(part.startswith(".") for part in each.parts)]
        found = [path / each for each in names if (path / each).is_file()]
        if not found:
            raise UsageError(f"the folder {path} holds no files: name one with texts")
        for each in found:
            yield from _texts(each)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from _recorded(path)
    else:
        yield common.read_text(path, "file")


def _recorded(path: Path) -> list[str]:
    """The answers or texts of a JSONL file; records without any, e.g. prompts, are skipped."""
    values = [record.get(name) for _, record in read_records(path, "file") for name in _FIELDS]
    each = (one for value in values for one in (value if isinstance(value, list) else [value]))
    texts = [one for one in each if isinstance(one, str) and one]
    if not texts:
        raise UsageError(
            f"no record of {path} has a text: use one of the fields {', '.join(_FIELDS)}"
        )
    return texts
