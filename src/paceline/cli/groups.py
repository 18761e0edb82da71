"""Groups of options, as dataclasses: a command that takes one has an option for each field."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from paceline.cli import common
from paceline.cli.flags import (
    DRAFTING,
    MACHINE,
    SAMPLING,
    BudgetOption,
    DatastoreOption,
    DraftModelOption,
    JsonOption,
    ModelOption,
    option,
    told,
)
from paceline.defaults import DEFAULT_METHOD, DEFAULT_MODEL
from paceline.errors import UsageError
from paceline.prompts import PromptRecord, demo_prompts, read_prompts

_DRAFTING = "speculative"
_NONE = inspect.Parameter.empty

CommandT = TypeVar("CommandT", bound=Callable[..., None])


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
        """See `chosen_method`."""
        return chosen_method(self.method, self.draft_model)


def chosen_method(method: str | None, draft_model: str | None) -> str:
    """The method of a command: by default `DEFAULT_METHOD`, or `speculative` with a draft model.

    Raises UsageError for a method that takes no draft model, or has one already.
    """
    if draft_model is None:
        return DEFAULT_METHOD if method is None else method
    from paceline.drafters import add_draft
    from paceline.drafters.settings import bracketed

    found = add_draft(_DRAFTING if method is None else method, draft_model)
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
            raise UsageError("the prompt is not UTF-8 text: convert it first") from error
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
        """See `Sampling.options`."""
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


class App(typer.Typer):
    """Commands with an option for each of their parameters, see `told`, and for the fields of those
    that are dataclasses. Their defaults come from the parameter's own default, if it has one."""

    def __init__(self, help: str, name: str | None = None, **settings: Any) -> None:
        super().__init__(name=name, help=help, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[CommandT], CommandT]:
        """See `typer.Typer.command`."""
        add = super().command(name, **settings)

        def added(command: CommandT) -> CommandT:
            add(_grouped(command))
            return command

        return added


def _grouped(command: Callable[..., None]) -> Callable[..., None]:
    shown: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind, default = parameter.annotation, parameter.default
        if is_dataclass(kind) and isinstance(kind, type):
            groups[parameter.name] = kind
            shown += _options_of(kind, default)
        else:
            shown.append(_option(parameter.name, kind, default, {}))

    def run(**given: Any) -> None:
        with common.interruptible():  # what checks its fields may import
            for name, kind in groups.items():
                given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def _options_of(group: type[Any], defaults: Any) -> Iterator[inspect.Parameter]:
    """An option for each field of a dataclass. defaults: an instance, or `inspect.Parameter.empty`
    for the fields' own."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = field.default if defaults is _NONE else getattr(defaults, field.name)
        yield _option(field.name, hints[field.name], default, field.metadata)


def _option(name: str, hint: Any, default: Any, metadata: Mapping[str, Any]) -> inspect.Parameter:
    """The option of a field or parameter. metadata: of the field, see `told`; `hint` may hold the
    same."""
    kind, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    about = said[0] if said else metadata
    flag = f"--{name.replace('_', '-')}"
    if about.get("either") and kind is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    more = {"help": about["help"], "rich_help_panel": about.get("panel"), **about.get("limits", {})}
    if about.get("argument"):
        made = typer.Argument(**more)
    else:
        made = typer.Option(*(about.get("flags") or [flag]), **more)
    annotated: Any = Annotated  # of a type known only at run time
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=_NONE if default is MISSING else default,
        annotation=annotated[str if get_origin(kind) is Literal else kind, made],
    )
