"""Compiles constraints into matchers for one tokenizer, with llguidance."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from copy import copy
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from paceline.constraints import Constraint
from paceline.constraints.grammar_length import grammar_length
from paceline.constraints.grammar_matcher import (
    GrammarMatcher,
    Habits,
    Tokens,
    clock,
    first_line,
)
from paceline.constraints.own_thread import in_own_thread
from paceline.constraints.schema_length import COMPACT, schema_length
from paceline.errors import UsageError

MOST_COMPILED = 64
"""Compiled constraints to keep, those used last."""

_MOST_STATES = 100_000
"""States of a text's lexer."""
_MOST_LENGTH = 1_000_000
"""Characters that may be forced at once; llguidance takes some 200 bytes for each."""
_MOST_FORCED = 4096
"""Tokens that the beginning may force: llguidance walks through all of them in every call."""
_SLOW = 0.05
"""Seconds of a call at the beginning, after the first one."""
_STACK = 1 << 28
"""Bytes of address space; what a constraint as long as is allowed can need, several times over.
llguidance follows rules and references by recursion, and a chain of thousands would overflow a
usual stack, which ends the process."""

# Between parts of JSON: up to two spaces, or a line break with an indentation. Without a bound a
# small model writes white space forever.
_FREE = {"whitespace_pattern": r"( {0,2}|\n[ \t]{0,40})"}
# Its advice names an option that callers cannot set.
_ONE_OF = ("Enable 'coerce_one_of' option to approximate oneOf with anyOf", "Use anyOf instead")
# Where a terminal takes all that the next one could, llguidance would look for what must follow
# without end. At the end of the text, as the last such line counts.
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'


class Grammars:
    """Compiles constraints for texts of one tokenizer and model, and keeps what was compiled.

    tokenizer: a fast one of transformers. vocab_size: of the model. eos_ids: tokens that end a
    text.

    Thread-safe.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._eos_ids = list(eos_ids)
        # Once one is needed: llguidance's vocabulary, and what matchers know of it.
        self._known: tuple[Any, Tokens] | None = None
        self._compiled: OrderedDict[Constraint, Future[GrammarMatcher]] = OrderedDict()
        self._held: WeakValueDictionary[Constraint, GrammarMatcher] = WeakValueDictionary()
        self._lock, self._reading = Lock(), Lock()

    def kept(self, constraint: Constraint) -> GrammarMatcher | None:
        """A constraint that is compiled, None for another. It is not compiled again while the
        caller holds this or any of its matchers, however many others are."""
        with self._lock:
            if constraint in self._compiled:
                self._compiled.move_to_end(constraint)
            return self._held.get(constraint)

    def matcher(self, constraint: Constraint) -> GrammarMatcher:
        """A matcher for one text, at its beginning.

        Raises UsageError like `vocabulary`, and if the constraint cannot be satisfied or is not
        supported by llguidance.
        """
        with self._lock:
            compiled = self._compiled.pop(constraint, None) or self._begun(constraint)
            self._compiled[constraint] = compiled  # as the one used last
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        try:
            made = compiled.result()  # without the lock: texts with other constraints go on
        except BaseException:
            with self._lock:
                self._compiled.pop(constraint, None)
            raise
        with self._lock:
            self._held[constraint] = made
            return made.copy()

    def vocabulary(self) -> tuple[Any, Tokens]:
        """What all constraints need of the tokenizer; it takes seconds the first time.

        Raises UsageError if llguidance is missing or the tokenizer is a slow one.
        """
        with self._reading:
            if self._known is None:
                self._known = self._read_vocabulary()
            return self._known

    def _begun(self, constraint: Constraint) -> Future[GrammarMatcher]:
        held = self._held.get(constraint)
        if held is None:
            return in_own_thread(partial(self._compile, constraint), _STACK)
        known: Future[GrammarMatcher] = Future()
        known.set_result(held)
        return known

    def _compile(self, constraint: Constraint) -> GrammarMatcher:
        vocabulary, tokens = self.vocabulary()
        try:
            return _compiled(_llguidance(), constraint, vocabulary, tokens)
        except ValueError as error:
            why = first_line(str(error)).replace(*_ONE_OF)
            raise UsageError(f"the {constraint.what} cannot be used: {why}") from error

    def _read_vocabulary(self) -> tuple[Any, Tokens]:
        _llguidance()
        from llguidance.hf import from_tokenizer

        tokenizer, size = self._tokenizer, self._vocab_size
        try:
            count = max(size, len(tokenizer))  # either may know more tokens
            vocabulary = from_tokenizer(_with_spaces(tokenizer), count, self._eos_ids or None)
        except (TypeError, ValueError) as error:
            raise UsageError(
                "constraints need a fast tokenizer with an end-of-sequence token, which this "
                f"model lacks: {first_line(str(error))}"
            ) from error
        added = tokenizer.added_tokens_decoder.items()
        special = {
            token: each.content for token, each in added if vocabulary.is_special_token(token)
        }
        return vocabulary, Tokens(count, size, _spelled(special, vocabulary, size), Habits())


def _with_spaces(tokenizer: Any) -> Any:
    """The tokenizer, or one whose decoder replaces marks by spaces: where it joins bytes and leaves
    the marks to Metaspace, llguidance would take them for text."""
    from tokenizers import decoders

    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    known = {} if decoder is None else json.loads(decoder.__getstate__())
    steps = {step["type"]: step for step in known.get("decoders", ())}
    if not steps.keys() >= {"ByteFallback", "Metaspace"}:
        return tokenizer
    made, backend = copy(tokenizer), copy(tokenizer.backend_tokenizer)
    spaces = decoders.Replace(steps["Metaspace"]["replacement"], " ")
    backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    made._tokenizer = backend
    return made


def _spelled(texts: dict[int, str], vocabulary: Any, size: int) -> dict[int, tuple[int, ...]]:
    """texts: of special tokens, and of those that end texts, which llguidance takes for special."""
    found = {token: tuple(vocabulary.greedy_tokenize(text)) for token, text in texts.items()}
    return {token: ids for token, ids in found.items() if ids and max(ids) < size}


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UsageError(
            "constraints need llguidance: install it with 'pip install paceline[constraints]'"
        ) from error
    return llguidance


def _compiled(
    library: Any, constraint: Constraint, vocabulary: Any, tokens: Tokens
) -> GrammarMatcher:
    """Raises ValueError for a constraint that cannot be used."""
    if _length(constraint) > _MOST_LENGTH:  # llguidance would fill the memory
        raise ValueError(
            f"its repetitions stand for more than {_MOST_LENGTH:,} characters, or cannot be counted: "
            "use lower counts"
        )
    grammar = _grammar(library.LLMatcher, constraint)
    # `verbose_errors` would report the parser's state; a state takes one or two kB.
    limits = library.LLParserLimits(verbose_errors=False, max_lexer_states=_MOST_STATES)
    matcher = library.LLMatcher(vocabulary, grammar, limits=limits, log_level=0)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    compiled = GrammarMatcher(matcher, tokens)
    compiled.allowed()  # a contradiction may show only here
    if matcher.is_stopped() and not matcher.is_accepting():
        raise ValueError("no text can satisfy it")
    _check_costs(compiled)
    return compiled


def _grammar(maker: Any, constraint: Constraint) -> Any:
    """The constraint in llguidance's own format."""
    kind, text = constraint.kind, constraint.text
    if kind == "json_schema":
        spaces = COMPACT if constraint.compact else _FREE
        return maker.grammar_from_json_schema(text, overrides=spaces)
    if kind == "regex":
        return maker.grammar_from_regex(text)
    if kind == "grammar":
        text += _NO_FORCING
    elif kind == "choice":
        # In ASCII, as its lexer refuses some control characters; as one terminal, as a rule may
        # have 2,000 alternatives at most.
        choices = " | ".join(map(json.dumps, json.loads(text)))
        text = f"start: CHOICE\nCHOICE: {choices}"
    return maker.grammar_from_lark(text)


def _length(constraint: Constraint) -> float:
    """The length of what it can force, unless it is one terminal, whose states are limited."""
    if constraint.kind in ("grammar", "calls"):
        return grammar_length(constraint.text)
    if constraint.kind == "json_schema":
        try:
            schema = json.loads(constraint.text)
        except (ValueError, RecursionError):  # llguidance will say so
            return 0.0
        return schema_length(schema)
    return 0.0


def _check_costs(compiled: GrammarMatcher) -> None:
    """Raise ValueError for a constraint that would take too long in every round."""
    if len(compiled.forced()) > _MOST_FORCED:
        raise ValueError(
            f"it forces more than {_MOST_FORCED} tokens at once, which is too costly: use shorter "
            "texts or lower counts"
        )
    for call in (compiled.allowed, compiled.forced):
        began = clock()
        call()
        if clock() - began > _SLOW:
            raise ValueError("it takes too long for every token: use a simpler one")
