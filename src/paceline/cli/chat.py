"""`paceline chat`: a conversation that keeps the model's cache and its references."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from paceline.cli import common
from paceline.cli.show import print_stream, summary
from paceline.errors import PacelineError, UsageError

if TYPE_CHECKING:
    from paceline.session import Session

_HELP = "Type a message. /clear starts anew, /stats shows or hides figures, /quit ends."


def chat(
    model: common.ModelOption = common.DEFAULT_MODEL,
    method: common.MethodOption = "anpd",
    reference: common.ReferenceOption = None,
    max_new_tokens: common.TokensOption = 512,
    temperature: common.TemperatureOption = 0.0,
    top_k: common.TopKOption = None,
    top_p: common.TopPOption = None,
    min_p: common.MinPOption = None,
    seed: common.SeedOption = 0,
    budget: common.BudgetOption = None,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = None,
    dtype: common.DtypeOption = None,
    store: common.StoreOption = None,
    show_drafts: common.ShowDraftsOption = False,
) -> None:
    """Talk with a model; each turn reads only what is new."""
    options = common.request_options(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        budget=budget,
    )
    references = common.read_references(reference)
    common.check_stdin()
    session = common.open_session(
        model, method, threads=threads, device=device, dtype=dtype, store=store
    )
    session.options = session.options.with_(**options)
    if not session.tokenizer.chat_template:
        raise UsageError(f"{model} has no chat template: use 'paceline generate' instead")
    _prepare_input()
    common.note(_HELP)
    _converse(session, references, show_drafts)


def _converse(session: Session, references: list[str], show_drafts: bool) -> None:
    console = common.output_console()
    messages: list[dict[str, str]] = []
    show_stats = True
    while (text := _ask()) != "/quit":
        if text == "/clear":
            messages.clear()
        elif text == "/stats":
            show_stats = not show_stats
        elif text.startswith("/"):
            common.note(_HELP)
        elif text:
            messages.append({"role": "user", "content": text})
            try:
                stream = session.stream(messages, references=references)
                completion = print_stream(stream, console, show_drafts)
            except PacelineError as error:
                if not sys.stdin.isatty():
                    raise
                messages.pop()
                common.note(f"error: {error} (/clear starts anew)", style="red")
                continue
            messages.append({"role": "assistant", "content": completion.text})
            if show_stats:
                common.note(summary(completion))


def _prepare_input() -> None:
    """Let `input` edit lines, take long ones, and take pasted lines as one message."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    with suppress(ImportError):  # Windows has no readline
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")


def _ask() -> str:
    """The user's next message, "/quit" where there is none. No prompt where nobody types."""
    typed = sys.stdin.isatty()
    try:
        return input("> " if typed else "").strip()
    except (EOFError, KeyboardInterrupt):
        if typed:
            print()  # noqa: T201
        return "/quit"
