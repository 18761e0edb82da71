"""vLLM engines for vllm_drafters.py, each in its own process."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

OWN = ("Anpd", "Llma", "Suffix", "Auto")
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
CONTESTANTS = ("off", "ngram", *OWN)
COUNTERS = {
    "drafts": "num_drafts",
    "drafted": "num_draft_tokens",
    "accepted": "num_accepted_tokens",
}
KV_CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class Trial:
    """The result of requests sent together.

    tokens: of each answer. drafts: verified drafts, of `drafted` tokens in all. draft_seconds: time
    in the proposer, part of `seconds`.
    """

    tokens: list[list[int]]
    seconds: float
    draft_seconds: float
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


class Engine:
    """vLLM in a process, with one way to draft."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        from vllm import LLM

        self._llm = LLM(
            str(options.model),
            speculative_config=_drafting(name, options.draft_tokens),
            additional_config={"paceline": {"least_share": options.least_share}},
            dtype=options.dtype,
            max_model_len=options.longest,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
            enforce_eager=True,
            enable_prefix_caching=False,  # every contestant reads prompts in full
            disable_log_stats=False,
        )
        self._draft_seconds = 0.0
        self._time_proposer(name)

    def prompts(self, conversations: Sequence[str]) -> list[list[int]]:
        """Token ids of each text as a user's turn."""
        tokenizer = self._llm.get_tokenizer()
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": said}], tokenize=False, add_generation_prompt=True
            )
            for said in conversations
        ]
        return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Trial:
        """Greedy answers to requests sent together."""
        from vllm import SamplingParams

        before, self._draft_seconds = self._counts(), 0.0
        requests = [{"prompt_token_ids": list(ids)} for ids in prompts]
        greedy = SamplingParams(temperature=0.0, max_tokens=new_tokens)
        began = perf_counter()
        answers = self._llm.generate(requests, greedy, use_tqdm=False)
        seconds = perf_counter() - began
        tokens = [list(answer.outputs[0].token_ids) for answer in answers]
        counts = {name: count - before[name] for name, count in self._counts().items()}
        return Trial(tokens, seconds, self._draft_seconds, **counts)

    def versions(self) -> dict[str, str]:
        """Versions of the measured software."""
        import torch
        import transformers
        import vllm

        found = {"vllm": vllm, "torch": torch, "transformers": transformers}
        return {name: str(module.__version__) for name, module in found.items()}

    def _counts(self) -> dict[str, int]:
        found = {metric.name: metric for metric in self._llm.get_metrics()}
        names = {key: f"vllm:spec_decode_{name}" for key, name in COUNTERS.items()}
        return {key: int(found[name].value) if name in found else 0 for key, name in names.items()}

    def _time_proposer(self, name: str) -> None:
        if name == "off":
            return
        if name == "ngram":
            from vllm.v1.spec_decode.ngram_proposer import NgramProposer as Proposer
        else:
            from paceline.integrations.vllm import Proposer
        propose = Proposer.propose

        def timed(proposer: Any, *arguments: Any, **options: Any) -> Any:
            began = perf_counter()
            try:
                return propose(proposer, *arguments, **options)
            finally:
                self._draft_seconds += perf_counter() - began

        Proposer.propose = timed


def _drafting(name: str, draft_tokens: int) -> dict[str, Any] | None:
    """The `speculative_config` of a contestant."""
    if name == "off":
        return None
    own = {"method": "custom_class", "model": f"paceline.integrations.vllm.{name}"}
    return {**(NGRAM if name == "ngram" else own), "num_speculative_tokens": draft_tokens}


def serve(name: str, options: argparse.Namespace, questions: Connection) -> None:
    """Run an engine's process: answer until None comes."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # what `custom_class` uses, for all
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{options.threads - 1}",
        "OMP_NUM_THREADS": str(options.threads),
        "NUMBA_NUM_THREADS": str(options.threads),  # more would contend
    }
    engine = Engine(name, options)
    questions.send(None)
    while (question := questions.recv()) is not None:
        method, arguments = question
        questions.send(getattr(engine, method)(*arguments))


class Contestant:
    """The other end of an engine's process."""

    def __init__(self, name: str, answers: Connection) -> None:
        self.name = name
        self._answers = answers
        answers.recv()  # it has loaded

    def ask(self, method: str, *arguments: Any) -> Any:
        """What `method` of `Engine` returns. Raises EOFError if the process has ended."""
        self._answers.send((method, arguments))
        return self._answers.recv()


@contextmanager
def contestant(name: str, options: argparse.Namespace) -> Iterator[Contestant]:
    """A contestant in its own process."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(name, options, there))
    process.start()
    there.close()
    try:
        yield Contestant(name, here)
        here.send(None)
    finally:
        here.close()
        process.join()
