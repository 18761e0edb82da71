"""Compare Ouroboros (Zhao et al. 2024, arXiv 2402.13720) with others as its paper's tables do.

    python benchmarks/ouroboros.py --data DIR --study fixed
    python benchmarks/ouroboros.py --data DIR --study all --out benchmarks/results/ouroboros

    study         tables   what is compared
    fixed         4, 12    part by part, drafts of fixed length, always on; other lengths for the
                           simulation (benchmarks/ouroboros_simulation.py)
    planned       4, 12    part by part, as users run it
    published     4        the same, for the weights as published
    floats        4        the same, for float32 (--weights packed)
    copy          4        the same with a quantised copy as the draft model
    tradeoff      fig. 1   sizes of draft models and lengths of drafts, fixed
    phrases       fig. 6   how many phrases lengthen the draft of a copy, fixed
    others        5, 13    EAGLE, and a cascade of two draft models, as users run them
    temperatures  3        T = 0.5 and 1.0, fixed; T = 0 is in `fixed`
    sensitivity   9        draft length, window and level, every combination, fixed
    lengths       14       generation lengths, fixed: a half, a quarter … of the longest
    locality      16       texts of several tasks in several orders, phrases kept or not, fixed
    weights                speculative decoding with a draft model in float32, 8 and 4 bits
    costs                  pass costs of target and draft model by width, for the simulation

The studies with a copy need --weights packed, so `all` leaves them out: no copy is smaller than
the default model's weights as published. The others are plain, Lookahead and speculative decoding.
Every study writes NAME-MODEL.json in --out. All texts are compared with plain decoding's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import ouroboros_studies as studies
import paceline
from ouroboros_runs import Contender, Text, play_all, texts_of
from paceline.drafters import ModelChoice, Opener
from paceline.planning.measure import measure_curve
from paceline.prompts import read_prompts
from paceline.session import Session
from tables import write

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 256

Report = dict[str, Any]


def read_texts(
    session: Session, options: argparse.Namespace, tasks: Sequence[str], most: int
) -> list[Text]:
    """The first prompts of every task, task by task: --limit of each if given, else `most`."""
    chosen = [task for task in tasks if options.tasks is None or task in options.tasks.split(",")]
    records = [
        replace(record, task=task, id=f"{task}/{record.id}")
        for task in chosen
        for record in read_prompts(options.data / f"{task}.jsonl", options.limit or most)
    ]
    return texts_of(session, records, options.longest_prompt)


def compared(make: Callable[[], Sequence[Contender]], tokens: int, runs: int = 1) -> Report:
    """Run all contenders, `runs` times from scratch, and report the sums."""
    contenders = make()
    different = play_all(contenders, tokens)
    for _ in range(1, runs):
        again = make()
        different += play_all(again, tokens)
        for one, other in zip(contenders, again, strict=True):
            one.add(other)
    texts = sum(len(one.texts) for one in contenders if one.method != "plain")
    return {
        "max_new_tokens": tokens,
        "runs": runs,
        "contenders": [one.as_json() for one in contenders],
        "compared_texts": runs * texts,
        "different_texts": len(different),
        "different": different,
    }


def side_by_side(study: studies.Study, session: Session, options: argparse.Namespace) -> Report:
    """Methods on the same texts, in turns, whatever their orders of these."""
    texts = read_texts(session, options, study.tasks, study.limit)
    if strangers := {*(options.only or ())} - {*study.methods}:
        sys.exit(
            f"no contender {', '.join(sorted(strangers))}: there are {', '.join(study.methods)}"
        )
    longest = options.max_new_tokens or study.tokens
    marks = [longest // share for share in study.shares]
    names = [name for name in study.methods if not options.only or name in {"plain", *options.only}]
    orders = studies.orders([text.record.task for text in texts], options.seed)

    def contender(name: str, temperature: float) -> Contender:
        own = [texts[place] for place in orders.get(name, range(len(texts)))]
        fixed, method = name not in study.planned, study.methods[name]
        return Contender(name, method, session, own, fixed, temperature, options.seed, marks)

    def make() -> list[Contender]:
        return [contender(name, warmth) for warmth in study.temperatures for name in names]

    return compared(make, longest, options.runs)


def costs(session: Session, options: argparse.Namespace) -> Report:
    """Measure the cost curves of both models; the draft model is the shipped one."""
    opener = cast(Opener, session.host.open)
    draft = opener(ModelChoice("")).target
    curves = {
        name: measure_curve(target, WIDTHS, (CONTEXT,), repeats=options.repeats)
        for name, target in (("target", session.target), ("draft", draft))
    }
    ratio = curves["draft"].cost(1) / curves["target"].cost(1)
    records = {f"{name}_curve": curve.to_records() for name, curve in curves.items()}
    return {**records, "cost_ratio": round(ratio, 4)}


STUDIES: dict[str, Callable[[Session, argparse.Namespace], Report]] = {
    **{name: partial(side_by_side, study) for name, study in studies.SIDE_BY_SIDE.items()},
    "costs": costs,
}

COPIES = ("copy", "tradeoff", "phrases", "others")
"""Studies with a quantised copy, which must be smaller than the weights as published."""

ALL = [name for name in STUDIES if name not in COPIES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with TASK.jsonl")
    parser.add_argument("--study", choices=[*STUDIES, "all"], required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ouroboros"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", default="auto", help="of the model, as in paceline.load")
    parser.add_argument("--dtype", help="of the model, as in paceline.load")
    parser.add_argument("--tasks", help="only these, by commas")
    parser.add_argument(
        "--only", action="append", help="contender, as in the table; may be repeated"
    )
    parser.add_argument("--limit", type=int, help="prompts per task")
    parser.add_argument("--runs", type=int, default=1, help="from scratch; times are sums")
    parser.add_argument("--longest-prompt", type=int, default=384, help="tokens; the last ones")
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--repeats", type=int, default=5, help="passes per width, for costs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    options = parser.parse_args()
    session = paceline.load(
        options.model, "plain", weights=options.weights, dtype=options.dtype, measure=True
    )
    for name in ALL if options.study == "all" else [options.study]:
        path = options.out / f"{name}-{options.model}.json"
        if path.exists() and not options.again:
            print(f"{path} is there already: --again measures it again", file=sys.stderr)
            continue
        print(name, file=sys.stderr, flush=True)
        began = perf_counter()
        report = STUDIES[name](session, options)
        about = {
            "study": name,
            "model": options.model,
            "weights": options.weights,
            "dtype": session.target.describe().dtype,
            "measured_seconds": round(perf_counter() - began, 1),
        }
        write(path, {**about, **report})


if __name__ == "__main__":
    main()
