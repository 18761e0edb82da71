"""Typical acceptance: the criterion, the walk, and who is told that the text is another one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters import Plain
from paceline.errors import UsageError
from paceline.loop import Generation
from paceline.options import Options
from paceline.sampling import GREEDY, Sampler
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, ROOT, Tree
from paceline.typical import Typical, typical_walk
from tests.helpers import Oracle, RandomTrees, naive_stream, play, token_path, trees
from tests.tiny import toy_session

WARM = Sampler(seed=3, temperature=0.9)


def likely(row: torch.Tensor, token: int, typical: Typical, temperature: float = 0.9) -> bool:
    """The criterion, in numbers of Python."""
    exponents = [math.exp(float(score) / temperature) for score in row]
    shares = [each / sum(exponents) for each in exponents]
    entropy = -sum(share * math.log(share) for share in shares)
    return shares[token] > min(typical.epsilon, typical.delta * math.exp(-entropy))


@given(tree=trees(), seed=st.integers(0, 50), epsilon=st.sampled_from([0.02, 0.09, 0.3, 0.7]))
def test_the_longest_path_of_likely_guesses_wins(tree: Tree, seed: int, epsilon: float) -> None:
    tree = tree.merge()  # the twin of a sibling is never walked
    logits = torch.randn(len(tree) + 1, 4, generator=torch.Generator().manual_seed(seed)) * 2
    typical = Typical(epsilon, math.sqrt(epsilon))
    sampler = replace(WARM, presence_penalty=1.5, prompt_tokens=2)
    walked = {ROOT: 0}
    for node, parent in enumerate(tree.parents):
        row = logits[parent + 1].clone()
        row[[*{*token_path(tree, parent)}]] -= 1.5
        if parent in walked and likely(row, tree.tokens[node], typical):
            walked[node] = walked[parent] + 1
    path = typical_walk(tree, logits, sampler, [1, 2], Stopping(50), typical)
    assert len(path.nodes) == max(walked.values())
    last = path.nodes[-1] if path.nodes else ROOT
    assert path.nodes == tree.path_to(last)
    text = [1, 2, *token_path(tree, last)]
    assert path.tokens == (*text[2:], sampler.draw(logits[last + 1], text))


def test_of_equally_long_paths_the_likelier_one_is_taken() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    tree = Tree((0, 1), (ROOT, ROOT))
    assert typical_walk(tree, logits, WARM, [1], Stopping(9), Typical()).tokens[0] == 1


def test_virtual_ids_are_not_guesses() -> None:
    logits = torch.zeros(3, 4)
    path = typical_walk(Tree((4, 2), (ROOT, 0)), logits, WARM, [1], Stopping(9), Typical())
    assert path.nodes == () and path.tokens[0] < 4


def test_without_a_tree_it_is_plain_decoding() -> None:
    target = ToyTarget()
    generation = Generation([1, 2], RandomTrees(), Stopping(20), WARM, (), Typical())
    play(target, [generation], budget=0)
    assert generation.output == naive_stream(target, [1, 2], 20, WARM)
    assert typical_walk(EMPTY, torch.zeros(1, 4), WARM, [1], Stopping(9), Typical()).nodes == ()


@pytest.mark.parametrize("limit", range(1, 9))
def test_texts_end_where_they_should(limit: int) -> None:
    for eos in range(16):
        generation = Generation(
            [1, 2], RandomTrees(seed=eos), Stopping(limit, {eos}), WARM, (), Typical()
        )
        play(ToyTarget(), [generation], budget=20)
        output = generation.output
        assert len(output) <= limit and eos not in output[:-1]
        assert generation.stopping.reason == ("eos" if output[-1] == eos else "length")


def test_drafters_guess_what_is_likely_instead_of_what_would_be_drawn() -> None:
    told = [Generation([1], Plain(), Stopping(9), WARM, (), each) for each in (Typical(), None)]
    assert [each.start_as(0).sampler for each in told] == [replace(WARM, temperature=0.0), WARM]


def test_more_is_accepted_than_plain_decoding_would_say() -> None:
    target = ToyTarget(sharpness=1.0)
    greedy = naive_stream(target, [1, 2], 80)
    rounds = {}
    for typical in (None, Typical()):
        drafter = Oracle([1, 2, *greedy])
        generation = Generation([1, 2], drafter, Stopping(60), WARM, (), typical)
        (rounds[typical is None],) = play(target, [generation], budget=8)
    assert len(rounds[False]) < len(rounds[True])


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 0.3), (1, 0.3), (0.1, 0), (math.nan, 1), (0.1, math.inf)]
)
def test_numbers_out_of_range_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(UsageError, match="typical acceptance needs an epsilon"):
        Typical(epsilon, delta)


def test_the_option_needs_a_distribution_that_is_a_function_of_the_text() -> None:
    for options in ({}, {"temperature": 1.0, "processors": (lambda ids, scores: scores,)}):
        with pytest.raises(UsageError, match="typical acceptance needs"):
            Options(typical=True, **options)  # type: ignore[arg-type]
    assert Options(temperature=1.0, typical=True).acceptance == Typical()
    assert Options(temperature=1.0, typical=Typical(0.2)).acceptance == Typical(0.2)
    assert Options(temperature=1.0).acceptance is None


def test_every_result_says_whether_it_is_lossless() -> None:
    session = toy_session("anpd", options=Options(max_new_tokens=30, temperature=1.0))
    assert session.generate("ab").lossless
    assert not session.generate("ab", typical=True).lossless
    assert [each.lossless for each in session.generate_batch(["a", "b"], typical=True)] == [
        False
    ] * 2
    stream = session.stream("ab", typical=True)
    next(stream)
    assert not stream.completion.lossless
    assert replace(session.options, typical=True).acceptance is not None


def test_a_sampler_that_does_not_fit_is_refused() -> None:
    for sampler in (GREEDY, Sampler(temperature=1.0, processors=(lambda ids, scores: scores,))):
        with pytest.raises(UsageError, match="needs a temperature above 0, and neither logits"):
            Generation([1, 2], Plain(), Stopping(4), sampler, typical=Typical())
