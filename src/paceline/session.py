"""The user's front end: a model, a method, and generate / stream / chat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any, Literal

from paceline.constraints import Constraint
from paceline.constraints.grammars import Grammars
from paceline.datastore import PROMPT_TOKENS, Datastore
from paceline.defaults import DEFAULT_METHOD
from paceline.drafters import Host, Opener, make_drafter
from paceline.errors import INTERRUPTIONS, UsageError
from paceline.generation import Generation
from paceline.messages import Encoder, Message, Prompt, Reference, as_messages, parts_of, query_of
from paceline.models.vocabulary import vocabulary_mark
from paceline.options import Options
from paceline.planning.cost_curve import CostCurve
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Target
from paceline.sampling import Sampler
from paceline.shared_batch import Texts
from paceline.stopping import Stopping
from paceline.stream import Begun, Chunk, Completion, Store, Stream
from paceline.text import OutputText, Tokenizer

__all__ = ["Chunk", "Completion", "Message", "Prompt", "Session", "Store", "Stream"]

_TOGETHER = 128
"""Texts of a batch that are open at once: each holds memory, and none begins while prompts wait."""


class Session(Encoder):
    """One model with one method.

    target, tokenizer: what runs the model, and what reads and writes its text.
    method: a name in the notation "anpd:n=5,k=7", or a function that makes a drafter.
    settings: more settings of a method given by name.
    eos_ids: tokens that end a text.
    store: where answers are kept and similar ones looked up as references; None for nowhere.
    options: defaults of every request.
    fingerprint: identifies the model's weights, for reports and to match trained parts.
    budget: most nodes a drafter may propose per round, if the request does not say; None is as many
    as pay, planned each round from pass costs and acceptance.
    curve: pass costs of the target on this machine; without one the planner learns them, and until
    then trees are smaller or larger than pays.
    drafts: opens draft models for methods that name one, see `DraftModels`; None if none can be
    opened.
    datastore: texts to guess from, to which every answer is added, unless its request has
    `record=False`; None keeps nothing, and False does not search the model's own either.

    The KV cache, what drafters have learned and the planner's estimates are kept between calls: the
    next turn of a conversation, or another text with the same prefix, reads only what is new. Any
    number of streams may be open, and any number of threads may use a session: texts that they wait
    for at the same time share passes.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer,
        method: str | Callable[[], Drafter] = DEFAULT_METHOD,
        *,
        settings: Mapping[str, Any] | None = None,
        eos_ids: Sequence[int] = (),
        store: Store | None = None,
        options: Options | None = None,
        fingerprint: str = "",
        budget: int | None = None,
        curve: CostCurve | None = None,
        drafts: Opener | None = None,
        datastore: Datastore | Literal[False] | None = None,
    ) -> None:
        planner = TreePlanner(curve)
        self.host = Host(
            target,
            fingerprint,
            curve,
            open=drafts,
            costs=planner.costs,
            vocabulary=cache(partial(vocabulary_mark, tokenizer)),
            datastore=None if datastore is False else datastore,
            finds_datastore=datastore is not False,
        )
        self.budget = budget
        self.target = target
        self.tokenizer = tokenizer
        self.method = method
        self._settings = dict(settings or {})
        self.eos_ids = tuple(eos_ids)
        self.store = store
        self.options = options or Options()
        self.texts = self._new_texts(planner)
        self._grammars = Grammars(tokenizer, target.vocab_size, self.eos_ids)

    @property
    def fingerprint(self) -> str:
        """Identifies the model's weights; "" if unknown."""
        return self.host.fingerprint

    def generate(
        self, prompt: Prompt, *, references: Sequence[Reference] | None = (), **options: Any
    ) -> Completion:
        """Generate to the end.

        prompt: text to continue, messages for the chat template, or token ids.
        references: texts or token ids that the output may resemble (used by methods that copy).
        options: fields of `Options` that differ from the session's.

        Raises UsageError for an empty or too long prompt or an option out of range.
        """
        with self.stream(prompt, references=references, **options) as stream:
            return stream.run()

    def stream(
        self, prompt: Prompt, *, references: Sequence[Reference] | None = (), **options: Any
    ) -> Stream:
        """Like `generate`, as an iterator over the text as it is generated.

        It begins with the first request for text. Close a stream that is not read to its end; until
        then its part of the cache is in use.
        """
        return Stream(partial(self.begin, prompt, references, self.options.with_(**options)))

    def chat(
        self,
        messages: str | Message | Sequence[Message],
        *,
        references: Sequence[Reference] | None = (),
        **options: Any,
    ) -> Completion:
        """Answer the last message; a string is one user message.

        Pass the conversation with every answer appended: what is cached already is not read again.
        """
        return self.generate(as_messages(messages), references=references, **options)

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        references: Sequence[Sequence[Reference] | None] | None = (),
        **options: Any,
    ) -> list[Completion]:
        """Generate for several prompts in shared target passes.

        references: one sequence of texts per prompt, or none.

        At most 128 texts are open at once: the next one begins when the first of these has ended.

        Equal prompts get different noise: text i is that of `generate` with the seed
        `seed + (i << 64)`, and with copies of the processors, see `Options.of_texts`. A prompt that
        cannot be served, or a text that fails, does not stop the others: see `Completion.error`.
        """
        for what, each in (("prompts", prompts), ("references", references)):
            if isinstance(each, str | Mapping):
                raise UsageError(f"{what} must be a list with one item per text: put it into one")
        prompts, given = list(prompts), list(() if references is None else references)
        chosen = self.options.with_(**options)
        if given and len(given) != len(prompts):
            raise UsageError(
                f"got {len(given)} lists of references for {len(prompts)} prompts: give one each"
            )
        texts = zip(prompts, given or [None] * len(prompts), chosen.of_texts(len(prompts)))
        streams = (Stream(partial(self.begin, prompt, own, each)) for prompt, own, each in texts)
        return [*_completed(streams)]

    def texts_of(
        self,
        options: Options,
        prompt: Sequence[int],
        references: Sequence[Sequence[int]] = (),
        sampler: Sampler | None = None,
        before: Sequence[int] = (),
    ) -> Callable[[Drafter], Generation]:
        """A function that turns a drafter into this request's text, once.

        prompt, references: as tokens. sampler: overrides that of the options. before: see
        `OutputText`. Raises UsageError for a bias on a token that the model does not have, and for
        a constraint that does not compile.
        """
        beyond = max(options.logit_bias, default=0)
        if beyond >= self.target.vocab_size:
            raise UsageError(
                f"logit_bias names token {beyond} but the model's vocabulary ends at "
                f"{self.target.vocab_size}"
            )
        # Other threads may play the text's rounds before its stream reads them, so the stop
        # condition needs an output text of its own.
        conditions: list[Callable[[int], bool]] = []
        ends = self._ends(options)
        if options.stop:
            conditions.append(OutputText(self.tokenizer, options.stop, before, ends).push)
        matcher = None
        if options.constraint is not None:
            matcher = self._grammars.matcher(options.constraint)
            matcher.record = options.record
            conditions.append(matcher.push)
        stopping = Stopping(options.max_new_tokens, ends, conditions, matcher is not None)
        return lambda drafter: Generation(
            prompt,
            drafter,
            stopping,
            sampler or options.sampler(len(prompt)),
            references,
            options.acceptance,
            self.budget if options.budget is None else options.budget,
            matcher,
            options.logprobs,
            options.record,
        )

    def compiled(self, constraint: Constraint) -> object | None:
        """What to hold so that texts with this constraint begin at once; None if they cannot."""
        return self._grammars.kept(constraint)

    def read_vocabulary(self) -> None:
        """Read what constraints need of the tokenizer; see `Grammars.vocabulary`."""
        self._grammars.vocabulary()

    def use_curve(self, curve: CostCurve | None) -> None:
        """Plan with the pass costs of this curve from now on; no text may be open."""
        planner = TreePlanner(curve)
        # Trees and draft lengths learned with the old curve are dropped with it.
        self.host = replace(self.host.fresh(), curve=curve, costs=planner.costs, worth={})
        self.texts = self._new_texts(planner)

    def new_planner(self) -> TreePlanner:
        """A fresh planner, for one method on this target."""
        return TreePlanner(self.host.curve)

    def begin(
        self,
        prompt: Prompt,
        references: Sequence[Reference] | None,
        options: Options,
        chat: bool = False,
    ) -> Begun:
        """Let the text of a request join the others. chat: whether token ids in `prompt` are a
        conversation, so that the text begins anew."""
        text, messages, tokens = parts_of(prompt)
        given = text or messages or tokens  # an iterator can be read once
        ids, likely, query = self.encode(given), self.encode_references(references), query_of(given)
        # Compared with None, because an empty store is falsy.
        store = self.store if query else None
        if store is not None:
            # Only guesses, so it, or its encoder, may fail; the stream says if it keeps nothing.
            try:
                likely += self.encode_references([entry.output for entry in store.search(query)])
            except INTERRUPTIONS:
                raise
            except BaseException:  # noqa: S110
                pass
        before = () if chat or messages else ids
        output = OutputText(self.tokenizer, options.stop, before, self._ends(options))
        begun = self.texts.begin(self.texts_of(options, ids, likely, before=before))
        keeps: list[Callable[[str, list[int]], None]] = []
        if options.record and store is not None:
            keeps.append(lambda output, _: store.add(query, output))
        datastore = self.host.datastore
        if options.record and datastore is not None:
            keeps.append(lambda _, tokens: datastore.add([[*ids[-PROMPT_TOKENS:], *tokens]]))
        return Begun(self.texts, begun, output, keeps)

    def _ends(self, options: Options) -> Sequence[int]:
        """Tokens that end a text. They are never ignored under a constraint: it says where its text
        may end, and that ends with one of them."""
        return () if options.ignore_eos and options.constraint is None else self.eos_ids

    def _new_texts(self, planner: TreePlanner) -> Texts:
        how, given = self.method, self._settings  # not the session: a cycle would keep its model
        new = partial(make_drafter, how, self.host, **given) if isinstance(how, str) else how
        return Texts(self.target, planner, new)


def _completed(streams: Iterator[Stream]) -> Iterator[Completion]:
    """The completions of streams, in order. Those that have ended are not kept: they still hold
    their constraints and processors."""
    joined = deque[tuple[Stream, ExitStack]]()
    try:
        while True:
            for stream in islice(streams, _TOGETHER - len(joined)):
                joined.append((stream, own := ExitStack()))
                own.enter_context(stream)
                own.enter_context(stream.awaited())
            if not joined:
                return
            stream, own = joined[0]
            with own:
                yield stream.run(raise_errors=False)
            joined.popleft()
    finally:
        with ExitStack() as rest:
            for _, own in joined:
                rest.push(own)
