"""Prompt tokens at many points of one pass learn what they would learn one by one."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from tests.tiny_models import VOCAB, tiny_model
from torch.nn import functional as F

from paceline.drafters.prompt_tokens import PromptConfig
from paceline.errors import ModelError, UsageError
from paceline.training.examples import (
    Assignment,
    Example,
    assignments,
    choose_points,
    examples,
    fixed_assignments,
    split,
)
from paceline.training.learner import Learner
from paceline.training.losses import guess_loss
from paceline.training.ppd.evaluation import measure_accuracy
from paceline.training.ppd.insertion import Insertion, among_one_point
from paceline.training.ppd.prompt_model import PromptModel, initial_embeddings
from paceline.training.ppd.recipe import PromptRecipe
from paceline.training.ppd.teacher import Lesson, Teacher
from paceline.training.ppd.trainee import PromptTrainee
from paceline.training.shard import Answer

ARCHITECTURES = ["llama", "qwen2", "gemma3", "gpt2", "mistral"]


def texts(count: int, length: int = 24) -> list[list[int]]:
    """Random texts, each some tokens longer than the one before."""
    noise = torch.Generator().manual_seed(3)
    return [torch.randint(VOCAB, (length + 3 * i,), generator=noise).tolist() for i in range(count)]


def prompts_for(model: object, config: PromptConfig, spread: float = 1.0) -> PromptModel:
    """Prompt tokens that are far from one another."""
    noise = torch.Generator().manual_seed(1)
    embeddings = initial_embeddings(model, config, [5, 9, 11])
    return PromptModel(
        model, config, embeddings + spread * torch.randn(embeddings.shape, generator=noise)
    )


def alone(
    model: torch.nn.Module, prompts: PromptModel, text: list[int], point: int
) -> torch.Tensor:
    """[m, vocabulary]: the scores of prompt tokens behind the beginning of a text, one embedding
    after the other in a pass of its own, without masks and caches."""
    config, rows = prompts.config, []
    words = model.get_input_embeddings()(torch.tensor([text[: point + 1]]))
    for ept in range(config.epts):
        own = prompts.embeddings[:, ept][None]
        logits = model(inputs_embeds=torch.cat([words, own], dim=1), use_cache=False).logits
        rows.append(logits[0, point + 1 :])
    return torch.stack(rows).mean(dim=0)


@pytest.mark.parametrize("epts", [1, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_many_points_in_one_pass_are_many_passes(architecture: str, epts: int) -> None:
    model = tiny_model(architecture)
    config = PromptConfig(prompt_tokens=3, epts=epts)
    prompts = prompts_for(model, config)
    read = texts(2)
    points = [[2, 3, 17], [0, 9, 20]]
    lesson = Teacher(model).read(Assignment(read, points), 3)
    found = prompts(lesson)
    for text, own, logits in zip(read, points, found, strict=True):
        for point, at_point in zip(own, logits, strict=True):
            torch.testing.assert_close(
                at_point, alone(model, prompts, text, point), atol=2e-5, rtol=1e-4
            )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_the_teacher_says_what_the_model_says(architecture: str) -> None:
    model = tiny_model(architecture)
    read, points = texts(2), [[2, 17], [0, 20]]
    lesson = Teacher(model).read(Assignment(read, points), 2)
    for text, own, scores, tokens in zip(read, points, lesson.scores, lesson.tokens, strict=True):
        expected = model(torch.tensor([text]), use_cache=False).logits[0]
        for point, at_point, said in zip(own, scores, tokens, strict=True):
            torch.testing.assert_close(
                at_point, expected[point + 1 : point + 3], atol=2e-5, rtol=1e-4
            )
            assert said.tolist() == text[point + 2 : point + 4]


def test_the_masks_are_those_of_the_thesis() -> None:
    """Figures 4.6 to 4.8: two prompt tokens with two embeddings each."""

    def drawn(mask: str) -> list[str]:
        among = among_one_point(PromptConfig(prompt_tokens=2, epts=2, mask=mask))  # type: ignore[arg-type]
        return ["".join(".x"[seen] for seen in row) for row in among.tolist()]

    assert drawn("ensemble") == ["x...", ".x..", "x.x.", ".x.x"]
    assert drawn("decoder") == ["x...", "xx..", "xxx.", "xxxx"]
    assert drawn("encoder") == ["xx..", "xx..", "xxxx", "xxxx"]


def test_prefix_tokens_belong_to_one_prompt_token_each() -> None:
    config = PromptConfig(prompt_tokens=2, prefix_tokens=2)
    seen = Insertion(torch.tensor([[0, 1]]), config, length=3).visible()
    lines = ["".join(".x"[cell] for cell in row) for row in seen[0].tolist()]
    #                 prefix text rows
    assert lines == ["xx..x..x...", "..xxx..xx..", "xx..xx...x.", "..xxxx...xx"]


@torch.no_grad()
def test_what_an_extension_begins_with_changes_nothing() -> None:
    """A head that is a copy, a block that adds nothing, weights that average, one exit."""
    model = tiny_model("llama")
    lesson = Teacher(model).read(Assignment(texts(1), [[4, 9]]), 3)
    plain = prompts_for(model, PromptConfig(epts=2))(lesson)
    for config in (
        PromptConfig(epts=2, head="full"),
        PromptConfig(epts=2, head="small"),
        PromptConfig(epts=2, learned_weights=True),
    ):
        torch.testing.assert_close(prompts_for(model, config)(lesson), plain, atol=1e-5, rtol=1e-4)
    for config in (PromptConfig(epts=2, exits=2), PromptConfig(epts=2, prefix_tokens=1)):
        assert not torch.allclose(prompts_for(model, config)(lesson), plain, atol=1e-4)


def test_the_losses_are_those_of_the_formula() -> None:
    noise = torch.Generator().manual_seed(0)
    logits, scores = torch.randn(2, 2, 5, 3, 7, generator=noise)
    tokens = torch.randint(7, (2, 5, 3), generator=noise)
    student, teacher = logits.softmax(-1), scores.softmax(-1)
    divergence = (teacher * (teacher / student).log()).sum(-1).mean(dim=(0, 1))
    expected = (divergence * torch.tensor([1.0, 0.5, 0.25])).mean()
    torch.testing.assert_close(guess_loss(logits, tokens, scores, "distillation", 0.5), expected)
    surprise = -student.gather(-1, tokens[..., None]).log()[..., 0].mean(dim=(0, 1))
    expected = (surprise * torch.tensor([1.0, 0.8, 0.64])).mean()
    torch.testing.assert_close(guess_loss(logits, tokens, None, "labels", 0.8), expected)


CONFIGS = [
    PromptConfig(),
    PromptConfig(prompt_tokens=2, epts=3, learned_weights=True),
    PromptConfig(epts=2, mask="decoder"),
    PromptConfig(epts=2, mask="encoder"),
    PromptConfig(prefix_tokens=2),
    PromptConfig(head="small"),
    PromptConfig(head="full"),
    PromptConfig(exits=2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_kind_of_part_learns_and_the_model_does_not(config: PromptConfig) -> None:
    model = tiny_model("llama")
    before = {name: part.clone() for name, part in model.state_dict().items()}
    prompts = prompts_for(model, config)
    first = prompts.tensors()
    recipe = PromptRecipe(steps=30, learning_rate=0.05, head_rate=1.0)
    learner = Learner(PromptTrainee(prompts, recipe), recipe)
    lesson = Teacher(model).read(Assignment(texts(3), [[2, 9, 17]] * 3), config.prompt_tokens)
    losses = [learner.learn(lesson) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]
    assert learner.finished
    assert all(not torch.equal(part, first[name]) for name, part in prompts.tensors().items())
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())


def test_a_restored_learner_goes_on_exactly() -> None:
    model = tiny_model("llama")
    config, recipe = PromptConfig(epts=2, learned_weights=True), PromptRecipe(steps=8)
    lessons = [
        Teacher(model).read(Assignment(texts(2), [[i], [i + 1]]), 3) for i in range(recipe.steps)
    ]

    def learner() -> Learner[Lesson]:
        return Learner(PromptTrainee(prompts_for(model, config), recipe), recipe)

    whole, first, second = learner(), learner(), learner()
    for lesson in lessons:
        whole.learn(lesson)
    for lesson in lessons[:3]:
        first.learn(lesson)
    first.judge(2.0)
    second.restore(*first.state())
    assert (second.step, second.best_loss) == (3, 2.0)
    for lesson in lessons[3:]:
        second.learn(lesson)
    for name, part in whole.model.tensors().items():
        assert torch.equal(part, second.model.tensors()[name])


def test_the_rate_falls_as_a_cosine_and_training_stops_early() -> None:
    recipe = PromptRecipe(steps=100, learning_rate=1.0, patience=2)
    assert [recipe.rate(step) for step in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])
    trainee = PromptTrainee(prompts_for(tiny_model("llama"), PromptConfig()), recipe)
    learner = Learner(trainee, recipe)
    for loss in (3.0, 2.0, 1.9999, 2.5):
        assert not learner.finished
        learner.judge(loss)
    assert learner.finished and learner.best_loss == 2.0


def test_accuracy_is_counted_right() -> None:
    """A guesser whose k-th guess is known: the token that was said, plus the distance."""
    model = tiny_model("llama")

    class Guesser:
        config = PromptConfig(prompt_tokens=2)

        def __call__(self, lesson: Lesson) -> torch.Tensor:
            ranks = torch.arange(2)  # at distance i the truth has rank i
            best = F.one_hot(lesson.tokens, VOCAB).float() * 50
            others = torch.arange(VOCAB, 0, -1).float().expand_as(best)
            hidden = torch.zeros_like(best)
            hidden[..., 0] = 100.0 * (ranks > 0)
            return others * 0.1 + best + hidden

    held = [Example(str(i), tuple(text), 4) for i, text in enumerate(texts(3, 40))]
    held = [Example(one.id, tuple(1 + t % (VOCAB - 1) for t in one.tokens), 4) for one in held]
    asked = fixed_assignments(held, 2, 8, 2)
    (found,) = measure_accuracy([Guesser()], Teacher(model), asked, 2)  # type: ignore[list-item]
    assert found.points == 3 * 8
    assert (found.top(1, 1), found.top(1, 2), found.top(2, 2)) == (1.0, 0.0, 1.0)
    assert found.table.rows[1][:3] == (0.0, 1.0, 0.0)
    assert found.as_json()["top5"] == [1.0, 1.0]


def answer(name: str, prompt: int, tokens: int) -> Answer:
    return Answer(name, "chat", "MIT", "", [1] * prompt, [2] * tokens, "length")


def test_texts_are_cut_to_what_fits_and_short_ones_left_out() -> None:
    answers = [answer("a", 10, 20), answer("b", 90, 20), answer("c", 4, 90), answer("d", 5, 5)]
    found = {one.id: one for one in examples(answers, 40, 3, fewest_points=4)}
    assert list(found) == ["a", "b", "c"]
    assert (len(found["a"].tokens), found["a"].first) == (30, 9)
    assert (len(found["b"].tokens), found["b"].first) == (40, 19)
    assert found["c"].tokens == (1,) * 4 + (2,) * 36
    assert found["a"].room(3) == 30 - 9 - 3 - 1


def test_turns_stay_together_and_both_parts_have_some() -> None:
    found = examples([answer(f"{i // 2}#{i % 2}", 5, 20) for i in range(200)], 64, 3, 4)
    learned, held = split(found, 0.2)
    assert 20 < len(held) < 60 and len(learned) + len(held) == 200
    assert not {one.id.partition("#")[0] for one in learned} & {
        one.id.partition("#")[0] for one in held
    }
    with pytest.raises(UsageError, match="make more training data"):
        split(found[:1], 0.2)


def test_every_epoch_reads_all_texts_once_elsewhere() -> None:
    learned = [Example(str(i), tuple(range(20 + i)), 5) for i in range(10)]
    steps = list(islice(assignments(learned, 3, 4, 2, seed=1), 8))
    again = list(islice(assignments(learned, 3, 4, 2, seed=1), 8))
    assert steps == again
    epochs = [steps[:4], steps[4:]]
    for epoch in epochs:
        assert sorted(len(text) for step in epoch for text in step.texts) == list(range(20, 30))
    places = [
        {len(t): tuple(p) for step in epoch for t, p in zip(step.texts, step.points)}
        for epoch in epochs
    ]
    assert places[0] != places[1]
    assert list(islice(assignments(learned, 3, 4, 2, seed=2), 8)) != steps
    for step in steps:
        for text, points in zip(step.texts, step.points, strict=True):
            assert points == sorted(set(points)) and min(points) >= 5
            assert max(points) + 2 + 1 < len(text)


def test_the_shortest_text_of_a_batch_limits_its_points() -> None:
    group = [Example("a", tuple(range(40)), 3), Example("b", tuple(range(12)), 3)]
    assert [len(points) for points in choose_points(group, 3, 16, "x")] == [5, 5]


@pytest.mark.parametrize(
    "wrong", [{"prompt_tokens": 0}, {"epts": 0}, {"mask": "causal"}, {"head": "no"}, {"exits": 0}]
)
def test_wrong_configurations_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=next(iter(wrong))):
        PromptConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"loss": "x"}, {"decay": 0.0}, {"held_back": 1.0}, {"longest": 3}],
)
def test_wrong_recipes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        PromptRecipe(**wrong)  # type: ignore[arg-type]
