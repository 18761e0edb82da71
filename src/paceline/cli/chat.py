"""`paceline chat`: a conversation that keeps the model's cache and its references."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from paceline.cli import common
from paceline.cli.groups import Choice, Kept, Machine, Output, References, Request
from paceline.cli.show import print_stream, summary
from paceline.errors import PacelineError, UsageError

if TYPE_CHECKING:
    from paceline.session import Session

_HELP = "Type a message. /clear starts over, /stats shows or hides statistics, /quit ends."


def chat(
    *,
    choice: Choice,
    opening: References,
    request: Request = Request(max_new_tokens=512),  # noqa: B008
    machine: Machine,
    kept: Kept,
    output: Output,
) -> None:
    """Talk with a model; each turn reads only what is new.

    The turns of a prompt file are sent first, each record as its own conversation. --json writes a
    list of conversations.
    """
    options, references = request.options(), opening.texts()
    common.check_stdin()
    common.check_writable(output.json_file, opening, kept)
    common.end_with_terminal()
    first = _opening(opening)
    session = common.open_session(choice.model, choice.chosen, **vars(kept), **vars(machine))
    session.options = session.options.with_(**options)
    if not session.tokenizer.chat_template:
        raise UsageError(f"{choice.model} has no chat template: use 'paceline generate' instead")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    with suppress(ImportError):  # Windows has no readline
        import readline  # so that lines can be edited, be long, and pasted ones be one message

        readline.parse_and_bind("set enable-bracketed-paste on")
    common.note(_HELP)
    conversations: list[list[dict[str, str]]] = [[]]
    try:
        _converse(session, conversations, first, references, output.show_drafts)
    finally:
        common.write_json(output.json_file, [each for each in conversations if each])


_Said = tuple[str, tuple[str, ...], bool]
"""A line, the references from then on, and whether it may be a command."""


def _opening(given: References) -> list[_Said]:
    """Lines before the user's first: the turns of each record, with /clear in between."""
    said: list[_Said] = []
    for record in given.of_file():
        said += [("/clear", (), True)] if said else []
        said += [(turn, record.references, False) for turn in record.turns]
    return said


def _converse(
    session: Session,
    conversations: list[list[dict[str, str]]],
    opening: list[_Said],
    references: list[str],
    show_drafts: bool,
) -> None:
    """Take turns until the user leaves, in the last of `conversations`; /clear appends a new
    one."""
    console = common.console()
    show_stats = True
    said, quoted = iter(opening), tuple[str, ...]()
    while True:
        text, quoted, typed = next(said, None) or (_ask(), quoted, True)
        messages = conversations[-1]
        command = text if typed and text.startswith("/") else ""
        if command == "/quit":
            return
        if command == "/clear":
            conversations.append([])
            quoted = ()
        elif command == "/stats":
            show_stats = not show_stats
        elif command and " " not in command:
            common.note(_HELP)
        elif text:
            messages.append({"role": "user", "content": text})
            try:
                stream = session.stream(messages, references=[*references, *quoted])
                completion = print_stream(stream, console, show_drafts)
            except PacelineError as error:
                if not sys.stdin.isatty():
                    raise
                messages.pop()
                common.note(f"error: {error} (/clear starts over)", style="red")
                continue
            messages.append({"role": "assistant", "content": completion.text})
            if show_stats:
                common.note(summary(completion))


def _ask() -> str:
    """The user's next message, "/quit" if there is none. Only a terminal gets a prompt."""
    typed = sys.stdin.isatty()
    try:
        return input("> " if typed else "").removeprefix(common.MARK).strip()
    except (EOFError, KeyboardInterrupt):
        if typed:
            print()  # noqa: T201
        return "/quit"
    except OSError as error:  # a terminal that has gone, for example
        raise UsageError(f"cannot read standard input: {error.strerror or error}") from error
