"""A tiny model, and a package index that is a function."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.models.registry import Alias, Wheel

WORDS = ["<s>", "</s>", "<unk>", "the", "cat", "sat", "on", "mat", "dog", "ran"]


def save_tiny_llama(folder: Path, *, seed: int = 0, tokenizer: bool = True) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    if tokenizer:
        save_tiny_tokenizer(folder)
    return folder


def save_tiny_tokenizer(folder: Path) -> None:
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.Fuse()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)


def save_wheel(folder: Path, target: Path) -> Path:
    """A wheel-like archive that holds a model folder, among other things."""
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("pkg/__init__.py", "raise RuntimeError('never import this')\n")
        archive.writestr("pkg/model/../../escaped.txt", "out of the folder")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, f"pkg/model/{path.relative_to(folder).as_posix()}")
    return target


def folder_alias(name: str, folder: Path, wheel: Path) -> Alias:
    weights = folder / "model.safetensors"
    return Alias(
        name=name,
        kind="causal-lm",
        layout="folder",
        wheels=(Wheel("pkg==1.0", "pkg/model", wheel.stat().st_size, sha256(wheel)),),
        weights_size=weights.stat().st_size,
        weights_sha256=sha256(weights),
        stored_size=weights.stat().st_size,
        licence="none",
        description="a tiny random model",
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class FakeIndex:
    """Stands for the network: hands out files by requirement and counts how often."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files
        self.calls: list[str] = []

    def __call__(self, wheel: Wheel, folder: Path, report: Callable[[int], None]) -> Path:
        self.calls.append(wheel.requirement)
        source = self.files[wheel.requirement]
        target = folder / source.name
        target.write_bytes(source.read_bytes())
        report(target.stat().st_size)
        return target


def save_tiny_gguf(path: Path, *, family: str = "smollm", seed: int = 0) -> Path:
    """A one-layer llama in Q8_0 with a byte-level vocabulary: everything a GGUF loader looks at."""
    import gguf
    import numpy as np
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ĠĠ"]
    tokens += [f"<unused{i}>" for i in range(-len(tokens) % 32)]
    special = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(family)
    writer.add_token_list(tokens)
    writer.add_token_types([special[0] if token[0] == "<" else special[1] for token in tokens])
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    random = np.random.default_rng(seed)
    block = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    block |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    shapes = {f"blk.0.{name}.weight": shape for name, shape in block.items()}
    shapes["token_embd.weight"] = (len(tokens), 32)
    for name, shape in shapes.items():
        values = random.standard_normal(shape, dtype=np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
