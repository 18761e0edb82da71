"""Requests that nobody should send: each is a client's error, in OpenAI's shape, and never a 500."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from tests.serve.live import MODEL, Live

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "colour"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


# Fields that are added to a good chat, each wrong in its own way.
CHAT_FIELDS: dict[str, dict[str, Any]] = {
    "no model": {"model": None},
    "model of another type": {"model": 7},
    "messages missing": {"messages": None},
    "messages empty": {"messages": []},
    "messages text": {"messages": "hi"},
    "message text": {"messages": ["hi"]},
    "message without role": {"messages": [{"content": "hi"}]},
    "unknown role": {"messages": [{"role": "robot", "content": "hi"}]},
    "content number": {"messages": [{"role": "user", "content": 7}]},
    "content missing": {"messages": [{"role": "user"}]},
    "content part text": {"messages": [{"role": "user", "content": ["hi"]}]},
    "content part without text": {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    "content part of number": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]
    },
    "picture": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
            }
        ]
    },
    "type of a part is a list": {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]},
    "call without function": {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
    "call with broken arguments": {
        "messages": [
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
            }
        ]
    },
    "temperature text": {"temperature": "0.7"},
    "temperature true": {"temperature": True},
    "temperature negative": {"temperature": -0.1},
    "temperature too high": {"temperature": 2.1},
    "top_p too high": {"top_p": 1.5},
    "top_p negative": {"top_p": -1},
    "top_k fraction": {"top_k": 1.5},
    "top_k too low": {"top_k": -2},
    "min_p too high": {"min_p": 2},
    "presence too high": {"presence_penalty": 2.5},
    "frequency too low": {"frequency_penalty": -3},
    "repetition zero": {"repetition_penalty": 0},
    "n zero": {"n": 0},
    "n beyond the limit": {"n": 100},
    "n beyond OpenAI's": {"n": 1000},
    "n fraction": {"n": 1.5},
    "seed text": {"seed": "7"},
    "seed too large": {"seed": 1 << 70},
    "max_tokens zero": {"max_tokens": 0},
    "max_tokens negative": {"max_tokens": -5},
    "max_tokens huge": {"max_tokens": 1 << 40},
    "max_completion_tokens text": {"max_completion_tokens": "all"},
    "stop number": {"stop": 7},
    "stop empty": {"stop": ""},
    "stop of an empty string": {"stop": ["a", ""]},
    "stop too many": {"stop": ["a"] * 33},
    "stop too long": {"stop": "x" * 2000},
    "stream text": {"stream": "yes"},
    "stream_options text": {"stream_options": "usage"},
    "logprobs number": {"logprobs": 3},
    "top_logprobs without logprobs": {"top_logprobs": 2},
    "top_logprobs too many": {"logprobs": True, "top_logprobs": 21},
    "logit_bias key": {"logit_bias": {"a": 1}},
    "logit_bias sign": {"logit_bias": {"-1": 1}},
    "logit_bias beyond the vocabulary": {"logit_bias": {"999999": 1}},
    "logit_bias digits of another script": {"logit_bias": {"١": 1}},
    "logit_bias too large": {"logit_bias": {"1": 101}},
    "logit_bias text": {"logit_bias": {"1": "2"}},
    "logit_bias true": {"logit_bias": {"1": True}},
    "logit_bias list": {"logit_bias": [1]},
    "format unknown": {"response_format": {"type": "xml"}},
    "format text": {"response_format": "json"},
    "format without schema": {"response_format": {"type": "json_schema"}},
    "schema text": {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
    "schema of an unknown type": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "colour"}}}
    },
    "schema too large": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"description": "x" * 100_000}},
        }
    },
    "schema from elsewhere": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"$ref": "http://example.com/schema.json"}},
        }
    },
    "schema that nothing fits": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"type": "integer", "minimum": 2, "maximum": 1}},
        }
    },
    "schema nested deeply": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": nested(300)},
        }
    },
    "regex broken": {"structured_outputs": {"regex": "("}},
    "regex too large": {"structured_outputs": {"regex": "a" * 100_000}},
    "grammar broken": {"structured_outputs": {"grammar": "start: nowhere"}},
    "choice empty": {"structured_outputs": {"choice": []}},
    "choice of numbers": {"structured_outputs": {"choice": [1]}},
    "two forms at once": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "no form at all": {"structured_outputs": {}},
    "form and format": {
        "structured_outputs": {"regex": "a"},
        "response_format": {"type": "json_object"},
    },
    "guided_json": {"guided_json": {}},
    "guided_regex": {"guided_regex": "a"},
    "grammar of llama.cpp": {"grammar": 'root ::= "a"'},
    "schema of llama.cpp": {"json_schema": {"type": "object"}},
    "template of one's own": {"chat_template_kwargs": {"enable_thinking": False}},
    "beginning of an answer": {"continue_final_message": True},
    "other tokens to stop at": {"stop_token_ids": [3]},
    "functions": {"functions": [{"name": "f"}]},
    "function_call": {"function_call": "auto"},
    "audio": {"audio": {"voice": "x"}},
    "tools text": {"tools": "f"},
    "tool of another kind": {"tools": [{"type": "browser"}]},
    "tool without name": {"tools": [{"type": "function", "function": {}}]},
    "tool with a strange name": {"tools": [{"type": "function", "function": {"name": "a b"}}]},
    "tool twice": {"tools": [TOOL, TOOL]},
    "too many tools": {"tools": [TOOL] * 129},
    "tool with broken parameters": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
        "tool_choice": "required",
    },
    "tool with parameters that are no object": {
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
        ],
        "tool_choice": "required",
    },
    "tool with parameters that may be no object": {
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "parameters": {"type": ["object", "null"]}},
            }
        ],
        "tool_choice": "required",
    },
    "choice without tools": {"tool_choice": "required"},
    "choice of an unknown tool": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "g"}},
    },
    "choice of another kind": {"tools": [TOOL], "tool_choice": "sometimes"},
    "prediction text": {"prediction": "hi"},
    "prediction of another kind": {"prediction": {"type": "picture", "content": "x"}},
    "prediction of parts": {"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
    "extension text": {"paceline": "fast"},
    "unknown method": {"paceline": {"method": "medusa"}},
    "references text": {"paceline": {"references": "x"}},
    "too many references": {"paceline": {"references": ["x"] * 17}},
    "references too long": {"paceline": {"references": ["x" * 70_000]}},
    "prediction too long": {"prediction": {"type": "content", "content": "x" * 70_000}},
    "documents": {"documents": [{"text": "x"}]},
    "special tokens in the text": {"skip_special_tokens": False},
    "form and tools": {"structured_outputs": {"regex": "a"}, "tools": [TOOL]},
    "prompt too long": {"messages": [{"role": "user", "content": "x" * 5000}]},
}

TEXT_FIELDS: dict[str, dict[str, Any]] = {
    "prompt missing": {"prompt": None},
    "prompt empty": {"prompt": ""},
    "prompt list empty": {"prompt": []},
    "prompt of an empty text": {"prompt": ["a", ""]},
    "prompt of an empty list": {"prompt": [[]]},
    "prompt number": {"prompt": 7},
    "prompt object": {"prompt": {"text": "x"}},
    "prompt mixed": {"prompt": ["a", 1]},
    "prompt of fractions": {"prompt": [1.5]},
    "prompt of booleans": {"prompt": [True]},
    "token negative": {"prompt": [-1]},
    "token beyond the vocabulary": {"prompt": [100_000]},
    "token huge": {"prompt": [1 << 40]},
    "prompt too long": {"prompt": [1] * 5000},
    "too many texts": {"prompt": ["a"] * 10, "n": 2},
    "logprobs too many": {"logprobs": 6},
    "logprobs true": {"logprobs": True},
    "echo with logprobs": {"echo": True, "logprobs": 1},
    "echo text": {"echo": "yes"},
    "suffix": {"suffix": "end"},
}

WHOLE = (
    b'{"model": "toy", "prompt": "x", "messages": [{"role": "user", "content": "x"}], '
    b'"tokens": [], "temperature": 1.5}'
)
"""Fits all addresses that take a body."""
NO_NUMBERS = {"not a number": b"NaN", "infinite": b"Infinity", "too large a number": b"1e999"}

BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half JSON": b'{"model": "toy"',
    "a list": b"[]",
    "null": b"null",
    "a number": b"7",
    **{name: WHOLE.replace(b"1.5", number) for name, number in NO_NUMBERS.items()},
    "not UTF-8": b'{"model": "\xff"}',
    "half a character": json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "\ud800"}]}
    ).encode(),
    "half a character as model": b'{"model": "\\udfff", "prompt": "x"}',
    "nested deeply": b'{"model": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    "digits without end": b'{"model": "toy", "seed": ' + b"9" * 50_000 + b"}",
    "a byte order mark": b"\xef\xbb\xbf" + WHOLE,
    "bytes of zero": b"\x00" * 50,
}


def refused(response: Any, statuses: tuple[int, ...] = (400,)) -> None:
    assert response.status_code in statuses, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert "/paceline/" not in response.text
    assert "Traceback" not in response.text


@pytest.mark.parametrize("case", CHAT_FIELDS)
def test_a_wrong_chat_is_refused(served: Live, case: str) -> None:
    body = {"model": MODEL, "messages": USER, "max_tokens": 3, **CHAT_FIELDS[case]}
    refused(served.http.post(CHAT, json=body))


@pytest.mark.parametrize("case", TEXT_FIELDS)
def test_a_wrong_completion_is_refused(served: Live, case: str) -> None:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 3, **TEXT_FIELDS[case]}
    refused(served.http.post(TEXT, json=body))


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("case", BODIES)
def test_what_is_no_request_is_refused(served: Live, case: str, path: str) -> None:
    headers = {"Content-Type": "application/json"}
    refused(served.http.post(path, content=BODIES[case], headers=headers))


def test_other_ways_to_go_wrong(served: Live) -> None:
    refused(served.http.post(CHAT, content=b"{}", headers={"Content-Type": "text/plain"}), (415,))
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refused(served.http.post(CHAT, content=gzip.compress(WHOLE), headers=packed), (415,))
    refused(served.http.post(CHAT, json={"model": "x" * 300_000}), (413,))
    refused(served.http.post(CHAT, json={"model": "other", "messages": USER}), (404,))
    refused(served.http.get("/v1/models/../../etc/passwd"), (404,))
    refused(served.http.post(f"{CHAT}/", json={}), (404,))  # no redirect, see `create_app`
    refused(served.http.post("/tokenize", json={}))
    refused(served.http.post("/tokenize", json={"prompt": "a", "messages": USER}))
    refused(served.http.post("/detokenize", json={"tokens": [1 << 20]}))


@pytest.mark.parametrize(
    "path", ["/v1/audio/speech", "/v1/embeddings", "/v1/messages", "/api/chat"]
)
def test_another_api_leads_to_this_one(served: Live, path: str) -> None:
    """Several clients ask for the first unless told otherwise."""
    answer = served.http.post(path, json={})
    refused(answer, (404,))
    assert CHAT in answer.text


def test_another_method_leads_to_the_right_one(served: Live) -> None:
    for answer, right in (
        (served.http.get(CHAT), "POST"),
        (served.http.delete("/v1/models"), "GET"),
    ):
        refused(answer, (405,))
        assert right in answer.json()["error"]["message"]


def test_the_server_still_works(served: Live) -> None:
    """After all of the above, and with fields that nobody knows."""
    assert served.chat(unknown_field={"a": 1}, store=True, metadata={"a": "b"}).status_code == 200
    assert served.chat(min_tokens=0, stop_token_ids=[], use_beam_search=False).status_code == 200
    assert served.chat(length_penalty=1.0, add_generation_prompt=True).status_code == 200
    assert served.complete(n=2, best_of=2).status_code == 200


HARMLESS = {
    "functions": [],
    "documents": [],
    "function_call": "none",
    "top_logprobs": 0,
    "add_special_tokens": False,
}


@pytest.mark.parametrize("field", HARMLESS)
def test_fields_that_ask_for_nothing_are_ignored(served: Live, field: str) -> None:
    assert served.chat(**{field: HARMLESS[field]}, max_tokens=1).status_code == 200


def test_an_empty_suffix_is_ignored(served: Live) -> None:
    assert served.complete(suffix="", max_tokens=1).status_code == 200


def test_the_template_alone_adds_special_tokens_to_a_chat(served: Live) -> None:
    answer = served.chat(add_special_tokens=True)
    refused(answer)
    assert "the chat template writes all special tokens" in answer.json()["error"]["message"]
    assert served.complete(add_special_tokens=True, max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    "field",
    [
        {"best_of": 5},
        {"add_special_tokens": False},
        {"truncate_prompt_tokens": 9},
        {"min_tokens": 2},
    ],
    ids=str,
)
def test_fields_that_would_change_the_answer_are_refused(
    served: Live, field: dict[str, Any]
) -> None:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 3, **field}
    answer = served.http.post(TEXT, json=body)
    refused(answer)
    assert answer.json()["error"]["code"] == "unsupported_parameter"
