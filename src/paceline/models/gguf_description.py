"""Everything in a GGUF file but its weights, read by transformers' own readers.

What these readers drop is restored: settings, every token id that ends a turn, and how the
vocabulary splits text.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from paceline.errors import ModelError
from paceline.json_files import json_bytes, read_json
from paceline.models.gguf_file import GgufFile
from paceline.models.gguf_settings import check_layers, restore_settings
from paceline.models.progress import muted

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

_FAMILY, _WORDS = "tokenizer.ggml.pre", "tokenizer.ggml.tokens"
_FEW = 2  # transformers reads an array of one as its element
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# GGUF names one end token. Models of these families are published with a second.
_ALSO_STOPS = {"qwen2": "<|endoftext|>"}

# Files of many chat models name only the token that ends a document. If their template ends turns
# with one of these, it ends a text, too.
_TURN_ENDS = ("<end_of_turn>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<turn|>")
# Where "<|end|>" ends a message, after which the turn goes on.
_MESSAGES_END = "<|return|>"

# Pre-tokenizers that transformers reads as plain GPT-2's: those that llama.cpp splits like this,
# too, and those that also split numbers into digits.
_PLAIN = frozenset({None, "default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"})
_SINGLE_DIGITS = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
)

# Families that llama.cpp reads like this, too: their published tokenizer takes words whole before
# it merges, and begins texts with a token of its own, although many of their files do not say so.
_WHOLE_WORDS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
    | {"jina-v5-nano", "tekken"}
)

# Families whose published tokenizer composes accents (NFC) first; a GGUF file does not say so.
_COMPOSED = frozenset({"qwen2"})


def describe_alias(file: Path, target: Path) -> None:
    """`describe_gguf` for an intact file; raises ModelError if transformers cannot read it."""
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

    Takes seconds: the vocabulary is read word by word. Raises ModelError for a file without one,
    and whatever transformers does.
    """
    from transformers import GenerationConfig

    with muted():
        opened = GgufFile(file)
        words = len(opened.strings(_WORDS))
        if not words:
            raise ModelError(
                f"{file} has no vocabulary ({_WORDS}): use a file that has one, or the model as "
                "safetensors"
            )
        # Before transformers, which lists the layers of some families one by one.
        check_layers(opened, opened.integer(f"{opened.architecture}.block_count") or 0)
        config = _config(opened, words)
        restore_settings(config, opened)
        config.save_pretrained(target)
        stops = stop_ids(opened, config.eos_token_id)
        GenerationConfig(
            bos_token_id=config.bos_token_id,
            eos_token_id=stops[0] if len(stops) == 1 else stops or None,
            pad_token_id=config.pad_token_id,
        ).save_pretrained(target)
        _tokenizer(opened).save_pretrained(target)
    _list_added_tokens(target, words)


def _config(file: GgufFile, words: int) -> PreTrainedConfig:
    """The model's configuration, as transformers reads it, for a vocabulary of `words`."""
    from transformers import AutoConfig, LlamaConfig

    # Windows deletes no file that is still mapped.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Of the words only the number counts, and the reader of gguf takes long for each.
        brief = Path(folder, "model.gguf")
        file.write_header(brief, _FEW)
        config = AutoConfig.from_pretrained(folder, gguf_file=brief.name)
    if config.vocab_size == _FEW:
        config.vocab_size = words
    if (file.architecture, config.model_type) == ("llama", "mistral"):
        # By the file's name alone, with a window that the file does not have.
        said = config.to_dict().items()
        own = {key: value for key, value in said if key not in ("model_type", "sliding_window")}
        return LlamaConfig(**own)
    return config


def _list_added_tokens(folder: Path, words: int) -> None:
    """Copy the vocabulary's added tokens into the tokenizer's configuration: for these few tokens
    transformers would read tens of megabytes of JSON at every start. Tokens that transformers has
    added to a vocabulary of `words` are removed: the model does not know them."""
    vocabulary = read_json(folder / "tokenizer.json")
    known = [token for token in vocabulary["added_tokens"] if token["id"] < words]
    if known != vocabulary["added_tokens"]:
        vocabulary["added_tokens"] = known
        (folder / "tokenizer.json").write_bytes(json_bytes(vocabulary))
    added = {
        str(token["id"]): {name: value for name, value in token.items() if name != "id"}
        for token in known
    }
    path = folder / "tokenizer_config.json"
    path.write_bytes(json_bytes(read_json(path) | {"added_tokens_decoder": added}))


def stop_ids(file: GgufFile, configured: int | list[int] | None = None) -> list[int]:
    """Every token id that ends a text. configured: transformers' own, where files name too few."""
    words, family = file.strings(_WORDS), str(file.metadata.get(_FAMILY))
    template = str(file.metadata.get("tokenizer.chat_template", ""))
    ends = [_ALSO_STOPS.get(family), *(end for end in _TURN_ENDS if end in template)]
    if _MESSAGES_END in words:
        ends = [end for end in ends if end != "<|end|>"]
    found = [file.integer(f"tokenizer.ggml.{key}") for key in _STOP_KEYS]
    found += configured if isinstance(configured, list) else []
    found += [words.index(end) for end in ends if end in words]
    return list(dict.fromkeys(each for each in found if each is not None))


def _tokenizer(file: GgufFile) -> PreTrainedTokenizerBase:
    """The fast tokenizer that a GGUF file describes; it splits text as the original one does.
    Raises ModelError if it splits text in a way that is not known."""
    from tokenizers import decoders, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    with TemporaryDirectory() as folder:
        # Alone: transformers would take a tokenizer that lies beside the file.
        alone = Path(folder, "model.gguf")
        try:
            alone.symlink_to(file.path.absolute())
        except OSError:  # Windows allows it to few
            alone = file.path
        # Not AutoTokenizer, which would first spend seconds rebuilding the model's config.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(alone.parent, gguf_file=alone.name)
    family, backend = file.metadata.get(_FAMILY), tokenizer.backend_tokenizer
    if family in _SINGLE_DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and family not in _PLAIN:
        raise ModelError(
            f"{file.path} splits text as {family!r} does, which neither paceline nor the installed "
            "transformers knows: use the model's safetensors files"
        )
    if family in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    if family in _WHOLE_WORDS:
        backend.model.ignore_merges = True
        tokenizer.add_bos_token = bool(file.metadata.get("tokenizer.ggml.add_bos_token", True))
    begins_anyhow = file.metadata.get("tokenizer.ggml.add_space_prefix") is False
    if begins_anyhow and isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace):
        # transformers would put a space before a text, and take it away when it decodes.
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    return tokenizer
