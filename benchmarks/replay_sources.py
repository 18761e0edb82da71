"""Measure what each source of `auto` is worth, on recorded texts and a simulated clock.

    python benchmarks/replay_sources.py --traces DIR --json sources.json

Recorded answers are followed as in `planning.py`: no model runs, pass times come from a measured
curve, drafters take no time. No prompt is answered twice. The datastore of "auto with answers"
holds other recorded answers to the same prompts, each after the last tokens of its prompt, as if
they had been given before; there each source is left out in turn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table
from transformers import AutoTokenizer

from paceline import models
from paceline.bench.simulate import ForcedRequest, Recording
from paceline.bench.traces import read_traces
from paceline.datastore import PROMPT_TOKENS, Datastore
from paceline.options import Options
from paceline.planning.cost_curve import CostCurve
from paceline.planning.planner import TreePlanner
from paceline.session import Session
from paceline.stats import Stats
from planning import Contender, Outcome, ReplayTarget, read_curve, replay
from tables import new_table, number, show, shown_command

SOURCES = ("anpd", "suffix", "llma", "rest")
PLAIN = "plain"
WITH_ANSWERS = "auto with answers"
WITHOUT = "without "
_WHOLE = 1 << 20
CURVE = Path(__file__).parent / "results/bench/tune-smollm2-135m.json"


def contenders() -> dict[str, tuple[str, bool]]:
    """Name -> method, and whether it searches the datastore of answers."""
    every = "+".join(SOURCES)
    forgetful = every.replace("suffix", "suffix:persist=false")
    left_out = {
        f"{WITHOUT}{name}": (f"auto:sources={every},without={name}", True) for name in SOURCES
    }
    return {
        PLAIN: ("plain", False),
        "anpd": ("anpd", False),
        "auto, nothing kept": (f"auto:sources={forgetful}", False),
        "auto": (f"auto:sources={every}", False),
        WITH_ANSWERS: (f"auto:sources={every}", True),
        **left_out,
    }


def split(
    written: Sequence[Recording], known: Sequence[Recording], session: Session, tokens: int
) -> tuple[dict[str, list[ForcedRequest]], dict[str, list[list[int]]]]:
    """File -> requests of `written`, no prompt twice; and file -> all other answers in `known` to
    these prompts, each after the last tokens of its prompt."""
    texts: dict[str, list[ForcedRequest]] = {one.suite: [] for one in written}
    others: dict[str, list[list[int]]] = {one.suite: [] for one in written}
    taken, seen = set[tuple[str, str, int]](), set[tuple[int, ...]]()
    for one in written:
        for place, request in _requests(one, session, tokens):
            if tuple(request.ids) not in seen:
                seen.add(tuple(request.ids))
                taken.add((one.suite, one.record.id, place))
                texts[one.suite].append(request)
    prompts = {(one.suite, one.record.prompt) for one in written}
    for one in known:
        if (one.suite, one.record.prompt) in prompts:
            others[one.suite] += [
                [*request.ids[-PROMPT_TOKENS:], *request.recorded]
                for place, request in _requests(one, session, _WHOLE)
                if (one.suite, one.record.id, place) not in taken
            ]
    return texts, others


def _requests(
    recording: Recording, session: Session, tokens: int
) -> Iterator[tuple[int, ForcedRequest]]:
    """The numbered answers of a recording, of at most `tokens` tokens."""
    requests = recording.requests(session, Options(tokens), lambda _: None)
    for place, request in enumerate(requests):
        if isinstance(request, ForcedRequest) and request.recorded:
            yield place, request


def replays(
    texts: dict[str, list[ForcedRequest]], store: Datastore, curve: CostCurve
) -> dict[str, dict[str, Outcome]]:
    """Contender -> file -> outcome."""
    found = {}
    for name, (method, looks) in contenders().items():
        sizing = (lambda curve: 0) if name == PLAIN else TreePlanner
        known = store if looks else None
        found[name] = {
            suite: replay(Contender(name, method, sizing), requests, curve, known)
            for suite, requests in texts.items()
        }
    return found


def result(found: dict[str, dict[str, Outcome]]) -> dict[str, Any]:
    """Speed-ups over plain decoding and the work of sources, by contender, as JSON values."""
    plain = found[PLAIN]
    seconds = {name: sum(each.seconds for each in files.values()) for name, files in found.items()}
    results: dict[str, Any] = {}
    for name, files in found.items():
        stats = Stats()
        for outcome in files.values():
            stats.merge(outcome.stats)
        results[name] = {
            "method": contenders()[name][0],
            "speedup": round(seconds[PLAIN] / seconds[name], 4),
            "tokens_per_pass": round(stats.mean_acceptance_length, 4),
            "files": {
                suite: round(plain[suite].seconds / outcome.seconds, 4)
                for suite, outcome in files.items()
            },
            "sources": {
                source: {key: value for key, value in asdict(did).items() if key != "seconds"}
                for source, did in stats.sources.items()
            },
        }
    return results


def tables(found: dict[str, Any]) -> list[Table]:
    """Speed-ups by file, and the sources of `auto with answers`."""
    names = [name for name in found if name != PLAIN]
    speeds = new_table("speed-up over plain decoding", "file", *names)
    for suite in found[PLAIN]["files"]:
        speeds.add_row(suite, *(number(found[name]["files"][suite], "x") for name in names))
    speeds.add_row("all, by time", *(number(found[name]["speedup"], "x") for name in names))
    keys = ("asked", "proposed", "scored", "accepted", "gained")
    sources = new_table(WITH_ANSWERS, "source", "rounds", *keys)
    for name, did in found[WITH_ANSWERS]["sources"].items():
        sources.add_row(name, *(f"{did[key]:,}" for key in ("rounds", *keys)))
    return [speeds, sources]


def main() -> None:
    """Read the arguments, replay, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of trace files")
    parser.add_argument("--names", nargs="*", default=["all"], help="files of it; default: all")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer cuts the texts")
    parser.add_argument("--curve", type=Path, default=CURVE, help="of `paceline tune --json`")
    parser.add_argument("--limit", type=int, default=24, help="records of each file")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--system", type=Path, help="text for system messages left out")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    curve = read_curve(arguments.curve)
    system = arguments.system.read_text(encoding="utf-8") if arguments.system else None

    def recordings(limit: int | None) -> list[Recording]:
        return read_traces(arguments.names, arguments.traces, limit, 0, system)

    written = recordings(arguments.limit)
    tokenizer: Any = AutoTokenizer.from_pretrained(models.pull(arguments.model))
    session = Session(ReplayTarget(curve), tokenizer, PLAIN)
    texts, others = split(written, recordings(None), session, arguments.tokens)
    with TemporaryDirectory() as folder:
        store = Datastore(Path(folder), "any")
        store.build(answer for found in others.values() for answer in found)
        found = result(replays(texts, store, curve))
    for table in tables(found):
        show(table)
    if arguments.json:
        report = {
            "command": shown_command(),
            "texts": {suite: len(requests) for suite, requests in texts.items()},
            "tokens": {
                suite: sum(len(request.recorded) for request in requests)
                for suite, requests in texts.items()
            },
            "answers": {suite: len(known) for suite, known in others.items()},
            "word_for_word": {
                suite: sum(
                    list(request.recorded) in (known[PROMPT_TOKENS:] for known in others[suite])
                    for request in requests
                )
                for suite, requests in texts.items()
            },
            "contenders": found,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
