"""Options of several commands, in the groups that `--help` shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SAMPLING, DRAFTING, MACHINE = "Sampling", "Drafting", "How the model runs"
"""Groups of options in `--help`."""

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
    typer.Option(
        "--reference",
        help="Text file the output may resemble; may be repeated.",
        rich_help_panel=DRAFTING,
    ),
]
TokensOption = Annotated[
    int, typer.Option("--max-new-tokens", "-n", help="Most new tokens, at least 1.")
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", help="0 is greedy.", rich_help_panel=SAMPLING)
]
TopKOption = Annotated[
    int | None,
    typer.Option("--top-k", help="Draw from the K likeliest tokens.", rich_help_panel=SAMPLING),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        help="Draw from the likeliest tokens that reach this total probability.",
        rich_help_panel=SAMPLING,
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        help="Drop tokens below this share of the likeliest one's probability.",
        rich_help_panel=SAMPLING,
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Same seed, same text.", rich_help_panel=SAMPLING)
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", help="String that ends the text; may be repeated.", rich_help_panel=SAMPLING
    ),
]
BudgetOption = Annotated[
    int | None,
    typer.Option(
        "--budget",
        help="Most tokens guessed per round; default: as many as pay off.",
        rich_help_panel=DRAFTING,
    ),
]
FixedBudgetOption = Annotated[
    int, typer.Option("--budget", help="Most tokens guessed per round.", rich_help_panel=DRAFTING)
]
TypicalOption = Annotated[
    bool,
    typer.Option(
        "--typical",
        help="LOSSY: accept guesses that are likely enough; see docs/lossless.md.",
        rich_help_panel=SAMPLING,
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=1024,
        help="CPU threads; default: torch's choice.",
        rich_help_panel=MACHINE,
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1, …", rich_help_panel=MACHINE)
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        help="auto, native, packed, packed+plain, bfloat16, int8, int4, fused; see docs/speed.md.",
        rich_help_panel=MACHINE,
    ),
]
CacheDtypeOption = Annotated[
    str,
    typer.Option(
        "--cache-dtype",
        help="Type of cached keys and values: float32, float16, int8.",
        rich_help_panel=MACHINE,
    ),
]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", help="float32, bfloat16, float16.", rich_help_panel=MACHINE)
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the result here as JSON.")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")
]
ShowDraftsOption = Annotated[
    bool, typer.Option("--show-drafts", help="Colour the tokens that were guessed right.")
]
AliasOption = Annotated[
    list[str] | None,
    typer.Option("--alias", help="Another name that the model answers to; may be repeated."),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="SQLite file that keeps answers as references for later.",
        rich_help_panel=DRAFTING,
    ),
]
DatastoreOption = Annotated[
    str | None,
    typer.Option(
        "--datastore",
        help='Datastore to guess from and to add answers to; "own" is the model\'s own.',
        rich_help_panel=DRAFTING,
    ),
]
