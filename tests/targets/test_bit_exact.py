"""A token's scores do not depend on what else is in the pass: on prepared weights, not by one bit.

That takes products that treat every row alike: our own do, torch's as processor and library go, seen
on AMD Zen 4 with torch 2.13. Where a bare product fails it, there is nothing to test.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from random import Random

import pytest
import torch
from tests.in_step import InStep

import paceline
from paceline.kernels.linear import PackedLinear
from paceline.kernels.native.calls import unavailable
from paceline.models import load_causal_lm
from paceline.models.load import LoadedModel
from paceline.records import Path
from paceline.session import Session
from paceline.targets.engines import open_target
from paceline.tree import EMPTY, Tree

# On either side of where the cache's padding grows, and of the chunks that prompts are read in.
CONTEXTS = (3, 255, 300, 505, 512, 1025)
FEW_CONTEXTS = (3, 300)
WIDTHS = (1, 2, 4, 7, 16)
WIDEST = 24


def kernels_treat_rows_alike() -> bool:
    torch.manual_seed(0)
    rows, weight = torch.randn(1, WIDEST, 1536), torch.randn(576, 1536)
    product = PackedLinear(weight, None)

    widths = range(4, WIDEST)
    return all(torch.equal(product(rows[:, :w]), product(rows)[:, :w]) for w in widths)


KINDS: list[dict[str, str]] = [{"weights": each} for each in ("packed", "auto", "int8", "int4")]
KINDS += [{"dtype": "bfloat16"}, {"dtype": "bfloat16", "weights": "packed"}]
KINDS += [{"cache_dtype": "float16"}, {"cache_dtype": "int8"}]
# Attention to long contexts is the same code for all weights; of caches with fewer bits, see
# test_one_call.py.
FAR = [{"weights": "auto"}]
LAYERS = 3  # each of the model's layers is the same code


@pytest.fixture(
    scope="module",
    params=KINDS,
    ids=lambda kind: "-".join(f"{name}-{value}" for name, value in kind.items()),
)
def kind(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = request.param
    return found


@cache
def first_layers(dtype: str | None, blocks: bool) -> LoadedModel:
    """The default model without its other layers."""
    loaded = load_causal_lm(device="cpu", dtype=dtype, blocks=blocks)
    loaded.model.model.layers = loaded.model.model.layers[:LAYERS]
    loaded.model.config.num_hidden_layers = LAYERS
    return loaded


@pytest.fixture(scope="module")
def session(kind: dict[str, str]) -> Session:
    if unavailable() and not kernels_treat_rows_alike():
        pytest.skip("this processor's kernels sum in another order at another width")
    weights = kind.get("weights", "auto")
    try:
        loaded = deepcopy(first_layers(kind.get("dtype"), weights == "auto"))
        dtype = kind.get("cache_dtype", "float32")
        target = open_target(loaded.model, weights=weights, cache_dtype=dtype)
    except paceline.UsageError as error:
        if not unavailable():
            raise
        pytest.skip(str(error))
    session = Session(target, loaded.tokenizer, "plain", fingerprint=loaded.fingerprint)
    # A plain layer sums in another order at another width.
    if left := session.target.describe().report["preparation"]["left"]:
        assert unavailable(), left
        pytest.skip(f"layers that could not be replaced: {'; '.join(left)}")
    return session


def chain(tokens: list[int]) -> Tree:
    return Tree.chain(tokens) if tokens else EMPTY


@pytest.mark.model
def test_rows_are_the_same_bits_in_a_pass_of_any_width(
    kind: dict[str, str], session: Session
) -> None:
    target = InStep(session.target)
    random = Random(0)
    text = [random.randrange(4000) for _ in range(CONTEXTS[-1] + WIDEST + 2)]
    for length in CONTEXTS if kind in FAR else FEW_CONTEXTS:
        target.sync([text[:length]])
        target.score([EMPTY])
        target.commit([Path((), (text[length],))])
        guesses = text[length + 1 :]
        widest = target.score([chain(guesses[: WIDEST - 1])])[0]
        for width in WIDTHS:
            rows = target.score([chain(guesses[: width - 1])])[0]
            assert torch.equal(rows, widest[:width]), (length, width)


@pytest.mark.model
def test_a_prompt_is_read_to_the_same_bits_whatever_is_guessed_after_it(
    kind: dict[str, str], session: Session
) -> None:
    target = InStep(session.target)
    random = Random(1)
    text = [random.randrange(4000) for _ in range(600)]
    for length in (2, 40, 256, 512) if kind in FAR else (2, 100):
        seen = []
        for width in (1, 2, 8):
            target.sync([])
            target.forget()  # or the prompt would not be read again
            target.sync([text[:length]])
            assert target.pending(target.slots[0]) == length - 1
            first = target.score([chain(text[length : length + width - 1])])[0][0]
            target.commit([Path((), (text[length],))])
            seen.append((first, target.score([chain(text[length + 1 : length + 5])])[0]))
        for first, after in seen[1:]:
            assert torch.equal(first, seen[0][0]) and torch.equal(after, seen[0][1]), length


@pytest.mark.model
def test_drafted_texts_are_those_of_plain_decoding(kind: dict[str, str], session: Session) -> None:
    prompt = [{"role": "user", "content": "Repeat after me: one, two, three, one, two, three, one"}]
    # With and without noise the rows are the same, and drafters know nothing of weights, so some
    # kinds are enough for all.
    methods = ("plain", "medusa", "anpd", "ppd")  # the first drafter branches
    for temperature in (0.0, 0.8) if kind in FAR else (0.8,):
        texts = []
        for method in methods if kind in FAR else methods[:2]:
            # With a budget, so that no plan decides to guess nothing.
            drafting = Session(
                session.target,
                session.tokenizer,
                method,
                eos_ids=session.eos_ids,
                budget=16,
                fingerprint=session.fingerprint,
            )
            result = drafting.generate(prompt, max_new_tokens=14, temperature=temperature, seed=3)
            assert (result.stats.drafted > 0) == (method != "plain")
            texts.append(result.tokens)
        assert all(text == texts[0] for text in texts)
