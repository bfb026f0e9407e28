# SPDX-License-Identifier: MIT
"""Two ways to run an operator over tensors: `launch` computes, `infer` says what would come.

Bodies of registered operators are written for either. Whatever a launch of one kind needs is looked
up once, by dtypes, shapes, alignment and device; the next one allocates and queues.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...backend import Backend
from ...declare.schema import Spec
from ...dtypes import ELEMENT_TYPES, UINT8
from ...frame.backends import TENSORS, tensor_backend
from ...frame.foreign import Lent
from ...frame.op import Op
from ...frame.providers import KernelCall
from ..coding import ALIGNED, KEPT_NBYTES, Stream, stream_of

Run = Callable[..., Any]  # of an operator and its inputs: `launch` or `infer`

_MANY = 1024  # kinds of calls, and instances, that are remembered
OURS = {getattr(torch, r.name): r.dtype for r in ELEMENT_TYPES if hasattr(torch, r.name)}
_THEIRS = {dtype: theirs for theirs, dtype in OURS.items()}
_HOSTS = (int, tuple)  # host inputs that stand in a key as they are
_UNKNOWN = object()
_ready: dict[object, _Ready | None] = {}
_rooms: dict[object, Tensor] = {}


def _instance(cls: type[Op], **attributes: Any) -> Op:
    """The operator with these attributes, which functions share."""
    return cls.shared(**attributes)


instance: Callable[..., Any] = functools.lru_cache(_MANY)(_instance)


def launch(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
    """The operator's results, one or a tuple: those that are named, all without names."""
    backend = TENSORS.get(Tensor)
    if backend is None and not inputs_on_gpu(inputs):
        return _wanted(op(*inputs, outputs=outputs))
    backend = backend or tensor_backend()
    key = _key(op, backend, inputs, outputs)
    if key is None:
        return _wanted(op(*inputs, outputs=outputs))
    ready = _ready.get(key, _UNKNOWN)
    if ready is _UNKNOWN:
        ready = _remember(key, _prepared(op, inputs, outputs))
    return _wanted(op(*inputs, outputs=outputs)) if ready is None else ready(inputs)  # type: ignore[operator]


def inputs_on_gpu(inputs: Sequence[Any]) -> bool:
    """Whether a tensor is on one."""
    return any(isinstance(value, Tensor) and value.is_cuda for value in inputs)


def infer(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
    """Tensors without data, in the place of the results; shapes may be symbols."""
    device = next(value.device for value in inputs if isinstance(value, Tensor))
    inputs += (None,) * (len(op.inputs) - len(inputs))
    specs: Any = op.infer(*[_spec(value) for value in inputs])
    names = [output.name for output in op.outputs]
    return _wanted(
        tuple(
            torch.empty(tuple(spec.shape), dtype=_THEIRS[spec.dtype], device=device)
            for name, spec in zip(names, specs, strict=True)
            if outputs is None or name in outputs
        )
    )


def _spec(value: Any) -> Any:
    return Spec(tuple(value.shape), OURS[value.dtype]) if isinstance(value, Tensor) else value


def _wanted(results: Any) -> Any:
    """Of a tuple those that were asked for; one result for itself."""
    if not isinstance(results, tuple):
        return results
    found = tuple([result for result in results if result is not None])
    return found if len(found) > 1 else found[0]


def _key(
    op: Op, backend: Backend, inputs: Sequence[Any], outputs: Sequence[str] | None
) -> object | None:
    """What a launch depends on; None for a call that is looked up as any other is."""
    found: list[object] = [op, backend, outputs]
    for value in inputs:
        if isinstance(value, Tensor):
            address = value.data_ptr()
            if not address or not value.is_contiguous() or value.is_neg():
                return None
            found += (value.dtype, value.shape, value.device, address % ALIGNED == 0)
        elif value is None or type(value) in _HOSTS:
            found.append(value)
        else:
            return None
    return tuple(found)


class _Ready(NamedTuple):
    """A prepared call of kernels that take addresses alone."""

    call: KernelCall
    arrays: tuple[int, ...]  # which inputs are arrays
    taken: tuple[int, ...]  # which of these, and of the results behind them, kernels take

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """New results, and the launches that write them, on PyTorch's current stream."""
        call = self.call
        arrays = [inputs[place] for place in self.arrays]
        results = [make(arrays) if make else None for make in call.makers]
        every = arrays + results
        addresses = call.backend.pointers([every[place] for place in self.taken])
        stream = stream_of(call.backend.stream_address(call.device))
        if call.workspace_nbytes:
            scratch, is_clear = self._scratch(stream)
            (address,) = call.backend.pointers([scratch])
            call.at(addresses, stream, address, is_clear=is_clear)
        else:
            call.at(addresses, stream)
        return results[0] if len(results) == 1 else _wanted(tuple(results))

    def _scratch(self, stream: Stream) -> tuple[Any, bool]:
        """Scratch memory, and whether its zeros are there.

        Small ones are kept for each stream, where nothing comes between their use: kernels leave
        zeros behind. A graph has its own, since it may run beside other calls.
        """
        call, ready = self.call, self.call.ready
        nbytes, backend = call.workspace_nbytes, call.backend
        if nbytes > KEPT_NBYTES or not ready.is_one_launch or backend.capturing(call.device):
            return backend.empty(Spec((nbytes,), UINT8), call.device), False
        key = (backend, call.device, stream.ptr, ready.zeros_nbytes, nbytes)
        kept = _rooms.get(key)
        if kept is None:
            kept = _rooms.setdefault(key, backend.zeros(nbytes, call.device))
        return kept, True


def _prepared(op: Op, inputs: Sequence[Any], outputs: Sequence[str] | None) -> _Ready | None:
    """None where a call is more than launches over tensors of one GPU."""
    lent = Lent(op.inputs, inputs, (None,), natively=op.knows_tensors, detaches=True)
    call, _, _ = op.prepared_call(tuple(inputs), (None,), outputs, lent)
    if not isinstance(call, KernelCall) or not call.ready.takes_addresses:
        return None
    pairs = zip(call.prepared.results, call.makers, strict=True)
    makes_all = all(result.spec is None or make for result, make in pairs)
    if lent or call.checks or call.supplied is not None or not makes_all:
        return None
    arrays = tuple(place for place, _ in call.array_places)
    return _Ready(call, arrays, tuple(sorted(call.ready.taken)))


def _remember(key: object, ready: _Ready | None) -> _Ready | None:
    if len(_ready) >= _MANY:
        _ready.clear()
    _ready[key] = ready
    return ready
