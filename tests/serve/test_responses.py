"""OpenAI's Responses API, through OpenAI's own client and without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.serve.live import MODEL, Live, SlowToy, live, tool_session

from paceline.serve.responses import ResponsesRequest
from paceline.serve.schemas import ChatRequest

openai = pytest.importorskip("openai")

RESPONSES = "/v1/responses"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Bergen"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture
def client(served: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def respond(served: Live, given: Any = "once upon", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": given, "max_output_tokens": 20, "seed": 1, **fields}
    return served.http.post(RESPONSES, json=body)


def events(served: Live, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each under its own name, numbered in order."""
    found = []
    for event in filter(None, respond(served, stream=True, **fields).text.split("\n\n")):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def test_a_response_says_what_the_chat_says(served: Live, client: Any) -> None:
    given = {"model": MODEL, "instructions": "be brief", "max_output_tokens": 20}
    scored: Any = ["message.output_text.logprobs"]
    answer = client.responses.create(
        **given, input="once upon", extra_body={"seed": 1}, include=scored
    )
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "once upon"}]
    chat = served.http.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": messages, "max_tokens": 20, "seed": 1},
    ).json()
    assert answer.output_text == chat["choices"][0]["message"]["content"]
    assert answer.usage.output_tokens == chat["usage"]["completion_tokens"] == 20
    assert answer.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.instructions == "be brief"
    assert answer.output[0].status == "incomplete"
    assert len(answer.output[0].content[0].logprobs) == 20


def test_the_events_of_a_stream_build_up_the_answer(served: Live, client: Any) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = respond(served, top_logprobs=2).json()
    found = events(served, **fields)
    kinds = [each["type"].removeprefix("response.") for each in found]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert {*kinds[4:-4]} == {"output_text.delta"}
    (item,), last = whole["output"], found[-1]["response"]
    deltas = found[4:-4]
    assert "".join(each["delta"] for each in deltas) == item["content"][0]["text"]
    logprobs = [one for each in deltas for one in each["logprobs"]]
    assert logprobs == item["content"][0]["logprobs"] == found[-4]["logprobs"]
    assert len(logprobs) == 20
    assert len(logprobs[0]["top_logprobs"]) == 2
    assert {*found[-2]} == {"type", "sequence_number", "output_index", "item"}
    assert last["output"] == [found[-2]["item"]] == [{**item, "id": last["output"][0]["id"]}]
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    with client.responses.stream(
        model=MODEL, input="once upon", max_output_tokens=20, extra_body={"seed": 1}
    ) as helper:
        text = "".join(e.delta for e in helper if e.type == "response.output_text.delta")
    assert text == item["content"][0]["text"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_call_and_its_result(client: Any, choice: Any) -> None:
    asked: dict[str, Any] = {"model": MODEL, "tools": [WEATHER], "extra_body": {"seed": 15}}
    given: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "weather?"}]}]
    chosen = {"tool_choice": choice, "parallel_tool_calls": False}
    answer = client.responses.create(**asked, **chosen, input=given)
    (call,) = answer.output
    assert (call.type, call.name, answer.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Bergen")
    with client.responses.stream(**asked, **chosen, input=given) as helper:
        kinds = [event.type for event in helper]
        (streamed,) = helper.get_final_response().output
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
    assert kinds[2:-1] == [
        f"response.{each}"
        for each in (
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        )
    ]
    given += [
        *(item.model_dump(exclude_none=True) for item in answer.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    again = client.responses.create(**asked, input=given, tool_choice="none", max_output_tokens=5)
    assert [item.type for item in again.output] == ["message"]


def test_functions_of_namespaces_are_called_and_other_tools_are_left_out(
    served: Live, caplog: pytest.LogCaptureFixture
) -> None:
    space = {"type": "namespace", "name": "met", "tools": [WEATHER, {"type": "custom"}]}
    asked = {
        "tools": [{"type": "web_search", "external_web_access": False}, space],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 400,
        "seed": 15,
    }
    with caplog.at_level("INFO", "paceline.serve"):
        answer = respond(served, "weather?", **asked).json()
    (call,) = answer["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "met", "weather")
    assert [each["name"] for each in answer["tools"]] == ["met"]
    (said,) = [each for each in caplog.records if each.message == "tools left out"]
    assert said.what == {"types": ["custom", "web_search"]}
    given = [{"role": "user", "content": "weather?"}, call]
    messages = ResponsesRequest.model_validate({"model": MODEL, "input": given}).as_chat().messages
    assert messages[1].tool_calls is not None
    assert messages[1].tool_calls[0]["function"]["name"] == "met.weather"
    streamed = events(served, given="weather?", **asked)[-2]["item"]
    assert (streamed["namespace"], streamed["arguments"]) == ("met", call["arguments"])


def test_a_conversation_is_read_as_in_a_chat(served: Live) -> None:
    call = {"call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
    given = [
        {"type": "message", "role": "developer", "content": "be brief"},
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "let me see", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", **call},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call", **call, "call_id": "c0"},
        {"type": "function_call", **call, "name": "say"},
        {"type": "function_call_output", "call_id": "c1", "output": "said"},
    ]
    function = {"name": "weather", "arguments": call["arguments"]}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "rain"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c0", "type": "function", "function": function},
                {"id": "c1", "type": "function", "function": {**function, "name": "say"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "say", "content": "said"},
    ]
    chat = {"model": MODEL, "messages": messages, "max_tokens": 20, "seed": 1}
    asked = ResponsesRequest.model_validate({"model": MODEL, "input": given}).as_chat()
    assert asked.messages == ChatRequest.model_validate(chat).messages
    expected = served.http.post("/v1/chat/completions", json=chat).json()
    answer = respond(served, given).json()
    text = expected["choices"][0]["message"]["content"]
    assert answer["output"][0]["content"][0]["text"] == text
    assert answer["usage"]["input_tokens"] == expected["usage"]["prompt_tokens"]


def test_text_of_a_schema_and_predictions(served: Live, client: Any) -> None:
    form = {"type": "json_schema", "name": "x", "schema": WEATHER["parameters"], "strict": True}
    answer = client.responses.create(model=MODEL, input="weather?", text={"format": form})
    assert json.loads(answer.output_text)["city"] in ("Oslo", "Bergen")
    assert answer.text.format.schema_ == WEATHER["parameters"]
    wanted: dict[str, Any] = {"temperature": 0, "max_output_tokens": 60}
    said = respond(served, **wanted).json()
    assert (said["temperature"], said["top_p"], said["parallel_tool_calls"]) == (0, 1, True)
    text = said["output"][0]["content"][0]["text"]
    prediction = {"type": "content", "content": text}
    wanted |= {"max_tokens": 60, "max_output_tokens": None, "paceline": {"metrics": True}}
    found = respond(served, prediction=prediction, **wanted).json()
    assert found["max_output_tokens"] == 60
    assert found["output"][0]["content"][0]["text"] == text
    details, drafts = found["usage"]["output_tokens_details"], found["metrics"]
    accepted, rejected = (details[f"{each}_prediction_tokens"] for each in ("accepted", "rejected"))
    assert accepted + rejected == drafts["speculative_decoding"]["num_draft_tokens"]


def test_a_stream_that_fails_says_so() -> None:
    with live(tool_session(SlowToy), time_limit=1) as served:
        found = events(served, max_output_tokens=4000, ignore_eos=True)
    assert [found[-1]["type"], found[-1]["response"]["status"]] == ["response.failed", "failed"]
    assert "1 s" in found[-1]["response"]["error"]["message"]


RESULT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "kept": ({"previous_response_id": "resp_1"}, "the whole conversation"),
    "conversation": ({"conversation": "conv_1"}, "the whole conversation"),
    "background": ({"background": True}, "stream"),
    "truncation": ({"truncation": "auto"}, "shorten the input"),
    "format of chats": ({"response_format": {"type": "json_object"}}, "text.format"),
    "messages": ({"messages": []}, "use 'input'"),
    "two texts": ({"n": 2}, "n: "),
    "no limit": ({"max_output_tokens": 0}, "max_output_tokens: "),
    "no kind of tool": ({"tools": [{"name": "weather"}]}, "tools.0: Input should be a tool"),
    "many tools": (
        {"tools": [{"type": "namespace", "name": "a", "tools": [WEATHER] * 65}] * 2},
        "128 functions in all",
    ),
    "a long name": (
        {"tools": [{"type": "namespace", "name": "a" * 121, "tools": [WEATHER]}]},
        "more than 128 letters",
    ),
    "two equal functions": ({"tools": [WEATHER, WEATHER]}, "the same name"),
    "only other tools": (
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        "needs 'tools' that are functions",
    ),
    "a choice without tools": ({"tool_choice": "required"}, "needs 'tools'"),
    "no schema": ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "needs 'schema'"),
    "nothing": ({"input": []}, "input: "),
    "only thoughts": ({"input": [{"type": "reasoning"}]}, "no message"),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input: parts of type 'input_image'",
    ),
    "a file": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "should be a message"),
    "no role": ({"input": [{"content": "a"}]}, "input.0.message.role: "),
    "a string in a list": ({"input": ["a"]}, "should be a message"),
    "a result of nothing": ({"input": [RESULT]}, "no call 'c1'"),
    "half a call": ({"input": [CALL]}, "input: the arguments of a tool call"),
    "too long": ({"input": "a" * 100_000}, "the model's context is 4096"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_request_is_refused(served: Live, case: str) -> None:
    fields, says = WRONG[case]
    answer = respond(served, **({"given": fields["input"]} if "input" in fields else fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert says in error["message"]
    assert error["param"] in (*fields, "text.format")


def test_nothing_is_kept(served: Live) -> None:
    answer = served.http.get(f"{RESPONSES}/{respond(served).json()['id']}")
    assert answer.status_code == 404
    assert RESPONSES in answer.json()["error"]["message"]
