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

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np

from ...backend import Backend
from ...call import backends
from ...call.arguments import adopt
from ...call.checks import convert_value
from ...call.prepared import Arguments
from ...declare.schema import (
    Inferred,
    Input,
    Output,
    Spec,
    attribute,
    flag,
    integer,
    one_of,
    optional,
    shape,
)
from ...declare.type_rows import Types
from ...dtypes import FIXED_SIZE, FLOAT64, FLOATS, Dtype, to_dtype
from ...errors import ArgumentError, ProviderError, refuse, shown
from ...plan import (
    SCRATCH_ALIGNMENT,
    Config,
    Device,
    Launch,
    Plan,
    Scratch,
    ScratchMemory,
    Step,
    Work,
    align_up,
    slots,
)
from ...planning.multi_tensor import Batch, batches
from ...process_group import ProcessGroup
from . import queue
from .facts import CAPACITY, CHUNK_NBYTES, DOTS, SCALES, THREADS
from .members import owners
from .messages import agree_each_time, next_description, shapes_in, transfer_description
from .plan import GROUP_TYPE, NUMBERS, Collective, Rows, Specs, copies, once_per_group, table

INPUT = Input("input", "T", variadic=True, shape="any shapes")
OUTPUT = Output("output", "T", variadic=True, aliases="input", shape="shapes of input")


class _OfLists(Collective):
    """A collective over a list of arrays, in place where there is no out=."""

    inputs: ClassVar[tuple[Input, ...]] = (INPUT,)
    outputs: ClassVar[tuple[Output, ...]] = (OUTPUT,)

    def infer(self, xs: Specs) -> tuple[Inferred, ...]:
        return (tuple(Spec(x.shape, x.dtype) for x in xs),)

    def plan(self, device: Device, xs: Specs, ys: Specs) -> Plan:
        """Plan the steps from inputs xs to outputs ys: copies alone if this rank is alone."""
        if not self.reaches_others:
            return Plan(tuple(copies(xs, ys)))
        return Plan(tuple(self._steps(xs, ys)))

    def _steps(self, xs: Specs, ys: Specs) -> Iterator[Step]:
        """Yield the steps that write the outputs ys from all ranks' inputs xs.

        The sub-group has several ranks; the i-th of ys belongs to the i-th of xs.
        """
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
        """Yield one group of NCCL calls, a sum of each array for all ranks."""
        yield self.nccl_step(
            xs, ys, [queue.row("allReduce", x.size, x.dtype, queue.SUM) for x in xs]
        )


class _OfOwners(_OfLists):
    """A collective in which every array of the list is owned by one rank."""

    def infer(self, xs: Specs) -> tuple[Inferred, ...]:
        self._owners(xs)
        return super().infer(xs)

    def _owners(self, xs: Specs) -> list[int]:
        """Return the rank that owns each array, by its place in the sub-group."""
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
        """Yield one group of NCCL calls, a broadcast of each array from its owner."""
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
        """Yield NCCL's sum of each array, which its owner gets, and copies of the other arrays."""
        owner_of, this_rank = self._owners(xs), self.ranks.index(self.group.rank)
        rows = [
            queue.row("reduce", x.size, x.dtype, queue.SUM, owner)
            for x, owner in zip(xs, owner_of, strict=True)
        ]
        yield self.nccl_step(xs, ys, rows)
        not_owned = [i for i, owner in enumerate(owner_of) if owner != this_rank]
        yield from copies([xs[i] for i in not_owned], [ys[i] for i in not_owned])


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
        """Plan one NCCL call that sums x to y, or a copy if this rank is alone."""
        if not self.reaches_others:
            return super().plan(device, x, y)
        return Plan(
            (self.nccl_step((x,), (y,), [queue.row("allReduce", x.size, x.dtype, queue.SUM)]),)
        )


# ---- adaptive sums -------------------------------------------------------------------------------


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
    _levels: tuple[int, ...]  # 1, 2, 4, ...: bits in which partners differ

    @property
    def reaches_others(self) -> bool:
        return bool(self._levels)

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        vars(self).update(_levels=adasum_levels(self.name, self.group, self.reduce_algo))

    def call_name(self) -> str:
        return f"{self.name}(reduce_algo={self.reduce_algo}) on cuda"

    def plan(self, device: Device, xs: Specs, ys: Specs) -> Plan:
        """Plan ys = adaptive sums of all ranks' xs, or copies where no partner is left."""
        if not self._levels:
            return Plan(tuple(copies(xs, ys)))
        return adaptive_sums(self._swap, self.group.rank, self._levels, xs, ys)

    def _swap(self, xs: Specs, starts: Sequence[int], level: int) -> queue.Calls:
        """Return NCCL calls that send xs to this rank's partner, and receive the partner's.

        starts: where these go in scratch memory, in bytes. level: the bit in which partners differ.
        """
        partner = self.group.rank ^ level
        rows = [queue.row("send", x.size, x.dtype, partner) for x in xs]
        rows += [queue.row("recv", x.size, x.dtype, partner) for x in xs]
        parts = [(i, 0, 0) for i in range(len(xs))] + [(i, 0, at) for i, at in enumerate(starts)]
        return queue.Calls(self.group, self.name, self.ranks, rows, self.agreement(xs), parts)


def adasum_levels(op: str, group: ProcessGroup, reduce_algo: int) -> tuple[int, ...]:
    """Return the bits, as 1, 2, 4, ..., in which partners differ, in the order of combining.

    op: the operator's name, for errors. With reduce_algo 2 from local_size on. Refuse groups whose
    sizes are no powers of two.
    """
    first = 1
    if reduce_algo == 2:
        if group.local_size is None:
            refuse(op, "group", "one with a local_size, for reduce_algo 2", "none")
        first = group.local_size
    for name, n in (("ranks", group.size), ("ranks on a node", first)):
        if n & (n - 1):
            refuse(op, "group", f"a number of {name} that is a power of two", str(n))
    return tuple(1 << bit for bit in range(64) if first <= 1 << bit < group.size)


def adasum_slots(dtype: Dtype) -> dict[str, str]:
    """Return the macros that kernels of adaptive sums are compiled with for tensors of a dtype."""
    return slots(T=dtype, CAPACITY=CAPACITY)


# swap(tensors, starts in bytes of the partner's, level): the first argument of Work("call").
Swap = Callable[[Specs, Sequence[int], int], object]


@dataclass(frozen=True)
class _Buffers:
    """Scratch memory of adaptive sums."""

    others: Scratch  # the partner's tensors
    partials: Scratch  # dot products aa, bb and ab of each chunk of a batch
    scales: Scratch  # coefficients of a and b of each tensor of a batch
    starts: tuple[int, ...]  # of each tensor among the others, in elements


def adaptive_sums(swap: Swap, rank: int, levels: Sequence[int], xs: Specs, ys: Specs) -> Plan:
    """Plan ys = adaptive sum of all ranks' xs: one swap a level, and three launches a batch.

    levels: the bits in which this rank and its partner differ. A batch is as many tensors as a
    launch takes. swap: makes the calls that exchange tensors.
    """
    scratch = ScratchMemory()
    itemsize = xs[0].dtype.itemsize
    parts = list(batches([x.size for x in xs], CHUNK_NBYTES // itemsize, CAPACITY))
    room = [align_up(x.nbytes, SCRATCH_ALIGNMENT) // itemsize for x in xs]
    *starts, total = itertools.accumulate(room, initial=0)
    most_chunks = max((batch.n_chunks for batch in parts), default=0)
    buffers = _Buffers(
        scratch.take(total, xs[0].dtype),
        scratch.take(DOTS * most_chunks, FLOAT64),
        scratch.take(SCALES * CAPACITY, FLOAT64),
        tuple(starts),
    )
    steps: list[Step] = []
    for number, level in enumerate(levels):
        own = ys if number else xs
        calls = swap(own, [start * itemsize for start in starts], level)
        steps.append(Work("call", (calls, table(own), buffers.others)))
        is_first = not rank & level
        for batch in parts:
            steps += _combine(batch, own, ys, buffers, is_first)
    return scratch.plan(*steps)


def _combine(
    batch: Batch, own: Specs, results: Specs, buffers: _Buffers, is_first: bool
) -> Iterator[Launch]:
    """Yield the launches that write `results` from `own` and the partner's tensors of a batch.

    Dot products of chunks, then scales of tensors, then sums. buffers: scratch memory with the
    partner's tensors. is_first: in AdasumAllReduce's formula this rank's tensors are a, and not b.
    """
    binding = adasum_slots(own[0].dtype)
    chunks, n = Config((batch.n_chunks,), (THREADS,)), np.int32(len(batch.members))
    starts, others = batch.starts(buffers.starts), buffers.others
    partials, scales = buffers.partials, buffers.scales
    dots = (batch.pointers(own), batch.sizes, starts, others, partials, n)
    yield Launch("adasum_all_reduce__dots", chunks, dots, binding)
    each = Config((len(batch.members),), (THREADS,))
    yield Launch("adasum_all_reduce__scales", each, (batch.sizes, partials, scales), binding)
    tensors = (batch.pointers(own), batch.pointers(results), batch.sizes, starts)
    args = (*tensors, others, scales, n, is_first)
    yield Launch("adasum_all_reduce__combine", chunks, args, binding)


# ---- from one rank to another --------------------------------------------------------------------


def dtypes(value: object) -> tuple[Dtype, ...]:
    """Return an attribute's dtypes, one for each array; ONNX type numbers may stand for them."""
    if not isinstance(value, list | tuple | np.ndarray):
        raise ArgumentError(f"expected a sequence of dtypes, got {shown(value)}")
    return tuple(to_dtype(item) for item in value)


def shapes(value: object) -> tuple[tuple[int, ...], ...]:
    """Return an attribute's shapes, one for each array."""
    if not isinstance(value, list | tuple):
        raise ArgumentError(f"expected a sequence of shapes, got {shown(value)}")
    return tuple(map(shape, value))


def true(value: object) -> bool:
    """Return True; refuse other values."""
    if not flag(value):
        raise ArgumentError("expected True, got False")
    return True


SIGNAL = Input("InputSignal", "bool", memory="host", convert=true)
REMOTE = Input("Remote", "int64", memory="host", convert=integer)
DONE = Output("OutputSignal", "bool", memory="host", shape="()")


class PointToPoint(Collective):
    """A message between two ranks."""

    tag = attribute(integer, doc="of the message, the same on both ranks")
    element_types = attribute(dtypes, doc="one for each array")

    def check_remote(self, rank: int) -> None:
        """Refuse a rank that does not exist, or is this one."""
        own, n = self.group.rank, self.group.size
        if not 0 <= rank < n or rank == own:
            refuse(self.name, "Remote", f"another rank than {own}, below {n}", str(rank))

    def check_types(self, specs: Specs) -> None:
        """Refuse arrays whose dtypes are not `element_types`."""
        if len(specs) != len(self.element_types):
            expected = f"{len(specs)}, one for each array"
            refuse(self.name, "element_types", expected, str(len(self.element_types)))
        for i, (spec, dtype) in enumerate(zip(specs, self.element_types, strict=True)):
            if spec.dtype != dtype:
                refuse(self.name, f"element_types[{i}]", f"{spec.dtype}, as the array", f"{dtype}")

    def _transfer(self, specs: Specs, rows: Rows, receiver: int, sender: int) -> Plan:
        """Plan a transfer, queued on the GPU once both ranks have the same description of it.

        rows: an NCCL call for each of the arrays `specs`. receiver, sender: the two ranks.
        """
        text, group, op = transfer_description("cuda", self.tag, specs), self.group, self.name
        agree = partial(agree_each_time, group, op, (receiver, sender), text)
        calls = queue.Calls(group, op, self.ranks, rows, agree, each_time=True)
        return Plan((Work("call", (calls, table(specs), table(specs))),))


class Send(PointToPoint):
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
        return self._transfer(data, rows, remote, self.group.rank)


class Recv(PointToPoint):
    """Arrays from another rank: Data = those of its Send; OutputSignal = True.

    Shapes come ahead of the arrays, which the call waits for, unless `shapes` names them or
    `out=`: then only the first call of its kind waits, for the Send.

    Memory: none beside what NCCL keeps.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/communication/recv.cc, which
    waits for shapes where one of the two ranks does not know them.
    """

    inputs = (SIGNAL, REMOTE)
    outputs = (DONE, Output("Data", "T", variadic=True, shape="those that are sent"))
    needs = "a Send on the other rank"
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    shapes = attribute(optional(shapes), None, doc="None: read from the message")
    arrays = attribute(one_of("cupy", "numpy"), "cupy", doc="library of the results without out=")

    def infer(self, signal: bool, remote: int) -> tuple[Inferred, ...]:
        """Return OutputSignal and the specs of Data, which `shapes` and `element_types` say.

        signal: True. remote: the sender's rank.
        """
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
        return self._transfer(data, rows, self.group.rank, remote)

    def __call__(self, /, *inputs: object, out: object = None, **keywords: Any) -> Any:
        """Receive into `out`, into arrays of `shapes`, or into arrays of the message's shapes.

        inputs: InputSignal (True) and Remote, the sender's rank. out: (OutputSignal, Data) or None.
        """
        data = out[1] if isinstance(out, tuple) and len(out) == 2 else None
        arrays = data if isinstance(data, tuple) and all(a is not None for a in data) else ()
        if arrays:
            results = [adopt(self.name, f"out (Data[{i}])", a) for i, a in enumerate(arrays)]
            library = "numpy" if isinstance(results[0], np.ndarray) else "cupy"
            op = self._with(tuple(array.shape for array in results), library)
            return op._receive(inputs, out, keywords)
        if self.shapes is None:
            op = self._with(self._next_shapes(inputs, keywords), self.arrays)
            return op._receive(inputs, out, keywords)
        return self._receive(inputs, out, keywords)

    def _receive(self, inputs: Arguments, out: object, keywords: dict[str, Any]) -> Any:
        """Run the call, of an operator whose `shapes` are known."""
        return super().__call__(*inputs, out=out, **keywords)

    def _with(self, shapes: tuple[tuple[int, ...], ...], arrays: str) -> Self:
        """Return this operator for messages of these shapes, cached in the group."""
        values = {**self.attribute_values, "shapes": shapes, "arrays": arrays}
        key = type(self), self.tag, self.element_types, shapes, arrays
        return once_per_group(self.group, key, partial(type(self), **values))

    def _next_shapes(
        self, inputs: Arguments, keywords: dict[str, object]
    ) -> tuple[tuple[int, ...], ...]:
        """Wait for the next message of the rank `remote`; return its arrays' shapes.

        inputs, keywords: the call's arguments, which have InputSignal and Remote by place or name.
        """
        pairs = zip(self.inputs, (*inputs, None, None), strict=False)
        signal, remote = (keywords.get(item.name, value) for item, value in pairs)
        self.group.require_open(self.name)
        for item, value in zip(self.inputs, (signal, remote), strict=True):
            if value is None:
                refuse(self.name, item.name, "a value", "None")
        convert_value(self.name, SIGNAL, signal)
        rank = cast(int, convert_value(self.name, REMOTE, remote))
        self.check_remote(rank)
        where = "cuda" if self.placement()[0].runs_kernels else "cpu"
        text = next_description(self.group, self.name, rank)
        shapes = shapes_in(text)
        specs = list(map(Spec, shapes, self.element_types))
        expected = transfer_description(where, self.tag, specs)
        if expected != text:  # exchange raises ArgumentError on both ranks
            self.group.exchange(self.name, (self.group.rank, rank), expected)
        return shapes

    def placement(self) -> tuple[Backend, int]:
        """Return (backend, device) of the results, from `arrays`: no input array says it."""
        is_numpy = self.arrays == "numpy"
        backend = backends.BACKENDS[np.ndarray] if is_numpy else backends.cuda_backend()
        try:
            return backend, backend.current_device()
        except RuntimeError as error:  # CUDA's
            remedy = "arrays='numpy' receives on the host"
            raise ProviderError(f"{self.name}: no GPU answers ({error}); {remedy}") from None


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
