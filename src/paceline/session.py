"""The friendly front: a model, a method, and generate / stream / chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from operator import index
from typing import Any

from paceline.constraints.grammars import Grammars
from paceline.datastore import PROMPT_TOKENS, Datastore
from paceline.defaults import DEFAULT_METHOD
from paceline.drafters import Host, Opener, make_drafter
from paceline.errors import UsageError
from paceline.generation import Generation
from paceline.messages import Message, Prompt, Reference, as_messages
from paceline.models.vocabulary import vocabulary_mark
from paceline.options import Options
from paceline.planning.cost_curve import CostCurve
from paceline.planning.planner import TreePlanner
from paceline.protocols import Drafter, Target
from paceline.sampling import Sampler
from paceline.shared_batch import Texts
from paceline.stopping import Stopping
from paceline.stream import Chunk, Completion, Store, Stream
from paceline.text import OutputText, Tokenizer

__all__ = ["Chunk", "Completion", "Message", "Prompt", "Session", "Store", "Stream"]


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
    datastore: texts to guess from, to which every answer is added, but for those of requests with
    `record=False`; None: nothing is kept.

    The cache of the model, what drafters have learned and what plans rest on are kept from call to
    call: the next turn of a conversation, or another text with the same beginning, reads only what
    is new. Any number of streams may be open, and any number of threads may use a session: what
    they wait for at one time is written together.
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
        datastore: Datastore | None = None,
    ) -> None:
        planner = TreePlanner(curve)
        self.host = Host(
            target,
            fingerprint,
            curve,
            open=drafts,
            costs=planner.costs,
            vocabulary=cache(partial(vocabulary_mark, tokenizer)),
            datastore=datastore,
        )
        self.budget = budget
        self.target = target
        self.tokenizer = tokenizer
        self.method = method
        self._settings = dict(settings or {})
        self.eos_ids = tuple(eos_ids)
        self.store = store
        self.options = options or Options()
        self.texts = Texts(target, planner, self._new_drafter)
        self._grammars = Grammars(tokenizer, target.vocab_size, self.eos_ids)

    @property
    def fingerprint(self) -> str:
        """Identifies the model's weights; "" where unknown."""
        return self.host.fingerprint

    def generate(
        self, prompt: Prompt, *, references: Sequence[Reference] = (), **options: Any
    ) -> Completion:
        """Generate to the end.

        prompt: text to continue, messages for the chat template, or token ids.
        references: texts or token ids that the output may resemble (used by methods that copy).
        options: fields of `Options` that differ from the session's.

        Raises UsageError for an empty or too long prompt or an option out of range.
        """
        return self.stream(prompt, references=references, **options).run()

    def stream(
        self, prompt: Prompt, *, references: Sequence[Reference] = (), **options: Any
    ) -> Stream:
        """Like `generate`, as an iterator of text that comes.

        It begins when it is first asked. One that is not read to its end should be closed; until
        then its part of the cache is in use.
        """
        return Stream(self, prompt, references, self.options.with_(**options))

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        references: Sequence[Reference] = (),
        **options: Any,
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
        references: Sequence[Sequence[Reference]] = (),
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

    def texts_of(
        self,
        options: Options,
        prompt: Sequence[int],
        references: Sequence[Sequence[int]] = (),
        sampler: Sampler | None = None,
    ) -> Callable[[Drafter], Generation]:
        """What makes a text of a request and a drafter, once.

        prompt, references: as tokens. sampler: instead of that of the options.

        Raises UsageError for a bias of a token that the model does not have, and for a constraint
        that cannot be compiled.
        """
        beyond = max(options.logit_bias, default=0)
        if beyond >= self.target.vocab_size:
            raise UsageError(
                f"logit_bias names token {beyond} but the model's vocabulary ends at "
                f"{self.target.vocab_size}"
            )
        # Others may play rounds of a text before its stream looks at them, so what stops the text
        # is not what the stream reads.
        conditions = [OutputText(self.tokenizer, options.stop).push] if options.stop else []
        matcher = None
        if options.constraint is not None:
            matcher = self._grammars.matcher(options.constraint)
            conditions.append(matcher.push)
        # A constraint says where the text may end, and that is by one of these.
        endless = options.ignore_eos and matcher is None
        stopping = Stopping(options.max_new_tokens, () if endless else self.eos_ids, conditions)
        return lambda drafter: Generation(
            prompt,
            drafter,
            stopping,
            sampler or options.sampler(len(prompt)),
            references,
            options.acceptance,
            self.budget_of(options),
            matcher,
            options.logprobs,
        )

    def record(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Add an answer to the datastore, if there is one, with the last tokens of its prompt."""
        if self.host.datastore is not None:
            self.host.datastore.add([[*prompt[-PROMPT_TOKENS:], *output]])

    def settle(self) -> None:
        """Wait for what goes on in the background after loading; whoever measures does."""
        self.target.settle()

    def use_curve(self, curve: CostCurve | None) -> None:
        """Plan with what passes cost by this curve from now on; no text may be open."""
        planner = TreePlanner(curve)
        # Trees and lengths of drafts that were learned with another curve go with it.
        self.host = replace(self.host.fresh(), curve=curve, costs=planner.costs, worth={})
        self.texts = Texts(self.target, planner, self._new_drafter)

    def new_planner(self) -> TreePlanner:
        """A planner that has seen nothing yet, for one method on this target."""
        return TreePlanner(self.host.curve)

    def encode(self, prompt: Prompt, *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a prompt, special tokens and chat template included.

        tools: that the model may call, as transformers' chat templates take them.
        """
        if isinstance(prompt, str):
            if not prompt:
                raise UsageError("the prompt is empty: give at least one character")
            return self._tokenize(prompt, special=True)
        if prompt and not isinstance(prompt[0], Mapping):
            return _token_ids(prompt)
        if not prompt:
            raise UsageError("the prompt is empty: give at least one message or token")
        if not self.tokenizer.chat_template:
            raise UsageError(
                "this model has no chat template: give the prompt as plain text instead"
            )
        messages = [message for message in prompt if isinstance(message, Mapping)]
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, tools=list(tools) or None
            )
        except Exception as error:  # templates raise whatever they like
            raise UsageError(
                f"the model's chat template refuses these messages: {str(error)[:200]}"
            ) from error
        return self._tokenize(text)

    def encode_references(self, references: Sequence[Reference]) -> list[list[int]]:
        """Token ids of reference texts, without special tokens; of ids as they are."""
        texts = [references] if isinstance(references, str) else references
        return [self._tokenize(text) if isinstance(text, str) else list(text) for text in texts]

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


def _token_ids(prompt: Sequence[Any]) -> list[int]:
    try:
        return [index(token) for token in prompt]
    except TypeError as error:
        raise UsageError(
            "a prompt is a text, messages with a role and content, or token ids: for several prompts "
            "use generate_batch"
        ) from error
