"""The notation of methods, and every sentence that refuses one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline.drafters import METHODS, Anpd, Llma, Plain, PromptLookup, make_drafter
from paceline.drafters.registry import check_method
from paceline.drafters.settings import at_least, bracketed, parse_method
from paceline.errors import UsageError
from paceline.protocols import Drafter


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("anpd", "anpd", {}),
        ("anpd:", "anpd", {}),
        ("anpd:n=5,k=7", "anpd", {"n": "5", "k": "7"}),
        (" anpd : n = 5 , k = 7 ", "anpd", {"n": "5", "k": "7"}),
        ("anpd:n=5,", "anpd", {"n": "5"}),
        ("llma:tie=first", "llma", {"tie": "first"}),
        ("x:path=a=b:c", "x", {"path": "a=b:c"}),
        ("x:path=a(b", "x", {"path": "a(b"}),
        ("x:path=/a)(b/c (1),n=2", "x", {"path": "/a)(b/c (1)", "n": "2"}),
        ("x:in=y", "x", {"in": "y"}),
        ("x:in=y:a=1", "x", {"in": "y:a=1"}),
        ("x:in=(y)", "x", {"in": "y"}),
        ("x:n=1, in = ( y:a=1,b=2 ) ,k=3", "x", {"n": "1", "in": "y:a=1,b=2", "k": "3"}),
        ("x:in=(y:in=(z:a=1,b=2),c=3)", "x", {"in": "y:in=(z:a=1,b=2),c=3"}),
        ("x:in=(y:path=a(b),c=3)", "x", {"in": "y:path=a(b),c=3"}),
        ("", "", {}),
    ],
)
def test_the_notation_is_a_name_and_settings(
    text: str, name: str, settings: dict[str, str]
) -> None:
    assert parse_method(text) == (name, settings)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("anpd:n", "n"),
        ("anpd:n=", "n="),
        ("anpd:=5", "=5"),
        ("anpd:k=1,n 5", "n 5"),
        ("a:n=1,,k", "k"),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(text: str, part: str) -> None:
    said = (
        f"cannot read {part!r} in method {text!r}: write it as name:setting=value,…, "
        "for example anpd:n=5,k=7"
    )
    with pytest.raises(UsageError, match=re.escape(said)):
        make_drafter(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x:in=(y:a=1,b=2", "a bracket is not closed in 'in=(y:a=1,b=2': write a ) for every ("),
        ("x:in=(y:in=(z:a=1)", "a bracket is not closed"),
        ("x:in=(y:a=1))", "')' follows a closed bracket in method 'x:in=(y:a=1))': separate"),
        ("x:in=(y:a=1)b,n=2", "'b' follows a closed bracket in method"),
        ("x:in=()", "cannot read 'in=()' in method 'x:in=()'"),
    ],
)
def test_brackets_that_do_not_match_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        parse_method(text)


@pytest.mark.parametrize("value", ["a", "a,b", "(a,b)", "y:a=1,b=2", "y:in=(z:a=1,b=2)", "a(b"])
def test_what_was_put_into_brackets_is_read_back(value: str) -> None:
    assert parse_method(f"x:in={bracketed(value)},n=1") == ("x", {"in": value, "n": "1"})


@pytest.mark.parametrize(
    ("name", "kind"), [("plain", Plain), ("anpd", Anpd), ("llma", Llma), ("pld", PromptLookup)]
)
def test_each_method_has_its_drafter_and_every_drafter_its_method(
    name: str, kind: type[Drafter]
) -> None:
    assert type(make_drafter(name)) is kind


def test_settings_reach_the_drafter_in_the_type_they_need() -> None:
    drafter = make_drafter("anpd:n=4,k=9,branches=3,persist=True")
    assert isinstance(drafter, Anpd)
    assert (drafter._new.args[1:3], drafter.draft_length) == ((3, 3), 9)
    assert drafter._kept is not None
    again = make_drafter("anpd:persist=false")
    assert isinstance(again, Anpd)
    assert again._kept is None


def test_keywords_and_notation_say_the_same_and_keywords_win() -> None:
    for drafter in (
        make_drafter("anpd", n=4, persist=True),
        make_drafter("anpd:n=4", persist="true"),
        make_drafter("anpd:n=3,persist=false", n=4, persist=True),
    ):
        assert isinstance(drafter, Anpd)
        assert (drafter._ngrams.longest, drafter._kept is not None) == (3, True)


KNOWN = f"use one of {', '.join(METHODS)}"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, f"unknown method '': {KNOWN}"),
    ("adnp", {}, f"unknown method 'adnp' (did you mean anpd?): {KNOWN}"),
    ("zeus9", {}, f"unknown method 'zeus9': {KNOWN}"),
    (
        "anpd:m=5",
        {},
        "method anpd has no setting 'm'; it has: n, k, branches, persist, levels, most",
    ),
    (
        "anpd:branch=2",
        {},
        "method anpd has no setting 'branch' (did you mean branches?); "
        "it has: n, k, branches, persist, levels, most",
    ),
    ("plain:n=3", {}, "method plain has no setting 'n'; it has: none"),
    ("pld", {"self": 1}, "method pld has no setting 'self'; it has: n, k"),
    ("anpd:n=five", {}, "anpd:n must be a whole number, got 'five'"),
    ("anpd:n=2.5", {}, "anpd:n must be a whole number, got '2.5'"),
    ("anpd:n=5=6", {}, "anpd:n must be a whole number, got '5=6'"),
    ("anpd:persist=1", {}, "anpd:persist must be true or false, got '1'"),
    ("anpd:persist=yes", {}, "anpd:persist must be true or false, got 'yes'"),
    ("llma:tie=last", {}, "llma:tie must be one of random, first, got 'last'"),
    ("llma", {"tie": "last"}, "llma:tie must be one of random, first, got 'last'"),
    ("anpd:n=1", {}, "n must be a whole number >= 2, got 1"),
    ("anpd:k=0", {}, "k must be a whole number >= 1, got 0"),
    ("anpd:branches=-2", {}, "branches must be a whole number >= 1, got -2"),
    ("lookahead:window=-1", {}, "window must be a whole number >= 0, got -1"),
    ("lookahead:level=1", {}, "level must be a whole number >= 2, got 1"),
    ("lookahead:guesses=0", {}, "guesses must be a whole number >= 1, got 0"),
    (
        "lookahead:pool=mine",
        {},
        "method lookahead has no setting 'pool'; it has: window, level, guesses, "
        "pool_from_prompt, accept_window, history, seed",
    ),
    ("jacobi:length=0", {}, "length must be a whole number >= 1, got 0"),
    ("llma:n=0", {}, "n must be a whole number >= 1, got 0"),
    ("llma:k=0", {}, "k must be a whole number >= 1, got 0"),
    ("llma:seed=-1", {}, "seed must be a whole number >= 0, got -1"),
    ("sam:n=33", {}, "n must be at most 32, got 33"),
    *(
        (
            f"{method}:datastore=/nowhere",
            {},
            "the datastore /nowhere cannot be used without a session: open the model with "
            "paceline.load, or leave out datastore=",
        )
        for method in ("rest", "sam", "auto:sources=anpd+rest")
    ),
    ("pld:n=0", {}, "n must be a whole number >= 1, got 0"),
    ("pld:k=-1", {}, "k must be a whole number >= 1, got -1"),
    ("pld:n=65", {}, "n must be at most 64, got 65"),
    ("jacobi:length=1025", {}, "length must be at most 1024, got 1025"),
    ("lookahead:window=257", {}, "window must be at most 256, got 257"),
    ("lookahead:level=257", {}, "level must be at most 256, got 257"),
    *(
        (f"{method}={2**63}", {}, f"{method.split(':')[1]} must be at most {10**15}, got {2**63}")
        for method in ("anpd:k", "anpd:most", "suffix:factor", "sam:branches")
    ),
    ("anpd", {"n": 2.5}, "n must be a whole number >= 2, got 2.5"),
    ("anpd", {"n": True}, "n must be a whole number >= 2, got True"),
    ("anpd", {"n": None}, "n must be a whole number >= 2, got None"),
]


@pytest.mark.parametrize(("method", "settings", "said"), REFUSED)
def test_each_mistake_has_its_sentence(method: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_drafter(method, **settings)
    assert str(caught.value) == said


def test_a_setting_that_is_written_twice_is_refused() -> None:
    """One of the two would be ignored in silence."""
    with pytest.raises(UsageError, match="twice"):
        make_drafter("anpd:n=3,n=4")


@pytest.mark.parametrize("value", [2, 3, 10**12])
def test_a_value_in_range_is_handed_back(value: int) -> None:
    assert at_least(2, n=value) == value


def test_methods_nested_beyond_the_stack_are_refused() -> None:
    with pytest.raises(UsageError, match="nested too deeply"):
        check_method("speculative:inner=(" * 400 + "anpd" + ")" * 400)
