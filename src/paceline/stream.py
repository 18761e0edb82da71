"""A text of a session while it is generated, piece by piece, and the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import finalize

from paceline.errors import PacelineError, StoreError
from paceline.generation import Generation
from paceline.messages import Prompt, Reference, query_of
from paceline.options import Options
from paceline.protocols import Drafter
from paceline.records import FinishReason, Round, TokenLogprob
from paceline.shared_batch import Texts
from paceline.stats import Stats
from paceline.text import OutputText, Tokenizer

__all__ = ["Chunk", "Completion", "Home", "Store", "Stream"]


class Store(Protocol):
    """Outputs of earlier queries, e.g. `paceline.references.ReferenceStore`."""

    def add(self, query: str, output: str) -> None:
        """Remember an answer."""
        ...

    def search(self, query: str, limit: int = 4) -> Sequence[Any]:
        """Entries of similar queries, best first, each with an `output`."""
        ...


@dataclass(frozen=True)
class Completion:
    """What was generated.

    text: without special tokens, and without the stop string that ended it.
    tokens: all of them, including the one that ended the text.
    prompt_tokens: how many the prompt has; `cached_tokens` of these were already in the cache.
    lossless: whether the tokens are plain decoding's; True without typical acceptance.
    logprobs: of each of `tokens`, if requested.
    error: why the text was aborted, if its finish reason is "error".
    unkept: why the answer could not be kept in the datastore or the store of answers.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    stats: Stats
    prompt_tokens: int
    cached_tokens: int = 0
    lossless: bool = True
    error: BaseException | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    unkept: StoreError | None = None


@dataclass(frozen=True)
class Chunk:
    """Newly certain text, and whether it came from an accepted guess of the drafter.

    sources: names of those that proposed it, if the drafter has sources.
    logprobs: if requested, of the tokens that became certain since the last chunk. Tokens at the
    end that are not part of the text, such as the one that ended it, are in no chunk.
    """

    text: str
    drafted: bool
    sources: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class Home(Protocol):
    """What a stream needs of its session."""

    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    store: Store | None
    texts: Texts

    def encode(self, prompt: Prompt) -> list[int]:
        """See `Session.encode`."""
        ...

    def encode_references(self, references: Sequence[Reference]) -> list[list[int]]:
        """See `Session.encode_references`."""
        ...

    def record(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """See `Session.record`."""
        ...

    def texts_of(
        self, options: Options, prompt: Sequence[int], references: Sequence[Sequence[int]]
    ) -> Callable[[Drafter], Generation]:
        """See `Session.texts_of`."""
        ...


class Stream(Iterator[Chunk]):
    """A generation in progress. Iterate for its text; `completion` is the result so far.

    Raises the errors of its own text, never those of others.
    """

    def __init__(
        self, home: Home, prompt: Prompt, references: Sequence[Reference], options: Options
    ) -> None:
        self.stats = Stats()
        self.output = OutputText(home.tokenizer, options.stop)
        self._home = home
        self._query = query_of(prompt)
        # Compared with None below, because an empty store is falsy.
        self._store = home.store if self._query else None
        self._prompt, self._references, self._options = prompt, references, options
        self._text: tuple[Generation, int] | None = None
        self._error: BaseException | None = None
        # For every token: whether it was guessed, and by which sources.
        self._drafted: list[tuple[bool, tuple[str, ...]]] = []
        self._logprobs: list[TokenLogprob] = []
        self._chunks: deque[Chunk] = deque()
        self._released = 0  # tokens whose log-probabilities are in chunks
        self._ended = False
        self._kept = False
        self._unkept: StoreError | None = None

    def __next__(self) -> Chunk:
        # Not a generator, which would keep the stream alive: an abandoned one should end at once.
        while not self._chunks:
            if self._ended:
                raise StopIteration
            self._chunks.extend(self._play())
        return self._chunks.popleft()

    def poll(self) -> list[Chunk]:
        """The chunks that rounds played elsewhere made certain; plays none itself. For a caller
        that drives many streams with `SharedBatch.play`. Once `ended`, no more follow."""
        _, key = self._begun()
        rounds, goes_on = self._home.texts.batch.take_rounds(key)
        for round in rounds:
            self._take(round)
        if not goes_on:
            self._ended = True
            self.finish()
        return list(self._release(final=self._ended))

    @property
    def ended(self) -> bool:
        """Whether all of the text has been handed out."""
        return self._ended and not self._chunks

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort the text, unless it has ended; the result so far remains."""
        self._ended = True
        self._leave()

    def run(self, raise_errors: bool = True) -> Completion:
        """Generate to the end, without chunks."""
        with self.awaited():
            while self._error is None and self._next_round() is not None:
                pass
        self._ended = True
        return self.finish(raise_errors)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """While this lasts, the text takes part in every round, whichever thread plays it."""
        try:
            _, key = self._begun()
        except PacelineError as error:
            self._error = error
            yield
            return
        with self._home.texts.batch.awaiting(key):
            yield

    @property
    def completion(self) -> Completion:
        """The result, partial if the generation has not ended."""
        if self._text is None:
            reason: FinishReason = "interrupted" if self._error is None else "error"
            return Completion("", [], reason, self.stats, 0, error=self._error)
        generation, _ = self._text
        tokens = generation.output[: self.stats.tokens]
        heard_all = len(tokens) == len(generation.output)
        return Completion(
            text=self.output.of(len(tokens)),
            tokens=tokens,
            finish_reason=(generation.stopping.reason if heard_all else None) or "interrupted",
            stats=self.stats,
            prompt_tokens=len(generation.prompt),
            cached_tokens=generation.reused,
            lossless=generation.typical is None,
            error=generation.error,
            logprobs=tuple(self._logprobs[: len(tokens)]),
            unkept=self._unkept,
        )

    def finish(self, raise_errors: bool = True) -> Completion:
        """Close the text and remember the answer."""
        self._leave()
        completion = self.completion
        if completion.error is not None:
            if raise_errors:
                raise completion.error
            return completion
        self.output.finish()
        if not self._kept:
            self._kept = True
            self._keep(completion)
        return self.completion

    def _keep(self, completion: Completion) -> None:
        """Keep the answer if requested; a failure does not fail the request."""
        try:
            if self._store is not None:
                self._store.add(self._query, self.output.text)
            if self._text is not None and self._options.record:
                self._home.record(self._text[0].prompt, completion.tokens)
        except StoreError as error:
            self._unkept = error

    def _begun(self) -> tuple[Generation, int]:
        """The text and its key; it joins the others when it is first needed."""
        if self._text is None:
            home, options = self._home, self._options
            similar = [] if self._store is None else self._store.search(self._query)
            prompt, references = home.encode(self._prompt), home.encode_references(self._references)
            references += home.encode_references([entry.output for entry in similar])
            self._text = home.texts.begin(home.texts_of(options, prompt, references))
            # Once the stream is garbage collected, nothing will ask for the text again.
            self._given_up = finalize(self, home.texts.batch.abandon, self._text[1])
        return self._text

    def _leave(self) -> None:
        if self._text is not None and self._given_up.detach():
            self._home.texts.end(*self._text)

    def _next_round(self) -> Round | None:
        _, key = self._begun()
        round = self._home.texts.batch.next_round(key)
        if round is not None:
            self._take(round)
        return round

    def _take(self, round: Round) -> None:
        self.stats.add(round)
        # This may grow: a text may take over the prefix that another one has read.
        self.stats.reused = self._begun()[0].reused
        self._logprobs += round.logprobs
        for token in round.path.tokens:
            self.output.push(token)
        self._drafted += [(True, round.proposers(node)) for node in round.path.nodes]
        self._drafted.append((False, ()))

    def _play(self) -> Iterator[Chunk]:
        """The chunks that one more round makes certain; the rest if the text has ended."""
        _, key = self._begun()
        with self._home.texts.batch.awaiting(key):
            round = self._next_round()
        self._ended = round is None
        if round is None:
            self.finish()
        return self._release(final=self._ended)

    def _release(self, final: bool = False) -> Iterator[Chunk]:
        for piece in self.output.release(final):
            # A chunk may complete what several tokens began, and a token may span two chunks.
            known = slice(self._released, piece.token + 1)
            self._released = max(self._released, piece.token + 1)
            yield Chunk(piece.text, *self._drafted[piece.token], tuple(self._logprobs[known]))
