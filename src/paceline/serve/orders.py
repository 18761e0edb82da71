"""Translate a checked request into orders for texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import randbits
from typing import Any

from paceline.constraints import Constraint
from paceline.errors import UsageError
from paceline.messages import Reference
from paceline.options import Options
from paceline.serve.conversations import Reader, joined_text
from paceline.serve.errors import ApiError, bad_request, unsupported
from paceline.serve.response_tools import log_others
from paceline.serve.responses import ResponsesRequest, renamed
from paceline.serve.schemas import (
    NO_LIMIT,
    ChatRequest,
    CompletionRequest,
    NamedTool,
    ResponseFormat,
    TextRequest,
    Tool,
)
from paceline.serve.settings import ServeSettings, public_method
from paceline.serve.ticket import Order
from paceline.serve.tools import CLOSE, OPEN, call_grammar
from paceline.session import Session

OFF = "off"
"""The method of a request for plain decoding."""

_REFERENCE_TOKENS = 1 << 16
"""References may have at least so many tokens: they are sorted while other texts wait."""
_MOST_BIASES = 1024
_MOST_SCORED = 1 << 21
"""Log-probabilities of an answer, which is in memory as a whole."""

_SHORT = 16
"""Most new tokens of a completion by default, as at OpenAI."""

_NO_SEED = None, -1
"""Without a seed, one is drawn; -1 is none, as in llama.cpp and vLLM."""

_AS_GIVEN = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos")
"""Fields that are options as they are."""

_MAKERS: dict[str, Callable[[Any], Constraint]] = {
    "json_": Constraint.json_schema,
    "regex": Constraint.regex,
    "choice": Constraint.choice,
    "grammar": Constraint.grammar,
    "json_object": lambda _: Constraint.json_object(),
}
"""By the field of `structured_outputs`."""


@dataclass(frozen=True)
class Orders:
    """Makes orders for one session, within the limits of its settings.

    Raises ApiError or UsageError for unsupported requests.
    """

    session: Session
    reader: Reader
    settings: ServeSettings

    def of_chat(self, request: ChatRequest) -> list[Order]:
        """The `n` answers to a conversation."""
        tools = tools_of(request)
        prompt = self.reader.chat(request.messages, tools)
        if request.top_logprobs and not request.logprobs:
            raise bad_request("'top_logprobs' needs 'logprobs': true", "top_logprobs")
        changes = {
            "logprobs": (request.top_logprobs or 0) if request.logprobs else None,
            "constraint": self._constraint_of(request, tools),
            "max_new_tokens": self._limit(request.limit, len(prompt)),
        }
        self._check_count(request, 1)
        return self._orders(request, [(prompt, "")], changes, chat=True)

    def of_response(self, request: ResponsesRequest) -> list[Order]:
        """The answer to what would be a conversation in a chat."""
        log_others(request.tools or [])
        try:
            return self.of_chat(request.as_chat())
        except ApiError as error:
            raise renamed(error) from error

    def of_completion(self, request: CompletionRequest) -> list[Order]:
        """The `n` continuations of each prompt."""
        if request.echo and request.logprobs is not None:
            raise unsupported("echo", "prompts are not scored", beside=" with 'logprobs'")
        given = request.prompt
        several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        prompts: Sequence[Any] = given if several else [given]
        self._check_count(request, len(prompts))
        starts = []
        for prompt in prompts:
            ids, echo = self.reader.text(prompt), ""
            if request.echo:
                echo = prompt if isinstance(prompt, str) else self.reader.decode(ids)
            starts.append((ids, echo))
        short = min(_SHORT, self.settings.max_tokens or _SHORT)
        changes = {
            "logprobs": request.logprobs,
            "constraint": _constraint(request),
            "max_new_tokens": self._limit(request.limit or short),
        }
        return self._orders(request, starts, changes)

    def _orders(
        self,
        request: TextRequest,
        prompts: Sequence[tuple[Sequence[int], str]],
        changes: dict[str, Any],
        chat: bool = False,
    ) -> list[Order]:
        """prompts: token ids, and the text that the answer repeats. changes: of the options."""
        n = request.n or 1
        if changes["logprobs"] is not None:
            most = max(1, _MOST_SCORED // (n * len(prompts) * (1 + changes["logprobs"])))
            # The context limits the longer answers, with or without log-probabilities.
            room = self._room(min(len(ids) for ids, _ in prompts))
            if min(request.limit or 0, room) > most:
                raise bad_request(
                    f"with so many log-probabilities per token ask for at most {most} tokens",
                    "max_tokens",
                )
            changes["max_new_tokens"] = min(most, changes["max_new_tokens"])
        options = Options(**self._sampling(request), **changes, budget=self._budget(request))
        references = self._references(request)
        texts = [each for each in prompts for _ in range(n)]
        return [
            Order(ids, own, references, chat, echo)
            for (ids, echo), own in zip(texts, options.of_texts(len(texts)), strict=True)
        ]

    def _check_count(self, request: TextRequest, prompts: int) -> None:
        n = request.n or 1
        if request.best_of not in (None, 1, n):
            raise unsupported("best_of", "answers are not ranked: use 'n'")
        if n * prompts > self.settings.max_n:
            raise bad_request(
                f"a request may ask for at most {self.settings.max_n} texts, got {n * prompts}", "n"
            )

    def _sampling(self, request: TextRequest) -> dict[str, Any]:
        """Options for how tokens are drawn and where texts end; temperature is 1 by default."""
        stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
        if len(stop) > self.settings.max_stop or any(len(each) > 1000 for each in stop):
            raise bad_request(
                f"'stop' takes at most {self.settings.max_stop} strings of up to 1000 characters",
                "stop",
            )
        # The smallest nucleus is the likeliest token.
        likeliest = request.top_p == 0
        top_k = request.top_k if request.top_k and request.top_k > 0 else None
        return {
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "top_p": None if likeliest else request.top_p,
            "top_k": 1 if likeliest else top_k,
            "logit_bias": self._logit_bias(request),
            "seed": randbits(63) if request.seed in _NO_SEED else request.seed,
            "stop": stop,
            "record": request.store is not False,
            **{name: getattr(request, name) for name in _AS_GIVEN},
        }

    def _logit_bias(self, request: TextRequest) -> dict[int, float]:
        biases: dict[int, float] = {}
        if len(request.logit_bias or {}) > _MOST_BIASES:
            raise bad_request(f"'logit_bias': give at most {_MOST_BIASES} tokens", "logit_bias")
        for token, bias in (request.logit_bias or {}).items():
            if not (token.isascii() and token.isdecimal() and len(token) < 10):
                raise bad_request("'logit_bias': keys must be token ids", "logit_bias")
            self.reader.check_vocabulary([int(token)], "logit_bias")
            number = isinstance(bias, int | float) and not isinstance(bias, bool)
            if not (number and -100 <= bias <= 100):
                raise bad_request(
                    "'logit_bias': biases must be numbers from -100 to 100", "logit_bias"
                )
            biases[int(token)] = bias
        return biases

    def _limit(self, wanted: int | None, prompt: int = 0) -> int:
        """Most new tokens of a text; the model's context may limit it further."""
        most = self.settings.max_tokens
        wanted = None if wanted == NO_LIMIT else wanted
        if wanted is not None and most and wanted > most:
            raise bad_request(f"ask for at most {most} new tokens, got {wanted}", "max_tokens")
        if wanted or most:
            return wanted or most
        return 1 << 20 if self.session.target.max_context is None else self._room(prompt)

    def _room(self, prompt: int) -> int:
        """Most tokens that can follow a prompt of so many."""
        context = self.session.target.max_context
        return sys.maxsize if context is None else max(1, context - prompt)

    def _budget(self, request: TextRequest) -> int | None:
        method = request.paceline.method if request.paceline else None
        if method == OFF:
            return 0
        own = public_method(self.session.method)
        if method not in (None, own, self.session.method):
            raise bad_request(
                f"'paceline.method' must be '{own}' or '{OFF}' on this server", "paceline.method"
            )
        return None

    def _references(self, request: TextRequest) -> Sequence[Reference]:
        texts = list(request.paceline.references or ()) if request.paceline else []
        if request.prediction is not None:
            texts.insert(0, joined_text(request.prediction.content, "prediction", ""))
        if len(texts) > self.settings.max_references:
            raise bad_request(
                f"give at most {self.settings.max_references} references", "paceline.references"
            )
        most = max(_REFERENCE_TOKENS, 4 * (self.session.target.max_context or 0))
        return self.reader.references([text for text in texts if text], most)

    def _constraint_of(self, request: ChatRequest, tools: Sequence[Tool]) -> Constraint | None:
        """The constraint of a chat. It allows calls if one is required, or if the answer's format
        alone would rule them out."""
        if tools and request.structured_outputs is not None:
            raise bad_request(
                "'structured_outputs' would rule out calls: use 'response_format' beside 'tools'",
                "structured_outputs",
            )
        choice, answer = request.tool_choice, _answer_schema(request.response_format)
        must = choice == "required" or isinstance(choice, NamedTool)
        if not tools or not (must or answer is not None):
            return _constraint(request)
        if isinstance(choice, NamedTool):
            tools = [tool for tool in tools if tool.function.name == choice.function.name]
        several = request.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
        marks = (self._mark(OPEN), self._mark(CLOSE))
        grammar = call_grammar(tools, marks, several=several, answer=None if must else answer)
        return Constraint("calls", grammar)

    def _mark(self, text: str) -> str:
        """A call's mark as a grammar writes it: by its id if it is one token."""
        token = getattr(self.session.tokenizer, "added_tokens_encoder", {}).get(text)
        return f'"{text}"' if token is None else f"<[{token}]>"


def tools_of(request: ChatRequest) -> list[Tool]:
    """The tools shown to the model. Raises ApiError for a choice that is not among them."""
    tools = request.tools or []
    choice = request.tool_choice
    names = [tool.function.name for tool in tools]
    for tool in tools:
        if (tool.function.parameters or {}).get("type", "object") != "object":
            raise bad_request(
                f"'tools': the parameters of '{tool.function.name}' must be of type 'object'",
                "tools",
            )
    if len({*names}) < len(names):
        raise bad_request("'tools': two functions have the same name", "tools")
    if choice == "none":
        return []
    if choice not in (None, "auto") and not tools:
        raise bad_request("'tool_choice' needs 'tools' that are functions", "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise bad_request("'tool_choice' names a function that is not in 'tools'", "tool_choice")
    return tools


def _answer_schema(form: ResponseFormat | None) -> dict[str, Any] | None:
    """The schema that an answer must follow; None for free text."""
    if form is None or form.type == "text":
        return None
    if form.type == "json_schema" and form.json_schema is not None:
        return form.json_schema.schema_
    if form.type == "json_schema" and form.schema_ is None:
        raise bad_request("'response_format' needs 'json_schema'", "response_format")
    return form.schema_ or {"type": "object"}


def _constraint(request: ChatRequest | CompletionRequest) -> Constraint | None:
    """The answer's constraint, by `response_format` or vLLM's `structured_outputs`."""
    schema, other = _answer_schema(request.response_format), request.structured_outputs
    if other is None:
        return None if schema is None else Constraint.json_schema(schema)
    given = [name for name in type(other).model_fields if getattr(other, name) is not None]
    if len(given) != 1 or schema is not None:
        raise bad_request("constrain the answer in exactly one way", "structured_outputs")
    try:
        return _MAKERS[given[0]](getattr(other, given[0]))
    except UsageError as error:
        raise bad_request(str(error), "structured_outputs") from error
