"""The friendly front: a model, a method, and generate / stream / chat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import finalize

from paceline.drafters import Host, Opener, make_drafter
from paceline.errors import PacelineError, UsageError
from paceline.loop import Batch, Generation
from paceline.messages import Message, Prompt, as_messages, query_of
from paceline.options import Options
from paceline.planning.cost_curve import CostCurve
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Target, Tokenizer, check_capabilities
from paceline.records import FinishReason, Round, Stats
from paceline.shared_batch import SharedBatch
from paceline.stopping import Stopping
from paceline.text import OutputText

__all__ = ["Chunk", "Completion", "Message", "Prompt", "Session", "Store", "Stream"]

_IDLE_DRAFTERS = 8


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
    tokens: all of them, the one that ended the text included.
    prompt_tokens: how many the prompt has; of these `cached_tokens` were in the cache already.
    lossless: whether they are plain decoding's, as they are without typical acceptance.
    error: why the text was broken off, where its finish reason is "error".
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    stats: Stats
    prompt_tokens: int
    cached_tokens: int = 0
    lossless: bool = True
    error: BaseException | None = None


@dataclass(frozen=True)
class Chunk:
    """Newly certain text, and whether it came from an accepted guess of the drafter."""

    text: str
    drafted: bool


class Session:
    """One model with one method.

    target, tokenizer: what runs the model and what reads and writes its text.
    method: a name in the notation "anpd:n=5,k=7", or a function that makes a drafter; settings:
    further ones of the former.
    eos_ids: tokens that end a text.
    store: where answers are kept and similar ones looked up as references; None for nowhere.
    options: defaults of every request.
    fingerprint: identifies the model's weights, for reports and for what was trained for them.
    budget: most nodes a drafter may propose per round, where the request does not say; None is
    as many as pay, planned round by round from what passes cost and how often guesses are right.
    curve: what passes of the target cost here; without one plans find out, and until then their
    trees are smaller or larger than pays.
    drafts: opens draft models for methods that name one, see `DraftModels`; None where none can be.

    The cache of the model, what drafters have learned and what plans rest on are kept from call to
    call: the next turn of a conversation, or another text with the same beginning, reads only what
    is new. Any number of streams may be open, and any number of threads may use a session: what
    they wait for at one time is written together.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer,
        method: str | Callable[[], Drafter] = "anpd",
        *,
        settings: Mapping[str, Any] | None = None,
        eos_ids: Sequence[int] = (),
        store: Store | None = None,
        options: Options | None = None,
        fingerprint: str = "",
        budget: int | None = None,
        curve: CostCurve | None = None,
        drafts: Opener | None = None,
    ) -> None:
        planner = TreePlanner(curve)
        self.host = Host(target, fingerprint, curve, open=drafts, costs=planner.costs)
        self.budget = budget
        self.target = target
        self.tokenizer = tokenizer
        self.method = method
        self._settings = dict(settings or {})
        self.eos_ids = tuple(eos_ids)
        self.store = store
        self.options = options or Options()
        self._texts = SharedBatch(Batch(target, planner))
        first = self._new_drafter()
        check_capabilities(first, target)
        self._idle = [first]

    @property
    def fingerprint(self) -> str:
        """Identifies the model's weights; "" where unknown."""
        return self.host.fingerprint

    def generate(
        self, prompt: Prompt, *, references: Sequence[str] = (), **options: Any
    ) -> Completion:
        """Generate to the end.

        prompt: text to continue, messages for the chat template, or token ids.
        references: texts that the output may resemble (used by methods that copy).
        options: fields of `Options` that differ from the session's.

        Raises UsageError for an empty or too long prompt or an option out of range.
        """
        return self.stream(prompt, references=references, **options).run()

    def stream(self, prompt: Prompt, *, references: Sequence[str] = (), **options: Any) -> Stream:
        """Like `generate`, as an iterator of text that comes.

        It begins when it is first asked. One that is not read to its end should be closed; until
        then its part of the cache is in use.
        """
        return Stream(self, prompt, references, self.options.with_(**options))

    def chat(
        self, messages: str | Sequence[Message], *, references: Sequence[str] = (), **options: Any
    ) -> Completion:
        """Answer the last message; a string is one message of the user.

        Hand in the conversation with every answer appended: what the cache holds already is not
        read again.
        """
        return self.generate(as_messages(messages), references=references, **options)

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        references: Sequence[Sequence[str]] = (),
        **options: Any,
    ) -> list[Completion]:
        """Generate for several prompts in common target passes.

        references: one sequence of texts per prompt, or nothing.

        Equal prompts get noise of their own: the text of place i is that of `generate` with the
        seed `seed + (i << 64)`. A prompt that cannot be served, or a text that fails, does not
        stop the others: see `Completion.error`.
        """
        chosen = self.options.with_(**options)
        if references and len(references) != len(prompts):
            raise UsageError(f"{len(references)} lists of references for {len(prompts)} prompts")
        streams = [
            Stream(
                self,
                prompt,
                references[place] if references else (),
                replace(chosen, seed=chosen.seed + (place << 64)),
            )
            for place, prompt in enumerate(prompts)
        ]
        with ExitStack() as awaited:
            for stream in streams:
                awaited.enter_context(stream.awaited())
            return [stream.run(raise_errors=False) for stream in streams]

    def budget_of(self, options: Options) -> int | None:
        """Most nodes of a request's trees: its own budget, else the session's, else None: plans."""
        return self.budget if options.budget is None else options.budget

    def settle(self) -> None:
        """Wait for what goes on in the background after loading; whoever measures does."""
        self.target.settle()

    def use_curve(self, curve: CostCurve | None) -> None:
        """Plan with what passes cost by this curve from now on; no text may be open."""
        planner = TreePlanner(curve)
        # Trees and lengths of drafts that were learned with another curve go with it.
        self.host = replace(self.host.fresh(), curve=curve, costs=planner.costs)
        self._texts = SharedBatch(Batch(self.target, planner))
        self._idle = [self._new_drafter()]

    def new_planner(self) -> TreePlanner:
        """A planner that has seen nothing yet, for one method on this target."""
        return TreePlanner(self.host.curve)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, special tokens and chat template included."""
        if isinstance(prompt, str):
            if not prompt:
                raise UsageError("the prompt is empty: give at least one character")
            return self._tokenize(prompt, special=True)
        if prompt and not isinstance(prompt[0], Mapping):
            return [int(token) for token in prompt]  # type: ignore[arg-type]
        if not prompt:
            raise UsageError("the prompt is empty: give at least one message or token")
        if not self.tokenizer.chat_template:
            raise UsageError(
                "this model has no chat template: give the prompt as plain text instead"
            )
        messages = [message for message in prompt if isinstance(message, Mapping)]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return self._tokenize(text)

    def encode_references(self, references: Sequence[str]) -> list[list[int]]:
        """Token ids of reference texts, without special tokens."""
        return [self._tokenize(text) for text in references]

    def _tokenize(self, text: str, special: bool = False) -> list[int]:
        try:
            return list(self.tokenizer(text, add_special_tokens=special).input_ids)
        except (TypeError, UnicodeEncodeError) as error:
            raise UsageError(
                "the text holds what is no character (a lone surrogate): read it as UTF-8"
            ) from error

    def _begin(self, generation: Callable[[Drafter], Generation]) -> tuple[Generation, int]:
        """A text joins the session's batch; it and its key there."""
        with self._texts.turn:
            drafter = self._idle.pop() if self._idle else self._new_drafter()
            begun = generation(drafter)
            return begun, self._texts.add(begun)

    def _end(self, generation: Generation, key: int) -> None:
        """A text leaves, and its drafter is free for the next one."""
        self._texts.drop(key)
        if len(self._idle) < _IDLE_DRAFTERS:
            self._idle.append(generation.drafter)

    def _new_drafter(self) -> Drafter:
        if isinstance(self.method, str):
            return make_drafter(self.method, self.host, **self._settings)
        return self.method()


class Stream(Iterator[Chunk]):
    """A generation in progress. Iterating gives its text; `completion` what there is so far.

    Raises what went wrong in its text, and nothing of what went wrong in others.
    """

    def __init__(
        self, session: Session, prompt: Prompt, references: Sequence[str], options: Options
    ) -> None:
        self.stats = Stats()
        self.output = OutputText(session.tokenizer, options.stop)
        self._session = session
        self._query = query_of(prompt)
        # An empty store is falsy, so the question is whether there is one.
        self._store = session.store if self._query else None
        self._prompt, self._references, self._options = prompt, references, options
        self._text: tuple[Generation, int] | None = None
        self._error: BaseException | None = None
        self._drafted: list[bool] = []
        self._chunks: deque[Chunk] = deque()
        self._ended = False

    def __next__(self) -> Chunk:
        # No generator: it would hold the stream, and one that nobody holds should end at once.
        while not self._chunks:
            if self._ended:
                raise StopIteration
            self._chunks.extend(self._go_on())
        return self._chunks.popleft()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Break the text off, if it has not ended; what there is of it stays."""
        self._ended = True
        self._leave()

    def run(self, raise_errors: bool = True) -> Completion:
        """Generate to the end without looking at the text on the way."""
        with self.awaited():
            while self._error is None and self._next_round() is not None:
                pass
        self._ended = True
        return self.finish(raise_errors)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """As long as this lasts the text goes on with every round that anybody plays."""
        try:
            _, key = self._begun()
        except PacelineError as error:
            self._error = error
            yield
            return
        with self._session._texts.awaiting(key):
            yield

    @property
    def completion(self) -> Completion:
        """The result, or what there is of it where the generation was broken off."""
        if self._text is None:
            return Completion("", [], "error", self.stats, 0, error=self._error)
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
        if self._store is not None:
            self._store.add(self._query, self.output.text)
        return self.completion

    def _begun(self) -> tuple[Generation, int]:
        """The text and its key; it joins the others when it is first needed."""
        if self._text is None:
            session, options = self._session, self._options
            similar = [] if self._store is None else self._store.search(self._query)
            texts = [*self._references, *(entry.output for entry in similar)]
            prompt, references = session.encode(self._prompt), session.encode_references(texts)
            # Others may play rounds of this text before its stream looks at them, so what stops the
            # text is not what the stream reads.
            stop = [OutputText(session.tokenizer, options.stop).push] if options.stop else []
            eos_ids = () if options.ignore_eos else session.eos_ids
            stopping = Stopping(options.max_new_tokens, eos_ids, stop)
            self._text = session._begin(
                lambda drafter: Generation(
                    prompt,
                    drafter,
                    stopping,
                    options.sampler(),
                    references,
                    options.acceptance,
                    session.budget_of(options),
                )
            )
            # A stream that nobody holds any more will not be asked again.
            self._given_up = finalize(self, session._texts.abandon, self._text[1])
            self.stats.reused = self._text[0].reused
        return self._text

    def _leave(self) -> None:
        if self._text is not None and self._given_up.detach():
            self._session._end(*self._text)

    def _next_round(self) -> Round | None:
        _, key = self._begun()
        round = self._session._texts.next_round(key)
        if round is not None:
            self.stats.add(round)
            for token in round.path.tokens:
                self.output.push(token)
        return round

    def _go_on(self) -> Iterator[Chunk]:
        """What one more round makes certain; the rest where there is none."""
        _, key = self._begun()
        with self._session._texts.awaiting(key):
            round = self._next_round()
        self._ended = round is None
        if round is None:
            self.finish()
        else:
            accepted = len(round.path.nodes)
            self._drafted += [place < accepted for place in range(len(round.path.tokens))]
        return self._release(final=self._ended)

    def _release(self, final: bool = False) -> Iterator[Chunk]:
        for piece in self.output.release(final):
            yield Chunk(piece.text, self._drafted[piece.token])
