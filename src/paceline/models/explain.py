"""One sentence for each way a loader fails, and for models that paceline cannot run."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ModelError, PacelineError
from paceline.json_files import parse_json
from paceline.models.draft_folder import is_shared_draft
from paceline.models.record import weights_damage
from paceline.models.source import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_UNFIT = "do not fit its config.json: download it again"
# A GGUF file has no config.json, and sizes that transformers' model of the family cannot have.
_UNFIT_FILE = (
    "have other sizes than transformers' model of its family: use the model as safetensors"
)

# What the libraries say, and what it means for the user. They raise plain OSError, ValueError or
# RuntimeError for nearly all of this, so only names and words can tell. The first match counts.
_MEANINGS = {
    r"MemoryError|out of memory|not enough memory|can't allocate memory|cannot allocate memory": (
        "there is not enough memory for {name}: use a smaller model, a shorter dtype such as "
        "bfloat16, or device_map='auto'"
    ),
    # Not "a private or gated repo", which may just as well be missing.
    r"GatedRepoError|a gated repo": (
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
        "{name} lacks a file that it needs, or has no weights in safetensors format: {in_repo}use "
        "another revision or model ({reason})"
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
    r"ignore_mismatched_sizes|size mismatch": "the weights of {name} {unfit}",
    r"SafetensorError|struct\.error|cannot reshape array|buffer is smaller|mmap length": (
        "the weights of {name} are damaged: download or copy them again ({reason})"
    ),
}

# What the hub answered instead of a file, and what to do; another answer is its own fault.
_ANSWERS = {
    401: "log in again with 'hf auth login', as it does not accept your token",
    403: "log in with a token that may read it, or use another model",
    429: "too many requests come from you, so wait some minutes or log in with 'hf auth login'",
}
_OTHER_ANSWER = "try again later, or name a model that is on this machine"

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS}
"""What a disk answers that cannot be written to."""

_SLIPS = (LookupError, AttributeError, TypeError, ArithmeticError, JSONDecodeError)
"""What code raises on a file that is not what it takes for granted; their words say little."""

_BIASES = {"attn": "attention_bias", "mlp": "mlp_bias"}
"""Parts of a model's name, and the setting that gives the layers there biases."""


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
    """The hub's answer, else the first meaning that fits the error or one of its causes."""
    # First: the libraries' own errors say no more than that something went wrong with the hub.
    for link in _links(error):
        code = getattr(getattr(link, "response", None), "status_code", None)
        # The classes derived from it have a meaning of their own.
        if type(link).__name__ == "HfHubHTTPError" and isinstance(code, int):
            advice = _ANSWERS.get(code, _OTHER_ANSWER)
            return f"the hub answered {code} when asked for {part}{source.name}: {advice}"
    is_file = source.gguf_file is not None and not source.described
    words = {
        "name": source.name,
        # Many repositories of the hub hold nothing else.
        "in_repo": f"name a GGUF file in it as {source.repo}:FILE.gguf, or " if source.repo else "",
        "unfit": _UNFIT_FILE if is_file else _UNFIT,
    }
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):  # the first line only says where
        lines[0] += f" {lines[1]}"
    reason = lines[0].rstrip(".:") if lines else type(error).__name__
    for link in _links(error):
        kind = f"{type(link).__module__}.{type(link).__name__}"
        # The model's own name may contain any of the words searched for, or be part of others.
        name = rf"(?<!\w){re.escape(source.location)}(?!\w)"
        text = re.sub(name, "", f"{kind}: {link}")
        for pattern, sentence in _MEANINGS.items():
            if re.search(pattern, text, re.IGNORECASE):
                return sentence.format(**words, reason=reason)
    if _is_full(error):
        return f"cannot load {part}{source.name} ({reason}): free some space, or set TMPDIR"
    if is_file:
        advice = "use another file, or the model as safetensors"
        return f"cannot load {part}{source.name} ({reason}): {advice}"
    if isinstance(error, _SLIPS):
        return (
            f"cannot load {part}{source.name} ({type(error).__name__}: {reason}): a file of it is "
            "damaged or unknown to the installed transformers, so download it again, or upgrade "
            "transformers"
        )
    return f"cannot load {part}{source.name}: {reason}"


def _is_full(error: BaseException) -> bool:
    """Whether a disk cannot be written to. The tokenizers library says so in words alone."""
    said = re.search(r"\(os error (\d+)\)", str(error))
    number = int(said[1]) if said else getattr(error, "errno", None)
    return number in _FULL or (isinstance(error, OSError) and "temporary directory" in str(error))


def _links(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def check_folder(source: ModelSource) -> None:
    """Raise ModelError for a folder that would only fail deep inside a loader: with no model, a
    draft without embeddings, or truncated weights."""
    folder = Path(source.location)
    files = sorted(folder.glob("*.gguf"))  # as they are downloaded
    one = f"name a GGUF file in it, such as {files[0]}" if files else ""
    if (folder / "adapter_config.json").is_file() and not any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"{source.name} is a PEFT adapter, not a model: merge it into its model with "
            "merge_and_unload, and name the folder that save_pretrained then writes"
        )
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{source.name} is not a model folder, as it has no config.json: "
            f"{one or 'name one that save_pretrained has written'}"
        )
    if is_shared_draft(folder):
        raise ModelError(
            f"{source.name} is a draft model without embeddings of its own: name it as the draft "
            "of its base, as in --method speculative:draft=DIR"
        )
    with suppress(OSError, ValueError, KeyError, TypeError):  # what is no JSON is reported later
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        kind, method = config["kind"], config["method"]
        raise ModelError(
            f"{source.name} holds {kind}, which are no model: use them with that of which they "
            f"are, as in --method {method}:parts={source.name}"
        )
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{source.name} has no safetensors weights, the only ones paceline reads in a folder: "
            f"{one or 'save the model with save_pretrained'}, or use another"
        )
    damage = weights_damage(folder)
    if damage is not None:
        raise ModelError(
            f"the weights of {source.name} are damaged ({damage}): download or copy them again"
        )


def check_config(name: str, config: PreTrainedConfig) -> None:
    """Raise ModelError for an encoder-decoder model, one that fills in masked words, or weights
    that transformers would read without their scales."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if config.is_encoder_decoder:
        raise ModelError(
            f"{name} is an encoder-decoder model ({config.model_type}): paceline accelerates "
            "decoder-only language models"
        )
    text = config.get_text_config(decoder=True)
    quantised = getattr(config, "quantization_config", None)
    quantised = quantised or getattr(text, "quantization_config", None)
    if isinstance(quantised, dict):
        from transformers.quantizers import AutoHfQuantizer

        # With neither of its two switches, bitsandbytes leaves weights as they are.
        method = quantised.get("quant_method")
        if not AutoHfQuantizer.supports_quant_method(quantised) and method != "bitsandbytes":
            raise ModelError(
                f"the weights of {name} are quantised by {method!r}, which the installed "
                "transformers does not know: use a copy that is not quantised, or a GGUF file"
            )
    classes = set(config.architectures or ())
    only_masked = set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()) - set(
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    )
    if classes & only_masked:
        raise ModelError(
            f"{name} fills in masked words ({config.model_type}) and does not write text: "
            "name a causal language model"
        )


def check_layers(name: str, config: PreTrainedConfig, stored: int) -> None:
    """Raise ModelError for more layers than there are tensors, if any are known: to make millions
    of them would take hours, only to find that they have no weights."""
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", 0)
    if layers > stored > 0:
        raise ModelError(
            f"the config.json of {name} names {layers} layers, and its weights are only {stored} "
            "tensors: correct num_hidden_layers there, or download both again"
        )


def check_complete(
    name: str, model: PreTrainedModel, missing: Collection[str], unexpected: Collection[str]
) -> None:
    """Raise ModelError if parameters are missing, or layers or biases unexpected. Others that the
    model lacks are ignored, as in transformers: many folders hold more than the language model."""
    from torch import nn

    if missing:
        raise ModelError(
            f"the weights of {name} lack {len(missing)} parameters ({sorted(missing)[0]} first): "
            "they are incomplete or belong to another kind of model"
        )
    modules, config = dict(model.named_modules()), model.config.get_text_config()
    for stack, layers in modules.items():
        if not isinstance(layers, nn.ModuleList):
            continue
        for key in unexpected:
            number = key.removeprefix(f"{stack}.").partition(".")[0]
            if key.startswith(f"{stack}.") and number.isdecimal() and int(number) >= len(layers):
                raise ModelError(
                    f"the weights of {name} have more than the {len(layers)} layers that its "
                    f"config.json names ({key}): correct num_hidden_layers there"
                )
    for key in sorted(unexpected):
        place, _, kind = key.rpartition(".")
        # Other kinds of modules have buffers of this name, such as a mask, that nothing needs.
        if kind != "bias" or type(modules.get(place)) is not nn.Linear:
            continue
        settings = [setting for part, setting in _BIASES.items() if part in place]
        known = [each for each in settings if getattr(config, each, None) is False]
        raise ModelError(
            f"the weights of {name} have a bias that its config.json does not name ({key}): "
            f"correct {known[0] if known else 'model_type or the settings'} there"
        )
