"""What heads learn from, and that they learn it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from paceline.training.heads import evaluation
from paceline.training.heads.bottom import TransformerBottom
from paceline.training.heads.evaluation import measure
from paceline.training.heads.lessons import HeadLessons
from paceline.training.heads.reader import StateReader
from paceline.training.heads.recipe import ChimeraRecipe, HeadRecipe
from paceline.training.heads.trainees import ChimeraTrainee, HeadTrainee, MedusaTrainee
from tests.tiny_models import VOCAB, new_model, tiny_model
from tests.trained_heads import SIZES

from paceline.drafters.chimera_model import ChimeraModel
from paceline.drafters.medusa_heads import MedusaHeads
from paceline.drafters.trained_heads import ChimeraConfig, MedusaConfig
from paceline.drafters.trained_parts import BaseModel
from paceline.errors import UsageError
from paceline.targets.hidden_states import output_head
from paceline.training.course import Course
from paceline.training.examples import Example
from paceline.training.learner import Learner
from paceline.training.losses import NO_LABEL, guess_loss

ARCHITECTURES = ["llama", "qwen2", "gemma3", "gpt2", "mistral"]
BASE = BaseModel("toy", "toy", 32, VOCAB)


def texts(count: int, length: int = 24) -> list[Example]:
    """Random texts, each some tokens longer than the one before."""
    noise = torch.Generator().manual_seed(3)
    return [
        Example(str(i), tuple(torch.randint(VOCAB, (length + 3 * i,), generator=noise).tolist()), 5)
        for i in range(count)
    ]


def lessons(
    model: Any, recipe: HeadRecipe, heads: int = 2, ids: torch.Tensor | None = None, count: int = 3
) -> HeadLessons:
    """On random texts."""
    course = Course(texts(count), texts(count + 2)[count:])
    return HeadLessons(StateReader(model, BASE), course, heads, recipe, ids)


def medusa(model: Any, config: MedusaConfig, recipe: HeadRecipe) -> MedusaTrainee:
    weight, bias = output_head(model, None)
    return MedusaTrainee(MedusaHeads(config, (weight.clone(), bias.clone())), recipe, model)


def chimera(
    model: Any, config: ChimeraConfig, recipe: ChimeraRecipe, ids: torch.Tensor | None = None
) -> ChimeraTrainee:
    weight, bias = output_head(model, ids)
    bottom = None
    if config.bottom != "ngram":
        bottom = TransformerBottom(model, config.bottom == "transformer finetune")
    torch.manual_seed(0)
    draft = ChimeraModel(
        replace(config, **SIZES),
        (weight.clone(), bias.clone()),
        model.get_input_embeddings(),
        ids,
        bottom,
    )
    return ChimeraTrainee(draft, recipe, model)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_the_reader_gives_what_the_output_head_reads(architecture: str) -> None:
    model = tiny_model(architecture)
    text = texts(1)[0].tokens
    reader = StateReader(model, BASE)
    states = reader.batch([text, text[:9]])
    expected = model(torch.tensor([text]), use_cache=False).logits[0]
    torch.testing.assert_close(reader.scores(states[0]), expected, atol=2e-2, rtol=1e-2)
    ids = torch.tensor([3, 9])
    assert torch.equal(reader.scores(states[0], ids), reader.scores(states[0])[:, ids])
    assert not states[1, 9:].any()


def test_a_cache_gives_what_was_read(tmp_path: Path) -> None:
    model = tiny_model("llama")
    text = texts(1)[0].tokens
    without, within = StateReader(model, BASE), StateReader(model, BASE, tmp_path / "cache")
    states = without.read(text)
    assert torch.equal(within.read(text), states)
    (path,) = (tmp_path / "cache").glob("states-*")
    other = new_model("llama", hidden_size=32, num_hidden_layers=1)
    assert torch.equal(StateReader(other, BASE, tmp_path / "cache").read(text), states)
    # Damaged in any way, it is read again.
    whole = path.read_bytes()
    for damaged in (whole[:-7], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        assert torch.equal(within.read(text), states)
        assert path.read_bytes() == whole
    with pytest.raises(UsageError, match=r"holds hidden states with another base \('toy', not 'b'"):
        StateReader(model, replace(BASE, fingerprint="b"), tmp_path / "cache")
    (tmp_path / "cache" / "cache.json").write_text("{")
    with pytest.raises(UsageError, match=r"cache.json is damaged: delete the folder"):
        StateReader(model, BASE, tmp_path / "cache")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot use the cache"):
        StateReader(model, BASE, tmp_path / "file" / "cache")


def test_lessons_say_what_follows() -> None:
    model = tiny_model("llama")
    recipe = HeadRecipe(batch=2, points=4)
    made = lessons(model, recipe)
    for lesson in islice(made.learned(0), 4):
        assert lesson.scores is None
        for tokens, points, labels, states in zip(
            lesson.tokens, lesson.points, lesson.labels, lesson.states_ahead(2)
        ):
            for point, label, ahead in zip(points.tolist(), labels, states):
                assert point >= 5
                assert label.tolist() == tokens[point + 2 : point + 4].tolist()
                assert ahead.shape == (2, 32)
    first, second = (next(islice(made.learned(2), 1)), next(islice(made.learned(0), 2, None)))
    assert torch.equal(first.points, second.points) and torch.equal(first.states, second.states)
    lesson, count = next(iter(made.judged()))
    assert count == lesson.points.numel()


def test_distillation_has_the_models_logits_and_prompts_its_words() -> None:
    model = tiny_model("llama")
    ids = torch.arange(10, 50)
    distilled = lessons(model, HeadRecipe(batch=2, loss="distillation", prompts=True), ids=ids)
    said = lessons(model, HeadRecipe(batch=2, prompts=True), ids=ids)
    for lesson, told in islice(zip(distilled.learned(0), said.learned(0)), 3):
        assert int(lesson.points.min()) < 5
        for text, points, scores, labels in zip(
            lesson.tokens, lesson.points, lesson.scores, told.labels
        ):
            expected = model(text[None], use_cache=False).logits[0]
            for place, point in enumerate(points.tolist()):
                rows = expected[point + 1 : point + 3]
                torch.testing.assert_close(scores[place], rows[:, ids], atol=2e-2, rtol=1e-2)
                best = rows.argmax(dim=-1)
                wanted = [int(i) - 10 if 10 <= i < 50 else NO_LABEL for i in best]
                assert labels[place].tolist() == wanted


def test_texts_without_answers_come_in_every_other_step() -> None:
    model, recipe = tiny_model("llama"), HeadRecipe(batch=2, points=40)
    course = Course(texts(3), texts(5)[3:])
    alone = HeadLessons(StateReader(model, BASE), course, 2, recipe, None)
    # Whatever a prompt's length, all of a text is read and the model says what follows.
    read = [replace(text, id=f"r{text.id}", first=len(text.tokens) - 1) for text in texts(4)]
    both = HeadLessons(StateReader(model, BASE), course, 2, recipe, None, read)
    every = list(islice(both.learned(0), 8))
    for one, other in zip(every[::2], alone.learned(0)):
        assert torch.equal(one.points, other.points) and torch.equal(one.labels, other.labels)
    for lesson in every[1::2]:
        assert int(lesson.points.min()) == 0
        said = model(lesson.tokens[:1], use_cache=False).logits[0].argmax(dim=-1)
        for point, labels in zip(lesson.points[0].tolist(), lesson.labels[0].tolist()):
            assert labels == said[point + 1 : point + 3].tolist()
    for one, other in zip(every[5:], both.learned(5)):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.points, other.points)


def test_what_cannot_be_guessed_teaches_nothing() -> None:
    logits = torch.randn(1, 3, 2, 5)
    labels = torch.tensor([[[1, NO_LABEL], [2, NO_LABEL], [NO_LABEL, NO_LABEL]]])
    expected = -logits[0, :2, 0].log_softmax(-1)[range(2), [1, 2]].mean() / 2
    torch.testing.assert_close(guess_loss(logits, labels, None, "labels", 0.8), expected)


TRAINEES = {
    "medusa": lambda model: medusa(model, MedusaConfig(heads=2), HeadRecipe(steps=60)),
    "medusa full, distilled": lambda model: medusa(
        model, MedusaConfig(heads=2, layers=2, form="full"), HeadRecipe(loss="distillation")
    ),
    "chimera": lambda model: chimera(model, ChimeraConfig(heads=2, layers=1), ChimeraRecipe()),
    "chimera full": lambda model: chimera(
        model, ChimeraConfig(heads=2, form="full", residual=False, order=2), ChimeraRecipe()
    ),
    "chimera, own guesses": lambda model: chimera(
        model, ChimeraConfig(heads=2), ChimeraRecipe(own_guesses=True)
    ),
    "transformer": lambda model: chimera(
        model, ChimeraConfig(heads=2, bottom="transformer finetune"), ChimeraRecipe()
    ),
    "frozen": lambda model: chimera(
        model, ChimeraConfig(heads=2, bottom="transformer frozen"), ChimeraRecipe()
    ),
}


@pytest.mark.parametrize("kind", TRAINEES)
def test_every_kind_of_head_learns_and_the_model_does_not(kind: str) -> None:
    model = new_model("llama")
    before = {name: part.clone() for name, part in model.state_dict().items()}
    trainee: HeadTrainee[Any, Any] = TRAINEES[kind](model)
    recipe = replace(trainee.recipe, steps=60, learning_rate=0.02, batch=2, points=8)
    first, shapes = trainee.tensors(), dict(model.named_parameters())
    learner = Learner(trainee, recipe)
    lesson = next(lessons(model, recipe, count=2).learned(0))
    losses = [learner.learn(lesson) for _ in range(60)]
    assert losses[-1] < 0.6 * losses[0]
    # Compact heads get only half a joint state at first; the rest moves as well.
    assert all(not torch.equal(part, first[name]) for name, part in trainee.tensors().items())
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    assert shapes.keys() == dict(model.named_parameters()).keys()


def test_a_text_can_be_learned_by_heart() -> None:
    model = new_model("llama")
    recipe = ChimeraRecipe(steps=150, learning_rate=0.01, batch=1, points=8)
    one = Example("a", texts(1)[0].tokens[:16], 5)
    made = HeadLessons(StateReader(model, BASE), Course([one], [one]), 2, recipe, None)
    for trainee in (
        medusa(model, MedusaConfig(heads=2), recipe),
        chimera(model, ChimeraConfig(heads=2), recipe),
    ):
        learner = Learner(trainee, recipe)
        steps = made.learned(0)
        while not learner.finished:
            learner.learn(next(steps))
        table, found = measure(trainee, made, [one])
        assert found["top1"] == [1.0, 1.0] and table.rows[0][0] == 1.0
        assert found["points"] == 8 and found.keys() >= {"top2", "top3", "top4", "top5", "top10"}
        if isinstance(trainee, ChimeraTrainee):
            assert found["own_guesses"]["top1"] == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["medusa", "chimera", "frozen"])
def test_every_place_of_an_answer_is_looked_at(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many texts stand together in a batch, and however many places at a time."""
    model = tiny_model("llama")
    trainee: HeadTrainee[Any, Any] = TRAINEES[kind](model)
    asked = texts(3)
    found = []
    for places, batch in ((64, 1), (5, 2), (1, 3)):
        monkeypatch.setattr(evaluation, "_PLACES", places)
        made = lessons(model, replace(trainee.recipe, batch=batch))
        found.append(measure(trainee, made, asked))
    assert found[0] == found[1] == found[2]
    assert found[0][1]["points"] == sum(len(text.tokens) - 5 - 3 for text in asked) == 57


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_first_layer_reads_texts_as_the_model_does(architecture: str) -> None:
    model = tiny_model(architecture)
    tokens = torch.tensor([texts(1)[0].tokens])
    states = model(tokens, use_cache=False, output_hidden_states=True).hidden_states
    found = TransformerBottom(model, trained=False)
    torch.testing.assert_close(found.whole(tokens), states[1], atol=1e-5, rtol=1e-4)
    assert not dict(found.named_parameters())
    trained = dict(TransformerBottom(model, trained=True).named_parameters())
    assert trained and all(part.requires_grad for part in trained.values())


def test_half_precision_on_the_way() -> None:
    """A base in bfloat16, as on a GPU: products in its precision, parts in float32."""
    model = new_model("llama", dtype=torch.bfloat16)
    for recipe in (ChimeraRecipe(points=4), ChimeraRecipe(points=4, loss="distillation")):
        for trainee in (
            medusa(model, MedusaConfig(heads=2), recipe),
            chimera(model, ChimeraConfig(heads=2, layers=1), recipe),
            chimera(model, ChimeraConfig(heads=2, form="full"), recipe),
        ):
            lesson = next(lessons(model, recipe).learned(0))
            learner = Learner(trainee, recipe)
            assert learner.learn(lesson) > 0
            kinds = {part.dtype for part in trainee.tensors().values()}
            assert kinds == {torch.float32}


@pytest.mark.parametrize(
    "wrong", [{"points": 0}, {"decay": 0.0}, {"loss": "x"}, {"state_weight": -1.0}, {"steps": 0}]
)
def test_wrong_recipes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ChimeraRecipe(**wrong)
