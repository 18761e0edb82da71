"""Translate a call of transformers' `generate` into the core's terms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import EosTokenCriteria, GenerationConfig, MaxLengthCriteria, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from paceline.errors import UsageError
from paceline.generation import Generation
from paceline.integrations.rows import PromptRow, RowProcessor
from paceline.sampling import Sampler
from paceline.stopping import Stopping
from paceline.targets.support import check_supported

HEALING = "token_healing is not supported: heal the prompt first with model.heal_tokens"

# Arguments that `generate` prepares for every model; the loop provides its own.
_PREPARED = {
    "attention_mask",
    "cache",
    "cache_position",
    "logits_to_keep",
    "past_key_values",
    "position_ids",
    "use_cache",
}

# Methods of transformers that write other texts, and the options that choose them.
_OTHER_METHODS = {
    "constrained_beam_search": "constraints and force_words_ids",
    "contrastive_search": "penalty_alpha",
    "dola_generation": "dola_layers",
}


def check_request(
    model: PreTrainedModel, config: GenerationConfig, model_kwargs: dict[str, Any]
) -> None:
    """Raise UsageError for options of `generate` that are not supported, ModelError for a model
    that cannot be driven."""
    check_supported(model)
    if (config.num_beams or 1) > 1:
        raise UsageError(
            f"beam search (num_beams={config.num_beams}) is not supported: use num_beams=1"
        )
    prepares = getattr(model.prepare_inputs_for_generation, "__func__", None)
    if prepares is not type(model).prepare_inputs_for_generation:
        raise UsageError(
            "prepare_inputs_for_generation of this model was replaced, as PEFT does for prompt "
            "tuning and prefix tuning, and would not be called: use the model's own generate"
        )
    if config.token_healing:
        raise UsageError(HEALING)
    method = config.get_generation_mode().value
    if method in _OTHER_METHODS:
        raise UsageError(
            f"{method.replace('_', ' ')} is not supported: leave out {_OTHER_METHODS[method]}"
        )
    for flag in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(config, flag, False):
            raise UsageError(f"{flag}=True is not supported: leave it out")
    if config.cache_implementation == "quantized":  # the others write the same text
        raise UsageError(
            'cache_implementation="quantized" is not supported, and would write another text: '
            "leave it out, or use the model's own generate"
        )
    # "cache" since transformers 5.24.
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    # An empty one is the caller's, who wants it filled, or made by `generate` for any method.
    given = getattr(cache, "_is_user_defined", False)
    if cache is not None and (given or cache.get_seq_length() > 0):
        raise UsageError(
            "past_key_values are not supported, neither to continue from nor to be filled: leave "
            "them out, and pass the whole text as input_ids"
        )
    for name, value in model_kwargs.items():
        if name not in _PREPARED and _says_more(name, value):
            raise UsageError(f"model input {name!r} is not supported: pass token ids only")


def _says_more(name: str, value: Any) -> bool:
    """Whether a model input says more than the token ids. For a text without pictures `generate`
    passes a multimodal model no outputs of its encoders, and processors call every token text."""
    if name == "mm_encoder_outputs":
        return bool(value)
    if name == "mm_token_type_ids" and isinstance(value, torch.Tensor):
        return bool(value.any())
    return value is not None


def stopping_of(row: PromptRow, criteria: Sequence[Any]) -> Stopping:
    """What ends the text of a row: the criteria alone. `generate` has put the limit and the
    end-of-sequence ids of its configuration among them, unless the caller passed others."""
    limits, eos_ids, others = [], [], []
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            limits.append(criterion.max_length)
        elif type(criterion) is EosTokenCriteria:
            eos_ids += criterion.eos_token_id.flatten().tolist()
        else:
            others.append(criterion)
    conditions = [row.condition(others)] if others else []
    # Like all criteria, a limit is asked only after a token.
    padded_length = row.padding.shape[1] + row.prompt.shape[1]
    most = max(1, min(limits, default=sys.maxsize) - padded_length)
    return Stopping(most, eos_ids, conditions)


def sampler_of(
    row: PromptRow, config: GenerationConfig, processors: Sequence[Callable[..., Any]], seed: int
) -> Sampler:
    """The sampler of a row."""
    # Temperature, top-k and the like are already among the processors, in transformers' order.
    return Sampler(
        # Rows may repeat a prompt: each gets its own noise.
        seed=seed + (row.index << 64),
        temperature=1.0 if config.do_sample else 0.0,
        processors=tuple(RowProcessor(row, processor) for processor in processors),
    )


def packed(
    input_ids: torch.Tensor, generations: Sequence[Generation], config: GenerationConfig
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Prompts and outputs as `generate` returns them: int64 [rows, longest], padded at the end."""
    pad = getattr(config, "_pad_token_tensor", None)
    fill = int(pad) if pad is not None else 0
    texts = [torch.tensor(text.output, dtype=torch.int64, device="cpu") for text in generations]
    outputs = pad_sequence(texts, batch_first=True, padding_value=fill)
    sequences = torch.cat([input_ids.long(), outputs.to(input_ids.device)], dim=1)
    if config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)
    return sequences
