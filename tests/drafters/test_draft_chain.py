"""A draft model that says token after token in one call each says what rounds of the loop say."""

from __future__ import annotations

import random
from array import array
from typing import Any

import numpy as np
import pytest
import torch
from tests.c_library import needs_library
from tests.tiny_models import VOCAB, new_model, some_prompt
from torch import nn

from paceline.chains import ChainEnd, ChainRequest, ChanceTable, certain_end
from paceline.drafters import Host, make_drafter
from paceline.drafters.draft_text import DraftText, Guess
from paceline.kernels.native.calls import unavailable
from paceline.models.draft_model import ReducedHead
from paceline.protocols import CHAINS, Target
from paceline.records import TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.targets import causal_lm
from paceline.targets.engines import open_target
from paceline.targets.toy import ToyTarget

SAMPLERS = [
    GREEDY,
    Sampler(seed=3, temperature=1.0),
    Sampler(seed=4, temperature=0.7, top_p=0.9, top_k=9),
    Sampler(seed=5, temperature=0.9, min_p=0.05, repetition_penalty=1.3),
    Sampler(repetition_penalty=1.2),
]


def twins(name: str) -> tuple[Target, Target]:
    """Targets of one model, the second of which cannot follow."""
    if name == "toy":
        chained: Any = ToyTarget(vocab_size=VOCAB)
        other: Any = ToyTarget(vocab_size=VOCAB)
    else:
        chained, other = (open_target(tiny(name)) for _ in range(2))
        assert CHAINS in chained.capabilities
    other.capabilities = other.capabilities - {CHAINS}
    return chained, other


def tiny(name: str) -> Any:
    torch.manual_seed(0)
    model = new_model(name.partition(" ")[0], "sdpa")
    if name.endswith("reduced"):
        tokens = torch.arange(1, VOCAB, 2)
        rows = nn.Linear(model.lm_head.in_features, len(tokens), bias=False)
        rows.weight.data = model.lm_head.weight.data[tokens].clone()
        model.lm_head = ReducedHead(rows.requires_grad_(False), tokens, VOCAB)
    return model


def some_end(rng: random.Random, before: int) -> ChainEnd | None:
    """Ends by shares, by chances, or by length, with lines that differ by share and by depth."""
    if rng.random() < 0.2:
        return None
    chances = ChanceTable((0.02, 0.04, 0.1), (2, 3, 5), 0.001, 0.995, longest=20)
    for row in range(4):
        for column in range(4):
            chances.put(column, row, rng.random() / 2, rng.random())
    chances.trust = rng.uniform(0.5, 3.0)
    least = array("d", [rng.random() ** depth for depth in range(2, 9)])
    return ChainEnd(rng.choice([0.0, 0.03]), least, chances, before, path_chance=rng.random())


def assert_alike(one: list[Guess], other: list[Guess]) -> None:
    assert [guess.token for guess in one] == [guess.token for guess in other]
    for mine, yours in zip(one, other, strict=True):
        assert mine.chance == pytest.approx(yours.chance, rel=1e-3, abs=1e-6)
        assert [token for token, _ in mine.others] == [token for token, _ in yours.others]
        assert [share for _, share in mine.others] == pytest.approx(
            [share for _, share in yours.others], rel=1e-3, abs=1e-6
        )


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("name", ["toy", "llama", "llama reduced", "gemma3"])
def test_chains_say_what_rounds_say(name: str, sampler: Sampler) -> None:
    if name != "toy" and unavailable():
        pytest.skip(unavailable())
    rng = random.Random(1)
    texts = [
        DraftText(Host(target), make_drafter("plain"), VOCAB, others=2) for target in twins(name)
    ]
    certain = some_prompt(20)
    for text in texts:
        text.start(TextStart(certain, sampler=sampler))
    for _ in range(7):
        most, end = rng.randrange(1, 9), some_end(rng, len(texts[0].guesses))
        for text in texts:
            text.guess(most, end)
        assert_alike(texts[0].guesses, texts[1].guesses)
        said = [guess.token for guess in texts[0].guesses]
        new = [*said[: rng.randrange(len(said) + 1)], *([rng.randrange(VOCAB)] * rng.randrange(2))]
        certain += new
        for text in texts:
            text.observe(new)
        if rng.random() < 0.2:
            del certain[rng.randrange(10, len(certain)) :]
            for text in texts:
                text.resume(TextStart(certain, sampler=sampler))


@needs_library
def test_a_reduced_head_is_not_spread_over_the_vocabulary() -> None:
    target = open_target(tiny("llama reduced"))
    slot = target.open([1, 2, 3])
    found = target.follow(slot, 3, [4])
    assert found.tokens is not None and found.tokens.tolist() == list(range(1, VOCAB, 2))
    assert len(found.numbers) == len(found.tokens)


@needs_library
@pytest.mark.parametrize("known", [VOCAB, 20, 2])
def test_passes_in_one_call_stay_below_what_is_known(
    known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of one family may have vocabularies of two sizes."""
    chained, single = open_target(tiny("llama reduced")), open_target(tiny("llama reduced"))
    slots = [target.open([1, 2, 3]) for target in (chained, single)]
    request = ChainRequest(passes=5, most=3, known=known)
    with monkeypatch.context() as in_pieces:
        in_pieces.setattr(causal_lm, "PREFILL_CHUNK", 3)
        found = chained.generate_chain(slots[0], 3, [4], request)
    assert found is not None and len(found.ranked) == len(found.seconds) == 5
    new, length = [4], 3
    for ranked in found.ranked:
        scores = single.follow(slots[1], length, new)
        assert scores.tokens is not None
        some = scores.numbers[scores.tokens < known]
        expected = scores.tokens[np.argsort(-some, kind="stable")[:3]].tolist()
        assert [token for token, _ in ranked] == expected
        chances = np.sort(np.exp(some) / np.exp(some).sum())[::-1][:3]
        assert [share for _, share in ranked] == pytest.approx(chances.tolist(), rel=1e-3)
        length, new = length + len(new), [ranked[0][0]]
    # What was said is in the cache but for the last token: what follows is that of the whole text.
    said = [ranked[0][0] for ranked in found.ranked]
    assert chained.pending(chained.open([1, 2, 3, 4, *said, 5])) == 1
    mine = chained.follow(slots[0], 8, said[-1:]).numbers.copy()
    assert np.array_equal(mine, single.follow(slots[1], length, new).numbers)


@needs_library
def test_a_chain_in_one_call_leaves_the_next_text_in_the_cache_alone() -> None:
    target = open_target(new_model("llama", "sdpa", max_position_embeddings=1024))
    slots = [target.open([1] * length) for length in (500, 3)]
    for slot in slots:
        target.follow(slot, 3, [4])
    expected = target.follow(slots[1], 4, [8]).numbers.copy()
    target.follow(slots[0], 4, [4] * 500)
    target.generate_chain(slots[0], 504, [], ChainRequest(passes=40, most=1, known=VOCAB))
    assert np.array_equal(target.follow(slots[1], 4, [8]).numbers, expected)


@needs_library
@pytest.mark.parametrize("name", ["llama", "llama reduced", "gemma3"])
def test_a_chain_ends_in_one_call_where_it_would_end_token_by_token(name: str) -> None:
    rng, target = random.Random(2), open_target(tiny(name))
    slot, text, lengths = target.open([1, 2, 3]), [1, 2, 3], set()
    for _ in range(60):
        before = rng.randrange(10)
        end = some_end(rng, before) or certain_end(0.05, 7)
        found = target.generate_chain(
            slot, len(text), [], ChainRequest(len(end.least), 1, VOCAB, end)
        )
        assert found is not None
        shares = [ranked[0][1] for ranked in found.ranked]
        going_on = [end.goes_on(shares[: 1 + place]) for place in range(len(shares))]
        assert going_on == [*[True] * (len(shares) - 1), False]
        lengths.add(len(shares))
        text += [rng.randrange(VOCAB)]
        target.follow(slot, len(text) - 1, text[-1:])
    assert len(lengths) > 3


def test_it_reads_only_what_is_new() -> None:
    target = ToyTarget()
    text = DraftText(Host(target), make_drafter("plain"), 16, 1)
    text.start(TextStart([3, 1, 4]))
    text.guess(4)
    assert (target.passes, target.read) == (4, 2)
    text.observe([guess.token for guess in text.guesses])
    text.guess(1)
    assert (target.passes, target.read) == (5, 2)
