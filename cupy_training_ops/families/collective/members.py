# SPDX-License-Identifier: MIT
"""Sub-groups of a process group by `group_type`, and which of their ranks owns a tensor of a list.

With h ranks side by side in a horizontal group and l ranks on a node, rank r belongs to:

    0  global             all ranks
    1  data               r mod h, and every h-th rank after it
    2  node-local data    those of its data group on its node
    3  cross-node data    those of its data group at its place on their nodes
    4  horizontal         the h ranks from r - r mod h on
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...errors import refuse
from ...process_group import ProcessGroup
from ...process_group.engine import Ranks
from ...process_group.group import Sizes

ALIGNMENT = 32  # elements of a rank's chunk of a list are a multiple of it
GLOBAL, DATA, NODE_LOCAL, CROSS_NODE, HORIZONTAL = range(5)
NAMES = ("global", "data", "node-local data", "cross-node data", "horizontal")


def members(op: str, group: ProcessGroup, group_type: int) -> Ranks:
    """Return the ranks of this rank's sub-group of a group_type 0 to 4; refuse one there is not.

    op: the operator's name, for the error.
    """
    known = sub_groups(group.rank, group.size, group.sizes)
    if group_type in known:
        return known[group_type]
    if not 0 <= group_type < len(NAMES):
        expected = ", ".join(f"{i} ({name})" for i, name in enumerate(NAMES))
        refuse(op, "group_type", f"one of {expected}", str(group_type))
    expected = "a type that the group's sizes (data_size, horizontal_size, local_size) tell"
    refuse(op, "group_type", expected, f"{group_type} ({NAMES[group_type]})")


def sub_groups(rank: int, n: int, sizes: Sizes) -> dict[int, Ranks]:
    """Return the ranks of the sub-groups of rank `rank` of n, by `group_type`.

    sizes: of data, horizontal and local groups, None where it was not said; types that need an
    absent one are absent.
    """
    data, horizontal, local = sizes
    groups = {GLOBAL: tuple(range(n))}
    if data or horizontal:
        side = horizontal or n // (data or 1)
        groups[DATA] = own = tuple(range(rank % side, n, side))
        if local:
            groups[NODE_LOCAL] = tuple(r for r in own if r // local == rank // local)
            groups[CROSS_NODE] = tuple(r for r in own if r % local == rank % local)
    if horizontal:
        first = rank - rank % horizontal
        groups[HORIZONTAL] = tuple(range(first, first + horizontal))
    return groups


def owners(op: str, sizes: Sequence[int], n_ranks: int) -> list[int]:
    """Return the rank that owns each tensor of a list, by the place in its sub-group.

    op: the operator's name, for errors. sizes: elements of the tensors. One behind the other they
    are divided into n_ranks equal chunks of a multiple of 32 elements; the rank in whose chunk a
    tensor lies owns it, and a tensor in two chunks is refused. Behind the last tensor is padding, 1
    to 32 n_ranks elements.
    """
    total, alignment = sum(sizes), ALIGNMENT * n_ranks
    chunk = (total + alignment - total % alignment) // n_ranks
    owning = []
    starts = itertools.accumulate(sizes, initial=0)
    for i, (start, size) in enumerate(zip(starts, sizes, strict=False)):
        owner = start // chunk
        if start + size > (owner + 1) * chunk:
            expected = f"a tensor inside one rank's chunk of {chunk} elements, to be owned whole"
            refuse(op, f"input[{i}]", expected, f"elements {start} to {start + size}")
        owning.append(owner)
    return owning
