# SPDX-License-Identifier: MIT
"""Summary: an object in a line of text, and in a notebook as a table."""

from __future__ import annotations

from .errors import printable


class Summary:
    """Base of objects whose `repr` and table for notebooks show `_facts`."""

    def _facts(self) -> dict[str, object]:
        """Return values to show, by name; does not wait for a GPU."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self._facts().items())
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        """Return a table of the facts, for notebooks."""
        from html import escape

        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(printable(str(value)))}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<table><caption>{escape(type(self).__name__)}</caption>{rows}</table>"
