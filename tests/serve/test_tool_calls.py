"""Tool calls in the text of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.serve.schemas import Tool
from paceline.serve.tools import CLOSE, OPEN, CallReader, ToolCall, call_grammar

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bergen"}}\n</tool_call>'
TRICKY = '<tool_call>{"name": "say", "arguments": {"text": "a </tool_call> \\" b"}}</tool_call>'

BODY = CALL.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
LLAMA = BODY.replace("arguments", "parameters")
BLOCK = f"```json\n{BODY}\n```"

Found = list[tuple[str, Any]]


def read(pieces: list[str]) -> Found:
    """What a reader finds, with neighbouring texts joined."""
    reader = CallReader(["weather", "say"])
    found: Found = []
    each: str | ToolCall
    for each in [*(one for piece in pieces for one in reader.feed(piece)), *reader.finish()]:
        if isinstance(each, ToolCall):
            found.append((each.name, json.loads(each.arguments)))
        elif found and found[-1][0] == "":
            found[-1] = ("", found[-1][1] + each)
        else:
            found.append(("", each))
    return found


WEATHER = ("weather", {"city": "Bergen"})
CASES: dict[str, Found] = {
    "just text": [("", "just text")],
    "text that ends so <tool_": [("", "text that ends so <tool_")],
    "trailing space  \n": [("", "trailing space  \n")],
    CALL: [WEATHER],
    f"Let me see.\n{CALL}": [("", "Let me see."), WEATHER],
    f"{CALL}\n{CALL}": [WEATHER, WEATHER],
    f"{TRICKY}\nok": [("say", {"text": 'a </tool_call> " b'}), ("", "\nok")],
    CALL.removesuffix("</tool_call>"): [WEATHER],
    CALL.removesuffix("_call>"): [WEATHER],
    CALL.removesuffix("/tool_call>"): [WEATHER],
    "<tool_call>{broken}</tool_call> and on": [("", "<tool_call>{broken}</tool_call> and on")],
    '<tool_call>{"name": "unknown"}</tool_call>': [
        ("", '<tool_call>{"name": "unknown"}</tool_call>')
    ],
    '<tool_call>{"name": ["weather"]}</tool_call>': [
        ("", '<tool_call>{"name": ["weather"]}</tool_call>')
    ],
    '<tool_call>{"name": "say", "arguments": {"text": NaN}}</tool_call>': [
        ("", '<tool_call>{"name": "say", "arguments": {"text": NaN}}</tool_call>')
    ],
    '<tool_call>{"name": "weather", "argum': [("", '<tool_call>{"name": "weather", "argum')],
    '<tool_call>{"name": "weather"}</tool_call>': [("weather", {})],
    "": [],
    "Calls stand in <tool_call> tags.": [("", "Calls stand in <tool_call> tags.")],
    "Use:\n\n    <tool_call>{broken}</tool_call>\nok": [
        ("", "Use:\n\n    <tool_call>{broken}</tool_call>\nok")
    ],
    '{"note": "a  <tool_call> b"}': [("", '{"note": "a  <tool_call> b"}')],
    f'See\n<tool_call>{{"name": "say, "arguments": {{}}}}</tool_call>, then\n{CALL}': [
        ("", 'See\n<tool_call>{"name": "say, "arguments": {}}</tool_call>, then'),
        WEATHER,
    ],
    f"<tool_call>\n {CALL}": [("", "<tool_call>"), WEATHER],
    BLOCK: [WEATHER],
    f"Let me see:\n{BLOCK}\n{BLOCK}": [("", "Let me see:"), WEATHER, WEATHER],
    f"{BLOCK}\nDone.": [WEATHER, ("", "\nDone.")],
    f"{CALL}\n{BLOCK}": [WEATHER, WEATHER],
    f"{BLOCK}{CALL}": [WEATHER, WEATHER],
    BLOCK.removesuffix("\n```"): [WEATHER],
    BLOCK.removesuffix("`"): [WEATHER],
    BLOCK.replace("weather", "unknown"): [("", BLOCK.replace("weather", "unknown"))],
    BLOCK.replace("json", "js"): [("", BLOCK.replace("json", "js"))],
    BLOCK.replace("Bergen", "```"): [("weather", {"city": "```"})],
    '```json\n{"name": "weather"}\n```': [("", '```json\n{"name": "weather"}\n```')],
    '```json\n["name"]\n```': [("", '```json\n["name"]\n```')],
    f'```json\n{{"a": 1}}\n```\n{CALL}': [("", '```json\n{"a": 1}\n```'), WEATHER],
    f'```json\n{{"name": 1}}\n{CALL}\n```': [("", '```json\n{"name": 1}'), WEATHER, ("", "\n```")],
    BODY: [WEATHER],
    f" \n{BODY}": [WEATHER],
    f"{LLAMA}; {LLAMA}": [WEATHER, WEATHER],
    f"{BODY}\nDone; {BODY}": [WEATHER, ("", f"\nDone; {BODY}")],
    f"[{BODY}, {LLAMA}]": [WEATHER, WEATHER],
    f"{BODY}\n{CALL}": [WEATHER, WEATHER],
    f"See: {BODY}": [("", f"See: {BODY}")],
    f'[{BODY}, {{"name": 7}}]': [("", f'[{BODY}, {{"name": 7}}]')],
    '{"name": "weather"}': [("", '{"name": "weather"}')],
    '{"name": "Bo", "say": "{\\"["} and on': [("", '{"name": "Bo", "say": "{\\"["} and on')],
    f"{{{BODY}}}": [WEATHER],
    f"{CALL}\n": [WEATHER],
    f"{BODY} \n": [WEATHER],
    f"<tool_call>{{{BODY}}}": [WEATHER],
    f"{{{BODY}": [("", f"{{{BODY}")],
    BODY[:-1]: [("", BODY[:-1])],
    f"<tool_call>[{BODY}]</tool_call>": [WEATHER],
    '<tool_call>{"a\\\\" <tool_call>': [("", '<tool_call>{"a\\\\" <tool_call>')],
}


@pytest.mark.parametrize("text", CASES)
def test_an_answer_is_read_alike_however_it_is_cut(text: str) -> None:
    assert read([text]) == CASES[text]
    assert read(list(text)) == CASES[text]
    for place in range(len(text)):
        assert read([text[:place], text[place:]]) == CASES[text], place
    for size in (3, 5, 7):
        pieces = [text[place : place + size] for place in range(0, len(text), size)]
        assert read(pieces) == CASES[text], size


def test_half_a_character_in_a_call_stays_an_escape() -> None:
    call = '<tool_call>{"name": "say", "arguments": {"text": "\\ud83d ø"}}</tool_call>'
    (found,) = CallReader(["say"]).feed(call)
    assert isinstance(found, ToolCall)
    assert found.arguments.encode().isascii()
    assert json.loads(found.arguments) == {"text": "\ud83d ø"}


def test_a_call_nested_too_deeply_to_be_read_stays_text() -> None:
    nested = "[" * 100_000 + "]" * 100_000
    text = f'{OPEN}{{"name": "say", "arguments": {{"text": {nested}}}}}{CLOSE}'
    assert read([text]) == [("", text)]


def test_text_is_not_held_back_longer_than_it_may_become_a_call() -> None:
    assert CallReader(["weather"]).feed('{"n": 1') == ['{"n": 1']
    reader = CallReader(["weather"])
    assert reader.feed("a < b") == ["a < b"]
    assert reader.feed(" <tool") == []
    assert reader.feed("box>") == [" <toolbox>"]
    assert reader.feed("in a <tool_call> ") == ["in a"]
    assert reader.feed("tag") == [" <tool_call>", " tag"]
    assert reader.feed("\n```json\n{") == []
    assert reader.feed('"n": 1') == ["\n```json", '\n{"n": 1']


def test_the_grammar_of_calls_compiles_and_says_what_models_are_trained_on() -> None:
    llguidance = pytest.importorskip("llguidance")
    tool = Tool.model_validate(
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {
                    "$defs": {"city": {"type": "string"}},
                    "properties": {"city": {"$ref": "#/$defs/city"}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        }
    )
    said = {several: grammar_of(llguidance, tool, several) for several in (True, False)}
    for several, grammar in said.items():
        assert takes(llguidance, grammar, CALL)
        assert takes(llguidance, grammar, f"{CALL}\n{CALL}") == several
        assert takes(llguidance, grammar, "{}") != several
        assert not takes(llguidance, grammar, CALL.replace('{"city": "Bergen"}', "5"))


def grammar_of(llguidance: Any, tool: Tool, several: bool) -> str:
    """Of calls; of several, or of one or else of an answer that is an object."""
    answer = None if several else {"type": "object"}
    text = call_grammar([tool, tool], (f'"{OPEN}"', f'"{CLOSE}"'), several=several, answer=answer)
    grammar: str = llguidance.LLMatcher.grammar_from_lark(text)
    return grammar


def takes(llguidance: Any, grammar: str, text: str) -> bool:
    """Whether the grammar's texts are such as this one."""
    letters = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(letters, grammar)
    return bool(matcher.try_consume_tokens(tokens := letters.tokenize_str(text)) == len(tokens))
