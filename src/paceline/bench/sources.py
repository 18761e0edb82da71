"""The sources of the suites' prompts, and their licences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from paceline.bench.conversions import CONVERSIONS, Convert
from paceline.bench.suites import ALL, SUITES
from paceline.errors import UsageError, meant


@dataclass(frozen=True)
class RepositoryFiles:
    """Files of a GitHub repository at one commit. paths: one JSONL file, perhaps gzipped, whose
    objects are the rows; or several text files: row n is line n of each."""

    repository: str
    commit: str
    paths: Sequence[str]

    @property
    def page(self) -> str:
        """Its web page."""
        return f"https://github.com/{self.repository}"


@dataclass(frozen=True)
class HubTable:
    """A split of a dataset on the Hugging Face hub."""

    dataset: str
    config: str = "default"
    split: str = "test"

    @property
    def page(self) -> str:
        """Its web page."""
        return f"https://huggingface.co/datasets/{self.dataset}"


@dataclass(frozen=True)
class Source:
    """One file of prompts: where its rows are, their licence, and how to convert them."""

    place: RepositoryFiles | HubTable
    licence: str
    convert: Convert


def _source(stem: str, licence: str, **place: Any) -> Source:
    """An entry of `sources.json`."""
    return Source(
        HubTable(**place) if "dataset" in place else RepositoryFiles(**place),
        licence,
        CONVERSIONS[stem],
    )


_LISTED = files(__package__).joinpath("sources.json").read_text(encoding="utf-8")
SOURCES = {stem: _source(stem, **entry) for stem, entry in json.loads(_LISTED).items()}
"""File name without suffix -> its source."""


def find_sources(names: Sequence[str]) -> dict[str, Source]:
    """Find the sources of suites, of files named without suffix, or of "all".

    Raises UsageError for an unknown name.
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
    listed = ", ".join([ALL, *known])
    raise UsageError(f"unknown set {name!r}{meant(name, known)}: choose one of {listed}")
