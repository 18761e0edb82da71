"""From a model's name to a model and a tokenizer, through transformers' ordinary loaders.

transformers is imported inside the functions: the import is most of the start-up time, and
commands that load nothing should not pay for it.
"""

from __future__ import annotations

import gc
import hashlib
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import ModelError, UsageError
from paceline.models.cache import weights_damage
from paceline.models.convert import load_gguf_model, load_gguf_tokenizer
from paceline.models.explain import explained
from paceline.models.fingerprint import fingerprint, weight_files
from paceline.models.progress import ProgressCallback, ignore_progress, muted
from paceline.models.registry import DEFAULT_MODEL
from paceline.models.source import ModelSource, resolve
from paceline.models.store import ModelStore

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["LoadedModel", "load_causal_lm"]


class LoadedModel(NamedTuple):
    """A model ready to run, its tokenizer, and the mark of its weights (see `fingerprint`)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str


def load_causal_lm(
    name: str = DEFAULT_MODEL,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, Any] | None = None,
    attn_implementation: str | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    store: ModelStore | None = None,
    progress: ProgressCallback = ignore_progress,
) -> LoadedModel:
    """Load any causal language model transformers knows, by alias, folder, GGUF file or hub id.

    Without `device` and `device_map` the model goes to CUDA where there is one, else to the CPU.
    Without `dtype` it is float32, and on CUDA bfloat16 or, where that is missing, float16.
    Code from a repository is never run, and pickled weights are never read.

    Raises:
        ModelError: no such model, no network, damaged or missing files, not a causal language
            model, or too little memory.
        UsageError: `device`, `dtype` or `device_map` cannot be used.
    """
    _import_libraries()
    options = _placement(device, dtype, device_map)
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    source = resolve(name, store=store, progress=progress, local_files_only=local_files_only)
    if source.alias is not None and source.alias.kind != "causal-lm":
        raise ModelError(f"{name} is a {source.alias.kind}: name a causal language model instead")
    if source.folder is not None:
        _check_folder(source)
    hub = {"revision": revision, "local_files_only": local_files_only or source.repo is None}
    # A hub model may be minutes of download, whose bars should be seen.
    quiet = muted() if source.repo is None else nullcontext()
    with explained(source), quiet:
        return _load(source, hub, options)


def _import_libraries() -> None:
    """Import torch and the heavy part of transformers with the garbage collector paused.

    Nothing that an import makes is garbage, and looking for some takes a fifth of the time.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        import_module("transformers.modeling_utils")
    finally:
        if running:
            gc.enable()


def _load(source: ModelSource, hub: dict[str, Any], options: dict[str, Any]) -> LoadedModel:
    from transformers import AutoConfig

    if source.repo is not None and source.gguf_file is not None:
        source = _download_gguf(source, hub)
    gguf = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    config = AutoConfig.from_pretrained(source.location, trust_remote_code=False, **gguf, **hub)
    _check_config(source.name, config)
    model, missing = _load_model(source, {"config": config, **hub, **options})
    if missing:
        raise ModelError(
            f"the weights of {source.name} lack {len(missing)} parameters ({sorted(missing)[0]} "
            "first): they are incomplete or belong to another kind of model"
        )
    commit = getattr(config, "_commit_hash", None) or hub["revision"]
    with explained(source, "the tokenizer of "):
        tokenizer = _load_tokenizer(source, hub)
    return LoadedModel(model, tokenizer, _fingerprint(source, commit))


def _load_model(source: ModelSource, options: dict[str, Any]) -> tuple[PreTrainedModel, set[str]]:
    from transformers import AutoModelForCausalLM

    if source.gguf_file is not None:
        return load_gguf_model(Path(source.location), source.gguf_file, **options)
    model, report = AutoModelForCausalLM.from_pretrained(
        source.location,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        **options,
    )
    return model, set(report["missing_keys"])


def _load_tokenizer(source: ModelSource, hub: dict[str, Any]) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if source.gguf_file is not None:
        return load_gguf_tokenizer(Path(source.location), source.gguf_file)
    if source.alias is not None:
        # Our own folders hold a tokenizer.json: no need to look for a class that fits.
        return PreTrainedTokenizerFast.from_pretrained(source.location, local_files_only=True)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        source.location, trust_remote_code=False, **hub
    )
    return tokenizer


def _download_gguf(source: ModelSource, hub: dict[str, Any]) -> ModelSource:
    from huggingface_hub import hf_hub_download

    path = Path(hf_hub_download(str(source.repo), str(source.gguf_file), **hub))
    return replace(source, folder=path.parent, repo=None)


def _fingerprint(source: ModelSource, commit: str | None) -> str:
    files = weight_files(source, commit)
    if files:
        return fingerprint(files)
    # Weights under names we do not know: the hub's commit, or the place, must do.
    return hashlib.sha256(f"{source.location}@{commit}".encode()).hexdigest()[:32]


def _check_folder(source: ModelSource) -> None:
    """Refuse what would only fail deep inside a loader.

    Raises:
        ModelError: a folder without a model, weights cut short, or a GGUF file that is none.
    """
    folder = Path(source.location)
    if source.gguf_file is not None:
        with (folder / source.gguf_file).open("rb") as stream:
            if stream.read(4) != b"GGUF":
                raise ModelError(f"{source.name} is not a GGUF file: download or copy it again")
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"{source.name} is not a model folder: it has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{source.name} has no safetensors weights, the only ones paceline reads: save the "
            "model with save_pretrained, or use another"
        )
    damage = weights_damage(folder)
    if damage is not None:
        raise ModelError(
            f"the weights of {source.name} are damaged ({damage}): download or copy them again"
        )


def _check_config(name: str, config: PreTrainedConfig) -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if config.is_encoder_decoder:
        raise ModelError(
            f"{name} is an encoder-decoder model ({config.model_type}): paceline accelerates "
            "decoder-only language models"
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


def _placement(
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    device_map: str | dict[str, Any] | None,
) -> dict[str, Any]:
    """The loader's `dtype` and `device_map` for what the user asked."""
    import torch

    if device is not None and device_map is not None:
        raise UsageError("device and device_map exclude each other: give one of them")
    cuda = torch.cuda.is_available()
    try:
        place = torch.device(device or ("cuda" if cuda else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"there is no device {device!r}: use cpu, cuda or cuda:N") from error
    if place.type == "cuda" and not cuda:
        raise UsageError(
            "this PyTorch sees no CUDA device: use device='cpu' or install one for GPU"
        )
    on_gpu = cuda and (device_map != "cpu" if device_map is not None else place.type == "cuda")
    options: dict[str, Any] = {"dtype": _dtype(dtype, on_gpu)}
    if device_map is not None:
        options["device_map"] = device_map
    elif place.type != "cpu":
        options["device_map"] = {"": place}
    return options


def _dtype(dtype: str | torch.dtype | None, on_gpu: bool) -> torch.dtype:
    import torch

    if dtype is None:
        if not on_gpu:
            return torch.float32
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not (isinstance(chosen, torch.dtype) and chosen.is_floating_point):
        raise UsageError(f"dtype {dtype!r} is not one of float32, bfloat16, float16")
    return chosen
