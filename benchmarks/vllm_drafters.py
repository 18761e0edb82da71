"""Compare paceline's drafters inside vLLM with vLLM's own n-grams and with no drafts.

    python benchmarks/vllm_drafters.py --model FOLDER --prompt-file chat.jsonl edits.jsonl

Runs in an environment with vLLM and paceline, and takes any model that vLLM does. Every contestant
is an engine in a separate process; only one computes at a time, and they take turns prompt by
prompt. First each prompt is sent alone, then others together. No prompt is sent twice, since
`Suffix` and `Auto` would know the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from hashlib import sha256
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from paceline.integrations.vllm import LEAST_SHARE
from tables import new_table, number, show, shown_command
from vllm_engine import CONTESTANTS, NGRAM, Contestant, Trial, contestant


def main() -> None:
    options = _arguments()
    alone, together = _conversations(options)
    with ExitStack() as stack:
        everyone = [stack.enter_context(contestant(n, options)) for n in options.contestants]
        circumstances = _circumstances(options, everyone[0].ask("versions"))
        prompts = everyone[0].ask("prompts", alone)
        parts = {"alone": [[ids] for ids in prompts]}
        if together:
            parts["together"] = [everyone[0].ask("prompts", together)]
        print("all engines are ready", flush=True)
        warm = everyone[0].ask("prompts", ["Hello."])
        for each in everyone:
            each.ask("generate", warm, 2)
        found = {part: _measure(everyone, groups, options) for part, groups in parts.items()}
    report = circumstances | {
        "prompt_tokens": {part: [len(i) for i in chain(*g)] for part, g in parts.items()},
        "results": {part: _summary(trials) for part, trials in found.items()},
    }
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    for part in parts:
        _show(part, report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a folder, for vLLM")
    parser.add_argument(
        "--prompt-file", type=Path, nargs="+", required=True, help='JSONL with "turns"'
    )
    parser.add_argument("--limit", type=int, default=10, help="requests alone")
    parser.add_argument("--together", type=int, default=0, help="further requests, together")
    parser.add_argument("--contestants", type=lambda text: text.split(","), default=CONTESTANTS)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=5)
    parser.add_argument("--least-share", type=float, default=LEAST_SHARE)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--longest", type=int, default=2048, help="tokens of prompt and answer")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()
    if options.contestants[0] != "off" or set(options.contestants) - set(CONTESTANTS):
        parser.error(f"contestants are off, and then some of {', '.join(CONTESTANTS[1:])}")
    return options


def _conversations(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """First turns from all files in turns: requests alone, and requests together."""
    files = [
        [json.loads(line)["turns"][0] for line in file.read_text().splitlines()]
        for file in options.prompt_file
    ]
    mixed = [text for texts in zip_longest(*files) for text in texts if text is not None]
    # About four letters a token: texts that are too long are left out for all.
    fitting = [text for text in mixed if len(text) < 2 * (options.longest - options.max_new_tokens)]
    end = options.limit + options.together
    return fitting[: options.limit], fitting[options.limit : end]


def _circumstances(options: argparse.Namespace, versions: dict[str, str]) -> dict[str, Any]:
    weights = options.model / "model.safetensors"
    return {
        "command": shown_command(),
        "python": platform.python_version(),
        "versions": versions,
        "model": {
            "name": options.model.name,
            "sha256": sha256(weights.read_bytes()).hexdigest() if weights.is_file() else None,
        },
        "dtype": options.dtype,
        "threads": options.threads,
        "draft_tokens": options.draft_tokens,
        "least_share": options.least_share,
        "ngram": NGRAM,
        "max_new_tokens": options.max_new_tokens,
    }


def _measure(
    everyone: Sequence[Contestant], groups: Sequence[Any], options: argparse.Namespace
) -> dict[str, list[Trial]]:
    """By name, one trial per group of prompts; the order rotates."""
    trials: dict[str, list[Trial]] = {each.name: [] for each in everyone}
    for place, group in enumerate(groups):
        shift = place % len(everyone)
        for each in [*everyone[shift:], *everyone[:shift]]:
            trials[each.name].append(each.ask("generate", group, options.max_new_tokens))
    return trials


def _summary(trials: dict[str, list[Trial]]) -> dict[str, Any]:
    plain = list(chain(*(trial.tokens for trial in trials["off"])))
    seconds = sum(trial.seconds for trial in trials["off"])
    rows = {}
    for name, own in trials.items():
        answers = list(chain(*(trial.tokens for trial in own)))
        total = {
            key: sum(getattr(trial, key) for trial in own)
            for key in ("seconds", "draft_seconds", "drafts", "drafted", "accepted")
        }
        tokens = sum(map(len, answers))
        rows[name] = {
            "equal_texts": sum(one == other for one, other in zip(answers, plain)),
            "texts": len(answers),
            "tokens": tokens,
            "passes": tokens - total["accepted"],
            **total,
            "tokens_per_pass": tokens / (tokens - total["accepted"]),
            "acceptance": total["accepted"] / total["drafted"] if total["drafted"] else None,
            "tokens_per_second": tokens / total["seconds"],
            "speed_up": tokens / total["seconds"] * seconds / sum(map(len, plain)),
            "by_group": [{k: v for k, v in asdict(t).items() if k != "tokens"} for t in own],
        }
    return rows


def _show(part: str, report: dict[str, Any]) -> None:
    columns = ("equal", "tokens", "a pass", "drafted", "accepted", "tokens/s", "of off", "drafting")
    table = new_table(f"{report['model']['name']}, requests {part}", "", *columns)
    for name, row in report["results"][part].items():
        table.add_row(
            name,
            f"{row['equal_texts']} of {row['texts']}",
            str(row["tokens"]),
            number(row["tokens_per_pass"]),
            str(row["drafted"]),
            number(row["acceptance"]),
            number(row["tokens_per_second"]),
            number(row["speed_up"], "x"),
            number(1e3 * row["draft_seconds"] / row["passes"], " ms"),
        )
    show(table)


if __name__ == "__main__":
    main()
