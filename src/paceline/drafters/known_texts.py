"""How drafters access the datastore of their model."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from pathlib import Path

from paceline.datastore import NOTHING, Datastore, Found, Search, SuffixArray
from paceline.drafters.host import Host
from paceline.drafters.near_texts import NearTexts
from paceline.errors import ModelError, StoreError

__all__ = ["NO_DATASTORE", "KnownTexts"]

NO_DATASTORE = "none"


class KnownTexts:
    """A datastore as one drafter searches it.

    arrays: fixed ones, if there is no store.
    store: whose arrays are searched; `refresh` includes what it has added.
    """

    def __init__(self, arrays: Sequence[SuffixArray] = (), store: Datastore | None = None) -> None:
        self._arrays, self._store, self._version = list(arrays), store, -1

    @classmethod
    def of(cls, host: Host, name: str, needed: bool = False) -> KnownTexts:
        """The texts in the folder `name`, which is opened once for all drafters of a host.

        name: "" is the host's datastore or else the model's own, which may be missing unless
        `needed`; `NO_DATASTORE` is none.

        Raises StoreError if the datastore is missing, damaged or of another tokenizer, ModelError
        if a folder is named but the model's tokenizer is unknown.
        """
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
            self._version = self._store.version
            self._arrays = self._store.arrays()

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
    if host.datastore is not None and not name:
        return host.datastore
    mark = "" if host.vocabulary is None else host.vocabulary()
    if not mark:
        if name:
            raise ModelError(
                "the tokenizer of this model is unknown, so the datastore "
                f"{name} cannot be checked against it: leave out datastore="
            )
        return None
    # Unlike Path's own functions, these do not fail for a strange name.
    folder = Path(os.path.expanduser(name)) if name else Datastore.default_folder(mark)
    if not os.path.isdir(folder):
        if name or needed:
            raise StoreError(
                f"there is no datastore at {folder}: build one with 'paceline datastore build', "
                "or name its folder with datastore=FOLDER"
            )
        return None
    opened: Datastore = host.share(("datastore", folder), lambda: Datastore(folder, mark))
    return opened
