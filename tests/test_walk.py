"""The walk against drawing one token after the other along the accepted path."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.records import Path
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.tree import EMPTY, ROOT, Tree
from paceline.verify import walk
from tests.helpers import Counting, token_path, trees

VOCAB = 4
NEVER = 10**6  # a token limit that no walk reaches

samplers = st.one_of(
    st.just(Sampler()),
    st.builds(
        Sampler,
        seed=st.integers(0, 2**32),
        temperature=st.sampled_from([0.5, 1.0, 3.0]),
        top_k=st.sampled_from([None, 2]),
        repetition_penalty=st.sampled_from([None, 1.5]),
    ),
)


def some_logits(tree: Tree, seed: int) -> torch.Tensor:
    """Random rows, whose best token is the one of some child in about half of the cases."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(tree) + 1, VOCAB, generator=generator)
    for node, token in enumerate(tree.tokens):
        if token < VOCAB and torch.rand((), generator=generator) < 0.5:
            logits[tree.parents[node] + 1, token] += 3.0
    return logits


def drawn_in_sequence(
    tree: Tree, logits: torch.Tensor, sampler: Sampler, context: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Nodes and tokens found without `children`: the first node whose whole path was drawn."""
    nodes: list[int] = []
    tokens: list[int] = []
    while True:
        row = logits[nodes[-1] + 1 if nodes else 0]
        tokens.append(sampler.draw(row, [*context, *tokens]))
        above = nodes[-1] if nodes else ROOT
        guesses = [
            node
            for node in range(len(tree))
            if tree.parents[node] == above and token_path(tree, node) == tuple(tokens)
        ]
        if not guesses:
            return nodes, tokens
        nodes.append(guesses[0])


@given(
    trees(vocab_size=VOCAB + 2),
    samplers,
    st.integers(0, 2**32),
    st.lists(st.integers(0, 3), min_size=1),
)
def test_the_walk_says_what_drawing_one_token_after_the_other_says(
    tree: Tree, sampler: Sampler, seed: int, context: list[int]
) -> None:
    logits = some_logits(tree, seed)
    nodes, tokens = drawn_in_sequence(tree, logits, sampler, context)
    heard = Counting()
    path = walk(tree, logits, sampler, context, Stopping(NEVER, (), [heard]))
    assert path == Path(tuple(nodes), tuple(tokens))
    assert heard.heard == tokens
    assert max(path.tokens) < VOCAB  # a virtual id is never said


@given(
    trees(vocab_size=VOCAB + 2),
    samplers,
    st.integers(0, 2**32),
    st.sets(st.integers(0, VOCAB - 1)),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_a_text_that_ends_in_the_tree_ends_there_for_everything(
    tree: Tree, sampler: Sampler, seed: int, eos_ids: set[int], limit: int, stop: int
) -> None:
    logits = some_logits(tree, seed)
    nodes, tokens = drawn_in_sequence(tree, logits, sampler, [0])
    ends = [at for at, token in enumerate(tokens, 1) if token in eos_ids]
    length = min([len(tokens), limit, stop, *ends])
    stopping = Stopping(limit, eos_ids, [heard := Counting(stop)])
    path = walk(tree, logits, sampler, [0], stopping)
    assert path == Path(tuple(nodes[: length - 1]), tuple(tokens[:length]))
    assert heard.heard == tokens[:length]
    if length in ends:
        assert stopping.reason == "eos"
    elif length == stop:
        assert stopping.reason == "stop"
    else:
        assert stopping.reason == ("length" if length == limit else None)


PATH = (5, 9, 2, 7, 1, 8, 3)


class Counted:
    """A processor that leaves scores alone and notes the text at every draw."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.texts.append(input_ids[0].tolist())
        return scores


@pytest.mark.parametrize("offset", range(len(PATH)))
@pytest.mark.parametrize("end", ["eos", "several eos ids", "stop", "length"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_drawn_after_the_token_that_ends_the_text(
    offset: int, end: str, temperature: float
) -> None:
    """At each place of a fully accepted path, the bonus token's included."""
    logits = torch.full((len(PATH), 10), -50.0)
    logits[range(len(PATH)), PATH] = 50.0
    eos_ids = {"eos": {PATH[offset]}, "several eos ids": {PATH[offset], *PATH[offset:], 4}}
    count = offset + 1
    condition = Counting(count if end == "stop" else None)
    stopping = Stopping(count if end == "length" else NEVER, eos_ids.get(end, ()), [condition])
    processor = Counted()
    sampler = Sampler(temperature=temperature, processors=(processor,))
    path = walk(Tree.chain(PATH[:-1]), logits, sampler, [6, 6], stopping)
    assert path == Path(tuple(range(offset)), PATH[:count])
    assert condition.heard == list(PATH[:count])
    assert processor.texts == [[6, 6, *PATH[:drawn]] for drawn in range(count)]
    assert stopping.reason == ("eos" if "eos" in end else end)


def test_a_path_without_an_end_says_one_token_more_than_it_accepts() -> None:
    logits = torch.full((len(PATH), 10), -50.0)
    logits[range(len(PATH)), PATH] = 50.0
    stopping = Stopping(NEVER)
    path = walk(Tree.chain(PATH[:-1]), logits, Sampler(), [6], stopping)
    assert path == Path(tuple(range(len(PATH) - 1)), PATH)
    assert stopping.reason is None
    assert stopping.remaining == NEVER - len(PATH)


def test_the_empty_tree_is_one_draw() -> None:
    path = walk(EMPTY, torch.tensor([[0.0, 3.0, 1.0]]), Sampler(), [0], Stopping(NEVER))
    assert path == Path((), (1,))


def test_every_condition_hears_every_token_even_where_another_one_stops() -> None:
    """A short circuit would leave the second condition one token behind in the next round."""
    first, second = Counting(1), Counting(5)
    stopping = Stopping(NEVER, {1}, [first, second])
    walk(EMPTY, torch.tensor([[0.0, 3.0, 1.0]]), Sampler(), [0], stopping)
    assert first.heard == second.heard == [1]
    assert stopping.reason == "eos"


@pytest.mark.parametrize("nodes", [(0, 1), (0, 1, 2, 3)])
def test_a_path_has_exactly_one_token_more_than_nodes(nodes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one token more"):
        Path(nodes, (5, 6))
