"""How similar queries are found, which LLMA (Yang et al. 2023, arXiv 2304.04487, section 2.3) leaves
open: by shared words, which need nothing but SQLite, or by the cosine of sentence embeddings, which
also finds paraphrases.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Protocol
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ModelError

# Thai to Lao, Burmese, Khmer, kana and Han are written without spaces: one term per character.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_TERM = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+")
# A query may be a whole prompt; the question is at its beginning or end.
_TERMS_AT_EACH_END = 64
# all-MiniLM-L6-v2 was made for 256 tokens at most.
_MAX_TOKENS = 256


def split_terms(text: str) -> list[str]:
    """The words of a text in order, without case and punctuation.

    >>> split_terms("What's NEAR(x, 2)?")
    ['what', 's', 'near', 'x', '2']
    """
    found = _TERM.findall(text.casefold())
    # FTS5 drops vowel signs and tone marks that stand alone: nothing would ever match them.
    return [term for term in found if category(term[0])[0] in "LN"]


def query_terms(query: str) -> list[str]:
    """The terms to search a query by, each once; of a long query, those at both ends."""
    terms = list(dict.fromkeys(split_terms(query)))
    if len(terms) > 2 * _TERMS_AT_EACH_END:
        terms = terms[:_TERMS_AT_EACH_END] + terms[-_TERMS_AT_EACH_END:]
    return terms


def term_weight(texts: int, holding: int) -> float:
    """Weight of a term that occurs in `holding` of `texts` texts: bm25's inverse document
    frequency, almost 0 for a term in all of them."""
    return log(1 + (texts - holding + 0.5) / (holding + 0.5))


def match_expression(terms: Sequence[str]) -> str:
    """An FTS5 expression for texts with any of these terms; "" if there are none.

    Terms hold only letters and digits and are quoted, so no query can become FTS5 syntax.

    >>> match_expression(["cats", "and", "dogs"])
    '"cats" OR "and" OR "dogs"'
    """
    return " OR ".join(f'"{term}"' for term in terms)


def shared_weights(
    connection: sqlite3.Connection, terms: Sequence[str], entries: Sequence[int]
) -> dict[int, float]:
    """Share of a query that each entry's query has: the weight of the terms in both over that of
    all its terms."""
    (texts,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    shared, total = dict.fromkeys(entries, 0.0), 0.0
    # Whole numbers from the table itself, so they are safe in the statement.
    among = ", ".join(map(str, entries))
    for term in terms:
        holding, found = connection.execute(
            f"SELECT count(*), group_concat(CASE WHEN rowid IN ({among}) THEN rowid END)"  # noqa: S608
            " FROM query_terms WHERE query_terms MATCH ?",
            (match_expression([term]),),
        ).fetchone()
        weight = term_weight(texts, holding)
        total += weight
        for entry in map(int, found.split(",") if found else ()):
            shared[entry] += weight
    return {entry: weight / total for entry, weight in shared.items()}


class SentenceEncoder(Protocol):
    """Turns sentences into vectors whose cosine tells how similar the sentences are."""

    @property
    def name(self) -> str:
        """Which encoder this is; vectors are only compared with those of the same name."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One unit vector per text, [n, dim]. May be called by several threads at once."""
        ...


class TransformersEncoder:
    """A transformers encoder with mean pooling, as all-MiniLM-L6-v2 is meant to be used.

    folder_or_name: a local folder or a hub id; also the name under which vectors are kept.
    device: where it runs.
    batch_size: texts encoded at once.

        encoder = TransformersEncoder("sentence-transformers/all-MiniLM-L6-v2")
        encoder.encode(["How do I boil an egg?"]).shape  ->  (1, 384)

    Raises ModelError if transformers cannot load it. Texts are cut after 256 tokens.
    """

    def __init__(
        self, folder_or_name: str | Path, *, device: str = "cpu", batch_size: int = 32
    ) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.name = str(folder_or_name)
        self._batch_size = batch_size
        self._lock = threading.Lock()  # a fast tokenizer cannot pad for two threads at once
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(self.name, trust_remote_code=False)
            model = AutoModel.from_pretrained(
                self.name, trust_remote_code=False, use_safetensors=True
            )
            self._model = model.to(device).eval()
        except Exception as error:  # foreign code on foreign files may raise anything
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"the sentence encoder {self.name} cannot be loaded ({reason}): "
                "give a folder or hub id that transformers' AutoModel can read from safetensors"
            ) from error
        config = self._model.config
        self._max_tokens = min(_MAX_TOKENS, getattr(config, "max_position_embeddings", _MAX_TOKENS))
        self._dim: int = config.hidden_size

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [n, dim]: the mean over each text's tokens, normalised."""
        vectors = np.zeros((len(texts), self._dim), dtype=np.float32)
        with self._lock:
            for start in range(0, len(texts), self._batch_size):
                rows = slice(start, start + self._batch_size)
                vectors[rows] = self._encode_batch(list(texts[rows]))
        return vectors

    def _encode_batch(self, texts: list[str]) -> NDArray[np.float32]:
        import torch

        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
        ).to(self._model.device)
        with torch.inference_mode():
            states = self._model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"].unsqueeze(-1).float()
            # The clamp is for texts without any token.
            means = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            unit: NDArray[np.float32] = torch.nn.functional.normalize(means).cpu().numpy()
        return unit
