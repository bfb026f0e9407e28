# SPDX-License-Identifier: MIT
"""Every operator as a function: `gist_pack1_encoder(x)` is `GistPack1Encoder()(x)`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .call.arguments import CALL, by_declared_names, function_signature
from .registry import get_op, names

OPERATORS = {get_op(name).function_name: get_op(name) for name in names()}


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """The function of this name, with its operator's names, signature and help text."""
    cls = OPERATORS[name]
    declaration = cls.declaration
    others = declaration.other_attributes
    declared = frozenset((*(item.name for item in cls.attributes), *others))
    is_plain = not others and not cls.takes_keywords
    of_call = frozenset((*CALL, *(item.name for item in cls.inputs), *declaration.other_inputs))

    def call_operator(*inputs: object, **keywords: Any) -> Any:
        if is_plain and declared.issuperset(keywords):  # there is nothing to take apart
            return cls.shared(**keywords)(*inputs)
        attributes = {}
        given = keywords.keys() - of_call if cls.takes_keywords else declared.intersection(keywords)
        for name in given:  # a comprehension would be a call
            attributes[name] = keywords.pop(name)
        if others:
            attributes = by_declared_names(cls.name, others, attributes)
        return cls.shared(**attributes)(*inputs, **keywords)

    call_operator.__name__ = call_operator.__qualname__ = name
    call_operator.__module__ = __package__  # where pickle finds it
    call_operator.__doc__ = cls.__doc__
    call_operator.__signature__ = function_signature(declaration)  # type: ignore[attr-defined]
    return call_operator
