"""Structures of the C library's functions on trees, for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p

__all__ = ["Kinds", "Sizing", "Union"]


class Kinds(ctypes.Structure):
    """`struct pl_kinds` of native/src/calibration.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("borders", "depths")),
        *((name, c_int64) for name in ("border_count", "depth_count")),
        *((name, c_double) for name in ("least", "most", "unknown", "prior")),
    )


class Sizing(ctypes.Structure):
    """`struct pl_sizing` of native/src/calibration.h."""

    _fields_ = (
        ("of", c_void_p),
        ("nodes", c_int64),
        *((name, c_void_p) for name in ("tokens", "parents", "sources", "weights")),
        ("sure", c_double),
        *((name, c_void_p) for name in ("costs", "path_chances", "kept")),
        ("keeps", c_int64),
        ("promised", c_double),
    )


class Union(ctypes.Structure):
    """`struct pl_union` of native/src/unions.h."""

    _fields_ = (
        *((name, c_int64) for name in ("alike", "room", "nodes")),
        *((name, c_void_p) for name in ("tokens", "parents", "sources", "claims", "weights")),
        ("sure", c_double),
        *((name, c_int64) for name in ("count", "at", "by")),
        *((name, c_void_p) for name in ("given_tokens", "given_parents", "given_weights")),
        ("unweighted", c_double),
        ("places", c_void_p),
    )
