"""How commands declare their options, one by one or in groups, which are dataclasses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from paceline.cli import common

SAMPLING, DRAFTING, MACHINE = "Sampling", "Drafting", "How the model runs"
"""Groups of options in `--help`."""

_NONE = inspect.Parameter.empty

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., None])


def told(
    text: str, *flags: str, panel: str | None = None, argument: bool = False, **limits: int | float
) -> dict[str, Any]:
    """What `Annotated` says of a parameter that is an option; see `App`.

    text: its help. flags: by default one made from the parameter's name. argument: whether it is
    an argument, without a flag. limits: min and max.
    """
    return {"help": text, "flags": flags, "panel": panel, "argument": argument, "limits": limits}


def option(default: T, text: str, *flags: str, **more: Any) -> T:
    """Make a field of a group an option; see `told`."""
    made: T = field(default=default, metadata=told(text, *flags, **more))
    return made


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
                given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        command(**given)

    # Its lines would stay as the source breaks them.
    run.__doc__ = re.sub(r"(?<!\n)\n(?=\S)", " ", inspect.getdoc(command) or "")
    run.__name__ = command.__name__
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def _options_of(group: type[Any], defaults: Any) -> Iterator[inspect.Parameter]:
    """An option for each field of a dataclass. defaults: an instance, or `inspect.Parameter.empty`
    for the fields' own."""
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        default = each.default if defaults is _NONE else getattr(defaults, each.name)
        yield _option(each.name, hints[each.name], default, each.metadata)


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
