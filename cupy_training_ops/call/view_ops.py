# SPDX-License-Identifier: MIT
"""Operators that no provider computes: views of an input, and the caller's Python functions.

Their calls get what is known of a call in `prepared`, and arguments as described in `Call`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..backend import Array, ArrayInfo
from ..declare.schema import Open, Spec
from ..dtypes import dtype_name
from ..errors import refuse
from .arguments import adopt
from .backends import info
from .interop import same_stream
from .op import Op
from .prepared import Arguments, Arrays, Prepared, Result
from .run import Call, Placed


class ViewCall(Call):
    """A call whose list of results is consecutive pieces of the first input."""

    repeats = False

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        specs = [result.spec for result in prepared.results if result.spec is not None]
        self.unwanted = len(specs) < len(prepared.results)  # the list is not asked for
        # Pieces (start in bytes, shape): (0, (2, 3)) and (24, (4,)) for
        # float32 of shapes (2, 3) and (4,).
        starts = itertools.accumulate((spec.nbytes for spec in specs), initial=0)
        self.pieces = tuple(zip(starts, (spec.shape for spec in specs), strict=False))
        self.makes_arrays = False  # `bound` need not allocate results

    def __call__(self, inputs: Arguments, out: Arguments, workspace: object) -> Any:
        """Return views of the first input, one for each result; None for each if `outputs=` lacks
        the list. out, workspace: not used."""
        if self.records:
            self.refuse_gradients(inputs[:1])
        if self.unwanted:
            return (None,) * len(self.prepared.results)
        return self.backend.views(inputs[0], self.pieces)

    def finish(
        self,
        inputs: Arguments,
        arrays: Arrays,
        out: Arrays,
        workspace: object,
        placed: Placed | None = None,
    ) -> object:
        """Make the views of the first of the inputs again, for a bound call; arrays, out, workspace
        and placed are not used."""
        return self(inputs, out, workspace)


class DelegatedCall(Call):
    """A call of a Python callable, whose results are returned as arrays over their memory."""

    repeats = False

    def __init__(
        self,
        prepared: Prepared,
        delegation: Callable[..., AbstractContextManager[Any]],
        callee: str,
        shares_stream: bool,
    ) -> None:
        """delegation: a context manager of all inputs, which calls the callable and yields its
        results. callee: its name in messages. shares_stream: PyTorch, and so Triton, uses CuPy's
        current stream while it runs."""
        super().__init__(prepared)
        self.delegation = delegation
        self.shares_stream = shares_stream
        self.of_callee = f" of {callee}" if callee else ""
        self.anywhere = not any(array.info for array in prepared.arrays)  # results on any device
        self.makes_arrays = False  # the callable does

    def finish(
        self,
        inputs: Arguments,
        arrays: Arrays,
        out: Arrays,
        workspace: object,
        placed: Placed | None = None,
    ) -> object:
        """Call the callable with all inputs; return its results, checked against inferred specs.

        arrays, out, workspace, placed: not used.
        """
        values = self.values(inputs)
        self._check(inputs, values)
        arguments = self._with_hosts(inputs, values)
        with self._current(), self.delegation(*arguments) as returned:
            results = self._adopt_results(self._one_by_one(returned))
        return results[0] if self.single_output else self.group_results(results)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the arrays' device and stream current while the callable runs."""
        device = self.device
        with contextlib.ExitStack() as stack:
            if not self.backend.is_current(device):
                stack.enter_context(self.backend.on(device))
            if self.shares_stream:
                stack.enter_context(same_stream(device))
            yield

    def _adopt_results(self, results: Sequence[object]) -> Arrays:
        """Return all results as NumPy or CuPy arrays; refuse another number than declared."""
        op, expected = self.prepared.op, self.prepared.results
        if len(results) != len(expected):
            refuse(op, f"results{self.of_callee}", f"{len(expected)} arrays", str(len(results)))
        return tuple([self._adopt_result(*pair) for pair in zip(expected, results, strict=True)])

    def _adopt_result(self, result: Result, value: object) -> Array | None:
        """Return a result as a NumPy or CuPy array over its memory; None if it is not asked for.

        result: what was inferred. value: what the callable returned. Refuses another dtype, shape
        or device than inferred.
        """
        op, name, spec = self.prepared.op, result.name + self.of_callee, result.spec
        array: Array | None = adopt(op, name, value)
        if spec is None or (array is None and result.open and result.open.optional):
            return None
        expected = _words(result.open, spec)
        if array is None:
            refuse(op, name, expected, "None")
        actual = ArrayInfo.of(info(array))
        has_form = (actual.shape, actual.dtype) == (spec.shape, spec.dtype)
        if not (result.open.has(actual.spec) if result.open else has_form):
            refuse(op, name, expected, f"{dtype_name(actual.dtype)} of shape {actual.shape}")
        place = self.prepared.placement.place
        if result.computed and not self.anywhere and actual.place != place:
            refuse(op, name, f"an array on {place}", f"one on {actual.place}")
        return array


def _words(known: Open | None, spec: Spec) -> str:
    """Describe an expected result: "float32 of shape (2,)", "float32 of rank 1" if it is Open."""
    if known is None:
        return f"{dtype_name(spec.dtype)} of shape {spec.shape}"
    dtype = "an array" if known.dtype is None else dtype_name(known.dtype)
    return dtype if known.rank is None else f"{dtype} of rank {known.rank}"


class ViewOp(Op):
    """An operator whose one list of outputs is pieces of its first input."""

    no_out = "results are views of the input"
    provider = "NumPy and CuPy arrays alike: nothing is computed or launched."

    def own_call(self, prepared: Prepared) -> Call:
        """Return a call that makes views."""
        return ViewCall(prepared)


class DelegatingOp(Op):
    """An operator that calls a Python callable, and returns its results."""

    takes_tensors, detaches = False, True
    no_out = "results are the callable's own arrays"
    provider = "NumPy and CuPy arrays alike: a Python callable computes."
    callee = ""  # what messages call it

    def delegate(self, *inputs: Any) -> object:
        """Return the callable's results. inputs: arrays, and converted host values."""
        raise NotImplementedError

    @contextlib.contextmanager
    def delegation(self, *inputs: Any) -> Iterator[object]:
        """Yield the results of `delegate`; a refused result raises inside this context."""
        yield self.delegate(*inputs)

    def own_call(self, prepared: Prepared) -> Call:
        """Return a call of the callable."""
        return DelegatedCall(prepared, self.delegation, self.callee, self.runs_functions)
