# SPDX-License-Identifier: MIT
"""Modules that torch.compile does not look into: calls of them are made between its graphs.

Its rules are its own module's, which is imported late, and takes seconds: names wait for it.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

RULES = "torch._dynamo.trace_rules"
Package = tuple[str, Sequence[str], Collection[str]]


def leave_alone(name: str, path: Sequence[str], apart: Collection[str]) -> None:
    """Let torch.compile leave a package's modules alone, but for those apart."""
    rules = sys.modules.get(RULES)
    if hasattr(rules, "add"):
        _add(rules, (name, path, apart))
    else:
        sys.meta_path.insert(0, _Waiting((name, path, apart)))


class _Waiting:
    """Finds the rules in the place of Python's own finder, and adds to them once they are there."""

    def __init__(self, package: Package) -> None:
        self._package = package

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """The spec of RULES alone, whose module adds the package once it was executed."""
        if name != RULES:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)  # from another _Waiting, or from Python
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_add(module: ModuleType) -> None:
                execute(module)
                _add(module, self._package)

            spec.loader.exec_module = execute_and_add  # type: ignore[method-assign]
        return spec


def _add(rules: object, package: Package) -> None:
    """Let torch.compile leave each module of the package alone that is not in `apart`."""
    name, path, apart = package
    for module in pkgutil.iter_modules(path):
        if module.name not in apart:
            rules.add(f"{name}.{module.name}")  # type: ignore[attr-defined]
