"""Prompt tokens for tests: random numbers in the right places."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from paceline.drafters import Host, make_drafter
from paceline.drafters.prompt_tokens import PromptTokens
from paceline.drafters.trained_parts import BaseModel
from paceline.planning.acceptance import AcceptanceTable
from paceline.protocols import Drafter, Target
from paceline.targets.toy import ToyTarget
from paceline.trained_configs import PromptConfig
from tests.draft_hosts import TOY, Ticking, toy_host


def falling(distances: int, ranks: int = 4) -> AcceptanceTable:
    """A table that makes trees with all states."""
    rows = tuple(
        tuple(0.5 / distance / 2**rank for rank in range(ranks))
        for distance in range(1, distances + 1)
    )
    return AcceptanceTable(rows)


def random_parts(
    prompt_tokens: int = 3,
    epts: int = 1,
    *,
    hidden: int = 32,
    vocab: int = 16,
    fingerprint: str = TOY,
    table: AcceptanceTable | None = None,
    seed: int = 0,
    **config: Any,
) -> PromptTokens:
    """Parts of which nothing but the format is right."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(prompt_tokens, epts, hidden, generator=generator)
    return PromptTokens(
        PromptConfig(prompt_tokens, epts, **config),
        BaseModel(fingerprint, "a test's model", hidden, vocab),
        {"embeddings": embeddings},
        table or falling(prompt_tokens),
    )


@cache
def saved_parts(prompt_tokens: int = 3, epts: int = 1, **settings: Any) -> Path:
    """A folder with `random_parts`, written once."""
    folder = Path(tempfile.mkdtemp(prefix="parts-"))
    random_parts(prompt_tokens, epts, **settings).save_pretrained(folder)
    return folder


def host_on(target: Target, fingerprint: str = TOY) -> Host:
    """A model to work for."""
    return Host(target, fingerprint)


def toy_drafter(method: str) -> Drafter:
    """A drafter by its name; "ppd" with any number of prompt tokens and EPTs, and size: "ppd 3x1",
    "ppd 4x2:size=30"; "auto ppd", with prompt tokens among its sources; "speculative" with the toys of `tests.draft_hosts`. It works on every toy
    target with 16 tokens."""
    name, _, settings = method.partition(":")
    if name in ("medusa", "chimera", "eagle"):
        from tests.head_parts import saved_heads

        host = Host(ToyTarget(), TOY, clock=Ticking(1e-3))
        return make_drafter(f"{name}:parts={saved_heads(name)},{settings}".rstrip(","), host)
    if name == "auto" and "draft=" in settings:
        return make_drafter(method, toy_host())
    if name == "auto ppd":
        host = Host(ToyTarget(), TOY, clock=Ticking(1e-9))
        return make_drafter(f"auto:sources=anpd+ppd:parts={saved_parts()}", host)
    if name in ("speculative", "ouroboros"):
        return make_drafter(method if settings else f"{method}:draft=near", toy_host())
    if not name.startswith("ppd"):
        return make_drafter(method)
    tokens, epts = (name.partition(" ")[2] or "3x1").split("x")
    parts = f"parts={saved_parts(int(tokens), int(epts))}"
    return make_drafter(f"ppd:{parts},{settings}".rstrip(","), host_on(ToyTarget()))
