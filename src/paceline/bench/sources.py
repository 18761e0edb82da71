"""Where the suites' prompts come from, and under which licences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from paceline.bench import conversions as rows_of
from paceline.bench.conversions import Convert
from paceline.bench.suites import ALL, SUITES
from paceline.errors import UsageError

__all__ = ["SOURCES", "HubTable", "RepositoryFiles", "Source", "find_sources"]


@dataclass(frozen=True)
class RepositoryFiles:
    """Files of a GitHub repository at one commit.

    paths: one JSONL file, perhaps gzipped, whose objects are the rows; or several text files, of
    which a row is the same line of each.
    """

    repository: str
    commit: str
    paths: tuple[str, ...]

    @property
    def page(self) -> str:
        """For people to read."""
        return f"https://github.com/{self.repository}"


@dataclass(frozen=True)
class HubTable:
    """A split of a dataset on the Hugging Face hub."""

    dataset: str
    config: str = "default"
    split: str = "test"

    @property
    def page(self) -> str:
        """For people to read."""
        return f"https://huggingface.co/datasets/{self.dataset}"


@dataclass(frozen=True)
class Source:
    """One file of prompts: where its rows are, whose they are, and what makes records of them."""

    place: RepositoryFiles | HubTable
    licence: str
    convert: Convert


def _file(repository: str, commit: str, *paths: str) -> RepositoryFiles:
    return RepositoryFiles(repository, commit, paths)


_FASTCHAT = ("lm-sys/FastChat", "0e6d3e4beaab66f4d3f93db72541a4abab8af28d")
_LMOPS = ("microsoft/LMOps", "4f2a9deb5f08e459fd44c2e4792344d78ca89fc3")
_QUESTIONS = "fastchat/llm_judge/data/{}/question.jsonl"
_NEWS = "texts of the newspapers, for research"

SOURCES: dict[str, Source] = {
    "spec_bench": Source(
        _file(
            "hemingkx/Spec-Bench",
            "fd2c1cd7d2201ef71db4c5f4e455008f017967bf",
            "data/spec_bench/question.jsonl",
        ),
        "Apache-2.0; parts keep their own: WMT14, CNN/DM, Natural Questions CC BY-SA, GSM8K MIT",
        rows_of.spec_bench,
    ),
    "mt_bench": Source(
        _file(*_FASTCHAT, _QUESTIONS.format("mt_bench")), "Apache-2.0", rows_of.mt_bench
    ),
    "vicuna_bench": Source(
        _file(*_FASTCHAT, _QUESTIONS.format("vicuna_bench")), "Apache-2.0", rows_of.vicuna_bench
    ),
    "humaneval": Source(
        _file(
            "openai/human-eval",
            "6d43fb980f9fee3c892a914eda09951f772ad10d",
            "data/HumanEval.jsonl.gz",
        ),
        "MIT",
        rows_of.humaneval,
    ),
    "humanevalfix": Source(
        _file(
            "bigcode-project/octopack",
            "e17a8f6470264286bc6a52eb8263582083bf3bf6",
            "evaluation/create/humaneval-x/data/python/data/humanevalpack.jsonl",
        ),
        "MIT",
        rows_of.humanevalfix,
    ),
    "mbpp": Source(
        _file(
            "google-research/google-research",
            "2251e8c67a7fe7d6348714967ee101080b28e956",
            "mbpp/mbpp.jsonl",
        ),
        "CC BY 4.0",
        rows_of.mbpp,
    ),
    "gsm8k": Source(
        _file(
            "openai/grade-school-math",
            "3101c7d5072418e28b9008a6636bde82a006892c",
            "grade_school_math/data/test.jsonl",
        ),
        "MIT",
        rows_of.gsm8k,
    ),
    "math500": Source(
        _file(
            "hemingkx/TokenSkip",
            "ef02f53b8c0f1be1922add79dfc06d74bda22d97",
            "datasets/math-500/test.jsonl",
        ),
        "MIT",
        rows_of.math500,
    ),
    "llma_rag": Source(
        _file(*_LMOPS, "llma/src/data/rag.jsonl"),
        "MIT; passages of MS MARCO, for research",
        rows_of.llma_rag,
    ),
    "llma_cnndm": Source(
        _file(*_LMOPS, "llma/src/data/cnndm.jsonl"), f"MIT; {_NEWS}", rows_of.llma_cnndm
    ),
    "editeval": Source(
        _file(
            "qishenghu/CodeInstruct",
            "43010410414c49bb442335178686512d482b89c8",
            "edit_eval/edit_eval.jsonl",
        ),
        "MIT",
        rows_of.editeval,
    ),
    "jfleg": Source(
        _file(
            "keisks/jfleg",
            "ee06ff806a208aba815ac45313f4e750a48330a5",
            "test/test.src",
            *(f"test/test.ref{number}" for number in range(4)),
        ),
        "CC BY-NC-SA 4.0",
        rows_of.jfleg,
    ),
    "asset": Source(
        _file(
            "facebookresearch/asset",
            "9d659040d0d8942dbc4cd65cf357563b43fd9ab4",
            "dataset/asset.test.orig",
            *(f"dataset/asset.test.simp.{number}" for number in range(10)),
        ),
        "CC BY-NC 4.0",
        rows_of.asset,
    ),
    "mteval_refine": Source(
        _file(
            "KwanWaiChung/MT-Eval",
            "bfe3a46e41c9837a8ca2a9957c1b1699e5fffef1",
            "raw_data/refinement_multi_inst.jsonl",
        ),
        "MIT",
        rows_of.mteval_refine,
    ),
    "mtbench101": Source(
        _file(
            "mtbench101/mt-bench-101",
            "bc18b3e2c18c99164e11528f1a79c92083db5953",
            "data/subjective/mtbench101.jsonl",
        ),
        "Apache-2.0",
        rows_of.mtbench101,
    ),
    "cnndm": Source(
        HubTable("abisee/cnn_dailymail", "3.0.0"), f"Apache-2.0; {_NEWS}", rows_of.cnndm
    ),
    "xsum": Source(
        HubTable("EdinburghNLP/xsum"), "MIT; texts of the BBC, for research", rows_of.xsum
    ),
    "wmt16_deen": Source(
        HubTable("wmt/wmt16", "de-en"), "newstest2016, free for research", rows_of.wmt16_deen
    ),
    "canitedit": Source(
        HubTable("nuprl/CanItEdit"),
        "BSD-3-Clause with a restriction: not to be used as training data",
        rows_of.canitedit,
    ),
}
"""Name of a file without its ending -> its source."""


def find_sources(names: Sequence[str]) -> dict[str, Source]:
    """The sources of suites, of files by name without their ending, or of "all".

    Raises UsageError for a name that stands for none.
    """
    return {stem: SOURCES[stem] for name in names for stem in _stems(name)}


def _stems(name: str) -> list[str]:
    if name == ALL:
        return list(SOURCES)
    stems = [stem for stem in SUITES.get(name, (name,)) if stem in SOURCES]
    if stems:
        return stems
    known = [suite for suite, stems in SUITES.items() if SOURCES.keys() & set(stems)]
    known += [stem for stem in SOURCES if stem not in known]
    close = get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise UsageError(f"no source is known for {name!r}{hint}; there are: {ALL}, {', '.join(known)}")
