"""Retrieval by words and by sentence embeddings."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.errors import ModelError
from paceline.references import ReferenceStore, TransformersEncoder
from paceline.references.retrieval import (
    match_expression,
    query_terms,
    split_terms,
    term_weight,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "references.db"


def outputs(store: ReferenceStore, query: str, limit: int = 4) -> list[str]:
    return [entry.output for entry in store.search(query, limit)]


@settings(max_examples=200)
@given(st.text())
def test_any_text_gives_a_valid_expression(text: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5 (terms)")
    connection.execute("INSERT INTO words VALUES (?)", (" ".join(split_terms(text)),))
    if expression := match_expression(query_terms(text)):
        connection.execute("SELECT * FROM words WHERE words MATCH ?", (expression,)).fetchall()
    connection.close()


def test_words_that_all_queries_have_count_next_to_nothing() -> None:
    weights = [term_weight(100, holding) for holding in (0, 1, 50, 100)]
    assert weights == sorted(weights, reverse=True)
    assert 0 < weights[-1] < 0.01 * weights[1]


def test_long_queries_keep_both_ends() -> None:
    terms = query_terms(" ".join(f"word{number}" for number in range(1000)))
    expression = match_expression(terms)
    assert expression.startswith('"word0" OR') and expression.endswith('OR "word999"')
    assert expression.count("OR") == 127


class Letters:
    """Embeds a text by how often each letter occurs."""

    def __init__(self, name: str = "letters", dim: int = 26) -> None:
        self.name = name
        self.dim = dim
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.encoded += texts
        rows = [[text.count(chr(97 + letter)) for letter in range(self.dim)] for text in texts]
        vectors = np.array(rows, dtype=np.float32).reshape(len(texts), self.dim)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-9)
        return unit


def test_encoder_ranks_by_cosine_and_embeds_once(path: Path) -> None:
    with ReferenceStore(path) as store:
        store.add("abc", "letters")
        store.add("xyz", "end")
    encoder = Letters()
    with ReferenceStore(path, encoder=encoder, floor=0) as store:
        found = store.search("cab")  # no word in common
        assert [entry.output for entry in found] == ["letters", "end"]
        assert found[0].score == pytest.approx(1.0) and found[1].score == pytest.approx(0.0)
        store.search("zyx")
        assert sorted(encoder.encoded) == ["abc", "cab", "xyz", "zyx"]
        store.add("cba", "reverse")
        assert outputs(store, "abc", 1) == ["reverse"]  # the latest of equals
    with ReferenceStore(path, encoder=encoder, max_entries=1, floor=0) as store:
        store.add("mno", "middle")
        assert outputs(store, "abc") == ["middle"]


def test_meanings_below_the_floor_are_not_found(path: Path) -> None:
    """Cosines with "aab" are 2/sqrt(5) = 0.89 and 1/sqrt(5) = 0.45."""
    with ReferenceStore(path) as store:
        store.add("a", "near")
        store.add("b", "far")
    for floor, expected in ((0.5, ["near"]), (0.4, ["near", "far"]), (0.95, [])):
        with ReferenceStore(path, encoder=Letters(), floor=floor) as store:
            assert outputs(store, "aab") == expected


def test_vectors_of_another_encoder_are_not_compared(path: Path) -> None:
    for encoder in (Letters(), Letters("other"), Letters(dim=20)):
        with ReferenceStore(path, encoder=encoder) as store:
            store.add("abc", "letters")
            assert outputs(store, "abc") == ["letters"]
            assert encoder.encoded == ["abc", "abc"]


def test_a_large_store_comes_into_view_bit_by_bit(path: Path) -> None:
    encoder = Letters()
    with ReferenceStore(path, encoder=encoder, floor=0) as store:
        for number in range(300):
            store.add(f"q{number}", "output")
        for expected in (256, 300, 300):
            assert len(store.search("q", 1000)) == expected


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "how", "to", "boil", "an", "egg", "fix", "a", "bicycle"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def test_transformers_encoder_takes_the_masked_mean(tiny_bert: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    encoder = TransformersEncoder(tiny_bert, batch_size=2)
    texts = ["how to boil an egg", "fix", "", "egg " * 40, "how"]
    vectors = encoder.encode(texts)
    assert encoder.name == str(tiny_bert)
    assert vectors.dtype == np.float32 and vectors.shape == (5, 16)
    tokenizer, model = (
        AutoTokenizer.from_pretrained(tiny_bert),
        AutoModel.from_pretrained(tiny_bert),
    )
    for text, vector in zip(texts, vectors, strict=True):
        ids = tokenizer(text)["input_ids"][:12]
        if not ids:
            assert not vector.any()
            continue
        with torch.inference_mode():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0).numpy()
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
    assert encoder.encode([]).shape == (0, 16)


def test_transformers_encoder_in_a_store_and_in_threads(tiny_bert: Path, path: Path) -> None:
    with ReferenceStore(path, encoder=TransformersEncoder(tiny_bert)) as store:
        store.add("how to boil an egg", "water")
        store.add("fix a bicycle", "hole")
        found: list[str] = []

        def work(query: str) -> None:
            for _ in range(5):
                found.extend(outputs(store, query, 1))

        threads = [threading.Thread(target=work, args=("fix a bicycle",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == ["hole"] * 20


def test_a_missing_encoder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        TransformersEncoder(tmp_path)


@pytest.mark.parametrize(
    "query", ["ภาษาไทยน่าเรียน", "ພາສາລາວງາມ", "ភាសាខ្មែរ", "မြန်မာစာ", "漢字かな", "what is it"]
)
def test_every_script_finds_itself(path: Path, query: str) -> None:
    with ReferenceStore(path) as store:
        store.add(query, "answer")
        assert outputs(store, query) == ["answer"]
