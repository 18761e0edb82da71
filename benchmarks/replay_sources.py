"""What each source of `auto` is worth, on recorded texts and a clock that only the curve moves.

    python benchmarks/replay_sources.py --traces DIR --json sources.json

Recorded answers are followed as in `planning.py`: no model runs, a pass takes what a measured curve
says, drafters take no time. One recording of each prompt is written. The others of the same prompts
are in the datastore of those contenders that are called "with answers", as they would be if they
had been given before, each behind the last tokens of its prompt; of these contenders each source is
left out in turn.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
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
from paceline.records import Stats
from paceline.session import Session
from planning import Contender, Outcome, ReplayTarget, read_curve, replay
from tables import new_table, number, show, shown_command

SOURCES = ("anpd", "suffix", "llma", "rest")
PLAIN = "plain"
WITH_ANSWERS = "auto with answers"
WITHOUT = "without "
CURVE = Path(__file__).parent / "results/bench/tune-smollm2-135m.json"


def contenders() -> dict[str, tuple[str, bool]]:
    """Name -> method, and whether it looks into the datastore of answers."""
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


def written(
    recordings: Sequence[Recording], limit: int, session: Session, tokens: int
) -> tuple[dict[str, list[ForcedRequest]], list[Recording]]:
    """File -> requests, of `limit` recordings spread evenly through each file the first of each
    prompt; and these recordings."""
    by_file: dict[str, list[Recording]] = defaultdict(list)
    for recording in recordings:
        by_file[recording.suite].append(recording)
    found: dict[str, list[ForcedRequest]] = {}
    taken: list[Recording] = []
    for suite, known in by_file.items():
        count = min(limit, len(known))
        spread = [known[place * len(known) // count] for place in range(count)]
        chosen = list({one.record.prompt: one for one in reversed(spread)}.values())[::-1]
        taken += chosen
        found[suite] = [
            request for one in chosen for request in _requests(one, session, Options(tokens))
        ]
    return found, taken


def answers(
    recordings: Sequence[Recording], taken: Sequence[Recording], session: Session
) -> dict[str, list[list[int]]]:
    """File -> all other recordings of the prompts that are written, each with the last tokens of
    its prompt before it."""
    prompts = {(one.suite, one.record.prompt) for one in taken}
    own = {id(one) for one in taken}
    found: dict[str, list[list[int]]] = {one.suite: [] for one in taken}
    for recording in recordings:
        if (recording.suite, recording.record.prompt) in prompts and id(recording) not in own:
            found[recording.suite] += [
                [*request.ids[-PROMPT_TOKENS:], *request.recorded]
                for request in _requests(recording, session, Options(1 << 20))
            ]
    return found


def _requests(recording: Recording, session: Session, options: Options) -> list[ForcedRequest]:
    requests = recording.requests(session, options, lambda _: None)
    return [one for one in requests if isinstance(one, ForcedRequest) and one.recorded]


def replays(
    texts: dict[str, list[ForcedRequest]], store: Datastore, curve: CostCurve
) -> dict[str, dict[str, Outcome]]:
    """Contender -> file -> what came of it."""
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
    """Speed-ups over plain decoding, and what sources did, by contender; JSON values."""
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
    recordings = read_traces(arguments.names, arguments.traces, system=system)
    tokenizer: Any = AutoTokenizer.from_pretrained(models.pull(arguments.model))
    session = Session(ReplayTarget(curve), tokenizer, PLAIN)
    texts, taken = written(recordings, arguments.limit, session, arguments.tokens)
    others = answers(recordings, taken, session)
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
