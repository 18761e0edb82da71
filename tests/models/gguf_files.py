"""GGUF files of tiny models of several families, in any format of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

WIDTH, LAYERS, VOCAB, HEADS, KEY_HEADS = 256, 2, 64, 4, 2
FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
# Where the scales of the formats that gguf cannot write are: in half precision.
_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "IQ4_XS": (0,)}

_SIZE, _SMALL = WIDTH, WIDTH * KEY_HEADS // HEADS
_MATRICES = {
    "attn_q": (_SIZE, _SIZE),
    "attn_k": (_SMALL, _SIZE),
    "attn_v": (_SMALL, _SIZE),
    "attn_output": (_SIZE, _SIZE),
    "ffn_gate": (_SIZE, _SIZE),
    "ffn_up": (_SIZE, _SIZE),
    "ffn_down": (_SIZE, _SIZE),
}
_GPT2 = {
    "attn_qkv": (3 * _SIZE, _SIZE),
    "attn_output": (_SIZE, _SIZE),
    "ffn_up": (4 * _SIZE, _SIZE),
    "ffn_down": (_SIZE, 4 * _SIZE),
}
_FOUR_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_NORMS = {
    "llama": ("attn_norm", "ffn_norm"),
    "qwen2": ("attn_norm", "ffn_norm"),
    "qwen3": ("attn_norm", "ffn_norm"),
    "gemma2": _FOUR_NORMS,
    "gemma3": _FOUR_NORMS,
    "gpt2": ("attn_norm", "ffn_norm"),
}


def encoded(shape: tuple[int, ...], kind: str, random: np.random.Generator) -> np.ndarray:
    """Random weights in a format: floats, or the bytes of blocks."""
    values = random.standard_normal(shape, dtype=np.float32) * 0.1
    if kind == "F32":
        return values
    if kind == "F16":
        return values.astype(np.float16)
    if kind not in _SCALES:
        return gguf.quants.quantize(values, Kind[kind])
    elements, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), dtype=np.uint8)
    for place in _SCALES[kind]:
        scale = np.float16(random.uniform(0.001, 0.002))
        blocks[..., place : place + 2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def save_gguf(
    path: Path,
    family: str = "llama",
    kinds: tuple[str, ...] = ("Q8_0",),
    *,
    own_head: bool = False,
    context: int | None = None,
    seed: int = 0,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """A model of a family; its matrices take the formats in turn, the embeddings the last one.
    context: positions; by default those that transformers takes a GPT-2 to have, else 128.
    change: of what is written."""
    context = context or (1024 if family == "gpt2" else 128)
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, family)
    _add_sizes(writer, family, context)
    _add_vocabulary(writer)
    change(writer)
    formats = cycle(kinds)
    for name, shape in _shapes(family, context):
        flat = len(shape) == 1 or name == "position_embd.weight"
        kind = "F32" if flat else kinds[-1] if name == "token_embd.weight" else next(formats)
        writer.add_tensor(name, encoded(shape, kind, random), raw_dtype=Kind[kind])
    if own_head:
        writer.add_tensor(
            "output.weight",
            encoded((VOCAB, WIDTH), kinds[0], random),
            raw_dtype=Kind[kinds[0]],
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, family: str, context: int) -> None:
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_vocab_size(VOCAB)
    if family == "gpt2":
        writer.add_layer_norm_eps(1e-5)
        return
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if family in ("qwen3", "gemma2", "gemma3"):
        writer.add_key_length(WIDTH // HEADS)
        writer.add_value_length(WIDTH // HEADS)
    if family in ("gemma2", "gemma3"):
        writer.add_sliding_window(32)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    letters = [chr(code) for code in range(ord("!"), ord("!") + VOCAB - 4)]
    tokens = ["<|endoftext|>", "<|im_end|>", *letters, "Ġ", "Ġ!"]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if index < 2 else normal for index in range(VOCAB)])
    writer.add_token_merges(["Ġ !"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _shapes(family: str, context: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (VOCAB, WIDTH)
    if family == "gpt2":
        yield "position_embd.weight", (context, WIDTH)
    for layer in range(LAYERS):
        for name, shape in (_GPT2 if family == "gpt2" else _MATRICES).items():
            yield f"blk.{layer}.{name}.weight", shape
            if family == "gpt2" or (family == "qwen2" and name in ("attn_q", "attn_k", "attn_v")):
                yield f"blk.{layer}.{name}.bias", shape[:1]
        for name in _NORMS[family]:
            yield f"blk.{layer}.{name}.weight", (WIDTH,)
            if family == "gpt2":
                yield f"blk.{layer}.{name}.bias", (WIDTH,)
        if family in ("qwen3", "gemma3"):
            yield f"blk.{layer}.attn_q_norm.weight", (WIDTH // HEADS,)
            yield f"blk.{layer}.attn_k_norm.weight", (WIDTH // HEADS,)
    yield "output_norm.weight", (WIDTH,)
    if family == "gpt2":
        yield "output_norm.bias", (WIDTH,)
