"""The ablations of PPD's thesis (tables 6.4 to 6.10) on a model of yours.

    python benchmarks/ppd_ablations.py --data DATA --json benchmarks/results/ppd/ablations.json

DATA is a folder made by `paceline train data`. All variants learn side by side from the same
lessons: the frozen model reads every text once for all of them. Two-stage variants go on from the
base for as many steps again, beside a base that is trained that long from the start.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from paceline.drafters.prompt_tokens import PromptConfig
from paceline.machine import describe_run
from paceline.models import load_causal_lm
from paceline.training.data import TrainingData
from paceline.training.examples import assignments, fixed_assignments
from paceline.training.learner import Learner
from paceline.training.ppd.evaluation import measure_accuracy
from paceline.training.ppd.prompt_model import PromptModel, initial_embeddings
from paceline.training.ppd.recipe import PromptRecipe
from paceline.training.ppd.run import prompt_course, starting_tokens
from paceline.training.ppd.teacher import Lesson, Teacher
from paceline.training.ppd.trainee import PromptTrainee

SECOND_STAGE_RATE = 1e-3


@dataclass(frozen=True)
class Variant:
    """One row of a table.

    tables: of the thesis. one_by_one: a step per text, not per batch. second_stage: begins with
    the trained base.
    """

    name: str
    tables: tuple[str, ...]
    config: PromptConfig
    recipe: PromptRecipe
    one_by_one: bool = False
    second_stage: bool = False


def variants(recipe: PromptRecipe, epts: Sequence[int], several: int) -> list[Variant]:
    """All rows. `several`: embeddings per prompt token where the thesis has 100."""
    base, ensemble = PromptConfig(), PromptConfig(epts=several)
    labels = replace(recipe, loss="labels")
    half, quarter = (replace(recipe, steps=max(recipe.steps // n, 1)) for n in (2, 4))
    singly = replace(recipe, steps=recipe.steps * recipe.batch)
    second = replace(recipe, learning_rate=SECOND_STAGE_RATE, head_rate=1.0)
    found = [
        Variant("base", ("6.4", "6.5", "6.6", "6.7", "6.10"), base, recipe),
        *(
            Variant(f"{n} EPTs", ("6.4",), PromptConfig(epts=n), recipe)
            for n in epts
            if n != several
        ),
        Variant(f"{several} EPTs", ("6.4", "6.5", "6.8", "6.9"), ensemble, recipe),
        Variant("labels", ("6.5",), base, labels),
        Variant(f"{several} EPTs, labels", ("6.5",), ensemble, labels),
        Variant("half the steps", ("6.5",), base, half),
        Variant("a quarter of the steps", ("6.5",), base, quarter),
        Variant("one text a step", ("6.5",), base, singly, one_by_one=True),
        Variant("prefix token", ("6.6",), PromptConfig(prefix_tokens=1), recipe),
        Variant("full head, one stage", ("6.7",), PromptConfig(head="full"), recipe),
        Variant("small head, one stage", ("6.7",), PromptConfig(head="small"), recipe),
        *(
            Variant(f"{mask} mask", ("6.8",), replace(ensemble, mask=mask), recipe)
            for mask in ("decoder", "encoder")
        ),
        Variant("learned weights", ("6.9",), replace(ensemble, learned_weights=True), recipe),
        *(Variant(f"{n} exits", ("6.10",), PromptConfig(exits=n), recipe) for n in (2, 3)),
        Variant("twice the steps", ("6.5", "6.7"), base, replace(recipe, steps=2 * recipe.steps)),
    ]
    heads = [
        Variant(f"{kind} head, two stages", ("6.7",), PromptConfig(head=kind), second, False, True)
        for kind in ("full", "small")
    ]
    return found + heads


@dataclass
class Pupil:
    """A variant while it learns. seconds: its own, without the reading that all share."""

    variant: Variant
    learner: Learner[Lesson]
    prompts: PromptModel
    seconds: float = 0.0

    def learn(self, lesson: Lesson) -> None:
        """Take a step, or one for each text."""
        begin = perf_counter()
        parts = _texts(lesson) if self.variant.one_by_one else [lesson]
        for part in parts:
            if not self.learner.finished:
                self.learner.learn(part)
        self.seconds += perf_counter() - begin


def _texts(lesson: Lesson) -> list[Lesson]:
    """A lesson with one text each."""
    return [
        Lesson(
            lesson.points[i : i + 1],
            tuple((keys[i : i + 1], values[i : i + 1]) for keys, values in lesson.layers),
            lesson.scores[i : i + 1],
            lesson.tokens[i : i + 1],
        )
        for i in range(len(lesson.points))
    ]


class Study:
    """All variants on one model and one course."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        loaded = load_causal_lm(arguments.model)
        self.arguments, self.model = arguments, loaded.model
        self.recipe = PromptRecipe(
            steps=arguments.steps,
            points=arguments.points,
            longest=arguments.longest,
            held_back=arguments.held_back,
            seed=arguments.seed,
        )
        data = TrainingData(arguments.data, loaded.fingerprint)
        self.course = prompt_course(data, PromptConfig().prompt_tokens, self.recipe)
        self.teacher = Teacher(self.model)
        self.rows: list[dict[str, Any]] = []

    def run(self) -> None:
        """Both stages, with the result written after each."""
        chosen = variants(self.recipe, self.arguments.epts, self.arguments.several)
        steps, lessons = self.recipe.steps, self._assignments()
        first = [self._pupil(one) for one in chosen if not one.second_stage]
        self._teach(first, islice(lessons, steps))
        goes_on = [pupil for pupil in first if not pupil.learner.finished]
        self._examine([pupil for pupil in first if pupil.learner.finished])
        base = first[0].learner.model.tensors()
        second = [self._pupil(one, base) for one in chosen if one.second_stage]
        self._teach([*goes_on, *second], islice(lessons, steps))
        self._examine([*goes_on, *second])

    def _assignments(self) -> Any:
        recipe, distances = self.recipe, PromptConfig().prompt_tokens
        return assignments(self.course.learned, recipe.batch, recipe.points, distances, recipe.seed)

    def _pupil(self, variant: Variant, start: dict[str, torch.Tensor] | None = None) -> Pupil:
        tokens = starting_tokens(self.course)
        model = PromptModel(
            self.model, variant.config, initial_embeddings(self.model, variant.config, tokens)
        )
        model.load(start or {})
        trainee = PromptTrainee(model, variant.recipe)
        return Pupil(variant, Learner(trainee, variant.recipe), model)

    def _teach(self, pupils: list[Pupil], lessons: Any) -> None:
        for number, assignment in enumerate(lessons, start=1):
            lesson = self.teacher.read(assignment, PromptConfig().prompt_tokens)
            for pupil in pupils:
                pupil.learn(lesson)
            print(f"step {number}", flush=True)

    def _examine(self, pupils: list[Pupil]) -> None:
        distances = PromptConfig().prompt_tokens
        asked = fixed_assignments(
            self.course.held_back[: self.arguments.texts],
            self.recipe.batch,
            self.arguments.asked,
            distances,
        )
        models = [pupil.prompts for pupil in pupils]
        for pupil, accuracy in zip(
            pupils, measure_accuracy(models, self.teacher, asked, distances)
        ):
            self.rows.append(
                {
                    "name": pupil.variant.name,
                    "tables": pupil.variant.tables,
                    "trained_numbers": sum(part.numel() for part in pupil.learner.best.values()),
                    "steps": pupil.learner.step,
                    "seconds": round(pupil.seconds, 1),
                    **accuracy.as_json(),
                }
            )
            print(json.dumps(self.rows[-1]), flush=True)
        self._write()

    def _write(self) -> None:
        arguments = {name: str(value) for name, value in vars(self.arguments).items()}
        report = {
            **describe_run(),
            "arguments": arguments,
            "recipe": self.recipe.as_json(),
            "texts": {"learned": len(self.course.learned), "held_back": self.arguments.texts},
            "variants": self.rows,
        }
        self.arguments.json.parent.mkdir(parents=True, exist_ok=True)
        self.arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", type=Path, required=True, help="made by 'paceline train data'")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--points", type=int, default=8, help="per text")
    parser.add_argument("--longest", type=int, default=384, help="tokens of a text")
    parser.add_argument("--epts", type=int, nargs="+", default=[2, 5, 10])
    parser.add_argument("--several", type=int, default=3, help="EPTs where the thesis has 100")
    parser.add_argument("--held-back", type=float, default=0.15)
    parser.add_argument("--texts", type=int, default=32, help="held-back ones to be asked about")
    parser.add_argument("--asked", type=int, default=48, help="points per text to be asked about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    Study(arguments).run()


if __name__ == "__main__":
    main()
