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

from ..errors import refuse

GLOBAL, DATA, NODE_LOCAL, CROSS_NODE, HORIZONTAL = range(5)
NAMES = ("global", "data", "node-local data", "cross-node data", "horizontal")

Ranks = tuple[int, ...]  # of a sub-group, in order


def sub_groups(
    rank: int, size: int, data: int | None, horizontal: int | None, local: int | None
) -> dict[int, Ranks]:
    """The sub-groups of a rank, as far as the sizes that were given tell them."""
    check_sizes(size, data, horizontal, local)
    found = {GLOBAL: tuple(range(size))}
    if data is not None or horizontal is not None:
        side = horizontal if horizontal is not None else size // (data or 1)
        found[DATA] = own = tuple(range(rank % side, size, side))
        if local is not None:
            found[NODE_LOCAL] = tuple(r for r in own if r // local == rank // local)
            found[CROSS_NODE] = tuple(r for r in own if r % local == rank % local)
    if horizontal is not None:
        first = rank - rank % horizontal
        found[HORIZONTAL] = tuple(range(first, first + horizontal))
    return found


def check_sizes(size: int, data: int | None, horizontal: int | None, local: int | None) -> None:
    named = {"data_size": data, "horizontal_size": horizontal, "local_size": local}
    for name, value in named.items():
        if value is not None and (value < 1 or size % value):
            refuse("ProcessGroup", name, f"a divisor of the {size} ranks", str(value))
    if data is not None and horizontal is not None and data * horizontal != size:
        expected = f"{size // data}, so that {data} times it are the {size} ranks"
        refuse("ProcessGroup", "horizontal_size", expected, str(horizontal))


def chosen(op: str, found: dict[int, Ranks], group_type: int) -> Ranks:
    """The sub-group of this type; refused where there is none."""
    if group_type in found:
        return found[group_type]
    if not 0 <= group_type < len(NAMES):
        expected = ", ".join(f"{i} ({name})" for i, name in enumerate(NAMES))
        refuse(op, "group_type", f"one of {expected}", str(group_type))
    expected = "a type that the group's sizes (data_size, horizontal_size, local_size) tell"
    refuse(op, "group_type", expected, f"{group_type} ({NAMES[group_type]})")
