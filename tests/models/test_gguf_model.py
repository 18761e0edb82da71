"""Weights of GGUF files: the very numbers of transformers' loader, as floats and in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_files import FORMATS, VOCAB, WIDTH, save_gguf
from tests.c_library import needs_library
from transformers import AutoModelForCausalLM, PreTrainedModel

import paceline.models.gguf_model as gguf_model
from paceline.errors import ModelError
from paceline.kernels.block_layers import BlockEmbedding, BlockLinear
from paceline.models import DEFAULT_MODEL, load_causal_lm, pull
from paceline.models.load import LoadedModel
from paceline.targets.engines import open_target
from paceline.targets.prepare import prepare

FAMILIES = ("llama", "qwen2", "gemma3", "gpt2")
IDS = torch.tensor([[3, 14, 15, 9, 26, 5]])


def load(file: Path, **options: Any) -> LoadedModel:
    return load_causal_lm(str(file), device="cpu", **options)


def of_transformers(file: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=dtype
    )
    return model


def in_blocks(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight that is in blocks, by name, with its values."""
    for name, module in model.named_modules():
        if isinstance(module, BlockLinear | BlockEmbedding):
            yield f"{name}.weight", module.matrix.values(torch.arange(module.matrix.outputs))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_are_those_of_transformers_bit_by_bit(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    kinds = (*FORMATS, "F16", "F32")
    file = save_gguf(tmp_path / f"{family}.gguf", family, kinds, own_head=family != "gemma3")
    expected = of_transformers(file, dtype).state_dict()
    found = load(file, dtype=dtype).model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor), name


@needs_library
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("own_head", [False, True])
def test_blocks_hold_the_same_numbers(tmp_path: Path, family: str, own_head: bool) -> None:
    file = save_gguf(tmp_path / f"{family}.gguf", family, FORMATS, own_head=own_head)
    floats, blocks = load(file).model, load(file, blocks=True).model
    expected = floats.state_dict()
    kept = dict(in_blocks(blocks))
    for name, values in kept.items():
        assert torch.equal(values, expected[name]), name
    for name, parameter in blocks.named_parameters():
        assert not parameter.numel() or torch.equal(parameter, expected[name]), name
    gpt2 = family == "gpt2"  # its matrices stand the other way round
    assert len(kept) == 2 + (0 if gpt2 else 14) - (gpt2 and own_head)
    with torch.no_grad():
        scores = floats(IDS).logits
        # Products round their rows to 8 bits.
        assert float((blocks(IDS).logits - scores).norm() / scores.norm()) < 0.2


@needs_library
def test_a_tied_head_is_the_embedding_once(tmp_path: Path) -> None:
    model = load(save_gguf(tmp_path / "m.gguf"), blocks=True).model
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(head, BlockLinear)
    assert head.matrix is table.matrix
    own = load(save_gguf(tmp_path / "own.gguf", own_head=True), blocks=True).model
    assert own.get_output_embeddings().matrix is not own.get_input_embeddings().matrix


def test_the_text_of_a_model_in_blocks(tmp_path: Path) -> None:
    """Everything but the products is that of the model in floats."""
    file = save_gguf(tmp_path / "m.gguf", "gemma3", ("Q8_0", "Q4_K"))
    texts = [
        load(file, blocks=blocks).model.generate(
            IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=12, do_sample=False
        )
        for blocks in (False, True)
    ]
    assert torch.equal(*texts)


class Doubling:
    """Not a permutation, though it leaves the order of rows alone."""

    def __init__(self, config: Any) -> None:
        pass

    def process(self, weights: Any, name: str, **more: Any) -> Any:
        from transformers.modeling_gguf_pytorch_utils import GGUFTensor

        if "ffn_up" in name:
            weights = weights * 2
        if "ffn_down" in name:
            weights = weights[:, ::-1]
        return GGUFTensor(weights, name, {})

    def preprocess_name(self, name: str) -> str:
        return name

    def perform_fallback_tensor_mapping(self, *args: Any) -> None:
        pass


@needs_library
def test_what_is_no_permutation_of_rows_goes_the_float_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers.modeling_gguf_pytorch_utils as theirs

    file = save_gguf(tmp_path / "m.gguf")
    monkeypatch.setitem(theirs.TENSOR_PROCESSORS, "llama", Doubling)
    blocks, floats = load(file, blocks=True).model, load(file).model
    names = {name for name, _ in in_blocks(blocks)}
    assert not any("up_proj" in name or "down_proj" in name for name in names)
    assert sum("mlp.gate_proj" in name for name in names) == 2
    for layer in (0, 1):
        for name in ("up_proj", "down_proj"):
            name = f"model.layers.{layer}.mlp.{name}.weight"
            assert torch.equal(blocks.get_parameter(name), floats.get_parameter(name))


@pytest.mark.parametrize("why", ["half precision", "no kernels"])
def test_without_kernels_weights_are_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    file = save_gguf(tmp_path / "m.gguf")
    if why == "no kernels":
        monkeypatch.setattr(gguf_model, "unavailable", lambda: "no compiler")
    dtype = torch.bfloat16 if why == "half precision" else torch.float32
    model = load(file, blocks=True, dtype=dtype).model
    assert dict(in_blocks(model)) == {}
    assert model.dtype == dtype


def test_formats_that_only_transformers_reads(tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf", kinds=("Q2_K", "Q8_0"))
    expected = of_transformers(file).state_dict()
    model = load(file, blocks=True).model
    assert dict(in_blocks(model)) == {}
    assert all(torch.equal(each, expected[name]) for name, each in model.state_dict().items())


def test_formats_that_nobody_reads_are_named(tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf", kinds=("Q8_0",))
    content = bytearray(file.read_bytes())
    name = b"blk.1.ffn_up.weight"
    place = content.index(name) + len(name) + 4 + 16  # after the number of dimensions, and two
    content[place : place + 4] = (9).to_bytes(4, "little")  # Q8_1, which takes more than Q8_0
    place += 4
    (tmp_path / "n.gguf").write_bytes(content + bytes(1 << 20))
    with pytest.raises(ModelError, match="overlap"):
        load(tmp_path / "n.gguf")
    end = (len(content) + 31) // 32 * 32
    begin = end - int.from_bytes(content[place : place + 8], "little")  # moved to the end
    del begin
    start = _data_start(file)
    content[place : place + 8] = (end - start).to_bytes(8, "little")
    content += bytes(end - len(content)) + bytes(WIDTH * WIDTH // 32 * 40)
    (tmp_path / "n.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"holds blk\.1\.ffn_up\.weight as Q8_1, .*: use a file"):
        load(tmp_path / "n.gguf")


def _data_start(file: Path) -> int:
    from paceline.models.gguf_file import GgufFile

    return min(each.start for each in GgufFile(file).tensors.values())


@needs_library
def test_a_prepared_model_in_blocks(tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf", kinds=("Q8_0", "Q6_K", "F16"))
    model = load(file, blocks=True).model
    with torch.no_grad():
        before = model(IDS).logits
    done = prepare(model)
    assert done.weights == "blocks"
    assert done.linears == 15
    assert done.norms == 5
    assert done.grouped_attention
    with torch.no_grad():
        assert torch.allclose(model(IDS).logits, before, atol=1e-4)


@needs_library
def test_a_target_of_a_model_in_blocks(tmp_path: Path) -> None:
    file = save_gguf(tmp_path / "m.gguf", kinds=("Q8_0",))
    floats = open_target(load(file).model)
    blocks = open_target(load(file, blocks=True).model)
    assert blocks.describe().weights == "blocks"
    assert floats.vocab_size == blocks.vocab_size == VOCAB
    tokens = torch.tensor([[1, 5, 9]])
    assert torch.equal(floats.embed(tokens), blocks.embed(tokens))
    for wanted in (None, torch.tensor([4, 2, 60])):
        for one, other in zip(floats.output_head(wanted), blocks.output_head(wanted), strict=True):
            assert torch.equal(one, other)


LAYERS = 3  # of the default model; the others are like these


class FirstLayers(gguf.GGUFReader):
    """A file without the other layers."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        kept = tuple(f"blk.{number}." for number in range(LAYERS))
        self.tensors = [each for each in self.tensors if each.name.startswith((*kept, "t", "o"))]

    def _build_fields(self, *given: Any) -> int:
        self.data = self.data.view(np.ndarray)  # whose parts are made in less time than a file's
        built: int = super()._build_fields(*given)
        return built


@pytest.mark.model
def test_the_default_model_has_the_numbers_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_causal_lm(device="cpu", blocks=True).model
    found = dict(in_blocks(model))
    assert len(found) == 212
    found |= {name: each for name, each in model.named_parameters() if each.numel()}
    assert len(found.keys() | {"lm_head.weight"}) == 3 + 9 * 30
    monkeypatch.setattr(gguf, "GGUFReader", FirstLayers)
    model.config.num_hidden_layers = LAYERS
    expected: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(
        pull(DEFAULT_MODEL), gguf_file="model.gguf", config=model.config, dtype=torch.float32
    ).state_dict()
    assert len(expected) == 3 + 9 * LAYERS  # the head is the table
    for name in expected.keys() - {"lm_head.weight"}:
        assert torch.equal(found[name], expected[name]), name
