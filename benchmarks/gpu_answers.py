"""Let a model answer many prompts on a GPU, as data to train its drafters with.

`paceline train data` answers through the decoding loop, which looks at every text after every pass.
This script answers hundreds of prompts per pass with models of the Llama and Qwen2 families, as CUDA
graphs that choose the next tokens on the device, and writes the same kind of folder:

    python benchmarks/gpu_answers.py --model smollm2-135m --prompts A.jsonl.gz --licence MIT \\
        --prompts B.jsonl.gz --licence Apache-2.0 --out data

--rows prompts are answered at a time; of conversations the first --turns.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from common import options, run_script
from paceline.errors import UsageError
from paceline.kernels.cuda_graph import Repeated, on_device, recorder_for
from paceline.machine import describe_run
from paceline.models import load_causal_lm
from paceline.models.vocabulary import stop_ids
from paceline.prompts import PromptRecord
from paceline.targets.support import longest_context
from paceline.training.data import Manifest, load_manifest
from paceline.training.folder import held
from paceline.training.order import interleave, read_prompt_files
from paceline.training.precision import without_cudnn
from paceline.training.self_distillation import Answered, write_shard

_FAMILIES = ("llama", "qwen2")
_ELSEWHERE = {"prompts", "licence", "out", "device"}  # options that are not recorded as given
_GRAIN = 128  # slots that passes attend to grow by this many
_READ = 1 << 15  # prompt tokens read in a pass
_SHARD = 512  # conversations per shard
_LOOK = 16  # steps between looks at whether all texts have ended


class Answering:
    """Answers prompts with a model, `rows` at a time.

    ends: tokens that end a text. room: slots per row, prompt and answer. temperature: 0 is greedy.

    Raises UsageError for a model of another family than Llama and Qwen2.
    """

    def __init__(
        self, model: Any, ends: Collection[int], rows: int, room: int, temperature: float
    ) -> None:
        config, self.model = model.config, model
        if config.model_type not in _FAMILIES or getattr(config, "use_sliding_window", False):
            raise UsageError(
                f"a {config.model_type} model is none of {', '.join(_FAMILIES)} with attention to "
                "the whole text: use 'paceline train data'"
            )
        self.rows, self.room, self.temperature = rows, -(-room // _GRAIN) * _GRAIN, temperature
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.device, dtype = model.device, model.dtype
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, self.room, size)
        self.cache = torch.zeros(shape, dtype=dtype, device=self.device)
        self.token = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.length = torch.zeros_like(self.token)  # tokens before `token`
        self.live = torch.zeros(rows, dtype=torch.bool, device=self.device)
        self.every = torch.arange(rows, device=self.device)
        self.end_ids = frozenset(ends)
        self.ends = torch.tensor(list(ends), dtype=torch.int64, device=self.device)
        self.recorder = recorder_for(self.device)
        self.steps: dict[int, Repeated] = {}

    @torch.inference_mode()
    def answer(self, prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
        """At most `most` tokens after each prompt; the last one ends the text, unless cut off."""
        self.live.zero_()
        self.length.zero_()
        lengths = [len(prompt) for prompt in prompts]
        for first, last in _parts(lengths):
            self._read(first, prompts[first:last])
        found = torch.zeros(self.rows, most, dtype=torch.int64, device=self.device)
        written = torch.zeros_like(self.token)
        for step in range(most):
            found[:, step] = self.token
            written += self.live
            self.live &= ~torch.isin(self.token, self.ends)
            if step + 1 == most or (step % _LOOK == 0 and not bool(self.live.any())):
                break
            slots = -(-(max(lengths) + step + 1) // _GRAIN) * _GRAIN
            self._step(min(slots, self.room))
        texts, counts = found.tolist(), written.tolist()
        return [texts[row][: counts[row]] for row in range(len(prompts))]

    def _read(self, first: int, prompts: Sequence[Sequence[int]]) -> None:
        """Read prompts, padded at the end, into the rows from `first` on."""
        width, rows = max(map(len, prompts)), slice(first, first + len(prompts))
        padded = [[*prompt, *[0] * (width - len(prompt))] for prompt in prompts]
        tokens = torch.tensor(padded, device=self.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        places = torch.arange(width, device=self.device)[None]

        def attend(layer: int, query: Any, key: Any, value: Any) -> torch.Tensor:
            self.cache[layer, 0, rows, :, :width] = key
            self.cache[layer, 1, rows, :, :width] = value
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=self.groups > 1
            )

        states = self._forward(tokens, places, attend)
        self.token[rows] = self._choose(states[torch.arange(len(prompts)), lengths - 1])
        self.length[rows], self.live[rows] = lengths, True

    def _step(self, slots: int) -> None:
        """Read every row's token, and choose the next."""
        if slots not in self.steps:
            self.steps[slots] = Repeated(lambda: self._run(slots), self.recorder)
        chosen = self.steps[slots]()
        self.length += self.live
        self.token.copy_(chosen)

    def _run(self, slots: int) -> torch.Tensor:
        """The next tokens. Doing this twice is the same as once, as recording needs."""
        seen = torch.arange(slots, device=self.device) <= self.length[:, None]
        at = self.length.clamp(max=self.room - 1)

        def attend(layer: int, query: Any, key: Any, value: Any) -> torch.Tensor:
            for part, new in enumerate((key, value)):
                self.cache[layer, part, self.every, :, at] = new[:, :, 0]
            keys, values = self.cache[layer, :, :, :, :slots]
            # As rows of one head, heads that share keys read them once.
            grouped = query.unflatten(1, (-1, self.groups)).squeeze(3)
            found = F.scaled_dot_product_attention(
                grouped, keys, values, attn_mask=seen[:, None, None]
            )
            return found.flatten(1, 2)[:, :, None]

        states = self._forward(self.token[:, None], at[:, None], attend)
        return self._choose(states[:, 0])

    def _forward(self, tokens: torch.Tensor, places: torch.Tensor, attend: Any) -> torch.Tensor:
        """The last states [rows, n, hidden] of tokens [rows, n]."""
        body = self.model.model
        states = body.embed_tokens(tokens)
        turns = body.rotary_emb(states, places)
        for number, layer in enumerate(body.layers):
            own, rows = layer.self_attn, layer.input_layernorm(states)
            heads = [
                project(rows).unflatten(-1, (-1, own.head_dim)).transpose(1, 2)
                for project in (own.q_proj, own.k_proj, own.v_proj)
            ]
            query, key = apply_rotary_pos_emb(*heads[:2], *turns)
            mixed = attend(number, query, key, heads[2])
            states = states + own.o_proj(mixed.transpose(1, 2).flatten(2))
            states = states + layer.mlp(layer.post_attention_layernorm(states))
        last: torch.Tensor = body.norm(states)
        return last

    def _choose(self, states: torch.Tensor) -> torch.Tensor:
        logits = self.model.lm_head(states).float()
        if self.temperature:
            noise = torch.empty_like(logits).exponential_().log_()
            logits = logits / self.temperature - noise
        chosen: torch.Tensor = logits.argmax(dim=-1)
        return chosen


def _parts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive prompts that are read in one pass."""
    first = 0
    for last in range(1, len(lengths) + 1):
        whole = lengths[first : last + 1]
        if last == len(lengths) or max(whole) * len(whole) > _READ:
            yield first, last
            first = last


def answer(
    answering: Answering, given: Namespace, tokenizer: Any, records: Sequence[PromptRecord]
) -> list[Answered]:
    """Turn by turn, prompts of like lengths together."""

    def encoded(said: Any) -> list[int]:
        if isinstance(said, str):
            return list(tokenizer(said).input_ids)
        text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    template = tokenizer.chat_template
    every = active = [Answered(one, template, number) for number, one in enumerate(records)]
    total, begin = 0, perf_counter()
    while active:
        asked = sorted(((encoded(one.ask()), one) for one in active), key=lambda e: len(e[0]))
        for ids, one in asked:
            one.too_long = len(ids) > given.longest_prompt
        asked = [each for each in asked if not each[1].too_long]
        for first in range(0, len(asked), answering.rows):
            part = asked[first : first + answering.rows]
            with on_device(answering.device), without_cudnn(answering.device):
                found = answering.answer([ids for ids, _ in part], given.max_new_tokens)
            for (ids, one), tokens in zip(part, found, strict=True):
                reason = "eos" if tokens[-1] in answering.end_ids else "length"
                one.add(ids, tokens, reason, tokenizer.decode(tokens, skip_special_tokens=True))
            total += sum(map(len, found))
            print(f"{total} tokens, {total / (perf_counter() - begin):.0f} a second", flush=True)
        active = [one for one in active if not (one.too_long or one.ended)]
    return every


def main() -> None:
    """Check the options, and answer the prompts."""
    given = options(
        __doc__, model=str, prompts=list[Path], licence=list[str], out=Path, most_prompts=int | None,
        rows=512, max_new_tokens=256, longest_prompt=1024, turns=int | None, temperature=0.0, seed=0,
        device=str | None, dtype=str | None,
    )  # fmt: skip
    if not 0 <= given.temperature < inf:
        raise UsageError(f"the temperature must be at least 0, got {given.temperature}")
    with held(given.out):
        if load_manifest(given.out) is not None:
            raise UsageError(f"{given.out} holds data already: name another folder with --out")
        answer_all(given)


def answer_all(given: Namespace) -> None:
    """Answer all prompts, and write the folder."""
    files = read_prompt_files(given.prompts, given.licence)
    where = {"device": given.device, "dtype": given.dtype}
    model, tokenizer, fingerprint = load_causal_lm(given.model, **where)
    torch.manual_seed(given.seed)
    room = given.longest_prompt + given.max_new_tokens
    context = longest_context(model.config.get_text_config())
    if context is not None and room > context:
        raise UsageError(f"the model reads {context}, not {room}: reduce --longest-prompt or -n")
    ends = stop_ids(model, tokenizer)
    answering = Answering(model.eval(), ends, given.rows, room, given.temperature)
    asked = interleave(files, given.seed)[: given.most_prompts]
    records = [replace(each, turns=each.turns[: given.turns]) for each in asked]
    answered = answer(answering, given, tokenizer, records)
    run = {
        **{name: value for name, value in vars(given).items() if name not in _ELSEWHERE},
        "model": fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": "floats",
        "prompts": [file.as_json() for file in files],
    }
    manifest = Manifest(run, describe_run(model.device), 0)
    for number, first in enumerate(range(0, len(answered), _SHARD)):
        some = answered[first : first + _SHARD]
        manifest.shards.append(write_shard(given.out, number, some))
    manifest.wanted, manifest.complete = manifest.tokens, True
    manifest.save(given.out)


if __name__ == "__main__":
    run_script(main)
