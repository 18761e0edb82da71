"""From the bytes of a request to a checked value, with every error in OpenAI's format; and whether
the client still waits for the answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from paceline.json_files import parse_text_json
from paceline.serve.errors import ApiError, bad_request, unsupported
from paceline.serve.responses import ResponsesRequest
from paceline.serve.schemas import ChatRequest
from paceline.serve.settings import ServeSettings

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")

_REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "audio": ("this model writes text only", ()),
    "web_search_options": ("nothing is searched", ()),
    "prompt_logprobs": ("prompts are not scored", ()),
    "guided_json": ("use 'response_format' or 'structured_outputs'", ()),
    "guided_regex": ("use 'structured_outputs'", ()),
    "guided_choice": ("use 'structured_outputs'", ()),
    "guided_grammar": ("use 'structured_outputs'", ()),
    "grammar": ("use 'structured_outputs'", ("",)),
    "json_schema": ("use 'response_format'", ({},)),
    "functions": ("use 'tools'", ([],)),
    "function_call": ("use 'tool_choice'", ("none",)),
    "documents": ("put them into a message", ([],)),
    "suffix": ("text cannot be inserted before a suffix", ("",)),
    "use_beam_search": ("texts are sampled, not searched", (False,)),
    "length_penalty": ("texts are sampled, not searched", (1, 0)),
    "continue_final_message": ("answers are always new messages", (False,)),
    "add_generation_prompt": ("answers are always new messages", (True,)),
    "add_special_tokens": ("give token ids as 'prompt'", (True,)),
    "truncate_prompt_tokens": ("shorten the prompt", ()),
    "chat_template": ("the model's own is always used", ("",)),
    "chat_template_kwargs": ("the template takes only messages and tools", ({},)),
    "include_stop_str_in_output": ("the answer ends before the stop string", (False,)),
    "min_tokens": ("use 'ignore_eos'", (0,)),
    "skip_special_tokens": ("special tokens are never part of the text", (True,)),
    "echo": ("answers are always new messages", (False,)),
    "modalities": ("this model writes text only", (["text"],)),
    "stop_token_ids": ("use 'stop'", ([],)),
    "bad_words": ("use 'logit_bias'", ([],)),
    "allowed_token_ids": ("use 'structured_outputs'", ([],)),
}
"""Fields that would change the answer, so ignoring them would be wrong: what to do instead, and the
values that change nothing."""
_REFUSED_IN_CHATS = _REFUSED | {
    "add_special_tokens": ("the chat template writes all special tokens", (False,)),
}
_ALL = "responses are not kept: give the whole conversation as 'input'"
_REFUSED_IN_RESPONSES = _REFUSED_IN_CHATS | {
    "previous_response_id": (_ALL, ()),
    "conversation": (_ALL, ()),
    "prompt": ("prompts are not kept: use 'instructions' and 'input'", ()),
    "messages": ("use 'input'", ()),
    "response_format": ("use 'text.format'", ()),
    "background": ("wait for the answer, or use 'stream'", (False,)),
    "truncation": ("shorten the input", ("disabled",)),
}


async def json_body(request: Request, settings: ServeSettings) -> dict[str, Any]:
    """Read a request's JSON object. Raises ApiError for anything else."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(415, "send JSON, with 'Content-Type: application/json'")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ApiError(415, "send JSON that is not compressed, without 'Content-Encoding'")
    try:
        data = await read_body(request, settings.max_body, settings.body_limit)
    except ClientDisconnect as error:
        raise bad_request("the connection closed before the whole request arrived") from error
    try:
        body = parse_text_json(data, parse_constant=_no_number, parse_float=_finite)
    except ValueError as error:
        raise bad_request(f"the request is {error}") from error
    if not isinstance(body, dict):
        raise bad_request("the request must be a JSON object")
    return body


def checked(shape: type[S], body: dict[str, Any]) -> S:
    """Validate the body as `shape`. Raises ApiError naming the first wrong field."""
    refused = {ChatRequest: _REFUSED_IN_CHATS, ResponsesRequest: _REFUSED_IN_RESPONSES}.get(
        shape, _REFUSED
    )
    for name, (instead, harmless) in refused.items():
        given = body.get(name)
        if name not in shape.model_fields and given is not None and given not in harmless:
            raise unsupported(name, instead)
    try:
        return shape.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        # For unions, pydantic adds the types that it tried.
        tried = ("str", "int")
        place = [f"{part}" for part in first["loc"] if part not in tried and "[" not in f"{part}"]
        missing = first["type"] == "missing"
        raise bad_request(
            f"{'.'.join(place) or 'the request'}: {first['msg'][:300]}",
            place[0] if place else None,
            "missing_required_parameter" if missing else "invalid_value",
        ) from error


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """All bytes of a request's body. Raises ApiError for more than `most`, and if they take longer
    than so many seconds."""
    too_large = ApiError(413, f"the request is larger than {most} bytes", code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                data += part
                if len(data) > most:
                    raise too_large
    except TimeoutError as error:
        raise ApiError(408, "the request did not arrive in time", code="timeout") from error
    return bytes(data)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises ClientDisconnect if the client hangs up first, which cancels it.
    receive: of the request, whose body has been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_hung_up(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
