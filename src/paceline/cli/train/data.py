"""`paceline train data`: the model's own answers, to train its drafters with."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli import common
from paceline.cli.flags import told
from paceline.cli.groups import ModelOption, Placement
from paceline.defaults import DEFAULT_MODEL
from paceline.errors import writable
from paceline.tables import count
from paceline.training.asking import Asking

if TYPE_CHECKING:
    from paceline.training.data import Manifest


def data(
    *,
    prompts: Annotated[list[Path], told("JSONL file of prompts, gzip or not; may be repeated.")],
    tokens: Annotated[int, told("New tokens to generate.", min=1)],
    out: Annotated[Path, told("Folder for the data.")],
    model: ModelOption = DEFAULT_MODEL,
    licence: Annotated[
        list[str] | None, told("Licence of the prompts: one for all files or one each.")
    ] = None,
    asking: Asking,
    placement: Placement,
) -> None:
    """Let a model answer prompts, and keep its answers to train drafters with.

    The answers are the model's own, whatever the method, which only makes them faster. If the
    command is killed, repeat it to continue where it stopped; the data will be the same.
    """
    with common.interruptible():
        from paceline.training.order import read_prompt_files

        files = read_prompt_files(prompts, licence or [])
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
    session = common.open_session(model, asking.method, measure=False, **vars(placement))
    from paceline.training.self_distillation import make_data  # slow, unless a session is open

    about = common.circumstances(session, model)
    hint = f"{out} keeps whole shards; repeat the command to continue"
    with common.progress("tokens") as bars, common.on_interrupt(hint):
        heard = partial(bars.advance, bars.add_task("", total=tokens))
        manifest = make_data(session, files, tokens, out, asking, about, on_tokens=heard)
    _report(manifest, out, asking)


def _report(manifest: Manifest, out: Path, asking: Asking) -> None:
    if manifest.tokens < manifest.wanted:
        common.note(
            f"the prompts ran out after {manifest.tokens} of {manifest.wanted} tokens: repeat with "
            "more prompts and another --out"
        )
    if manifest.skipped:
        common.note(
            f"prompts left out: {manifest.skipped}, longer than {asking.longest_prompt} tokens or "
            "the model's context"
        )
    answers, tokens = count(manifest.answers, "answer"), count(manifest.tokens, "token")
    common.note(f"{out} holds {answers} with {tokens}")
