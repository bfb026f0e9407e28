# SPDX-License-Identifier: MIT
"""What collectives share: their group, and steps that queue calls of NCCL or copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, cast

from ...declare.schema import Spec, attribute, integer
from ...dtypes import FLOATS
from ...errors import ArgumentError, OpError, refuse, shown
from ...frame.call import Call
from ...frame.keys import attribute_key
from ...frame.op import Op
from ...frame.prepared import Prepared
from ...plan import Pointers, Step, Work
from ...process_group import ProcessGroup, nccl
from ...process_group.exchange import described
from ...process_group.members import GLOBAL, Members

Specs = Sequence[Spec]
Rows = Sequence[nccl.Row]

NUMBERS = (*FLOATS, *nccl.INTEGERS)


def process_group(value: object) -> ProcessGroup:
    """A ProcessGroup."""
    if not isinstance(value, ProcessGroup):
        raise ArgumentError(f"expected a ProcessGroup, got {shown(value)}")
    return value


GROUP_TYPE = attribute(
    integer, 0, doc="0 all ranks, 1 data, 2 node-local data, 3 cross-node data, 4 horizontal"
)


class Collective(Op):
    """What ranks do together: a group that is open and on the arrays' device."""

    takes_tensors = False  # NCCL is given CuPy's current stream

    provider = "NumPy arrays travel through rank 0, CuPy arrays by NCCL on their device."
    runs_empty = True
    group = attribute(process_group, doc="the ranks that make this call")
    group_type: int = GLOBAL  # where there is no such attribute
    ranks: Members

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        vars(self).update(ranks=self.group.members(self.name, self.group_type))

    def __call__(self, /, *inputs: object, **keywords: Any) -> Any:
        group = self.group
        begun = group.begun
        try:
            return super().__call__(*inputs, **keywords)
        except OpError:
            raise
        except BaseException as error:
            if group.begun == begun:  # no other rank has heard of this call
                raise
            raise group.broken(self.name, error) from error

    @classmethod
    def shared(cls, **attributes: object) -> Self:
        """The instance that its group keeps, and that ends with it."""
        group = attributes.get("group")
        try:
            rest = [(name, attribute_key(v)) for name, v in attributes.items() if name != "group"]
            hash(key := (cls, tuple(rest)))
        except (KeyError, TypeError):  # what cannot be part of a key
            return cls(**attributes)
        if not isinstance(group, ProcessGroup):
            return cls(**attributes)
        return cast(Self, group.instance(key, lambda: cls(**attributes)))

    def checks(self) -> tuple[Callable[..., None], ...]:
        """That the group is open, which calls that reach other ranks look at themselves."""
        group, name = self.group, self.name
        return () if self.reaches_others else (lambda *_: group.require_open(name),)

    @property
    def reaches_others(self) -> bool:
        return self.ranks.size > 1

    def own_call(self, prepared: Prepared) -> Call | None:
        """No way of its own; refuses what would leave the other ranks waiting."""
        self.group.require_device(self.name, prepared.placement.device)
        if any(result.spec is None for result in prepared.results):
            refuse(self.name, "outputs", "all outputs, which the other ranks wait for", "fewer")
        return None

    def call_name(self) -> str:
        """The operator and its attributes, in words that ranks compare."""
        return f"{self.name}(group_type={self.group_type}) on cuda"

    def queued(self, specs: Specs, outputs: Specs, rows: Rows) -> Step:
        """All calls of NCCL as one step."""
        agree = self.agreement(specs)
        calls = nccl.Calls(self.group, self.name, self.ranks, rows, agree)
        return Work("call", (calls, table(specs), table(outputs)))

    def agreement(self, specs: Specs) -> Callable[[], None]:
        """What compares this kind of call with the other ranks'."""
        text = described(self.call_name(), specs)
        group, op, members = self.group, self.name, self.ranks
        return lambda: group.agree(op, members, text)


def table(specs: Specs) -> Pointers:
    return Pointers(tuple(specs), max(1, len(specs)))


def copies(sources: Specs, targets: Specs) -> Iterator[Step]:
    """Copies of what does not stay where it is."""
    for source, target in zip(sources, targets, strict=True):
        if source.size and not target.in_place:
            yield Work("copy", (source, target))
