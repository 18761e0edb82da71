"""Check that every text is the one transformers writes.

    python benchmarks/losslessness.py --data DIR --out benchmarks/results/losslessness.jsonl

Takes prompts from several task files of DIR. Greedy decoding compares plain decoding and every
method with `generate` of the model as transformers loads it. Sampling at T=0.8 with three seeds
compares every method with plain decoding at the same seed. Results are appended prompt by prompt.
Repeat the command to continue a run that was interrupted or reached --minutes; more --tasks or a
larger --per-task add to it. Method settings use the usual syntax:

    --methods "plain,chimera,speculative:inner=(anpd:n=4,k=10)"
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from rich.progress import track

import paceline
from paceline.bench.comparison import next_scores
from paceline.cli.bench.shared import split_methods
from paceline.drafters import check_method, make_drafter
from paceline.errors import PacelineError, UsageError
from paceline.loop import Generation, decode
from paceline.machine import describe_run
from paceline.models import load_causal_lm
from paceline.prompts import read_prompts
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from placing import add_placement, placement

TASKS = [
    "mt_bench", "vicuna_bench", "humaneval", "humanevalfix", "mbpp", "gsm8k", "xsum", "cnndm",
    "wmt16_deen", "llma_rag", "canitedit", "editeval", "jfleg", "mteval_refine",
]  # fmt: skip
METHODS = "plain,anpd,llma,pld"
LONGEST_PROMPT = 1200
# Must be the same for all prompts of a file.
SAME = ("model", "weights", "device", "dtype", "methods", "seeds", "max_new_tokens")


def main() -> None:
    options = _arguments()
    place = placement(options)
    session = paceline.load(options.model, "plain", weights=options.weights, **place)
    untouched = load_causal_lm(options.model, **place).model
    _measure(session, untouched, options)
    _summarise(session, options)


def _measure(session: Any, untouched: Any, options: argparse.Namespace) -> None:
    """Append what the file lacks until the time is up."""
    began, done = monotonic(), {record["prompt"] for record in _records(options.out)}
    for task in options.tasks.split(","):
        chosen = _choose(session, options.data / f"{task}.jsonl", options.per_task)
        for record in track(chosen, description=task):
            if record["prompt"] in done:
                continue
            if options.minutes and monotonic() - began > 60 * options.minutes:
                print("time is up: repeat the command to go on", file=sys.stderr)
                return
            result = _check(session, untouched, record, options)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"task": task, **result}) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", default="auto", help="of paceline; transformers has its own")
    parser.add_argument("--methods", default=METHODS, help="by commas")
    parser.add_argument("--tasks", default=",".join(TASKS), help="names of files, by commas")
    parser.add_argument("--per-task", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, help="begin no prompt later than that")
    add_placement(parser, None, None)
    options = parser.parse_args()
    try:
        options.methods = list(dict.fromkeys(["plain", *split_methods(options.methods)]))
        for method in options.methods:
            check_method(method)
        _drop_half_a_line(options.out)
        _check_same(options)
    except PacelineError as error:
        parser.error(str(error))
    return options


def _drop_half_a_line(out: Path) -> None:
    """Remove the partial line that a killed run left."""
    if out.exists():
        os.truncate(out, out.read_bytes().rfind(b"\n") + 1)


def _records(out: Path) -> list[dict[str, Any]]:
    if not out.exists():
        return []
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def _check_same(options: argparse.Namespace) -> None:
    """Raise UsageError if the file holds results of other methods or settings."""
    wanted = vars(options)
    for record in _records(options.out):
        for name in SAME:
            if record.get(name) != wanted[name]:
                raise UsageError(
                    f"{options.out} holds a run with other {name} ({record.get(name)}, not "
                    f"{wanted[name]}): repeat its command, or choose another --out"
                )


def _choose(session: Any, path: Path, count: int) -> list[dict[str, Any]]:
    """The first `count` prompts that are not too long for two cores."""
    chosen = []
    for record in read_prompts(path):
        text = record.turns[0]
        chat = session.tokenizer.chat_template
        ids = session.encode([{"role": "user", "content": text}] if chat else text)
        if len(ids) <= LONGEST_PROMPT:
            references = session.encode_references(record.references)
            chosen.append({"prompt": record.id, "ids": ids, "references": references})
    return chosen[:count]


def _check(
    session: Any, untouched: Any, record: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    ids, references = record["ids"], record["references"]
    methods, max_new_tokens = options.methods, options.max_new_tokens
    generated = untouched.generate(
        torch.tensor([ids], device=untouched.device),
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )[0, len(ids) :].tolist()
    differences = []
    for method in methods:
        output = _decode(session, ids, references, method, Sampler(), max_new_tokens)
        differences += _difference(session, ids, method, Sampler(), generated, output)
    samplers = [Sampler(seed=seed, temperature=0.8) for seed in options.seeds]
    plain = [
        _decode(session, ids, references, "plain", sampler, max_new_tokens) for sampler in samplers
    ]
    for method in methods[1:]:
        for sampler, expected in zip(samplers, plain, strict=True):
            output = _decode(session, ids, references, method, sampler, max_new_tokens)
            differences += _difference(session, ids, method, sampler, expected, output)
    return {
        "prompt": record["prompt"],
        **{name: getattr(options, name) for name in SAME},
        "prompt_tokens": len(ids),
        "tokens": len(generated),
        "sampled_tokens": [len(output) for output in plain],
        "differences": differences,
    }


def _decode(
    session: Any,
    ids: list[int],
    references: list[list[int]],
    method: str,
    sampler: Sampler,
    max_new_tokens: int,
) -> list[int]:
    generation = Generation(
        ids,
        make_drafter(method, session.host),
        Stopping(max_new_tokens, session.eos_ids),
        sampler,
        references,
    )
    for _ in decode(session.target, [generation]):
        pass
    return generation.output


def _difference(
    session: Any,
    ids: list[int],
    method: str,
    sampler: Sampler,
    expected: list[int],
    output: list[int],
) -> list[dict[str, Any]]:
    """Where two outputs diverge, and by how little: gaps in a one-row pass over the common text.

    decision_gap: the gap of the compared scores, which include temperature and noise.
    """
    if output == expected:
        return []
    pairs = enumerate(zip(expected, output, strict=False))
    place = next((i for i, (one, other) in pairs if one != other), None)
    mode = "greedy" if sampler.greedy else f"seed {sampler.seed}"
    found: dict[str, Any] = {"method": method, "mode": mode, "position": place}
    if place is not None:
        text, pair = [*ids, *expected[:place]], (expected[place], output[place])
        row = next_scores(session.target, text)
        scores = sampler.decide(row, text)
        found["tokens"] = pair
        found["logit_gap"] = float(row[pair[0]] - row[pair[1]])
        found["decision_gap"] = float(scores[pair[0]] - scores[pair[1]])
    return [found]


def _summarise(session: Any, options: argparse.Namespace) -> None:
    records = _records(options.out)
    info = session.target.describe()
    summary = {
        **describe_run(info),
        "command": f"python benchmarks/losslessness.py {shlex.join(sys.argv[1:])}",
        "preparation": info.report.get("preparation"),
        **{name: getattr(options, name) for name in SAME},
        "model": {"name": options.model, "fingerprint": session.fingerprint},
        "prompts": len(records),
        "tasks": sorted({record["task"] for record in records}),
        "greedy_tokens": sum(record["tokens"] for record in records),
        "sampled_tokens": sum(sum(record["sampled_tokens"]) for record in records),
        "differences": [
            {"prompt": record["prompt"], **found}
            for record in records
            for found in record["differences"]
        ],
    }
    options.out.with_suffix(".json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
