"""Texts that begin cold or warm, and what drafters of one host share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.bench.trial import Method, Request
from paceline.drafters import Host, make_drafter
from paceline.drafters.ouroboros import Ouroboros
from paceline.drafters.speculative import Speculative
from paceline.options import Options
from paceline.records import TextStart
from paceline.targets.toy import ToyTarget
from tests.bench.rig import clocked_session
from tests.draft_hosts import toy_host

PROMPT = [104, 105, 106, 104, 105]


def texts(warm: bool) -> tuple[list[tuple[int, int]], list[int]]:
    """(tokens, of these cached) of every opened text, and tokens of three trials in a row; another
    method writes in between."""
    session, target = clocked_session()
    options = Options(max_new_tokens=6, ignore_eos=True)
    method, other = Method("anpd", session, target.clock, warm), Method("pld", session)
    request = Request(PROMPT, options=options)
    written = [method.generate(request).output]
    other.generate(Request([*PROMPT, *written[0], 107], options=options))
    written.append(method.generate(request).output)
    follow_up = Request([*PROMPT, *written[0], 108, 109], options=options)
    target.opened.clear()
    written.append(method.generate(follow_up).output)
    assert written[0] == written[1]
    return [(len(text), cached) for text, cached in target.opened], written[2]


def test_a_cold_text_finds_nothing_and_a_warm_one_its_own_last_text() -> None:
    cold, warm = texts(warm=False), texts(warm=True)
    assert cold[0] == [(13, 0)]
    # Its last text is read once more, before the clock starts, as others have used the target.
    assert warm[0] == [(11, 0), (13, 10)]
    assert cold[1] == warm[1]


@pytest.mark.parametrize(("warm", "made"), [(False, 3), (True, 1)])
def test_drafters_are_made_before_the_clock_starts(
    monkeypatch: pytest.MonkeyPatch, warm: bool, made: int
) -> None:
    session, target = clocked_session()
    hosts: list[Host] = []

    def slowly(name: str, host: Host) -> object:
        hosts.append(host)
        target.now += 1000.0
        return make_drafter(name, host)

    monkeypatch.setattr("paceline.bench.trial.make_drafter", slowly)
    method = Method("plain", session, target.clock, warm)
    for _ in range(2):
        trial = method.generate(Request(PROMPT, options=Options(max_new_tokens=2)))
        assert trial.seconds < 1000
    assert len(hosts) == made
    # None of them has learned, or will teach, anything that the session's own drafters know.
    assert len({id(host.learned) for host in (session.host, *hosts)}) == made + 1
    assert all(host.shared is session.host.shared for host in hosts)


def speculative(host: Host) -> Speculative:
    drafter = make_drafter("speculative:draft=near,inner=pld", host)
    assert isinstance(drafter, Speculative)
    return drafter


def ouroboros(host: Host) -> Ouroboros:
    drafter = make_drafter("ouroboros:draft=near", host)
    assert isinstance(drafter, Ouroboros)
    return drafter


def draft(host: Host) -> Any:
    return speculative(host)._draft


LEARNED: list[Callable[[Host], object]] = [
    lambda host: speculative(host)._plan,
    lambda host: draft(host)._ways[True]._batch._planner,
    lambda host: draft(host)._times,
    lambda host: ouroboros(host).pool,
]


@pytest.mark.parametrize("learned", LEARNED)
def test_drafters_of_a_host_share_what_they_learn(learned: Callable[[Host], object]) -> None:
    host = toy_host()
    assert learned(host) is learned(host)
    assert learned(host) is not learned(host.fresh())


def test_pools_of_other_settings_or_without_history_are_not_shared() -> None:
    host = toy_host()
    pools = [
        make_drafter(f"ouroboros:draft=near{more}", host).pool  # type: ignore[attr-defined]
        for more in ("", ",level=4", ",guesses=3", ",history=false", ",history=false")
    ]
    assert len({id(pool) for pool in pools}) == len(pools)


def test_drafters_on_one_target_keep_a_text_each() -> None:
    """Two texts in turns on one draft model's target: the guesses are those of targets apart."""
    shared = Host(ToyTarget(sharpness=3.0), "toy")

    def guesses(first: Host, second: Host) -> list[list[int]]:
        drafters = [
            Speculative(toy_host(), draft=draft, length=4, branches=0) for draft in (first, second)
        ]
        for drafter, text in zip(drafters, ([1, 2, 3, 4], [1, 2, 7, 8, 9])):
            drafter.start(TextStart(text))
        found = [list(drafter.propose(6).tokens) for drafter in (*drafters, *drafters)]
        drafters[0].stop()
        drafters[1].resume(TextStart([1, 2, 7, 8, 9, 5]))
        return [*found, list(drafters[1].propose(6).tokens)]

    together = guesses(shared, shared)
    apart = guesses(Host(ToyTarget(sharpness=3.0), "toy"), Host(ToyTarget(sharpness=3.0), "toy"))
    assert together == apart and together[0] != together[1]
