"""What the commands share: their options, and how they load a session."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.comparison import PromptRecord
    from paceline.session import Session

DEFAULT_MODEL = "smollm2-135m"

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Alias, folder, GGUF file or hub id.")
]
MethodOption = Annotated[
    str, typer.Option("--method", help="Method and settings, e.g. anpd:n=5,k=7.")
]
PromptFileOption = Annotated[
    Path | None,
    typer.Option("--prompt-file", help='JSONL records with "turns" or "prompt".'),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="Read at most this many records.")
]
ReferenceOption = Annotated[
    list[Path] | None,
    typer.Option("--reference", help="Text file the output may resemble; may be repeated."),
]
TokensOption = Annotated[int, typer.Option("--max-new-tokens", "-n", help="At least 1.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
TopKOption = Annotated[int | None, typer.Option("--top-k")]
TopPOption = Annotated[float | None, typer.Option("--top-p")]
MinPOption = Annotated[float | None, typer.Option("--min-p")]
SeedOption = Annotated[int, typer.Option("--seed", help="Same seed, same text.")]
StopOption = Annotated[
    list[str] | None, typer.Option("--stop", help="String that ends the text; may be repeated.")
]
BudgetOption = Annotated[
    int | None, typer.Option("--budget", help="Most tokens guessed per round.")
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads; default: torch's choice.")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, …")]
DtypeOption = Annotated[str | None, typer.Option("--dtype", help="float32, bfloat16, float16.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the result here as JSON.")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Continue the text as it stands, without the chat template.")
]
ShowDraftsOption = Annotated[
    bool, typer.Option("--show-drafts", help="Colour the tokens that were guessed right.")
]
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="SQLite file that keeps answers as references for later."),
]


def open_session(
    model: str,
    method: str,
    *,
    threads: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    store: Path | None = None,
) -> Session:
    """Load a session with progress bars on standard error."""
    from paceline.drafters import make_drafter

    make_drafter(method)  # a wrong method must not wait for the imports below
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    from paceline.front import load
    from paceline.models import RichProgress
    from paceline.references import ReferenceStore

    with RichProgress(model) as progress:
        return load(
            model,
            method,
            device=device,
            dtype=dtype,
            store=ReferenceStore(store) if store is not None else None,
            progress=progress,
        )


def request_options(**options: Any) -> dict[str, Any]:
    """The options that were given, checked before a model is loaded."""
    from paceline.options import Options

    given = {name: value for name, value in options.items() if value is not None}
    Options().with_(**given)
    return given


def read_references(paths: list[Path] | None) -> list[str]:
    """The texts of reference files; raises UsageError naming one that cannot be read."""
    texts = []
    for path in paths or ():
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise UsageError(f"cannot read the reference file {path}: {reason}") from error
    return texts


def gather_prompts(
    prompt: str | None, prompt_file: Path | None, limit: int | None, raw: bool = False
) -> list[PromptRecord]:
    """The prompt of the command line ("-": standard input), or those of a file."""
    from paceline.comparison import PromptRecord
    from paceline.prompts import read_prompts

    if (prompt is None) == (prompt_file is None):
        raise UsageError("give either a prompt or --prompt-file")
    if prompt_file is not None:
        return read_prompts(prompt_file, limit)
    text = sys.stdin.read() if prompt == "-" else str(prompt)
    if not text.strip():
        raise UsageError("the prompt is empty: write at least one character")
    return [PromptRecord("prompt", (text,), raw=raw)]


def write_text(path: Path, text: str) -> None:
    """Write a result file; raises UsageError where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def error_console() -> Console:
    """Where bars, notes and statistics go, so that standard output holds results alone."""
    return Console(stderr=True, highlight=False)
