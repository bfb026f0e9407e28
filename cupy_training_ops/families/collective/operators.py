# SPDX-License-Identifier: MIT
"""Collectives: one step over several processes, each with its GPU.

Every rank of the group makes the same calls in the same order. The first time that a rank makes a
call of its kind, its operator, shapes and types are compared with the other ranks', and a
difference is an error on all of them; later calls are not compared on the GPU. A rank that is gone,
later than the group's timeout, or stopped in the middle of a call is an error on all others.

CuPy arrays travel by NCCL, all of a list in one group of calls on the current stream, from where
they lie to where they go. NumPy arrays travel through rank 0, and every call is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from ...declare.schema import Inferred, Input, Output, Spec, attribute, one_of
from ...declare.type_rows import Types
from ...dtypes import FIXED_SIZE, FLOATS
from ...errors import refuse
from ...plan import Device, Plan, Step
from ...process_group import ProcessGroup
from . import plan_adasum as adasum
from . import queue
from .members import owners
from .plan import GROUP_TYPE, NUMBERS, Collective, Specs, copies
from .plan_letters import DONE, REMOTE, SIGNAL, Letter, Receiver

INPUT = Input("input", "T", variadic=True, shape="any shapes")
OUTPUT = Output("output", "T", variadic=True, aliases="input", shape="shapes of input")


class _OfLists(Collective):
    """A collective over a list of arrays, in place where there is no out=."""

    inputs: ClassVar[tuple[Input, ...]] = (INPUT,)
    outputs: ClassVar[tuple[Output, ...]] = (OUTPUT,)

    def infer(self, xs: Specs) -> tuple[Inferred, ...]:
        return (tuple(Spec(x.shape, x.dtype) for x in xs),)

    def plan(self, device: Device, xs: Specs, ys: Specs) -> Plan:
        if not self.reaches_others:
            return Plan(tuple(copies(xs, ys)))
        return Plan(tuple(self._steps(xs, ys)))

    def _steps(self, xs: Specs, ys: Specs) -> Iterator[Step]:
        raise NotImplementedError


class NcclAllReduce(_OfLists):
    """Sum over all ranks: output[i] = sum over ranks of input[i], in place.

    Halves are added in their own type on the GPU, and rounded once on the CPU provider.

    Memory: none beside what NCCL keeps.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/collective/nccl_kernels.cc,
    which also sums what lies between the inputs.
    """

    group_type = GROUP_TYPE
    types: ClassVar[Types] = {"T": NUMBERS}

    def _steps(self, xs: Specs, ys: Specs) -> Iterator[Step]:
        yield self.nccl_step(
            xs, ys, [queue.row("allReduce", x.size, x.dtype, queue.SUM) for x in xs]
        )


class _OfOwners(_OfLists):
    """A collective in which every array of the list is owned by one rank."""

    def infer(self, xs: Specs) -> tuple[Inferred, ...]:
        self._owners(xs)
        return super().infer(xs)

    def _owners(self, xs: Specs) -> list[int]:
        """By place in the sub-group."""
        return owners(self.name, [x.size for x in xs], len(self.ranks))


class NcclAllGather(_OfOwners):
    """Each array as its owner has it: output[i] = input[i] of the rank that owns it, in place.

    The arrays, one behind the other, are divided into equal chunks of a multiple of 32 elements,
    with padding behind the last: a rank owns the arrays that lie in its chunk. An array across two
    chunks is refused. With n elements in all and r ranks a chunk has (n + a - n mod a) / r, where
    a = 32 r.

    Memory: none beside what NCCL keeps.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/collective/nccl_kernels.cc,
    which lets the other ranks hang where an array lies across two chunks.
    """

    group_type = GROUP_TYPE
    types: ClassVar[Types] = {"T": FIXED_SIZE}

    def _steps(self, xs: Specs, ys: Specs) -> Iterator[Step]:
        pairs = zip(xs, self._owners(xs), strict=True)
        yield self.nccl_step(
            xs, ys, [queue.row("broadcast", x.size, x.dtype, root) for x, root in pairs]
        )


class NcclReduceScatter(_OfOwners):
    """Sums for their owners: output[i] = sum of input[i] where owned, else input[i], in place.

    The arrays, one behind the other, are divided into equal chunks of a multiple of 32 elements,
    with padding behind the last: a rank owns the arrays that lie in its chunk. An array across two
    chunks is refused. With n elements in all and r ranks a chunk has (n + a - n mod a) / r, where
    a = 32 r. Halves are added as NcclAllReduce does.

    Memory: none beside what NCCL keeps.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/collective/nccl_kernels.cc,
    which lets the other ranks hang where an array lies across two chunks.
    """

    group_type = GROUP_TYPE
    types: ClassVar[Types] = {"T": FLOATS}

    def _steps(self, xs: Specs, ys: Specs) -> Iterator[Step]:
        roots, own = self._owners(xs), self.ranks.index(self.group.rank)
        rows = [
            queue.row("reduce", x.size, x.dtype, queue.SUM, root)
            for x, root in zip(xs, roots, strict=True)
        ]
        yield self.nccl_step(xs, ys, rows)
        rest = [i for i, root in enumerate(roots) if root != own]
        yield from copies([xs[i] for i in rest], [ys[i] for i in rest])


class MegatronF(Collective):
    """The identity before tensor-parallel layers: output = input; its gradient is MegatronG.

    No rank waits for another.

    Memory: none.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/collective/megatron.cc; Shoeybi
    et al., Megatron-LM.
    """

    inputs = (Input("input", "T", shape="any shape"),)
    outputs = (Output("output", "T", aliases="input", shape="shape of input"),)
    group_type = GROUP_TYPE
    types: ClassVar[Types] = {"T": FLOATS}
    reaches_others = False

    def infer(self, x: Spec) -> tuple[Inferred, ...]:
        return (Spec(x.shape, x.dtype),)

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        return Plan(tuple(copies((x,), (y,))))


class MegatronG(MegatronF):
    """Sum behind tensor-parallel layers: output = sum over ranks of input, in place.

    Tensor parallelism takes group_type=4. The gradient is the identity, MegatronF.

    Memory: none beside what NCCL keeps.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/collective/megatron.cc; Shoeybi
    et al., Megatron-LM.
    """

    types: ClassVar[Types] = {"T": FLOATS}
    reaches_others = Collective.reaches_others

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        if not self.reaches_others:
            return super().plan(device, x, y)
        return Plan(
            (self.nccl_step((x,), (y,), [queue.row("allReduce", x.size, x.dtype, queue.SUM)]),)
        )


class AdasumAllReduce(_OfLists):
    """Adaptive sum: output[i] = (1 - ab / 2 aa) a + (1 - ab / 2 bb) b of pairs of ranks, in place.

    a and b are what two ranks hold of input[i], aa, bb and ab their dot products over the whole
    array in float64; where aa or bb is below 1.5e-154, its coefficient is 1. Ranks whose numbers
    differ in the lowest bit are combined first, rounded to the arrays' type, then those that differ
    in the next, until all ranks hold the same. With reduce_algo=2 that begins at the number of
    ranks on a node, which have the same gradients already.

    Memory: a workspace as large as the arrays, and 24 bytes for each 32 KiB of them.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/collective/adasum_kernels.cc,
    which fails with reduce_algo=0 and mixes up three arrays or more; Maleki et al., Adasum.
    """

    reduce_algo = attribute(one_of(0, 1, 2), 0, doc="0 or 1 over all ranks, 2 over nodes")
    types: ClassVar[Types] = {"T": FLOATS}
    _levels: tuple[int, ...]

    @property
    def reaches_others(self) -> bool:
        return bool(self._levels)

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        vars(self).update(_levels=adasum_levels(self.name, self.group, self.reduce_algo))

    def call_name(self) -> str:
        return f"{self.name}(reduce_algo={self.reduce_algo}) on cuda"

    def plan(self, device: Device, xs: Specs, ys: Specs) -> Plan:
        if not self._levels:
            return Plan(tuple(copies(xs, ys)))
        return adasum.plan(self._swap, self.group.rank, self._levels, xs, ys)

    def _swap(self, xs: Specs, starts: Sequence[int], level: int) -> queue.Calls:
        """Calls that send arrays to this rank's partner and receive the partner's in scratch."""
        partner = self.group.rank ^ level
        rows = [queue.row("send", x.size, x.dtype, partner) for x in xs]
        rows += [queue.row("recv", x.size, x.dtype, partner) for x in xs]
        parts = [(i, 0, 0) for i in range(len(xs))] + [(i, 0, at) for i, at in enumerate(starts)]
        return queue.Calls(self.group, self.name, self.ranks, rows, self.agreement(xs), parts)


def adasum_levels(op: str, group: ProcessGroup, reduce_algo: int) -> tuple[int, ...]:
    """The bits in which partners differ, from the lowest on; refuses groups without such a tree."""
    first = 1
    if reduce_algo == 2:
        if group.local_size is None:
            refuse(op, "group", "one that was given local_size, for reduce_algo 2", "none")
        first = group.local_size
    for name, n in (("ranks", group.size), ("ranks on a node", first)):
        if n & (n - 1):
            refuse(op, "group", f"a number of {name} that is a power of two", str(n))
    return tuple(1 << bit for bit in range(64) if first <= 1 << bit < group.size)


# ---- from one rank to another --------------------------------------------------------------------


class Send(Letter):
    """Arrays to another rank: its Recv gives Data; OutputSignal = True.

    Messages from one rank to another arrive in the order in which they are sent. The first with a
    tag and shapes waits for the Recv; another tag or other arrays there is an error on both ranks.

    Memory: none beside what NCCL keeps.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/communication/send.cc, which may
    send before the arrays are computed.
    """

    inputs = (
        SIGNAL,
        REMOTE,
        Input("Data", "T", variadic=True, mixed=True, shape="any shapes"),
    )
    outputs = (DONE,)
    needs = "a Recv on the other rank"
    types: ClassVar[Types] = {"T": FIXED_SIZE}

    def infer(self, signal: bool, remote: int, data: Specs) -> tuple[Inferred, ...]:
        self.check_remote(remote)
        self.check_types(data)
        return (np.array(True),)

    def plan(self, device: Device, signal: bool, remote: int, data: Specs, *_: object) -> Plan:
        rows = [queue.row("send", x.size, x.dtype, remote) for x in data]
        return self.letter(data, rows, remote, self.group.rank)


class Recv(Receiver):
    """Arrays from another rank: Data = those of its Send; OutputSignal = True.

    Shapes come ahead of the arrays, which the call waits for, unless they are given by `shapes` or
    `out=`: then only the first call of its kind waits, for the Send.

    Memory: none beside what NCCL keeps.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/communication/recv.cc, which
    waits for shapes where one of the two ranks does not know them.
    """

    inputs = (SIGNAL, REMOTE)
    outputs = (DONE, Output("Data", "T", variadic=True, shape="those that are sent"))
    needs = "a Send on the other rank"
    types: ClassVar[Types] = {"T": FIXED_SIZE}

    def infer(self, signal: bool, remote: int) -> tuple[Inferred, ...]:
        self.check_remote(remote)
        if self.shapes is None:
            refuse(self.name, "shapes", "shapes, where nothing is received yet", "None")
        if len(self.shapes) != len(self.element_types):
            expected = f"{len(self.element_types)}, one for each of element_types"
            refuse(self.name, "shapes", expected, str(len(self.shapes)))
        pairs = zip(self.shapes, self.element_types, strict=True)
        return np.array(True), tuple(Spec(extents, dtype) for extents, dtype in pairs)

    def plan(self, device: Device, signal: bool, remote: int, done: object, data: Specs) -> Plan:
        rows = [queue.row("recv", x.size, x.dtype, remote) for x in data]
        return self.letter(data, rows, self.group.rank, remote)


OPS = {
    "AdasumAllReduce": AdasumAllReduce,
    "MegatronF": MegatronF,
    "MegatronG": MegatronG,
    "NcclAllGather": NcclAllGather,
    "NcclAllReduce": NcclAllReduce,
    "NcclReduceScatter": NcclReduceScatter,
    "Recv": Recv,
    "Send": Send,
}
