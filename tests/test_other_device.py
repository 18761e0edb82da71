"""Decoding and training on a device that is not the CPU: nothing mixes the two."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from safetensors.torch import load_file

import paceline
from paceline.drafters import make_drafter
from paceline.drafters.host import Host
from paceline.kernels import cuda_graph
from paceline.sampling import GREEDY, Sampler
from paceline.targets.causal_lm import CausalLMTarget
from paceline.training.methods import TRAINED
from tests.cpu_recorder import Refuses
from tests.forked import untouched_process
from tests.head_parts import saved_chimera, saved_eagle, saved_medusa
from tests.helpers import generate
from tests.other_device import other_device
from tests.prompt_parts import TOY, saved_parts
from tests.tiny_models import VOCAB, new_model, some_prompt
from tests.training.methods_training import OPTIONS, train
from tests.training.methods_training import VOCAB as WORDS
from tests.training.shared import make_data

HIDDEN, LENGTH = 32, 6
MODEL_FREE = ["plain", "anpd", "lookahead", "jacobi"]  # others look up tokens as anpd does
PARTS = {"medusa": saved_medusa, "chimera": saved_chimera, "eagle": saved_eagle}


@pytest.fixture
def device() -> Iterator[str]:
    with other_device() as name:
        yield name


def with_parts(method: str) -> str:
    """The method with random parts for the small model, if it needs any."""
    if method == "ppd":
        return f"ppd:parts={saved_parts(hidden=HIDDEN, vocab=VOCAB)},size=6"
    if method not in PARTS:
        return method
    taps = {"layers": (1, 2, 3)} if method == "eagle" else {}
    return f"{method}:parts={PARTS[method](HIDDEN, VOCAB, **taps)}"


def text(target: CausalLMTarget, method: str, sampler: Sampler = GREEDY) -> list[int]:
    drafter = make_drafter(with_parts(method), Host(target, TOY))
    return generate(target, drafter, some_prompt(20), LENGTH, sampler=sampler, budget=6)[0]


@pytest.fixture(scope="module")
def of_the_cpu() -> list[int]:
    return text(CausalLMTarget(new_model("llama"), check=False), "plain")


def test_devices_must_not_be_mixed(device: str) -> None:
    here = torch.ones(3, device=device)
    assert (here + torch.tensor(2.0)).tolist() == [3, 3, 3]
    assert here[torch.tensor([0, 2])].device == torch.device(device)
    with pytest.raises(RuntimeError, match="tensors on elsewhere:0 and on the CPU"):
        here + torch.ones(3)
    with pytest.raises(TypeError, match="numpy"):
        here.numpy()


@pytest.mark.parametrize("method", [*MODEL_FREE, *PARTS, "ppd"])
def test_methods_write_the_text_of_the_cpu(device: str, method: str, of_the_cpu: list[int]) -> None:
    assert text(CausalLMTarget(new_model("llama").to(device), check=False), method) == of_the_cpu


def test_draws_are_those_of_the_cpu(device: str) -> None:
    drawn = Sampler(seed=3, temperature=0.8, top_p=0.9)
    expected = text(CausalLMTarget(new_model("llama"), check=False), "plain", drawn)
    target = CausalLMTarget(new_model("llama").to(device), check=False)
    assert text(target, "auto", drawn) == text(target, "eagle", drawn) == expected


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_recorded_drafts_stay_there(
    device: str, method: str, of_the_cpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, except that recording fails, so that the same work is done each time."""
    monkeypatch.setattr(cuda_graph, "recorder_for", lambda device: Refuses())
    target = CausalLMTarget(new_model("llama").to(device), check=False)
    assert text(target, method) == of_the_cpu


def test_a_model_of_transformers(device: str) -> None:
    ids, given = torch.tensor([some_prompt(20)]), {"max_new_tokens": LENGTH, "do_sample": False}
    expected = paceline.accelerate(new_model("llama"), "plain").generate(ids, **given)
    fast = paceline.accelerate(new_model("llama").to(device), "auto")
    assert torch.equal(fast.generate(ids.to(device), **given).cpu(), expected)


def moved(given: Any, device: torch.device) -> Any:
    """Tensors in arguments, on a device."""
    if isinstance(given, torch.Tensor):
        return given.to(device)
    if isinstance(given, dict):
        return {name: moved(each, device) for name, each in given.items()}
    return tuple(moved(each, device) for each in given) if isinstance(given, tuple) else given


def place_of(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device


def spread(model: Any, elsewhere: list[str], device: str) -> Any:
    """As `device_map` spreads it: what modules are given follows them, and logits go back to where
    the inputs were."""
    for name in elsewhere:
        model.get_submodule(name).to(device)
    body = model.model
    places = {each: place_of(each) for each in (body.embed_tokens, *body.layers, body.norm)}
    places |= {model.lm_head: place_of(model.lm_head), body.rotary_emb: place_of(body.layers[0])}

    def follow(module: Any, args: Any, given: Any) -> Any:
        return moved(args, places[module]), moved(given, places[module])

    def back(model: Any, given: Any, output: Any) -> Any:
        output.logits = output.logits.to(place_of(body.embed_tokens))
        return output

    for module in places:
        module.register_forward_pre_hook(follow, with_kwargs=True)
    model.register_forward_hook(back)
    return model


@pytest.mark.parametrize(
    "elsewhere",
    [
        ["model.embed_tokens", "model.layers", "model.rotary_emb"],
        ["model.norm", "lm_head"],
        ["model.layers", "model.rotary_emb", "model.norm"],
    ],
)
def test_a_model_spread_over_devices(
    device: str, elsewhere: list[str], of_the_cpu: list[int]
) -> None:
    target = CausalLMTarget(spread(new_model("llama"), elsewhere, device))
    for method in ("anpd", *PARTS, "ppd"):
        assert text(target, method) == of_the_cpu, method
        target.forget()


@pytest.mark.parametrize("far", ["lm_head", "model.embed_tokens", "model.layers"])
def test_weights_that_wait_on_disk(far: str, of_the_cpu: list[int], tmp_path: Path) -> None:
    names = "model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"
    places = {name: "disk" if name == far else "cpu" for name in names}
    model = dispatch_model(new_model("llama"), places, main_device="cpu", offload_dir=tmp_path)
    target = CausalLMTarget(model)
    for method in (*PARTS, "ppd"):
        assert text(target, method) == of_the_cpu, method
        target.forget()


def options(method: str) -> dict[str, Any]:
    # In the other device's precision: some processors would choose bfloat16.
    alike = {"precision": "float32", "save_dtype": "float32"}
    return {**OPTIONS[method], **alike, "steps": 3, "checkpoint_every": 2}


def train_all(data: Path, root: Path) -> None:
    """Train every method on the other device."""
    with other_device() as device:
        for method in TRAINED:
            model = new_model("llama", vocab_size=WORDS).to(device)
            train(
                data, root / method, method, root / f"{method}-read", model=model, **options(method)
            )


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data, and a folder with all trainings. A process of their own makes them: torch sees no
    devices for gradients that are made after the first of all gradients."""
    root = tmp_path_factory.mktemp("elsewhere")
    data = make_data(root)
    with ProcessPoolExecutor(1, untouched_process()) as process:
        process.submit(train_all, data, root).result()
    return data, root


@pytest.mark.parametrize("method", TRAINED)
def test_training_is_that_of_the_cpu(
    elsewhere: tuple[Path, Path], method: str, tmp_path: Path
) -> None:
    data, root = elsewhere
    expected = train(data, tmp_path / "cpu", method, tmp_path / "read", **options(method))
    found = load_file(root / method / "model.safetensors")
    for name, tensor in expected.tensors.items():
        # Where a gradient is nearly zero, a last bit of what was read may turn a step around.
        differences = (found[name] - tensor).abs().float()
        assert differences.quantile(0.99) < 2e-3 and differences.max() < 1e-2, name
