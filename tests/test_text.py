"""Incremental decoding and stop strings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from paceline.text import CALL_MARKS, OutputText, hidden_ids
from tests.tiny import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()


def feed(tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[OutputText, list[str]]:
    """Push tokens until a stop string, as the loop does, collecting what is released."""
    output, released = OutputText(TOKENIZER, stop), []
    for token in tokens:
        stopped = output.push(token)
        released += [piece.text for piece in output.release()]
        if stopped:
            break
    output.finish()
    released += [piece.text for piece in output.release(final=True)]
    return output, released


@given(st.text(max_size=30))
def test_released_pieces_add_up_to_the_text(text: str) -> None:
    output, released = feed(TOKENIZER(text).input_ids)
    assert output.text == text
    assert "".join(released) == text


@given(st.lists(st.integers(0, 255), max_size=20))
def test_broken_characters_end_as_the_tokenizer_decodes_them(tokens: list[int]) -> None:
    output, released = feed(tokens)
    assert "".join(released) == output.text
    # Half a character at the very end is shown as one replacement character.
    assert output.text.replace("�", "") == TOKENIZER.decode(tokens).replace("�", "")


def test_half_a_character_is_never_released() -> None:
    first, second = TOKENIZER("é").input_ids
    output = OutputText(TOKENIZER)
    output.push(first)
    assert output.release() == []
    output.push(second)
    assert [(piece.token, piece.text) for piece in output.release()] == [(1, "é")]
    output.push(first)
    output.finish()
    assert [(piece.token, piece.text) for piece in output.release()] == [(2, "�")]


@pytest.mark.parametrize("count", range(62, 70))
def test_a_character_after_a_long_run_of_broken_ones_is_whole(count: int) -> None:
    first, second = TOKENIZER("é").input_ids
    ids = [*[first] * count, second]
    output, released = feed(ids)
    assert output.text == "".join(released) == TOKENIZER.decode(ids)


@given(
    st.text(alphabet="ab", max_size=20),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
@example("ab", ["b", "ab"])
@example("aaab", ["aab"])
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    output, released = feed(TOKENIZER(text).input_ids, tuple(stop))
    # The first to be complete wins; of those complete at once, the one that begins first.
    ends = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(stop))]
    expected = text
    if ends:
        seen = text[: ends[0]]
        expected = seen[: min(seen.find(word) for word in stop if word in seen)]
    assert output.text == expected
    assert "".join(released) == expected


@given(
    st.lists(st.text(alphabet="ab", max_size=6), max_size=12),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=9), min_size=1, max_size=3),
)
def test_no_more_is_held_back_than_a_stop_string_may_begin_with(
    parts: list[str], stop: list[str]
) -> None:
    output, shown = OutputText(TOKENIZER, stop), ""
    for part in parts:
        if any(output.push(token) for token in TOKENIZER(part).input_ids):
            break
        shown += "".join(piece.text for piece in output.release())
        begun = [
            size
            for word in stop
            for size in range(1, len(word))
            if output.text.endswith(word[:size])
        ]
        assert shown == output.text[: len(output.text) - max(begun, default=0)]


class Counted(str):
    """A text that counts how often its letters are looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> str:
        Counted.looks += 1
        return super().__getitem__(place)


def test_what_is_held_back_is_found_without_trying_every_beginning() -> None:
    stop = [Counted("ab" * 500 + letter) for letter in "cdef"]
    output, tokens = OutputText(TOKENIZER, stop), TOKENIZER("ab" * 20).input_ids
    output.push(tokens[0])
    output.release()  # which reads the stop strings once
    Counted.looks = 0
    for token in tokens[1:]:
        output.push(token)
        assert output.release() == []
    assert Counted.looks <= 4 * len(stop) * len(tokens)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    output = OutputText(TOKENIZER, ("END",))
    shown = []
    for token in TOKENIZER("xENEND").input_ids:
        output.push(token)
        shown.append("".join(piece.text for piece in output.release()))
    assert shown == ["x", "", "", "EN", "", ""]
    assert output.text == "xEN"


@pytest.mark.parametrize("word", ["hello", "naïve 你好 🚲"])
def test_special_tokens_are_not_text(word: str) -> None:
    output, _ = feed([*TOKENIZER(word).input_ids, TOKENIZER.convert_tokens_to_ids(EOS)])
    assert output.text == word


def words_tokenizer() -> PreTrainedTokenizerFast:
    """Words that begin with a space, which the first one loses, as with Llama 2; and <tool>."""
    words = ["▁Once", "▁upon", "▁a", "▁", "x"]
    model = models.BPE({word: i for i, word in enumerate(words)}, [])
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    return fast


@pytest.mark.parametrize(
    "words", ["▁Once <tool> ▁upon ▁a", "▁Once <tool> <tool> ▁upon <tool> x", "▁ <tool> ▁ ▁a"]
)
def test_special_tokens_inside_the_output_take_no_space_away(words: str) -> None:
    tokenizer = words_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(words.split())
    output, released = OutputText(tokenizer), []
    for token in ids:
        output.push(token)
        released += [piece.text for piece in output.release()]
    output.finish()
    released += [piece.text for piece in output.release(final=True)]
    assert output.text == "".join(released) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("before", ["▁Once ▁upon", "<tool>", ""])
def test_a_continuation_keeps_its_first_space(before: str) -> None:
    tokenizer = words_tokenizer()
    known, ids = (tokenizer.convert_tokens_to_ids(each.split()) for each in (before, "▁ ▁a ▁a"))
    output = OutputText(tokenizer, before=known)
    stopping = OutputText(tokenizer, ("  a",), known)
    for token in ids:
        output.push(token)
    output.finish()
    released = [piece.text for piece in output.release(final=True)]
    whole = tokenizer.decode([*known, *ids], skip_special_tokens=True)
    text = whole[len(tokenizer.decode(known, skip_special_tokens=True)) :]
    assert output.text == "".join(released) == text
    assert text == ("  a a" if before.startswith("▁") else " a a")
    assert [stopping.push(token) for token in ids[:2]] == [False, before.startswith("▁")]


@pytest.mark.parametrize("before", ["", "naïve ", "\N{REPLACEMENT CHARACTER} "])
@pytest.mark.parametrize("given", [1, 2, 3])
def test_a_character_that_the_prompt_begins_is_text_of_the_output(before: str, given: int) -> None:
    bicycle = TOKENIZER("🚲").input_ids
    half, rest = bicycle[:given], bicycle[given:]
    output = OutputText(TOKENIZER, before=[*TOKENIZER(before).input_ids, *half])
    for token in [*rest, *TOKENIZER("é!").input_ids]:
        output.push(token)
    assert output.text == "🚲é!"
    broken = OutputText(TOKENIZER, before=[*TOKENIZER(before).input_ids, *half])
    for token in TOKENIZER(" no").input_ids:
        broken.push(token)
    assert broken.text == " no"


def test_a_prompt_may_end_with_the_replacement_character() -> None:
    output = OutputText(TOKENIZER, before=TOKENIZER("a\N{REPLACEMENT CHARACTER}").input_ids)
    for token in TOKENIZER("é").input_ids:
        output.push(token)
    assert output.text == "é"


def fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, as Llama 2 writes rare letters, and a word that begins with a space."""
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁hi"]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    replaced, stripped = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [replaced, decoders.ByteFallback(), decoders.Fuse(), stripped]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("said", [[256], [*"లు".encode(), 256], [256, *"లు".encode()]])
def test_a_tail_that_begins_inside_a_character_spoils_nothing(said: list[int]) -> None:
    tokenizer, prompt = fallback_tokenizer(), [*"తెలుగు".encode()]
    output = OutputText(tokenizer, before=prompt)
    for token in said:
        output.push(token)
    output.finish()
    whole = tokenizer.decode([*prompt, *said])
    assert whole == "తెలుగు" + output.text
    assert output.text in (" hi", "లు hi", " hiలు")
    *half, last = "🚲".encode()
    output = OutputText(tokenizer, before=[*prompt[:3], *half])
    assert [output.push(token) for token in (last, 256)] == [False, False]
    assert output.text == "🚲 hi"


@pytest.mark.parametrize("special", [True, False])
def test_marks_of_tool_calls_are_text_in_any_tokenizer(special: bool) -> None:
    tokenizer = words_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=special) for mark in CALL_MARKS])
    open_, close, once, tool = tokenizer.convert_tokens_to_ids([*CALL_MARKS, "▁Once", "<tool>"])
    output = OutputText(tokenizer)
    for token in (tool, open_, once, close, tool):
        output.push(token)
    output.finish()
    assert "".join(output.text.split()) == "<tool_call>Once</tool_call>"
    assert (open_ in hidden_ids(tokenizer), tool in hidden_ids(tokenizer)) == (False, True)


@pytest.mark.parametrize("marks", [(), CALL_MARKS])
def test_tokens_that_end_texts_have_no_text(marks: tuple[str, ...]) -> None:
    tokenizer = words_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in marks])
    ids = tokenizer.convert_tokens_to_ids(["▁Once", "<tool>", "▁upon", "x"])
    output = OutputText(tokenizer, ends=ids[-1:])
    for token in ids:
        output.push(token)
    output.finish()
    assert output.text == "Once upon"


class Watched:
    """A tokenizer that notes how many tokens it decodes."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.lengths: list[int] = []

    def decode(self, ids: list[int], **options: Any) -> str:
        self.lengths.append(len(ids))
        text: str = self.tokenizer.decode(ids, **options)
        return text


def test_a_long_run_of_special_tokens_is_not_decoded_again_and_again() -> None:
    tokenizer = words_tokenizer()
    watched = Watched(tokenizer)
    output = OutputText(watched)  # type: ignore[arg-type]
    once, tool = tokenizer.convert_tokens_to_ids(["▁Once", "<tool>"])
    for token in [once, *[tool] * 500, once]:
        output.push(token)
    assert max(watched.lengths) < 200


@pytest.mark.parametrize(
    ("repeated", "cut"), [("\N{REPLACEMENT CHARACTER}", 0), ("🚲", 1), ("🚲", 2), ("🚲", 3)]
)
def test_a_long_run_of_broken_characters_is_released_as_it_comes(repeated: str, cut: int) -> None:
    """Models do repeat the replacement character, or half a character, to the end."""
    watched, released = Watched(TOKENIZER), []
    output = OutputText(watched)  # type: ignore[arg-type]
    part = TOKENIZER(repeated).input_ids
    ids = [*TOKENIZER("naïve ").input_ids, *part[: len(part) - cut] * 200, *part]
    for token in ids:
        output.push(token)
        released.append("".join(piece.text for piece in output.release()))
    assert max(watched.lengths) < 200
    assert len("".join(released[:300])) > 50
    output.finish()
    released += [piece.text for piece in output.release(final=True)]
    assert output.text == "".join(released) == TOKENIZER.decode(ids)
