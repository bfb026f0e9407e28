# SPDX-License-Identifier: MIT
"""A `monkeypatch` whose undo leaves no attribute behind on an instance."""

from __future__ import annotations

from typing import Any

import pytest


class Patches(pytest.MonkeyPatch):
    """Set `instance.method` in the instance's own attributes, and delete it there at the end.

    Before pytest 9.2 the undo restores what `getattr` returned: the bound method then stays in the
    instance, where it hides what later tests patch in the class.
    """

    def setattr(self, target: Any, name: Any, *value: Any, raising: bool = True) -> None:
        own = getattr(target, "__dict__", None)
        of_class = getattr(type(target), name, None) if isinstance(name, str) else None
        if (
            value
            and isinstance(own, dict)
            and name not in own
            and of_class is not None
            and not hasattr(type(of_class), "__set__")
        ):
            self.setitem(own, name, value[0])
        else:
            super().setattr(target, name, *value, raising=raising)
