# SPDX-License-Identifier: MIT
"""Every operator as a function: `gist_pack1_encoder(x)` is `GistPack1Encoder()(x)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .frame.op import Op, attribute_parameters
from .registry import get_op, names

_CALL = ("out", "outputs", "workspace")


def as_function(cls: type[Op]) -> Callable[..., Any]:
    """The operator as a function with the same names, signature and help text."""

    def function(*inputs: Any, **keywords: Any) -> Any:
        call = {name: keywords.pop(name) for name in _CALL if name in keywords}
        return cls.shared(**keywords)(*inputs, **call)

    function.__name__ = function.__qualname__ = cls.function_name
    function.__doc__ = cls.__doc__
    function.__signature__ = signature(cls)  # type: ignore[attr-defined]
    return function


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


FUNCTIONS = {get_op(name).function_name: as_function(get_op(name)) for name in names()}
