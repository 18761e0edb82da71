"""Inside vLLM: drafters as its speculative method `custom_class`, see docs/vllm.md.

vLLM verifies one chain per request and step. It shows a proposer the tokens of its batch, but not
whose they are, nor which requests have ended, and rows move as requests come and go. So a text is
recognised by its tokens, and one that is missing for some steps is assumed to have ended.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafters import Host, make_drafter
from paceline.drafters.plain import Plain
from paceline.errors import UsageError
from paceline.protocols import Drafter, Target, check_capabilities
from paceline.records import Path, Round, TextStart
from paceline.tree import EMPTY, Tree

KNOWN_VERSIONS = ("0.32", "0.33")
"""Of vLLM; its interface may change with any other version."""

LEAST_SHARE = 0.3
"""Guesses below it rarely came true."""
PATIENCE = 4
"""A text counts as ended after this many steps without it: vLLM may preempt and resume it."""

NODES_PER_TOKEN = 4
"""Nodes asked of a drafter per token of the chain, so that branches do not cut it short."""
_TAIL = 8

_log = logging.getLogger(__name__)


class Proposer:
    """Drafts chains for vLLM, with one drafter per running request.

    method: of the drafters, in paceline's notation. It may need nothing from the model but its
    text. A proposer's drafters share what they keep of other texts.

    vllm_config: vLLM's. The entry "paceline" of its `additional_config` may hold settings of the
    method, and `least_share`: how likely the last token of a chain must be, by the drafter's own
    estimate, from 0.0 to 1.0.

    Raises UsageError for another version of vLLM, for what `make_drafter` refuses, and for a method
    that needs more.
    """

    method: ClassVar[str]

    def __init__(self, vllm_config: Any) -> None:
        _check_version()
        self._settings = _settings(vllm_config)
        share = self._settings.pop("least_share", LEAST_SHARE)
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UsageError(f"least_share must be a number from 0 to 1, got {share!r}")
        self._least_share = float(share)
        self._most: int = vllm_config.speculative_config.num_speculative_tokens
        self._max_context: int = vllm_config.model_config.max_model_len
        self._host = Host(_VllmModel())
        self._keys = count()
        # Keyed by length and last tokens; texts may be equal.
        self._texts: dict[bytes, list[_Text]] = {}
        drafter = self._make()
        check_capabilities(drafter, self._host.target)
        if drafter.sized_by != "nodes":
            raise UsageError(
                f"trees of {self.method} must stay whole, but vLLM takes only chains: choose "
                "another method"
            )

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Do nothing: there is no model to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[list[int]],
        num_tokens_no_spec: NDArray[Any],
        token_ids_cpu: NDArray[Any],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """The drafts of one step, by row of the batch; [] for none.

        sampled_token_ids: tokens that each row has gained, [] during its prefill.
        num_tokens_no_spec: [rows or more] lengths including these. token_ids_cpu: [rows or more,
        longest] the rows. slot_mappings: ignored.
        """
        before, self._texts = self._texts, {}
        drafts: list[list[int]] = []
        for gained, length, row in zip(sampled_token_ids, num_tokens_no_spec, token_ids_cpu):
            if not gained:
                drafts.append([])
                continue
            text = self._taken(before, row[: length - len(gained)])
            self._play(text, gained)
            text.tokens, text.missed = row[:length].copy(), 0
            self._texts.setdefault(_key(text.tokens), []).append(text)
            drafts.append(list(text.draft.tokens))
        self._miss([text for alike in before.values() for text in alike])
        return drafts

    def _taken(self, texts: dict[bytes, list[_Text]], tokens: NDArray[Any]) -> _Text:
        """Take the text of these tokens out of `texts`, or start a new one."""
        alike = texts.get(_key(tokens), [])
        for place, text in enumerate(alike):
            if np.array_equal(text.tokens, tokens):
                return alike.pop(place)
        text = _Text(next(self._keys), self._make(), tokens)
        with _alone(text):
            text.drafter.start(TextStart(tokens.tolist(), key=text.key))
        return text

    def _play(self, text: _Text, gained: list[int]) -> None:
        """Observe the tokens gained, and draft what follows."""
        drafter, accepted = text.drafter, tuple(gained[:-1])
        room = min(self._most, self._max_context - len(text.tokens) - len(gained))
        foreseen = text.draft.tokens[: len(accepted)] == accepted
        tree = text.draft if foreseen else Tree.chain(accepted)
        text.draft = EMPTY
        with _alone(text):
            path = Path(tuple(range(len(accepted))), tuple(gained))
            drafter.observe(Round(text.key, tree, torch.empty(0), path, sources=drafter.report()))
            proposed = drafter.propose(NODES_PER_TOKEN * self._most)
            text.draft = likeliest_chain(proposed, room, self._least_share)

    def _miss(self, texts: Sequence[_Text]) -> None:
        """Count a step without these texts."""
        for text in texts:
            text.missed += 1
            if text.missed < PATIENCE:
                self._texts.setdefault(_key(text.tokens), []).append(text)
            else:
                with _alone(text):
                    text.drafter.stop()

    def _make(self) -> Drafter:
        return make_drafter(self.method, self._host, **self._settings)


class Anpd(Proposer):
    """Adaptive n-grams from the text."""

    method = "anpd"


class Llma(Proposer):
    """Copies from the prompt."""

    method = "llma"


class Suffix(Proposer):
    """Counts what follows suffixes of all lengths, in the text and in answers to other requests."""

    method = "suffix"


class Auto(Proposer):
    """The three above combined."""

    method = "auto:sources=anpd+suffix+llma"


@dataclass
class _Text:
    """A request's text as last seen. tokens: [length]. draft: guesses that follow them. missed:
    steps without the text since."""

    key: int
    drafter: Drafter
    tokens: NDArray[Any]
    draft: Tree = EMPTY
    missed: int = 0


class _VllmModel(Target):
    """The target that drafters see: vLLM's model offers them nothing."""

    vocab_size = sys.maxsize
    max_context = None
    capabilities = frozenset()

    def _nothing(self, *arguments: Any, **options: Any) -> Any:
        raise self._lacks("passes for drafters")

    open = close = forget = pending = score = commit = describe = _nothing


def likeliest_chain(tree: Tree, most: int, least_share: float = 0.0) -> Tree:
    """A tree's spine: at most `most` tokens, up to the first less likely than `least_share`."""
    chain = tree.spine().clip(max(0, most))
    weights = chain.weights or (1.0,) * len(chain)
    likely = takewhile(lambda weight: weight >= least_share, weights)
    return chain.keep(range(len(list(likely))))


def _key(tokens: NDArray[Any]) -> bytes:
    return len(tokens).to_bytes(8) + tokens[-_TAIL:].tobytes()


@contextmanager
def _alone(text: _Text) -> Iterator[None]:
    """Confine an error to its text, which continues without drafts."""
    try:
        yield
    except Exception:
        _log.exception("%s failed: its text continues without drafts", type(text.drafter).__name__)
        text.drafter = Plain()


def _check_version() -> None:
    from vllm import __version__ as version

    if ".".join(version.split(".")[:2]) not in KNOWN_VERSIONS:
        raise UsageError(
            f"vLLM {version} may call drafters in a way that this paceline does not know: use "
            f"vLLM {' or '.join(KNOWN_VERSIONS)}"
        )


def _settings(vllm_config: Any) -> dict[str, Any]:
    """The entry "paceline" of vLLM's `additional_config`."""
    additional = vllm_config.additional_config
    settings = additional.get("paceline", {}) if isinstance(additional, dict) else {}
    if not isinstance(settings, dict):
        raise UsageError(
            f'"paceline" in additional_config is {settings!r}: give settings by name, as in '
            '{"paceline": {"least_share": 0.2}}'
        )
    return dict(settings)
