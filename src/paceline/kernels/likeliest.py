"""The largest scores of each row, and their softmax shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.native.calls import kernels, unavailable

Floats = NDArray[np.float32]


def likeliest(rows: Floats, most: int) -> tuple[NDArray[np.int64], Floats]:
    """The `most` largest scores, or all if there are fewer, of each row of scores [n, numbers]:
    their places and their shares in the row's softmax, both [n, most]. The largest come first;
    among equals, the one at the lower place.

    If a row has fewer usable scores (-inf, NaN), its last places are 0, with share 0. All shares of
    a row with +inf or NaN are 0.
    """
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    count, numbers = rows.shape
    most = min(most, numbers)
    if unavailable():
        return _found(rows, most)
    places = np.empty((count, most), dtype=np.int64)
    shares = np.empty((count, most), dtype=np.float32)
    found = places.ctypes.data, shares.ctypes.data
    kernels().likeliest(rows.ctypes.data, count, numbers, most, *found)
    return places, shares


def _found(rows: Floats, most: int) -> tuple[NDArray[np.int64], Floats]:
    """The same without the library."""
    order = np.argsort(-rows, axis=-1, kind="stable")[:, :most]
    scores = np.take_along_axis(rows, order, axis=-1)
    with np.errstate(invalid="ignore"):
        totals = np.exp(rows - scores[:, :1]).sum(axis=-1, keepdims=True)
        found = np.exp(scores - scores[:, :1]) / totals
    said = scores > -np.inf
    return np.where(said, order, 0), np.where(said & np.isfinite(totals), found, np.float32(0))
