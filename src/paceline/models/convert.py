"""GGUF files through transformers' own loader, with what that loader leaves out put right.

The weights are exactly the numbers transformers de-quantises. Two things that the file states and
the loader drops are added: every token id that ends a turn, and how this vocabulary cuts text.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError
from paceline.models.progress import muted

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["gguf_to_folder", "load_gguf_model", "load_gguf_tokenizer"]

_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# GGUF names one end token. Models of this family are published with a second.
_ALSO_STOPS = {"qwen2": "<|endoftext|>"}

# Pre-tokenizers that llama.cpp knows under these names and transformers reads as plain GPT-2's.
_SINGLE_DIGITS = frozenset({"smollm", "starcoder"})

# Families whose published tokenizer composes accents (NFC) first; a GGUF file does not say so.
_COMPOSED = frozenset({"qwen2"})


def gguf_to_folder(file: Path, target: Path) -> None:
    """Write a GGUF file as an ordinary transformers folder: float32 safetensors and a fast tokenizer.

    float32 because de-quantised values are not exact in any shorter format.

    Raises:
        ModelError: transformers cannot read this file.
    """
    import torch
    from transformers import AutoConfig

    try:
        with muted():
            config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
            model, missing = load_gguf_model(
                file.parent, file.name, config=config, dtype=torch.float32
            )
            if missing:
                raise ValueError(f"{len(missing)} parameters are not in it")
            model.save_pretrained(target)
            load_gguf_tokenizer(file.parent, file.name).save_pretrained(target)
        # The weights are written readable by their owner alone, unlike every other file.
        shutil.copymode(target / "config.json", target / "model.safetensors")
    except OSError:
        raise  # the disk, not the model
    except Exception as error:
        # The file is what it should be, so this is the installed transformers, or memory.
        raise ModelError(
            f"this transformers cannot convert the model ({type(error).__name__}: {error}): "
            "upgrade transformers, and see that there is memory for the weights in float32"
        ) from error


def load_gguf_model(folder: Path, file: str, **options: Any) -> tuple[PreTrainedModel, set[str]]:
    """A plain model from a GGUF file, and the names of parameters that the file does not hold.

    `options` go to transformers' `from_pretrained`. The model can be saved: its weights are
    de-quantised and it carries no quantisation state.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig
    from transformers.integrations.gguf import read_gguf_metadata

    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=file,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
        **options,
    )
    metadata, _ = read_gguf_metadata(str(folder / file), ("tokenizer.ggml.tokens",))
    stops = stop_ids(metadata)
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=stops[0] if len(stops) == 1 else stops or None,
        pad_token_id=model.config.pad_token_id,
    )
    return model, set(report["missing_keys"])


def stop_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Every token id that ends a text, from a GGUF file's metadata (with its token list)."""
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    keys = (f"tokenizer.ggml.{key}" for key in _STOP_KEYS)
    found = [int(metadata[key]) for key in keys if key in metadata]
    also = _ALSO_STOPS.get(metadata.get("tokenizer.ggml.pre", ""))
    if also in tokens:
        found.append(tokens.index(also))
    return list(dict.fromkeys(found))


def load_gguf_tokenizer(folder: Path, file: str) -> PreTrainedTokenizerBase:
    """The fast tokenizer that a GGUF file describes, cutting text as the original one does."""
    from tokenizers import normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import read_gguf_metadata

    # Not AutoTokenizer: it would first spend seconds on rebuilding the model's config.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=file)
    metadata, _ = read_gguf_metadata(str(folder / file))
    family = metadata.get("tokenizer.ggml.pre")
    if family in _SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if family in _COMPOSED:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer
