"""How near a one-token pass comes to the time of reading the weights; part of target_pass.py."""

from __future__ import annotations

from random import Random
from statistics import median, quantiles
from typing import Any

from paceline.planning.cost_curve import CostCurve
from paceline.planning.measure import Floor, bandwidth_now, measure_floor
from paceline.targets.weights import weight_bytes
from pair import Pair
from tables import new_table, show


def beside_reading(
    pair: Pair, curves: dict[str, CostCurve], context: int, repeats: int
) -> dict[str, Any]:
    """Compare each side with reading its weights at memory bandwidth."""
    prepared = measure_floor(pair.session.target)
    floors = {
        "transformers": Floor(weight_bytes(pair.native), prepared.gb_per_s),
        "paceline": prepared,
    }
    sides = {
        side: {
            "weight_bytes": floor.weight_bytes,
            "floor_ms": floor.milliseconds,
            "pass_ms": curves[side].cost(1),
            "share": floor.share(curves[side]),
        }
        for side, floor in floors.items()
    }
    in_turns = _in_turns(pair, prepared.weight_bytes, context, repeats)
    return {"gb_per_s": prepared.gb_per_s, "sides": sides, "in_turns": in_turns}


def _in_turns(pair: Pair, weight_bytes: int, context: int, repeats: int) -> dict[str, Any]:
    """One-row passes, each right after a memory read, so that other programs slow both alike."""
    random, size = Random(2), pair.session.target.vocab_size
    bandwidth, rates, seconds = bandwidth_now(pair.native.device), [], []
    with pair.passes([random.randrange(size) for _ in range(context + 1)]) as (_, own):
        for _ in range(3 * repeats):
            rates.append(bandwidth())
            seconds.append(own([]))
    ratios = [1e9 * rate * taken / weight_bytes for rate, taken in zip(rates, seconds)]
    low, middle, high = quantiles(ratios, n=4)
    return {
        "gb_per_s": median(rates),
        "pass_ms": 1000 * median(seconds),
        "over_reading": middle,
        "quartiles": [low, high],
    }


def show_floor(section: dict[str, Any]) -> None:
    title = f"a pass of one token at {section['gb_per_s']:.1f} GB/s"
    table = new_table(title, "", "weights MB", "floor ms", "ms", "share of the floor's speed")
    for side, found in section["sides"].items():
        table.add_row(
            side,
            f"{found['weight_bytes'] / 1e6:,.1f}",
            f"{found['floor_ms']:.2f}",
            f"{found['pass_ms']:.2f}",
            f"{found['share']:.0%}",
        )
    show(table)
    found, (low, high) = section["in_turns"], section["in_turns"]["quartiles"]
    print(
        f"in turns with reading memory ({found['gb_per_s']:.1f} GB/s): {found['pass_ms']:.2f} ms, "
        f"{found['over_reading']:.2f} times reading the weights, quartiles {low:.2f} and {high:.2f}"
    )
