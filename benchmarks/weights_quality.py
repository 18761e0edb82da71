"""Measure what quantised weights cost in perplexity, and how often the best token stays best.

    python benchmarks/weights_quality.py --texts answers.jsonl --json quality.json

The first of each record's "outputs" is scored after its first turn (with the chat template), so the
text is what an assistant would write, in one of paceline's own passes. Agreement is with the first
of --weights, by default the same model's float weights, token by token on the same text. For
--cache-dtypes it is with the first of them, on each of --cache-weights. --per-file limits the
records of each file, --tokens what is scored of each.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import paceline
from common import options, write
from paceline.prompts import read_records
from paceline.records import TargetInfo
from paceline.session import Session
from paceline.tree import Tree

Found = dict[str, dict[str, float]]


def quality(
    given: Namespace, ways: Mapping[str, dict[str, Any]]
) -> tuple[Found, TargetInfo | None]:
    """What ways of loading the model cost, compared with the first; and where the last one ran."""
    found: Found = {}
    first: torch.Tensor | None = None
    info = None
    for name, way in ways.items():
        session = paceline.load(given.model, "plain", **way)
        texts = [ids_of(session, record, given.tokens) for record in given.records]
        best, losses = map(torch.cat, zip(*(score(session, *text) for text in texts)))
        first, info = best if first is None else first, session.target.describe()
        found[name] = {
            "tokens": len(losses),
            "perplexity": float(losses.mean().exp()),
            "best_token_agrees": float((best == first).float().mean()),
            "slot_bytes": info.report["cache"]["slot_bytes"],
        }
        print(*way.values(), found[name], flush=True)
    return found, info


def read(path: Path, count: int) -> list[dict[str, Any]]:
    """The first records with an output."""
    records = [record for _, record in read_records(path, "texts")]
    return [record for record in records if record.get("outputs") and record.get("turns")][:count]


def ids_of(session: Session, record: dict[str, Any], most: int) -> tuple[list[int], int]:
    """The ids of a prompt and its answer, and the answer's length."""
    turn = {"role": "user", "content": record["turns"][0]}
    prompt = session.encode([turn] if session.tokenizer.chat_template else turn["content"])
    answer = session.encode_references([record["outputs"][0]])[0][:most]
    return [*prompt[-1024:], *answer], len(answer)


def score(session: Session, ids: list[int], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token at each of the last `count` places and losses of `ids` there [nats], by a
    target pass, which reads keys and values from the KV cache."""
    target, answer = session.target, ids[-count:]
    slot = target.open(ids[:-count])
    logits = target.score({slot: Tree.chain(answer[:-1])})[slot].float().cpu()
    target.close(slot)
    target.forget()
    losses = F.cross_entropy(logits, torch.tensor(answer), reduction="none")
    return logits.argmax(dim=-1), losses


def main() -> None:
    given = options(
        __doc__, texts=list[Path], json=Path | None, model="smollm2-135m", per_file=8, tokens=256,
        weights="native,auto,int8,int4", cache_dtypes=list[str](), cache_weights=["auto"],
    )  # fmt: skip
    given.records = [one for path in given.texts for one in read(path, given.per_file)]
    ways = {name: {"weights": name} for name in given.weights.split(",") if name}
    results, info = quality(given, ways)
    caches = {}
    for weights in given.cache_weights:
        ways = {each: {"weights": weights, "cache_dtype": each} for each in given.cache_dtypes}
        caches[weights], _ = quality(given, ways)
    about = {"model": given.model, "texts": len(given.records)}
    write(given.json, {**about, "weights": results, "caches": caches}, info)


if __name__ == "__main__":
    main()
