"""One sentence for each way a loader fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import ModelError, PacelineError
from paceline.models.source import ModelSource

__all__ = ["explained"]

_UNFIT = "the weights of {name} do not fit its config.json: download it again"
# A GGUF file has no config.json, and sizes that transformers' model of the family cannot have.
_UNFIT_GGUF = (
    "the weights of {name} have other sizes than transformers' model of its family: use the model "
    "as safetensors"
)

# What the libraries say, and what it means for the user. They raise plain OSError, ValueError or
# RuntimeError for nearly all of this, so only names and words can tell. The first match counts.
_MEANINGS = {
    r"MemoryError|out of memory|not enough memory|can't allocate memory|cannot allocate memory": (
        "there is not enough memory for {name}: use a smaller model, a shorter dtype such as "
        "bfloat16, or device_map='auto'"
    ),
    r"GatedRepoError|gated repo": (
        "{name} is gated: accept its terms on the hub and log in with 'hf auth login'"
    ),
    r"RevisionNotFoundError|not a valid git identifier": (
        "the hub has no such revision of {name}: check the revision"
    ),
    r"RepositoryNotFoundError|not a valid model identifier": (
        "the hub has no model {name}: check the spelling, or log in if it is private"
    ),
    r"couldn't connect|ConnectError|ConnectionError|ConnectTimeout|ReadTimeout"
    r"|LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled": (
        "cannot reach the model hub to get {name}: check the connection, or name a model that is "
        "on this machine"
    ),
    r"EntryNotFoundError|no file named|does not appear to have (a|any) file": (
        "{name} lacks a file that it needs, or has no weights in safetensors format: use another "
        "revision or model ({reason})"
    ),
    r"couldn't instantiate the backend tokenizer": (
        "{name} has no tokenizer that can be read: put its tokenizer.json into the folder, or "
        "install the package its tokenizer needs"
    ),
    r"trust_remote_code|custom code": (
        "{name} needs code from its own repository, which paceline never runs: use a model whose "
        "architecture is part of transformers"
    ),
    r"does not recognize this architecture|unrecognized model in|is not supported yet": (
        "transformers does not know the architecture of {name}: upgrade transformers, or use "
        "another model ({reason})"
    ),
    r"unrecognized configuration class": (
        "{name} is not a causal language model: use one that writes text"
    ),
    r"ignore_mismatched_sizes|size mismatch": _UNFIT,
    r"SafetensorError|struct\.error|cannot reshape array|buffer is smaller|mmap length": (
        "the weights of {name} are damaged: download or copy them again ({reason})"
    ),
}


@contextmanager
def explained(source: ModelSource, part: str = "") -> Iterator[None]:
    """Raise ModelError, one sentence, instead of anything that the body raises while it loads a
    model, or a part of it, but paceline's own errors."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:
        # The body runs foreign code on foreign files, which may raise anything.
        raise ModelError(_meaning(error, source, part)) from error


def _meaning(error: BaseException, source: ModelSource, part: str) -> str:
    """The first meaning that fits the error or one of its causes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0].rstrip(".:") if lines else type(error).__name__
    link: BaseException | None = error
    while link is not None:
        kind = f"{type(link).__module__}.{type(link).__name__}"
        # The model's own name may contain any of the words searched for.
        text = f"{kind}: {link}".replace(source.location, "")
        for pattern, sentence in _MEANINGS.items():
            if re.search(pattern, text, re.IGNORECASE):
                if sentence is _UNFIT and source.gguf_file is not None and not source.described:
                    sentence = _UNFIT_GGUF
                return sentence.format(name=source.name, reason=reason)
        link = link.__cause__ or link.__context__
    return f"cannot load {part}{source.name}: {reason}"
