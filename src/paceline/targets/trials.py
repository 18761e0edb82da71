"""Whether a model can be driven, and whether preparing it has changed its scores, by trial."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import TYPE_CHECKING

import torch

from paceline.errors import ModelError
from paceline.kernels.autocast import autocast_dtype
from paceline.kernels.token_table import device_of_inputs
from paceline.protocols import Target
from paceline.records import Path
from paceline.targets.weights import is_quantised, is_rough
from paceline.tree import Tree

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Largest difference between the logits of a tree pass and those of the model's own forward that
# rounding can explain, relative to the spread of a row's logits.
_EXACT = 1e-4
_QUANTISED = 0.9  # catches blunders only: on random text a flipped rounding step has large effects
_ROUGH = {torch.float16: 1.5e-2, torch.bfloat16: 8e-2}
# In large models, one changed context token moves a row by at least 0.15, typically by 0.4.
# Rounding in 8-bit products moves it by 0.02 to 0.1, or further in a model that amplifies small
# errors on such text, as Gemma 3 does.
_CLOSE = 0.12
_TRIALS, _COUNTS = 7, 3
"""In rough arithmetic, the third smallest of a row's differences in up to 7 trials counts."""

# Largest error of a prepared model's scores in a trial pass, relative to their spread, that
# rounding explains. Quantised weights are only guarded against blunders, by `_QUANTISED`.
_PREPARED = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 3e-2}
_TRIAL_TOKENS = 12
_one_trial = RLock()


@torch.no_grad()
def self_check(target: Target, model: PreTrainedModel) -> None:
    """Let `target`, which drives `model`, score a small branching tree, commit a path across it
    and score again; compare every row with the model's own forward, without cache or mask.

    Raises ModelError if they differ by more than rounding, if the model fails, or if its own scores
    are NaN or infinite.
    """
    tolerance = _tolerance(model)
    # Rough arithmetic may move single rows, for example by another choice of expert. An error hits
    # the same rows every time, so several trials tell the two apart.
    trials, counts = (1, 1) if tolerance == _EXACT else (_TRIALS, _COUNTS)
    seen: list[torch.Tensor] = []
    try:
        while len(seen) < trials and not _settled(seen, counts, tolerance):
            seen.append(_gaps(target, model, first=7 + 5 * len(seen)))
    except ModelError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        # With fullgraph=True, or in CUDA graphs, a forward takes few kinds of passes.
        compiled = _is_compiled(model)
        advice = "load it again without torch.compile" if compiled else "choose another model"
        raise ModelError(
            f"{type(model).__name__} cannot be driven with a tree mask and explicit positions "
            f"({type(error).__name__}: {reason}): {advice}"
        ) from error
    gaps = torch.stack(seen)
    shown = gaps.kthvalue(min(counts, len(seen)), dim=0).values
    gap = math.nan if bool(gaps.isnan().any()) else float(shown.max())  # NaN is never rounding
    if math.isnan(gap) or not _settled(seen, counts, tolerance):
        attention = model.config._attn_implementation
        advice = "choose" if attention == "eager" else 'try attn_implementation="eager", or'
        raise ModelError(
            f"a tree pass of {type(model).__name__} with {attention} attention differs from its "
            f"plain forward by {gap:.1%}, more than rounding explains: {advice} another model"
        )


def _settled(seen: list[torch.Tensor], counts: int, tolerance: float) -> bool:
    """Whether the check has passed: every row was close enough in `counts` trials or, for a
    quantised model, closer in the last trial than an error allows."""
    if tolerance == _QUANTISED and seen and bool((seen[-1] <= _CLOSE).all()):
        return True
    if len(seen) < counts:
        return False
    return bool(((torch.stack(seen) <= tolerance).sum(dim=0) >= counts).all())


def _gaps(target: Target, model: PreTrainedModel, first: int) -> torch.Tensor:
    """Distances [rows] of the target's rows from the model's own, relative to their spread."""
    ids = [(first + 31 * step) % target.vocab_size for step in range(12)]
    prompt, tree, next_root = ids[:5], Tree(tuple(ids[5:9]), (-1, -1, 0, 1)), ids[9]
    slot = target.open(prompt)
    try:
        branching = target.score({slot: tree})[slot]
        target.commit({slot: Path((1, 3), (ids[6], ids[8], next_root))})
        chained = target.score({slot: Tree.chain(ids[10:12])})[slot]
    finally:
        target.close(slot)
        target.forget()  # or the next trial would read what a failed one has left
    texts = [
        [*prompt, ids[5], ids[7], *[next_root] * 4],
        [*prompt, ids[6], ids[8], next_root, *ids[10:12], 0],
    ]
    rows = torch.cat([branching, chained]).float()
    plain = _plain(model, torch.tensor(texts, device=rows.device))
    expected = torch.stack(
        [plain[0, 4], plain[0, 5], plain[1, 5], plain[0, 6], plain[1, 6], *plain[1, 7:10]]
    ).to(rows.device)
    _check_numbers(model, torch.cat([expected, rows]))
    error, spread = differences(rows, expected)
    return error / spread.clamp(min=1e-6)


def _check_numbers(model: PreTrainedModel, scores: torch.Tensor) -> None:
    """Raises ModelError if scores of a model's own forward are NaN or infinite: another way to run
    it would not help. A token that is never generated may have -inf."""
    if not bool((scores.isnan() | scores.isposinf()).any()):
        return
    dtype = str(model.dtype).removeprefix("torch.")
    instead = "" if model.dtype == torch.float32 else ", or load it with dtype float32"
    raise ModelError(
        f"the scores of {type(model).__name__} are NaN or infinite, so its weights are damaged or "
        f"too large for {dtype}: download or convert them again{instead}"
    )


def differences(found: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distances [rows] between rows of scores [rows, vocabulary] and those expected, and
    the spreads [rows] of the expected ones.

    Both ignore tokens that a model never generates, with score -inf; if the two disagree about
    these, the distance is infinite.
    """
    never = expected == -torch.inf
    error = (found - expected).masked_fill(never & (found == -torch.inf), 0)
    said = expected.masked_fill(never, 0)
    mean = said.sum(-1, keepdim=True) / (~never).sum(-1, keepdim=True)
    return error.norm(dim=-1), (said - mean).masked_fill(never, 0).norm(dim=-1)


def _tolerance(model: PreTrainedModel) -> float:
    if is_quantised(model):
        return _QUANTISED  # a last bit may decide which step a value is rounded to
    kinds = _rounded_to(model)
    if model.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        kinds.add(torch.float16)  # products may use TF32, with as many mantissa bits
    return max(_ROUGH.get(kind, _EXACT) for kind in kinds)


def _rounded_to(model: PreTrainedModel) -> set[torch.dtype]:
    """What numbers of a pass are rounded to."""
    if is_rough(model):
        return {torch.bfloat16}
    return {model.dtype, autocast_dtype(model) or model.dtype}


@contextmanager
def narrow_windows(config: PreTrainedConfig) -> Iterator[None]:
    """Let every sliding layer see 4 tokens, so that a trial of 12 shows which layers slide.

    Only in this thread: in others the user's model may be generating.
    """
    window = getattr(config, "sliding_window", None)
    if window is None:
        yield
        return
    here = get_ident()
    seen = property(lambda _: min(window, 4) if get_ident() == here else window)
    with _one_trial:  # another's would restore the class of this one
        kind = type(config)
        config.__class__ = type(kind.__name__, (kind,), {"sliding_window": seen})
        try:
            yield
        finally:
            config.__class__ = kind


@torch.no_grad()
def reads_embeddings(model: PreTrainedModel) -> bool:
    """Whether a model's scores follow from any embeddings alone. Layers of Gemma 3n and 4 look up
    ids, too."""
    table, config = model.get_input_embeddings(), model.config.get_text_config()
    if getattr(config, "hidden_size_per_layer_input", 0):
        return False  # Gemma 4 finds ids by their embeddings, in gigabytes of memory
    size = config.vocab_size
    ids = (7 + 31 * torch.arange(_TRIAL_TOKENS, device=device_of_inputs(model))[None]) % size
    try:
        model(inputs_embeds=table(ids) / 2, use_cache=False)  # of no tokens
        found = model(inputs_embeds=table(ids), use_cache=False, return_dict=True).logits[0]
    except torch.OutOfMemoryError:
        raise
    except Exception:  # what a model may raise is not known
        return False
    error, spread = differences(found.float(), _plain(model, ids)[0])
    return bool((error <= _tolerance(model) * spread).all())


def trial(model: PreTrainedModel) -> torch.Tensor:
    """Scores [tokens, vocabulary] of a short text."""
    size = model.config.get_text_config().vocab_size
    ids = [(7 + 31 * step) % size for step in range(_TRIAL_TOKENS)]
    return _plain(model, torch.tensor([ids], device=model.device))[0]


def _plain(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Scores [texts, tokens, vocabulary] of ids [texts, tokens] by the model's own forward."""
    logits: torch.Tensor = model(ids, use_cache=False, return_dict=True).logits
    return logits.float()


def compare(model: PreTrainedModel, before: torch.Tensor, weights: str, quantised: bool) -> None:
    """Raises ModelError if a prepared model does not reproduce `before`, the original's trial, or
    if that is NaN or infinite.

    weights: what it runs on, for the message. quantised: whether these have few bits.
    """
    _check_numbers(model, before)
    native = 'load it with weights="native"'
    try:
        after = trial(model)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot run with {weights} weights ({error}): {native}"
        ) from error
    found, spread = differences(after, before)
    gap = float(found.norm() / spread.norm().clamp(min=1e-6))
    kinds = _rounded_to(model)
    limit = _QUANTISED if quantised else max(_PREPARED.get(kind, 1e-3) for kind in kinds)
    if not gap <= limit:
        raise ModelError(
            f"the scores of {type(model).__name__} differ by {gap:.1%} with {weights} weights: "
            f"{native}"
        )


def _is_compiled(model: PreTrainedModel) -> bool:
    """Whether torch.compile has replaced a forward: `module.compile()` has, or the caller."""
    return any(
        each._compiled_call_impl is not None or hasattr(each.forward, "_torchdynamo_orig_callable")
        for each in model.modules()
    )
