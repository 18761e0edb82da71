"""The C library: built, found, refused."""

from __future__ import annotations

import ctypes
import platform
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.kernels.native_sources import checkout, compiles, real_checkout

from paceline.kernels.native import build as real
from paceline.kernels.native import library
from paceline.kernels.native.calls import unavailable

not_on_windows = pytest.mark.skipif(sys.platform == "win32", reason="nothing is built on Windows")
on_linux_x86 = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="reads /proc/cpuinfo"
)


@pytest.fixture
def builder(tmp_path: Path) -> ModuleType:
    return checkout(tmp_path / "native")


@pytest.fixture
def built() -> ctypes.CDLL:
    """The real library, as it was installed with these sources."""
    found, reason = library.find(real.HERE)
    if found is None:
        pytest.skip(reason)
    return found


@compiles
def test_the_library_is_there_where_it_can_be_built() -> None:
    """Or all tests of it would be skipped."""
    assert unavailable() == ""


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "no-such-python")  # so that ziglang is not found


def found_elsewhere(builder: ModuleType, folder: Path) -> tuple[ctypes.CDLL | None, str]:
    """In a copy: the system opens a file of one name once in a process, whatever is in it now."""
    return library.find(Path(shutil.copytree(builder.HERE, folder)))


def out_of(builder: ModuleType) -> Path:
    path: Path = builder.HERE / builder.library_name()
    return path


def compiler_that(folder: Path, refuses: str) -> str:
    """$CC: the compiler of this machine, which fails when it is given this argument; and
    does not optimise, which would take half a minute."""
    path = folder / "refusing-cc"
    real_one = shlex.join(real.find_compiler().command)
    path.write_text(
        f'#!/bin/sh\nfor each; do [ "$each" = {refuses} ] && exit 1; done\n'
        f'exec {real_one} "$@" -O0\n'
    )
    path.chmod(0o755)
    return str(path)


@compiles
def test_the_real_library_says_what_it_is_made_of_and_what_it_can_do(built: ctypes.CDLL) -> None:
    assert built.pl_sources().decode() == real.sources_hash()
    tiers = built.pl_tiers().decode().split(",")
    assert tiers[-1] == "portable"
    assert len(set(tiers)) == len(tiers)
    assert all(built.pl_cpu_has(tier.encode()) for tier in tiers)
    assert not built.pl_cpu_has(b"no such tier")


@compiles
@on_linux_x86
def test_what_the_processor_can_do_is_what_the_system_says(built: ctypes.CDLL) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    avx2 = {"avx2", "fma", "f16c"}
    needed = {
        "avx2": avx2,
        "avxvnni": avx2 | {"avx_vnni"},
        "avx512vnni": avx2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"},
    }
    needed["avx512bf16"] = needed["avx512vnni"] | {"avx512_bf16"}
    needed["amx"] = needed["avx512bf16"] | {"amx_tile", "amx_bf16"}
    found = {tier: bool(built.pl_cpu_has(tier.encode())) for tier in needed}
    assert found == {tier: names <= flags for tier, names in needed.items()}


def test_there_is_a_library_or_a_reason() -> None:
    found, reason = library.find(real.HERE)
    assert (found is None) == bool(reason)


def test_a_folder_without_a_library_says_how_to_get_one(
    builder: ModuleType, tmp_path: Path
) -> None:
    found, reason = library.find(builder.HERE)
    assert found is None
    assert reason == (
        "paceline's C library was not built; "
        f"run `{shlex.join([sys.executable, str(builder.HERE / 'build.py')])}`."
    )
    found, reason = library.find(tmp_path)
    assert found is None
    assert reason.endswith("reinstall paceline on a machine that has a C compiler.")


@compiles
def test_a_library_of_other_sources_is_refused_until_it_is_built_again(
    builder: ModuleType, tmp_path: Path
) -> None:
    out = out_of(builder)
    builder.build(out)
    assert found_elsewhere(builder, tmp_path / "fresh")[1] == ""
    source = builder.HERE / "src" / "tier.c"
    source.write_text(source.read_text() + "/* changed */\n")
    found, reason = library.find(builder.HERE)
    assert found is None
    assert "not built from the C sources" in reason
    assert "build.py" in reason
    builder.build(out)
    found, reason = found_elsewhere(builder, tmp_path / "again")
    assert found is not None, reason


@compiles
def test_a_header_and_the_build_itself_count_as_sources(builder: ModuleType) -> None:
    before = builder.sources_hash()
    (builder.HERE / "src" / "new.h").write_text("")
    with_header = builder.sources_hash()
    script = builder.HERE / "build.py"
    script.write_text(script.read_text() + "\n")
    assert len({before, with_header, builder.sources_hash()}) == 3


@compiles
def test_a_library_without_sources_beside_it_is_taken_as_it_is(
    builder: ModuleType, tmp_path: Path
) -> None:
    """As in a wheel."""
    builder.build(tmp_path / builder.library_name())
    assert library.find(tmp_path)[1] == ""


@pytest.mark.parametrize("content", [b"", b"no library at all", b"\x7fELF\x02\x01\x01"])
def test_a_damaged_library_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / real.library_name()).write_bytes(content)
    found, reason = library.find(tmp_path)
    assert found is None
    assert "cannot be opened" in reason


@compiles
def test_a_library_that_is_open_survives_its_successor(builder: ModuleType, tmp_path: Path) -> None:
    out = out_of(builder)
    builder.build(out)
    old = library.open_library(out)
    before = old.pl_sources()
    source = builder.HERE / "src" / "tier.c"
    source.write_text(source.read_text() + "/* changed */\n")
    builder.build(out)
    assert old.pl_sources() == before
    new, reason = found_elsewhere(builder, tmp_path / "again")
    assert new is not None, reason
    assert new.pl_sources() == builder.sources_hash().encode() != before
    assert [path.name for path in builder.HERE.glob("*libpaceline*")] == [out.name]


@compiles
def test_sources_that_do_not_compile_are_an_error_and_harm_nothing(builder: ModuleType) -> None:
    """Not a tier that is silently missing: the compiler knows such processors."""
    out = out_of(builder)
    builder.build(out)
    content = out.read_bytes()
    (builder.HERE / "src" / "tier.c").write_text("#error my mistake\n")
    with pytest.raises(builder.BuildError, match="my mistake"):
        builder.build(out)
    assert out.read_bytes() == content


@compiles
@on_linux_x86
def test_a_tier_that_the_compiler_does_not_know_is_left_out(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler_that(tmp_path, refuses="-mavx512vnni"))
    made = builder.build(out_of(builder))
    assert "avx2" in made.tiers
    assert "avx512vnni" not in made.tiers
    assert library.find(builder.HERE)[1] == ""


@compiles
@on_linux_x86
def test_only_tiers_that_are_compiled_in_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real sources: whatever this processor can do, only the baseline is there."""
    builder = real_checkout(tmp_path / "native")
    monkeypatch.setenv("CC", compiler_that(tmp_path, refuses="-mavx2"))
    assert builder.build(out_of(builder)).tiers == ("portable",)
    found, reason = library.find(builder.HERE)
    assert found is not None, reason
    assert found.pl_tiers() == b"portable"


@not_on_windows
@pytest.mark.parametrize("named", ["no-such-compiler", "false", "cc -no-such-flag", "'"])
def test_a_wrong_cc_is_a_sentence(
    builder: ModuleType, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", named)
    with pytest.raises(builder.BuildError) as caught:
        builder.build(out_of(builder))
    assert str(caught.value).startswith(f"CC is {named!r}, which does not compile C here")
    assert not out_of(builder).exists()


@not_on_windows
@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_script_says_so(
    builder: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert builder.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("There is no C compiler here: ")
    found, reason = library.find(builder.HERE)
    assert found is None
    assert "not built" in reason


@compiles
def test_a_place_that_cannot_be_written_is_a_sentence(builder: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(builder.BuildError, match="cannot be written"):
        builder.build(tmp_path / "no such folder" / "library")


@compiles
@pytest.mark.skipif(sys.platform != "linux", reason="other systems name the checks differently")
def test_a_sanitized_library_has_the_checks_in_it(
    builder: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, checked = tmp_path / "plain.so", tmp_path / "checked.so"
    assert builder.main(["--out", str(plain)]) == 0
    if builder.main(["--sanitize", "--out", str(checked)]):
        pytest.skip(f"this compiler has no sanitizers: {capsys.readouterr().err}")
    assert b"__asan_init" in checked.read_bytes()
    assert b"__asan_init" not in plain.read_bytes()
