"""How often the guesses of a text's trees come true: in the C library, or in Python without it.

Both count and choose alike; tests compare them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from math import inf
from weakref import finalize

from paceline.kernels.native.buffer import Buffer
from paceline.kernels.native.calls import kernels, unavailable
from paceline.kernels.native.signatures import Kinds, Sizing
from paceline.planning import calibration as counted
from paceline.planning.calibration import Calibration, Watch
from paceline.planning.sizing import best_count
from paceline.tree import Tree
from paceline.tree_columns import TreeColumns


class _CountedSession(Calibration):
    """Without the library."""

    def begin(self, memory: float, evidence: float) -> _CountedText:
        """The calibration of a new text; see `Calibration.inherited`."""
        return _CountedText(self.inherited(memory, evidence), self)


class _CountedText:
    """Without the library."""

    def __init__(self, own: Calibration, everyone: Calibration) -> None:
        self._own, self._all, self._watch = own, everyone, Watch()

    def expect(self, tree: Tree) -> list[float]:
        """Watch a tree proposed at the current end of the text. Returns how likely each node is to
        be accepted, never more than its parent."""
        self._watch.expect(tree)
        return self._own.path_chances(tree)

    def choose(self, tree: Tree, sure: float, costs: Sequence[float]) -> tuple[list[int], float]:
        """Watch the tree, and choose the nodes that gain most tokens for the time of their pass, see
        `best_count`: these, ascending, and the expected number of accepted ones."""
        path_chances = self.expect(tree)
        order = sorted(range(len(tree)), key=lambda node: -path_chances[node])
        nodes = sorted(order[: best_count(sure, [path_chances[node] for node in order], costs)])
        guesses = (node for node in nodes if tree.weights is None or tree.weights[node])
        return nodes, sum(path_chances[node] for node in guesses)

    def observe(self, tokens: Sequence[int]) -> None:
        """Count the evidence in these committed tokens, for this text and for all."""
        for seen in self._watch.observe(tokens):
            self._own.add(seen)
            self._all.add(seen)

    def forget_trees(self) -> None:
        """Watch none of the trees so far any longer: the text's last tokens were changed."""
        self._watch = Watch()


_BORDERS = (ctypes.c_double * len(counted.BORDERS))(*counted.BORDERS)
_DEPTHS = (ctypes.c_int64 * len(counted.DEPTHS))(*counted.DEPTHS)
_KINDS = Kinds(
    borders=ctypes.addressof(_BORDERS),
    depths=ctypes.addressof(_DEPTHS),
    border_count=len(_BORDERS),
    depth_count=len(_DEPTHS),
    least=counted.LEAST,
    most=counted.MOST,
    unknown=counted.UNKNOWN,
    prior=counted.PRIOR,
)


class _Held:
    """A calibration in the library, by its handle there; freed when nothing needs this any more."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        # Not at the end of the process, as a thread may use it.
        finalize(self, kernels().calibration_free, handle).atexit = False


class _NativeSession:
    """In the library; see `_CountedSession`. Its buffers carry trees there and results back."""

    def __init__(self, memory: float) -> None:
        self.native, self.call = kernels(), Sizing()
        self.held = _Held(self.native.calibration_new(ctypes.addressof(_KINDS), memory))
        self._size_tree = partial(self.native.size_tree, ctypes.addressof(self.call))
        self._tree, self._costs = TreeColumns(self.call.tree), Buffer(ctypes.c_double)
        self._make_room()

    def begin(self, memory: float, evidence: float) -> _NativeText:
        return _NativeText(self, memory, evidence)

    def size(self, tree: Tree, of: _Held, costs: Sequence[float] | None = None) -> None:
        """Expect a tree for the calibration `of` or, given `costs`, choose its nodes."""
        call = self.call
        self._tree.put(tree)
        if self._tree.room > len(self.kept):
            self._make_room()
        call.of, call.costs = of.handle, None if costs is None else self._costs.put(costs)
        self._size_tree()

    def _make_room(self) -> None:
        """Make room for results of as many nodes as the tree may have."""
        room, at = self._tree.room, ctypes.addressof
        kept, self.path_chances = (ctypes.c_int64 * room)(), (ctypes.c_double * room)()
        self.call.kept, self.call.path_chances = at(kept), at(self.path_chances)
        self.kept = kept  # last, in case of an interruption: its length is the room


class _NativeText:
    """In the library; see `_CountedText`."""

    def __init__(self, session: _NativeSession, memory: float, evidence: float) -> None:
        self._session, self._native, self._memory = session, session.native, memory
        self._held = self._inherited(session.held, evidence)
        self._said = Buffer(ctypes.c_int64)

    def expect(self, tree: Tree) -> list[float]:
        self._session.size(tree, self._held)
        return self._session.path_chances[: len(tree)]

    def choose(self, tree: Tree, sure: float, costs: Sequence[float]) -> tuple[list[int], float]:
        session, call = self._session, self._session.call
        call.sure = sure
        session.size(tree, self._held, costs)
        return session.kept[: call.keeps], call.promised

    def observe(self, tokens: Sequence[int]) -> None:
        own, every = self._held.handle, self._session.held.handle
        self._native.calibration_observe(own, every, self._said.put(tokens), len(tokens))

    def forget_trees(self) -> None:
        # An heir knows the same, and watches nothing yet.
        self._held = self._inherited(self._held, inf)

    def _inherited(self, known: _Held, evidence: float) -> _Held:
        return _Held(self._native.calibration_heir(known.handle, self._memory, evidence))


TextCalibration = _CountedText | _NativeText
"""What is known about the guesses of one text, and its trees that may still come true."""

SessionCalibration = _CountedSession | _NativeSession
"""What is known about the guesses of one drafter on all texts."""


def new_calibration(memory: float) -> SessionCalibration:
    """A calibration in the library, if there is one."""
    return _CountedSession(memory) if unavailable() else _NativeSession(memory)
