"""The friendly front: a model, a method, and generate / stream / chat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from paceline.drafters import Host, Opener, make_drafter
from paceline.errors import UsageError
from paceline.loop import Generation, decode
from paceline.messages import Message, Prompt, as_messages, query_of
from paceline.options import Options
from paceline.planning.cost_curve import CostCurve
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Planner, Target, check_capabilities
from paceline.records import FinishReason, Stats
from paceline.stopping import Stopping
from paceline.text import OutputText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


__all__ = ["Chunk", "Completion", "Message", "Prompt", "Session", "Store", "Stream"]


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
    lossless: whether they are plain decoding's, as they are without typical acceptance.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    stats: Stats
    prompt_tokens: int
    lossless: bool = True


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

    The cache of the model, what the drafter has learned and what plans rest on are kept from call
    to call, so the next turn of a conversation reads only what is new. Not for several threads at
    once.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: PreTrainedTokenizerBase,
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
        self.host = Host(target, fingerprint, curve, open=drafts)
        self.budget = budget
        self.target = target
        self.tokenizer = tokenizer
        self.method = method
        self._settings = dict(settings or {})
        self.eos_ids = tuple(eos_ids)
        self.store = store
        self.options = options or Options()
        self._planner = self.new_planner()
        self._drafter = self._new_drafter()
        check_capabilities(self._drafter, target)

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
        """Like `generate`, as an iterator of text that comes."""
        return Stream(self, self._drafter, prompt, references, self.options.with_(**options))

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
        """Generate for several prompts in common target passes, each with its own drafter.

        references: one sequence of texts per prompt, or nothing.
        """
        chosen = self.options.with_(**options)
        if references and len(references) != len(prompts):
            raise UsageError(f"{len(references)} lists of references for {len(prompts)} prompts")
        streams = [
            Stream(self, self._new_drafter(), prompt, references[i] if references else (), chosen)
            for i, prompt in enumerate(prompts)
        ]
        generations = [stream.generation for stream in streams]
        for round in decode(self.target, generations, self.sizing(chosen)):
            streams[round.index].stats.add(round)
        return [stream.finish() for stream in streams]

    def sizing(self, options: Options, planner: Planner | None = None) -> int | Planner:
        """What sizes the trees of a request: its own budget, else the session's, else plans.

        planner: takes the place of the session's own, for other methods than the session's.
        """
        budget = self.budget if options.budget is None else options.budget
        return (planner or self._planner) if budget is None else budget

    def settle(self) -> None:
        """Wait for what goes on in the background after loading; whoever measures does."""
        preparation = getattr(self.target, "preparation", None)
        if preparation is not None:
            preparation.settle()

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
        text = self.tokenizer.apply_chat_template(
            list(prompt), tokenize=False, add_generation_prompt=True
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

    def _new_drafter(self) -> Drafter:
        if isinstance(self.method, str):
            return make_drafter(self.method, self.host, **self._settings)
        return self.method()


class Stream(Iterator[Chunk]):
    """A generation in progress. Iterating gives its text; `completion` what there is so far."""

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        prompt: Prompt,
        references: Sequence[str],
        options: Options,
    ) -> None:
        self.stats = Stats()
        self.output = OutputText(session.tokenizer, options.stop)
        self._query = query_of(prompt)
        # An empty store is falsy, so the question is whether there is one.
        self._store = session.store if self._query else None
        similar = [] if self._store is None else self._store.search(self._query)
        texts = [*references, *(entry.output for entry in similar)]
        self.generation = Generation(
            session.encode(prompt),
            drafter,
            Stopping(
                options.max_new_tokens,
                () if options.ignore_eos else session.eos_ids,
                [self.output.push],
            ),
            options.sampler(),
            session.encode_references(texts),
            options.acceptance,
        )
        self._drafted: list[bool] = []
        self._rounds = decode(session.target, [self.generation], session.sizing(options))
        self._chunks = self._play()

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def run(self) -> Completion:
        """Generate to the end without looking at the text on the way."""
        for round in self._rounds:
            self.stats.add(round)
        return self.finish()

    @property
    def completion(self) -> Completion:
        """The result, or what there is of it where the generation was broken off."""
        tokens = self.generation.output
        return Completion(
            text=self.output.of(len(tokens)),
            tokens=tokens,
            finish_reason=self.generation.stopping.reason or "interrupted",
            stats=self.stats,
            prompt_tokens=len(self.generation.prompt),
            lossless=self.generation.typical is None,
        )

    def finish(self) -> Completion:
        """Close the text and remember the answer."""
        self.output.finish()
        if self._store is not None:
            self._store.add(self._query, self.output.text)
        return self.completion

    def _play(self) -> Iterator[Chunk]:
        for round in self._rounds:
            self.stats.add(round)
            accepted = len(round.path.nodes)
            self._drafted += [place < accepted for place in range(len(round.path.tokens))]
            yield from self._release()
        self.finish()
        yield from self._release(final=True)

    def _release(self, final: bool = False) -> Iterator[Chunk]:
        for piece in self.output.release(final):
            yield Chunk(piece.text, self._drafted[piece.token])
