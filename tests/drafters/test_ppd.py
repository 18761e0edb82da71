"""Parallel prompt decoding where the rows of prompt tokens say what the test wants them to."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import generate, naive_stream
from tests.planning.tables import VICUNA
from tests.prompt_parts import TOY, falling, host_on, random_parts, saved_parts, toy_drafter
from tests.tiny_models import some_prompt, tiny_model

from paceline.drafters import Host, Ppd, PpdSettings, check_method, make_drafter, parts
from paceline.errors import ModelError, UsageError
from paceline.planning.acceptance import AcceptanceTable
from paceline.planning.cost_curve import CostCurve, CostPoint
from paceline.planning.ppd import adaptive_tree
from paceline.planning.ppd.tree_search import build_tree
from paceline.planning.sizing import MOST_WHOLE
from paceline.protocols import Target
from paceline.records import Path as Accepted
from paceline.records import Round, TextStart
from paceline.sampling import Sampler
from paceline.stats import Stats
from paceline.targets.causal_lm import CausalLMTarget
from paceline.targets.toy import ToyTarget
from paceline.tree import EMPTY, ROOT, Tree

Rank = Callable[[int, int], int]
"""Position of a token, distance from which it is guessed -> its rank there; 99 for not at all."""


class Clairvoyant(ToyTarget):
    """A toy whose prompt tokens know what it will say, and put it at the rank they are told."""

    def __init__(self, story: Sequence[int], prompt_tokens: int, epts: int, rank: Rank) -> None:
        super().__init__(vocab_size=32, order=3)
        self.story = list(story)
        self.prompt_tokens, self.epts, self.rank = prompt_tokens, epts, rank

    def _score_one(self, slot: Any, tree: Tree) -> torch.Tensor:
        context = [*slot.cached, *slot.pending]
        rows = super()._score_one(slot, tree)
        for node, token in enumerate(tree.tokens):
            if token >= self.vocab_size:
                number = token - self.vocab_size
                distance, ept = number // self.epts + 1, number % self.epts
                # Its own place is the depth's; it guesses the token after that.
                place = len(context) + tree.depths[node]
                rows[node + 1] = self._guess(place, distance, ept)
        return rows

    def _guess(self, place: int, distance: int, ept: int) -> torch.Tensor:
        """Each EPT alone puts noise of its own first; only their mean says what is meant."""
        truth = self.story[place] if place < len(self.story) else 0
        rank = self.rank(place, distance)
        others = [token for token in range(self.vocab_size) if token != truth]
        order = [*others[:rank], truth, *others[rank:]] if rank < 10 else others
        row = torch.full((self.vocab_size,), -50.0)
        row[order[:12]] = 24.0 - torch.arange(12)
        sign = {0: 1.0, 1: -1.0}.get(ept, 0.0) if self.epts > 1 else 0.0
        noise = torch.randn(self.vocab_size, generator=torch.Generator().manual_seed(place))
        return row + sign * 100 * noise


PROMPT = [3, 1, 4, 1, 5]


def story(count: int) -> list[int]:
    return [*PROMPT, *naive_stream(ToyTarget(vocab_size=32, order=3), PROMPT, count)]


def played(
    prompt_tokens: int,
    epts: int,
    size: int,
    rank: Rank,
    count: int,
    table: AcceptanceTable | None = None,
) -> tuple[list[Round], Clairvoyant]:
    text = story(count + prompt_tokens + 1)
    target = Clairvoyant(text, prompt_tokens, epts, rank)
    folder = saved_parts(prompt_tokens, epts, vocab=32, table=table)
    drafter = Ppd(host_on(target), parts=str(folder), size=size)
    output, rounds, _ = generate(target, drafter, PROMPT, count, budget=256)
    assert output == text[len(PROMPT) :][:count]
    return rounds, target


def test_torchs_default_dtype_is_the_users() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        rounds, _ = played(2, 2, 20, lambda place, distance: 0, 30)
    finally:
        torch.set_default_dtype(torch.float32)
    assert max(len(round.path.nodes) for round in rounds) >= 2


@pytest.mark.parametrize("epts", [1, 2, 3])
@pytest.mark.parametrize("prompt_tokens", [1, 2, 3, 4])
def test_right_guesses_are_accepted_to_the_last(prompt_tokens: int, epts: int) -> None:
    """The first round only has prompt tokens; all others accept as deep as their state allows,
    and the next state is what stood after the last accepted guess."""
    rounds, _ = played(prompt_tokens, epts, 60, lambda place, distance: 0, 60)
    gained = [len(round.path.tokens) for round in rounds]
    assert gained[0] == 1
    tree = build_tree(falling(prompt_tokens), 60, epts=epts)
    state = prompt_tokens
    for round in rounds[1:-6]:  # the last ones are cut short by the limit
        own = tree.states[state]
        assert len(round.tree) == own.width - 1
        # The path of likeliest guesses, as far as the tree has it.
        best = [node for node, path in enumerate(own.candidates.paths) if not any(path)]
        assert len(round.path.nodes) == len(best) >= min(state, 2)
        state = own.prompts[best[-1]]
    assert sum(gained) == 60


def test_guesses_are_ranks_of_the_row_for_their_distance() -> None:
    """The token at distance 1 always comes second, that at distance 2 third."""
    rounds, target = played(2, 1, 40, lambda place, distance: distance, 40)
    tree = build_tree(falling(2), 40)
    assert (1, 2) in tree.states[2].candidates.paths
    deep = [round for round in rounds[1:-1] if len(round.path.nodes) == 2]
    assert len(deep) >= 5
    length = len(PROMPT)
    for round in rounds:
        for node, token in enumerate(round.tree.tokens):
            depth = round.tree.depths[node]
            if token < target.vocab_size and length + depth - 1 < len(target.story):
                truth = target.story[length + depth - 1]
                siblings = [
                    other
                    for other, parent in enumerate(round.tree.parents)
                    if parent == round.tree.parents[node]
                ]
                guessed = [round.tree.tokens[other] for other in siblings]
                assert len(set(guessed)) == len(guessed)
                if depth == 1:
                    assert truth in guessed
        length += len(round.path.tokens)


@pytest.mark.parametrize(("size", "epts"), [(12, 1), (60, 1), (60, 2)])
def test_simulated_hits_gain_what_the_tree_promises(size: int, epts: int) -> None:
    """Ranks are drawn from the table; the share of tokens per round is the Markov chain's."""
    rng = random.Random(7)
    drawn: dict[tuple[int, int], int] = {}

    def rank(place: int, distance: int) -> int:
        """One and the same however often it is asked for at a place from a distance. Places of
        different distance are independent, as the tree takes them to be."""
        if (place, distance) not in drawn:
            shares = VICUNA.rows[distance - 1]
            (drawn[place, distance],) = rng.choices([*range(10), 99], [*shares, 1 - sum(shares)])
        return drawn[place, distance]

    rounds, _ = played(3, epts, size, rank, 600, VICUNA)
    tree = build_tree(VICUNA, size, epts=epts)
    gained = [len(round.path.tokens) for round in rounds[1:-1]]
    mean = sum(gained) / len(gained)
    spread = math.sqrt(sum((each - mean) ** 2 for each in gained) / len(gained) / len(gained))
    # The table is refined meanwhile, by what it says already.
    assert mean == pytest.approx(tree.tokens_per_pass, abs=4 * spread)


def test_far_guesses_are_judged_however_the_near_ones_turn_out() -> None:
    """Else distance 2 would be judged only where distance 1 was right."""
    seen: list[tuple[int, int | None]] = []
    target = Clairvoyant(story(80), 2, 1, lambda place, distance: 99 if distance == 1 else 0)
    drafter = Ppd(host_on(target), parts=str(saved_parts(2, 1, vocab=32)), size=12)
    drafter._guesses._tell = lambda distance, rank, shares: seen.append((distance, rank))
    _, rounds, _ = generate(target, drafter, PROMPT, 40)
    assert len(rounds) == 40  # nothing is ever accepted
    assert seen.count((1, None)) == len(rounds) - 1
    assert seen.count((2, 0)) >= len(rounds) - 3
    assert set(seen) == {(1, None), (2, 0)}


def test_learned_weights_count() -> None:
    """All the weight on the second of two embeddings: the first one may say what it likes."""
    made = random_parts(1, 2, vocab=16, learned_weights=True)
    logits = torch.zeros(3, 16)
    logits[1, 4], logits[2, 9] = 50.0, 5.0
    round = Round(0, Tree((16, 17), (ROOT, ROOT)), logits, Accepted((), (1,)))
    for weights, best in (([0.5, 0.5], 4), ([0.0, 1.0], 9), ([-1.0, 1.0], 9)):
        folder = Path(str(saved_parts(1, 2))).with_name(f"weights-{weights[0]}-{best}")
        tensors = {**made.tensors, "ept_weights": torch.tensor([weights])}
        replace(made, tensors=tensors).save_pretrained(folder)
        drafter = Ppd(host_on(ToyTarget()), parts=str(folder))
        drafter.observe(round)
        assert drafter._guesses.tokens[0][0] == best
    replace(made, tensors=made.tensors).save_pretrained(folder)
    with pytest.raises(ModelError, match="its ept_weights is missing"):
        Ppd(host_on(ToyTarget()), parts=str(folder))


def test_what_was_scored_counts_and_not_what_was_proposed() -> None:
    drafter = toy_drafter("ppd 3x2:size=20")
    assert isinstance(drafter, Ppd)
    drafter.start(TextStart([1, 2, 3]))
    whole = drafter.propose(64)
    assert len(whole) == 6 and set(whole.weights or ()) == {0.0}
    for tree, known in ((whole, 3), (whole.clip(2), 2), (whole.clip(1), 1), (EMPTY, 0)):
        drafter.observe(Round(0, tree, torch.randn(len(tree) + 1, 16), Accepted((), (5,))))
        assert len(drafter._guesses.tokens) == known
        tree = drafter.propose(64)
        guesses = [depth for depth, token in zip(tree.depths, tree.tokens) if token < 16]
        candidates = build_tree(falling(3), 20, epts=2).states[known].candidates
        assert guesses == [len(path) for path in candidates.paths]
    # Half of an ensemble is none.
    half = Tree(whole.tokens[:3], whole.parents[:3])
    drafter.observe(Round(0, half, torch.randn(4, 16), Accepted((), (5,))))
    assert drafter._guesses.tokens == []


def test_weights_are_the_chances_of_guesses() -> None:
    drafter = toy_drafter("ppd 2x1:size=12")
    drafter.start(TextStart([1]))
    drafter.observe(Round(0, drafter.propose(64), torch.randn(3, 16), Accepted((), (5,))))
    tree = drafter.propose(64)
    expected = build_tree(falling(2), 12).states[2].candidates.expected
    assert sum(tree.weights or ()) == pytest.approx(expected)
    assert drafter.propose(64) == tree  # asking changes nothing


def test_its_tree_is_there_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Ppd(host_on(ToyTarget()), parts=str(saved_parts(2, 1, vocab=32)), size=105)
    drafter.start(TextStart([1]))

    def searched(*args: object, **settings: object) -> None:
        raise AssertionError("a tree was searched for in a round")

    monkeypatch.setattr(adaptive_tree, "build_tree", searched)
    assert len(drafter.propose(MOST_WHOLE)) > 0


class Doubtful(Clairvoyant):
    """Its prompt tokens are sure of the token that it will say, or of one that it will not, and say
    how sure."""

    def __init__(self, story: Sequence[int], knows: Callable[[int], bool]) -> None:
        super().__init__(story, 1, 1, lambda place, distance: 0 if knows(place) else 99)
        self.knows = knows

    def _guess(self, place: int, distance: int, ept: int) -> torch.Tensor:
        row = super()._guess(place, distance, ept)
        return row if self.knows(place) else torch.zeros_like(row)


def test_rounds_are_as_wide_as_their_guesses_are_sure() -> None:
    """Every other stretch of ten tokens is known; rows cost enough that the others are not tried."""
    target = Doubtful(story(120), lambda place: place // 10 % 2 == 0)
    curve = CostCurve((CostPoint(1, 0, 1.0), CostPoint(2, 0, 1.1), CostPoint(64, 0, 7.0)))
    parts = saved_parts(1, 1, vocab=32)
    drafter = Ppd(Host(target, TOY, curve=curve), parts=str(parts))
    output, rounds, _ = generate(target, drafter, PROMPT, 100, budget=63)
    assert output == target.story[len(PROMPT) :][:100]
    widths: dict[bool, list[int]] = {True: [], False: []}
    length = len(PROMPT)
    for round in rounds:
        if round.tree.tokens and length > 60:  # by then it has learned what shares are worth
            guesses = sum(token < 32 for token in round.tree.tokens)
            widths[target.knows(length)].append(guesses)
        length += len(round.path.tokens)
    assert sum(widths[True]) / len(widths[True]) > 0.7
    assert max(widths[False]) == 0


def test_a_table_or_a_size_gives_all_rounds_of_a_state_one_tree() -> None:
    for settings in ("size=12", "shape=table,width=8", "shape=static,size=12"):
        drafter = toy_drafter(f"ppd 2x1:{settings}")
        drafter.start(TextStart([1]))
        shapes = set()
        for seed in range(4):
            logits = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed))
            first = Tree((16, 17), (ROOT, 0))
            drafter.observe(Round(0, first, logits, Accepted((), (5,))))
            shapes.add((drafter.propose(64).parents, drafter.propose(64).weights))
        assert len(shapes) == 1


@pytest.mark.parametrize("width", [4, 5, 8])
def test_no_round_is_wider_than_it_may_be(width: int) -> None:
    drafter = toy_drafter(f"ppd 3x1:width={width}")
    drafter.start(TextStart([1]))
    for seed in range(6):
        tree = drafter.propose(64)
        assert len(tree) < width
        logits = torch.randn(1 + len(tree), 16, generator=torch.Generator().manual_seed(seed))
        drafter.observe(Round(0, tree, 9 * logits, Accepted((), (5,))))


def test_where_tokens_are_drawn_guesses_come_in_the_order_of_the_draw() -> None:
    """The guesser sees what the target sees: its first guess is what the target draws."""
    logits = 4 * torch.randn(400, generator=torch.Generator().manual_seed(3))
    sampler = Sampler(seed=5, temperature=0.9)
    drafter = Ppd(host_on(ToyTarget(vocab_size=400)), parts=str(saved_parts(2, 1, vocab=400)))
    hits = 0
    for length in range(1, 60):
        drafter.start(TextStart([1] * length, sampler=sampler))
        tree = Tree((400, 401), (ROOT, 0))
        drafter.observe(Round(0, tree, torch.stack([logits] * 3), Accepted((), (7,))))
        for ahead, guesses in enumerate(drafter._guesses.tokens):
            drawn = sampler.draw(logits, [1] * (length + 1 + ahead))
            hits += guesses[0] == drawn
        assert all(sum(shares) <= 1.0001 for shares in drafter._guesses.shares)
    # Of tokens that are not among the likeliest the noise was not looked at.
    assert hits > 100  # of 118; what is not among the likeliest was not looked at


def test_prompt_tokens_do_not_count_as_guesses() -> None:
    rounds, target = played(2, 2, 30, lambda place, distance: 0, 20)
    stats = Stats()
    stats.add(rounds[0])
    assert len(rounds[0].tree) == 4 and (stats.drafted, stats.triggers) == (0, 0)
    stats.add(rounds[1])
    guesses = sum(token < target.vocab_size for token in rounds[1].tree.tokens)
    assert stats.drafted == guesses < len(rounds[1].tree) and max(stats.depth_histogram) == 2


# ---- what cannot be ----


def refused(folder: Path | str, host: Host | None = None, **settings: int) -> str:
    with pytest.raises((ModelError, UsageError)) as caught:
        make_drafter("ppd", host or host_on(ToyTarget()), parts=str(folder), **settings)
    return str(caught.value)


def test_without_parts_for_the_model_the_way_out_is_named() -> None:
    said = (
        "there are no prompt tokens for this model: train some with 'paceline train ppd --model M'"
    )
    assert said in refused("", host_on(ToyTarget(), "nobody's"))


def test_shipped_parts_are_found_by_their_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        record = {"run": {"base": {"fingerprint": name}}}
        replace(random_parts(fingerprint=name), record=record).save_pretrained(tmp_path / name)
    monkeypatch.setattr(parts, "shipped", lambda method: tmp_path)
    assert isinstance(make_drafter("ppd", host_on(ToyTarget(), "two")), Ppd)
    assert "no prompt tokens" in refused("", host_on(ToyTarget(), "three"))


def test_parts_of_another_model_are_refused() -> None:
    assert "were trained for a test's model (toy), not for this model (other)" in refused(
        saved_parts(), host_on(ToyTarget(), "other")
    )


@pytest.mark.parametrize(
    "config", [{"mask": "decoder"}, {"prefix_tokens": 2}, {"head": "small"}, {"exits": 3}]
)
def test_extensions_for_the_study_are_refused(config: dict[str, object]) -> None:
    folder = saved_parts(2, 2, **config)
    assert "only for the study" in refused(folder)
    with pytest.raises(ModelError, match="only for the study"):
        check_method(f"ppd:parts={folder}")


def test_damaged_folders_are_refused_before_there_is_a_model(tmp_path: Path) -> None:
    good = random_parts()
    good.save_pretrained(tmp_path)
    check_method(f"ppd:parts={tmp_path}")
    damages: dict[str, tuple[str, Callable[[Path], object]]] = {
        "cannot read the prompt tokens": (
            "model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:50]),
        ),
        "does not describe prompt tokens": ("config.json", lambda path: path.write_text("{}")),
        "is not an acceptance table": ("acceptance.json", lambda path: path.write_text("{}")),
        "cannot read": ("training.json", lambda path: path.unlink()),
    }  # fmt: skip
    for place, (said, (name, damage)) in enumerate(damages.items()):
        folder = tmp_path / str(place)
        good.save_pretrained(folder)
        damage(folder / name)
        with pytest.raises(ModelError, match=said):
            check_method("ppd", parts=str(folder))


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    for place, table in enumerate((falling(2), falling(3, ranks=17))):
        folder = tmp_path / str(place)
        random_parts(3, table=table).save_pretrained(folder)
        assert "acceptance table of the prompt tokens" in refused(folder)


def test_parts_without_a_table_begin_with_a_guess(tmp_path: Path) -> None:
    replace(random_parts(2), acceptance=None).save_pretrained(tmp_path)
    drafter = make_drafter(f"ppd:parts={tmp_path}", host_on(ToyTarget()))
    assert generate(ToyTarget(), drafter, [1, 2], 20)[0] == naive_stream(ToyTarget(), [1, 2], 20)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("ppd:size=1", "size must be a whole number >= 2, got 1"),
        ("ppd:size=-3", "size must be a whole number >= 2, got -3"),
        ("ppd:sise=3", "has no setting 'sise' (did you mean size?); it has: parts, size"),
        ("ppd:host=3", "has no setting 'host'"),
        ("ppd:parts=/nowhere", "there is no folder /nowhere with prompt tokens: check the path"),
        ("ppd:parts=nowhere", "there is no folder nowhere with prompt tokens"),
        ("ppd:parts=~nobody-here/parts/x", "there is no folder ~nobody-here/parts/x with"),
        ("ppd:parts=" + 400 * "long", "with prompt tokens: check the path"),
    ],
)
def test_settings_are_checked_without_a_model(method: str, said: str) -> None:
    with pytest.raises((UsageError, ModelError)) as caught:
        check_method(method)
    assert said in str(caught.value)


def test_a_size_without_room_for_an_ensemble_is_refused() -> None:
    assert "size must be at least 6" in refused(saved_parts(2, 5), size=5)
    assert "size must be at least 7" in refused(saved_parts(2, 3), size=6, shape="static")


def test_a_width_without_room_for_a_tree_is_refused() -> None:
    assert "width must be at least 4" in refused(saved_parts(3), width=3)
    assert "width must be at least 8" in refused(saved_parts(3), width=7, shape="static")


def test_settings_from_python_are_checked_too() -> None:
    with pytest.raises(UsageError, match="shape must be one of confidence, table, static"):
        PpdSettings(shape="tabel")  # type: ignore[arg-type]


def test_a_model_is_needed() -> None:
    check_method("ppd:size=30")
    with pytest.raises(UsageError, match="works only for a given model"):
        make_drafter("ppd:size=30")


class Deaf(ToyTarget):
    capabilities = frozenset()
    add_virtual_tokens = Target.add_virtual_tokens


def test_a_target_without_virtual_tokens_is_refused() -> None:
    assert "Deaf has no virtual tokens" in refused(saved_parts(), Host(Deaf(), TOY))


def test_parts_come_from_the_hub_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repo: str, allow_patterns: list[str]) -> str:
        asked.append(repo)
        if repo == "someone/gone":
            raise OSError("401 Client Error\nmore")
        return str(saved_parts())

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    check_method("ppd:parts=someone/parts")
    assert asked == []
    for _ in range(2):  # as two texts side by side have it
        assert isinstance(make_drafter("ppd:parts=someone/parts", host_on(ToyTarget())), Ppd)
    assert asked == ["someone/parts"]
    assert refused("someone/gone").endswith("cannot be fetched: 401 Client Error")


@pytest.mark.parametrize(
    ("method", "counts"), [("ppd:shape=table,", (4, 2)), ("auto:sources=ppd:", (2, 4))]
)
def test_parts_may_be_trained_again_while_a_model_is_used(
    method: str, counts: tuple[int, int], tmp_path: Path
) -> None:
    target = CausalLMTarget(tiny_model("llama"), check=False)
    host = host_on(target)
    prompt = some_prompt(5)
    plain = generate(target, make_drafter("plain"), prompt, 60)[0]
    for prompt_tokens in counts:
        random_parts(prompt_tokens, seed=prompt_tokens).save_pretrained(tmp_path)
        drafter = make_drafter(f"{method}parts={tmp_path}", host)
        assert generate(target, drafter, prompt, 60)[0] == plain


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    random_parts().save_pretrained(tmp_path)
    make_drafter("ppd", host_on(ToyTarget()), parts=str(tmp_path))
    config = tmp_path / "config.json"
    changed = json.loads(config.read_text()) | {
        "base_model": {**json.loads(config.read_text())["base_model"], "fingerprint": "x"}
    }
    config.write_text(json.dumps(changed))
    assert "not for this model" in refused(tmp_path)
