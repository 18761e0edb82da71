"""llama.cpp through llama-cpp-python, on a GGUF file: plain, and with prompt lookup."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from paceline.bench.baselines.native import Baseline, Native, pass_stats
from paceline.bench.trial import Request, Trial
from paceline.drafters.settings import at_least
from paceline.errors import ModelError, UsageError


@dataclass(eq=False)
class LlamaCpp(Baseline):
    """Plain decoding by llama.cpp, with as many threads as torch has.

    It uses the GGUF file's precision, so its text may differ from that of the full-precision model.

    context: capacity of its cache in tokens.
    """

    name = "llama.cpp"
    context: int = 8192

    def __post_init__(self) -> None:
        at_least(1, context=self.context)

    def check(self, gguf: Path | None) -> None:
        """Raise UsageError if the library or the file is missing."""
        if importlib.util.find_spec("llama_cpp") is None:
            raise UsageError(
                f"{self.name} needs llama-cpp-python: pip install 'paceline[llama-cpp]'"
            )
        if gguf is None:
            raise UsageError(
                f"{self.name} needs the model's GGUF file: name it with --gguf ('paceline models "
                "gguf' writes that of an alias)"
            )
        if not gguf.is_file():
            raise UsageError(f"there is no GGUF file {gguf}: name one with --gguf")

    def open(self, native: Native) -> None:
        """Load the file."""
        self._eos_ids = frozenset(native.eos_ids)
        self._passes: list[tuple[float, int]] = []
        threads, drafter = torch.get_num_threads(), self._draft_model()
        try:
            self._model = _timed_model(
                self._passes,
                str(native.gguf),
                n_ctx=self.context,
                n_threads=threads,
                n_threads_batch=threads,
                flash_attn=True,
                draft_model=drafter,
                # With a draft model the library scores every token, but reserves room for that
                # only if told to; without it, prompts longer than a batch would fail.
                logits_all=drafter is not None,
                verbose=False,
            )
        except ValueError as error:
            raise ModelError(f"llama.cpp cannot load {native.gguf}: {error}") from error

    def generate(self, request: Request) -> Trial:
        """Generate once; greedy, or with the request's temperature and llama.cpp's noise."""
        options, model = request.options, self._model
        eos_ids = frozenset() if options.ignore_eos else self._eos_ids
        self._passes.clear()
        model.reset()  # so that the whole prompt is read
        tokens: list[int] = []
        began = perf_counter()
        sampling = {  # its own defaults cut the tail
            "temp": options.temperature,
            "top_k": options.top_k or 0,
            "top_p": 1.0 if options.top_p is None else options.top_p,
            "min_p": options.min_p or 0.0,
        }
        model.set_seed(options.seed % (1 << 32))
        for token in model.generate(list(request.ids), **sampling):
            tokens.append(token)
            if len(tokens) == options.max_new_tokens or token in eos_ids:
                break
        seconds, (_, read) = perf_counter() - began, self._passes[0]
        # The first pass drafts nothing, whatever it reads.
        return Trial(tokens, seconds, pass_stats(self._passes, read, len(tokens)))

    def _draft_model(self) -> Any:
        return None


@dataclass(eq=False)
class LlamaCppLookup(LlamaCpp):
    """Prompt lookup by llama.cpp.

    k: most tokens copied per round; n: longest run looked up.
    """

    name = "llama.cpp-lookup"
    k: int = 10
    n: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, k=self.k)
        at_least(1, n=self.n)

    def _draft_model(self) -> Any:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        return LlamaPromptLookupDecoding(self.n, self.k)


def _timed_model(passes: list[tuple[float, int]], *arguments: Any, **settings: Any) -> Any:
    """A llama-cpp-python model that records seconds and tokens of each pass."""
    from llama_cpp import Llama

    class TimedLlama(Llama):  # type: ignore[misc, unused-ignore]
        def eval(self, tokens: Sequence[int]) -> None:
            began = perf_counter()
            super().eval(tokens)
            passes.append((perf_counter() - began, len(tokens)))

    return TimedLlama(*arguments, **settings)
