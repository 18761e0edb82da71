"""A text of a session while it is generated, piece by piece, and the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import finalize

from paceline.errors import INTERRUPTIONS, StoreError
from paceline.records import FinishReason, Round, TokenLogprob
from paceline.shared_batch import OpenText, Texts
from paceline.stats import Stats
from paceline.stopping import cut_off_reason
from paceline.text import OutputText


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


@dataclass(frozen=True)
class Completion:
    """What was generated.

    text: without special tokens, and without the token or stop string that ended it.
    tokens: all of them, including the one that ended the text.
    prompt_tokens: how many the prompt has; `cached_tokens` of these were already in the cache.
    lossless: whether the tokens are plain decoding's; True without typical acceptance.
    logprobs: of each of `tokens`, if requested.
    error: why the text was aborted, with the finish reason "error" or, if that was an interruption,
    "interrupted".
    unkept: what went wrong in the datastore or the store of answers; usually (`StoreError.kept`) the
    answer is not kept there.
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


class Store(Protocol):
    """Outputs of earlier queries, e.g. `paceline.references.ReferenceStore`."""

    def add(self, query: str, output: str) -> None:
        """Remember an answer."""

    def search(self, query: str, limit: int = 4) -> Sequence[Any]:
        """Entries of similar queries, best first, each with an `output`."""


@dataclass(frozen=True)
class Begun:
    """A text that takes part in its session's rounds.

    texts: those of the session. output: decodes the text. keeps: called with the text and tokens of
    the answer, to keep it.
    """

    texts: Texts
    text: OpenText
    output: OutputText
    keeps: list[Callable[[str, list[int]], None]]


class Stream(Iterator[Chunk]):
    """A generation in progress. Iterate for its text; `completion` is the result so far.

    begin: lets the text join those of its session, when it is first needed.

    Raises the errors of its own text, never those of others.
    """

    def __init__(self, begin: Callable[[], Begun]) -> None:
        self.stats = Stats()
        self._begin = begin
        self._text: Begun | None = None
        self._error: BaseException | None = None
        # For every token: whether it was guessed, and by which sources.
        self._drafted: list[tuple[bool, tuple[str, ...]]] = []
        self._logprobs: list[TokenLogprob] = []
        self._chunks: deque[Chunk] = deque()
        self._released = 0  # tokens whose log-probabilities are in chunks
        self._ended = False
        self._unkept: StoreError | None = None

    def __next__(self) -> Chunk:
        # Not a generator, which would keep the stream alive: an abandoned one should end at once.
        while not self._chunks:
            if self._ended:
                raise StopIteration
            self._play()
        return self._chunks.popleft()

    def begun(self) -> Begun:
        """The text, which joins the others when it is first needed."""
        if self._text is None:
            begun = self._begin()
            # Once the stream is garbage collected, nothing will ask for the text again.
            self._given_up = finalize(self, begun.texts.abandon, begun.text.key)
            self._text = begun
            if self._ended:  # closed meanwhile
                self._leave()
        return self._text

    def poll(self) -> list[Chunk]:
        """The chunks that rounds played elsewhere, with `Texts.play`, made certain. Once
        `ended`, no more follow."""
        begun = self.begun()
        rounds, goes_on = begun.texts.take_rounds(begun.text)
        if not (all(self.hear(round) for round in rounds) and goes_on):
            self._end()
        self._release()
        chunks = list(self._chunks)
        self._chunks.clear()
        return chunks

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
            while self._next_round():
                pass
        return self._end(raise_errors)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """While this lasts, the text takes part in every round, whichever thread plays it."""
        begun = self._text
        if begun is None and self._error is None:
            try:
                begun = self.begun()
            except INTERRUPTIONS:
                raise
            except BaseException as error:  # a drafter's or the machine's, too: others go on
                self._error = error
        with nullcontext() if begun is None else begun.texts.awaiting(begun.text):
            yield

    @property
    def completion(self) -> Completion:
        """The result, partial if the generation has not ended."""
        if self._text is None:
            return Completion("", [], cut_off_reason(self._error), self.stats, 0, error=self._error)
        generation = self._text.text.generation
        error = generation.error or self._error
        tokens = generation.output[: self.stats.tokens]
        whole = error is None and len(tokens) == len(generation.output)
        return Completion(
            text=self._text.output.of(len(tokens)),
            tokens=tokens,
            finish_reason=(generation.stopping.reason if whole else None) or cut_off_reason(error),
            stats=self.stats,
            prompt_tokens=len(generation.prompt),
            cached_tokens=generation.reused,
            lossless=generation.typical is None,
            error=error,
            logprobs=tuple(self._logprobs[: len(tokens)]),
            unkept=self._unkept,
        )

    def _end(self, raise_errors: bool = True) -> Completion:
        """No round follows: close the text, and remember the answer unless it was cut off."""
        if self._text is not None and not self._ended:
            self._expect(len(self._text.text.generation.output))
        self._ended = True
        self._leave()
        completion = self.completion
        if completion.error is not None:
            if raise_errors:
                raise completion.error
            return completion
        if self._text is not None:
            self._text.output.finish()
            # What was written of a text before somebody closed it is not an answer.
            if completion.finish_reason != "interrupted":
                self._keep(self._text, completion.tokens)
        return self.completion

    def _keep(self, begun: Begun, tokens: list[int]) -> None:
        """Keep the answer if requested, once; a failure does not fail the request."""
        while begun.keeps:  # a failure of one keeps nothing from the other
            try:
                begun.keeps.pop(0)(begun.output.text, tokens)
            except StoreError as error:
                self._unkept = self._unkept or error
            except INTERRUPTIONS:
                raise
            except BaseException as error:  # a store's encoder may raise anything
                self._unkept = self._unkept or StoreError(f"an answer could not be kept ({error})")

    def _leave(self) -> None:
        if self._text is not None and self._given_up.detach():
            texts, text = self._text.texts, self._text.text
            try:
                texts.end(text)
            except BaseException:  # interrupted while others have the turn
                texts.abandon(text.key)
                raise

    def _next_round(self) -> bool:
        """Take the text's next round; False if it has ended or failed."""
        if self._error is not None:
            return False
        begun = self.begun()
        round = begun.texts.next_round(begun.text)
        return round is not None and self.hear(round)

    def hear(self, round: Round) -> bool:
        """Add a round to what was heard; False if the text has failed."""
        self._expect(round.begin)
        if self._error is not None:
            return False
        begun = self.begun()
        try:
            self._logprobs += round.logprobs
            for token in round.path.tokens:
                begun.output.push(token)
            self._drafted += [(True, round.proposers(node)) for node in round.path.nodes]
            self._drafted.append((False, ()))
            # This may grow: a text may take over the prefix that another one has read.
            self.stats.reused = begun.text.generation.reused
            self.stats.add(round)  # last: the completion has the tokens that are counted here
        except BaseException as error:  # tokens or text may be missing
            self._error = error
            if isinstance(error, INTERRUPTIONS):
                raise
            return False  # it is raised, or reported, where the text ends
        return True

    def _expect(self, tokens: int) -> None:
        """Fail the text if not all its tokens so far were heard: a round was lost on the way."""
        if self._error is None and self.stats.tokens < tokens:
            self._error = KeyboardInterrupt("an interruption has cut off this text: begin it again")

    def _play(self) -> None:
        """Hand out what one more round makes certain; the rest if the text has ended."""
        begun = self.begun()
        with begun.texts.awaiting(begun.text):
            goes_on = self._next_round()
        if not goes_on:
            self._end()
        self._release()

    def _release(self) -> None:
        try:
            for piece in self.begun().output.release(final=self._ended):
                # A chunk may complete what several tokens began, and a token may span two chunks.
                known = slice(self._released, piece.token + 1)
                self._released = max(self._released, piece.token + 1)
                drafted, logprobs = self._drafted[piece.token], tuple(self._logprobs[known])
                self._chunks.append(Chunk(piece.text, *drafted, logprobs))
        except BaseException as error:  # text may be missing
            self._error = error
            raise
