# SPDX-License-Identifier: MIT
"""Sub-groups by `group_type`.

With h ranks side by side in a horizontal group and l ranks on a node, of rank r:

    0  global             all ranks
    1  data               r mod h, and every h-th rank after it
    2  node-local data    those of its data group on its node
    3  cross-node data    those of its data group at its place on their nodes
    4  horizontal         the h ranks from r - r mod h on
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import refuse, shown

GLOBAL, DATA, NODE_LOCAL, CROSS_NODE, HORIZONTAL = range(5)
NAMES = ("global", "data", "node-local data", "cross-node data", "horizontal")

Ranks = tuple[int, ...]  # of a sub-group, in order


class Sizes(NamedTuple):
    """Ranks of a data and of a horizontal group, and of a node, as far as somebody says."""

    data_size: int | None = None
    horizontal_size: int | None = None
    local_size: int | None = None

    def check(self, n: int | None) -> None:
        """Refuse what is no number of ranks, and where there are n, what does not divide them."""
        for name, value in self._asdict().items():
            if value is not None and type(value) is not int:
                refuse("ProcessGroup", name, "a number of ranks", shown(value))
            if value is not None and n is not None and (value < 1 or n % value):
                refuse("ProcessGroup", name, f"a divisor of the {n} ranks", str(value))
        data, horizontal, _ = self
        if data and horizontal and n is not None and data * horizontal != n:
            expected = f"{n // data}, so that {data} times it are the {n} ranks"
            refuse("ProcessGroup", "horizontal_size", expected, str(horizontal))

    def sub_groups(self, rank: int, n: int) -> dict[int, Ranks]:
        """Those of a rank of n, as far as these sizes tell them."""
        self.check(n)
        data, horizontal, local = self
        found = {GLOBAL: tuple(range(n))}
        if data or horizontal:
            side = horizontal or n // (data or 1)
            found[DATA] = own = tuple(range(rank % side, n, side))
            if local:
                found[NODE_LOCAL] = tuple(r for r in own if r // local == rank // local)
                found[CROSS_NODE] = tuple(r for r in own if r % local == rank % local)
        if horizontal:
            first = rank - rank % horizontal
            found[HORIZONTAL] = tuple(range(first, first + horizontal))
        return found


def chosen(op: str, found: dict[int, Ranks], group_type: int) -> Ranks:
    """The sub-group of this type; refused where there is none."""
    if group_type in found:
        return found[group_type]
    if not 0 <= group_type < len(NAMES):
        expected = ", ".join(f"{i} ({name})" for i, name in enumerate(NAMES))
        refuse(op, "group_type", f"one of {expected}", str(group_type))
    expected = "a type that the group's sizes (data_size, horizontal_size, local_size) tell"
    refuse(op, "group_type", expected, f"{group_type} ({NAMES[group_type]})")
