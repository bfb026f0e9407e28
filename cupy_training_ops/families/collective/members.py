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

from ...errors import refuse
from ...process_group import ProcessGroup
from ...process_group.engine import Ranks
from ...process_group.group import Sizes

GLOBAL, DATA, NODE_LOCAL, CROSS_NODE, HORIZONTAL = range(5)
NAMES = ("global", "data", "node-local data", "cross-node data", "horizontal")


def members(op: str, group: ProcessGroup, group_type: int) -> Ranks:
    """The sub-group of this type; refused where there is none."""
    found = sub_groups(group.rank, group.size, group.sizes)
    if group_type in found:
        return found[group_type]
    if not 0 <= group_type < len(NAMES):
        expected = ", ".join(f"{i} ({name})" for i, name in enumerate(NAMES))
        refuse(op, "group_type", f"one of {expected}", str(group_type))
    expected = "a type that the group's sizes (data_size, horizontal_size, local_size) tell"
    refuse(op, "group_type", expected, f"{group_type} ({NAMES[group_type]})")


def sub_groups(rank: int, n: int, sizes: Sizes) -> dict[int, Ranks]:
    """Sub-groups of a rank of n by `group_type`, as far as the sizes tell them."""
    data, horizontal, local = sizes
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
