"""Vocabularies: what ends a text, and whether two models read and write the same tokens, so that one
can guess for the other."""

from __future__ import annotations

import hashlib
import json
from operator import index
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Embeddings of one family are padded to multiples of different numbers.
_PADDING = 512


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Tokens that end a text, from the generation config, else from the tokenizer. Raises ModelError
    for what is no token."""
    eos: Any = model.generation_config.eos_token_id if model.generation_config else None
    if eos is None and tokenizer is not None:
        eos = tokenizer.eos_token_id
    if eos is None:
        return []
    try:
        found: list[Any] = [eos] if isinstance(eos, int | str) else eos
        return [index(each) for each in found]
    except TypeError as error:
        raise ModelError(
            f"eos_token_id of the model's generation config is {eos!r}, which is no token id: "
            "correct it there"
        ) from error


def shared_tokens(
    tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, name: str
) -> int:
    """The id below which both tokenizers agree, except for tokens that one of them lacks.

    Either may lack added tokens, such as those of a chat template; all others must be the same.

    Raises ModelError, with the first difference, about the model `name` with the tokenizer `other`.
    """
    own, theirs = tokenizer.get_vocab(), other.get_vocab()
    if own != theirs:
        texts = {token: text for text, token in own.items()}
        other_texts = {token: text for text, token in theirs.items()}
        for token in sorted(texts.keys() & other_texts.keys()):
            if texts[token] != other_texts[token]:
                raise ModelError(
                    f"{name} cannot draft for this model: token {token} is "
                    f"{other_texts[token]!r} in its tokenizer and {texts[token]!r} in the model's"
                )
        added = {*tokenizer.get_added_vocab().values(), *other.get_added_vocab().values()}
        missing = sorted((texts.keys() ^ other_texts.keys()) - added)
        if missing:
            raise ModelError(
                f"{name} cannot draft for this model: its tokenizer has {len(theirs)} tokens and "
                f"the model's {len(own)}; token {missing[0]} is the first that only one of them has"
            )
    return 1 + max({*own.values()} & {*theirs.values()}, default=-1)


def check_same_size(size: int, other: int, name: str) -> None:
    """Check the sizes of two vocabularies, for models without a known tokenizer: they may differ
    only by padding. Raises ModelError about the model `name` with a vocabulary of size `other`."""
    if abs(size - other) >= _PADDING:
        raise ModelError(
            f"{name} cannot draft for this model: it has a vocabulary of {other} tokens and the "
            f"model one of {size}, so they cannot share a tokenizer"
        )


def vocabulary_mark(tokenizer: Any) -> str:
    """32 hex digits for a tokenizer's table of ids and texts; "" if it does not have one."""
    get_vocab = getattr(tokenizer, "get_vocab", None)
    if get_vocab is None:
        return ""
    pairs = sorted((token, text) for text, token in get_vocab().items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:32]
