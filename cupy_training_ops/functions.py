# SPDX-License-Identifier: MIT
"""Every operator as a function: `gist_pack1_encoder(x)` is `GistPack1Encoder()(x)`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .frame.op import Op, attribute_parameters
from .registry import get_op, names

_CALL = ("out", "outputs", "workspace")


OPERATORS = {get_op(name).function_name: get_op(name) for name in names()}


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """The function of this name, with its operator's names, signature and help text."""
    cls = OPERATORS[name]

    def call_operator(*inputs: object, **keywords: Any) -> Any:
        call = {name: keywords.pop(name) for name in _CALL if name in keywords}
        return cls.shared(**keywords)(*inputs, **call)

    call_operator.__name__ = call_operator.__qualname__ = name
    call_operator.__doc__ = cls.__doc__
    call_operator.__signature__ = signature(cls)  # type: ignore[attr-defined]
    return call_operator


def signature(cls: type[Op]) -> inspect.Signature:
    """Inputs by position, then attributes and the arguments of every call by keyword."""
    positional = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.POSITIONAL_ONLY,
            default=None if item.optional else inspect.Parameter.empty,
        )
        for item in cls.inputs
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    call = [inspect.Parameter(name, keyword, default=None) for name in _CALL]
    return inspect.Signature([*positional, *attribute_parameters(cls), *call])
