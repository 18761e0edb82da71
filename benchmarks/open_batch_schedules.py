"""Texts that join, leave and fail at random: a study of open_batch.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from paceline.drafters import make_drafter
from paceline.loop import Batch, Generation, decode
from paceline.planning.planner import TreePlanner
from paceline.sampling import Sampler
from paceline.session import Session
from paceline.stopping import Stopping

Note = Callable[[str], None]


def play_schedules(
    session: Session,
    prompts: Sequence[list[int]],
    methods: Sequence[str],
    max_new_tokens: int,
    note: Note,
) -> dict[str, Any]:
    """Compare prompts that join, leave and fail at random with each one alone."""
    rng = random.Random(1)
    samplers = [Sampler(seed=place, temperature=0.8 * (place % 2)) for place in range(len(prompts))]
    plain = [
        _alone(session, ids, sampler, max_new_tokens) for ids, sampler in zip(prompts, samplers)
    ]
    note("alone: done")
    found = []
    for method in methods:
        session.target.forget()
        batch = Batch(session.target, TreePlanner(session.host.curve))
        waiting, going, ended = list(range(len(prompts))), {}, {}
        while waiting or len(batch):
            if waiting and len(batch) < 32 and rng.random() < 0.5:
                place = waiting.pop(rng.randrange(len(waiting)))
                processors = (_failing(rng.randint(1, 9)),) if rng.random() < 0.05 else ()
                text = Generation(
                    prompts[place],
                    make_drafter(method, session.host.fresh()),
                    Stopping(max_new_tokens),
                    samplers[place] if not processors else Sampler(processors=processors),
                )
                going[batch.add(text)] = ended[place] = text
            if len(batch) and rng.random() < 0.02:
                batch.drop(rng.choice([key for key in going if key in batch]))
            keys = [key for key in going if key in batch]
            if keys:
                batch.step(rng.sample(keys, rng.randint(1, len(keys))))
        failed = [place for place, text in ended.items() if text.error]
        wrong = [
            {"prompt": place, "at": _first_difference(text.output, plain[place])}
            for place, text in ended.items()
            if not text.error and text.output != plain[place][: len(text.output)]
        ]
        found.append(
            {"method": method, "texts": len(ended), "failed": len(failed), "different": wrong}
        )
        note(str(found[-1]))
    return {"runs": found}


def _alone(session: Session, ids: list[int], sampler: Sampler, count: int) -> list[int]:
    text = Generation(ids, make_drafter("plain"), Stopping(count), sampler)
    for _ in decode(session.target, [text]):
        pass
    session.target.forget()
    return text.output


def _failing(at: int) -> Callable[[Any, Any], Any]:
    calls = 0

    def process(ids: Any, scores: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise ValueError("a processor that fails")
        return scores

    return process


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    return next(place for place, (a, b) in enumerate(zip(one, other)) if a != b)
