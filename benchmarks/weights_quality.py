"""Measure what quantised weights cost in perplexity, and how often the best token stays best.

    python benchmarks/weights_quality.py --texts answers.jsonl --json quality.json

The first of each record's "outputs" is scored after its first turn (with the chat template), so the
text is what an assistant would write. Agreement is with the same model's float weights, token by
token on the same text. For --cache-dtypes it is with a cache in float32, on --cache-weights,
measured through paceline's own passes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import paceline
from paceline.machine import describe_machine, describe_versions
from paceline.session import Session
from paceline.tree import Tree
from tables import shown_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--texts", type=Path, required=True, nargs="+")
    parser.add_argument("--per-file", type=int, default=8, help="records of each file")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens scored per record")
    parser.add_argument("--weights", default="native,auto,int8,int4")
    parser.add_argument("--cache-dtypes", nargs="*", default=[], help="float32 first")
    parser.add_argument("--cache-weights", nargs="*", default=["auto"], help="they are tried on")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    records = [record for path in options.texts for record in read(path, options.per_file)]
    results: dict[str, dict[str, float]] = {}
    machine = describe_machine()
    reference: list[torch.Tensor] = []
    for weights in filter(None, options.weights.split(",")):
        session = paceline.load(options.model, "plain", weights=weights)
        texts = [ids_of(session, record, options.tokens) for record in records]
        rows = [score(session, *text) for text in texts]
        reference = reference or [best for best, _ in rows]
        results[weights] = summary(rows, reference)
        print(weights, results[weights], flush=True)
        machine = describe_machine(session.target.describe())
    caches = {
        weights: quality_of_caches(options, weights, records) for weights in options.cache_weights
    }
    if options.json is not None:
        report = {
            "command": shown_command(),
            "machine": machine,
            "versions": describe_versions(),
            "model": options.model,
            "texts": len(records),
            "weights": results,
            "caches": caches,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def quality_of_caches(
    options: argparse.Namespace, weights: str, records: list[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """What KV caches of fewer bits cost, compared with the first dtype."""
    found: dict[str, dict[str, float]] = {}
    reference: list[torch.Tensor] = []
    for dtype in options.cache_dtypes:
        session = paceline.load(options.model, "plain", weights=weights, cache_dtype=dtype)
        texts = [ids_of(session, record, options.tokens) for record in records]
        rows = [score_by_passes(session, *text) for text in texts]
        reference = reference or [best for best, _ in rows]
        slot_bytes = session.target.describe().report["cache"]["slot_bytes"]
        found[dtype] = {**summary(rows, reference), "slot_bytes": slot_bytes}
        print(weights, "cache in", dtype, found[dtype], flush=True)
    return found


def read(path: Path, count: int) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [record for record in records if record.get("outputs") and record.get("turns")][:count]


def ids_of(session: Session, record: dict[str, Any], most: int) -> tuple[list[int], int]:
    """The ids of a prompt and its answer, and the answer's length."""
    turn = {"role": "user", "content": record["turns"][0]}
    prompt = session.encode([turn] if session.tokenizer.chat_template else turn["content"])
    answer = session.encode_references([record["outputs"][0]])[0][:most]
    return [*prompt[-1024:], *answer], len(answer)


@torch.inference_mode()
def score(session: Session, ids: list[int], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token at each of the last `count` places, and losses of `ids` there [nats]."""
    model = session.target.model  # type: ignore[attr-defined]
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, -count - 1 : -1].float()
    losses = F.cross_entropy(logits, torch.tensor(ids[-count:]), reduction="none")
    return logits.argmax(dim=-1), losses


def score_by_passes(
    session: Session, ids: list[int], count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by a target pass, which reads keys and values from the KV cache."""
    target, answer = session.target, ids[-count:]
    slot = target.open(ids[:-count])
    logits = target.score({slot: Tree.chain(answer[:-1])})[slot]
    target.close(slot)
    target.forget()
    losses = F.cross_entropy(logits, torch.tensor(answer), reduction="none")
    return logits.argmax(dim=-1), losses


def summary(
    rows: list[tuple[torch.Tensor, torch.Tensor]], reference: list[torch.Tensor]
) -> dict[str, float]:
    losses = torch.cat([loss for _, loss in rows])
    same = torch.cat([best == other for (best, _), other in zip(rows, reference, strict=True)])
    return {
        "tokens": len(losses),
        "perplexity": float(losses.mean().exp()),
        "best_token_agrees": float(same.float().mean()),
    }


if __name__ == "__main__":
    main()
