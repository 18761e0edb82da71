"""What a draft model learns from, and how its agreement is counted."""

from __future__ import annotations

import math
from itertools import islice, product
from pathlib import Path

import pytest
import torch
from tests.tiny import byte_tokenizer
from tests.tiny_models import VOCAB, new_model, tiny_model
from tests.training.shared import prompt_file

from paceline.drafters.trained_parts import BaseModel
from paceline.errors import UsageError
from paceline.training.course import Course
from paceline.training.draft.cutting import cut, mixed_precision
from paceline.training.draft.evaluation import chain_length, measure_agreement
from paceline.training.draft.lessons import DraftLessons, Lesson, lesson_of
from paceline.training.draft.recipe import DraftConfig, DraftRecipe
from paceline.training.draft.run import DraftRun, in_half_precision
from paceline.training.draft.student import Student, loss_of
from paceline.training.draft.teacher import Teacher
from paceline.training.examples import Example, is_held_back
from paceline.training.order import read_prompt_files
from paceline.training.texts import ReadTexts
from paceline.training.vocabulary import frequent_tokens

ARCHITECTURES = ["llama", "qwen2", "gemma3", "gpt2", "mistral"]
SOME = torch.tensor([0, 3, 5, 17, 40, 41, 63])


def texts(count: int = 3) -> list[Example]:
    """Random texts, each some tokens longer than the one before, half of it prompt."""
    noise = torch.Generator().manual_seed(3)
    return [
        Example(
            f"t{i}", tuple(torch.randint(VOCAB, (14 + 3 * i,), generator=noise).tolist()), 6 + i
        )
        for i in range(count)
    ]


def teacher(
    folder: Path, vocabulary: torch.Tensor | None = None, top: int = 99, prompts: bool = True
) -> Teacher:
    return Teacher(tiny_model("llama"), vocabulary, top, prompts, folder, {"base": "mark"})


@pytest.mark.parametrize("prompts", [True, False])
@pytest.mark.parametrize("reduced", [True, False])
@torch.no_grad()
def test_the_teacher_says_what_the_model_says(reduced: bool, prompts: bool, tmp_path: Path) -> None:
    text = texts()[2]
    reading = teacher(tmp_path, SOME if reduced else None, 5, prompts).read(text)
    first = 0 if prompts else text.first
    logits = tiny_model("llama")(torch.tensor([text.tokens])).logits[0, first:-1]
    chances = logits.softmax(-1)
    said = chances[:, SOME] if reduced else chances
    assert len(reading) == len(text.tokens) - 1 - first
    assert torch.equal(reading.greedy.long(), logits.argmax(-1))
    torch.testing.assert_close(reading.log_kept.exp(), said.sum(-1), atol=1e-5, rtol=1e-5)
    best = said.topk(5)
    assert torch.equal(reading.tokens.long(), best.indices)
    torch.testing.assert_close(reading.log_chances.exp(), best.values, atol=1e-6, rtol=1e-4)


def test_a_text_is_read_once_and_again_where_that_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = Teacher._ask

    def noted(self: Teacher, text: Example) -> object:
        asked.append(text.id)
        return ask(self, text)

    monkeypatch.setattr(Teacher, "_ask", noted)
    one, other = texts(2)
    first = teacher(tmp_path).read(one)
    again = teacher(tmp_path).read(one)
    assert asked == ["t0"] and vars(first).keys() == vars(again).keys()
    assert all(torch.equal(getattr(first, name), getattr(again, name)) for name in vars(first))
    teacher(tmp_path).read(other)
    teacher(tmp_path, SOME).read(one)  # another vocabulary is another reading
    assert asked == ["t0", "t1", "t0"]
    for path in tmp_path.glob("teacher-*"):
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    teacher(tmp_path).read(one)
    assert asked == ["t0", "t1", "t0", "t0"]
    teacher(tmp_path).forget()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_a_batch_scores_as_texts_alone(architecture: str, reduced: bool, tmp_path: Path) -> None:
    base = new_model(architecture)
    draft = cut(base, [0, 2], SOME if reduced else None)
    alone = [draft(torch.tensor([text.tokens])).logits[0] for text in texts()]
    lesson = lesson_of(texts(), teacher(tmp_path), prompt_weight=1.0)
    logits = Student(draft, base, "distillation").logits(lesson)
    assert lesson.keep.tolist() == list(range(19))
    for row, weights, expected, text in zip(logits, lesson.weights, alone, texts(), strict=True):
        count = len(text.tokens) - 1
        assert weights.tolist() == [1.0] * count + [0.0] * (19 - count)
        kept = expected[:count, SOME] if reduced else expected[:count]
        torch.testing.assert_close(row[:count], kept, atol=2e-5, rtol=1e-4)


def test_a_lesson_is_about_answers_and_prompts_count_less(tmp_path: Path) -> None:
    lesson = lesson_of(texts(), teacher(tmp_path, prompts=False))
    assert lesson.keep.tolist() == list(range(6, 19))
    assert lesson.weights[2].tolist() == [0.0] * 2 + [1.0] * 11
    lesson = lesson_of(texts(), teacher(tmp_path), most=7, prompt_weight=0.25, mark="x")
    assert len(lesson.keep) == 7 and lesson.keep.tolist() == sorted(set(lesson.keep.tolist()))
    for text, weights in zip(texts(), lesson.weights.tolist(), strict=True):
        expected = [
            0.25 if place < text.first else float(place < len(text.tokens) - 1)
            for place in lesson.keep.tolist()
        ]
        assert weights == expected
    assert torch.equal(lesson.keep, lesson_of(texts(), teacher(tmp_path), 7, 0.25, mark="x").keep)


def test_lessons_begin_at_any_step(tmp_path: Path) -> None:
    recipe = DraftRecipe(batch=2, points=4, top=3)
    lessons = DraftLessons(teacher(tmp_path), Course(texts(5), texts(2)), recipe)
    every = list(islice(lessons.learned(0), 9))
    later = list(islice(lessons.learned(4), 5))
    for one, other in zip(every[4:], later, strict=True):
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in vars(one))
    assert [count for _, count in lessons.judged()] == [7]


def test_texts_without_answers_come_in_every_other_step(tmp_path: Path) -> None:
    recipe = DraftRecipe(batch=2, top=3, prompt_weight=0.5)
    read = [Example(f"r{i}", text.tokens, len(text.tokens) - 1) for i, text in enumerate(texts(4))]
    both = DraftLessons(teacher(tmp_path), Course(texts(5), texts(2)), recipe, read)
    alone = DraftLessons(teacher(tmp_path), Course(texts(5), texts(2)), recipe)
    every = list(islice(both.learned(0), 8))
    for one, other in zip(every[::2], alone.learned(0)):
        assert torch.equal(one.ids, other.ids)
    for lesson in every[1::2]:
        assert set(lesson.weights.unique().tolist()) <= {0.0, 0.5}
    for one, other in zip(every[5:], both.learned(5)):
        assert torch.equal(one.ids, other.ids) and torch.equal(one.keep, other.keep)


def test_texts_are_read_in_the_chat_template_without_those_held_back(tmp_path: Path) -> None:
    files = read_prompt_files(
        [prompt_file(tmp_path, 40), prompt_file(tmp_path, 10, "few.jsonl")], ["MIT", "CC0-1.0"]
    )
    tokenizer, recipe = byte_tokenizer(), DraftRecipe(steps=99, longest=16, held_back=0.3)
    read = ReadTexts.of(files, tokenizer, recipe)
    names = {text.id for text in read.texts}
    assert names == {
        record.id for file in files for record in file.records if not is_held_back(record.id, 0.3)
    }
    assert 20 < len(names) < 45
    for text in read.texts:
        assert tokenizer.decode(text.tokens).startswith("<user>") and len(text.tokens) == 16
        assert text.first == 15
    assert [file["licence"] for file in read.as_json()] == ["MIT", "CC0-1.0"]
    base = BaseModel("mark", "a test's model", 32, VOCAB)
    with pytest.raises(UsageError, match="leave out --texts"):
        DraftRun(DraftConfig(), DraftRecipe(prompt_weight=0.0), base, read)
    # No more than the steps need.
    few = ReadTexts.of(files, tokenizer, DraftRecipe(steps=4, batch=3, held_back=0.3))
    assert [text.id for text in few.texts] == [text.id for text in read.texts][:9]


def random_lesson(top: int, size: int = 9) -> tuple[torch.Tensor, torch.Tensor, Lesson]:
    """Logits of a student, log chances of a teacher who also says other things, and a lesson."""
    noise = torch.Generator().manual_seed(4)
    logits = torch.randn(2, 3, size, generator=noise)
    log_chances = torch.randn(2, 3, size + 2, generator=noise).log_softmax(-1)[..., :size]
    best = log_chances.topk(top)
    weights = torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]])
    kept, empty = log_chances.logsumexp(-1), torch.zeros(2, 3, dtype=torch.int64)
    return (
        logits,
        log_chances,
        Lesson(empty, empty, best.indices, best.values, kept, empty, weights),
    )


def test_the_losses_are_those_of_the_formula() -> None:
    logits, log_chances, lesson = random_lesson(top=9)
    expected, labels = 0.0, 0.0
    for text, place in product(range(2), range(3)):
        taught, guessed = log_chances[text, place].exp(), logits[text, place].softmax(-1)
        kept, weight = float(taught.sum()), float(lesson.weights[text, place])
        divergence = (taught / kept * (taught / kept / guessed).log()).sum()
        expected += weight * kept * float(divergence)
        labels -= weight * kept * math.log(float(guessed[taught.argmax()]))
    total = float(lesson.weights.sum())
    assert float(loss_of(logits, lesson, "distillation")) == pytest.approx(expected / total, 1e-4)
    assert float(loss_of(logits, lesson, "labels")) == pytest.approx(labels / total, 1e-4)


def test_unlikely_tokens_count_as_one() -> None:
    logits, log_chances, lesson = random_lesson(top=4)
    expected = 0.0
    for text, place in product(range(2), range(3)):
        taught, guessed = log_chances[text, place].exp(), logits[text, place].softmax(-1)
        kept, best = taught.sum(), lesson.tokens[text, place]
        coarse = [
            torch.cat([each[best], each.sum()[None] - each[best].sum()])
            for each in (taught / kept, guessed)
        ]
        weight = lesson.weights[text, place] * kept
        expected += float(weight * (coarse[0] * (coarse[0] / coarse[1]).log()).sum())
    expected /= float(lesson.weights.sum())
    assert float(loss_of(logits, lesson, "distillation")) == pytest.approx(expected, 1e-4)


@pytest.mark.parametrize("top", [4, 9])
def test_the_loss_is_least_where_the_two_agree(top: int) -> None:
    _, log_chances, lesson = random_lesson(top)
    logits = log_chances.clone().requires_grad_()
    loss = loss_of(logits, lesson, "distillation")
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-6, rtol=0)


def test_only_its_own_layers_learn(tmp_path: Path) -> None:
    base = new_model("llama", tie_word_embeddings=True)
    before = {name: part.clone() for name, part in base.named_parameters()}
    student = Student(cut(base, [0, 2], SOME), base, "distillation")
    names = [name for name, _ in student.named_parameters()]
    assert "model.norm.weight" in names
    assert all(name.startswith("model.layers.") for name in names if name != "model.norm.weight")
    lesson = lesson_of(texts(), teacher(tmp_path, SOME))
    optimizer = torch.optim.SGD([part for _, part in student.named_parameters()], lr=0.1)
    first = student.loss(lesson)
    first.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert float(student.loss(lesson).detach()) < float(first.detach())
    for name, part in base.named_parameters():
        assert torch.equal(part, before[name]) and part.grad is None and not part.requires_grad


def test_a_base_in_half_precision_teaches_weights_in_float32(tmp_path: Path) -> None:
    base = new_model("llama", dtype=torch.bfloat16)
    draft = cut(base, [0, 2], SOME)
    student = Student(draft, base, "distillation")
    assert {part.dtype for _, part in student.named_parameters()} == {torch.float32}
    lesson = lesson_of(texts(), teacher(tmp_path, SOME))
    with mixed_precision(base):
        assert torch.ones(2, 2).matmul(torch.ones(2, 2)).dtype == torch.bfloat16
    loss = student.loss(lesson)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(part.grad is not None for _, part in student.named_parameters())


@torch.no_grad()
def test_a_draft_that_is_the_base_agrees_with_it(tmp_path: Path) -> None:
    base = tiny_model("llama")
    student = Student(cut(new_model("llama"), [0, 1, 2]), base, "distillation")
    found = measure_agreement(student, teacher(tmp_path), texts(4), batch=3)
    assert found["places"] == 7 + 9 + 11 + 13
    assert found["said"] == found["top1"] == found["top5"] == 1.0
    assert found["acceptance_length"] == {"1": 2.0, "2": 3.0, "4": 5.0, "8": 9.0}


@torch.no_grad()
def test_what_cannot_be_said_is_a_miss(tmp_path: Path) -> None:
    base = new_model("llama")
    student = Student(cut(base, [0, 1, 2], SOME), base, "distillation")
    found = measure_agreement(student, teacher(tmp_path, SOME), texts(4), batch=3)
    assert 0 < found["top1"] == found["said"] < 1
    assert found["top5"] == found["said"]


def test_chains_end_at_the_first_wrong_guess() -> None:
    hits = [[True, False, True, True], [False], []]
    assert chain_length(hits, 1) == pytest.approx((2 + 1 + 2 + 2 + 1) / 5)
    assert chain_length(hits, 2) == pytest.approx((2 + 1 + 3) / 3)
    assert chain_length(hits, 4) == 2.0


def test_frequent_tokens() -> None:
    found = [Example("a", (9, 8, 8, 5, 5, 5, 3), 2), Example("b", (9, 5, 3, 2), 0)]
    assert frequent_tokens(found, 1, 10, [7]).tolist() == [7]
    assert frequent_tokens(found, 3, 10, [7]).tolist() == [3, 5, 7]
    # Of the answers 5, 3, 2; then of the prompts 8, 9; then from 0 on.
    assert frequent_tokens(found, 4, 10, []).tolist() == [2, 3, 5, 8]
    assert frequent_tokens(found, 7, 10, []).tolist() == [0, 1, 2, 3, 5, 8, 9]
    assert frequent_tokens(found, 10, 10, []).tolist() == list(range(10))
    for count in (0, 11):
        with pytest.raises(UsageError, match="has 10 tokens"):
            frequent_tokens(found, count, 10, [])


def test_numbers_too_large_for_float16_are_kept() -> None:
    fine = in_half_precision({"a": torch.tensor([1.0, 2.0])})
    assert fine["a"].dtype == torch.float16
    large = in_half_precision({"a": torch.tensor([1.0]), "b": torch.tensor([1e6])})
    assert {each.dtype for each in large.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "wrong", [{"points": 0}, {"top": 0}, {"prompt_weight": 1.5}, {"loss": "x"}, {"steps": 0}]
)
def test_a_recipe_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        DraftRecipe(**wrong)  # type: ignore[arg-type]


def test_a_vocabulary_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one token"):
        DraftConfig(vocabulary=-1)
    with pytest.raises(UsageError, match="leave out --vocabulary or --standalone"):
        DraftConfig(vocabulary=5, standalone=True)
