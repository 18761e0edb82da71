"""Compare Ouroboros (Zhao et al. 2024, arXiv 2402.13720) with others as its paper's tables do.

    python benchmarks/ouroboros.py --data DIR --study fixed
    python benchmarks/ouroboros.py --data DIR --study all --out benchmarks/results/ouroboros

ouroboros.toml says which studies there are, and what each compares. Those with a copy need --weights packed, so
`all` leaves them out: no copy is smaller than the default model's weights as published. Every study
writes NAME-MODEL.json in --out, unless it is there (--again). All texts are compared with plain
decoding's.

--limit prompts of each of --tasks are answered by plain decoding and the contenders --only (may be
repeated), --runs times from scratch; times are sums.
"""

from __future__ import annotations

import random
import sys
import tomllib
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import paceline
from common import options, run_script, write
from ouroboros_runs import Contender, Text, play_all
from paceline.cli.common import check_writable
from paceline.errors import check_known
from paceline.prompts import Conversation, read_prompts
from paceline.session import Session

Report = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """An entry of ouroboros.toml, which explains the fields."""

    methods: dict[str, str]
    tasks: Sequence[str]
    limit: int
    tokens: int
    planned: str = ""
    shares: Sequence[int] = ()
    temperatures: Sequence[float] = (0.0,)
    vary: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def contenders(self) -> dict[str, str]:
        """All methods by name, with every value of what varies."""
        found = {}
        for name, method in self.methods.items():
            varied = [setting for setting in self.vary if f"{{{setting}}}" in name]
            for values in product(*(self.vary[setting] for setting in varied)):
                chosen = dict(zip(varied, values))
                found[name.format(**chosen)] = method.format(**chosen)
        return found


def read_studies() -> dict[str, Study]:
    """All studies by name."""
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

    def whole(name: str) -> dict[str, Any]:
        own = dict(entries[name])
        return {**whole(own.pop("like")), **own} if "like" in own else own

    return {name: Study(**whole(name)) for name in entries}


def orders(tasks: Sequence[str], seed: int) -> dict[str, list[int]]:
    """Orders of texts that are given task by task (`tasks` has one entry per text): as given; one
    of each task in turns; at random."""
    given = list(range(len(tasks)))
    mixed = sorted(given, key=lambda place: tasks[:place].count(tasks[place]))
    random.Random(seed).shuffle(shuffled := [*given])
    return {"consecutive": given, "interleaved": mixed, "shuffled": shuffled}


def read_texts(session: Session, study: Study, given: Namespace) -> list[Text]:
    """The first turns of the first prompts of every task, task by task."""
    texts = []
    chosen = study.tasks if given.tasks is None else given.tasks.split(",")
    check_known("task", study.tasks, *chosen)
    for task in filter(chosen.__contains__, study.tasks):
        for record in read_prompts(given.data / f"{task}.jsonl", given.limit or study.limit):
            ids = session.encode(Conversation(record, session.tokenizer.chat_template).ask())
            own = replace(record, task=task, id=f"{task}/{record.id}")
            texts.append(Text(own, ids))
    return texts


def side_by_side(study: Study, session: Session, given: Namespace) -> Report:
    """Methods on the same texts, in turns, whatever their orders of these; --runs times from
    scratch, and the sums."""
    methods = study.contenders
    check_known("contender", methods, *given.only)
    texts = read_texts(session, study, given)
    longest = given.max_new_tokens or study.tokens
    places = orders([text.record.task for text in texts], given.seed)

    def contender(name: str, temperature: float) -> Contender:
        own = [texts[place] for place in places.get(name, range(len(texts)))]
        fixed = not fnmatchcase(name, study.planned)
        marks = [longest // share for share in study.shares]
        return Contender(name, methods[name], session, own, fixed, temperature, given.seed, marks)

    names = [name for name in methods if not given.only or name in {"plain", *given.only}]
    sums: list[Contender] = []
    different: list[Report] = []
    for _ in range(given.runs):
        again = [contender(*each[::-1]) for each in product(study.temperatures, names)]
        different += play_all(again, longest)
        for one, other in zip(sums, again):
            one.add(other)
        sums = sums or again
    return {
        "max_new_tokens": longest,
        "runs": given.runs,
        "contenders": [one.as_json() for one in sums],
        "compared_texts": given.runs * sum(len(c.texts) for c in sums if c.method != "plain"),
        "different_texts": len(different),
        "different": different,
    }


STUDIES = read_studies()
COPIES = ("copy", "tradeoff", "phrases", "others")
ALL = [name for name in STUDIES if name not in COPIES]


def main() -> None:
    given = options(
        __doc__, data=Path, study=str, out=Path("benchmarks/results/ouroboros"), model="smollm2-135m",
        weights="auto", dtype=str | None, tasks=str | None, only=list[str], limit=int | None, runs=1,
        max_new_tokens=int | None, seed=0, again=False,
    )  # fmt: skip
    check_known("study", [*STUDIES, "all"], given.study)
    loaded = {"weights": given.weights, "dtype": given.dtype}
    session = paceline.load(given.model, "plain", **loaded, measure=True)
    info = session.target.describe()
    for name in ALL if given.study == "all" else [given.study]:
        path = given.out / f"{name}-{given.model}.json"
        if path.exists() and not given.again:
            print(f"{path} is there already: --again measures it again", file=sys.stderr)
            continue
        check_writable(path)
        print(name, file=sys.stderr, flush=True)
        found = side_by_side(STUDIES[name], session, given)
        about = {"study": name, "model": given.model, "weights": given.weights}
        write(path, {**about, "dtype": info.dtype, **found}, info.device)


if __name__ == "__main__":
    run_script(main)
