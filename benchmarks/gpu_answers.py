"""Let a model answer many prompts on a GPU, as data to train its drafters with.

`paceline train data` answers through the decoding loop, which looks at every text after every pass.
This script answers hundreds of prompts per pass with models of the Llama and Qwen2 families, as CUDA
graphs that choose the next tokens on the device, and writes the same kind of folder:

    python benchmarks/gpu_answers.py --model smollm2-135m --prompts A.jsonl.gz --licence MIT \\
        --prompts B.jsonl.gz --licence Apache-2.0 --out data
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from paceline.errors import PacelineError, UsageError
from paceline.kernels.cuda_graph import Repeated, recorder_for
from paceline.machine import describe_run
from paceline.models import load_causal_lm
from paceline.prepared_models import stop_ids
from paceline.prompts import PromptRecord
from paceline.training.manifest import Manifest, Shard, load_manifest
from paceline.training.order import interleave, read_prompt_files
from paceline.training.shard import Answer, pack, write_file

_FAMILIES = ("llama", "qwen2")
_ELSEWHERE = {"prompts", "licence", "out", "device"}  # options that are not recorded as given
_GRAIN = 128  # slots that passes attend to grow by this many
_READ = 1 << 15  # prompt tokens read in a pass
_SHARD = 512  # conversations per shard
_LOOK = 16  # steps between looks at whether all texts have ended


@dataclass
class Conversation:
    """A prompt, what has been said, and the answers so far."""

    record: PromptRecord
    raw: bool  # the turns are one text to continue
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    skipped: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether there is another turn."""
        return not (self.skipped or self.raw) and len(self.answers) < len(self.record.turns)


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
        hidden = torch.zeros(seen.shape, device=self.device).masked_fill(~seen, -torch.inf)
        at = self.length.clamp(max=self.room - 1)

        def attend(layer: int, query: Any, key: Any, value: Any) -> torch.Tensor:
            for part, new in enumerate((key, value)):
                self.cache[layer, part, self.every, :, at] = new[:, :, 0]
            keys, values = self.cache[layer, :, :, :, :slots]
            # A batched product reads a head of keys once for all heads that share it.
            grouped = query.unflatten(1, (-1, self.groups)).squeeze(3) * query.shape[-1] ** -0.5
            scores = (grouped @ keys.transpose(-1, -2)).float() + hidden[:, None, None]
            found = scores.softmax(dim=-1).to(values) @ values
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
        return body.norm(states)

    def _choose(self, states: torch.Tensor) -> torch.Tensor:
        logits = self.model.lm_head(states).float()
        if self.temperature:
            noise = torch.empty_like(logits).exponential_().log_()
            logits = logits / self.temperature - noise
        return logits.argmax(dim=-1)


def _parts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive prompts that are read in one pass."""
    first = 0
    for last in range(1, len(lengths) + 1):
        whole = lengths[first : last + 1]
        if last == len(lengths) or max(whole) * len(whole) > _READ:
            yield first, last
            first = last


def _prompt(one: Conversation, tokenizer: Any) -> list[int]:
    """Token ids of the next turn, after all before it."""
    turns = one.record.turns
    if one.raw:
        return list(tokenizer("\n\n".join(turns)).input_ids)
    one.messages.append({"role": "user", "content": turns[len(one.answers)]})
    text = tokenizer.apply_chat_template(one.messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _take(one: Conversation, ids: list[int], tokens: list[int], over: bool, tokenizer: Any) -> None:
    record, several = one.record, len(one.record.turns) > 1 and not one.raw
    name = f"{record.id}#{len(one.answers) + 1}" if several else record.id
    reason = "eos" if over else "length"
    one.answers.append(
        Answer(name, record.task, record.licence, record.source, ids, tokens, reason)
    )
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    one.messages.append({"role": "assistant", "content": text})


def _answer(answering: Answering, given: Any, tokenizer: Any, active: list[Conversation]) -> None:
    """Turn by turn, prompts of like lengths together."""
    total, begin = 0, perf_counter()
    while active:
        asked = [(_prompt(one, tokenizer), one) for one in active]
        for ids, one in asked:
            one.skipped |= len(ids) > given.longest_prompt
        asked = sorted((each for each in asked if not each[1].skipped), key=lambda e: len(e[0]))
        for first in range(0, len(asked), answering.rows):
            part = asked[first : first + answering.rows]
            found = answering.answer([ids for ids, _ in part], given.max_new_tokens)
            for (ids, one), tokens in zip(part, found, strict=True):
                _take(one, ids, tokens, tokens[-1] in answering.end_ids, tokenizer)
            total += sum(map(len, found))
            print(f"{total} tokens, {total / (perf_counter() - begin):.0f} a second", flush=True)
        active = [one for one in active if one.goes_on]


def _save(folder: Path, manifest: Manifest, conversations: Sequence[Conversation]) -> None:
    for number, first in enumerate(range(0, len(conversations), _SHARD)):
        some = conversations[first : first + _SHARD]
        answers = [answer for one in some for answer in one.answers if answer.tokens]
        name, content = f"shard-{number:05d}.jsonl.gz", pack(answers)
        write_file(folder / name, content)
        tokens = sum(len(answer.tokens) for answer in answers)
        licences = Counter(answer.licence or "unknown" for answer in answers)
        counts = len(some), len(answers), tokens, sum(one.skipped for one in some)
        digest = hashlib.sha256(content).hexdigest()
        manifest.shards.append(Shard(name, digest, *counts, dict(sorted(licences.items()))))
    manifest.wanted, manifest.complete = manifest.tokens, True
    manifest.save(folder)


def main() -> None:
    """Answer the prompts, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, action="append", required=True)
    parser.add_argument("--licence", action="append", default=[])
    parser.add_argument("--most-prompts", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=512, help="prompts answered together")
    parser.add_argument("--max-new-tokens", "-n", type=int, default=256)
    parser.add_argument("--longest-prompt", type=int, default=1024)
    parser.add_argument("--turns", type=int, help="most of a conversation")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    given = parser.parse_args()
    if min(given.rows, given.max_new_tokens, given.longest_prompt) < 1:
        raise UsageError("rows, new tokens and the longest prompt must be at least 1")
    if load_manifest(given.out) is not None:
        raise UsageError(f"{given.out} holds data already: name another folder with --out")
    files = read_prompt_files(given.prompts, given.licence)
    model, tokenizer, fingerprint = load_causal_lm(
        given.model, device=given.device, dtype=given.dtype
    )
    torch.manual_seed(given.seed)
    room = given.longest_prompt + given.max_new_tokens
    answering = Answering(
        model.eval(), stop_ids(model, tokenizer), given.rows, room, given.temperature
    )
    whole, records = not tokenizer.chat_template, interleave(files, given.seed)
    cut = [replace(each, turns=each.turns[: given.turns]) for each in records]
    conversations = [Conversation(one, one.raw or whole) for one in cut[: given.most_prompts]]
    _answer(answering, given, tokenizer, conversations)
    given.out.mkdir(parents=True, exist_ok=True)
    run = {
        **{name: value for name, value in vars(given).items() if name not in _ELSEWHERE},
        "model": fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": "floats",
        "prompts": [file.as_json() for file in files],
    }
    _save(given.out, Manifest(run, describe_run(model.device), 0), conversations)


if __name__ == "__main__":
    try:
        main()
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
