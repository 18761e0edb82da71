"""Requests, settings and moments that are rare, but no mistakes of the server's own."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.serve.live import MODEL, TOOL_TEMPLATE, live, tool_session
from tests.tiny import EOS, TEMPLATE, byte_tokenizer
from tokenizers.processors import TemplateProcessing

from paceline.errors import UsageError
from paceline.records import TokenLogprob
from paceline.serve.answers import Places, completion_logprobs
from paceline.serve.app import Server
from paceline.serve.bodies import checked
from paceline.serve.conversations import Reader
from paceline.serve.errors import ApiError
from paceline.serve.logs import _JsonLines
from paceline.serve.orders import Orders
from paceline.serve.running_server import StoppableServer, bound_socket, run
from paceline.serve.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    Tool,
)
from paceline.serve.settings import ServeSettings, public_name
from paceline.session import Session

USER = [{"role": "user", "content": "hi"}]
MANY: list[Any] = [1] * 100_000


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        (ChatRequest, {"messages": MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": MANY}]}),
        (ChatRequest, {"messages": USER, "stop": MANY}),
        (ChatRequest, {"messages": USER, "paceline": {"references": MANY}}),
        (CompletionRequest, {"prompt": ["a", *MANY]}),
        (CompletionRequest, {"prompt": [["a"] * 100_000]}),
        (DetokenizeRequest, {"tokens": ["a"] * 100_000}),
    ],
)
def test_a_body_of_many_mistakes_is_refused_at_the_first(shape: Any, fields: Any) -> None:
    with pytest.raises(ApiError) as refused:
        checked(shape, {"model": MODEL, **fields})
    cause: Any = refused.value.__cause__
    assert cause.error_count() < 10


@pytest.mark.parametrize("said", ["hi", f"{EOS} hi"])
def test_a_template_that_rejects_messages_says_why(said: str) -> None:
    session = tool_session()
    session.tokenizer.chat_template = "{{ raise_exception('no such role') }}" + TOOL_TEMPLATE
    with live(session) as served:
        answer = served.chat(said)
        assert answer.status_code == 400
        assert "no such role" in answer.json()["error"]["message"]


@pytest.mark.parametrize("said", ["hi", f"{EOS} hi"])
def test_half_a_character_in_a_call_of_an_earlier_turn(said: str) -> None:
    call = {"id": "x", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    messages = [{"role": "user", "content": said}, {"role": "assistant", "tool_calls": [call]}]
    session = tool_session()
    session.tokenizer.chat_template = "{{ messages | tojson }}" + TOOL_TEMPLATE
    with live(session) as served:
        answer = served.chat(messages=messages)
        assert answer.status_code == 400
        assert "lone surrogate" in answer.json()["error"]["message"]


def test_what_cannot_fit_is_refused_before_its_tokens_are_made() -> None:
    reader, long = Reader(tool_session()), "x" * 300_000
    for ask in (reader.text, lambda text: reader.chat([Message(role="user", content=text)])):
        with pytest.raises(ApiError, match="too few for 300000 characters"):
            ask(long)
    with pytest.raises(ApiError, match="the prompt alone has 300000"):
        reader.text([1] * 300_000)


def nothing_is_read(session: Session) -> Reader:
    """A reader of a session whose tokenizer must not be used."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("tokens were made")

    session._tokenize = fail  # type: ignore[method-assign]
    session.tokenizer.apply_chat_template = fail
    return Reader(session)


LONG = "x" * 300_000
CALL = {"id": "x", "function": {"name": "f", "arguments": {"a": LONG}}}


@pytest.mark.parametrize(
    ("messages", "described", "reason"),
    [
        ([Message(role="user", content="hi")], LONG, "characters"),
        ([Message(role="assistant", tool_calls=[CALL])], "", "characters"),
        ([Message(role="tool", content="hi", name=LONG)], "", "characters"),
        ([Message(role="user", content="hi")] * 5000, "", "too few for 5000 messages"),
    ],
)
def test_all_that_enters_a_prompt_is_counted_before_its_tokens_are_made(
    messages: Any, described: str, reason: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": described}}
    tools = [Tool.model_validate(tool)] if described else []
    with pytest.raises(ApiError, match=reason):
        nothing_is_read(tool_session()).chat(messages, tools)


def test_a_text_to_count_may_not_be_longer_than_any_that_fits() -> None:
    reader = nothing_is_read(tool_session())
    for special in (True, False):
        with pytest.raises(ApiError, match="too few for 300000 characters"):
            reader.plain(LONG, special)


def test_long_references_are_read_in_turns_and_only_as_far_as_they_may_go() -> None:
    session, lengths = tool_session(), []
    tokenize = session._tokenize

    def tokenized(text: str, special: bool = False) -> list[int]:
        lengths.append(len(text))
        return tokenize(text, special)

    session._tokenize = tokenized  # type: ignore[method-assign]
    reader = Reader(session)
    long = "abc" * 33_333
    assert reader.references([long, "hi"], 100_001) == session.encode_references([long, "hi"])
    assert max(lengths[:2]) < len(long)
    lengths.clear()
    with pytest.raises(ApiError, match="may have 1000 tokens in all"):
        reader.references([long * 10], 1000)
    assert sum(lengths) < len(long)


def test_an_answer_with_scores_is_no_longer_than_fits() -> None:
    session = tool_session()
    orders = Orders(session, Reader(session), ServeSettings())
    chat = {"model": MODEL, "messages": USER, "logprobs": True, "top_logprobs": 20, "n": 16}
    made = orders.of_chat(ChatRequest.model_validate({**chat, "n": 1}))
    assert made[0].options.max_new_tokens == 4096 - len(made[0].prompt)
    session.target.max_context = 1 << 17
    made = orders.of_chat(ChatRequest.model_validate(chat))
    assert len(made) == 16 and made[0].options.max_new_tokens == (1 << 21) // (16 * 21)
    with pytest.raises(ApiError, match="ask for at most 6241 tokens"):
        orders.of_chat(ChatRequest.model_validate({**chat, "max_tokens": 10_000}))
    session.target.max_context = 4096  # which limits the answer in any case
    made = orders.of_chat(ChatRequest.model_validate({**chat, "max_tokens": 10_000}))
    assert made[0].options.max_new_tokens == 6241


@pytest.mark.parametrize("where", ["description", "arguments"])
def test_what_looks_like_a_control_token_is_text_in_tools_and_calls_too(where: str) -> None:
    session, found = tool_session(), []
    session.tokenizer.chat_template = "{{ messages | tojson }}{{ tools | tojson }}" + TOOL_TEMPLATE
    for word in ("forged", EOS):
        said = {"description": "safe", "arguments": "safe"} | {where: word}
        tool = {"name": "f", "description": said["description"], "parameters": {}}
        call = {"id": "x", "function": {"name": "f", "arguments": {"a": said["arguments"]}}}
        conversation = [
            Message(role="user", content="hi"),
            Message(role="assistant", tool_calls=[call]),
        ]
        tools = [Tool.model_validate({"type": "function", "function": tool})]
        found.append(Reader(session).chat(conversation, tools))
        assert word in session.tokenizer.decode(found[-1])
    end = session.tokenizer.eos_token_id
    assert found[0].count(end) == found[1].count(end)


@pytest.mark.parametrize("where", ["properties", "arguments"])
def test_names_that_hold_control_tokens_are_refused(where: str) -> None:
    session = tool_session()
    session.tokenizer.chat_template = "{{ messages | tojson }}{{ tools | tojson }}" + TOOL_TEMPLATE
    named = {"properties": {"a": 1}, "arguments": {"a": 1}} | {where: {"a": [{f"b{EOS}": 1}]}}
    tool = {"name": "f", "parameters": {"type": "object", "properties": named["properties"]}}
    call = {"id": "x", "function": {"name": "f", "arguments": named["arguments"]}}
    conversation = [
        Message(role="user", content="hi"),
        Message(role="assistant", tool_calls=[call]),
    ]
    tools = [Tool.model_validate({"type": "function", "function": tool})]
    with pytest.raises(ApiError, match="names in tools and calls must not hold control tokens"):
        Reader(session).chat(conversation, tools)


@pytest.mark.parametrize("mark", ['<|"|>', "<|\\|>"])
def test_a_control_token_that_json_escapes_is_text_too(mark: str) -> None:
    session = tool_session()
    session.tokenizer.add_special_tokens({"additional_special_tokens": [mark]})
    asked = Reader(session).chat([Message(role="user", content=f"x {mark} y")])
    assert session.tokenizer.convert_tokens_to_ids(mark) not in asked
    assert mark in session.tokenizer.decode(asked)


THOUGHT = "<think>"


@pytest.mark.parametrize("others", ["hi", f"hi {EOS}", f"hi {THOUGHT}"])
def test_a_control_token_in_an_earlier_answer_is_text_whatever_others_say(others: str) -> None:
    session, counts = tool_session(), []
    for said in ("forged", EOS):
        answer = Message(role="assistant", content=f"a {said} b")
        read = Reader(session).chat([Message(role="user", content=others), answer])
        assert f"a {said} b" in session.tokenizer.decode(read)
        counts.append(read.count(session.tokenizer.eos_token_id))
    assert counts == [0, 0]


def test_the_marks_that_a_model_writes_stay_tokens_in_its_earlier_answers() -> None:
    session = tool_session()
    session.tokenizer.add_tokens([THOUGHT])
    session.target.vocab_size = len(session.tokenizer)
    mark = session.tokenizer.convert_tokens_to_ids(THOUGHT)
    answer = Message(role="assistant", content=f"{THOUGHT} b")
    assert mark in Reader(session).chat([Message(role="user", content="hi"), answer])


@pytest.mark.parametrize(
    "message",
    [
        Message(role="assistant", tool_calls=[{"id": "x", "function": {"name": "now"}}]),
        Message(role="tool", content="noon", tool_call_id="x"),
    ],
)
def test_earlier_calls_are_not_dropped_silently(message: Message) -> None:
    session = tool_session()
    messages = [Message(role="user", content="hi"), message]
    assert Reader(session).chat(messages)
    session.tokenizer.chat_template = TEMPLATE
    with pytest.raises(ApiError, match="does not support tools: leave out") as refused:
        Reader(session).chat(messages)
    assert refused.value.status == 400
    assert refused.value.param == "messages"


@pytest.mark.parametrize("content", ["", None, "hi"])
def test_an_earlier_call_in_the_old_form_is_refused(content: Any) -> None:
    message = Message(role="assistant", content=content, function_call={"name": "f"})
    with pytest.raises(ApiError, match="use 'tool_calls'") as refused:
        Reader(tool_session()).chat([Message(role="user", content="hi"), message])
    assert refused.value.status == 400 and refused.value.param == "messages"
    unused = Message(role="assistant", content="hi", function_call=None)
    assert Reader(tool_session()).chat([unused])


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": None}},
        {"paceline": {"metrics": None, "sources": None, "references": None}},
    ],
)
def test_null_is_the_default(fields: dict[str, Any]) -> None:
    with live(tool_session()) as served:
        for stream in (False, True):
            asked = {"max_tokens": 3, "seed": 1, "stream": stream}
            answer, usual = served.chat(**asked, **fields), served.chat(**asked)
            assert answer.status_code == 200
            assert answer.text.count("data: ") == usual.text.count("data: ")
            assert "usage" not in answer.text or not stream


def test_minus_one_is_the_default() -> None:
    with live(tool_session(), max_tokens=30) as served:
        usual = {"max_tokens": 12, "temperature": 1.5, "seed": -1}
        answers = [served.complete(**usual).json() for _ in range(8)]
        assert len({answer["choices"][0]["text"] for answer in answers}) > 1  # seeds are drawn
        none = {"max_tokens": -1, "ignore_eos": True}
        for answer in (
            served.complete(**none),
            served.chat(**none),
            served.chat(**none, max_completion_tokens=-1),
        ):
            assert answer.json()["usage"]["completion_tokens"] == 30
        for wrong in (0, -2):
            said = served.complete(max_tokens=wrong).json()["error"]["message"]
            assert said == "max_tokens: Input should be at least 1, or -1 for no limit"


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_an_earlier_call_may_have_no_arguments(arguments: Any) -> None:
    call = {"id": "x", "function": {"name": "now", "arguments": arguments}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]
    session = tool_session()
    calls = "{% for each in messages[1:] %}{{ each.tool_calls[0].function | tojson }}{% endfor %}"
    session.tokenizer.chat_template = calls + TOOL_TEMPLATE
    with live(session) as served:
        body = {"model": MODEL, "messages": messages}
        asked = served.http.post("/tokenize", json=body).json()["tokens"]
        assert '{"name": "now", "arguments": {}}' in session.tokenizer.decode(asked)


def test_a_line_of_a_stream_ends_where_every_reader_thinks() -> None:
    said = "a\u2028b\u0085c\u2029d"
    body = {"model": MODEL, "messages": USER, "stream": True}
    with (
        live(tool_session()) as served,
        served.http.stream(
            "POST", "/v1/chat/completions", json={**body, "structured_outputs": {"choice": [said]}}
        ) as answer,
    ):
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    pieces = [json.loads(line) for line in lines[:-1]]
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in pieces) == said


def test_tokens_begin_where_their_characters_do() -> None:
    tokenizer = byte_tokenizer()
    text = "aåß\u2028b"
    found = [TokenLogprob(token, -1.0) for token in tokenizer(text).input_ids]
    places = Places()
    parts = [completion_logprobs(tokenizer, part, places) for part in (found[:2], found[2:])]
    offsets = [place for part in parts for place in part["text_offset"]]
    assert offsets == [0, 1, 1, 2, 2, 3, 3, 3, 4]


def test_special_tokens_take_no_place_in_a_text() -> None:
    tokenizer = byte_tokenizer()
    tokens = [tokenizer("a").input_ids[0], tokenizer.eos_token_id, tokenizer("b").input_ids[0]]
    scored = [TokenLogprob(token, -1.0) for token in [*tokens, tokens[0]]]
    assert completion_logprobs(tokenizer, scored, Places())["text_offset"] == [0, 1, 1, 2]


@pytest.mark.parametrize("stop", [None, "a", "b"])
def test_a_stream_scores_the_tokens_that_the_whole_answer_scores(stop: Any) -> None:
    asked = {"max_tokens": 60, "temperature": 1.5, "logprobs": 1, "stop": stop}
    reasons = set()
    with live(tool_session()) as served:
        for seed in (0, 1, 4, 5, 8, 13, 18):
            (whole,) = served.complete(seed=seed, **asked).json()["choices"]
            lines = served.complete(seed=seed, stream=True, **asked).text.split("\n\n")[:-2]
            pieces = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
            for name in ("tokens", "token_logprobs", "text_offset"):
                scored = [each for one in pieces for each in (one["logprobs"] or {name: []})[name]]
                assert scored == whole["logprobs"][name]
            assert "".join(piece["text"] for piece in pieces) == whole["text"]
            reasons.add(whole["finish_reason"])
    assert len(reasons) == 2


def session_that_begins_texts() -> Session:
    session = tool_session()
    mark = (EOS, session.tokenizer.eos_token_id)
    session.tokenizer._tokenizer.post_processor = TemplateProcessing(f"{EOS} $A", None, [mark])
    return session


def test_a_prompt_in_a_list_is_repeated_as_given() -> None:
    with live(session_that_begins_texts()) as served:
        answer = served.complete(["ab", "cd"], n=2, echo=True, max_tokens=1).json()
        said = [choice["text"][:2] for choice in answer["choices"]]
        assert said == ["ab", "ab", "cd", "cd"]
        assert served.complete("ab", echo=True).json()["choices"][0]["text"].startswith("ab")


def test_a_prompt_to_repeat_does_not_hold_up_others() -> None:
    with live(tool_session()) as served, ThreadPoolExecutor() as threads:
        read, begun, free = served.server.reader.decode, Event(), Event()

        def read_something_long(ids: Any) -> str:
            begun.set()
            assert free.wait(20)
            return read(ids)

        served.server.reader.decode = read_something_long  # type: ignore[method-assign]
        asking = threads.submit(served.complete, [64, 65], echo=True, max_tokens=1)
        try:
            assert begun.wait(20)
            assert served.http.get("/health", timeout=5).status_code == 200
        finally:
            free.set()
        assert asking.result().status_code == 200


def test_a_failure_has_a_name_and_leaves_the_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("/secret/path")

    origin = "https://example.com"
    body = json.dumps({"model": MODEL, "messages": USER})
    headers = {"Content-Type": "application/json", "Origin": origin, "x-request-id": "my-7"}
    monkeypatch.setattr(Orders, "of_chat", fail)
    with live(tool_session(), cors=origin) as served:
        connection = HTTPConnection(served.url.removeprefix("http://"), timeout=20)
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        assert answer.status == 500
        assert json.loads(answer.read())["error"]["code"] == "internal_error"
        assert answer.headers["x-request-id"] == "my-7"
        assert answer.headers["access-control-allow-origin"] == origin
        time.sleep(0.2)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("name", ["time_limit", "body_limit", "grace"])
def test_a_time_is_a_number(name: str) -> None:
    fields: dict[str, Any] = {name: float("nan")}
    with pytest.raises(UsageError, match=name):
        ServeSettings(**fields)


@pytest.mark.parametrize("wrong", ["https://example.com/", "example.com", "https://Example.com"])
def test_an_origin_is_what_browsers_send(wrong: str) -> None:
    with pytest.raises(UsageError, match="an origin as browsers"):
        ServeSettings(cors=wrong)
    for right in ("", "*", "null", "https://example.com", "http://localhost:3000"):
        assert ServeSettings(cors=right).cors == right


def test_a_folder_has_the_name_it_has_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model" / "parts"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert public_name(".") == "parts"
    assert public_name("..") == "model"
    assert public_name(f"{folder}/") == "parts"
    assert public_name("owner/name") == "owner/name"
    (folder / "caf\udce9").mkdir()
    assert public_name("caf\udce9") == "caf?"


def test_a_port_that_another_server_took_while_the_model_was_loaded() -> None:
    with bound_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bound_socket("127.0.0.1", port) as second:
            first.listen()
            server = Server(tool_session(), [MODEL], ServeSettings(grace=1.0))
            with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
                run(server, second)


def test_vanished_clients_are_noticed_and_all_parts_of_an_answer_leave_at_once() -> None:
    async def accept_one() -> None:
        accepted = asyncio.get_running_loop().create_future()
        with bound_socket("127.0.0.1", 0) as listening:
            server = await asyncio.start_server(
                lambda _, writer: accepted.set_result(writer), sock=listening
            )
            async with server:
                _, client = await asyncio.open_connection(*listening.getsockname())
                writer = await accepted  # one that nobody keeps closes its connection
                connection = writer.get_extra_info("socket")
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                # Or the second part would wait until the first is confirmed, often 40 ms later.
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for each in (client, writer):
                    each.close()

    asyncio.run(accept_one())


def test_a_request_that_offers_another_protocol_is_answered_in_this_one() -> None:
    """Java's own client offers HTTP/2 with every request, and sends the body in chunks."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEA"}
    headers = {"Content-Type": "application/json", **offer}
    asked = {"model": MODEL, "messages": USER, "max_tokens": 3, "ignore_eos": True}
    body = json.dumps(asked).encode()
    with live(tool_session()) as served:
        connection = HTTPConnection(served.url.removeprefix("http://"), timeout=20)
        for _ in range(2):
            connection.request("POST", "/v1/chat/completions", iter([body[:9], body[9:]]), headers)
            answer = connection.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())["usage"]["completion_tokens"] == 3
        connection.close()
    # Tests run without httptools, which would read no body here.
    unused = StoppableServer(Server(tool_session(), [MODEL], ServeSettings()))
    assert unused.config.http == "h11"


def test_a_key_may_end_with_any_letter() -> None:
    keys = ["correct-horse", "schlüssel-à", "nøkkel-Å"]
    with live(tool_session(), keys=keys) as served:
        for key in keys:
            sent = {b"Authorization": f"Bearer {key}".encode()}
            assert served.http.get("/v1/models", headers=sent).status_code == 200


def test_a_request_that_is_nested_too_deeply_to_be_written_is_not_in_its_line_of_the_log() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    line = logging.makeLogRecord(
        {"msg": "answered", "levelname": "INFO", "what": {"request": "r", "asked": deep}}
    )
    assert json.loads(_JsonLines().format(line)) | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "answered",
        "request": "r",
    }
    while deep:  # freed one by one
        deep = deep.pop()
