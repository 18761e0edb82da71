"""llama.cpp through llama-cpp-python, on a GGUF file: plain, and with its prompt lookup."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from paceline.bench.rivals.native import Native
from paceline.bench.trial import Request, Trial
from paceline.drafters.settings import at_least
from paceline.errors import ModelError, UsageError
from paceline.records import Stats

__all__ = ["LlamaCpp", "LlamaCppLookup"]


class LlamaCpp:
    """Plain decoding by llama.cpp, with as many threads as torch has.

    file: the GGUF file; it runs in the precision the file has, so its text may differ from that of
    a model in full precision.
    context: tokens that its cache holds.
    """

    name = "llama.cpp"

    def __init__(self, file: str = "", context: int = 8192) -> None:
        self.file = file
        self.context = at_least(1, context=context)

    def check(self) -> None:
        """It needs the library and a file."""
        if importlib.util.find_spec("llama_cpp") is None:
            raise UsageError(
                f"{self.name} needs llama-cpp-python: pip install 'paceline[llama-cpp]'"
            )
        if not Path(self.file).is_file():
            raise UsageError(
                f"{self.name} needs a GGUF file, and {self.file or 'none'} was given: "
                f"{self.name}:file=PATH ('paceline models gguf' writes those of the short names)"
            )

    def open(self, name: str, native: Native) -> None:
        """Load the file."""
        from llama_cpp import Llama

        self.name, self._eos_ids = name, frozenset(native.eos_ids)
        threads = torch.get_num_threads()
        try:
            self._model: Any = Llama(
                self.file,
                n_ctx=self.context,
                n_threads=threads,
                n_threads_batch=threads,
                flash_attn=True,
                draft_model=self._draft_model(),
                verbose=False,
            )
        except ValueError as error:
            raise ModelError(f"llama.cpp cannot load {self.file}: {error}") from error
        self._passes: list[tuple[float, int]] = []
        self._eval = self._model.eval
        self._model.eval = self._timed_eval

    def generate(self, request: Request) -> Trial:
        """One generation; greedy, or with the temperature of the request and llama.cpp's noise."""
        options, model = request.options, self._model
        eos_ids = frozenset() if options.ignore_eos else self._eos_ids
        self._passes.clear()
        model.reset()  # the whole prompt is to be read
        tokens: list[int] = []
        began = perf_counter()
        for token in model.generate(list(request.ids), temp=options.temperature):
            tokens.append(token)
            if len(tokens) == options.max_new_tokens or token in eos_ids:
                break
        return Trial(tokens, perf_counter() - began, self._stats(tokens))

    def _draft_model(self) -> Any:
        return None

    def _timed_eval(self, tokens: Sequence[int]) -> None:
        began = perf_counter()
        self._eval(tokens)
        self._passes.append((perf_counter() - began, len(tokens)))

    def _stats(self, tokens: Sequence[int]) -> Stats:
        (first, _), *rest = self._passes
        guesses = [0, *(scored - 1 for _, scored in rest)]
        return Stats(
            rounds=len(self._passes),
            tokens=len(tokens),
            drafted=sum(guesses),
            accepted=max(0, len(tokens) - len(self._passes)) if sum(guesses) else 0,
            depth_histogram=Counter(guesses),
            prefill_seconds=first,
            target_seconds=sum(seconds for seconds, _ in rest),
        )


class LlamaCppLookup(LlamaCpp):
    """Prompt lookup by llama.cpp.

    k: most tokens that it copies per round; n: longest run that it looks for.
    """

    name = "llama.cpp-lookup"

    def __init__(self, file: str = "", context: int = 8192, k: int = 10, n: int = 2) -> None:
        super().__init__(file, context)
        self.draft_length, self.max_run = at_least(1, k=k), at_least(1, n=n)

    def _draft_model(self) -> Any:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        return LlamaPromptLookupDecoding(self.max_run, self.draft_length)
