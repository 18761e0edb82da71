"""What drafting with Chimera costs, beside a pass of the target; and what the store of n-grams saves.

    python benchmarks/chimera_costs.py --model smollm2-135m --json benchmarks/results/heads/costs.json
    python benchmarks/chimera_costs.py --model qwen2.5-coder-1.5b --untrained --json …

The same prompts are written with every setting of the store, each time by a new drafter: first cold,
then once more with the store as the first round left it, since the paper's program measures only
the second. With --untrained the parts hold random numbers of the sizes that training would make:
they cost what trained ones cost, and guess nothing right.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, cast

import torch

import paceline
from paceline.drafters import make_drafter
from paceline.drafters.chimera import Chimera
from paceline.drafters.trained_heads import ChimeraConfig, ChimeraParts
from paceline.drafters.trained_parts import BaseModel
from paceline.loop import Generation, decode
from paceline.machine import describe_run
from paceline.protocols import Drafter
from paceline.session import Session
from paceline.stopping import Stopping

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that merges two sorted lists.",
    "Summarize the plot of Hamlet in three sentences.",
)
STORES = {
    "no store": "cache=0",
    "in memory": "cache=8192",
    "in memory, dictionary": "cache=8192,dictionary=4096",
    "small, on disk": "cache=64,spill={spill}",
}


def untrained(session: Session, vocabulary: int) -> Path:
    """A folder with random parts for the session's model."""
    config = session.target.model.config.get_text_config()  # type: ignore[attr-defined]
    chosen = ChimeraConfig(
        heads=3,
        vocabulary=vocabulary,
        attention_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.hidden_size // config.num_attention_heads,
        intermediate=2 * config.hidden_size,
    )
    base = BaseModel(session.fingerprint, "any", config.hidden_size, config.vocab_size)
    shapes = ChimeraParts(chosen, base, {}).module_shapes()
    tensors = {name: 0.02 * torch.randn(shape) for name, shape in shapes.items()}
    tensors["token_ids"] = torch.arange(vocabulary)
    folder = Path(tempfile.mkdtemp())
    ChimeraParts(chosen, base, tensors).save_pretrained(folder)
    return folder


def play(
    session: Session, drafter: Drafter, ids: Sequence[int], tokens: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of drafting and of target passes, round by round behind the prompt."""
    session.target.sync([ids[:1]])
    generation = Generation(ids, drafter, Stopping(tokens))
    rounds = [done for done in decode(session.target, [generation], 16) if not done.prefill]
    return (
        [1e3 * done.seconds.draft for done in rounds],
        [1e3 * done.seconds.target for done in rounds],
    )


def measure(session: Session, settings: str, tokens: int) -> dict[str, Any]:
    """Cold and warm: medians of milliseconds per round, and where n-grams were found."""
    drafter = cast(Chimera, make_drafter(f"chimera:{settings}", session.host))
    found: dict[str, Any] = {"settings": settings}
    texts = [session.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    for name in ("cold", "warm"):
        before = dict(vars(drafter.lookups))
        times = [play(session, drafter, ids, tokens) for ids in texts]
        draft = [one for drafts, _ in times for one in drafts]
        target = [one for _, targets in times for one in targets]
        counts = {key: value - before[key] for key, value in vars(drafter.lookups).items()}
        found[name] = {
            "draft_ms": round(median(draft), 3),
            "target_ms": round(median(target), 3),
            "share": round(median(draft) / median(target), 4),
            "lookups": counts,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    options = parser.parse_args()
    session = paceline.load(options.model, method="plain")
    parts = f"parts={untrained(session, options.vocabulary)}," if options.untrained else ""
    spill = Path(tempfile.mkdtemp()) / "ngrams.sqlite"
    began, report = perf_counter(), []
    for beam in options.beams.split(","):
        for name, store in STORES.items():
            settings = f"{parts}beam={beam},{store.format(spill=spill)}"
            found = measure(session, settings, options.max_new_tokens)
            found["settings"] = f"beam={beam},{store}"
            report.append({"store": name, "beam": int(beam), **found})
            print(report[-1], file=sys.stderr, flush=True)
    content = {
        "command": f"python benchmarks/chimera_costs.py {shlex.join(sys.argv[1:])}",
        **describe_run(),
        "model": options.model,
        "untrained": options.untrained,
        "seconds": round(perf_counter() - began, 1),
        "stores": report,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
