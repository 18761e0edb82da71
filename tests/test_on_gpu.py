"""Whole texts on a GPU: every method writes that of plain decoding, out of captured passes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from paceline.drafters import make_drafter
from paceline.drafters.eagle import Eagle
from paceline.drafters.host import Host
from paceline.loop import Generation, decode
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from tests.head_parts import saved_chimera, saved_eagle, saved_medusa
from tests.helpers import generate
from tests.tiny_models import VOCAB, new_model, some_prompt

pytestmark = pytest.mark.gpu

METHODS = ["anpd:n=4,k=6", "pld", "llma", "lookahead:window=3,level=3,guesses=3", "jacobi"]
TINY = "tiny"
PARTS = {"eagle": saved_eagle, "medusa": saved_medusa, "chimera": saved_chimera}
SAMPLERS = {"greedy": GREEDY, "sampled": Sampler(seed=3, temperature=0.8)}


@cache
def target(name: str) -> CausalLMTarget:
    """In double precision, where no rounding turns one token into another."""
    return CausalLMTarget(new_model(name, "sdpa", torch.float64).to("cuda"))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_method_writes_the_text_of_plain_decoding(name: str, method: str, sampler: str) -> None:
    prompt, draws = some_prompt(30), SAMPLERS[sampler]
    references = [prompt[5:25]]
    expected, _, _ = generate(target(name), make_drafter("plain"), prompt, 40, sampler=draws)
    output, _, _ = generate(
        target(name), make_drafter(method), prompt, 40, sampler=draws, references=references
    )
    assert output == expected
    graphs: dict[str, Any] = target(name).describe().report["graphs"]
    assert graphs["failed"] is None and graphs["captured"] > 0


def test_texts_in_one_batch_are_those_that_they_are_alone() -> None:
    own = target("llama")
    prompts = [some_prompt(length, seed=length) for length in (4, 30, 11)]
    alone = [generate(own, make_drafter("plain"), prompt, 24)[0] for prompt in prompts]
    texts = [Generation(prompt, make_drafter("anpd"), Stopping(24)) for prompt in prompts]
    for _ in decode(own, texts):
        pass
    assert [text.output for text in texts] == alone


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("method", PARTS)
def test_trained_drafters_do_too(method: str, sampler: str) -> None:
    own, prompt, draws = target("llama"), some_prompt(30), SAMPLERS[sampler]
    expected, _, _ = generate(own, make_drafter("plain"), prompt, 60, sampler=draws)
    host = Host(own, TINY)
    parts = PARTS[method](hidden=32, vocab=VOCAB, fingerprint=TINY)
    for written in (f"{method}:parts={parts}", f"auto:sources=anpd+{method}:parts={parts}"):
        output, _, _ = generate(own, make_drafter(written, host), prompt, 60, sampler=draws)
        assert output == expected


def test_drafts_are_captured() -> None:
    """And stay those of the modules, as the text grows past what memory held."""
    own, prompt = target("llama"), some_prompt(170)
    parts = saved_eagle(hidden=32, vocab=VOCAB, fingerprint=TINY)
    eagle = Eagle(Host(own, TINY), parts=str(parts), depth=4, least=0.0)
    generate(own, eagle, prompt, 100, budget=8)
    recorded = eagle._model.programs
    assert recorded.cache_info().currsize == 2
    drafts = [recorded(room, eagle._beam.beam, eagle._beam.ranks) for room in (256, 512)]
    works = [each._work for draft in drafts for each in (draft._root, draft._nodes)]
    assert recorded.cache_info().currsize == 2
    assert [each.failed for each in works] == [None] * 4
    assert all(each.recorded for each in works)
