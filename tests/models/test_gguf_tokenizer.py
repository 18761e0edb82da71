"""What a GGUF file says of its text: where words are split, what begins and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from gguf_files import VOCAB, save_gguf
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast

from paceline.errors import ModelError
from paceline.models.gguf_description import describe_gguf, stop_ids
from paceline.models.gguf_file import GgufFile
from paceline.models.gguf_settings import restore_settings

WORDS = ["<s>", "</s>", "<end_of_turn>", "<|end|>", "<|im_end|>", "<|return|>"]

Change = Callable[[gguf.GGUFWriter], None]


def with_words(template: str, *, words: list[str] = WORDS, **more: str | bool) -> Change:
    """The vocabulary begins with these control tokens, of which the first ends a text."""

    def change(writer: gguf.GGUFWriter) -> None:
        (fields,) = writer.kv_data
        _, _, merged, *others = fields["tokenizer.ggml.tokens"].value
        kept = [merged, *others[len(words) - 2 :]]
        kinds = fields["tokenizer.ggml.token_type"].value
        for key in ("tokens", "token_type", "eos_token_id", "pre"):
            del fields[f"tokenizer.ggml.{key}"]
        writer.add_token_list([*words, *kept])
        control = [gguf.TokenType.CONTROL] * len(words)
        writer.add_token_types([*control, *kinds[len(words) :]])
        writer.add_eos_token_id(1)
        writer.add_chat_template(template)
        writer.add_tokenizer_pre(str(more.get("pre", "smollm")))
        if "bos" in more:
            writer.add_add_bos_token(bool(more["bos"]))

    return change


def described(path: Path, change: Change) -> PreTrainedTokenizerFast:
    file = save_gguf(path / "m.gguf", change=change)
    (path / "found").mkdir()
    describe_gguf(file, path / "found")
    found: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(path / "found")
    return found


@pytest.mark.parametrize(
    ("template", "words", "ids"),
    [
        ("{{ m }}<end_of_turn>", WORDS[:5], [1, 2]),
        ("{{ m }}<|end|>", WORDS[:5], [1, 3]),
        ("{{ m }}<|end|> <|im_end|>", WORDS[:5], [1, 3, 4]),
        ("{{ m }}", WORDS[:5], [1]),
        # A message ends there, after which the turn may go on.
        ("{{ m }}<|end|>", WORDS, [1]),
    ],
)
def test_what_ends_a_turn_ends_a_text(
    template: str, words: list[str], ids: list[int], tmp_path: Path
) -> None:
    file = save_gguf(tmp_path / "m.gguf", change=with_words(template, words=words))
    assert stop_ids(GgufFile(file)) == ids
    assert stop_ids(GgufFile(file), [1, 50]) == [1, 50, *ids[1:]]
    assert stop_ids(GgufFile(file), 7) == ids
    describe_gguf(file, tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == (ids if ids[1:] else ids[0])


def test_a_tokenizer_beside_a_file_is_not_taken_for_its_own(tmp_path: Path) -> None:
    expected = described(tmp_path, with_words("{{ m }}"))
    (tmp_path / "again").mkdir()
    other = PreTrainedTokenizerFast(tokenizer_object=expected.backend_tokenizer)
    other.add_tokens(["another"])
    other.save_pretrained(tmp_path)
    describe_gguf(tmp_path / "m.gguf", tmp_path / "again")
    found = PreTrainedTokenizerFast.from_pretrained(tmp_path / "again")
    assert found.get_vocab() == expected.get_vocab()
    assert found.chat_template == "{{ m }}"


def test_a_tokenizer_knows_no_token_that_the_model_does_not(tmp_path: Path) -> None:
    tokenizer = described(tmp_path, with_words("{{ m }}"))
    assert max(tokenizer.get_vocab().values()) < 64 == len(tokenizer)
    assert max(tokenizer("A<|endoftext|>").input_ids) < 64


@pytest.mark.parametrize(
    ("pre", "more", "begins"),
    [
        ("llama-bpe", {}, True),
        ("llama-bpe", {"bos": False}, False),
        ("smollm", {}, False),
        ("smollm", {"bos": True}, True),
    ],
)
def test_texts_of_llama_3_begin_with_a_token_of_their_own(
    pre: str, more: dict[str, bool], begins: bool, tmp_path: Path
) -> None:
    tokenizer = described(tmp_path, with_words("{{ m }}", pre=pre, **more))
    assert (tokenizer("AB").input_ids[0] == 0) is begins
    assert tokenizer.backend_tokenizer.model.ignore_merges is (pre == "llama-bpe")


@pytest.mark.parametrize("pre", ["tekken", "llama3", "falcon3", "falcon-h1", "pixtral", "lfm2"])
def test_families_that_llama_cpp_reads_like_llama_3(pre: str, tmp_path: Path) -> None:
    tokenizer = described(tmp_path, with_words("{{ m }}", pre=pre))
    assert tokenizer("AB").input_ids[0] == 0
    assert tokenizer.backend_tokenizer.model.ignore_merges


def sentence_pieces(*, space: bool | None) -> Change:
    """A vocabulary of SentencePiece. space: whether the file says that a space begins a text."""
    words = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁a", "▁ab"]
    words += [f"<0x{code:02X}>" for code in range(VOCAB - len(words))]
    special = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]

    def change(writer: gguf.GGUFWriter) -> None:
        (fields,) = writer.kv_data
        for key in [key for key in fields if key.startswith("tokenizer.")]:
            del fields[key]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(words)
        writer.add_token_scores([-float(place) for place in range(VOCAB)])
        writer.add_token_types([*special, *[gguf.TokenType.NORMAL] * (VOCAB - len(special))])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        if space is not None:
            writer.add_add_space_prefix(space)

    return change


@pytest.mark.parametrize(("space", "first"), [(None, "▁ab"), (True, "▁ab"), (False, "ab")])
def test_a_space_begins_a_text_unless_the_file_says_no(
    space: bool | None, first: str, tmp_path: Path
) -> None:
    tokenizer = described(tmp_path, sentence_pieces(space=space))
    assert tokenizer.tokenize("ab ab") == [first, "▁ab"]
    for text in ("ab ab", " ab"):
        ids = tokenizer(text).input_ids
        assert ids[0] == 1
        if space is False or text[0] != " ":
            assert tokenizer.decode(ids[1:]) == text


@pytest.mark.parametrize("pre", ["falcon", "deepseek-llm"])
def test_an_unknown_way_to_split_text_is_refused(pre: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"splits text as '{pre}' does"):
        described(tmp_path, with_words("{{ m }}", pre=pre))


def test_a_file_without_a_vocabulary_is_one_sentence(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        (fields,) = writer.kv_data
        del fields["tokenizer.ggml.tokens"]

    with pytest.raises(ModelError, match=r"has no vocabulary .*: use a file that has one"):
        described(tmp_path, change)


def test_a_part_of_a_file_is_refused(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_uint16("split.count", 3)

    with pytest.raises(ModelError, match="one of 3 parts: join them"):
        GgufFile(save_gguf(tmp_path / "m.gguf", change=change))


def test_a_window_of_0_is_none(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(0)

    file = GgufFile(save_gguf(tmp_path / "m.gguf", change=change))
    config = AutoConfig.for_model("mistral", sliding_window=0, num_hidden_layers=2)
    restore_settings(config, file)
    assert config.sliding_window is None
    config.num_hidden_layers = 1 << 24
    with pytest.raises(ModelError, match="is damaged: it has 2 of 16777216 layers"):
        restore_settings(config, file)
