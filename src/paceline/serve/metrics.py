"""Metrics for dashboards, under vLLM's names if it has them.

Times between tokens are observed once per round and text, like vLLM's per engine step: if rounds
bring several tokens, `vllm:request_time_per_output_token_seconds` is the fair metric. Drafts are
trees here: every node that could be accepted counts as a draft token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from paceline.records import Round
from paceline.stream import Completion

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
_LONG = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 20, 40, 80, 160, 640)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_GAUGES = {
    "num_requests_running": "Texts being written.",
    "num_requests_waiting": "Requests waiting.",
    "kv_cache_usage_perc": "Share of the cache in use, 0 to 1.",
}
_COUNTERS = {
    "spec_decode_num_drafts": "Rounds in which something was guessed.",
    "spec_decode_num_draft_tokens": "Guessed tokens.",
    "spec_decode_num_accepted_tokens": "Guessed tokens that were accepted.",
    "prompt_tokens": "Tokens of prompts.",
    "prompt_tokens_cached": "Tokens of prompts that were already in the cache.",
    "generation_tokens": "Generated tokens.",
}
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Time from a request's arrival to its first token.", _LONG),
    "inter_token_latency_seconds": ("Time between rounds that added tokens to a text.", _SHORT),
    "request_time_per_output_token_seconds": ("Mean time per token after the first round.", _SHORT),
    "e2e_request_latency_seconds": ("Time from a request's arrival to its end.", _LONG),
    "request_queue_time_seconds": ("Time from a request's arrival to its first round.", _LONG),
    "request_prompt_tokens": ("Tokens in a text's prompt.", _COUNTS),
    "request_generation_tokens": ("Generated tokens of a text.", _COUNTS),
}
_FINISHED = {"eos": "stop"}


class Metrics:
    """The metrics of one server, in their own registry.

    model: its name, a label of all metrics. load: returns running texts, waiting requests, and the
    share of the cache in use; called on every read.
    """

    def __init__(self, model: str, load: Callable[[], tuple[int, int, float]]) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._load = load

        def new(kind: Any, name: str, text: str, label: str = "", **more: Any) -> Any:
            labels = [*self._labels, *filter(None, [label])]
            metric = kind(f"vllm:{name}", text, labels, registry=self._registry, **more)
            return metric if label else metric.labels(**self._labels)

        self._counters = {name: new(Counter, name, text) for name, text in _COUNTERS.items()}
        self._histograms = {
            name: new(Histogram, name, text, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._gauges = [new(Gauge, name, text) for name, text in _GAUGES.items()]
        what = "Guessed tokens that were accepted, by depth."
        self._accepted_at = new(
            Counter, "spec_decode_num_accepted_tokens_per_pos", what, "position"
        )
        self._finished = new(Counter, "request_success", "Finished texts.", "finished_reason")
        self._rejected = new(Counter, "admission_rejections", "Requests turned away.", "reason")

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        for gauge, value in zip(self._gauges, self._load(), strict=True):
            gauge.set(value)
        return generate_latest(self._registry)

    def count(self, name: str, more: float) -> None:
        """Add to one of the counters."""
        self._counters[name].inc(more)

    def observe(self, name: str, value: float) -> None:
        """Add to one of the histograms."""
        self._histograms[name].observe(value)

    def rejected(self, reason: str) -> None:
        """Count a rejected request."""
        self._rejected.labels(**self._labels, reason=reason).inc()

    def played(self, round: Round) -> None:
        """Count a round of a text."""
        guesses, accepted = len(round.guess_depths), len(round.path.nodes)
        self.count("spec_decode_num_drafts", guesses > 0)
        self.count("spec_decode_num_draft_tokens", guesses)
        self.count("spec_decode_num_accepted_tokens", accepted)
        self.count("generation_tokens", len(round.path.tokens))
        for position in range(accepted):
            self._accepted_at.labels(**self._labels, position=position).inc()

    def text_left(self, reason: str) -> None:
        """Count a text that has left, complete or not."""
        self._finished.labels(**self._labels, finished_reason=reason).inc()

    def text_ended(self, completion: Completion, seconds: float, later: int) -> None:
        """Record a complete text. seconds: since its first round. later: tokens after that."""
        reason = completion.finish_reason
        self.text_left(_FINISHED.get(reason, reason))
        self.observe("request_prompt_tokens", completion.prompt_tokens)
        self.observe("request_generation_tokens", len(completion.tokens))
        if later > 0:
            self.observe("request_time_per_output_token_seconds", seconds / later)
