"""Options of several commands, most of them in groups."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import common
from paceline.cli.flags import DRAFTING, MACHINE, SAMPLING, option, told
from paceline.defaults import DEFAULT_METHOD, DEFAULT_MODEL
from paceline.errors import UsageError
from paceline.prompts import PromptRecord, demo_prompts, read_prompts

_DRAFTING = "speculative"

ModelOption = Annotated[str, told("Alias, folder, GGUF file or hub id.", "--model", "-m")]
DraftModelOption = Annotated[
    str | None,
    told("Smaller model that drafts: alias, folder, GGUF file or hub id.", panel=DRAFTING),
]
BudgetOption = Annotated[
    int | None, told("Most tokens guessed per round; default: as many as pay off.", panel=DRAFTING)
]
JsonOption = Annotated[Path | None, told("Write the result here as JSON.", "--json")]
AliasOption = Annotated[
    list[str] | None, told("Another name that the model answers to; may be repeated.")
]
DatastoreOption = Annotated[
    str | None,
    told(
        'Datastore to guess from and to add answers to; "own" is the model\'s own.', panel=DRAFTING
    ),
]


@dataclass(frozen=True)
class Choice:
    """A model, and what drafts for it."""

    model: ModelOption = DEFAULT_MODEL
    method: str | None = option(
        None, f"Method and settings, e.g. anpd:n=5,k=7. Default: {DEFAULT_METHOD}.", panel=DRAFTING
    )
    draft_model: DraftModelOption = None

    @property
    def chosen(self) -> str:
        """The method: by default `DEFAULT_METHOD`, or `speculative` with a draft model.

        Raises UsageError for a method that takes no draft model, or has one already.
        """
        method = self.method
        if self.draft_model is None:
            return DEFAULT_METHOD if method is None else method
        from paceline.drafters import add_draft
        from paceline.drafters.settings import bracketed

        found = add_draft(_DRAFTING if method is None else method, self.draft_model)
        if found is None:
            raise UsageError(
                f"method {method} takes no draft model: leave out --draft-model, or let the method "
                f"draft for the draft model: --method {_DRAFTING}:inner={bracketed(str(method))}"
            )
        return found


@dataclass(frozen=True)
class PromptFile:
    """Prompts of a file."""

    prompt_file: Path | None = option(None, 'JSONL records with "turns" or "prompt".')
    limit: int | None = option(None, "Read at most this many records.", min=1)

    def listed(self) -> list[PromptRecord]:
        """Those of the file; without one, the bundled ones."""
        if self.prompt_file is None:
            return demo_prompts()[: self.limit]
        return read_prompts(self.prompt_file, self.limit)

    def of_file(self) -> list[PromptRecord]:
        """Those of the file; without one, none. Raises UsageError for a limit alone."""
        if self.prompt_file is not None:
            return self.listed()
        if self.limit is not None:
            raise UsageError(
                "--limit counts the records of a prompt file: leave it out, or give --prompt-file"
            )
        return []


@dataclass(frozen=True)
class References(PromptFile):
    """Prompts of a file, and texts that answers may resemble."""

    reference: list[Path] | None = option(
        None, "Text file the output may resemble; may be repeated.", panel=DRAFTING
    )

    def texts(self) -> list[str]:
        """The texts that answers may resemble."""
        return [common.read_text(path, "reference file") for path in self.reference or ()]


@dataclass(frozen=True)
class Prompts(References):
    """A prompt on the command line, or those of a file."""

    prompt: Annotated[str | None, told('The prompt; "-" reads it from stdin.', argument=True)] = (
        None
    )
    raw: bool = option(False, "Continue the text as it is, without the chat template.")

    def listed(self) -> list[PromptRecord]:
        """See `PromptFile.listed`; records may also set `raw` themselves."""
        return [replace(one, raw=self.raw or one.raw) for one in super().listed()]

    @common.interruptible()
    def records(self) -> list[PromptRecord]:
        """The prompt of the command line ("-": standard input), or those of a file."""
        if (self.prompt is None) == (self.prompt_file is None):
            raise UsageError("give either a prompt or --prompt-file")
        found = self.of_file()
        if self.prompt_file is not None:
            return found
        if read := self.prompt == "-":
            common.check_stdin()
        try:
            text = sys.stdin.read().removeprefix(common.MARK) if read else str(self.prompt)
            text.encode()  # undecodable bytes on the command line arrive as lone surrogates
        except UnicodeError as error:
            coding = sys.stdin.encoding if read else sys.getfilesystemencoding()
            raise UsageError(
                f"the prompt is not {coding.upper()} text, which this system expects: convert it, or "
                "set PYTHONUTF8=1 if it is UTF-8"
            ) from error
        except OSError as error:
            raise UsageError(f"cannot read the prompt: {error.strerror or error}") from error
        if not text.strip():
            raise UsageError("the prompt is empty: write at least one character")
        return [PromptRecord("prompt", (text,), raw=self.raw)]


@dataclass(frozen=True)
class Kept:
    """Texts of earlier answers to guess from."""

    store: Path | None = option(
        None, "SQLite file that keeps answers as references for later.", panel=DRAFTING
    )
    datastore: DatastoreOption = None


@dataclass(frozen=True)
class Output:
    """How answers are shown, and where else they go."""

    show_drafts: bool = option(False, "Colour the tokens that were guessed right.")
    json_file: JsonOption = None


@dataclass(frozen=True)
class Sampling:
    """How long texts get, and how their tokens are drawn; see `paceline.options.Options`."""

    max_new_tokens: int = option(128, "Most new tokens, at least 1.", "--max-new-tokens", "-n")
    temperature: float = option(0.0, "0 is greedy.", panel=SAMPLING)
    seed: int = option(0, "Same seed, same text.", panel=SAMPLING)
    top_k: int | None = option(None, "Draw from the K likeliest tokens.", panel=SAMPLING)
    top_p: float | None = option(
        None, "Draw from the likeliest tokens that reach this total probability.", panel=SAMPLING
    )
    min_p: float | None = option(
        None, "Drop tokens below this share of the likeliest one's probability.", panel=SAMPLING
    )

    def options(self, **more: Any) -> dict[str, Any]:
        """Those that were given, plus `more`, checked before a model is loaded."""
        return common.request_options(**(asdict(self) | more))


@dataclass(frozen=True)
class Request(Sampling):
    """`Sampling`, and how much is drafted and accepted."""

    budget: BudgetOption = None
    typical: bool = option(
        False, "LOSSY: accept guesses that are likely enough; see docs/lossless.md.", panel=SAMPLING
    )

    def options(self, **more: Any) -> dict[str, Any]:
        return super().options(typical=self.typical or None, **more)


@dataclass(frozen=True)
class Device:
    """Where a model runs, and in which floats; see `paceline.load`."""

    threads: int | None = option(
        None, "CPU threads; default: torch's choice.", panel=MACHINE, min=1, max=1024
    )
    device: str | None = option(None, "cpu, cuda, cuda:1, …", panel=MACHINE)
    dtype: str | None = option(None, "float32, bfloat16, float16.", panel=MACHINE)


@dataclass(frozen=True)
class Placement(Device):
    """`Device`, and the format of the weights."""

    weights: str = option(
        "auto",
        "auto, native, packed, packed+plain, bfloat16, int8, int4, fused; see docs/speed.md.",
        panel=MACHINE,
    )


@dataclass(frozen=True)
class Machine(Placement):
    """`Placement`, and the format of keys and values."""

    cache_dtype: str = option(
        "float32", "Type of cached keys and values: float32, float16, int8.", panel=MACHINE
    )
