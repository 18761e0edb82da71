"""States that are kept: read once, whole or not at all, and never another model's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import ARCHITECTURES, VOCAB, new_model
from tests.training.test_windows import SHAPE, TEXTS, Counting

from paceline.errors import ModelError, UsageError
from paceline.targets.causal_lm import CausalLMTarget
from paceline.training import reading, state_cache
from paceline.training.dataset import Text
from paceline.training.folder import held
from paceline.training.reading import TargetReader
from paceline.training.state_cache import StateCache, StateShape

LLAMA = StateShape("toy", 32)


def test_texts_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_cache, "_SHARD_TOKENS", 30)
    reader = Counting(SHAPE)
    cache = StateCache(tmp_path, SHAPE)
    tokens = sum(len(text.tokens) - text.begin for text in TEXTS[:3])
    assert cache.fill([*TEXTS[:3], TEXTS[0]], lambda _: reader) == tokens
    assert cache.fill(TEXTS[:3], lambda _: reader) == 0
    # Another process, and more texts.
    again = StateCache(tmp_path, SHAPE)
    heard: list[tuple[int, int]] = []
    assert again.fill(TEXTS, lambda _: reader, lambda *pair: heard.append(pair)) > 0
    assert sorted(reader.read_texts) == sorted(text.id for text in TEXTS)
    assert heard[-1][0] == heard[-1][1]
    for text in TEXTS:
        kept = again.get(text)
        assert kept.greedy.tolist() == [token + 1 for token in text.tokens[text.begin :]]
        states = torch.from_numpy(kept.states.copy()).view(torch.float16)
        assert states[:, 1, 3].tolist() == [token % 1000 for token in text.tokens[text.begin :]]
    size = sum(path.stat().st_size for path in tmp_path.glob("shard-*"))
    assert again.bytes == size == sum(len(t.tokens) - t.begin for t in TEXTS) * SHAPE.token_bytes


def test_a_damaged_shard_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_cache, "_SHARD_TOKENS", 30)
    StateCache(tmp_path, SHAPE).fill(TEXTS, Counting)
    whole = {path.name: path.read_bytes() for path in tmp_path.glob("shard-*.states")}
    name = sorted(whole)[1]
    content = whole[name]
    for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), None):
        path = tmp_path / name
        path.unlink() if damaged is None else path.write_bytes(damaged)
        reader, cache = Counting(SHAPE), StateCache(tmp_path, SHAPE)
        cache.fill(TEXTS, lambda _: reader)  # noqa: B023
        assert 0 < len(reader.read_texts) < len(TEXTS)
        assert {p.name: p.read_bytes() for p in tmp_path.glob("shard-*.states")} == whole


@pytest.mark.parametrize("fails", ["read", "write"])
def test_what_was_read_before_an_error_stays(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_cache, "_SHARD_TOKENS", 1)  # a shard per text
    bad, write = TEXTS[-1].tokens[TEXTS[-1].begin :], state_cache.write_file

    class Failing(Counting):
        def read(self, texts: list[Text]) -> list[tuple[torch.Tensor, torch.Tensor]]:
            if fails == "read" and texts == [TEXTS[-1]]:
                raise UsageError("the disk is full")
            return super().read(texts)

    def written(path: Path, content: bytes) -> None:
        if fails == "write" and path.suffix == ".greedy" and len(content) == 4 * len(bad):
            raise UsageError("the disk is full")
        write(path, content)

    monkeypatch.setattr(state_cache, "write_file", written)
    others = [each for each in TEXTS[:-1] if len(each.tokens) - each.begin != len(bad)]
    assert len(others) > 2
    with pytest.raises(UsageError, match="the disk is full"):
        StateCache(tmp_path, SHAPE).fill([*others, TEXTS[-1]], Failing)
    monkeypatch.setattr(state_cache, "write_file", write)
    reader = Counting(SHAPE)
    StateCache(tmp_path, SHAPE).fill([*others, TEXTS[-1]], lambda _: reader)
    assert reader.read_texts == [TEXTS[-1].id]


def test_what_holds_more_layers_serves_those_who_want_fewer(tmp_path: Path) -> None:
    most = replace(SHAPE, taps=(1, 2, 4))
    StateCache(tmp_path, most).fill(TEXTS[:3], Counting)
    opened: list[StateShape] = []

    def reader(shape: StateShape) -> Counting:
        opened.append(shape)
        return Counting(shape)

    for taps in ((), (4,), (1, 4)):
        cache = StateCache(tmp_path, replace(SHAPE, taps=taps))
        cache.fill(TEXTS, reader)
        for text in (TEXTS[0], TEXTS[-1]):
            states = torch.from_numpy(cache.get(text).states.copy()).view(torch.float16)
            assert states[:, :-1, 0].tolist() == [list(taps)] * len(states)
            assert states[:, -1, 0].tolist() == [t % 1000 for t in text.tokens[text.begin :]]
    assert opened == [most]  # the first filled up what the folder holds for all
    with pytest.raises(UsageError, match="another taps"):
        StateCache(tmp_path, replace(SHAPE, taps=(3,))).fill(TEXTS, Counting)


def test_an_index_of_an_earlier_version_is_used(tmp_path: Path) -> None:
    StateCache(tmp_path, SHAPE).fill(TEXTS, Counting)
    index = json.loads((tmp_path / "cache.json").read_text())
    del index["sha256"]
    (tmp_path / "cache.json").write_text(json.dumps(index))
    assert StateCache(tmp_path, SHAPE).fill(TEXTS, Counting) == 0


def test_a_cache_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    StateCache(tmp_path, SHAPE).fill(TEXTS, Counting)
    with pytest.raises(UsageError, match=r"holds hidden states with another base \('toy', not 'b'"):
        StateCache(tmp_path, replace(SHAPE, base="b")).fill(TEXTS, Counting)
    index = tmp_path / "cache.json"
    first = json.loads(index.read_text())["shards"][0]["texts"][0]
    # With a wrong number of tokens, the texts after the first would get others' states.
    wrong = index.read_text().replace(json.dumps(first), json.dumps([first[0], first[1] + 1]))
    assert wrong != index.read_text()
    nameless = json.loads(index.read_text())  # as an earlier version wrote it, without a hash
    del nameless["sha256"], nameless["shards"][0]["name"]
    for damaged in (wrong, "{", "3", "[]", json.dumps(nameless)):
        index.write_text(damaged)
        with pytest.raises(UsageError, match=r"cache.json is damaged: delete the folder"):
            StateCache(tmp_path, SHAPE).fill(TEXTS, Counting)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot use the cache"):
        StateCache(tmp_path / "file" / "cache", SHAPE)


def test_no_more_is_kept_than_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"5 texts take .* name a folder on another disk"):
        StateCache(tmp_path, SHAPE, most_bytes=100).fill(TEXTS, Counting)
    assert json.loads((tmp_path / "cache.json").read_text())["shards"] == []
    StateCache(tmp_path, SHAPE, most_bytes=10_000).fill(TEXTS, Counting)


def some_texts() -> list[Text]:
    noise = torch.Generator().manual_seed(3)
    return [
        Text(str(i), tuple(torch.randint(VOCAB, (n,), generator=noise).tolist()), 5, 2, i > 0)
        for i, n in enumerate((9, 33, 17, 50))
    ]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", "gpt2", "mistral"])
@pytest.mark.parametrize(("taps", "padded"), [((), False), ((1, 3), False), ((1, 2), True)])
@torch.no_grad()
def test_the_reader_gives_the_models_states(
    architecture: str, taps: tuple[int, ...], padded: bool
) -> None:
    texts = some_texts()
    outputs = [
        new_model(architecture)(torch.tensor([text.tokens]), output_hidden_states=True)
        for text in texts
    ]
    caught = new_model(architecture)
    last: list[torch.Tensor] = []
    caught.get_decoder().register_forward_hook(lambda *call: last.append(call[2][0]))
    shape = replace(LLAMA, taps=taps)
    reader = TargetReader(new_model(architecture), shape, padded)
    for text, output, (states, greedy) in zip(texts, outputs, reader.read(texts)):
        assert states.shape == (len(text.tokens) - 2, len(taps) + 1, 32)
        caught(torch.tensor([text.tokens]))
        close(states[:, -1], last[-1][0, 2:])
        for place, tap in enumerate(taps[:1]):
            close(states[:, place], output.hidden_states[tap][0, 2:])
        assert torch.equal(greedy.long(), output.logits[0, 2:].argmax(dim=-1))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected, atol=5e-3, rtol=5e-3)


def test_a_texts_states_depend_on_nothing_else() -> None:
    reader, texts = TargetReader(new_model("llama"), LLAMA), some_texts()
    together = reader.read(texts)
    orders: list[Sequence[Text]] = [texts[:1], texts[::-1], texts[1:3]]
    for some in orders:
        for text, (states, greedy) in zip(some, reader.read(some)):
            expected = together[texts.index(text)]
            assert torch.equal(states, expected[0]) and torch.equal(greedy, expected[1])


@pytest.mark.parametrize("padded", [False, True])
def test_a_head_that_is_more_than_a_matrix_is_refused(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads what another layer makes of the last states."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")},
    }
    monkeypatch.setitem(ARCHITECTURES, "modernbert", ("ModernBertDecoder", settings))
    with pytest.raises(ModelError, match="head of ModernBertDecoderForCausalLM does not read its"):
        TargetReader(new_model("modernbert"), LLAMA, padded)


@pytest.mark.parametrize("architecture", ["gemma2", "cohere", "gpt_neox", "phi"])
def test_a_head_whose_scores_are_changed_afterwards_is_not_refused(architecture: str) -> None:
    model = new_model(architecture, "eager")
    for padded in (False, True):
        TargetReader(model, LLAMA, padded)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_a_long_text_is_read_in_parts(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over all of it would need memory for the square of its length."""
    text, shape = some_texts()[-1], replace(LLAMA, taps=(1,))
    ((whole, greedy),) = TargetReader(new_model(architecture), shape, False).read([text])
    reader, passes = TargetReader(new_model(architecture), shape, False), list[int]()
    score = CausalLMTarget.score

    def noted(self: CausalLMTarget, trees: Any, prefill: Any) -> Any:
        passes.append(max(min(most, self.pending(slot)) for slot, most in prefill.items()))
        return score(self, trees, prefill)

    monkeypatch.setattr(reading._Packed, "tokens", 16)
    monkeypatch.setattr(CausalLMTarget, "score", noted)
    ((parts, likeliest),) = reader.read([text])
    assert passes == [16, 16, 16, 2]
    close(parts, whole.float())
    assert torch.equal(likeliest, greedy)


def test_an_answer_without_noise_says_what_is_likeliest() -> None:
    model = new_model("llama")
    start = list(some_texts()[1].tokens[:6])
    tokens = model.generate(torch.tensor([start]), max_new_tokens=8, do_sample=False)[0].tolist()
    text = Text("a", tuple(tokens), 5, 2, True)
    reader = TargetReader(new_model("llama"), LLAMA)
    (one,), (other,) = reader.read([text]), reader.read([replace(text, certain=True)])
    assert torch.equal(one[1], other[1])


def test_what_is_complete_is_used_while_others_read(tmp_path: Path) -> None:
    StateCache(tmp_path, SHAPE).fill(TEXTS, Counting)
    with held(tmp_path):
        cache = StateCache(tmp_path, SHAPE)
        assert cache.fill(TEXTS[:2], Counting) == 0
        assert len(cache.get(TEXTS[1]).greedy)
        other = replace(TEXTS[0], tokens=TEXTS[0].tokens[::-1])
        with pytest.raises(UsageError, match="another process"):
            cache.fill([other], Counting)


def test_few_shards_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_cache, "_SHARD_TOKENS", 1)
    monkeypatch.setattr(state_cache, "_MOST_OPEN", 2)
    cache = StateCache(tmp_path, SHAPE)
    cache.fill(TEXTS, Counting)
    first = [cache.get(text).greedy.tolist() for text in TEXTS]
    assert len(first) > 2 and cache._opened.cache_info().currsize == 2
    assert [cache.get(text).greedy.tolist() for text in TEXTS] == first
