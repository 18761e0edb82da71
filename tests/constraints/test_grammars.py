"""Texts held by llguidance, on a toy that writes bytes."""

from __future__ import annotations

import json
import random
import re
import sys
import threading
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.tiny import EOS, byte_tokenizer, toy_session
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.constraints import (
    MOST_GRAMMAR_BYTES,
    MOST_REGEX_BYTES,
    MOST_SCHEMA_BYTES,
    Constraint,
    grammars,
)
from paceline.constraints.grammars import Grammars
from paceline.errors import UsageError
from paceline.sampling import Sampler
from paceline.session import Session
from paceline.targets.toy import ToyTarget

pytest.importorskip("llguidance", reason="needs paceline[constraints]")
jsonschema = pytest.importorskip("jsonschema")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bartholomew"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
LARK = 'start: "<" word ("," word)* ">"\nword: /[ab]{2,4}/'
HELD = {
    "schema": Constraint.json_schema(PERSON),
    "compact schema": Constraint.json_schema(PERSON, compact=True),
    "regex": Constraint.regex("(up|down){3,9}!"),
    "choice": Constraint.choice(["yes", 'no, "sir"\n', "ñandú"]),
    "grammar": Constraint.grammar(LARK),
}
SETTINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 4},
    "everything": {
        "temperature": 1.2,
        "top_p": 0.95,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.3,
        "logit_bias": {65: 2.0, 97: -3.0},
        "logprobs": 2,
    },
}


def follows(kind: str, text: str) -> bool:
    if "schema" in kind:
        jsonschema.validate(json.loads(text), PERSON)
        return kind == "schema" or text == json.dumps(json.loads(text))
    if kind == "choice":
        return text in ("yes", 'no, "sir"\n', "ñandú")
    pattern = "(up|down){3,9}!" if kind == "regex" else "<[ab]{2,4}(,[ab]{2,4})*>"
    return re.fullmatch(pattern, text) is not None


def write(session: Session, kind: str, **options: Any) -> Any:
    return session.generate("once upon", max_new_tokens=200, constraint=HELD[kind], **options)


GUESSING = [("anpd", 64), ("auto:sources=pld+anpd", None), ("lookahead", 64), ("jacobi", None)]


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("kind", HELD)
def test_texts_are_what_was_asked_for_whatever_guesses(kind: str, how: str) -> None:
    plain = write(toy_session("plain"), kind, **SETTINGS[how])
    assert plain.finish_reason in ("stop", "length")
    if plain.finish_reason == "stop":
        assert follows(kind, plain.text)
    for method, budget in GUESSING:
        other = write(toy_session(method, budget=budget), kind, **SETTINGS[how])
        assert other.tokens == plain.tokens, (method, budget)
        assert other.text == plain.text
        assert other.finish_reason == plain.finish_reason
        assert other.logprobs == plain.logprobs


def test_most_texts_under_test_come_to_their_end() -> None:
    ends = [write(toy_session("plain"), kind, seed=2, temperature=1.0) for kind in HELD]
    assert [one.finish_reason for one in ends].count("stop") >= 4


def test_texts_of_a_batch_are_those_alone() -> None:
    prompts = ["once", "upon a time", "x"]
    options = {"constraint": HELD["schema"], "temperature": 1.0, "max_new_tokens": 120}
    together = toy_session("anpd").generate_batch(prompts, **options)
    for place, prompt in enumerate(prompts):
        alone = toy_session("plain").generate(prompt, seed=place << 64, **options)
        assert together[place].tokens == alone.tokens


def test_forced_tokens_save_passes() -> None:
    name = "get_the_current_weather_of_a_city"
    schema = {"type": "object", "properties": {"tool": {"const": name}}, "required": ["tool"]}
    schema["additionalProperties"] = False
    constraint = Constraint.json_schema(schema, compact=True)
    options: dict[str, Any] = {"constraint": constraint, "budget": 64}
    plain = toy_session("plain").generate("once", **options)
    drafted = toy_session("anpd").generate("once", **options)
    assert drafted.text == plain.text == json.dumps({"tool": name})
    assert plain.stats.rounds == len(plain.tokens)
    assert drafted.stats.rounds < len(plain.tokens) / 8
    assert drafted.stats.sources["grammar"].accepted > 30


def test_a_text_ends_where_nothing_can_follow_and_may_end_where_it_is_complete() -> None:
    eos = byte_tokenizer().eos_token_id
    done = toy_session().generate("once", constraint=Constraint.regex("ab{3}"))
    assert (done.text, done.finish_reason, len(done.tokens)) == ("abbb", "stop", 4)
    for ignored in (False, True):  # never under a constraint
        early = toy_session().generate(
            "once",
            constraint=Constraint.regex("ab*"),
            logit_bias={eos: 100.0},
            ignore_eos=ignored,
        )
        assert (early.text, early.finish_reason, early.tokens[-1]) == ("a", "eos", eos)
    never = toy_session().generate(
        "once", constraint=Constraint.regex("ab{50}"), logit_bias={eos: 100.0}, ignore_eos=True
    )
    assert never.text == "a" + 50 * "b"
    within = Constraint.grammar(f'start: "a" <[{eos}]> "b"')
    assert toy_session().generate("once", constraint=within).tokens[1:2] == [eos]
    assert len(toy_session().generate("once", constraint=within).tokens) == 3
    cut = toy_session().generate("once", constraint=Constraint.regex("ab{50}"), max_new_tokens=9)
    assert (cut.text, cut.finish_reason) == ("abbbbbbbb", "length")


def test_stop_strings_go_on_working() -> None:
    for method in ("plain", "anpd"):
        done = toy_session(method).generate(
            "once", constraint=Constraint.regex("abcdefgh"), stop="ef"
        )
        assert (done.text, done.finish_reason) == ("abcd", "stop")


def test_a_place_in_a_grammar_is_that_of_a_fresh_matcher_after_any_suppositions() -> None:
    tokenizer, rng = byte_tokenizer(), random.Random(3)
    made = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    for constraint in HELD.values():
        matcher, said = made.matcher(constraint), list[int]()
        while True:
            for _ in range(rng.randrange(4)):
                entered = 0
                for _ in range(rng.randrange(6)):
                    ways = matcher.allowed().nonzero().flatten().tolist()
                    token = rng.choice([*ways, rng.randrange(256)])
                    if token == tokenizer.eos_token_id:
                        break
                    assert matcher.enter(token) == (token in ways)
                    entered += token in ways
                matcher.leave(entered)
            fresh = made.matcher(constraint)
            for token in said:
                fresh.push(token)
            assert torch.equal(matcher.allowed(), fresh.allowed())
            assert matcher.forced() == fresh.forced()
            said.append(rng.choice(matcher.allowed().nonzero().flatten().tolist()))
            if matcher.push(said[-1]) or len(said) > 60:
                break


def test_ids_of_a_padded_vocabulary_are_never_allowed() -> None:
    tokenizer = byte_tokenizer()
    made = Grammars(tokenizer, 700, [tokenizer.eos_token_id])
    mask = made.matcher(Constraint.regex("[^a]*")).allowed()
    assert mask.shape == (700,)
    assert mask[tokenizer.eos_token_id]
    assert not mask[len(tokenizer) :].any()


@pytest.mark.parametrize("size", [224, 250, 256])
def test_a_tokenizer_may_know_more_than_the_model(size: int) -> None:
    """As those of models do to which tokens were added that nobody trained."""
    tokenizer = byte_tokenizer()
    ends = tokenizer.convert_tokens_to_ids("c")
    assert size < len(tokenizer) and ends < size
    matcher = Grammars(tokenizer, size, [ends]).matcher(Constraint.regex("ab*"))
    assert matcher.allowed().shape == (size,) and matcher.allowed().sum() == 1
    assert all(token < size for token in matcher.forced())
    forced = tokenizer("aé").input_ids
    size = max(forced)  # not known either
    matcher = Grammars(tokenizer, size, [ends]).matcher(Constraint.regex("aé+"))
    assert matcher.forced() == forced[: forced.index(size)]


def test_a_constraint_that_could_not_be_read_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = byte_tokenizer()
    made = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    with monkeypatch.context() as without_memory:
        without_memory.setattr(made, "vocabulary", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            made.matcher(Constraint.regex("ab*"))
    assert made.matcher(Constraint.regex("ab*")).allowed().sum() == 1


NO_SCHEMA: dict[str, Any] = {
    "unknown type": {"type": "nope"},
    "unsatisfiable": {"type": "string", "minLength": 5, "maxLength": 2},
    "contradictory": {"type": "string", "pattern": "^a$", "minLength": 5},
    "remote": {"$ref": "https://example.com/schema.json"},
    "no pointer": {"$ref": "#/nowhere"},
    "circle": {"$ref": "#"},
    "keyword": {"not": {"type": "string"}},
}


@pytest.mark.parametrize(
    "constraint",
    [
        *(Constraint.json_schema(schema) for schema in NO_SCHEMA.values()),
        Constraint.regex("[a-z"),
        Constraint.regex("(?=x)"),
        Constraint.regex("(" * 3000 + ")" * 3000),
        Constraint.grammar('start: "a" | foo'),
        Constraint.grammar(""),
        Constraint.grammar('start: start "a"'),
        Constraint.grammar("start: " + "(" * 20000 + '"a"' + ")" * 20000),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_a_sentence(constraint: Constraint) -> None:
    session = toy_session()
    with pytest.raises(UsageError, match="cannot be used: ") as caught:
        session.generate("once", constraint=constraint)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert session.generate("once", max_new_tokens=3).finish_reason == "length"


def chained_rules(rule: str, count: int) -> Constraint:
    chain = "".join(f"{rule}{place}: {rule}{place + 1}\n" for place in range(count))
    return Constraint.grammar(f'start: {rule}0\n{chain}{rule}{count}: "0"')


def chained_references(count: int) -> Constraint:
    places = {f"{at:x}": {"items": {"$ref": f"#/$defs/{at + 1:x}"}} for at in range(count)}
    last = {f"{count:x}": {"type": "integer"}}
    return Constraint.json_schema({"$defs": places | last, "$ref": "#/$defs/0"})


@pytest.mark.parametrize(
    "constraint", [chained_rules("r", 4000), chained_rules("R", 4700), chained_references(1500)]
)
def test_a_long_chain_of_rules_does_not_end_the_process(constraint: Constraint) -> None:
    before = threading.stack_size()
    answer = toy_session().generate("once", constraint=constraint, max_new_tokens=3)
    assert answer.error is None and answer.tokens
    assert threading.stack_size() == before


def test_choices_may_be_many_and_of_any_characters() -> None:
    for texts in ([f"choice {number}" for number in range(3000)], ["a\x7fb\x00\u2028😀"]):
        assert toy_session().generate("o", constraint=Constraint.choice(texts)).text in texts
    made = toy_session()._grammars.matcher(Constraint.choice(["yes", "yes!", "no"]))
    tokenizer = byte_tokenizer()
    for token in tokenizer("yes").input_ids:
        assert not made.allowed()[tokenizer.eos_token_id]
        made.push(token)
    assert made.allowed().nonzero().flatten().tolist() == [
        *tokenizer("!").input_ids,
        tokenizer.eos_token_id,
    ]


@pytest.mark.parametrize("text", ["{}", "a{}b", "{}{}"])
def test_the_characters_of_a_special_token_are_written_as_others_are(text: str) -> None:
    text = text.format(*2 * [byte_tokenizer().eos_token])
    made = [
        toy_session(method).generate("once", constraint=Constraint.choice([text]))
        for method in ("plain", "anpd")
    ]
    assert made[0].tokens == made[1].tokens and made[0].finish_reason == "stop"
    decoded = byte_tokenizer().decode(made[0].tokens, skip_special_tokens=True)
    assert decoded == made[0].text == text


def test_the_characters_of_an_added_token_that_ends_texts_are_written_as_others_are() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("</s>", special=False, normalized=False)])
    end = tokenizer.convert_tokens_to_ids("</s>")
    matcher = Grammars(tokenizer, len(tokenizer), [end]).matcher(Constraint.choice(["a</s>b"]))
    for token in [tokenizer(each).input_ids[0] for each in "a</s>b"]:
        assert matcher.allowed().nonzero().flatten().tolist() == [token]
        stopped = matcher.push(token)
    assert stopped


@pytest.mark.parametrize("ends", [False, True])
def test_special_tokens_are_written_where_a_grammar_names_them(ends: bool) -> None:
    tokenizer, marker = byte_tokenizer(), "<|end|>"
    tokenizer.add_tokens([AddedToken(marker, special=True)])
    number = tokenizer.convert_tokens_to_ids(marker)
    end = number if ends else tokenizer.eos_token_id
    held = Grammars(tokenizer, len(tokenizer), [end])
    matcher = held.matcher(Constraint.grammar(f'start: "a" <[{number}]> "b"'))
    for token in (*tokenizer("a").input_ids, number, *tokenizer("b").input_ids):
        assert matcher.forced()[:1] in ([], [token])
        assert matcher.allowed().nonzero().flatten().tolist() == [token]
        stopped = matcher.push(token)
    assert stopped
    narrow = Grammars(tokenizer, number, [end])  # a model without the marker
    for made in (held, narrow):
        matcher, text = made.matcher(Constraint.choice([f"a{marker}b"])), ""
        while not (text and stopped):
            (token,) = matcher.allowed().nonzero().flatten().tolist()
            text, stopped = text + tokenizer.decode([token]), matcher.push(token)
        assert text == f"a{marker}b"


@pytest.mark.parametrize("grammar", ["start: /[ab]/ X X\nX: /x+/", "start: X X\nX: /x+/"])
def test_a_terminal_that_leaves_nothing_to_the_next_one_ends(grammar: str) -> None:
    """What must follow would be looked for without end, in a call that holds the interpreter."""
    done = toy_session("anpd").generate(
        "x", max_new_tokens=8, constraint=Constraint.grammar(grammar)
    )
    assert done.error is None and "x" in done.text


def test_json_is_no_grammar() -> None:
    with pytest.raises(UsageError, match="dialect of Lark, not JSON"):
        Constraint.grammar(' {"grammars": []}')


def test_compiled_constraints_are_kept_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    made, compiled = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id]), []
    compile_one = made._compile
    monkeypatch.setattr(made, "_compile", lambda one: compiled.append(one) or compile_one(one))
    monkeypatch.setattr(grammars, "MOST_COMPILED", 3)
    for pattern in "abacada":
        made.matcher(Constraint.regex(pattern))
    assert [one.text for one in compiled] == ["a", "b", "c", "d"]
    assert len(made._compiled) == 3
    made.matcher(Constraint.regex("b"))
    assert len(compiled) == 5


def test_without_llguidance_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"pip install paceline\[constraints\]"):
        toy_session().generate("once", constraint=Constraint.json_object())


def test_a_slow_tokenizer_is_refused() -> None:
    made = Grammars(type("Slow", (), {"__len__": lambda self: 9})(), 9, [0])
    with pytest.raises(UsageError, match="fast tokenizer"):
        made.matcher(Constraint.json_object())


def marking_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and words with a mark for a space, which only Metaspace reads."""
    words = [EOS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁on", "▁a", "no", "▁o"]
    model = models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


@pytest.mark.parametrize(
    "form", [Constraint.regex(" on a no"), Constraint.choice([" on", " no a"])]
)
def test_marks_of_spaces_are_spaces_whichever_decoder_reads_them(form: Constraint) -> None:
    tokenizer = marking_tokenizer()
    target = ToyTarget(vocab_size=len(tokenizer), sharpness=3.0)
    for method in ("plain", "anpd"):
        session = Session(target, tokenizer, method, eos_ids=[0])
        for seed in range(5):
            done = session.generate("on", constraint=form, temperature=1.0, seed=seed)
            assert done.text in (" on a no", " on", " no a")
    assert "Metaspace" in str(tokenizer.backend_tokenizer.decoder)


def test_processors_do_not_undo_what_is_forbidden() -> None:
    def wants_x(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -9.0).index_fill(1, torch.tensor([ord("x")]), 9.0)

    done = toy_session().generate(
        "once", constraint=Constraint.regex("ab|xy"), processors=(wants_x,)
    )
    assert done.text in ("ab", "xy")


def test_the_limits_are_those_of_the_description() -> None:
    Constraint.regex("a" * MOST_REGEX_BYTES)
    for make, size in (
        (Constraint.regex, MOST_REGEX_BYTES),
        (Constraint.grammar, MOST_GRAMMAR_BYTES),
        (lambda text: Constraint.choice([text]), MOST_GRAMMAR_BYTES),
        (lambda text: Constraint.json_schema({"const": text}), MOST_SCHEMA_BYTES),
    ):
        with pytest.raises(UsageError, match=f"at most {size} bytes"):
            make("é" * (size // 2 + 1))


def test_the_mask_comes_before_the_tail_is_cut_off() -> None:
    """Top-k counts among what is allowed."""
    row = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    allowed = torch.tensor([False, False, True, True, True])
    drawn = {
        Sampler(seed=seed, temperature=1.0, top_k=2).draw(row, [0], allowed) for seed in range(200)
    }
    assert drawn == {2, 3}


def test_a_constraint_that_compiles_slowly_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = byte_tokenizer()
    made = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    known, slow = Constraint.regex("known"), Constraint.regex("slow")
    made.matcher(known)
    begun, may_end, compile_one = threading.Event(), threading.Event(), made._compile

    def compile_slowly(constraint: Constraint) -> Any:
        begun.set()
        assert may_end.wait(60)
        return compile_one(constraint)

    monkeypatch.setattr(made, "_compile", compile_slowly)
    waiting = [threading.Thread(target=made.matcher, args=(slow,)) for _ in range(2)]
    for each in waiting:
        each.start()
    assert begun.wait(60)
    assert made.matcher(known).allowed().any()
    may_end.set()
    for each in waiting:
        each.join(60)
        assert not each.is_alive()
    assert len(made._compiled) == 2
