# SPDX-License-Identifier: MIT
"""Operators that no provider computes: views of an input, and Python functions of the caller's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .call import Call
from .op import Op
from .prepared import Prepared
from .providers import DelegatedCall, ViewCall


class ViewOp(Op):
    """An operator that computes nothing: its one list of outputs is pieces of its first input."""

    no_out = "results are views of the input"
    provider = "NumPy and CuPy arrays alike: nothing is computed or launched."

    def own_call(self, prepared: Prepared) -> Call:
        """Views of the input's memory."""
        return ViewCall(prepared)


class DelegatingOp(Op):
    """An operator that hands the call to a Python callable; its results are taken as they are."""

    takes_tensors, detaches = False, True
    no_out = "results are the callable's own arrays"
    provider = "NumPy and CuPy arrays alike: a Python callable computes."
    callee = ""  # what messages call it

    def delegate(self, *inputs: Any) -> object:
        """The results, from inputs as the CPU function would get them."""
        raise NotImplementedError

    @contextlib.contextmanager
    def delegation(self, *inputs: Any) -> Iterator[object]:
        """The same as a context, which ends with an error where a result is refused."""
        yield self.delegate(*inputs)

    def own_call(self, prepared: Prepared) -> Call:
        """The callable's results, never copied."""
        return DelegatedCall(prepared, self.delegation, self.callee, self.runs_functions)
