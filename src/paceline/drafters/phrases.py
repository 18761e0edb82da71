"""Phrases by the token before them: the pool that Lookahead decoding fills and queries (Fu et al.
2024, arXiv 2402.02057, section 3) and that Ouroboros shares between its parts (Zhao et al. 2024,
arXiv 2402.13720).

    add 7 -> (4, 9), add 7 -> (4, 2), add 7 -> (4, 9):  after 7, newest first: (4, 9), (4, 2)
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import Timeout

from paceline.datastore.private_files import Stamp, stamp_of
from paceline.drafters.settings import at_least
from paceline.errors import ModelError
from paceline.file_locks import held, lock_beside
from paceline.json_files import parse_json, replace_file
from paceline.tree import ROOT, Tree

Phrase = tuple[int, ...]

MOST_PHRASES = 1 << 16
"""Default limit of a pool; some twenty megabytes of phrases of four tokens."""

# Assumed probabilities of a phrase's first token and of each further one; planning corrects them.
# The newest phrase is the likeliest.
_FIRST, _NEXT = 0.4, 0.7

_FORMAT = {"kind": "paceline phrases", "version": 1}
_LOCK_SECONDS = 10.0  # writing takes a fraction of a second


class PhrasePool:
    """Up to `per_key` phrases after each token, the key.

    per_key: >= 1. A phrase that is added again becomes the newest one; if there are too many, the
    oldest is dropped.
    most: phrases of all keys together, >= 1. If there are too many, the key that was added to or
    asked for least recently loses its phrases, oldest first.

    Deterministic: the same calls leave the same pool.

    Raises UsageError for limits out of range.
    """

    def __init__(self, per_key: int, most: int = MOST_PHRASES) -> None:
        self.per_key = at_least(1, per_key=per_key)
        self.most = at_least(1, most=most)
        # Least recently used key first; of each key, oldest phrase first.
        self._phrases: OrderedDict[int, tuple[Phrase, ...]] = OrderedDict()
        self._count = 0
        self._seen: dict[Path, Stamp | None] = {}  # files as this pool last read or wrote them

    def __len__(self) -> int:
        """Number of phrases of all keys."""
        return self._count

    def __iter__(self) -> Iterator[tuple[int, tuple[Phrase, ...]]]:
        """Keys, least recently used first, each with its phrases, oldest first. Of a copy: another
        thread may add meanwhile."""
        return iter(list(self._phrases.items()))

    def add(self, key: int, phrase: Sequence[int]) -> None:
        """Keep `phrase`, at least one token, as the newest one after `key`."""
        added = tuple(phrase)
        known = self._phrases.pop(key, ())
        kept = (*(other for other in known if other != added), added)[-self.per_key :]
        self._phrases[key] = kept
        self._count += len(kept) - len(known)
        while self._count > self.most:
            self._drop()

    def add_text(self, before: Sequence[int], tokens: Sequence[int], size: int) -> None:
        """Add all phrases of `size` >= 1 tokens that end in `tokens`, which follow `before`; the key
        of a phrase is the token before it.

            size 2, a b c before d e:   b -> (c, d), c -> (d, e)
        """
        whole = [*before[-size:], *tokens]
        known = len(whole) - len(tokens)
        for end in range(max(known, size) + 1, len(whole) + 1):
            key, *phrase = whole[end - size - 1 : end]
            self.add(key, phrase)

    def replace(self, key: int, old: Sequence[int], new: Sequence[int]) -> None:
        """Replace `old` by `new` after `key`; if `old` is not there, add `new`."""
        before, after = tuple(old), tuple(new)
        known = self._phrases.get(key, ())
        if before not in known:
            self.add(key, after)
        elif after not in known:
            self._phrases[key] = tuple(after if one == before else one for one in known)
        elif after != before:  # of two equal phrases one goes
            self._phrases[key] = tuple(one for one in known if one != before)
            self._count -= 1

    def newest(self, key: int, count: int | None = None) -> tuple[Phrase, ...]:
        """The last `count` phrases added after `key`, newest first; None for all."""
        if key not in self._phrases:
            return ()
        self._phrases.move_to_end(key)
        return self._phrases[key][::-1][: None if count is None else max(0, count)]

    def copy(self) -> PhrasePool:
        """A pool of the same phrases, for a text that must leave none here."""
        made = PhrasePool(self.per_key, self.most)
        made._phrases, made._count = self._phrases.copy(), self._count
        return made

    def clear(self) -> None:
        """Forget all phrases."""
        self._phrases.clear()
        self._count = 0

    def save(self, path: Path, vocab_size: int, fingerprint: str = "") -> None:
        """Write all phrases to one file of JSON lines: a header, then one per key. If another
        process has written it since this pool read it, its phrases stay, as older ones, within this
        pool's limits.

        vocab_size, fingerprint: of the model whose tokens these are; `load` compares them.

        Raises ModelError if it cannot be written, and what `load` raises.
        """
        try:
            path.parent.stat()  # a lock would create a missing folder
            # For all users who may write the file. A pool may be saved while its thread saves
            # another: garbage collection frees drafters at any time.
            with held(lock_beside(path), patience=_LOCK_SECONDS, mode=0o666, is_singleton=True):
                known = stamp_of(path) in (None, self._seen.get(path.resolve()))
                merged = self if known else self._after(path, vocab_size, fingerprint)
                replace_file(path, _lines(merged, vocab_size, fingerprint))
                if known:  # what others wrote is not in this pool, and must stay next time, too
                    self._seen[path.resolve()] = stamp_of(path)
        except Timeout as error:
            raise ModelError(f"cannot write phrases to {path}: another process does") from error
        except OSError as error:
            raise ModelError(f"cannot write phrases to {path}: {error.strerror}") from error

    def _after(self, path: Path, vocab_size: int, fingerprint: str) -> PhrasePool:
        """A pool of the file's phrases, then this one's."""
        merged = PhrasePool(self.per_key, self.most)
        merged.load(path, vocab_size, fingerprint)
        for key, phrases in self:
            for phrase in phrases:
                merged.add(key, phrase)
        return merged

    def load(self, path: Path, vocab_size: int, fingerprint: str = "") -> None:
        """Add all phrases of a file, as the limits allow.

        vocab_size, fingerprint: of the model that they are for; "" fits any model with as many
        tokens.

        Raises ModelError, naming the file, if it cannot be read, is damaged or of another kind, or
        holds the tokens of another model. Nothing is added then.
        """
        try:
            stamp = stamp_of(path)
            lines = path.read_text(encoding="utf-8").splitlines()
            head = parse_json(lines[0]) if lines else None
            if not isinstance(head, dict) or not _FORMAT.items() <= head.items():
                raise ValueError("it is not a phrase file, or has another version")
            theirs = head.get("fingerprint")
            if head.get("vocab_size") != vocab_size:
                raise ModelError(
                    f"the phrase file {path} is for a model with {head.get('vocab_size')} tokens, "
                    f"but this one has {vocab_size}: name another file"
                )
            if theirs and fingerprint and theirs != fingerprint:
                raise ModelError(f"the phrase file {path} is for another model: name another file")
            found = [_entry(parse_json(line), vocab_size) for line in lines[1:]]
            if sum(len(phrases) for _, phrases in found) != head.get("phrases"):
                raise ValueError("its number of phrases is not that of its first line")
        except OSError as error:
            raise ModelError(f"cannot read the phrase file {path}: {error.strerror}") from error
        except ValueError as error:
            raise ModelError(
                f"the phrase file {path} is damaged ({error}): name another file"
            ) from error
        for key, phrases in found:
            for phrase in phrases:
                self.add(key, phrase)
        self._seen[path.resolve()] = stamp

    def _drop(self) -> None:
        """Drop the oldest phrase of the least recently used key."""
        key, phrases = next(iter(self._phrases.items()))
        self._count -= 1
        if len(phrases) > 1:
            self._phrases[key] = phrases[1:]  # which leaves the key in its place
        else:
            del self._phrases[key]


def phrase_tree(phrases: Sequence[Phrase]) -> Tree:
    """Phrases, newest first, as one tree with weights."""
    tree, first = Tree.of_paths(phrases), 0
    weights: list[float] = []
    for parent in tree.parents:
        if parent == ROOT:
            first += 1
            weights.append(_FIRST / first)
        else:
            weights.append(_NEXT * weights[parent])
    return Tree(tree.tokens, tree.parents, tuple(weights))


def _lines(pool: PhrasePool, vocab_size: int, fingerprint: str) -> bytes:
    """A file's content."""
    entries = list(pool)
    head = {
        **_FORMAT,
        "vocab_size": vocab_size,
        "fingerprint": fingerprint,
        # Not len(pool): a finaliser may save while another thread adds.
        "phrases": sum(len(phrases) for _, phrases in entries),
    }
    lines = [json.dumps(head), *(json.dumps([key, *phrases]) for key, phrases in entries)]
    return ("\n".join(lines) + "\n").encode()


def _entry(content: Any, vocab_size: int) -> tuple[int, list[Phrase]]:
    """A key with its phrases; raises ValueError for anything else."""
    if not isinstance(content, list) or len(content) < 2 or not _is_token(content[0], vocab_size):
        raise ValueError("a line is not a token with its phrases")
    key, *phrases = content
    for phrase in phrases:
        if not isinstance(phrase, list) or not phrase:
            raise ValueError(f"the entry of token {key} has something that is not a phrase")
        if not all(_is_token(token, vocab_size) for token in phrase):
            raise ValueError(f"a phrase of token {key} has something that is not a token")
    return key, [tuple(phrase) for phrase in phrases]


def _is_token(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size
