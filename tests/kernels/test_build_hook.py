"""The hook that builds the C library for a wheel or an editable install."""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.kernels.native_sources import checkout, compiles

SCRIPT = Path(__file__).parents[2] / "hatch_build.py"


class StandIn:
    """What the hook uses of hatchling's interface, which is not installed where tests run."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.warned: list[str] = []
        self.app = SimpleNamespace(display_warning=self.warned.append)


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook over a source tree of a few lines of C."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    vars(interface)["BuildHookInterface"] = StandIn
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    monkeypatch.delenv("PACELINE_NATIVE", raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checkout(native(tmp_path))
    return module.NativeBuildHook(tmp_path)


def native(root: Path) -> Path:
    return root / "src" / "paceline" / "kernels" / "native"


def built_in_place(root: Path) -> list[Path]:
    return list(native(root).glob("libpaceline.*"))


def new_data() -> dict[str, Any]:
    """As hatchling begins."""
    return {"force_include": {}, "pure_python": True}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")


@compiles
def test_a_wheel_gets_the_library_and_the_tag_of_its_platform(hook: Any, tmp_path: Path) -> None:
    data = new_data()
    hook.initialize("standard", data)
    [(path, inside)] = data["force_include"].items()
    assert Path(path).read_bytes()
    assert inside == f"paceline/kernels/native/{Path(path).name}"
    assert not data["pure_python"]
    assert data["tag"].startswith("py3-none-")
    assert data["tag"] != "py3-none-any"
    assert hook.warned == built_in_place(tmp_path) == []


@compiles
def test_an_editable_install_compiles_in_place(hook: Any, tmp_path: Path) -> None:
    data = new_data()
    hook.initialize("editable", data)
    assert data == new_data()
    assert len(built_in_place(tmp_path)) == 1


@compiles
def test_an_editable_install_keeps_a_library_of_these_sources(hook: Any, tmp_path: Path) -> None:
    hook.initialize("editable", new_data())
    [library] = built_in_place(tmp_path)
    before = library.stat().st_ino
    hook.initialize("editable", new_data())
    assert library.stat().st_ino == before
    source = native(tmp_path) / "src" / "tier.c"
    source.write_text(source.read_text() + "/* changed */\n")
    hook.initialize("editable", new_data())
    assert library.stat().st_ino != before


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_without_a_compiler_the_package_goes_without(hook: Any, version: str) -> None:
    data = new_data()
    hook.initialize(version, data)
    assert data == new_data()
    [warning] = hook.warned
    assert warning.startswith("paceline goes without its C library. ")


@pytest.mark.usefixtures("no_compiler")
def test_unless_it_is_required(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "require")
    with pytest.raises(Exception, match=r"CC is 'no-such-compiler'|Windows"):
        hook.initialize("standard", new_data())


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_it_can_be_left_out_on_purpose(
    hook: Any, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable install loses the library that an earlier one made."""
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    name = hook._builder().library_name()
    (native(tmp_path) / name).write_bytes(b"of an earlier install")
    data = new_data()
    hook.initialize(version, data)
    assert data == new_data()
    assert hook.warned == []
    assert hook.dependencies() == []
    assert bool(built_in_place(tmp_path)) == (version == "standard")


def test_a_wish_that_nobody_knows_is_refused(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "perhaps")
    with pytest.raises(ValueError, match="PACELINE_NATIVE is 'perhaps'"):
        hook.dependencies()


@pytest.mark.parametrize(
    ("system", "machine", "asked"),
    [
        ("linux", "x86_64", ["ziglang"]),
        ("darwin", "arm64", ["ziglang"]),
        ("win32", "AMD64", []),
        ("linux", "sparc64", []),
    ],
)
def test_zig_is_asked_for_where_there_is_no_compiler_and_zig_is_to_be_had(
    hook: Any, system: str, machine: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "no-such-python")
    assert [name.partition(">")[0] for name in hook.dependencies()] == asked


@compiles
def test_zig_is_not_asked_for_where_there_is_a_compiler(hook: Any) -> None:
    assert hook.dependencies() == []


def test_zig_is_not_asked_for_instead_of_a_compiler_that_was_named(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert hook.dependencies() == []
