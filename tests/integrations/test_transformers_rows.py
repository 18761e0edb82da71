"""Processors and stopping criteria of transformers that keep state or end texts, row by row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.integrations.processors import Alternating
from tests.tiny import byte_tokenizer
from tests.tiny_models import new_model
from torch import nn
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    PreTrainedModel,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from paceline.errors import UsageError
from paceline.integrations import Pace
from paceline.integrations.requests import sampler_of
from paceline.integrations.rows import PromptRow, RowProcessor
from paceline.opening.draft_models import DraftModels
from paceline.options import Options
from paceline.session import Session
from paceline.targets.engines import open_target

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return new_model("llama", pad_token_id=0)


def batch() -> dict[str, torch.Tensor]:
    ids = torch.tensor([PROMPT, [0, 0, 0, *PROMPT[3:]], [0] * 9 + [7]])
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    mask[2, :9] = 0
    return {"input_ids": ids, "attention_mask": mask}


def both(model: PreTrainedModel, request: Callable[[], dict[str, Any]]) -> tuple[Any, Any]:
    """What `generate` answers to a request, plain and with a drafter."""
    return tuple(
        model.generate(**request(), **extra)
        for extra in ({}, {"custom_generate": Pace("anpd", budget=8)})
    )


class Summing(LogitsProcessor):
    """Like a grammar: the last token of every row moves the state of that row."""

    def __init__(self) -> None:
        self.sums: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        last = input_ids[:, -1].tolist()
        self.sums = [a + b for a, b in zip(self.sums, last)] if self.sums else [0] * len(last)
        for row, total in enumerate(self.sums):
            scores[row, total % 7 :: 7] = -torch.inf
        return scores


class Remembering(StoppingCriteria):
    """Ends rows at their second token that leaves 3."""

    def __init__(self) -> None:
        self.met: Any = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.met = self.met + (input_ids[:, -1] % 7 == 3).int()
        return self.met >= 2


class AfterCalls(StoppingCriteria):
    """Ends all rows when a processor was called so often."""

    def __init__(self, processor: Alternating, calls: int) -> None:
        self.processor = processor
        self.calls = calls

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self.processor.calls >= self.calls)


@pytest.mark.parametrize(
    "rules",
    [
        lambda: {"guidance_scale": 1.8},
        lambda: {"logits_processor": [Alternating()]},
        lambda: {"logits_processor": [Summing()]},
        lambda: {"stopping_criteria": [Remembering()], "eos_token_id": 2},
    ],
    ids=["guidance", "calls", "rows", "criterion"],
)
def test_rows_do_not_disturb_what_others_remember(
    model: PreTrainedModel, rules: Callable[[], dict[str, Any]]
) -> None:
    plain, fast = both(model, lambda: {**batch(), "max_new_tokens": 25, **rules()})
    assert torch.equal(plain, fast)


def test_a_criterion_may_watch_a_processor_in_a_batch(model: PreTrainedModel) -> None:
    def request() -> dict[str, Any]:
        counter = Alternating()
        rules = {"logits_processor": [counter], "stopping_criteria": [AfterCalls(counter, 9)]}
        return {**batch(), "max_new_tokens": 25, **rules}

    plain, fast = both(model, request)
    assert plain.shape[1] == len(PROMPT) + 9
    assert torch.equal(plain, fast)


def test_what_cannot_be_copied_is_refused_in_a_batch_only(model: PreTrainedModel) -> None:
    processor = Alternating()
    processor.lock = Lock()  # type: ignore[attr-defined]
    pace = Pace("anpd", budget=8)
    rules = {"max_new_tokens": 5, "logits_processor": [processor], "custom_generate": pace}
    assert model.generate(torch.tensor([PROMPT]), **rules).shape[1] == len(PROMPT) + 5
    with pytest.raises(UsageError, match=r"Alternating cannot be copied .* one by one"):
        model.generate(**batch(), **rules)


@pytest.mark.parametrize("length", [4, 15, 45], ids=["none left", "earlier", "later"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_limit_among_the_criteria_replaces_that_of_generate(
    model: PreTrainedModel, rows: int, length: int
) -> None:
    inputs = {name: value[:rows] for name, value in batch().items()}
    limit = [MaxLengthCriteria(length)]
    plain, fast = both(model, lambda: {**inputs, "max_new_tokens": 20, "stopping_criteria": limit})
    assert plain.shape[1] == max(length, len(PROMPT) + 1)
    assert torch.equal(plain, fast)


@pytest.mark.parametrize(
    "ending",
    [
        lambda token: {"stopping_criteria": [EosTokenCriteria(token)]},
        lambda token: {"stopping_criteria": [EosTokenCriteria([token, 1])], "eos_token_id": 2},
        lambda token: {"eos_token_id": [1, token]},
        lambda token: {"eos_token_id": torch.tensor([token])},
        lambda token: {"eos_token_id": torch.tensor(token)},
        lambda token: {"eos_token_id": np.int64(token)},
    ],
    ids=["criterion", "instead of another", "second", "tensor", "scalar", "numpy"],
)
def test_end_of_sequence_ids_may_come_in_any_form(
    model: PreTrainedModel, ending: Callable[[int], dict[str, Any]]
) -> None:
    request = {"inputs": torch.tensor([PROMPT]), "max_new_tokens": 40}
    token = model.generate(**request)[0, 20].item()
    plain, fast = both(model, lambda: {**request, **ending(token)})
    assert plain.shape[1] <= 21
    assert torch.equal(plain, fast)


def test_a_rule_for_allowed_tokens_is_asked_about_each_row_by_its_own_text(
    model: PreTrainedModel,
) -> None:
    """It knows only the texts that its row can have."""

    def allowed(row: int, ids: torch.Tensor) -> list[int]:
        assert ids[:10].tolist() == batch()["input_ids"][row].tolist()
        return [token for token in range(10 + row, 40) if token % 3 == row]

    plain, fast = both(
        model, lambda: {**batch(), "max_new_tokens": 12, "prefix_allowed_tokens_fn": allowed}
    )
    assert torch.equal(plain, fast)


def test_filters_that_know_only_a_row_see_one_row(model: PreTrainedModel) -> None:
    seen = []

    class Noted(TopPLogitsWarper):
        pass

    noted = Noted(0.5)
    row = PromptRow(1, 3, torch.tensor([[0, 0]]), torch.tensor([[5, 6]]))
    for processor in (TopPLogitsWarper(0.5), noted):
        watched = RowProcessor(row, processor)
        scores = torch.randn(1, 9, generator=torch.Generator().manual_seed(0))
        seen.append(watched(torch.tensor([[5, 6, 7]]), scores))
        assert watched.stateless == (processor is not noted)
    assert torch.equal(*seen)


class Narrower(PrefixConstrainedLogitsProcessor):
    """Forbids odd tokens, too."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = super().__call__(input_ids, scores).clone()
        scores[:, 1::2] = -torch.inf
        return scores


def test_a_subclass_of_the_rule_for_allowed_tokens_is_asked_itself(model: PreTrainedModel) -> None:
    rules = {"logits_processor": [Narrower(lambda row, ids: [10, 11, int(ids[-1]) % 40], 1)]}
    plain, fast = both(model, lambda: {**batch(), "max_new_tokens": 12, **rules})
    assert torch.equal(plain, fast)
    assert not (fast[:, len(PROMPT) :] % 2).any()


class Asking(LogitsProcessor):
    """Adds what a network says; `asked` notes the networks."""

    asked: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self.network = nn.Embedding(64, 64)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.asked.add(id(self.network))
        return scores + self.network(input_ids[:, -1])[:, : scores.shape[1]]


def test_rows_share_a_network_that_a_processor_asks(model: PreTrainedModel) -> None:
    Asking.asked.clear()
    processor = Asking()
    plain, fast = both(
        model, lambda: {**batch(), "max_new_tokens": 6, "logits_processor": [processor]}
    )
    assert torch.equal(plain, fast)
    assert Asking.asked == {id(processor.network)}


def test_an_error_in_one_row_does_not_wait_for_the_others(model: PreTrainedModel) -> None:
    def fail(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids[0, :9].sum() == 0:
            raise ZeroDivisionError
        return scores

    pace = Pace("anpd", budget=8)
    with pytest.raises(ZeroDivisionError):
        model.generate(**batch(), max_new_tokens=60, logits_processor=[fail], custom_generate=pace)
    assert sum(stats.rounds for stats in pace.stats) <= 2


def test_what_another_row_has_read_counts_as_reused(model: PreTrainedModel) -> None:
    pace = Pace("anpd", budget=8)
    options = {"max_new_tokens": 4, "do_sample": True, "num_return_sequences": 3}
    model.generate(torch.tensor([PROMPT * 5]), **options, custom_generate=pace)
    first, *others = (stats.reused for stats in pace.stats)
    assert not first and min(others) > 0.9 * len(PROMPT * 5)


class Networked(nn.Module):
    """A processor with a network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


def test_networks_are_shared_however_they_are_held() -> None:
    def asks(net: nn.Module, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores

    def copied(rule: Any) -> Any:
        (made,) = next(Options(processors=(rule,)).of_texts(2)).processors
        return made

    asking = Networked()
    for one in (copied(asking), copied(asking.forward).__self__):
        assert one is not asking and one.net is not asking.net, "it may keep state"
        assert one.net.weight is asking.net.weight
    assert copied(partial(asks, asking.net)).args[0] is asking.net
    assert copied(Guarded(asking)).asking is asking
    assert copied(Guarded(asking).again).__self__.asking is asking


class Guarded:
    def __init__(self, asking: Networked) -> None:
        self.asking = asking
        self.args, self.keywords = None, ["as other classes have them"]

    def again(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores

    __call__ = again


def test_the_scale_of_noise_is_that_of_all_temperatures() -> None:
    row = PromptRow(0, 1, torch.tensor([[]], dtype=torch.long), torch.tensor([[5, 6]]))
    config = GenerationConfig(do_sample=True, temperature=0.3)
    warpers = [TemperatureLogitsWarper(0.3), TopPLogitsWarper(0.9), TemperatureLogitsWarper(2.0)]
    sampler = sampler_of(row, config, warpers, 3)
    assert sampler.noise_scale == sampler.coupled().noise_scale == pytest.approx(0.6)
    assert sampler_of(row, GenerationConfig(do_sample=False), warpers, 3).noise_scale == 0


@pytest.mark.parametrize("length", [4, 12])
def test_a_draft_model_is_as_sure_as_in_a_session(model: PreTrainedModel, length: int) -> None:
    """How far it drafts depends on what it takes for chances."""
    settings = {"draft": new_model("llama", pad_token_id=0), "length": length, "confidence": 0.4}
    target = open_target(model, weights="native")
    session = Session(
        target,
        byte_tokenizer(),
        "speculative",
        settings=settings,
        drafts=DraftModels(target.late_model, ""),
        budget=8,
    )
    told = session.generate(PROMPT, max_new_tokens=40, temperature=0.3, seed=3)
    pace = Pace("speculative", seed=3, budget=8, **settings)
    found = model.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=40,
        do_sample=True,
        temperature=0.3,
        top_k=0,
        custom_generate=pace,
    )
    assert found[0, len(PROMPT) :].tolist() == told.tokens
    assert pace.stats[0].drafted == told.stats.drafted
    assert pace.stats[0].rounds == told.stats.rounds
