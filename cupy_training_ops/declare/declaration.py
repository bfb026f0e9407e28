# SPDX-License-Identifier: MIT
"""An operator's declaration, made once when its class is."""

from __future__ import annotations

from dataclasses import replace

from .schema import Attribute


def taken_attributes(cls: type) -> tuple[Attribute, ...]:
    """The attributes of a class: those of its bases, then those in its body, in their order.

    One that the body states again stands where the body has it. They are taken off the class: what
    an instance has under the name is a value, which no attribute of the class is to slow down.
    """
    own = {n: replace(item, name=n) for n, item in vars(cls).items() if isinstance(item, Attribute)}
    for name in own:
        delattr(cls, name)
    found: dict[str, Attribute] = {}
    for base in cls.__mro__[1:]:  # the nearest one counts
        for item in vars(base).get("attributes", ()):
            found.setdefault(item.name, item)
    return (*(item for name, item in found.items() if name not in own), *own.values())
