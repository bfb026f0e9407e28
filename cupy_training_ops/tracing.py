# SPDX-License-Identifier: MIT
"""Modules that torch.compile does not trace: calls of them are made between its graphs.

They are names in a module of PyTorch's, which takes seconds to import and is imported late: names
are added once it is.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

RULES = "torch._dynamo.trace_rules"
Package = tuple[str, Sequence[str], Collection[str]]  # name, `__path__`, modules to be traced


def leave_alone(name: str, path: Sequence[str], apart: Collection[str]) -> None:
    """Let torch.compile not trace a package's modules, now or once PyTorch's rules are imported.

    name, path: `__name__` and `__path__` of the package. apart: its modules that are traced.
    """
    rules = sys.modules.get(RULES)
    if hasattr(rules, "add"):
        _add(rules, (name, path, apart))
    else:
        sys.meta_path.insert(0, _Waiting((name, path, apart)))


class _Waiting:
    """An import finder that adds a package to RULES when that module is imported, then removes
    itself."""

    def __init__(self, package: Package) -> None:
        self._package = package

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the spec of RULES, whose loader then adds the package; None for other modules."""
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
    """Add to `rules` the name of each module of the package that is not to be traced."""
    name, path, apart = package
    for module in pkgutil.iter_modules(path):
        if module.name not in apart:
            rules.add(f"{name}.{module.name}")  # type: ignore[attr-defined]
