"""Files are not trusted: whatever is in them, they are read or refused, at once and in one sentence."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import encoded, save_gguf

from paceline.errors import ModelError
from paceline.models.gguf_file import GgufFile
from paceline.models.gguf_header import GgufArray

KINDS = ("F32", "F16", "Q4_0", "Q8_0", "Q6_K")


def save_small(path: Path, seed: int = 0, alignment: int = 32) -> Path:
    """A file of everything a header can hold, and a few tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(3)
    writer.add_rope_freq_base(1e4)
    writer.add_bool("a.flag", True)
    writer.add_int64("a.far", -(1 << 40))
    writer.add_float64("a.fine", 0.1)
    writer.add_string("a.text", "süß")
    writer.add_token_list(["a", "bc", "dé", ""])
    writer.add_token_scores([0.5, 1.5, 2.5, 3.5])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.nested", [["x"], ["y", "z"]])
    rng = np.random.default_rng(seed)
    for number, kind in enumerate(KINDS):
        shape = (1 + number % 2, 256)
        values = encoded(shape, kind, rng)
        writer.add_tensor(f"t{number}", values, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.add_tensor("flat", np.arange(7, dtype=np.float32))
    writer.add_tensor("deep", np.zeros((2, 3, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_a_file_is_read_as_it_was_written(tmp_path: Path, alignment: int) -> None:
    path = save_small(tmp_path / "m.gguf", alignment=alignment)
    file, expected = GgufFile(path), gguf.GGUFReader(path)
    assert file.architecture == "llama"
    assert file.metadata["a.text"] == "süß"
    assert file.metadata["a.flag"] is True
    assert file.integer("a.far") == -(1 << 40)
    assert file.metadata["a.fine"] == 0.1
    assert file.integer("a.text") is None
    assert file.strings("tokenizer.ggml.tokens") == ["a", "bc", "dé", ""]
    assert file.strings("a.numbers") == file.strings("nowhere") == []
    nested = file.metadata["a.nested"]
    assert isinstance(nested, GgufArray)
    assert nested.count == 2
    assert len(file.tensors) == len(expected.tensors)
    for tensor in expected.tensors:
        found = file.tensors[tensor.name]
        assert found.type == tensor.tensor_type.name
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
        assert found.elements == tensor.n_elements
        assert file.data(found).numpy().tobytes() == tensor.data.tobytes()


@pytest.mark.parametrize("alignment", [32, 4096])
def test_a_header_alone_says_the_same_of_all_but_the_vocabulary(
    tmp_path: Path, alignment: int
) -> None:
    file = GgufFile(save_small(tmp_path / "m.gguf", alignment=alignment))
    file.write_header(tmp_path / "brief.gguf", 2)
    brief, expected = GgufFile(tmp_path / "brief.gguf"), gguf.GGUFReader(file.path)
    assert brief.strings("tokenizer.ggml.tokens") == ["a", "bc"]
    found = gguf.GGUFReader(brief.path)
    assert found.fields["tokenizer.ggml.scores"].contents() == [0.5, 1.5]
    for key, field in expected.fields.items():
        if not key.startswith("tokenizer.ggml."):
            assert found.fields[key].contents() == field.contents(), key
    named = [(each.name, each.tensor_type, each.shape.tolist()) for each in expected.tensors]
    assert named == [(each.name, each.tensor_type, each.shape.tolist()) for each in found.tensors]


def test_given_back_pages_are_read_again(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", kinds=("F32",))
    file = GgufFile(path)
    for tensor in file.tensors.values():
        before = file.data(tensor).clone()
        file.forget(tensor)
        assert torch.equal(file.data(tensor), before)


def test_the_mark_is_that_of_the_header_and_the_size(tmp_path: Path) -> None:
    one, other = (GgufFile(save_small(tmp_path / f"{seed}.gguf", seed)).mark() for seed in range(2))
    assert one == other
    longer = tmp_path / "longer.gguf"
    longer.write_bytes((tmp_path / "0.gguf").read_bytes() + b"\0")
    assert GgufFile(longer).mark() != one
    assert GgufFile(save_small(tmp_path / "a.gguf", alignment=64)).mark() != one


# Headers by hand.


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


ARCHITECTURE = string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama")


def header(*pairs: bytes, tensors: tuple[bytes, ...] = (), version: int = 3) -> bytes:
    parts = (ARCHITECTURE, *pairs)
    counts = struct.pack("<IQQ", version, len(tensors), len(parts))
    return b"GGUF" + counts + b"".join(parts) + b"".join(tensors)


def tensor(name: bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return string(name) + sizes + struct.pack("<IQ", kind, offset)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


ROOM = bytes(4096)
NESTED = struct.pack("<IQ", 9, 1) * 50
HUGE = 1 << 62


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "is not a GGUF file", id="empty"),
        pytest.param(b"GGU", "is not a GGUF file", id="three bytes"),
        pytest.param(b"PK\3\4" + ROOM, "is not a GGUF file", id="another kind"),
        pytest.param(b"GGUF", "ends inside", id="four bytes"),
        pytest.param(header(version=1), "has version 1", id="old"),
        pytest.param(header(version=4), "has version 4, but paceline reads 2 and 3", id="new"),
        pytest.param(b"GGUF\0\0\0\3" + ROOM, "is big-endian", id="big-endian"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no architecture", id="nothing"),
        pytest.param(
            b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE) + ROOM, "claims to hold", id="many keys"
        ),
        pytest.param(
            b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0) + ROOM, "claims to hold", id="many tensors"
        ),
        pytest.param(
            header(pair(b"k", 8, struct.pack("<Q", HUGE))) + ROOM, "ends inside", id="long string"
        ),
        pytest.param(
            header(pair(b"k", 9, struct.pack("<IQ", 4, HUGE))) + ROOM, "claims", id="long array"
        ),
        pytest.param(
            header(pair(b"k", 9, struct.pack("<IQQ", 8, 2, 8) + ROOM[:8])), "ends", id="strings"
        ),
        pytest.param(
            header(pair(b"k", 9, struct.pack("<IQQ", 8, 1, 2**64 - 1))), "ends", id="overflow"
        ),
        pytest.param(header(pair(b"k", 9, NESTED)) + ROOM, "arrays that are nested", id="nested"),
        pytest.param(header(pair(b"k", 13, ROOM)), "unknown type number 13", id="value"),
        pytest.param(
            header(pair(b"k", 9, struct.pack("<IQ", 99, 1) + ROOM)), "number 99", id="elements"
        ),
        pytest.param(header(pair(b"k", 0, b"a"), pair(b"k", 0, b"a")), "'k' twice", id="keys"),
        pytest.param(header(pair(b"\xff", 0, b"a")), "a key is not UTF-8", id="key"),
        pytest.param(
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + pair(b"general.architecture", 4, struct.pack("<I", 7)),
            "names no architecture",
            id="architecture",
        ),
        *(
            pytest.param(
                header(pair(b"general.alignment", kind, value), tensors=(tensor(b"t", (1,)),))
                + ROOM,
                "alignment",
                id=f"alignment {value!r}",
            )
            for kind, value in (
                (4, struct.pack("<I", 0)),
                (4, struct.pack("<I", 1)),
                (4, struct.pack("<I", 33)),
                (5, struct.pack("<i", -32)),
                (6, struct.pack("<f", 32.0)),
                (8, string(b"32")),
            )
        ),
        *(
            pytest.param(header(tensors=tensors) + ROOM, words, id=words)
            for words, tensors in {
                "has 5 dimensions": (tensor(b"t", (1,) * 5),),
                "is empty": (tensor(b"t", (3, 0)),),
                "unknown type number 4": (tensor(b"t", (32,), 4),),
                "not whole blocks of Q4_0": (tensor(b"t", (33,), 2),),
                "ends before the tensor 't' does": (tensor(b"t", (1 << 20,)),),
                "ends before the tensor 'wide' does": (
                    tensor(b"wide", (1 << 32, 1 << 32, 1 << 32)),
                ),
                "ends before the tensor 'far' does": (tensor(b"far", (1,), 0, 2**64 - 32),),
                "'t' is not aligned": (tensor(b"t", (1,), 0, 3),),
                "'t' twice": (tensor(b"t", (1,)), tensor(b"t", (1,), 0, 32)),
                "'t' and 'u' overlap": (tensor(b"t", (9,)), tensor(b"u", (1,), 0, 32)),
                "a tensor's name is not UTF-8": (tensor(b"\xc3\x28", (1,)),),
            }.items()
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    message = str(caught.value)
    assert words in message
    assert str(path) in message
    damaged = "is damaged" in message or "is not a GGUF file" in message
    assert message.endswith("download or copy it again" if damaged else "use another file")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (pair(b"split.count", 2, struct.pack("<H", 3)), "is one of 3 parts: join them"),
        (pair(b"general.type", 8, string(b"imatrix")), "is an importance matrix, not a model"),
        (pair(b"general.type", 8, string(b"adapter")), "is an adapter, not a model: name the"),
        (pair(b"general.type", 8, string(b"mmproj")), "is a projector of images or sounds, not a"),
    ],
)
def test_what_is_no_whole_model_is_not_called_damaged(
    tmp_path: Path, own: bytes, words: str
) -> None:
    """Parts after the first, and some files beside a model, have no architecture."""
    counts = struct.pack("<IQQ", 3, 0, 1)
    for number, content in enumerate((b"GGUF" + counts + own, header(own))):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=words) as caught:
            GgufFile(path)
        assert str(path) in str(caught.value)
        assert "damaged" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*none\.gguf: No such file"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot read"):
        GgufFile(tmp_path)


# Mutations.

Mutation = Callable[[bytearray, random.Random], None]


def cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def flip(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        content[_place(content, chance)] ^= 1 << chance.randrange(8)


def lie(content: bytearray, chance: random.Random) -> None:
    """Another number where counts, lengths, dimensions and offsets are."""
    form = chance.choice(("<Q", "<I"))
    number = chance.choice((0, 1, 2, 7, 9, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63))
    number = chance.choice((number, (1 << 64) - 1, (1 << 64) - 32, chance.getrandbits(64)))
    struct.pack_into(form, content, _place(content, chance, 8), number % (1 << 8 * len(form) * 2))


def splice(content: bytearray, chance: random.Random) -> None:
    begin, length = _place(content, chance), chance.randrange(1, 64)
    piece = content[begin : begin + length]
    place = _place(content, chance)
    if chance.random() < 0.5:
        content[place:place] = piece
    else:
        content[place : place + len(piece)] = piece


def drop(content: bytearray, chance: random.Random) -> None:
    begin = _place(content, chance)
    del content[begin : begin + chance.randrange(1, 64)]


def noise(content: bytearray, chance: random.Random) -> None:
    begin = _place(content, chance)
    content[begin : begin + 32] = chance.randbytes(32)


MUTATIONS: tuple[Mutation, ...] = (cut, flip, lie, lie, splice, drop, noise)


def _place(content: bytearray, chance: random.Random, room: int = 1) -> int:
    """Mostly in the header, which is what is read."""
    end = len(content) if chance.random() < 0.05 else min(len(content), 1100)
    return chance.randrange(max(1, end - room))


def mutants(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(count):
        mutant = bytearray(content)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            if len(mutant) > 16:
                chance.choice(MUTATIONS)(mutant, chance)
        yield bytes(mutant)


def read(path: Path) -> str:
    """Everything that is ever read of a file; the message where it was refused."""
    try:
        file = GgufFile(path)
        file.mark()
        for key in file.metadata:
            file.strings(key)
            file.integer(key)
        for each in file.tensors.values():
            assert file.data(each).numel() == each.nbytes
            file.data(each)[-1, -1].item()
    except ModelError as error:
        return str(error)
    return ""


def test_ten_thousand_damaged_files(tmp_path: Path, small: Path) -> None:
    """Each is read, or refused in a sentence."""
    refused: set[str] = set()
    fine = 0
    for number, mutant in enumerate(mutants(small.read_bytes(), 10_000, seed=20)):
        path = tmp_path / str(number)  # to write one file over and over waits for the disk
        path.write_bytes(mutant)
        message = read(path)
        path.unlink()
        assert "\n" not in message
        fine += not message
        refused.add(message.partition("(")[2].partition(" ")[0])
    assert 100 < fine < 9_900
    assert len(refused) > 2


def test_damaged_files_take_little_memory(tmp_path: Path, small: Path) -> None:
    path = tmp_path / "mutant.gguf"
    tracemalloc.start()
    try:
        for mutant in mutants(small.read_bytes(), 500, seed=21):
            path.write_bytes(mutant)
            read(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 << 20
