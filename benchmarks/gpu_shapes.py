"""Time passes of models with random weights, by engine: no download, and weights do not matter.

    python benchmarks/gpu_shapes.py --json shapes.json --device cuda

The models have the sizes of Qwen2.5-1.5B and Llama-3.1-8B. Every engine runs the same model. Besides
the times: by how much the same rows differ in passes of other widths, and in a tree with branches.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path as FilePath
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

from paceline.machine import describe_run
from paceline.planning.measure import measure_curve, measure_floor
from paceline.records import Path
from paceline.targets.causal_lm import CausalLMTarget
from paceline.tree import EMPTY, Tree
from placing import add_placement
from tables import shown_command

QWEN = Qwen2Config(
    hidden_size=1536,
    intermediate_size=8960,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)
LLAMA = LlamaConfig(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=8192,
)
TINY = LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=1000,
    max_position_embeddings=8192,
)
MODELS: dict[str, PreTrainedConfig] = {"qwen2.5-1.5b": QWEN, "llama-3.1-8b": LLAMA, "tiny": TINY}
BRANCHES = (-1, 0, -1, -1, 2, 4, 2)
"""The parents of a tree whose nodes 2, 4 and 5 are a path."""
ENGINES: dict[str, dict[str, Any]] = {
    "compiled": {},
    "graphs": {"compiled": False},
    "eager": {"compiled": False, "static": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=FilePath, required=True)
    parser.add_argument("--model", action="append", choices=MODELS, help="may be repeated")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[300, 3000])
    parser.add_argument("--repeats", type=int, default=7)
    add_placement(parser, "cuda", "bfloat16")
    options = parser.parse_args()
    rows = []
    for name in options.model or ["qwen2.5-1.5b", "llama-3.1-8b"]:
        torch.manual_seed(0)
        with torch.device(options.device):
            dtype = getattr(torch, options.dtype)
            model = AutoModelForCausalLM.from_config(MODELS[name], dtype=dtype).eval()
        for engine in ENGINES:
            rows.append({"model": name, "engine": engine, **_measured(model, engine, options)})
            content = {**describe_run(), "command": shown_command(), "shapes": rows}
            options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        del model


def _measured(model: Any, engine: str, options: argparse.Namespace) -> dict[str, Any]:
    target = CausalLMTarget(model, check=False, **ENGINES[engine])
    curve = measure_curve(target, options.widths, options.contexts, options.repeats)
    info = target.describe()
    points = [[point.width, point.context, point.milliseconds] for point in curve.points]
    print(engine, points, file=sys.stderr, flush=True)
    return {
        "floor_ms": measure_floor(target).milliseconds,
        "own_forward": info.report["own_forward"],
        "graphs": info.report["graphs"],
        "points": points,
        "differences": _differences(target, options.widths),
    }


@torch.inference_mode()
def _differences(target: CausalLMTarget, widths: list[int]) -> dict[str, list[float]]:
    """Largest differences of logits, 0.0 for equal bits: of the root by width of the pass, beside
    eight rows; and of a path of three nodes, beside the same path among other branches."""
    random = Random(0)  # the same text for every engine
    text, path, others = (
        [random.randrange(target.vocab_size) for _ in range(count)] for count in (300, 3, 60)
    )
    slot = target.open(text)
    target.score({slot: EMPTY})  # reads the prompt
    target.commit({slot: Path((), (text[0],))})

    def rows(tree: Tree) -> torch.Tensor:
        return target.score({slot: tree})[slot].float().clone()

    expected = rows(Tree.chain([*path, *others[:4]]))
    roots = [rows(Tree.chain([*path, *others][: width - 1]))[0] for width in widths]
    first, second, third = path
    branching = rows(Tree((*others[:2], first, others[2], second, third, others[3]), BRANCHES))
    target.close(slot)
    return {
        "by_width": [_largest(root - expected[0]) for root in roots],
        "in_branches": [
            _largest(branching[1 + node] - expected[row]) for row, node in enumerate((2, 4, 5), 1)
        ],
    }


def _largest(difference: torch.Tensor) -> float:
    return float(difference.abs().max())


if __name__ == "__main__":
    main()
