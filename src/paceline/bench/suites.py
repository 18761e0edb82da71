"""Suites: named collections of prompts in JSONL files.

The files are in a folder that the user names; `paceline bench fetch` fills it from public sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from paceline.bench.trial import Answers, Request
from paceline.errors import UsageError, meant
from paceline.options import Options
from paceline.prompts import Conversation, PromptRecord, read_prompts
from paceline.session import Session

ALL = "all"
_ENDINGS = (".jsonl", ".jsonl.gz")

SUITES: dict[str, tuple[str, ...]] = {
    "spec-bench": ("spec_bench",),
    "mt-bench": ("mt_bench",),
    "chat": ("vicuna_bench", "eagle_alpaca"),
    "humaneval": ("humaneval",),
    "mbpp": ("mbpp",),
    "gsm8k": ("gsm8k",),
    "math": ("math500",),
    "cnndm": ("cnndm", "llma_cnndm"),
    "xsum": ("xsum",),
    "translation": ("wmt16_deen",),
    "rag": ("llma_rag",),
    "code-edits": ("canitedit", "editeval", "humanevalfix", "refactor"),
    "text-edits": ("jfleg", "asset"),
    "refinement": ("mteval_refine",),
    "multi-turn": ("mtbench101",),
}
"""Suite name -> files without suffix; those that exist are read."""

MT_BENCH = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip
"""The categories of MT-bench, in the order of its questions; Spec-Bench counts them as one task."""
MULTI_TURN = "multi_turn"
"""That task."""

WITH_MT_BENCH = ("mt_bench", "spec_bench")


@dataclass(frozen=True)
class Text:
    """One prompt of a suite; plain decoding's answers stand between its turns."""

    suite: str
    record: PromptRecord
    group: ClassVar[str] = ""

    def turns(self, session: Session) -> int:
        """1 if the turns form one text to continue."""
        return len(Conversation(self.record, session.tokenizer.chat_template).turns)

    def requests(self, session: Session, options: Options, answers: Answers) -> Iterator[Request]:
        """Yield one request per turn, lazily; end early if an answer that one needs is missing."""
        references = session.encode_references(self.record.references)
        talk = Conversation(self.record, session.tokenizer.chat_template)
        for turn in range(len(talk.turns)):
            yield Request(session.encode(talk.ask()), references, options)
            plain = answers(turn)
            if plain is None:
                return
            talk.take(session.tokenizer.decode(plain, skip_special_tokens=True))


def read_suites(
    names: Sequence[str], folder: Path | None, limit: int | None, by_category: bool = False
) -> list[Text]:
    """Read the texts of suites.

    names: suites, JSONL files in `folder` without suffix, paths of JSONL files, or "all" for every
    JSONL file in `folder`.
    limit: most prompts per task of a suite; the first ones are taken.
    by_category: the categories that records name are a suite's tasks.

    Raises UsageError for an unknown name, and for a file that is missing, malformed or empty.
    """
    texts = []
    for path in find_files(names, folder):
        taken: Counter[str] = Counter()
        for record in read_prompts(path, by_category=by_category):
            if not by_category and _stem(path) in WITH_MT_BENCH and record.task in MT_BENCH:
                record = replace(record, task=MULTI_TURN)
            taken[record.task] += 1
            if limit is None or taken[record.task] <= limit:
                texts.append(Text(suite_of(path), record))
    return texts


def find_files(names: Sequence[str], folder: Path | None) -> list[Path]:
    """List the files that `read_suites` would read. Raises UsageError as it does."""
    paths = dict.fromkeys(path for name in names for path in _files(name, folder))
    suites = Counter(map(_stem, paths))
    twice = [suite for suite, count in suites.items() if count > 1]
    if twice:
        raise UsageError(f"two files are named {twice[0]}.jsonl: rename one of them")
    return list(paths)


def suite_of(path: Path) -> str:
    """The suite that a file holds: its name without suffix, as text."""
    return _stem(path).encode(errors="replace").decode()


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _all_in(folder: Path) -> list[Path]:
    return sorted(path for ending in _ENDINGS for path in folder.glob(f"*{ending}"))


def _files(name: str, folder: Path | None) -> list[Path]:
    if name.endswith(_ENDINGS):
        return [Path(name)]
    if folder is None:
        raise UsageError(
            f"cannot find {name!r}: name the folder that holds it with --data, or give the path of "
            "a JSONL file"
        )
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: name the one with the JSONL files")
    if name == ALL:
        found = _all_in(folder)
        if not found:
            raise UsageError(f"{folder} holds no JSONL files: fill it with 'paceline bench fetch'")
        return found
    stems = SUITES.get(name, (name,))
    named = (folder / f"{stem}{ending}" for stem in stems for ending in _ENDINGS)
    found = [path for path in named if path.is_file()]
    if found:
        return found
    if name in SUITES:
        wanted = " or ".join(f"{stem}.jsonl" for stem in stems)
        raise UsageError(
            f"{folder} has no {wanted} for the suite {name!r}: fetch it with 'paceline bench fetch "
            f"{name} --data {folder}'"
        )
    known = dict.fromkeys([*SUITES, *map(_stem, _all_in(folder))])
    listed = ", ".join(known)
    raise UsageError(f"unknown suite {name!r}{meant(name, known)}: choose one of {listed}")
