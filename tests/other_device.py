"""A device that is the CPU in disguise, for tests of code that should also run on a GPU.

Its tensors say that they are on `DEVICE`, and operators run on the CPU tensors inside them. As with
CUDA, an operator fails that gets tensors of both devices; only scalars and indices may be on the
CPU. So mixed devices are found where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "elsewhere"
DEVICE = f"{NAME}:0"
_ATEN = torch.ops.aten
_COPIES = (_ATEN.copy_.default, _ATEN._to_copy.default)
_INDEXING = (
    _ATEN.index.Tensor,
    _ATEN.index_put.default,
    _ATEN.index_put_.default,
    _ATEN._index_put_impl_.default,
)
_FROM_DATA = (torch.tensor, torch.as_tensor)


@contextmanager
def other_device() -> Iterator[str]:
    """Inside, `DEVICE` exists; yields its name."""
    _register()
    with _Constructors(), _Operators():
        yield DEVICE


class Elsewhere(torch.Tensor):
    """A tensor on `DEVICE`; inner: the same on the CPU."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Elsewhere:
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(DEVICE),
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(operator, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Elsewhere({self.inner})"


class _Operators(TorchDispatchMode):
    """Runs operators that name `DEVICE`, or have tensors there."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(operator, args, kwargs or {})


class _Constructors(TorchFunctionMode):
    """What does not become an operator: tensors of Python's numbers, and the way back."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _FROM_DATA and _is_here(kwargs.get("device")):
            return function(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        if args and isinstance(args[0], Elsewhere):
            if function is torch.Tensor.tolist:
                return args[0].inner.tolist()
            if function in (torch.Tensor.numpy, torch.Tensor.data_ptr):
                raise TypeError(f"{function} of a tensor on {DEVICE}")
            if function is torch.Tensor.__getitem__ and isinstance(args[1], list):
                return args[0][torch.tensor(args[1])]
        return function(*args, **kwargs)


@cache
def _register() -> None:
    registration = pytest.importorskip("torch.utils.backend_registration")
    register = getattr(registration, "_setup_privateuseone_for_python_backend", None)
    if register is None:
        pytest.skip("this PyTorch cannot have a device made in Python")
    register(NAME)
    module: Any = torch.get_device_module(NAME)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]


def _is_here(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(operator: Any, args: Any, kwargs: Any) -> Any:
    flat: list[Any] = []

    def inner(each: Any) -> Any:
        flat.append(each)
        return _inner(each)

    # Inner tensors are never inference tensors: a view of one could not be wrapped.
    with torch.inference_mode(False), torch.no_grad():
        inner_args, inner_kwargs = _changed(inner, args), _changed(inner, kwargs)
        wrapped = {id(each.inner): each for each in flat if isinstance(each, Elsewhere)}
        made_here = _made_here(operator, args, flat)
        if wrapped and operator not in _COPIES:
            _check_devices(operator, args, flat)
        if made_here and any(isinstance(each, torch.Generator) for each in flat):
            raise RuntimeError(f"{operator} on {DEVICE} with a generator on the CPU")
        found = operator(*inner_args, **inner_kwargs)

        def outer(each: Any) -> Any:
            if not (made_here and isinstance(each, torch.Tensor)):
                return each
            # An operator in place returns what it was given.
            return wrapped[id(each)] if id(each) in wrapped else Elsewhere(each)

        return _changed(outer, found)


def _changed(change: Callable[[Any], Any], given: Any) -> Any:
    """What operators are given and give, each part changed; pytrees take several times as long."""
    if isinstance(given, tuple | list):
        return type(given)([_changed(change, each) for each in given])
    if isinstance(given, dict):
        return {name: _changed(change, each) for name, each in given.items()}
    return change(given)


def _made_here(operator: Any, args: Any, flat: list[Any]) -> bool:
    named = [each for each in flat if isinstance(each, torch.device)]
    if named:
        return _is_here(named[0])
    tensors = args[:1] if operator is _ATEN.copy_.default else flat
    return any(isinstance(each, Elsewhere) for each in tensors)


def _check_devices(operator: Any, args: Any, flat: list[Any]) -> None:
    tensors = [each for each in flat if isinstance(each, torch.Tensor) and each.dim()]
    strange = [each for each in tensors if not isinstance(each, Elsewhere)]
    if strange and not (operator in _INDEXING and isinstance(args[0], Elsewhere)):
        raise RuntimeError(f"{operator} got tensors on {DEVICE} and on the CPU")


def _inner(each: Any) -> Any:
    if isinstance(each, Elsewhere):
        return each.inner
    return torch.device("cpu") if isinstance(each, torch.device) and _is_here(each) else each
