"""From a model's name to a model and a tokenizer, through transformers' ordinary loaders.

transformers is imported inside the functions: the import is most of the start-up time, which
commands that load nothing should not pay.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.defaults import DEFAULT_MODEL
from paceline.errors import ModelError
from paceline.models.description_cache import described
from paceline.models.explain import (
    check_complete,
    check_config,
    check_folder,
    check_layers,
    explained,
)
from paceline.models.fingerprint import fingerprint
from paceline.models.gguf_file import GgufFile
from paceline.models.memory import bytes_needed, check_memory, stored_tensors
from paceline.models.placement import placement
from paceline.models.progress import ProgressCallback, ignore_progress, loading, muted
from paceline.models.source import ModelSource, resolve
from paceline.models.store import ModelStore, damaged

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


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
    blocks: bool = False,
    store: ModelStore | None = None,
    progress: ProgressCallback = ignore_progress,
) -> LoadedModel:
    """Load any causal language model transformers knows, by alias, folder, GGUF file or hub id.

    Without `device` and `device_map` the model goes to CUDA if there is one, else to the CPU.
    Without `dtype` it is float32; on CUDA bfloat16 or, if unsupported, float16.
    Code from a repository is never run, and pickled weights are never read.

    blocks: a GGUF file's weights may stay in its blocks, in linear layers and embeddings that can
    only run. They do so on the CPU, with float32 for the rest, if there are kernels for them;
    otherwise they become floats, as without `blocks`.

    Raises ModelError for no such model, no network, damaged or missing files, no causal language
    model, or too little memory; UsageError for `device`, `dtype` or `device_map`.
    """
    options = placement(device, dtype, device_map)
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    source = resolve(name, store=store, progress=progress, local_files_only=local_files_only)
    if source.folder is not None and source.gguf_file is None:
        check_folder(source)
    hub = {"revision": revision, "local_files_only": local_files_only or source.repo is None}
    # A hub model may take minutes to download, so its bars are shown.
    quiet = muted() if source.repo is None else loading
    with explained(source), quiet:
        if source.gguf_file is not None:
            return _load_gguf(_downloaded(source, hub), options, blocks, progress)
        return _load(source, hub, options)


def _load(source: ModelSource, hub: dict[str, Any], options: dict[str, Any]) -> LoadedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source.location, trust_remote_code=False, **hub)
    check_config(source.name, config)
    stored = stored_tensors(source, hub["revision"])
    check_layers(source.name, config, len(stored))
    place = _single_place(options)
    if place is not None:
        needed = bytes_needed(stored, options["dtype"])
        check_memory(source, needed, options["dtype"], place)
    model, report = AutoModelForCausalLM.from_pretrained(
        source.location,
        config=config,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        **hub,
        **options,
    )
    check_complete(source.name, model, report["missing_keys"], report["unexpected_keys"])
    commit = getattr(config, "_commit_hash", None) or hub["revision"]
    with explained(source, "the tokenizer of "):
        tokenizer = _load_tokenizer(source, hub)
    return LoadedModel(model, tokenizer, fingerprint(source, commit))


def _load_gguf(
    source: ModelSource, options: dict[str, Any], blocks: bool, progress: ProgressCallback
) -> LoadedModel:
    from transformers import AutoConfig, GenerationConfig

    file = _opened(source)
    with _description(source, file, progress) as folder:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        check_config(source.name, config)
        model, missing = _load_weights(source, file, config, options, blocks)
        check_complete(source.name, model, missing, ())
        model.generation_config = GenerationConfig.from_pretrained(folder)
        tokenizer = _described_tokenizer(folder)
    place = source.folder if source.described else file.path
    model.name_or_path = model.config.name_or_path = str(place)
    return LoadedModel(model, tokenizer, fingerprint(source))


def load_tokenizer(
    name: str, *, progress: ProgressCallback = ignore_progress
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model. Names and errors are those of `load_causal_lm`; the weights of a
    folder or hub model are not touched."""
    source = resolve(name, progress=progress)
    hub = {"revision": None, "local_files_only": source.repo is None}
    with explained(source, "the tokenizer of "):
        if source.gguf_file is not None:
            return load_gguf_tokenizer(_downloaded(source, hub), progress)
        return _load_tokenizer(source, hub)


def load_gguf_tokenizer(
    source: ModelSource, progress: ProgressCallback = ignore_progress
) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file on this machine. Raises what `load_causal_lm` does."""
    with explained(source), muted(), _description(source, None, progress) as folder:
        return _described_tokenizer(folder)


def _description(
    source: ModelSource, file: GgufFile | None, progress: ProgressCallback
) -> AbstractContextManager[Path]:
    """The folder that describes a GGUF file, which may be open already."""
    if source.described:
        return nullcontext(Path(source.location))
    return described(file or _opened(source), progress)


def _described_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import PreTrainedTokenizerFast

    # Not AutoTokenizer: our own folders have a tokenizer.json, so no special class is needed.
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
        folder, local_files_only=True
    )
    return tokenizer


def _opened(source: ModelSource) -> GgufFile:
    try:
        return GgufFile(Path(source.location, str(source.gguf_file)))
    except ModelError as error:
        if source.alias is None:
            raise
        raise damaged(source.name) from error


def _load_weights(
    source: ModelSource,
    file: GgufFile,
    config: PreTrainedConfig,
    options: dict[str, Any],
    blocks: bool,
) -> tuple[PreTrainedModel, set[str]]:
    from transformers import AutoModelForCausalLM, GgufConfig
    from transformers.integrations.gguf import is_gguf_arch_supported

    from paceline.models import gguf_model

    place, dtype = _single_place(options), options["dtype"]
    unread = gguf_model.why_unread(file)
    # Families that transformers reads in its own way are left to it.
    ours = not unread and not is_gguf_arch_supported(file.architecture)
    blocks = blocks and ours and gguf_model.has_kernels(place, dtype)
    if place is not None:
        needed = gguf_model.bytes_needed(file, dtype, blocks)
        check_memory(source, needed, None if blocks else dtype, place)
    if ours:
        return gguf_model.load_gguf(file, config, blocks=blocks, **options)
    try:
        # Needs memory for several copies of the weights.
        model, report = AutoModelForCausalLM.from_pretrained(
            file.path.parent,
            gguf_file=file.path.name,
            config=config,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **options,
        )
    except (NotImplementedError, ValueError, KeyError) as error:
        if not unread:
            raise
        raise ModelError(unread) from error
    return model, set(report["missing_keys"])


def _single_place(options: dict[str, Any]) -> torch.device | None:
    """The device for the whole model, or None if the user's own map says otherwise."""
    import torch

    device_map = options.get("device_map", {"": "cpu"})
    if not isinstance(device_map, dict) or [*device_map] != [""] or device_map[""] == "disk":
        return None
    return torch.device(device_map[""])


def _load_tokenizer(source: ModelSource, hub: dict[str, Any]) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if source.alias is not None:
        return _described_tokenizer(Path(source.location))
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        source.location, trust_remote_code=False, **hub
    )
    # Some classes make up a vocabulary of special tokens where there are no files.
    special = set(tokenizer.all_special_tokens)
    if tokenizer.vocab_size <= len(special) and special.issuperset(tokenizer.get_vocab()):
        raise ValueError("Couldn't instantiate the backend tokenizer: it has no vocabulary")
    return tokenizer


def _downloaded(source: ModelSource, hub: dict[str, Any]) -> ModelSource:
    """The source with its GGUF file on this machine."""
    if source.repo is None:
        return source
    from huggingface_hub import hf_hub_download

    path = Path(hf_hub_download(source.repo, str(source.gguf_file), **hub))
    return replace(source, folder=path.parent, gguf_file=path.name, repo=None)
