"""What the server says, in the shapes that clients expect."""

from __future__ import annotations

import json
import os
import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.serve.live import MODEL, Live, live, tool_session
from tests.tiny import toy_session

from paceline.drafters import Anpd
from paceline.serve.answers import metrics_of, token_bytes, token_text
from paceline.serve.settings import public_method
from paceline.stats import Stats

USER = [{"role": "user", "content": "hi"}]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The objects of a stream, which ends as it should."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_models_health_version_and_state(served: Live) -> None:
    listed = served.http.get("/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == (MODEL, "model", 4096)
    assert served.http.get(f"/v1/models/{MODEL}").json() == model
    assert served.http.get("/health").status_code == served.http.get("/ready").status_code == 200
    assert set(served.http.get("/version").json()) == {"version"}
    assert served.http.get("/state").json()["method"] == "anpd"
    assert public_method("rest:datastore=/srv/x,n=3") == "rest:datastore=x,n=3"
    within = "speculative:draft=/home/a/m,inner=(anpd:n=4)"
    assert public_method(within) == "speculative:draft=m,inner=(anpd:n=4)"


def test_tokens_and_back(served: Live) -> None:
    text = "Blåbær & <b>"
    answer = served.http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(text.encode())
    assert answer["max_model_len"] == 4096
    assert len(answer["token_strs"]) == answer["count"]
    back = served.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": text}
    chat = served.http.post("/tokenize", json={"messages": USER}).json()
    session = served.server.session
    assert chat["tokens"] == session.encode([{"role": "user", "content": "hi"}])
    assert served.http.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []


def test_tokens_without_those_that_begin_a_prompt(served: Live) -> None:
    asked = {"model": MODEL, "prompt": "ab", "add_special_tokens": False}
    assert served.http.post("/tokenize", json=asked).json()["tokens"] == [64, 65]


def test_a_chat_has_every_field(served: Live) -> None:
    answer = served.chat(seed=1).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["usage"]["total_tokens"] == (
        answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    )
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"


def test_a_stream_adds_up_to_the_answer(served: Live) -> None:
    whole = served.chat(seed=2, n=3, max_tokens=30).json()
    pieces = events(
        served.chat(seed=2, n=3, max_tokens=30, stream=True, stream_options={"include_usage": True})
    )
    assert len({(piece["id"], piece["created"]) for piece in pieces}) == 1
    assert [piece["choices"][0]["index"] for piece in pieces[:3]] == [0, 1, 2]
    texts, reasons, roles = [""] * 3, [""] * 3, [0] * 3
    for piece in pieces[:-1]:
        assert piece["object"] == "chat.completion.chunk"
        assert piece["usage"] is None
        (choice,) = piece["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles[choice["index"]] += "role" in choice["delta"]
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]
    assert roles == [1, 1, 1]
    assert pieces[-1]["choices"] == []
    assert pieces[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    without = events(served.chat(stream=True, max_tokens=2))
    assert all("usage" not in piece for piece in without)


def test_completions_of_texts_and_tokens(served: Live) -> None:
    one = served.complete("ab", seed=3).json()
    assert one["object"] == "text_completion"
    assert (
        one["choices"][0]["text"] == served.complete([64, 65], seed=3).json()["choices"][0]["text"]
    )
    several = served.complete(["ab", "cd"], seed=3, n=2, echo=True).json()
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in several["choices"]]
    assert [text[:2] for text in texts] == ["ab", "ab", "cd", "cd"]
    assert texts[0] == "ab" + one["choices"][0]["text"]
    assert several["usage"]["prompt_tokens"] == 4
    tokens = served.complete([[65, 66], [67]], seed=3, echo=True).json()
    assert tokens["choices"][0]["text"].startswith("bc")
    room = served.server.session.target.max_context - 2
    prompts = [[64, 65], [64] * room]
    long = served.complete(prompts, seed=3, max_tokens=6, ignore_eos=True).json()
    assert long["usage"]["completion_tokens"] == 6 + 2  # a long prompt does not shorten the others
    by_default = served.http.post("/v1/completions", json={"model": MODEL, "prompt": "a"}).json()
    assert by_default["usage"]["completion_tokens"] <= 16


def test_streamed_completions_with_the_prompt(served: Live) -> None:
    whole = served.complete("ab", seed=4, echo=True, logprobs=None).json()["choices"][0]["text"]
    pieces = events(served.complete("ab", seed=4, echo=True, stream=True))
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole
    assert pieces[0]["choices"][0]["text"] == "ab"


def test_log_probabilities_in_both_shapes(served: Live) -> None:
    chat = served.chat(seed=5, logprobs=True, top_logprobs=3, max_tokens=6).json()
    content = chat["choices"][0]["logprobs"]["content"]
    assert len(content) == chat["usage"]["completion_tokens"] == 6
    for token in content:
        assert set(token) == {"token", "logprob", "bytes", "top_logprobs"}
        assert token["logprob"] <= token["top_logprobs"][0]["logprob"] <= 0
        assert len(token["top_logprobs"]) == 3
    text = b"".join(bytes(token["bytes"]) for token in content).decode(errors="replace")
    assert text == chat["choices"][0]["message"]["content"]
    streamed = events(served.chat(seed=5, logprobs=True, top_logprobs=3, max_tokens=6, stream=True))
    found = [
        token
        for piece in streamed
        for token in (piece["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert found == content
    old = served.complete("ab", seed=5, logprobs=2, max_tokens=6).json()["choices"][0]["logprobs"]
    assert [len(old[name]) for name in ("tokens", "token_logprobs", "top_logprobs")] == [6, 6, 6]
    assert old["text_offset"][0] == 0
    told = zip(old["tokens"], old["token_logprobs"], old["top_logprobs"], strict=True)
    assert all(top[token] == logprob and 2 <= len(top) <= 3 for token, logprob, top in told)


def test_a_token_that_ends_a_text_has_no_log_probability(served: Live) -> None:
    end = {str(served.server.session.tokenizer.eos_token_id): 100}
    answer = served.chat(logprobs=True, max_tokens=4, logit_bias=end).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["logprobs"]["content"] == []


def test_tokens_by_themselves_keep_their_bytes(served: Live) -> None:
    tokenizer = served.server.session.tokenizer
    ids = served.server.session.encode("å")
    assert b"".join(token_bytes(tokenizer, token) for token in ids) == "å".encode()
    assert token_text(tokenizer, ids[0]) == "bytes:\\xc3"
    assert token_text(tokenizer, served.server.session.encode("a")[0]) == "a"


def test_tokens_that_are_decoded_as_they_are_are_written_so() -> None:
    """As added tokens are, unlike SentencePiece's, which has its own way with blanks and bytes."""
    pieces = {1: "▁of", 2: "<end▁of▁text>", 3: "<0x0A>", 4: "<0x0A>"}
    texts = {**pieces, 1: "of", 3: "\n"}
    tokenizer = SimpleNamespace(
        convert_ids_to_tokens=pieces.get, decode=lambda ids, **_: texts[ids[0]]
    )
    found = [token_bytes.__wrapped__(tokenizer, token).decode() for token in pieces]
    assert found == [" of", "<end▁of▁text>", "\n", "<0x0A>"]


def test_stop_strings_and_biases(served: Live) -> None:
    free = served.chat(temperature=0, max_tokens=60).json()["choices"][0]["message"]["content"]
    stop = free[10:12]
    stopped = served.chat(temperature=0, max_tokens=60, stop=stop).json()["choices"][0]
    assert stopped["message"]["content"] == free[: free.index(stop)]
    assert stopped["finish_reason"] == "stop"
    # Editors send the marks of all parts of a prompt, and what begins a new part of a program.
    others = [f"<|mark {place}|>" for place in range(31)]
    among = served.chat(temperature=0, max_tokens=60, stop=[*others, stop]).json()["choices"][0]
    assert among == stopped
    letter = served.server.session.encode("q")[0]
    biased = served.chat(max_tokens=5, logit_bias={str(letter): 100}).json()
    assert biased["choices"][0]["message"]["content"] == "qqqqq"


def test_extremes_are_served(served: Live) -> None:
    greedy = served.chat(temperature=0).json()["choices"][0]["message"]["content"]
    assert served.chat(top_p=0).json()["choices"][0]["message"]["content"] == greedy
    assert served.chat(top_k=1).json()["choices"][0]["message"]["content"] == greedy
    for fields in ({"top_k": 0}, {"top_k": -1}, {"min_p": 0}, {"top_p": 1}, {"seed": -1}):
        assert served.chat(**fields).status_code == 200, fields
    nulls = ("n", "stop", "seed", "tools", "tool_choice", "response_format", "stream", "top_p")
    assert served.chat(**dict.fromkeys(nulls)).status_code == 200


def test_a_completion_has_sixteen_tokens_by_default_or_as_many_as_are_allowed() -> None:
    for most, expected in ((0, 16), (5, 5), (100, 16)):
        with live(toy_session(), max_tokens=most) as served:
            answer = served.complete(max_tokens=None, ignore_eos=True).json()
            assert answer["usage"]["completion_tokens"] == expected


def test_plain_decoding_and_figures_for_one_request(served: Live) -> None:
    same = {"seed": 6, "max_tokens": 60}
    fast = served.chat(**same, paceline={"metrics": True, "method": "anpd"}).json()
    off = served.chat(**same, paceline={"metrics": True, "method": "off"}).json()
    assert fast["choices"] == off["choices"]
    figures = off["metrics"]["speculative_decoding"]
    assert figures["num_draft_tokens"] == 0
    assert figures["mean_acceptance_length"] == 1
    assert set(figures) == {
        "mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram",
        "num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens",
    }  # fmt: skip
    assert "metrics" not in served.chat(**same).json()
    streamed = events(served.chat(**same, stream=True, paceline={"metrics": True}))
    assert streamed[-1]["metrics"]["tokens_per_second"] > 0


def test_a_prediction_is_guessed_from_and_counted() -> None:
    session = tool_session(method=lambda: Anpd())
    session.budget = 8
    with live(session) as served:
        said = served.complete("once", seed=7, max_tokens=200, echo=False).json()
        tokens = session.generate("once", max_new_tokens=200, seed=7, temperature=1.0).tokens
        text = said["choices"][0]["text"]
        assert said["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
        predicted = served.complete(
            "once",
            seed=7,
            max_tokens=200,
            prediction={"type": "content", "content": [{"type": "text", "text": text}]},
        ).json()
        assert predicted["choices"][0]["text"] == text
        details = predicted["usage"]["completion_tokens_details"]
        assert 0 < details["accepted_prediction_tokens"] < len(tokens)


def test_sources_of_pieces_stand_beside_the_delta() -> None:
    session = tool_session()
    session.budget = 8
    again = {"logit_bias": {"65": 100}}  # the same letter again and again
    with live(session) as served:
        asked = served.chat(max_tokens=80, stream=True, paceline={"sources": True}, **again)
        pieces = events(asked)
    said = "".join(
        piece["choices"][0]["delta"].get("content", "") for piece in pieces if piece["choices"]
    )
    sourced = [
        each
        for piece in pieces
        for each in piece["choices"][0].get("paceline", {}).get("pieces", [])
    ]
    assert "".join(each["text"] for each in sourced) == said
    assert {each["drafted"] for each in sourced} == {True, False}


def test_sources_of_text_that_may_be_a_call_are_held_back_with_it(served: Live) -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    asked = {"sources": True}
    pieces = events(served.chat(seed=8, max_tokens=80, stream=True, paceline=asked, tools=[tool]))
    choices = [choice for piece in pieces for choice in piece["choices"]]
    said = "".join(choice["delta"].get("content", "") for choice in choices)
    sourced = [one for choice in choices for one in choice.get("paceline", {}).get("pieces", [])]
    assert "".join(each["text"] for each in sourced) == said


def test_keys() -> None:
    with live(toy_session("plain"), keys=["correct-horse", "battery-staple"]) as served:
        assert served.chat().status_code == 200
        with httpx.Client(base_url=served.url) as stranger:
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "Bearer"},
                {"Authorization": "Basic correct-horse"},
                {"Authorization": "correct-horse"},
                {"Authorization": "Bearer correct-horsf"},
            ):
                response = stranger.get("/v1/models", headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert stranger.post("/tokenize", headers=headers).status_code == 401
            for path in ("/health", "/ready", "/metrics", "/version", "/"):
                assert stranger.get(path).status_code == 200
            second = {"Authorization": "Bearer battery-staple"}
            assert stranger.get("/v1/models", headers=second).status_code == 200


def test_a_key_may_have_letters_of_any_language_and_encoding() -> None:
    latin = b"schl\xfcssel-456"
    keys = ["correct-horse", "schlüssel-123", os.fsdecode(latin)]
    with live(toy_session("plain"), keys=keys) as served:
        for key in ("schlüssel-123".encode(), latin):
            sent = {"Authorization": b"Bearer " + key}
            assert served.http.get("/v1/models", headers=sent).status_code == 200


def test_requests_have_names(served: Live) -> None:
    assert served.http.get("/health").headers["x-request-id"].startswith("req_")
    given = served.http.get("/health", headers={"x-request-id": "my-7"})
    assert given.headers["x-request-id"] == "my-7"
    forged = served.http.get("/health", headers={"x-request-id": "a b\t{}"})
    assert forged.headers["x-request-id"].startswith("req_")


def test_other_origins_may_ask_only_where_that_was_set(served: Live) -> None:
    origin = {"Origin": "https://example.com"}
    assert "access-control-allow-origin" not in served.http.get("/version", headers=origin).headers
    with live(toy_session("plain"), cors="https://example.com") as open_to_one:
        allowed = open_to_one.http.get("/version", headers=origin).headers
        assert allowed["access-control-allow-origin"] == "https://example.com"
        wanted = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        }
        asked = open_to_one.http.options("/v1/chat/completions", headers=origin | wanted)
        assert asked.status_code == 200


def test_figures_for_dashboards() -> None:
    with live(toy_session("anpd", budget=4)) as served:
        said = [
            served.chat(max_tokens=900, temperature=0, ignore_eos=True).json()["usage"]
            for _ in range(2)
        ]
        text = served.http.get("/metrics").text
    figures = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if not line.startswith("#") and "_bucket" not in line and "position=" not in line
    }
    assert figures["vllm:generation_tokens_total"] == sum(u["completion_tokens"] for u in said)
    assert figures["vllm:prompt_tokens_total"] == sum(u["prompt_tokens"] for u in said)
    assert figures["vllm:request_prompt_tokens_sum"] == figures["vllm:prompt_tokens_total"]
    accepted = figures["vllm:spec_decode_num_accepted_tokens_total"]
    assert 0 < accepted <= figures["vllm:spec_decode_num_draft_tokens_total"]
    by_position = sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total{")
    )
    assert by_position == accepted
    assert figures["vllm:time_to_first_token_seconds_count"] == 2
    assert figures["vllm:request_success_total"] == 2
    assert figures["vllm:num_requests_running"] == figures["vllm:num_requests_waiting"] == 0
    for name in ("inter_token_latency_seconds_count", "kv_cache_usage_perc"):
        assert f"vllm:{name}" in figures


def test_the_prompt_of_a_text_that_is_cut_off_counts(served: Live) -> None:
    def counted() -> float:
        lines = served.http.get("/metrics").text.splitlines()
        (line,) = (line for line in lines if line.startswith("vllm:prompt_tokens_total{"))
        return float(line.rsplit(" ", 1)[1])

    before = counted()
    asked = {"model": MODEL, "prompt": "once", "stream": True, "max_tokens": 900}
    with served.http.stream("POST", "/v1/completions", json={**asked, "ignore_eos": True}) as made:
        next(made.iter_lines())
    assert counted() > before


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js"])
def test_the_page_comes_from_here_alone(served: Live, path: str) -> None:
    response = served.http.get(path)
    assert response.status_code == 200
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert "http://" not in response.text.replace("http://www.w3.org", "")
    assert "https://" not in response.text


def test_tokens_of_the_first_round_are_not_timed() -> None:
    ticket: Any = SimpleNamespace(arrived=0.0, begun=0.5, first_token=1.0, ended=2.0, at_first=21)
    for tokens, each in ((25, 4.0), (21, 0.0)):
        found = metrics_of(Stats(rounds=2, tokens=tokens), ticket)
        assert found["tokens_per_second"] == each
        assert found["mean_itl_ms"] == (1000 / each if each else 0.0)


STRUCTURES: list[tuple[dict[str, Any], str]] = [
    ({"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}, r"\{.*\}"),
    ({"json_object": True}, r"\{.*\}"),
    ({"regex": "[ab]{3}"}, "[ab]{3}"),
    ({"choice": ["yes", "no"]}, "yes|no"),
    ({"grammar": 'start: "x" "y"'}, "xy"),
]


@pytest.mark.parametrize(("structure", "pattern"), STRUCTURES)
def test_every_kind_of_structure_is_kept(
    served: Live, structure: dict[str, Any], pattern: str
) -> None:
    asked = {"max_tokens": 300, "temperature": 0, "structured_outputs": structure}
    choice = served.complete(**asked).json()["choices"][0]
    assert choice["finish_reason"] == "length" or re.fullmatch(pattern, choice["text"], re.DOTALL)
    assert choice["text"][0] in "{abynx"


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_a_schema_where_llama_cpp_has_it_is_kept(served: Live, kind: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    asked = served.chat(max_tokens=400, response_format={"type": kind, "schema": schema})
    found = json.loads(asked.json()["choices"][0]["message"]["content"])
    assert found in ({"a": 1}, {"a": 2})


@pytest.mark.parametrize(
    "given",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"repetition_penalty": 1.8},
        {"temperature": 1.0, "min_p": 0.5},
        {"temperature": 1.0, "top_k": 2},
        {"temperature": 1.0, "top_p": 0.2},
    ],
)
def test_settings_of_the_draw_reach_it(served: Live, given: dict[str, Any]) -> None:
    asked = {"temperature": 0.0, "seed": 3, **given}
    said = served.complete(max_tokens=60, ignore_eos=True, **asked).json()["choices"][0]["text"]
    session, free = tool_session(method="plain"), {"max_new_tokens": 60, "ignore_eos": True}
    assert said == session.generate("once upon", **free, **asked).text
    without = {name: asked[name] for name in ("temperature", "seed")}
    assert said != session.generate("once upon", **free, **without).text
