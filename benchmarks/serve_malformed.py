"""Hundreds of malformed requests, made from fields and invalid values for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from serve_http import message, post

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HUGE = 1 << 70

NO_NUMBER = ["x", "0.5", True, [1], {"a": 1}, -1e9, 1e9]
NO_COUNT = ["7", True, [1], {"a": 1}, 1.5, -HUGE, HUGE]
NO_SWITCH = ["yes", 0.5, 7, [True], {"a": 1}]
NO_OBJECT = ["x", 7, True, [1]]
NO_TEXT = [7, True, [7], {"a": 1}]

BOTH: dict[str, list[Any]] = {
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"), NO_NUMBER
    ),
    "repetition_penalty": [*NO_NUMBER, 0],
    **{key: [*NO_COUNT, 0, -1] for key in ("n", "max_tokens")},
    "top_k": [*NO_COUNT, -2],
    "seed": NO_COUNT,
    **dict.fromkeys(("stream", "ignore_eos"), NO_SWITCH),
    "stop": [*NO_TEXT, "", ["a", ""], ["a"] * 50, "x" * 5000],
    "user": NO_TEXT,
    "model": [None, *NO_TEXT],
    "logit_bias": [*NO_OBJECT, {"a": 1}, {"-1": 1}, {"999999999": 1}, {"1": 101}, {"1": "x"}],
    "stream_options": NO_OBJECT,
    "prediction": [*NO_OBJECT, {"type": "content"}, {"type": "x", "content": "x"}],
    "response_format": [
        *NO_OBJECT,
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": "x"}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "colour"}}},
        {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://example.com/"}}},
        {"type": "json_schema", "json_schema": {"schema": {"description": "x" * 100_000}}},
    ],
    "structured_outputs": [
        *NO_OBJECT,
        {},
        {"regex": "("},
        {"regex": "a" * 100_000},
        {"grammar": "start: nowhere"},
        {"choice": []},
        {"choice": [1]},
        {"regex": "a", "choice": ["a"]},
    ],
    "paceline": [
        *NO_OBJECT,
        {"method": "no-such"},
        {"method": 7},
        {"references": "x"},
        {"references": ["x"] * 1000},
        {"metrics": "yes"},
    ],
    "guided_json": [{}],
    "guided_regex": ["a"],
    "use_beam_search": [True],
}
CHATS: dict[str, list[Any]] = {
    "messages": [
        None,
        *NO_OBJECT,
        [],
        [[]],
        ["hi"],
        [{}],
        [{"role": "user"}],
        [{"content": "hi"}],
        [{"role": "robot", "content": "hi"}],
        [{"role": ["user"], "content": "hi"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": ["hi"]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": 7}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}],
        [{"role": "assistant", "tool_calls": [{"id": "x"}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        [{"role": "user", "content": "word " * 100_000}],
    ],
    "max_completion_tokens": [*NO_COUNT, 0],
    "logprobs": NO_SWITCH,
    "top_logprobs": [*NO_COUNT, 21, 2],
    "parallel_tool_calls": NO_SWITCH,
    "tools": [
        *NO_OBJECT,
        [{}],
        [{"type": "browser"}],
        [{"type": "function"}],
        [{"type": "function", "function": {}}],
        [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function", "function": {"name": "f"}}] * 2,
    ],
    "tool_choice": ["sometimes", 7, [1], "required", {"type": "function"}],
    "functions": [[{"name": "f"}]],
    "audio": [{"voice": "x"}],
}
TEXTS: dict[str, list[Any]] = {
    "prompt": [None, "", 7, 1.5, True, {"a": 1}, [], [""], [[]], ["a", 1], [1.5], [-1], [1 << 40]],
    "logprobs": [*NO_COUNT, 6],
    "echo": NO_SWITCH,
    "suffix": ["end"],
}
BODIES = {
    "nothing": b"",
    "text": b"hello",
    "half an object": b'{"model": "x"',
    "list": b"[]",
    "null": b"null",
    "number": b"7",
    "not a number": b'{"temperature": NaN}',
    "infinite": b'{"temperature": -Infinity}',
    "too large a number": b'{"temperature": 1e999}',
    "not UTF-8": b'{"model": "\xff"}',
    "half a character": b'{"model": "\\ud800"}',
    "nested deeply": b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "digits without end": b'{"seed": ' + b"9" * 20_000 + b"}",
    "zero bytes": b"\x00" * 40,
}
WIRE = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60 + b"\r\n\r\n",
    "address missing": b"GET HTTP/1.1\r\nHost: x\r\n\r\n",
    "header without a colon": b"GET /health HTTP/1.1\r\nHost\r\n\r\n",
    "length is no number": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
}


@dataclass(frozen=True)
class Malformed:
    """A request that must be refused.

    protocol: the error must have OpenAI's shape; else any error will do, and so will hanging up.
    """

    name: str
    data: bytes
    protocol: bool = True


def malformed(model: str) -> list[Malformed]:
    """All malformed requests. model: the name of one on the server."""
    found = []
    for path, own in ((CHAT, CHATS), (TEXT, TEXTS)):
        good: dict[str, Any] = {"model": model, "max_tokens": 2}
        if path == CHAT:
            good["messages"] = [{"role": "user", "content": "hi"}]
        else:
            good["prompt"] = "hi"
        for field, values in {**BOTH, **own}.items():
            found += [
                Malformed(
                    f"{path} {field}={json.dumps(value)[:60]}", post(path, {**good, field: value})
                )
                for value in values
            ]
        found += [
            Malformed(f"{path} {name}", message("POST", path, body))
            for name, body in BODIES.items()
        ]
        found.append(Malformed(f"{path} as text", message("POST", path, b"{}", "text/plain")))
        found.append(Malformed(f"{path} GET", message("GET", path)))
        found.append(Malformed(f"{path} unknown model", post(path, {**good, "model": "no/such"})))
    for path in ("/v1/embeddings", "/v1/models/../../x", "/nowhere", "/%00", "/v1/models/%ff"):
        found.append(Malformed(f"GET {path}", message("GET", path)))
    for name, body in (
        ("tokens", {"tokens": [1 << 30]}),
        ("nothing", {}),
        ("text", {"tokens": "x"}),
    ):
        found.append(Malformed(f"/detokenize {name}", post("/detokenize", body)))
    found.append(Malformed("/tokenize nothing", post("/tokenize", {})))
    found += [Malformed(f"wire: {name}", data, protocol=False) for name, data in WIRE.items()]
    return found
