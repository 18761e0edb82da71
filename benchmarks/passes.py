"""Time passes by width and context: paceline's engines, and a model's own forward.

    python benchmarks/passes.py --models smollm2-135m --engines compiled own-forward --json FILE
    python benchmarks/passes.py --models smollm2-135m --cache-dtypes float32 float16 int8 --json FILE
    python benchmarks/passes.py --models llama-3.1-8b --device cuda --dtype bfloat16 --json FILE

--models are names that `paceline.load` takes, or one of those below, with random weights, which need
no download. The own forward is transformers', in float32 or --dtype, with a DynamicCache. All are
timed by `measure_curve`, in turns of a few passes; the median of --repeats of each pass counts.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path as FilePath
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, PreTrainedModel

import paceline
from common import options, run_script, write
from paceline.models import load_causal_lm
from paceline.planning.measure import PassTimes, curve_of, measure_floor, time_passes
from paceline.protocols import Target
from paceline.records import Path
from paceline.targets.engines import open_target
from paceline.tree import Tree

OWN_FORWARD = "own-forward"
_SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "vocab_size",
)  # fmt: skip
RANDOM: dict[str, dict[str, Any]] = {
    "qwen2.5-1.5b": dict(
        zip(_SIZES, (1536, 8960, 28, 12, 2, 151936)), tie_word_embeddings=True, attention_bias=True
    ),
    "llama-3.1-8b": dict(zip(_SIZES, (4096, 14336, 32, 32, 8, 128256))),
}
_TURNS = 3  # each contender runs this often, so that changes of the machine affect all


class OwnForward:
    """transformers' model, with as much of `Target` as `time_passes` uses, for one text."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        config = model.config.get_text_config()
        self.vocab_size = config.vocab_size
        self.max_context = getattr(config, "max_position_embeddings", None)
        self._root = 0

    @torch.inference_mode()
    def open(self, text: Sequence[int]) -> int:
        """Read all tokens but the last, the root."""
        self._cache, self._root = DynamicCache(config=self._model.config), text[-1]
        self._read(text[:-1])
        return 0

    @torch.inference_mode()
    def score(self, trees: Mapping[int, Tree]) -> dict[int, torch.Tensor]:
        """Read the root and a chain, and forget them again."""
        tokens = [self._root, *trees[0].tokens]
        rows = self._read(tokens)
        self._cache.crop(-len(tokens))
        return {0: rows}

    @torch.inference_mode()
    def commit(self, paths: Mapping[int, Path]) -> None:
        """Read the old root; the path is the new one."""
        self._read([self._root])
        self._root = paths[0].tokens[-1]

    def close(self, slot: int) -> None:
        """See `Target`."""

    def forget(self) -> None:
        """See `Target`."""

    def _read(self, tokens: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([list(tokens)], device=self._model.device)
        logits: torch.Tensor = self._model(ids, past_key_values=self._cache, use_cache=True).logits
        return logits[0]


def contenders(model: str, given: Namespace) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Targets, by engine, weights and cache."""
    place = {"device": given.device, "dtype": given.dtype}
    if OWN_FORWARD in given.engines:
        native = _random(model, **place)
        if native is None:
            own = place | {"dtype": given.dtype or "float32"}
            native = load_causal_lm(model, **own).model
        yield (OWN_FORWARD, "as loaded", "as loaded"), OwnForward(native)
    engines = (engine for engine in given.engines if engine != OWN_FORWARD)
    for each in product(engines, given.weights, given.cache_dtypes):
        how = dict(zip(("engine", "weights", "cache_dtype"), each))
        if (made := _random(model, **place)) is not None:
            yield each, open_target(made, check=False, **how)
        else:
            yield each, paceline.load(model, "plain", **how, **place).target


def measured(model: str, given: Namespace) -> Iterator[dict[str, Any]]:
    """Medians of passes of every contender, which take turns."""
    targets = dict(contenders(model, given))
    times: dict[tuple[str, ...], PassTimes] = {name: {} for name in targets}
    repeats = -(-given.repeats // _TURNS)
    for _, (name, target) in product(range(_TURNS), targets.items()):
        found = time_passes(target, given.widths, given.contexts, repeats)
        for place, seconds in found.items():
            times[name].setdefault(place, []).extend(seconds)
    for name, target in targets.items():
        points = [[p.width, p.context, p.milliseconds] for p in curve_of(times[name]).points]
        row: dict[str, Any] = dict(zip(("model", "engine", "weights", "cache"), (model, *name)))
        if isinstance(target, Target):
            report = target.describe().report
            row |= {"floor_ms": measure_floor(target).milliseconds, "report": report}
        print(model, *name, points, file=sys.stderr, flush=True)
        yield {**row, "points": points}


def _random(model: str, device: str, dtype: str | None) -> PreTrainedModel | None:
    """One of `RANDOM`; None for other names."""
    if model not in RANDOM:
        return None
    torch.manual_seed(0)
    config = LlamaConfig(max_position_embeddings=8192, **RANDOM[model])
    with torch.device(device):
        made = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype or "float32"))
    found: PreTrainedModel = made.eval()
    return found


def main() -> None:
    given = options(
        __doc__, json=FilePath, models=["smollm2-135m"], engines=["compiled"], weights=["auto"],
        cache_dtypes=["float32"], widths=[1, 2, 4, 8, 16, 32, 64], contexts=[300, 3000], repeats=9,
        device="cpu", dtype=str | None,
    )  # fmt: skip
    passes: list[dict[str, Any]] = []
    for model in given.models:
        passes += measured(model, given)
        write(given.json, {"passes": passes}, given.device)


if __name__ == "__main__":
    run_script(main)
