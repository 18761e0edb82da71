"""The default model behind the server, asked by OpenAI's client."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.helpers import on_its_model
from tests.serve.live import Live, live, wait_for

from paceline.prompts import demo_prompts
from paceline.session import Session

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
TOKENS = 10
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}. To call one write <tool_call>"
    "\n{\"name\": …, \"arguments\": …}\n</tool_call>.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)  # fmt: skip
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(scope="module")
def served(default_model: Session) -> Iterator[Live]:
    with live(default_model, names=[MODEL]) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def asked(place: int) -> Any:
    prompts = list(demo_prompts())
    return [
        {"role": "user", "content": f"{prompts[place % len(prompts)].turns[0][-80:]} ({place})"}
    ]


def test_sixteen_clients_get_what_plain_decoding_says_alone(
    default_model: Session, client: Any
) -> None:
    """Half of them greedy, half sampled; one in four a completion with n."""
    plain = on_its_model(default_model, "plain")

    def ask(place: int) -> list[str]:
        order = {
            "model": MODEL,
            "seed": place,
            "max_tokens": TOKENS,
            "temperature": place % 2 * 0.9,
        }
        if place % 4 == 3:
            answer = client.completions.create(prompt=asked(place)[0]["content"], n=2, **order)
            return [choice.text for choice in answer.choices]
        stream = client.chat.completions.create(messages=asked(place), stream=True, **order)
        return ["".join(piece.choices[0].delta.content or "" for piece in stream)]

    places = list(range(16))
    random.Random(1).shuffle(places)
    with ThreadPoolExecutor(16) as threads:
        together = dict(zip(places, threads.map(ask, places)))
    for place in range(16):
        options: Any = {"max_new_tokens": TOKENS, "temperature": place % 2 * 0.9}
        prompt = asked(place)[0]["content"] if place % 4 == 3 else asked(place)
        alone = [
            plain.generate(prompt, seed=place + (choice << 64), **options).text
            for choice in range(2 if place % 4 == 3 else 1)
        ]
        assert together[place] == alone, place


def test_a_prediction_is_copied_and_counted(client: Any) -> None:
    code = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return width * height * depth\n"
    order = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Repeat this code:\n{code}"}],
        "temperature": 0,
        "max_tokens": 60,
    }
    without = client.chat.completions.create(**order)
    text = without.choices[0].message.content
    predicted = client.chat.completions.create(
        **order, prediction={"type": "content", "content": text}
    )
    assert predicted.choices[0].message.content == text
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_json_of_a_schema_with_and_without_drafts(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120, "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }  # fmt: skip
    order = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Describe a person as JSON."}],
        "seed": 5,
        "max_tokens": 80,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    fast = client.chat.completions.create(**order)
    off = client.chat.completions.create(**order, extra_body={"paceline": {"method": "off"}})
    assert fast.choices[0].message.content == off.choices[0].message.content
    found = json.loads(fast.choices[0].message.content)
    assert set(found) == {"name", "age"}


def test_a_tool_is_called_with_and_without_drafts(default_model: Session, client: Any) -> None:
    tokenizer = default_model.tokenizer
    before, tokenizer.chat_template = tokenizer.chat_template, TOOL_TEMPLATE
    try:
        order = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "How is the weather in Bergen?"}],
            "tools": TOOLS,
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "seed": 6,
            "max_tokens": 60,
        }
        fast = client.chat.completions.create(**order)
        off = client.chat.completions.create(**order, extra_body={"paceline": {"method": "off"}})
    finally:
        tokenizer.chat_template = before
    (call,) = fast.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert "city" in json.loads(call.function.arguments)
    assert fast.choices[0].finish_reason == "tool_calls"
    (same,) = off.choices[0].message.tool_calls
    assert same.function.arguments == call.function.arguments


def test_log_probabilities_are_the_same_with_drafts(client: Any) -> None:
    order = {
        "model": MODEL,
        "messages": asked(0),
        "seed": 7,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 3,
    }
    fast = client.chat.completions.create(**order)
    off = client.chat.completions.create(**order, extra_body={"paceline": {"method": "off"}})
    assert fast.choices[0].logprobs == off.choices[0].logprobs


def test_whoever_hangs_up_frees_the_slot(served: Live, client: Any) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=asked(1), max_tokens=2000, stream=True
    )
    next(iter(stream))
    assert served.server.engine.load[0] == 1
    stream.close()
    wait_for(lambda: served.server.engine.load == (0, 0), 10)
