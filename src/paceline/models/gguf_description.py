"""Everything in a GGUF file but its weights, read by transformers' own readers.

What these readers drop is restored: settings, every token id that ends a turn, and how the
vocabulary splits text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError
from paceline.json_files import json_bytes, read_json
from paceline.models.gguf_file import GgufFile
from paceline.models.gguf_settings import restore_settings
from paceline.models.progress import muted

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["describe_alias", "describe_gguf", "load_through_transformers", "stop_ids"]

_FAMILY = "tokenizer.ggml.pre"
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# GGUF names one end token. Models of these families are published with a second.
_ALSO_STOPS = {"qwen2": "<|endoftext|>"}

# Pre-tokenizers that llama.cpp knows under these names and transformers reads as plain GPT-2's.
_SINGLE_DIGITS = frozenset({"smollm", "starcoder"})

# Families whose published tokenizer composes accents (NFC) first; a GGUF file does not say so.
_COMPOSED = frozenset({"qwen2"})


def describe_alias(file: Path, target: Path) -> None:
    """`describe_gguf` for a file that is known to be intact.

    Raises:
        ModelError: transformers cannot read it.
    """
    try:
        describe_gguf(file, target)
    except (OSError, ModelError):
        raise  # the disk, not the model
    except Exception as error:
        # The file is as it should be, so the installed transformers is at fault.
        raise ModelError(
            f"the installed transformers cannot read the model ({type(error).__name__}: {error}): "
            "upgrade transformers"
        ) from error


def describe_gguf(file: Path, target: Path) -> None:
    """Write everything in a GGUF file but its weights into a folder, in transformers' form:
    configuration, generation configuration and a fast tokenizer.

    Takes seconds: the vocabulary is read word by word. Raises whatever transformers does.
    """
    from transformers import AutoConfig, GenerationConfig

    with muted():
        opened = GgufFile(file)
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        restore_settings(config, opened)
        config.save_pretrained(target)
        stops = stop_ids(opened)
        GenerationConfig(
            bos_token_id=config.bos_token_id,
            eos_token_id=stops[0] if len(stops) == 1 else stops or None,
            pad_token_id=config.pad_token_id,
        ).save_pretrained(target)
        _tokenizer(file).save_pretrained(target)
    _list_added_tokens(target)


def _list_added_tokens(folder: Path) -> None:
    """Copy the vocabulary's added tokens into the tokenizer's configuration: for these few tokens
    transformers would read tens of megabytes of JSON at every start."""
    vocabulary = read_json(folder / "tokenizer.json")
    path = folder / "tokenizer_config.json"
    added = {
        str(token["id"]): {name: value for name, value in token.items() if name != "id"}
        for token in vocabulary["added_tokens"]
    }
    path.write_bytes(json_bytes(read_json(path) | {"added_tokens_decoder": added}))


def load_through_transformers(
    file: Path, config: PreTrainedConfig, **options: Any
) -> tuple[PreTrainedModel, set[str]]:
    """A plain model from a GGUF file by transformers' own loader, and the names of parameters that
    the file does not hold. Loading needs memory for several copies of the weights.

    `options` go to transformers' `from_pretrained`.
    """
    from transformers import AutoModelForCausalLM, GgufConfig

    model, report = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        config=config,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
        **options,
    )
    return model, set(report["missing_keys"])


def stop_ids(file: GgufFile) -> list[int]:
    """Every token id that ends a text."""
    found = [file.integer(f"tokenizer.ggml.{key}") for key in _STOP_KEYS]
    also = _ALSO_STOPS.get(str(file.metadata.get(_FAMILY)))
    if also is not None:
        tokens = file.strings("tokenizer.ggml.tokens")
        found.append(tokens.index(also) if also in tokens else None)
    return list(dict.fromkeys(each for each in found if each is not None))


def _tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """The fast tokenizer that a GGUF file describes; it splits text as the original one does."""
    from tokenizers import normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Not AutoTokenizer, which would first spend seconds rebuilding the model's config.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name)
    family = GgufFile(file).metadata.get(_FAMILY)
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
