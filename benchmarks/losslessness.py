"""Is every text the one transformers writes?

    python benchmarks/losslessness.py --data DIR --out benchmarks/results/losslessness.jsonl

Takes prompts from several task files of DIR. For each, greedy: plain decoding and every method
against `generate` of the model as transformers loads it; sampled at T=0.8 with three seeds: every
method against plain decoding with that seed. Results are appended prompt by prompt, so an
interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import paceline
from paceline.drafters import make_drafter
from paceline.loop import Generation, decode
from paceline.machine import describe_machine, describe_versions
from paceline.models import load_causal_lm
from paceline.prompts import read_prompts
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.tree import EMPTY

TASKS = [
    "mt_bench", "vicuna_bench", "humaneval", "humanevalfix", "mbpp", "gsm8k", "xsum", "cnndm",
    "wmt16_deen", "llma_rag", "canitedit", "editeval", "jfleg", "mteval_refine",
]  # fmt: skip
METHODS = "plain,anpd,llma,pld"
SEEDS = [0, 1, 2]
LONGEST_PROMPT = 1200


def main() -> None:
    options = _arguments()
    session = paceline.load(options.model, "plain", weights=options.weights)
    untouched = load_causal_lm(options.model).model
    done, methods = _finished(options.out), options.methods.split(",")
    for task in options.tasks.split(","):
        chosen = _choose(session, options.data / f"{task}.jsonl", options.per_task)
        for record in track(chosen, description=task):
            if record["prompt"] not in done:
                result = _check(session, untouched, record, methods, options.max_new_tokens)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"task": task, **result}) + "\n")
    _summarise(session, options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", default="auto", help="of paceline; transformers has its own")
    parser.add_argument("--methods", default=METHODS, help="plain first")
    parser.add_argument("--tasks", default=",".join(TASKS), help="names of files, by commas")
    parser.add_argument("--per-task", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    return parser.parse_args()


def _finished(out: Path) -> set[str]:
    if not out.exists():
        return set()
    return {json.loads(line)["prompt"] for line in out.read_text().splitlines()}


def _choose(session: Any, path: Path, count: int) -> list[dict[str, Any]]:
    """The first prompts that are not too long for two cores."""
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
    session: Any, untouched: Any, record: dict[str, Any], methods: list[str], max_new_tokens: int
) -> dict[str, Any]:
    ids, references = record["ids"], record["references"]
    generated = untouched.generate(
        torch.tensor([ids]), max_new_tokens=max_new_tokens, do_sample=False
    )[0, len(ids) :].tolist()
    differences = []
    for method in methods:
        output = _decode(session, ids, references, method, Sampler(), max_new_tokens)
        differences += _difference(session, ids, method, Sampler(), generated, output)
    samplers = [Sampler(seed=seed, temperature=0.8) for seed in SEEDS]
    plain = [
        _decode(session, ids, references, "plain", sampler, max_new_tokens) for sampler in samplers
    ]
    for method in methods[1:]:
        for sampler, expected in zip(samplers, plain, strict=True):
            output = _decode(session, ids, references, method, sampler, max_new_tokens)
            differences += _difference(session, ids, method, sampler, expected, output)
    return {
        "prompt": record["prompt"],
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
    """Where two outputs part, and by how little: gaps of a one-row pass over the common text.

    decision_gap is the gap of the scores that were compared, with temperature and noise.
    """
    if output == expected:
        return []
    pairs = enumerate(zip(expected, output, strict=False))
    place = next((i for i, (one, other) in pairs if one != other), None)
    mode = "greedy" if sampler.greedy else f"seed {sampler.seed}"
    found: dict[str, Any] = {"method": method, "mode": mode, "position": place}
    if place is not None:
        text, pair = [*ids, *expected[:place]], (expected[place], output[place])
        session.target.sync([text])
        row = session.target.score([EMPTY])[0][0]
        scores = sampler.decide(row, text)
        found["tokens"] = pair
        found["logit_gap"] = float(row[pair[0]] - row[pair[1]])
        found["decision_gap"] = float(scores[pair[0]] - scores[pair[1]])
    return [found]


def _summarise(session: Any, options: argparse.Namespace) -> None:
    records = [json.loads(line) for line in options.out.read_text().splitlines()]
    summary = {
        "command": "python benchmarks/losslessness.py --data DIR "
        f"--model {options.model} --max-new-tokens {options.max_new_tokens} "
        f"--per-task {options.per_task} --weights {options.weights} --methods {options.methods}",
        "preparation": session.target.preparation.as_json(),
        "machine": describe_machine(session.target),
        "versions": describe_versions(),
        "model": {"name": options.model, "fingerprint": session.fingerprint},
        "methods": options.methods.split(","),
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
