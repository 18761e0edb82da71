"""`paceline chat`: a conversation that keeps the model's cache and its references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from paceline.cli import common
from paceline.cli.show import print_stream, summary

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
    session = common.open_session(
        model, method, threads=threads, device=device, dtype=dtype, store=store
    )
    session.options = session.options.with_(**options)
    common.error_console().print(_HELP, style="dim")
    _converse(session, references, show_drafts)


def _converse(session: Session, references: list[str], show_drafts: bool) -> None:
    console, notes = Console(highlight=False), common.error_console()
    messages: list[dict[str, str]] = []
    show_stats = True
    while True:
        try:
            text = console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if text == "/quit":
            return
        if text == "/clear":
            messages.clear()
        elif text == "/stats":
            show_stats = not show_stats
        elif text.startswith("/"):
            notes.print(_HELP, style="dim")
        elif text:
            messages.append({"role": "user", "content": text})
            stream = session.stream(messages, references=references)
            completion = print_stream(stream, console, show_drafts)
            messages.append({"role": "assistant", "content": completion.text})
            if show_stats:
                notes.print(summary(completion), style="dim", markup=False)
