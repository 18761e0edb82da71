"""Lookahead against a simulation that keeps rows of levels and reads every token from a fresh pass."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from tests.helpers import as_walked, generate, naive_stream, play, token_paths
from tests.one_pass import one_pass
from tests.tiny_models import some_prompt, tiny_model

from paceline.drafters import Lookahead, PhrasePool, make_drafter
from paceline.loop import Generation, decode
from paceline.protocols import SHADOW_TOKENS, TREES
from paceline.records import Round, TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.stats import Stats
from paceline.stopping import Stopping
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, SHADOWS, Tree
from paceline.verify import walk

PROMPT = [3, 1, 4, 1, 5]
WARM = Sampler(seed=11, temperature=1.0)


def forgetless(seed: int = 0) -> ToyTarget:
    """A toy whose rows depend on all that stands before them: a wrong ancestor shows. Sharp enough
    towards its last tokens for texts that repeat themselves."""
    return ToyTarget(vocab_size=6, order=3, seed=seed)


class Simulation:
    """The window as the paper's figure 2 has it, level by level, and the pool as a dict of lists.

    bottom: level 0 after the root, at first.
    """

    def __init__(
        self, target: ToyTarget, bottom: Sequence[int], window: int, level: int, guesses: int
    ) -> None:
        self.target = target
        self.window, self.level, self.guesses = window, level, guesses
        self.levels = [list(bottom)]
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        assert len(bottom) == window + level - 3

    def says(self, text: Sequence[int]) -> int:
        """The likeliest token after a text."""
        return int(one_pass(self.target, text)[0].argmax())

    def above(self, place: int) -> list[int]:
        """Tokens of the window that the last level of a column stands after, or belongs to."""
        return [*self.levels[0][:place], *(level[place] for level in self.levels[1:])]

    def tree_paths(self) -> set[tuple[int, ...]]:
        """Of all nodes of the window."""
        columns = len(self.levels[1]) if len(self.levels) > 1 else len(self.levels[0]) + 1
        whole = [self.above(place) for place in range(columns)]
        return {tuple(path[:size]) for path in whole for size in range(1, len(path) + 1)}

    def phrases(self, root: int) -> list[tuple[int, ...]]:
        return self.pool.get(root, [])[::-1]

    def step(self, text: Sequence[int]) -> None:
        """A round with `text` up to the root."""
        if len(self.levels) < self.level - 1:
            columns = range(1, len(self.levels[0]) + 1)
            results = [self.says([*text, *self.above(place)]) for place in columns]
            self.levels = [*(level[1:] for level in self.levels), results]
            return
        results = [self.says([*text, *self.above(place)]) for place in range(self.window)]
        bottom = [text[-1], *self.levels[0]]
        for place, result in enumerate(results):
            self.insert(bottom[place], (*(level[place] for level in self.levels[1:]), result))
        above = [*self.levels[1:], results]
        self.levels = [above[0][1:], *above[1:]]

    def insert(self, key: int, phrase: tuple[int, ...]) -> None:
        known = self.pool.setdefault(key, [])
        if phrase in known:
            known.remove(phrase)
        known.append(phrase)
        del known[: -self.guesses]


def shadows(tree: Tree) -> set[tuple[int, ...]]:
    """Tokens on the way to every shadow, which has only shadows above it."""
    return {
        tuple(token - SHADOWS for token in path)
        for path in token_paths(tree)
        if path[-1] >= SHADOWS
    }


def guessed(tree: Tree) -> set[tuple[int, ...]]:
    return {path for path in token_paths(tree) if path[-1] < SHADOWS}


def prefixes(phrases: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {phrase[:size] for phrase in phrases for size in range(1, len(phrase) + 1)}


def content(pool: PhrasePool) -> dict[int, list[tuple[int, ...]]]:
    return {key: list(phrases) for key, phrases in pool}


SHAPES = [(7, 5, 7), (3, 3, 2), (1, 4, 1), (4, 2, 3), (1, 2, 1), (2, 7, 3), (5, 4, 20)]


@pytest.mark.parametrize("sampler", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize(("window", "level", "guesses"), SHAPES)
def test_window_and_pool_are_those_of_a_simulation(
    window: int, level: int, guesses: int, sampler: Sampler
) -> None:
    target, drafter = forgetless(), Lookahead(window=window, level=level, guesses=guesses)
    text, simulation = list(PROMPT), None
    generation = Generation(PROMPT, drafter, Stopping(500), sampler)
    for round in islice(decode(target, [generation], 200), 45):
        if simulation is None:
            bottom = [token - SHADOWS for token in round.tree.tokens]
            assert round.tree.parents == tuple(range(-1, len(bottom) - 1))
            assert set(bottom) <= set(PROMPT)
            simulation = Simulation(forgetless(), bottom, window, level, guesses)
        assert shadows(round.tree) == simulation.tree_paths()
        assert guessed(round.tree) == prefixes(simulation.phrases(text[-1]))
        simulation.step(text)
        text += round.path.tokens
        assert content(drafter.pool) == simulation.pool
    assert text[len(PROMPT) :] == naive_stream(forgetless(), PROMPT, len(text) - 5, sampler)


@pytest.mark.parametrize("seed", range(4))
def test_window_and_pool_outlive_a_text_that_goes_on_otherwise(seed: int) -> None:
    """As that of a draft model does, whose last tokens its target has put others in place of."""
    rng = random.Random(seed)
    target, drafter = forgetless(seed), Lookahead(window=4, level=4, guesses=3)
    drafter.start(TextStart(PROMPT))
    text, simulation = list(PROMPT), None
    for _ in range(40):
        tree = drafter.propose(64)
        if simulation is None:
            bottom = [token - SHADOWS for token in tree.tokens]
            simulation = Simulation(forgetless(seed), bottom, 4, 4, 3)
        assert shadows(tree) == simulation.tree_paths()
        assert guessed(tree) == prefixes(simulation.phrases(text[-1]))
        rows = one_pass(target, text, tree)
        path = walk(tree, rows, GREEDY, text, Stopping(99))
        simulation.step(text)
        drafter.observe(Round(0, tree, rows, path))
        text += path.tokens
        assert content(drafter.pool) == simulation.pool
        if rng.random() < 0.4:
            kept = rng.randint(len(PROMPT), len(text))
            text = [*text[:kept], *(rng.randrange(6) for _ in range(rng.randint(1, 3)))]
            drafter.resume(TextStart(text))


@torch.no_grad()
def own_row(model: Any, text: Sequence[int]) -> torch.Tensor:
    row: torch.Tensor = model(torch.tensor([list(text)]), use_cache=False).logits[0, -1]
    return row


@pytest.mark.parametrize(
    ("name", "accept"), [("llama", False), ("llama", True), ("gemma3", True), ("gpt2", False)]
)
def test_every_row_of_the_window_is_the_models_own_after_the_tokens_above_it(
    name: str, accept: bool
) -> None:
    model = tiny_model(name, "sdpa", torch.float64)
    target = CausalLMTarget(model, check=False)
    text = some_prompt(17)
    drafter = Lookahead(window=4, level=4, guesses=4, accept_window=accept)
    generation = Generation(text, drafter, Stopping(60))
    for round in islice(decode(target, [generation], 64), 6):
        for node in range(len(round.tree)):
            above = [round.tree.as_read[step] for step in round.tree.path_to(node)]
            expected = own_row(model, [*text, *above])
            gap = (round.logits[node + 1] - expected).abs().max() / expected.abs().max()
            assert gap < 1e-10
        text = [*text, *round.path.tokens]
    assert len(drafter.pool) > 4


@pytest.mark.parametrize(
    ("name", "sampler"), [("llama", GREEDY), ("llama", WARM), ("gemma3", WARM), ("gpt2", GREEDY)]
)
def test_the_text_on_a_model_is_that_of_plain_decoding(name: str, sampler: Sampler) -> None:
    target = CausalLMTarget(tiny_model(name, "sdpa", torch.float64), check=False)
    expected = naive_stream(target, some_prompt(17), 16, sampler)
    for method in ("lookahead", "lookahead:accept_window=true,history=true", "jacobi"):
        drafter = make_drafter(method)
        for _ in range(2):
            output, _, _ = generate(target, drafter, some_prompt(17), 16, sampler=sampler)
            assert output == expected


def test_shadows_stand_beside_embeddings_of_drafters() -> None:
    """Both in one pass, which then takes embeddings in place of ids."""
    target = CausalLMTarget(tiny_model("llama", "sdpa", torch.float64), check=False)
    text = some_prompt(9)
    first = target.add_virtual_tokens(torch.randn(2, 32, generator=torch.Generator()))
    mixed = one_pass(target, text, Tree((SHADOWS + 5, first + 1, SHADOWS + 7), (-1, 0, 0)))
    plain = one_pass(target, text, Tree((5, 7), (-1, 0)))
    assert torch.allclose(mixed[[0, 1, 3]], plain, rtol=1e-10)


def learned(drafter: Lookahead, rounds: int = 30, budget: int = 200) -> list[Round]:
    """Rounds of a text that repeats itself, in the middle of it."""
    generation = Generation(PROMPT, drafter, Stopping(999))
    return list(islice(decode(ToyTarget(), [generation], budget), rounds))


@pytest.mark.parametrize(("window", "level", "guesses"), SHAPES)
def test_with_less_room_guesses_shrink_first_and_then_the_window(
    window: int, level: int, guesses: int
) -> None:
    drafter = Lookahead(window=window, level=level, guesses=guesses)
    learned(drafter)
    whole = drafter.propose(500)
    columns, phrases = shadows(whole), guessed(whole)
    assert len(columns) + len(phrases) == len(whole)
    before = whole
    for budget in range(len(whole) - 1, -1, -1):
        tree = drafter.propose(budget)
        assert len(tree) <= budget
        assert shadows(tree) <= shadows(before) and guessed(tree) <= phrases
        if budget >= len(columns) + level - 1:
            assert shadows(tree) == columns
        if len(shadows(tree)):
            assert len(guessed(tree)) >= min(level - 1, len(phrases))
        before = tree
    assert drafter.propose(500) == whole


@pytest.mark.parametrize("budget", [0, 1, 3, 5, 8, 9, 12, 20, 31])
@pytest.mark.parametrize(("window", "level", "guesses"), SHAPES)
def test_a_small_budget_still_fills_the_pool(
    window: int, level: int, guesses: int, budget: int
) -> None:
    drafter = Lookahead(window=window, level=level, guesses=guesses)
    rounds = learned(drafter, 40, budget)
    assert all(len(round.tree) <= budget for round in rounds)
    # The narrowest window, while it is being filled, and one phrase.
    spare = level - 2
    needed = max(left + (spare - left) * (1 + left) for left in range(spare + 1)) + level - 1
    assert (len(drafter.pool) > 0) == (budget >= needed)
    assert all(len(phrase) == level - 1 for _, each in drafter.pool for phrase in each)


def test_columns_that_were_not_scored_wait() -> None:
    drafter = Lookahead(window=4, level=3, guesses=3)
    target = ToyTarget()
    drafter.start(TextStart(PROMPT))
    text = list(PROMPT)

    def play_one(cut: int) -> set[tuple[int, ...]]:
        tree = drafter.propose(64).clip(cut)
        rows = one_pass(target, text, tree)
        path = walk(tree, rows, GREEDY, text, Stopping(99))
        drafter.observe(Round(0, tree, rows, path))
        text.extend(path.tokens)
        return shadows(drafter.propose(64))

    before = shadows(drafter.propose(64))
    assert max(map(len, before)) == 4
    assert play_one(3) == before  # the window is not full yet, and waits as a whole
    full = play_one(64)
    # Depth 2 holds the first two columns, with a level each.
    assert max(map(len, full)) == 4
    again = play_one(2)
    assert len(drafter.pool) == 2
    longest, longest_again = max(full, key=len), max(again, key=len)
    assert longest[2:] == longest_again[2:] and longest != longest_again
    assert play_one(0) == again


def test_rounds_without_a_tree_leave_the_window_as_it_is() -> None:
    drafter = Lookahead()
    generation = Generation(PROMPT, drafter, Stopping(999))
    for _ in islice(decode(ToyTarget(), [generation], 200), 12):
        pass
    window, known = shadows(drafter.propose(200)), content(drafter.pool)
    assert len(window) and len(known)
    target, text = ToyTarget(), generation.context
    for _ in range(5):  # as a planner has it that does not ask
        rows = one_pass(target, text)
        path = walk(EMPTY, rows, GREEDY, text, Stopping(99))
        drafter.observe(Round(0, EMPTY, rows, path))
        text += path.tokens
    assert shadows(drafter.propose(200)) == window and content(drafter.pool) == known


def test_the_same_prompt_makes_the_same_trees_whatever_came_before() -> None:
    first, second = Lookahead(), Lookahead()
    generate(ToyTarget(), second, [9, 9, 8, 7, 9], 30)
    state = random.getstate()
    seen = []
    for drafter in (first, second, first):
        _, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 30)
        seen.append(as_walked(rounds))
    assert seen[0] == seen[1] == seen[2]
    assert random.getstate() == state
    _, rounds, _ = generate(ToyTarget(), Lookahead(seed=1), PROMPT, 30)
    assert as_walked(rounds) != seen[0]


def test_another_text_begins_with_an_empty_pool_unless_history_is_kept() -> None:
    kept, dropped = Lookahead(history=True), Lookahead()
    for drafter in (kept, dropped):
        learned(drafter)
        assert len(drafter.pool) > 0
    known = content(kept.pool)
    for drafter in (kept, dropped):
        drafter.start(TextStart([5, 5]))
        assert max(map(len, shadows(drafter.propose(200)))) == 9  # a window that is yet to fill
    assert content(kept.pool) == known and len(dropped.pool) == 0


def test_a_text_that_continues_the_last_one_keeps_pool_and_window() -> None:
    drafter = Lookahead()
    generation = Generation(PROMPT, drafter, Stopping(999))
    for _ in islice(decode(ToyTarget(), [generation], 200), 20):
        pass
    window, known = shadows(drafter.propose(200)), content(drafter.pool)
    drafter.start(TextStart([*generation.context, 7, 7]))
    assert shadows(drafter.propose(200)) == window and content(drafter.pool) == known


def test_a_shared_pool_is_never_emptied_and_guesses_are_limited() -> None:
    pool = PhrasePool(10)
    for number in range(10):
        pool.add(5, (number, number, number))
    drafter = Lookahead(window=2, level=4, guesses=3, pool=pool)
    drafter.start(TextStart([1, 2, 3]))
    drafter.start(TextStart(PROMPT))
    assert guessed(drafter.propose(64)) == prefixes([(9, 9, 9), (8, 8, 8), (7, 7, 7)])
    # The newest come first, so that an accepted path lies in place and little room keeps the best.
    assert drafter.propose(64).tokens[:6] == (9, 9, 9, 8, 8, 8)
    assert drafter.propose(4).tokens == (9, 9, 9, 8)


def test_phrases_come_from_the_prompt_and_the_generated_text_where_that_is_asked_for() -> None:
    def ngrams(text: Sequence[int]) -> PhrasePool:
        pool = PhrasePool(4)
        for start in range(len(text) - 2):
            pool.add(text[start], tuple(text[start + 1 : start + 3]))
        return pool

    prompt = [1, 2, 3, 1, 2, 4, 1, 2, 3]
    drafter = Lookahead(window=1, level=3, guesses=4, pool_from_prompt=True)
    drafter.start(TextStart(prompt))
    assert list(drafter.pool) == list(ngrams(prompt))
    assert guessed(drafter.propose(64)) == prefixes([(1, 2)])
    # Without a window, that is all.
    drafter = Lookahead(window=1, level=3, guesses=4, pool_from_prompt=True)
    output, _, _ = generate(ToyTarget(), drafter, prompt, 30, budget=2)
    assert content(drafter.pool) == content(ngrams([*prompt, *output]))
    # What is new is counted, and nothing twice.
    drafter.resume(TextStart([*prompt, *output[:7], 9, 9, 9, 9]))
    assert drafter.pool.newest(9) == ((9, 9),)
    without = Lookahead(window=1, level=3, guesses=4)
    without.start(TextStart(prompt))
    assert len(without.pool) == 0


def test_only_phrases_count_as_guesses() -> None:
    stats = Stats()
    rounds = learned(Lookahead())
    for round in rounds:
        stats.add(round)
    assert stats.drafted == sum(len(guessed(round.tree)) for round in rounds)
    assert stats.triggers == sum(bool(guessed(round.tree)) for round in rounds) < len(rounds)
    assert len(stats.acceptance_by_position) == 4


def test_a_window_that_may_be_accepted_makes_the_same_phrases_with_fewer_rows() -> None:
    usual, accepting = Lookahead(), Lookahead(accept_window=True)
    assert usual.requires == {SHADOW_TOKENS, TREES} and accepting.requires == {TREES}
    seen = []
    for drafter in (usual, accepting):
        drafter.start(TextStart(PROMPT))
        text, target, trees = list(PROMPT), ToyTarget(), []
        for token in naive_stream(ToyTarget(), PROMPT, 30):
            tree = drafter.propose(200)
            rows = one_pass(target, text, tree)
            # One token at a time, so that both stand at the same place.
            path = walk(EMPTY, rows[:1], GREEDY, text, Stopping(99))
            drafter.observe(Round(0, tree, rows, path))
            text.append(token)
            trees.append(tree)
        seen.append((content(drafter.pool), trees))
    assert seen[0][0] == seen[1][0]
    for shadowed, real in zip(seen[0][1], seen[1][1], strict=True):
        merged = Tree(shadowed.as_read, shadowed.parents).merge()
        assert (real.tokens, real.parents) == (merged.tokens, merged.parents)
    assert sum(map(len, seen[1][1])) < sum(map(len, seen[0][1]))


def test_phrases_are_accepted_in_a_text_that_repeats_itself() -> None:
    prompt = [*PROMPT, *naive_stream(ToyTarget(), PROMPT, 65)]
    _, rounds, _ = generate(ToyTarget(), Lookahead(), prompt, 60)
    assert len(rounds) <= 20
    _, accepting, _ = generate(ToyTarget(), Lookahead(accept_window=True), prompt, 60)
    assert len(accepting) <= len(rounds)


def test_history_over_many_prompts_is_bounded() -> None:
    drafter = Lookahead(history=True, pool=PhrasePool(7, most=50))
    rng = random.Random(0)
    for _ in range(30):
        generate(ToyTarget(), drafter, [rng.randrange(16) for _ in range(9)], 12)
    assert len(drafter.pool) == 50


def test_several_texts_may_share_a_pool() -> None:
    pool = PhrasePool(7)
    prompts = [PROMPT, [9, 8], [2, 2, 6, 1]]
    generations = [
        Generation(prompt, Lookahead(pool=pool), Stopping(25), WARM) for prompt in prompts
    ]
    play(ToyTarget(), generations)
    for prompt, generation in zip(prompts, generations, strict=True):
        assert generation.output == naive_stream(ToyTarget(), prompt, 25, WARM)
