# SPDX-License-Identifier: MIT
"""From a node to what runs it: an operator of this package, or a function of the table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..call.op import Op
from ..errors import ArgumentError, cut
from ..registry import REGISTRY
from .graph import Node
from .kinds import Runner
from .ours import of_operator
from .standard import NEWEST, TABLE, Standard, find

_CONTRIB = ("", "ai.onnx", "com.microsoft")  # where upstream puts what the table has
_NAMES = {"ai.onnx": "", "": ""}
_BY_NAME: dict[str, list[type[Op]]] = {}
for _key, _cls in REGISTRY.items():
    _BY_NAME.setdefault(_key[1], []).append(_cls)


def runner(node: Node) -> Runner:
    """What runs a node; raises OpError with the reason why nothing does."""
    cls = _operator(node)
    if cls is not None:
        return of_operator(node, cls)
    if node.domain in _CONTRIB:
        item = find(node.op_type, node.version if node.is_standard else NEWEST)
        if item is not None:
            return _of_table(node, item)
        if node.op_type in TABLE:
            raise ArgumentError(f"not in opset {node.version}")
    raise ArgumentError(f"unknown operator {cut(node.op_type)} of {_shown(node.domain)}")


def _shown(domain: str) -> str:
    return f"domain {cut(domain)!r}" if domain else "ONNX's own domain"


def _operator(node: Node) -> type[Op] | None:
    """The class that serves a node: of its domain and version where there is one."""
    found = _BY_NAME.get(node.op_type, [])
    own = [cls for cls in found if _NAMES.get(cls.domain, cls.domain) == node.domain]
    in_table = node.is_standard and node.op_type in TABLE
    if not own:
        return None if in_table or not found else found[-1]
    if not node.is_standard:
        return max(own, key=lambda cls: cls.since)
    serving = [c for c in own if c.since <= node.version <= (c.until or node.version)]
    if not serving and not in_table:  # upstream has LayerNormalization from opset 1
        serving = own
    return max(serving, key=lambda cls: cls.since, default=None)


def _of_table(node: Node, item: Standard) -> Runner:
    """What runs a node by a function of the table, whose signature says what it takes."""
    count = {"n_outputs": len(node.outputs)} if item.takes_count else {}
    given = [bool(name) for name in node.inputs]
    attributes = item.checked(given, {**node.attributes, **count})
    return Runner(
        lambda xp: partial(_tabled, partial(item.function, xp, **attributes)),
        host=frozenset(item.host),
        makes_host=frozenset({0} if item.shapes_only and not item.grows else ()),
        follows=not item.shapes_only,
        shapes_only=item.shapes_only,
        grows=item.grows,
        views=dict.fromkeys(range(len(node.outputs)), 0) if item.view else {},
        keeps=item.keeps,
        overwrites=item.overwrites,
    )


def _tabled(function: Any, values: list[Any], out: Any = None) -> Sequence[Any]:
    """The results of a function as a sequence; NumPy's scalars become arrays."""
    result = function(*values) if out is None else function(*values, out=out[0])
    if type(result) is tuple:
        return tuple(map(_array, result))
    return (_array(result),)


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value
