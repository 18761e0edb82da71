"""How drafters access the datastore of their model.

A document that shares several consecutive tokens with a text is likely to be about the same: an
earlier answer to the question, another version of the file. A short match there means more than in
a whole datastore, where two words have been followed by anything, so such documents are searched
apart from all others.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from pathlib import Path

from paceline.datastore import (
    BORDER,
    NOTHING,
    Datastore,
    Found,
    GrowingSuffixArray,
    Search,
    SuffixArray,
)
from paceline.drafters.host import Host
from paceline.drafters.lookup import FOLLOWER_DOUBT
from paceline.errors import ModelError, StoreError, UsageError
from paceline.tree import Tree

NO_DATASTORE = "none"

_MATCHED = 6  # consecutive matching tokens that make a document a near one
_PLACES = 8  # a match in more places is a phrase that many texts share
_BEFORE, _AFTER = 2048, 4096  # tokens of a document to take before and after the match
_MOST = 1 << 14  # tokens of near documents in total: sorting these takes about two milliseconds
_LENGTHS = 3  # match lengths to try, longest first


class NearTexts:
    """The documents of a datastore that are near one text.

    most: documents, 0 for none. depth: of trees.
    """

    def __init__(self, most: int, depth: int) -> None:
        self._most = most
        self._search = Search(depth=depth, doubt=FOLLOWER_DOUBT, per_match=64)
        self.forget()

    def forget(self) -> None:
        """Drop all documents for a new text."""
        self._array = GrowingSuffixArray()
        # The array of each stretch, and where it begins and ends there, counted from the first
        # token that the array ever had.
        self._taken: list[tuple[SuffixArray, int, int]] = []

    def take(self, found: Found, array: SuffixArray) -> None:
        """Take the documents in which the text was found in `array`, if they are near."""
        if found.matched < _MATCHED or found.places > _PLACES:
            return
        gone = array.dropped
        for place in array.places(found).tolist():
            if len(self._taken) >= self._most:
                return
            at = gone + place
            if any(taken is array and first <= at < end for taken, first, end in self._taken):
                continue
            begin, tokens = array.around(place, _BEFORE, _AFTER)
            if len(self._array) + len(tokens) < _MOST:
                begin += gone
                self._taken.append((array, begin, begin + len(tokens)))
                self._array.add([BORDER, *tokens.tolist()])

    def look_up(self, tail: Sequence[int], budget: int) -> tuple[Tree, float]:
        """What followed the end of the text there: a tree, and the sum of its weights."""
        return self._array.look_up_lengths(tail, budget, self._search, _LENGTHS)


class KnownTexts:
    """A datastore as one drafter searches it.

    arrays: fixed ones, if there is no store.
    store: whose arrays are searched; `refresh` includes what it has added.
    """

    def __init__(self, arrays: Sequence[SuffixArray] = (), store: Datastore | None = None) -> None:
        self._arrays, self._store, self._version = list(arrays), store, -1

    @classmethod
    def of(cls, host: Host | None, name: str, needed: bool = False) -> KnownTexts:
        """The texts in the folder `name`, opened once for all drafters of a host: "" is the host's
        datastore or else the model's own, which may be missing unless `needed`; `NO_DATASTORE` is
        none. Without a host there are none.

        Raises StoreError if the datastore is missing, damaged or of another tokenizer, ModelError
        if a folder is named but the model's tokenizer is unknown, UsageError if there is no host.
        """
        if host is None:
            if name in ("", NO_DATASTORE):
                return cls()
            raise UsageError(
                f"the datastore {name} cannot be used without a session: open the model with "
                "paceline.load, or leave out datastore="
            )
        if needed and name == NO_DATASTORE:
            raise UsageError("this method guesses from a datastore alone: name one")
        store = None if name == NO_DATASTORE else _opened(host, name, needed)
        if store is not None and store.largest >= host.target.vocab_size:
            raise StoreError(
                f"the datastore {store.folder} holds the token {store.largest}, which the model "
                "does not have: build it again"
            )
        return cls(store=store)

    def refresh(self) -> None:
        """Include what the store has added."""
        if self._store is not None and self._version != self._store.version:
            version = self._store.version
            self._arrays = self._store.arrays()
            self._version = version

    def look_up(
        self, tail: Sequence[int], budget: int, search: Search, near: NearTexts | None = None
    ) -> Found:
        """The longest match; of equally long ones, that in the newest texts.

        near: takes the documents of these matches.
        """
        best = NOTHING
        for array in self._arrays:
            found = array.look_up(tail, budget, search)
            if near is not None and found.matched:
                near.take(found, array)
            if found.matched > best.matched:
                best = found
        return best


def _opened(host: Host, name: str, needed: bool) -> Datastore | None:
    own = host.datastore
    # A second one on the same folder would not see what the session adds.
    if own is not None and (not name or _absolute(name) == _absolute(own.folder)):
        return own
    missing: ModelError | StoreError
    # Before the mark, which takes a second for a large vocabulary.
    known = host.vocabulary is not None and host.finds_datastore
    if known and not (name or Datastore.any_by_default()):
        missing = StoreError(
            "there is no datastore of this model: build one with 'paceline datastore build', or "
            "name a folder with datastore=FOLDER"
        )
    elif not (mark := "" if host.vocabulary is None else host.vocabulary()):
        missing = ModelError(
            "the tokenizer of this model is unknown, so no datastore can be checked against it: "
            "open the model with paceline.load, or do without a datastore"
        )
    elif not (name or host.finds_datastore):
        missing = StoreError("no datastore was named: give its folder with datastore=FOLDER")
    else:
        # Unlike Path's own functions, these do not fail for a strange name.
        folder = Path(os.path.expanduser(name)) if name else Datastore.default_folder(mark)
        if os.path.isdir(folder):
            return host.share(("datastore", folder), lambda: Datastore(folder, mark))
        missing = StoreError(
            f"there is no datastore at {folder}: build one with 'paceline datastore build', "
            "or name its folder with datastore=FOLDER"
        )
    if name or needed:
        raise missing
    return None


def _absolute(folder: str | Path) -> str:
    return os.path.abspath(os.path.expanduser(folder))
