"""Methods of other packages: by the place of their class, and by entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import generate, naive_stream
from tests.outside_methods import Attached, Nested, Quiet, Stutter
from tests.prompt_parts import host_on

from paceline.cli.bench.shared import Contenders, split_methods
from paceline.drafters import (
    Plain,
    add_draft,
    check_method,
    make_drafter,
    open_settings,
    registry,
    shapes_trees,
    with_settings,
)
from paceline.drafters.settings import parse_method
from paceline.errors import UsageError
from paceline.targets.toy import ToyTarget

HERE = "tests.outside_methods"


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("a.b:C", "a.b:C", {}),
        ("a.b:C:", "a.b:C", {}),
        ("a.b:c", "a.b:c", {}),
        ("a.b:C.D:n=3,k=4", "a.b:C.D", {"n": "3", "k": "4"}),
        ("a:C:n=3", "a:C", {"n": "3"}),
        (" a.b:C:in=(x:a=1,b=2) ", "a.b:C", {"in": "x:a=1,b=2"}),
        ("llama.cpp", "llama.cpp", {}),
        ("llama.cpp:context=5", "llama.cpp", {"context": "5"}),
        ("x:in=a.b:C", "x", {"in": "a.b:C"}),
        ("x:in=(a.b:C:n=3,k=4),y=1", "x", {"in": "a.b:C:n=3,k=4", "y": "1"}),
        ("x:Draft=A", "x", {"Draft": "A"}),
    ],
)
def test_a_name_may_be_the_place_of_a_class(text: str, name: str, settings: dict[str, str]) -> None:
    assert parse_method(text) == (name, settings)


def test_places_stand_among_other_methods_with_their_settings() -> None:
    text = f"plain,{HERE}:Stutter:times=2,quiet=true,anpd:n=3,k=4"
    names = ["plain", f"{HERE}:Stutter:times=2,quiet=true", "anpd:n=3,k=4"]
    assert split_methods(text) == names
    assert Contenders(text).names() == names


@pytest.mark.parametrize(
    ("method", "settings", "kind", "times"),
    [
        (f"{HERE}:Stutter", {}, Stutter, 1),
        (f"{HERE}:Stutter:times=4", {}, Stutter, 4),
        (f"{HERE}:Stutter:times=4,quiet=true", {}, Stutter, 0),
        (f"{HERE}:Stutter:quiet=true", {"times": 5, "quiet": False}, Stutter, 5),
        (f"{HERE}:Nested:times=5", {}, Nested, 5),
        (f"{HERE}:Nested", {}, Nested, 3),
        (f"{HERE}:STUTTER:times=6", {}, Stutter, 6),
    ],
)
def test_settings_reach_a_class_from_outside(
    method: str, settings: dict[str, Any], kind: type[Stutter], times: int
) -> None:
    check_method(method, **settings)
    drafter = make_drafter(method, **settings)
    assert type(drafter) is kind
    assert isinstance(drafter, Stutter)
    assert drafter.times == times
    output, _, _ = generate(ToyTarget(), drafter, [3, 1, 4], 20)
    assert output == naive_stream(ToyTarget(), [3, 1, 4], 20)


def test_a_class_without_settings_takes_none() -> None:
    assert type(make_drafter(f"{HERE}:Quiet")) is Quiet
    with pytest.raises(UsageError, match=r"has no setting 'n'; it has: none"):
        check_method(f"{HERE}:Quiet:n=1")


def test_one_that_works_for_a_model_gets_its_host() -> None:
    method, host = f"{HERE}:ATTACHED:times=2", host_on(ToyTarget())
    drafter = make_drafter(method, host)
    assert isinstance(drafter, Attached)
    assert (drafter.host, drafter.times) == (host, 2)
    with pytest.raises(UsageError, match=r"works only for a given model: pass its host"):
        make_drafter(method)


def test_it_may_draft_for_a_draft_model_and_be_tuned() -> None:
    check_method(f"speculative:inner=({HERE}:Stutter:times=2)")
    assert open_settings(f"{HERE}:STUTTER") == ({"times": 1}, {("times",): (1, 2)})
    assert open_settings(f"{HERE}:Stutter") == ({}, {})
    assert with_settings(f"{HERE}:STUTTER", {"times": 2}) == f"{HERE}:STUTTER:times=2"
    assert not shapes_trees(f"{HERE}:STUTTER")
    assert add_draft(f"{HERE}:STUTTER", "x") is None


REFUSED = [
    ("nowhere.at.all:Thing", "cannot load method 'nowhere.at.all:Thing': ModuleNotFoundError: "),
    (f"{HERE}:Missing", f"cannot load method '{HERE}:Missing': AttributeError: "),
    (f"{HERE}:NUMBER", f"method '{HERE}:NUMBER' is neither a subclass of paceline.protocols.Dr"),
    (f"{HERE}:StutterSettings", "is neither a subclass of paceline.protocols.Drafter nor a Method"),
    (f"{HERE}:Half", f"method '{HERE}:Half' does not define observe, propose: a drafter must"),
    (f"{HERE}:Loose", f"the Settings of method '{HERE}:Loose' are not a dataclass: decorate"),
    (f"{HERE}:Hidden", f"method {HERE}:Hidden cannot take these settings: name 'Sequence' is not"),
    (f"{HERE}:Required", f"method {HERE}:Required cannot take these settings: "),
    (f"{HERE}:Required:times=0", "cannot take these settings: times must be positive"),
    (f"{HERE}:Stutter:times=0", "times must be a whole number >= 1, got 0"),
    (f"{HERE}:Nested:times=much", f"{HERE}:Nested:times must be a whole number, got 'much'"),
    (f"{HERE}:Nested:words=a", f"{HERE}:Nested:words cannot be written as text: give it in Python"),
    (f"{HERE}:Stutter:times=much", f"{HERE}:Stutter:times must be a whole number, got 'much'"),
    (
        f"{HERE}:Stutter:time=2",
        f"method {HERE}:Stutter has no setting 'time' (did you mean times?); it has: times, quiet",
    ),
]


@pytest.mark.parametrize(("method", "said"), REFUSED)
def test_each_mistake_has_its_sentence(method: str, said: str) -> None:
    for act in (check_method, make_drafter):
        with pytest.raises(UsageError) as caught:
            act(method)
        assert said in str(caught.value)


def test_a_module_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_drafts.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"ZeroDivisionError: division by zero; check that"):
        make_drafter("broken_drafts:Stutter")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings methods, as an installer leaves it."""
    about = tmp_path / "stuttering-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stuttering\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[paceline.drafters]\n"
        f"stutter = {HERE}:Stutter\n"
        f"tuned-stutter = {HERE}:STUTTER\n"
        f"anpd = {HERE}:Stutter\n"
        "gone = nowhere.at.all:Thing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_an_installed_package_brings_methods_by_name() -> None:
    drafter = make_drafter("stutter:times=3")
    assert isinstance(drafter, Stutter)
    assert drafter.times == 3
    assert open_settings("tuned-stutter")[1] == {("times",): (1, 2)}
    names = Contenders("plain,stutter:times=2,quiet=true").names()
    assert names[1:] == ["stutter:times=2,quiet=true"]


@pytest.mark.usefixtures("installed")
def test_a_package_does_not_take_the_place_of_a_method_of_this_one() -> None:
    assert not isinstance(make_drafter("anpd"), Stutter)


@pytest.mark.usefixtures("installed")
def test_entry_points_are_read_in_newer_versions_of_python_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ByName(tuple[Any, ...]):  # from Python 3.12 on, an index is a name
        def __getitem__(self, name: Any) -> Any:
            return next(each for each in self if each.name == name)

    monkeypatch.setattr(registry, "entry_points", lambda group: ByName(entry_points(group=group)))
    assert isinstance(make_drafter("stutter"), Stutter)


@pytest.mark.usefixtures("installed")
def test_mistakes_name_installed_methods_too() -> None:
    with pytest.raises(UsageError, match=r"\(did you mean stutter\?\): use one of plain, .*gone"):
        make_drafter("stuter")
    with pytest.raises(UsageError, match=r"cannot load method 'gone' \(nowhere\.at\.all:Thing\)"):
        make_drafter("gone")


def test_without_that_package_there_is_no_such_method() -> None:
    with pytest.raises(UsageError, match="unknown method 'stutter'"):
        make_drafter("stutter")
    assert isinstance(make_drafter("plain"), Plain)
