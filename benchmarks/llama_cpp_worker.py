"""A process of llama_cpp.py that loads one model and generates on request.

It reads JSON lines from standard input and answers each on standard output. It runs in two
environments; modules that only one of them has are imported inside functions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

LOOKUP_TOKENS, LOOKUP_RUN = 10, 2  # most tokens to guess, longest run to look for


@dataclass(frozen=True)
class Trial:
    """One generation.

    first_seconds, first_tokens: time until the first tokens came, and their number.
    rounds: passes of the model; drafted: guessed tokens.
    """

    tokens: list[int]
    seconds: float
    first_seconds: float
    first_tokens: int
    rounds: int
    drafted: int


def work() -> None:
    """Serve requests until standard input ends."""
    # Libraries print to standard output, so answers get their own descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: PacelineEngine | LlamaEngine | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "convert":
            answer = convert(**request["arguments"])
        elif request["do"] == "load":
            engines = {"paceline": PacelineEngine, "llama": LlamaEngine}
            engine = engines[request["engine"]](**request["arguments"])
            answer = engine.describe()
        else:
            answer = getattr(engine, request["do"])(**request["arguments"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class PacelineEngine:
    """paceline in a worker."""

    def __init__(self, model: str, weights: str, threads: int) -> None:
        import torch

        import paceline

        torch.set_num_threads(threads)
        self._session = paceline.load(model, "anpd", device="cpu", dtype="float32", weights=weights)
        self._planners: dict[str, Any] = {}

    def describe(self) -> dict[str, Any]:
        """What is loaded, and where it runs."""
        from paceline.machine import describe_machine, describe_versions

        info = self._session.target.describe()
        return {
            "machine": describe_machine(info),
            "versions": describe_versions(),
            "fingerprint": self._session.fingerprint,
            "preparation": info.report.get("preparation"),
            "budget": self._session.budget,
        }

    def prompts(self, file: str | None, limit: int | None) -> list[dict[str, Any]]:
        """Token ids of a prompt file's first turns, or of the demo's."""
        from paceline.prompts import demo_prompts, read_prompts

        records = demo_prompts()[:limit] if file is None else read_prompts(Path(file), limit)
        session, found = self._session, []
        for record in records:
            chat = session.tokenizer.chat_template and not record.raw
            text = "\n\n".join(record.turns)
            prompt = [{"role": "user", "content": record.turns[0]}] if chat else text
            found.append({"id": record.id, "ids": session.encode(prompt)})
        return found

    def generate(self, ids: list[int], method: str, new_tokens: int) -> dict[str, Any]:
        """One trial."""
        from paceline.drafters import make_drafter
        from paceline.loop import Generation, decode
        from paceline.stats import Stats
        from paceline.stopping import Stopping

        stats, first = Stats(), None
        planner = self._planners.setdefault(method, self._session.new_planner())
        budget = self._session.budget_of(self._session.options)
        self._session.target.forget()  # read the whole prompt
        began = perf_counter()
        generation = Generation(ids, make_drafter(method), Stopping(new_tokens), budget=budget)
        for round in decode(self._session.target, [generation], planner):
            first = first or (perf_counter() - began, len(round.path.tokens))
            stats.add(round)
        seconds = perf_counter() - began
        first = first or (seconds, 0)
        return asdict(Trial(generation.output, seconds, *first, stats.rounds, stats.drafted))


class LlamaEngine:
    """llama.cpp in a worker."""

    def __init__(
        self,
        model: str,
        threads: int,
        context: int,
        lookup: bool = False,
        flash_attention: bool = False,
        all_logits: bool = False,
    ) -> None:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        from llama_cpp import Llama

        self._rounds = self._drafted = 0
        draft = None
        if lookup:
            draft = self._counted(LlamaPromptLookupDecoding(LOOKUP_RUN, LOOKUP_TOKENS))
        self._model = Llama(
            model,
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=flash_attention,
            draft_model=draft,
            # Otherwise its scores of drafts have room for only 512 tokens, whatever the context.
            logits_all=all_logits or lookup,
            n_gpu_layers=0,
            verbose=False,
        )
        self._eval = self._model.eval
        self._model.eval = self._counted_eval

    def describe(self) -> dict[str, Any]:
        """Library versions and llama.cpp's system info."""
        from llama_cpp import llama_print_system_info

        return {
            "versions": {name: version(name) for name in ("llama-cpp-python", "numpy")},
            "system_info": llama_print_system_info().decode().strip(),
        }

    def generate(self, ids: list[int], method: str, new_tokens: int) -> dict[str, Any]:
        """One trial; the method was fixed when the model was loaded."""
        self._rounds = self._drafted = 0
        tokens: list[int] = []
        self._model.reset()  # read the whole prompt
        began = perf_counter()
        first_seconds = 0.0
        for token in self._model.generate(ids, temp=0.0):
            if not tokens:
                first_seconds = perf_counter() - began
            tokens.append(token)
            if len(tokens) == new_tokens:
                break
        seconds = perf_counter() - began
        return asdict(Trial(tokens, seconds, first_seconds, 1, self._rounds, self._drafted))

    def score(self, ids: list[int], count: int) -> dict[str, Any]:
        """The likeliest token at each of the last `count` of `ids`, and the losses of those ids."""
        import numpy as np

        self._model.reset()
        self._model.eval(ids)
        rows = np.array(self._model.scores[len(ids) - count - 1 : len(ids) - 1], dtype=np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        normal = np.log(np.exp(rows).sum(axis=1))
        losses = normal - rows[np.arange(count), ids[-count:]]
        return {"best": rows.argmax(axis=1).tolist(), "losses": losses.tolist()}

    def _counted_eval(self, tokens: Sequence[int]) -> None:
        self._rounds += 1
        self._eval(tokens)

    def _counted(self, draft: Callable[..., Any]) -> Callable[..., Any]:
        def drafted(*arguments: Any, **settings: Any) -> Any:
            found = draft(*arguments, **settings)
            self._drafted += len(found)
            return found

        return drafted


def convert(source: str, place: str, kind: str, threads: int) -> dict[str, Any]:
    """Write a GGUF file in another precision."""
    import ctypes

    import llama_cpp

    kinds = {"f32": llama_cpp.LLAMA_FTYPE_ALL_F32, "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize, settings.nthread = kinds[kind], True, threads
    code = llama_cpp.llama_model_quantize(source.encode(), place.encode(), ctypes.byref(settings))
    if code != 0:
        raise RuntimeError(f"llama.cpp cannot convert {source} to {kind} (code {code})")
    return {"bytes": Path(place).stat().st_size}


if __name__ == "__main__":
    work()
