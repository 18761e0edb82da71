"""The drafter with a draft model: what it proposes, what it reads, when it stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.draft_hosts import Ticking, toy_host
from tests.helpers import RandomTrees, generate, naive_stream
from tests.one_pass import one_pass
from tests.tiny_models import some_prompt, tiny_model

from paceline.drafters import Host, Speculative, check_method, make_drafter, speculative
from paceline.drafters.anpd import Anpd
from paceline.drafters.draft_target import in_vocabulary
from paceline.drafters.draft_text import DraftText, Guess
from paceline.drafters.plain import Plain
from paceline.drafters.speculative import SpeculativeSettings, guess_tree
from paceline.errors import UsageError
from paceline.protocols import Drafter
from paceline.records import Path, Round, TargetInfo, TextStart
from paceline.sampling import GREEDY, Sampler
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, ROOT, Tree

PROMPT = [3, 1, 4, 1, 5]


def draft_text(target: Any = None, inner: str = "plain", others: int = 1) -> DraftText:
    host = Host(target or ToyTarget(), clock=Ticking(1e-3))
    return DraftText(host, make_drafter(inner, host), 16, others)


def say(text: DraftText, most: int) -> list[int]:
    text.guess(most)
    return [guess.token for guess in text.guesses]


def committed(*tokens: int) -> Round:
    return Round(
        0, Tree.chain(tokens[:-1]), torch.zeros(1, 16), Path(tuple(range(len(tokens) - 1)), tokens)
    )


# ---- the draft model's text ----


@pytest.mark.parametrize("sampler", [GREEDY, Sampler(seed=3, temperature=1.0)])
@pytest.mark.parametrize("inner", ["plain", "anpd"])
def test_guesses_are_what_the_draft_model_would_write(inner: str, sampler: Sampler) -> None:
    text = draft_text(inner=inner)
    text.start(TextStart(PROMPT, sampler=sampler))
    expected = naive_stream(ToyTarget(), PROMPT, 30, sampler)
    assert say(text, 5) == expected[:5]
    assert say(text, 3) == expected[:5]  # as many as there are already
    assert say(text, 9) == expected[:9]
    text.observe(expected[:4])
    assert say(text, 0) == expected[4:9]
    text.observe([*expected[4:9], expected[9]])
    assert say(text, 0) == []
    assert say(text, 4)[:4] == expected[10:14]  # a pass may bring more than is asked for


@pytest.mark.parametrize("inner", ["plain", "anpd", "pld", "speculative:draft=near"])
def test_a_rejection_is_corrected_from_where_it_is(inner: str) -> None:
    host = toy_host()
    text = DraftText(host, make_drafter(inner, host), 16, 1)
    text.start(TextStart(PROMPT))
    certain = list(PROMPT)
    for right in (0, 2, 5, 1, 0, 3):
        guesses = say(text, 5)
        assert len(guesses) >= 5  # a pass may bring more than is asked for
        assert guesses == naive_stream(ToyTarget(), certain, len(guesses))
        wrong = (naive_stream(ToyTarget(), certain, right + 1)[-1] + 1) % 16
        new = [*guesses[:right], wrong]
        text.observe(new)
        certain += new
        assert text.guesses == []


def test_what_was_not_asked_about_is_kept_as_it_is() -> None:
    target = ToyTarget()
    text = draft_text(target)
    text.start(TextStart(PROMPT))
    guesses = say(text, 6)
    passes = target.passes
    text.observe(guesses[:2])
    assert say(text, 4) == guesses[2:]
    assert target.passes == passes


def test_a_text_may_be_resumed_from_anywhere() -> None:
    target = ToyTarget()
    text = draft_text(target)
    text.start(TextStart(PROMPT))
    guesses = say(text, 6)
    text.resume(TextStart([*PROMPT, *guesses[:2]]))
    assert say(text, 0) == guesses[2:]
    for context in (
        [*PROMPT, *guesses],
        [*PROMPT, guesses[0], 9, 9],
        PROMPT[:3],
        [*PROMPT[:2], 0, 0, 0, 0],
        [15, 14],
        PROMPT,
    ):
        text.resume(TextStart(context))
        assert say(text, 4) == naive_stream(ToyTarget(), context, 4)


def test_chances_are_those_of_the_draft_models_distribution_when_greedy() -> None:
    target = ToyTarget()
    text = draft_text(target, others=3)
    text.start(TextStart(PROMPT))
    say(text, 1)
    shares = one_pass(target, PROMPT)[0].softmax(-1)
    values, tokens = shares.topk(4)
    (guess,) = text.guesses
    assert (guess.token, *(token for token, _ in guess.others)) == tuple(tokens.tolist())
    assert [guess.chance, *(chance for _, chance in guess.others)] == pytest.approx(values.tolist())


def test_runners_up_are_the_next_best_under_the_same_noise() -> None:
    """What is drawn where the first token is forbidden."""
    sampler = Sampler(seed=3, temperature=1.0, top_k=5)
    text = draft_text(others=2)
    text.start(TextStart(PROMPT, sampler=sampler))
    context = list(PROMPT)
    say(text, 6)
    for guess in text.guesses:
        row = one_pass(ToyTarget(), context)[0]
        scores = sampler.decide(row, context)
        ranked = scores.argsort(descending=True).tolist()
        assert [guess.token, *(token for token, _ in guess.others)] == ranked[:3]
        assert guess.chance >= guess.others[0][1] >= guess.others[1][1] > 0
        context.append(guess.token)


def test_a_temperature_next_to_nothing_is_as_sure_as_greedy_decoding() -> None:
    chances = []
    for temperature in (0.0, 1e-4):
        text = draft_text()
        text.start(TextStart(PROMPT, sampler=Sampler(temperature=temperature)))
        say(text, 4)
        chances.append([guess.chance for guess in text.guesses])
    assert chances[0] == pytest.approx(chances[1], abs=1e-3)


def test_a_row_without_any_token_that_can_be_said_is_no_error() -> None:
    class Mute(ToyTarget):
        def score(self, trees: Any, prefill: Any = None) -> Any:
            scores = super().score(trees, prefill)
            return {slot: torch.full_like(rows, -torch.inf) for slot, rows in scores.items()}

    for sampler in (GREEDY, Sampler(temperature=1.0, top_p=0.9)):
        drafter = Speculative(toy_host(), draft=Host(Mute()), length=3)
        output, _, _ = generate(ToyTarget(), drafter, PROMPT, 12, sampler=sampler)
        assert output == naive_stream(ToyTarget(), PROMPT, 12, sampler)


def test_only_new_tokens_are_read() -> None:
    """After a rejection, and after all was right, when two tokens are new."""
    model = tiny_model("llama", "sdpa", torch.float64)
    text = DraftText(Host(CausalLMTarget(model, check=False)), make_drafter("plain"), 64, 1)
    text.start(TextStart(some_prompt(40)))
    widths: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    guesses = say(text, 3)
    text.observe([*guesses, 5])
    say(text, 2)
    text.observe([(text.guesses[0].token + 1) % 64])
    say(text, 2)
    handle.remove()
    assert widths == [40, 1, 1, 2, 1, 1, 1]


def test_a_vocabulary_is_cut_and_filled_to_the_targets_size() -> None:
    toy = ToyTarget(vocab_size=20)
    assert in_vocabulary(toy, 20, 20) is toy
    for size, known in ((20, 17), (16, 16), (30, 30), (30, 12)):
        seen = in_vocabulary(toy, size, known)
        rows, own = (one_pass(each, [1, 2, 3], Tree.chain([4])) for each in (seen, toy))
        most = min(size, known, 20)
        assert rows.shape == (2, size)
        assert torch.equal(rows[:, :most], own[:, :most])
        assert bool((rows[:, most:] == -torch.inf).all())
        assert seen.vocab_size == 20  # where its virtual ids begin


# ---- the tree ----


def test_the_chain_comes_first_and_runners_up_hang_beside_it() -> None:
    guesses = [Guess(7, 0.8, ((3, 0.1), (2, 0.05))), Guess(4, 0.5, ((9, 0.2),)), Guess(1, 0.5)]
    tree = guess_tree(guesses)
    assert tree.tokens == (7, 4, 1, 3, 2, 9)
    assert tree.parents == (ROOT, 0, 1, ROOT, ROOT, 0)
    assert tree.weights == pytest.approx((0.8, 0.4, 0.2, 0.1, 0.05, 0.16))
    assert guess_tree([]) == Tree(weights=())


@pytest.mark.parametrize("budget", range(1, 9))
def test_a_small_budget_keeps_the_likeliest_nodes(budget: int) -> None:
    drafter = Speculative(toy_host(), draft="near", length=4, branches=2)
    drafter.start(TextStart(PROMPT))
    tree = drafter.propose(budget)
    assert len(tree) == min(budget, 3 * min(budget, 4))
    assert tree.weights is not None and tree.tokens[0] == naive_stream(ToyTarget(), PROMPT, 1)[0]
    whole = drafter.propose(64)
    assert whole.weights is not None
    assert min(tree.weights) >= sorted(whole.weights)[-budget - 2] or budget < 4


def test_asking_again_changes_nothing() -> None:
    """A planner may ask for several sizes in one round."""
    drafter = Speculative(toy_host(), draft="near", length=4)
    drafter.start(TextStart(PROMPT))
    first = drafter.propose(8)
    assert [drafter.propose(budget) for budget in (0, -1)] == [EMPTY, EMPTY]
    assert len(drafter.propose(3)) == 3
    assert drafter.propose(8) == first


def test_confidence_ends_a_draft_after_a_doubtful_guess() -> None:
    drafter = Speculative(toy_host(), draft="near", length=20, branches=0)
    drafter.start(TextStart(PROMPT))
    weights = drafter.propose(64).weights or ()
    chances = [one / before for before, one in zip((1.0, *weights), weights)]
    assert len(chances) == 20
    for confidence in (0.3, 0.6, 0.9):
        first = next((at for at, chance in enumerate(chances) if chance < confidence), 19)
        doubtful = Speculative(
            toy_host(), draft="near", length=20, confidence=confidence, branches=0
        )
        doubtful.start(TextStart(PROMPT))
        assert len(doubtful.propose(64)) == first + 1


def test_length_follows_the_clock() -> None:
    """The same models, passes of the draft model costly or cheap against those of the target."""
    lengths = {}
    for tick in (1e-6, 1e-2):
        host = replace(toy_host(), clock=Ticking(1e-3))
        small = Host(ToyTarget(sharpness=3.0), clock=Ticking(tick))
        drafter = Speculative(host, draft=small, branches=0)
        _, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 120)
        lengths[tick] = [len(round.tree) for round in rounds[1:-1]]
    assert max(lengths[1e-2][8:]) == 1
    assert max(lengths[1e-6]) > 8


def test_a_fixed_length_needs_no_clock() -> None:
    host = replace(toy_host(), clock=Ticking(0.0))
    drafter = Speculative(host, draft=Host(ToyTarget(), clock=Ticking(0.0)), length=3, branches=0)
    _, rounds, _ = generate(ToyTarget(), drafter, PROMPT, 24)
    assert {len(round.tree) for round in rounds} == {3}


# ---- settings ----

REFUSED = [
    ("speculative:draft=near,length=-1", "length must be a whole number >= 0, got -1"),
    ("speculative:draft=near,branches=-1", "branches must be a whole number >= 0, got -1"),
    ("speculative:draft=near,confidence=1.5", "confidence must be a number from 0 to 1, got 1.5"),
    ("speculative:draft=near,confidence=much", "confidence must be a number, got 'much'"),
    ("speculative:draft=near,inner=adnp", "unknown method 'adnp' (did you mean anpd?)"),
    ("speculative:draft=near,inner=(anpd:n=1)", "n must be a whole number >= 2, got 1"),
    (
        "speculative:draft=near,inner=anpd:n=4,k=10",
        "method speculative has no setting 'k' (put the settings of an inner method in brackets, "
        "as in inner=(anpd:n=4))",
    ),
    ("speculative:draft=near,inner=(anpd:n=4,k=10", "a bracket is not closed in "),
]


@pytest.mark.parametrize(("method", "said"), REFUSED)
def test_each_mistake_has_its_sentence_before_there_is_a_model(method: str, said: str) -> None:
    for act in (check_method, lambda method: make_drafter(method, toy_host())):
        with pytest.raises(UsageError) as caught:
            act(method)
        assert said in str(caught.value)


def test_a_method_within_a_method_gets_its_settings() -> None:
    check_method("speculative:draft=near,inner=(speculative:draft=far,inner=(anpd:n=4,k=10))")
    with pytest.raises(UsageError, match="works only for a given model"):
        make_drafter("speculative:draft=near")


def test_without_anybody_who_opens_models_the_reason_is_named() -> None:
    with pytest.raises(UsageError, match="this host cannot open the draft model 'near'"):
        Speculative(Host(ToyTarget()), draft="near")


def test_an_inner_drafter_that_the_draft_model_cannot_serve_is_refused() -> None:
    class Needy(RandomTrees):
        requires = frozenset({"telepathy"})

    with pytest.raises(UsageError, match="Needy needs telepathy"):
        Speculative(toy_host(), draft="near", inner=Needy())


def test_an_inner_drafter_may_be_an_object() -> None:
    drafter = Speculative(toy_host(), draft="near", inner=RandomTrees(seed=3))
    output, _, _ = generate(ToyTarget(), drafter, PROMPT, 30)
    assert output == naive_stream(ToyTarget(), PROMPT, 30)


def test_copies_draft_with_n_grams_inside_unless_told_otherwise() -> None:
    assert SpeculativeSettings(draft="self").inner_method(slow=False) == "anpd"
    assert SpeculativeSettings(draft="self", inner="plain").inner_method(slow=True) == "plain"
    assert SpeculativeSettings(draft="near").inner_method(slow=False) == "plain"
    assert SpeculativeSettings(draft=toy_host()).inner_method(slow=False) == "plain"


@pytest.mark.parametrize(
    ("megabytes", "device", "inner"),
    [(11, "cpu", Plain), (124, "cpu", Anpd), (124, "cuda", Plain)],
)
def test_large_draft_models_draft_with_n_grams_inside(
    megabytes: int, device: str, inner: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = TargetInfo("draft", device, weight_bytes=megabytes << 20)
    monkeypatch.setattr(ToyTarget, "describe", lambda target: size)
    made = list[type]()

    def make(method: str, host: Host) -> Drafter:
        made.append(type(drafter := make_drafter(method, host)))
        return drafter

    monkeypatch.setattr(speculative, "make_drafter", make)
    Speculative(toy_host(), draft="near")
    assert made == [inner]


def test_a_host_may_be_kept_by_hand() -> None:
    drafter = Speculative(toy_host(), draft=Host(ToyTarget()))
    drafter.start(TextStart(PROMPT))
    drafter.observe(committed(5, 6))
    drafter.resume(TextStart([*PROMPT, 5]))
    assert drafter.propose(2).tokens[0] == naive_stream(ToyTarget(), [*PROMPT, 5], 1)[0]


def test_an_inner_drafter_with_a_budget_never_rests() -> None:
    """Its plans would: a window that makes no right guess does not pay."""

    def widest(budget: int) -> list[int]:
        inner = "lookahead:window=3,level=3,guesses=2"
        drafter = Speculative(
            toy_host(), draft="stranger", inner=inner, length=4, branches=0, budget=budget
        )
        generate(ToyTarget(), drafter, PROMPT, 40, sampler=Sampler(temperature=1.0))
        return sorted(drafter.widths)

    assert widest(0)[0] == 1  # it rests, or its plan looks at what one row costs
    assert min(widest(8)) > 1 and max(widest(8)) == 9
    assert max(widest(5)) <= 6
