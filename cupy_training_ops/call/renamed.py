# SPDX-License-Identifier: MIT
"""Other names of inputs, outputs and attributes: upstream's, and those of releases before."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping

from ..declare.declaration import Others
from ..errors import refuse

_PACKAGE = __name__.partition(".")[0]


def current(op: str, known: Others, name: str) -> str:
    """The declared name; DeprecationWarning, at the caller's line, for one of a release before."""
    other = known.get(name)
    if other is None:
        return name
    if other.is_old:
        text = f"{op}: {name} is called {other.name} now"
        warnings.warn(text, DeprecationWarning, stacklevel=_depth())
    return other.name


def named(op: str, known: Others, given: Mapping[str, object]) -> dict[str, object]:
    """Arguments by their declared names, each given once."""
    found: dict[str, object] = {}
    for name, value in given.items():
        declared = current(op, known, name)
        if declared in found:
            refuse(op, declared, "one value", f"one by another name, {name}")
        found[declared] = value
    return found


def _depth() -> int:
    """Frames from `current` up to the first that is not the package's."""
    depth, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        depth, frame = depth + 1, frame.f_back
    return depth + 1
