"""Which texts are learned from, and which are held back for the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import byte_tokenizer
from tests.training.shared import make, prompt_file

from paceline.errors import UsageError
from paceline.training import dataset
from paceline.training.data import TrainingData
from paceline.training.dataset import Dataset, Text, TextSource, share_of
from paceline.training.order import PromptFile, read_prompt_files
from paceline.training.settings import TrainerSettings

SETTINGS = TrainerSettings(validation=0.2, test=0.2, context=12)
SPLITS = ("train", "validation", "test")


def written(folder: Path, records: list[dict[str, Any]], name: str = "some.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def split(folder: Path, *files: Path) -> Dataset:
    """The splits of the toy's answers to these files."""
    make(folder / "data", read_prompt_files(files))
    return Dataset.of(TextSource([TrainingData(folder / "data")]), SETTINGS, None)


def homes_of(found: Dataset) -> dict[str, str]:
    """Id of each answer -> the split it is in."""
    return {text.id: name for name in SPLITS for text in getattr(found, name)}


def test_a_prompt_is_in_one_split_under_whatever_ids(tmp_path: Path) -> None:
    """Its greedy answers are all the same, so a split that shares them measures memory."""
    records = [
        {"id": f"{copy}-{i}", "turns": [f"what is {i}?"]} for copy in "abc" for i in range(20)
    ]
    homes = homes_of(split(tmp_path, written(tmp_path, records)))
    assert len(homes) == 60 and set(homes.values()) == set(SPLITS)
    for i in range(20):
        assert len({homes[f"{copy}-{i}"] for copy in "abc"}) == 1


def test_no_prompt_is_read_whose_answers_are_held_back_under_another_id(tmp_path: Path) -> None:
    records = [
        {"id": f"{copy}-{i}", "turns": [f"what is {i}, and why is it so?"]}
        for copy in "abc"
        for i in range(20)
    ]
    files = read_prompt_files([written(tmp_path, records)])
    make(tmp_path / "data", files)
    source = TextSource([TrainingData(tmp_path / "data")], files)
    found = Dataset.of(source, SETTINGS, byte_tokenizer(), None)
    homes = homes_of(found)
    assert {homes[text.id] for text in found.reads} == {"train"}


def test_a_text_that_the_chat_template_rejects_is_named(tmp_path: Path) -> None:
    """As those do that need a system message; a text of its own needs no template."""
    make(tmp_path / "data", prompt_file(tmp_path, 60))
    tokenizer = byte_tokenizer("{{ raise_exception('a system message is missing') }}")
    for kind, text in (("prompt", "as it is"), ("turns", ["in a template"])):
        records = [{"id": f"text-{i}", kind: text} for i in range(9)]
        files = read_prompt_files([written(tmp_path, records, f"{kind}.jsonl")])
        source = TextSource([TrainingData(tmp_path / "data")], files)
        if kind == "prompt":
            assert Dataset.of(source, SETTINGS, tokenizer).reads
        else:
            with pytest.raises(UsageError, match=r"the text text-\d \(a system message is miss.*"):
                Dataset.of(source, SETTINGS, tokenizer)


def test_turns_stay_together_and_ids_may_hold_a_number_sign(tmp_path: Path) -> None:
    chats = [{"id": f"chat#{i}", "turns": [f"hello {i}", "and?", "so?"]} for i in range(20)]
    single = [{"id": f"#{i}", "turns": [f"bye {i}"]} for i in range(40)]
    homes = homes_of(split(tmp_path, written(tmp_path, [*chats, *single])))
    assert len(homes) == 100
    for i in range(20):
        assert len({homes[f"chat#{i}#{turn}"] for turn in (1, 2, 3)}) == 1
    assert {homes[f"#{i}"] for i in range(40)} == set(SPLITS)
    # As one prompt of a file, too, so that no text is read whose answers are held back.
    assert share_of("chat#7#1") == share_of("chat#7") != share_of("chat#8")


def test_data_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "data", prompt_file(tmp_path, 8))
    data = TrainingData(tmp_path / "data")
    with pytest.raises(UsageError, match="data was given twice: name every folder"):
        TextSource([data, data])


def read(folder: Path, longest: int | None) -> tuple[Dataset, TextSource]:
    make(folder / "data", prompt_file(folder, 24), max_new_tokens=20)
    long = [{"id": str(i), "prompt": "abc " * 200, "licence": "MIT" * (i > 0)} for i in range(9)]
    files: list[PromptFile] = read_prompt_files([written(folder, long)])
    source = TextSource([TrainingData(folder / "data")], files)
    return Dataset.of(source, SETTINGS, byte_tokenizer(), longest), source


@pytest.mark.parametrize(
    ("longest", "sizes"), [(None, [512, 288]), (4096, [512, 288]), (70, [70] * 11 + [30])]
)
def test_a_long_text_is_read_in_pieces_that_fit_the_models_context(
    longest: int | None, sizes: list[int], tmp_path: Path
) -> None:
    split, _ = read(tmp_path, longest)
    pieces: dict[str, list[Text]] = {}
    for text in split.reads:
        pieces.setdefault(text.id, []).append(text)
    whole = list(byte_tokenizer()("abc " * 200).input_ids)
    assert pieces.keys() == {"3", "4", "5", "6", "8"}  # all of what is held back is left out
    for found in pieces.values():
        assert [len(text.tokens) for text in found] == sizes
        assert [token for text in found for token in text.tokens] == whole


def test_what_marks_the_beginning_of_a_text_begins_every_piece(tmp_path: Path) -> None:
    make(tmp_path / "data", prompt_file(tmp_path, 24), max_new_tokens=20)
    files = read_prompt_files([written(tmp_path, [{"id": "long", "prompt": "<" + "abcd" * 6}])])
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = tokenizer.convert_ids_to_tokens(tokenizer("<").input_ids[0])
    source = TextSource([TrainingData(tmp_path / "data")], files)
    reads = Dataset.of(source, SETTINGS, tokenizer, 9).reads
    assert [tokenizer.decode(list(text.tokens)) for text in reads] == ["<" + "abcd" * 2] * 3


def test_texts_left_out_for_want_of_room_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = read(tmp_path, 70)
    assert len(whole.reads) == 5 * 12 and whole.left_out == ""
    monkeypatch.setattr(dataset, "_MOST_READ", 3 * 12 + 5)
    split, _ = read(tmp_path, 70)
    assert split.reads == whole.reads[: 3 * 12 + 5]
    assert split.left_out == (
        "of 5 texts to be read, 2 are left out in whole or in part: 41 pieces of 70 tokens are the "
        "most"
    )


def test_texts_too_short_to_guess_in_are_counted(tmp_path: Path) -> None:
    make(tmp_path / "data", prompt_file(tmp_path, 24), max_new_tokens=20)
    records = [{"id": f"text-{i}", "prompt": "abcdef"[: i % 6 + 1]} for i in range(60)]
    source = TextSource(
        [TrainingData(tmp_path / "data")], read_prompt_files([written(tmp_path, records)])
    )
    found = Dataset.of(source, SETTINGS, byte_tokenizer())
    there = [i for i in range(60) if share_of(f"text-{i}") >= SETTINGS.validation + SETTINGS.test]
    short = sum(i % 6 < 3 for i in there)
    assert len(found.reads) == len(there) - short and short > 0
    assert found.left_out == (
        f"of {len(there)} texts to be read, {short} are left out: with fewer than 4 tokens there "
        "is nothing to guess"
    )


def test_licences_of_texts_that_are_only_read_are_counted(tmp_path: Path) -> None:
    _, source = read(tmp_path, None)
    assert source.licences == {"MIT": 8, "unknown": 24 + 1}
