"""Requests for load, and a session's answers to each of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import paceline
from paceline.prompts import read_prompts

TASKS = {
    "chat": ("mt_bench", "vicuna_bench"),
    "summary": ("cnndm", "xsum"),
    "edit": ("jfleg", "editeval", "canitedit"),
}
"""Kind of work -> files of prompts; missing ones are left out."""

TEMPERATURES = (0.0, 0.8, 0.0, 1.0)


@dataclass(frozen=True)
class Ask:
    """One request. prediction: a text that the answer may resemble; empty for none."""

    kind: str
    text: str
    seed: int
    temperature: float
    max_tokens: int
    prediction: str = ""

    def body(self, model: str, system: str = "", **fields: Any) -> dict[str, Any]:
        """The JSON body for `/v1/chat/completions`."""
        messages = [{"role": "system", "content": system}] if system else []
        return {
            "model": model,
            "messages": [*messages, {"role": "user", "content": self.text}],
            "seed": self.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **fields,
        }


@dataclass(frozen=True)
class Expected:
    """The one right answer to a request."""

    text: str
    finish_reason: str
    tokens: int


def asks_from(
    data: Path, count: int, max_tokens: int, longest: int, kinds: Sequence[str] = (*TASKS,)
) -> list[Ask]:
    """Requests of these kinds in turns. longest: characters of a prompt; longer ones are left out."""
    piles = []
    for kind in kinds:
        tasks = TASKS[kind]
        files = [path for task in tasks if (path := data / f"{task}.jsonl").exists()]
        records = [read_prompts(path) for path in files]
        pile = [
            (kind, record)
            for row in range(max(map(len, records), default=0))
            for one in records
            for record in one[row : row + 1]
            if len(record.turns[0]) <= longest
        ]
        if not pile:
            raise SystemExit(f"{data} has no prompts of the kind {kind}: {', '.join(tasks)}")
        piles.append(pile)
    chosen = [piles[place % len(piles)] for place in range(count)]
    return [
        Ask(
            kind,
            record.turns[0],
            seed=place,
            # Every kind meets every temperature.
            temperature=TEMPERATURES[place // len(piles) % len(TEMPERATURES)],
            max_tokens=max_tokens // 2 + place % (max_tokens // 2 + 1),
            prediction=record.references[0] if kind == "edit" and record.references else "",
        )
        for place, pile in enumerate(chosen)
        for kind, record in [pile[place // len(piles) % len(pile)]]
    ]


def expected_answers(asks: Sequence[Ask], model: str, load: dict[str, Any]) -> list[Expected]:
    """What plain decoding writes for each alone. A separate process finds out, so that its memory
    is released. load: arguments of `paceline.load`."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_alone, asks, model, load).result()


def _alone(asks: Sequence[Ask], model: str, load: dict[str, Any]) -> list[Expected]:
    session = paceline.load(model, method="plain", **load)
    found = []
    for ask in asks:
        answer = session.chat(
            ask.text,
            seed=ask.seed,
            temperature=ask.temperature,
            max_new_tokens=ask.max_tokens,
        )
        reason = "length" if answer.finish_reason == "length" else "stop"
        found.append(Expected(answer.text, reason, len(answer.tokens)))
    return found
