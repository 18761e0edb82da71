"""Every drafter, and hostile ones, against plain decoding on the toy target.

What every drafter has to bear is in `paceline.testing.check_drafter`; here is what needs more than
one drafter, a planner, or one that knows the answer. Plain decoding here is `naive_stream`: no loop, no walk, no cache, a fresh pass for every token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
from tests.helpers import (
    Condition,
    Counting,
    Oracle,
    RandomTrees,
    as_walked,
    cut,
    generate,
    hostile_drafters,
    naive_stream,
    play,
)
from tests.prompt_parts import toy_drafter

from paceline.drafters import METHODS
from paceline.errors import UsageError
from paceline.loop import Generation, decode
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, SizedBy
from paceline.records import Round, TextStart
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.toy import ToyTarget
from paceline.testing import check_drafter
from paceline.tree import Tree

METHOD_VARIANTS = [
    *METHODS,
    "auto:-llma",
    "auto:sources=pld+anpd",
    "auto ppd",
    "auto:sources=(anpd:n=3+speculative:draft=near,length=3)",
    "auto:sources=(llma+speculative:draft=mumbling)",
    "anpd:branches=2",
    "anpd:branches=3,n=2",
    "anpd:persist=true",
    "llma:tie=first",
    "llma:n=2",
    "pld:n=1",
    "suffix:lengths=1,factor=1",
    "suffix:persist=false",
    "sam:branches=3,n=2",
    "ppd 1x1",
    "ppd 4x2",
    "ppd 3x1:size=20",
    "medusa:shape=table,ranks=3",
    "chimera:beam=1,depth=4,cache=2,ranks=3,least=0",
    "eagle:beam=1,depth=4,least=0",
    "eagle:ranks=3,beam=7,least=0",
    "lookahead:window=1,level=2,guesses=1",
    "lookahead:window=3,level=7,guesses=2,history=true",
    "lookahead:accept_window=true",
    "lookahead:level=8,pool_from_prompt=true",
    "jacobi:length=3",
    "speculative:draft=twin,length=3,branches=2",
    "speculative:draft=padded,inner=anpd",
    "speculative:draft=stranger,inner=pld,confidence=0.3",
    "speculative:draft=near,inner=(speculative:draft=mumbling,inner=(anpd:n=3,k=4),length=2)",
    "speculative:draft=short,branches=0",
    "speculative:draft=twin,inner=lookahead",
    "ouroboros:draft=twin,window=3,level=3,guesses=3",
    "ouroboros:draft=mumbling,verification=package,history=false,length=4",
    "ouroboros:draft=stranger,inner=plain,verification=none,lengthen=0",
    "ouroboros:draft=near,hang=all,prompt=true,inner=anpd",
]
HOSTILE = list(hostile_drafters([0]))
ALL = [*METHOD_VARIANTS, *HOSTILE]
# Where the loop decides, and each drafter has been through `check_drafter`.
SOME = ["anpd", "auto ppd", "ouroboros", *HOSTILE]
# Those that must have had a long path accepted, or a test of what happens inside one is empty.
COPYING = [
    name
    for name in METHOD_VARIANTS
    if name.startswith(("auto", "anpd", "llma", "pld", "suffix", "sam"))
    or "pool_from_prompt" in name
]

PROMPT = [3, 1, 4, 1, 5]
LENGTH = 40


def sampler_at(temperature: float) -> Sampler:
    return Sampler(seed=11, temperature=temperature)


@cache
def plain(
    temperature: float, prompt: tuple[int, ...] = tuple(PROMPT), count: int = 60
) -> list[int]:
    return naive_stream(ToyTarget(), prompt, count, sampler_at(temperature))


@cache
def habit() -> tuple[list[int], list[int]]:
    """A prompt that already holds the cycle into which greedy decoding falls, and what follows:
    drafters that copy have their whole guesses accepted."""
    steady = [*PROMPT, *naive_stream(ToyTarget(), PROMPT, 90)]
    return steady[:70], steady[70:]


def drafter_named(name: str, story: Sequence[int], seed: int = 0) -> Drafter:
    return (
        toy_drafter(name) if name in METHOD_VARIANTS else hostile_drafters(story, 16, seed)[name]()
    )


@pytest.mark.parametrize("name", METHOD_VARIANTS)
def test_every_method_keeps_the_contract_of_drafters(name: str) -> None:
    check_drafter(lambda: toy_drafter(name), tokens=8)


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", HOSTILE)
def test_the_text_is_that_of_plain_decoding(name: str, temperature: float, budget: int) -> None:
    stream = plain(temperature)
    output, rounds, reason = generate(
        ToyTarget(),
        drafter_named(name, [*PROMPT, *stream]),
        PROMPT,
        LENGTH,
        sampler=sampler_at(temperature),
        references=[stream[5:20], [9, 9, 2]],
        budget=budget,
    )
    assert output == stream[:LENGTH]
    assert reason == "length"
    if budget == 0:
        assert len(rounds) == LENGTH


@pytest.mark.parametrize(
    ("temperature", "curve"),
    [(0.0, CostCurve((CostPoint(1, 0, 1.0), CostPoint(64, 0, 1.5)))), (0.8, None)],
)
@pytest.mark.parametrize("name", ALL)
def test_a_planned_text_is_that_of_plain_decoding(
    name: str, temperature: float, curve: CostCurve | None
) -> None:
    """Two texts after one another, so that what was learned plays its part."""
    stream, planner, target = plain(temperature), TreePlanner(curve), ToyTarget()
    for limit in (LENGTH, 12):
        output, _, reason = generate(
            target,
            drafter_named(name, [*PROMPT, *stream]),
            PROMPT,
            limit,
            sampler=sampler_at(temperature),
            references=[stream[5:20], [9, 9, 2]],
            budget=planner,
        )
        assert (output, reason) == (stream[:limit], "length")


@pytest.mark.parametrize("name", ["oracle", "oracle among siblings", "oracle among twins"])
def test_an_oracle_needs_few_rounds(name: str) -> None:
    """Right guesses must be accepted, or the equality of streams would prove nothing."""
    stream = plain(1.0)
    drafter = drafter_named(name, [*PROMPT, *stream])
    _, rounds, _ = generate(ToyTarget(), drafter, PROMPT, LENGTH, sampler=sampler_at(1.0))
    assert len(rounds) <= 6
    if name == "oracle":
        assert len(rounds) == 1


@pytest.mark.parametrize("name", COPYING)
def test_a_copying_drafter_has_whole_paths_accepted_in_a_text_that_repeats_itself(
    name: str,
) -> None:
    prompt, _ = habit()
    _, rounds, _ = generate(ToyTarget(), toy_drafter(name), prompt, 20)
    assert max(len(round.path.nodes) for round in rounds) >= 5
    assert len(rounds) <= 6


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_ends_with_its_eos_id_wherever_it_comes(name: str) -> None:
    """EOS at every offset of accepted paths, with one id and with several."""
    prompt, stream = habit()
    for offset in range(20):
        for eos_ids in ({stream[offset]}, {stream[offset], stream[(offset + 7) % 20], 15}):
            drafter = drafter_named(name, [*prompt, *stream])
            heard = Counting()
            output, _, reason = generate(
                ToyTarget(), drafter, prompt, 20, eos_ids=eos_ids, conditions=[heard]
            )
            expected = cut(stream, eos_ids, 20)
            assert output == expected == heard.heard
            assert reason == "eos"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SOME)
def test_a_text_ends_where_a_condition_says_so(name: str, temperature: float) -> None:
    prompt, stream = habit() if temperature == 0 else (PROMPT, plain(1.0))
    for count in range(1, 20, 3):
        drafter = drafter_named(name, [*prompt, *stream])
        stop, listener = Counting(count), Counting()
        output, _, reason = generate(
            ToyTarget(),
            drafter,
            prompt,
            20,
            sampler=sampler_at(temperature),
            conditions=[stop, listener],
        )
        assert output == stop.heard == listener.heard == stream[:count]
        assert reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_has_exactly_the_tokens_that_its_limit_allows(name: str, temperature: float) -> None:
    prompt, stream = habit() if temperature == 0 else (PROMPT, plain(1.0))
    for limit in range(1, 20):
        drafter = drafter_named(name, [*prompt, *stream])
        output, rounds, reason = generate(
            ToyTarget(), drafter, prompt, limit, sampler=sampler_at(temperature)
        )
        assert output == stream[:limit]
        assert reason == "length"
        # No guess that could not be accepted any more was given to the target.
        said = 0
        for round in rounds:
            assert max(round.tree.depths, default=0) <= limit - said - 1
            said += len(round.path.tokens)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_ends_with_the_context_of_the_model(name: str) -> None:
    prompt, stream = habit()
    for room in range(1, 12):
        target = ToyTarget(max_context=len(prompt) + room)
        drafter = drafter_named(name, [*prompt, *stream])
        text = list(prompt)
        stopping = Stopping(1000)
        for round in decode(target, [generation := Generation(prompt, drafter, stopping)]):
            # The deepest node's position is one that the model has.
            assert len(text) - 1 + max(round.tree.depths, default=0) < target.max_context
            text.extend(round.path.tokens)
        assert generation.output == stream[:room]
        assert stopping.reason == "length"


@pytest.mark.parametrize("over", [0, 1, 30])
def test_a_prompt_that_fills_the_context_is_refused(over: int) -> None:
    target = ToyTarget(max_context=10)
    generation = Generation([1] * (10 + over), toy_drafter("anpd"), Stopping(5))
    with pytest.raises(UsageError, match=f"prompt has {10 + over} tokens .* context is 10"):
        next(iter(decode(target, [generation])))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        Generation([], toy_drafter("anpd"), Stopping(5))


def test_no_texts_are_no_rounds() -> None:
    assert list(decode(ToyTarget(), [])) == []


class Whole(Drafter):
    """A drafter whose trees must not be cut."""

    sized_by: SizedBy = "whole"

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.requires = drafter, drafter.requires
        self.proposed: list[Tree] = []

    def start(self, text: TextStart) -> None:
        self.drafter.start(text)

    def observe(self, round: Round) -> None:
        self.drafter.observe(round)

    def propose(self, budget: int) -> Tree:
        self.proposed.append(self.drafter.propose(budget))
        return self.proposed[-1]


@pytest.mark.parametrize("name", ["random trees with virtual ids", "oracle among virtual ids"])
def test_a_plan_takes_trees_whole_or_not_at_all(name: str) -> None:
    stream = plain(1.0)
    drafter = Whole(drafter_named(name, [*PROMPT, *stream]))
    output, rounds, _ = generate(
        ToyTarget(), drafter, PROMPT, 60, sampler=sampler_at(1.0), budget=TreePlanner()
    )
    assert output == stream[:60]
    # What lies beyond the end of the text is clipped as ever.
    for round in rounds:
        deepest = max(round.tree.depths, default=0)
        assert not len(round.tree) or any(
            round.tree.tokens == tree.clip(deepest).tokens for tree in drafter.proposed
        )


class Job:
    """One text of a ragged batch, and what plain decoding says to it."""

    def __init__(self, rng: random.Random, target: ToyTarget, name: str) -> None:
        self.prompt = [rng.randrange(16) for _ in range(rng.randint(1, 30))]
        self.limit = rng.randint(1, 30)
        self.sampler = Sampler(
            seed=rng.randrange(-5, 1000),
            temperature=rng.choice([0.0, 0.7, 1.0]),
            top_k=rng.choice([None, 5]),
            repetition_penalty=rng.choice([None, 1.2]),
        )
        self.eos_ids = rng.sample(range(16), rng.choice([0, 0, 1, 3]))
        stream = naive_stream(target, self.prompt, self.limit, self.sampler)
        self.expected = cut(stream, self.eos_ids)
        self.drafter = drafter_named(name, [*self.prompt, *stream], rng.randrange(1000))
        self.references = [stream[2:12]] if rng.random() < 0.5 else []

    def generation(self) -> Generation:
        stopping = Stopping(self.limit, self.eos_ids)
        return Generation(self.prompt, self.drafter, stopping, self.sampler, self.references)


@pytest.mark.parametrize("seed", range(40))
def test_the_texts_of_a_ragged_batch_are_those_that_each_has_alone(seed: int) -> None:
    rng = random.Random(seed)
    target = ToyTarget(seed=seed % 3)
    jobs = [Job(rng, target, rng.choice(ALL)) for _ in range(1 + seed % 5)]
    generations = [job.generation() for job in jobs]
    play(target, generations, budget=rng.choice([0, 1, 3, 16, 64, TreePlanner()]))
    for job, generation in zip(jobs, generations, strict=True):
        assert generation.output == job.expected
        ended = bool(job.expected) and job.expected[-1] in job.eos_ids
        assert generation.stopping.reason == ("eos" if ended else "length")


def test_one_drafter_object_in_two_texts_of_a_batch_is_confused_but_changes_nothing() -> None:
    for name in METHOD_VARIANTS:
        target, drafter = ToyTarget(), toy_drafter(name)
        prompts = [[1, 2, 3, 1, 2], [4, 4, 5, 4]]
        generations = [Generation(prompt, drafter, Stopping(25)) for prompt in prompts]
        for _ in decode(target, generations):
            pass
        for generation, prompt in zip(generations, prompts, strict=True):
            assert generation.output == naive_stream(target, prompt, 25)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SOME)
def test_a_consumer_may_stop_between_any_two_rounds_and_go_on(
    name: str, temperature: float
) -> None:
    """Goes on with a new generation over the same context, drafter and target."""
    prompt, stream = habit() if temperature == 0 else (PROMPT, plain(1.0))
    target = ToyTarget()
    for stop_after in range(1, 9):
        drafter = drafter_named(name, [*prompt, *stream])
        sampler = sampler_at(temperature)
        first = Generation(prompt, drafter, Stopping(20), sampler)
        for count, _ in enumerate(decode(target, [first], budget=3), start=1):
            assert first.output == stream[: len(first.output)]
            if count == stop_after:
                break
        left = 20 - len(first.output)
        if left == 0:
            continue
        second = Generation(first.context, drafter, Stopping(left), sampler)
        play(target, [second])
        assert [*first.output, *second.output] == stream[:20]


@pytest.mark.parametrize("name", METHOD_VARIANTS)
def test_the_same_generation_may_be_decoded_further(name: str) -> None:
    prompt, stream = habit()
    target = ToyTarget(max_context=len(prompt) + 18)
    generation = Generation(prompt, toy_drafter(name), Stopping(20))
    while not generation.finished:
        for _ in decode(target, [generation], budget=2):
            break
    assert generation.output == stream[:18]


@pytest.mark.parametrize("stop_after", range(1, 12))
def test_a_consumer_may_stop_in_the_middle_of_a_batch(stop_after: int) -> None:
    """Rounds of one pass are yielded one by one, but all of them have happened."""
    rng = random.Random(stop_after)
    target = ToyTarget()
    jobs = [Job(rng, target, name) for name in ("oracle", "anpd", "random trees")]
    first = [job.generation() for job in jobs]
    for count, _ in enumerate(decode(target, first, budget=2), start=1):
        if count == stop_after:
            break
    second = []
    for job, generation in zip(jobs, first, strict=True):
        assert generation.output == job.expected[: len(generation.output)]
        if not generation.finished:
            left = Stopping(job.limit - len(generation.output), job.eos_ids)
            second.append(
                (generation, Generation(generation.context, job.drafter, left, job.sampler))
            )
    play(target, [later for _, later in second])
    said = {id(earlier): later.output for earlier, later in second}
    for job, generation in zip(jobs, first, strict=True):
        assert [*generation.output, *said.get(id(generation), [])] == job.expected


def test_a_reference_that_holds_the_answer_saves_rounds() -> None:
    stream = plain(1.0)
    rounds = {
        bool(references): len(
            generate(
                ToyTarget(),
                toy_drafter("llma"),
                PROMPT,
                LENGTH,
                sampler=sampler_at(1.0),
                references=references,
            )[1]
        )
        for references in ([], [stream])
    }
    assert rounds[True] < rounds[False] / 2


@pytest.mark.parametrize("name", ALL)
def test_the_same_call_twice_plays_the_same_rounds(name: str) -> None:
    def rounds() -> list[Round]:
        drafter = drafter_named(name, [*PROMPT, *plain(1.0)], seed=5)
        return generate(ToyTarget(), drafter, PROMPT, 20, sampler=sampler_at(1.0), budget=9)[1]

    assert as_walked(rounds()) == as_walked(rounds())


def test_seeds_make_texts_and_drafters_do_not() -> None:
    streams = {tuple(naive_stream(ToyTarget(), PROMPT, 20, Sampler(s, 1.0))) for s in range(20)}
    assert len(streams) == 20


def test_eos_of_one_text_leaves_the_others_of_the_batch_alone() -> None:
    """Texts leave the batch one by one; the remaining ones keep what they have."""
    target, stream = ToyTarget(), plain(1.0)
    stops: list[Sequence[Condition]] = [[Counting(count)] for count in (1, 2, 5, 9, 20)]
    story = [*PROMPT, *stream]
    generations = [
        Generation(PROMPT, Oracle(story, siblings=1), Stopping(30, (), stop), sampler_at(1.0))
        for stop in stops
    ]
    play(target, generations, budget=4)
    assert [g.output for g in generations] == [stream[:count] for count in (1, 2, 5, 9, 20)]


class Needy(RandomTrees):
    """Needs what no target offers."""

    requires = frozenset({"telepathy", "virtual_tokens"})


def test_a_drafter_that_needs_what_the_target_lacks_is_refused_in_a_sentence() -> None:
    generation = Generation(PROMPT, Needy(), Stopping(5))
    with pytest.raises(UsageError, match=r"^Needy needs telepathy, which ToyTarget does not offer"):
        next(iter(decode(ToyTarget(), [generation])))


@pytest.mark.parametrize("budget", [-1, -7])
@pytest.mark.parametrize("name", METHOD_VARIANTS)
def test_a_budget_below_zero_is_no_guess(name: str, budget: int) -> None:
    """A negative count in a slice means "from the end": a whole text would be proposed."""
    prompt, stream = habit()
    drafter = toy_drafter(name)
    drafter.start(TextStart(prompt))
    assert drafter.propose(budget) == Tree()
    assert generate(ToyTarget(), toy_drafter(name), prompt, 10)[0] == stream[:10]
