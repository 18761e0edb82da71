"""Train the ablations of Chimera's paper and PPD's thesis.

    python benchmarks/trained_ablations.py --data DATA --cache STATES --out ablations
    python benchmarks/trained_ablations.py --data DATA --cache STATES --out ablations --only ppd
    python benchmarks/trained_ablations.py --data DATA --cache STATES --out ablations -- --rows 8
    python benchmarks/trained_ablations.py --out ablations --summary benchmarks/results/heads

They are table 6 and figure 8 for Chimera, with Medusa at the same budget, and tables 6.4 to 6.10
for PPD. DATA is a folder made by `paceline train data`. Every variant is one `paceline train …`
with its own folder in --out. All share one cache of the model's states; options after "--" go to
each. Repeat the command to continue unfinished variants. Several processes may share --out: each
leaves alone what another is training. The last command writes a file per finished variant, for the
tables in docs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, UsageError
from paceline.training.method import Finished
from paceline.training.methods import TRAINED

HEADS = "--vocabulary 8192 --heads 4 --validate-every 45"
RECIPES = {"chimera": HEADS, "medusa": HEADS, "ppd": "--heads 3 --validate-every 45"}
INTERRUPTED = 130


@dataclass(frozen=True)
class Variant:
    """A training. words: added to the method's recipe. longer: use the longer of the two lengths.
    start: the variant whose parts it starts from, trained before it."""

    method: str
    words: tuple[str, ...] = ()
    longer: bool = False
    start: str = ""


VARIANTS = {
    "order-3": Variant("chimera", ("--order", "3")),
    "medusa": Variant("medusa"),
    "no-residual": Variant("chimera", ("--no-residual",)),
    "order-1": Variant("chimera", ("--order", "1")),
    "order-2": Variant("chimera", ("--order", "2")),
    "order-4": Variant("chimera", ("--order", "4")),
    "order-5": Variant("chimera", ("--order", "5")),
    "transformer-frozen": Variant("chimera", ("--bottom", "transformer frozen")),
    "transformer-finetune": Variant("chimera", ("--bottom", "transformer finetune")),
    "full": Variant("chimera", ("--form", "full")),
    "medusa-full": Variant("medusa", ("--form", "full")),
    "labels": Variant("chimera", ("--loss", "labels")),
    "blend": Variant("chimera", ("--loss", "blend")),
    "last-layer": Variant("chimera", ("--block", "last-layer", "--final-norm")),
    "own-guesses": Variant("chimera", ("--own-guesses",)),
    "no-states": Variant("chimera", ("--state-weight", "0")),
    "order-3-longer": Variant("chimera", ("--order", "3"), longer=True),
    "no-residual-longer": Variant("chimera", ("--no-residual",), longer=True),
    "medusa-longer": Variant("medusa", longer=True),
    "ppd": Variant("ppd"),
    "ppd-longer": Variant("ppd", longer=True),
    "ppd-labels": Variant("ppd", ("--loss", "labels")),
    "ppd-one-window": Variant("ppd", ("--rows", "1"), longer=True),
    "ppd-epts-10": Variant("ppd", ("--epts", "10")),
    "ppd-epts-30": Variant("ppd", ("--epts", "30")),
    "ppd-decoder": Variant("ppd", ("--epts", "10", "--mask", "decoder")),
    "ppd-encoder": Variant("ppd", ("--epts", "10", "--mask", "encoder")),
    "ppd-weights": Variant("ppd", ("--epts", "10", "--learned-weights")),
    "ppd-prefix": Variant("ppd", ("--prefix-tokens", "1")),
    "ppd-small-head": Variant("ppd", ("--output-head", "small")),
    "ppd-full-head": Variant("ppd", ("--output-head", "full")),
    "ppd-small-head-after": Variant("ppd", ("--output-head", "small"), start="ppd"),
    "ppd-full-head-after": Variant("ppd", ("--output-head", "full"), start="ppd"),
    "ppd-exits-2": Variant("ppd", ("--exits", "2")),
    "ppd-exits-3": Variant("ppd", ("--exits", "3")),
}


def command(variant: Variant, folder: Path, options: argparse.Namespace) -> list[str]:
    """The command that trains a variant."""
    words = ["paceline", "train", variant.method, "--model", options.model]
    words += ["--data", str(options.data), "--threads", str(options.threads)]
    words += ["--cache", str(options.cache)] if options.cache else []
    words += shlex.split(RECIPES[variant.method])
    words += ["--start", str(options.out / variant.start)] if variant.start else []
    if variant.method == "chimera" and "--block" not in variant.words:
        words += ["--intermediate", str(options.intermediate)]
    words += ["--steps", str(options.longer if variant.longer else options.steps)]
    words += ["--test", str(options.test), *variant.words, *options.words]
    return [*words, "--out", str(folder)]


def chosen(names: Sequence[str]) -> list[str]:
    """Variants by name; a method's name selects all its variants."""
    found: list[str] = []
    for name in names:
        own = [each for each, variant in VARIANTS.items() if variant.method == name]
        found += own or [name]
    return list(dict.fromkeys(found))


def train(names: Sequence[str], options: argparse.Namespace) -> int:
    """Train unfinished variants; return how many remain unfinished."""
    for place, name in enumerate(names, start=1):
        variant, folder = VARIANTS[name], options.out / name
        words = command(variant, folder, options)
        found = _finished(variant, folder)
        if found is not None:
            _check_same(name, found.record, words)
            _note(f"{place}/{len(names)} {name}: finished before")
            continue
        _note(f"{place}/{len(names)} {name}: {shlex.join(words)}")
        paceline = shutil.which("paceline") or "paceline"
        ended = subprocess.run([paceline, *words[1:]], check=False).returncode
        if ended == INTERRUPTED:
            raise KeyboardInterrupt
        if ended:
            _note(f"{name} ended with {ended}: going on with the next one")
    left = [name for name in names if _finished(VARIANTS[name], options.out / name) is None]
    if left:
        _note(f"not finished: {', '.join(left)}")
    return len(left)


def summarise(names: Sequence[str], options: argparse.Namespace) -> None:
    """Write a file per finished variant."""
    options.summary.mkdir(parents=True, exist_ok=True)
    for name in names:
        variant, folder = VARIANTS[name], options.out / name
        parts = _finished(variant, folder)
        if parts is None:
            _note(f"{name} is not finished")
            continue
        record: Any = parts.record
        trained = [part for part in parts.tensors.values() if part.is_floating_point()]
        content = {
            **record["about"],
            "settings": record["run"]["settings"],
            "texts": record["texts"],
            "steps": record["steps"],
            "seconds": record["seconds"],
            "numbers": sum(part.numel() for part in trained),
            "bytes": (folder / "model.safetensors").stat().st_size,
            "loss_curve": record["loss_curve"],
            "evaluation": record["evaluation"],
        }
        path = options.summary / f"{name}.json"
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        _note(f"{path}: {record['evaluation']['points']} places")


def _finished(variant: Variant, folder: Path) -> Finished | None:
    """The result of a finished training; None if there is none."""
    return TRAINED[variant.method].finished().found_in(folder)


def _check_same(name: str, record: Mapping[str, Any], words: Sequence[str]) -> None:
    """Raise UsageError if the variant was trained by another command."""
    trained = record["about"].get("command")
    if trained != shlex.join(words):
        raise UsageError(
            f"{name} was trained by another command ({trained}): repeat its options, or choose "
            "another --out"
        )


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder per variant goes here")
    parser.add_argument("--summary", type=Path, metavar="DIR", help="write results, train nothing")
    parser.add_argument(
        "--only", default=",".join(RECIPES), help="variants, or all of a method, by commas"
    )
    parser.add_argument("--data", type=Path, help="made by 'paceline train data'")
    parser.add_argument("--cache", type=Path, help="keeps the model's states for all variants")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--longer", type=int, default=270, help="steps of the longer trainings")
    parser.add_argument("--test", type=float, default=0.15, help="share of the answers")
    parser.add_argument("--intermediate", type=int, default=1024, help="of the context encoder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("words", nargs="*", metavar="-- OPTION …", help="for every training")
    options = parser.parse_args()
    names = chosen(options.only.split(","))
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        parser.error(f"no variant {unknown[0]!r}; there are: {', '.join(VARIANTS)}")
    if options.summary is None and options.data is None:
        parser.error("name the training data with --data")
    try:
        if options.summary is not None:
            summarise(names, options)
        else:
            sys.exit(1 if train(names, options) else 0)
    except PacelineError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
