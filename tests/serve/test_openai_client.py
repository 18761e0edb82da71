"""OpenAI's own client, as it is published, against the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.serve.live import MODEL, Live, live, tool_session
from tests.tiny import toy_session

openai = pytest.importorskip("openai")

USER: Any = [{"role": "user", "content": "once upon"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Bergen"]}, "days": {"enum": [1, 2]}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "stop",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    },
]


@pytest.fixture
def client(served: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def said(served: Live, seed: int, place: int = 0, **options: Any) -> str:
    """What plain decoding of another session with the same model says."""
    session = tool_session(method="plain")
    chosen = {"max_new_tokens": 25, "temperature": 1.0, **options}
    return session.generate(USER, seed=seed + (place << 64), **chosen).text


def test_a_chat_says_what_the_session_says(served: Live, client: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER, seed=11, max_tokens=25)
    assert answer.choices[0].message.content == said(served, 11)
    assert answer.usage.completion_tokens <= 25
    assert answer._request_id.startswith("req_")


def test_texts_of_one_request_differ_and_are_those_of_their_seeds(
    served: Live, client: Any
) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, seed=12, max_completion_tokens=25, n=3
    )
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [said(served, 12, place) for place in range(3)]
    assert len({*texts}) == 3


@pytest.mark.parametrize("method", ["plain", "anpd", "llma", "auto"])
def test_sixteen_at_once_get_what_they_get_alone(method: str) -> None:
    with (
        live(tool_session(method=method)) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client,
        ThreadPoolExecutor(16) as threads,
    ):

        def ask(seed: int) -> str:
            stream = client.chat.completions.create(
                model=MODEL,
                messages=USER,
                seed=seed,
                max_tokens=25,
                stream=True,
                temperature=seed % 3 / 2,
            )
            return "".join(piece.choices[0].delta.content or "" for piece in stream)

        texts = list(threads.map(ask, range(16)))
    expected = [said(served, seed, temperature=seed % 3 / 2) for seed in range(16)]
    assert texts == expected


def test_streams_with_usage_and_the_streaming_helper(served: Live, client: Any) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        seed=13,
        max_tokens=25,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces = list(stream)
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert text == said(served, 13)
    assert pieces[-1].usage.completion_tokens <= 25
    with client.chat.completions.stream(model=MODEL, messages=USER, seed=13, n=2) as helper:
        for _ in helper:
            pass
        final = helper.get_final_completion()
    assert final.choices[0].message.content.startswith(text[:5])


def test_log_probabilities(client: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, seed=14, max_tokens=5, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    assert all(len(token.top_logprobs) == 2 for token in content)
    old = client.completions.create(model=MODEL, prompt="a", seed=14, max_tokens=5, logprobs=2)
    assert len(old.choices[0].logprobs.tokens) == 5


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_tools_that_must_be_called(client: Any, choice: Any) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": USER,
        "tools": TOOLS,
        "tool_choice": choice,
        "seed": 15,
    }
    answer = client.chat.completions.create(**asked, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert choice == "required" or call.function.name == "weather"
    if call.function.name == "weather":
        assert arguments["city"] in ("Oslo", "Bergen")
    assert answer.choices[0].message.content is None
    assert answer.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")
    with client.chat.completions.stream(**asked, parallel_tool_calls=False) as helper:
        for _ in helper:
            pass
        streamed = helper.get_final_completion().choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in streamed] == [
        (call.function.name, call.function.arguments)
    ]
    history: Any = [
        *USER,
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    again = client.chat.completions.create(
        model=MODEL, messages=history, tools=TOOLS, max_tokens=5, tool_choice="none"
    )
    assert again.choices[0].message.tool_calls is None


def test_answers_of_a_schema(client: Any) -> None:
    schema = TOOLS[0]["function"]["parameters"]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        seed=16,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    found = json.loads(answer.choices[0].message.content)
    assert found["days"] in (1, 2)
    assert answer.choices[0].finish_reason == "stop"
    either = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        seed=17,
        tools=TOOLS,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    message = either.choices[0].message
    assert (
        (json.loads(message.content)["days"] in (1, 2)) if message.content else message.tool_calls
    )
    chosen = client.chat.completions.create(
        model=MODEL, messages=USER, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert chosen.choices[0].message.content in ("yes", "no")


def test_predictions_and_extensions(client: Any) -> None:
    plain = client.chat.completions.create(model=MODEL, messages=USER, seed=18, max_tokens=60)
    text = plain.choices[0].message.content
    predicted = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        seed=18,
        max_tokens=60,
        prediction={"type": "content", "content": text},
        extra_body={"paceline": {"metrics": True}},
    )
    assert predicted.choices[0].message.content == text
    details = predicted.usage.completion_tokens_details
    found = predicted.metrics["speculative_decoding"]
    guessed = details.accepted_prediction_tokens + details.rejected_prediction_tokens
    assert guessed == found["num_draft_tokens"]


def test_errors_have_their_classes(served: Live, client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="unknown model"):
        client.chat.completions.create(model="gpt-5", messages=USER)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=USER, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x")
    with live(tool_session(), keys=["correct-horse"], names=[MODEL, MODEL]) as locked:
        with (
            openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0) as other,
            pytest.raises(openai.AuthenticationError),
        ):
            other.models.list()
        with openai.OpenAI(base_url=f"{locked.url}/v1", api_key="correct-horse") as other:
            assert [model.id for model in other.models.list()] == [MODEL]


def test_a_model_without_tools_in_its_template_says_so(client: Any) -> None:
    with (
        live(toy_session("plain")) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as other,
        pytest.raises(openai.BadRequestError, match="does not support tools"),
    ):
        other.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS)
