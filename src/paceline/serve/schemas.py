"""What requests may contain. Unknown fields are ignored, since OpenAI's clients keep adding new
ones; wrong values of known fields are errors, and so are fields that would change the answer in
ways this server does not support.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

_T = TypeVar("_T")
ListOf = Annotated[list[_T], Field(fail_fast=True)]
"""Only the first wrong item counts: a body has room for millions, and each would be explained."""

Token = Annotated[int, Field(ge=0, lt=1 << 31)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
NO_LIMIT = -1
"""As a limit of tokens, as in llama.cpp and LM Studio."""


def _check_limit(limit: int) -> int:
    if limit < 1 and limit != NO_LIMIT:
        raise PydanticCustomError("limit", "Input should be at least 1, or -1 for no limit")
    return limit


Limit = Annotated[int, Field(lt=1 << 31), AfterValidator(_check_limit)]


class Shape(BaseModel):
    """Base of all shapes: strict, so no value is converted to another type."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class StreamOptions(Shape):
    """include_usage: add a last chunk with the number of tokens."""

    include_usage: bool | None = None


class Prediction(Shape):
    """A text that the answer may resemble."""

    type: Literal["content"]
    content: str | ListOf[dict[str, Any]]


class JsonSchema(Shape):
    """A named schema, as in `response_format`."""

    name: str = ""
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Shape):
    """What the answer must be: any text, any JSON object, or JSON that follows a schema.

    schema_: where llama.cpp and its clients have the schema, with either kind of JSON.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class StructuredOutputs(Shape):
    """vLLM's field: exactly one of these."""

    json_: dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: ListOf[str] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None


class Extension(Shape):
    """This server's extensions.

    references: texts that the answer may resemble. method: the server's own, or "off". metrics:
    request drafting metrics. sources: request the drafter of each piece of text.
    """

    references: ListOf[str] | None = None
    method: str | None = None
    metrics: bool | None = None
    sources: bool | None = None


class TextRequest(Shape):
    """What chat and completion requests have in common."""

    model: str
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    best_of: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: dict[str, Any] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: str | ListOf[str] | None = None
    max_tokens: Limit | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prediction: Prediction | None = None
    structured_outputs: StructuredOutputs | None = None
    user: str | None = None
    store: bool | None = None
    paceline: Extension | None = None

    @property
    def limit(self) -> int | None:
        """Most new tokens, `NO_LIMIT`, or None if the request does not say."""
        return self.max_tokens


class Message(Shape):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | ListOf[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: ListOf[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: Any = None


MOST_TOOLS, LONGEST_NAME = 128, 128
"""Functions of a request, and letters of a function's name."""
Name = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{LONGEST_NAME}}}$")]


class Function(Shape):
    """A function that the model may call. parameters: its JSON schema."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Shape):
    """A tool that the model may use; functions are the only kind."""

    type: Literal["function"]
    function: Function


class FunctionName(Shape):
    """A function by name."""

    name: str


class NamedTool(Shape):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(TextRequest):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[ListOf[Message], Field(min_length=1)]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[ListOf[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @property
    def limit(self) -> int | None:
        """See `TextRequest.limit`; `max_tokens` is the older name."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(TextRequest):
    """The body of `/v1/completions`."""

    prompt: str | ListOf[str] | ListOf[Token] | ListOf[ListOf[Token]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    response_format: ResponseFormat | None = None


class TokenizeRequest(Shape):
    """The body of `/tokenize`: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[ListOf[Message], Field(min_length=1)] | None = None
    tools: ListOf[Tool] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Shape):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: ListOf[Token]
