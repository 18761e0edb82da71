"""How drafters get at the datastore of their model."""

from __future__ import annotations

from pathlib import Path

from paceline.datastore import Datastore, SuffixArray
from paceline.drafters.host import Host
from paceline.errors import ModelError, StoreError

__all__ = ["NO_DATASTORE", "opened_arrays"]

NO_DATASTORE = "none"


def opened_arrays(host: Host, name: str, needed: bool = False) -> list[SuffixArray]:
    """To look up texts in the datastore in the folder `name`, for one drafter alone.

    name: "" is the model's own datastore, for which it is an error to be missing where it is
    `needed`; `NO_DATASTORE` is none. A folder is opened once for all drafters of a host.

    Raises StoreError where the datastore is missing, damaged or of another tokenizer, ModelError
    where the model's tokenizer is not known and a folder is named.
    """
    mark = "" if host.vocabulary is None or name == NO_DATASTORE else host.vocabulary()
    if not mark:
        if name not in ("", NO_DATASTORE):
            raise ModelError(
                "the tokenizer of this model is not known, so nobody can say whether the datastore "
                f"{name} is for it: leave datastore= out"
            )
        return []
    folder = Path(name).expanduser() if name else Datastore.default_folder(mark)
    if not folder.is_dir():
        if name or needed:
            raise StoreError(
                f"there is no datastore at {folder}: build one with 'paceline datastore build', "
                "or name its folder with datastore=FOLDER"
            )
        return []
    store: Datastore = host.share(("datastore", folder), lambda: Datastore(folder, mark))
    if store.largest >= host.target.vocab_size:
        raise StoreError(
            f"the datastore {folder} holds the token {store.largest}, which the model does not have"
            ": build it again"
        )
    return store.arrays()
