# SPDX-License-Identifier: MIT
"""Element-wise work over CuPy's arrays by kernels of this package, with broadcasting and strides.

    compute("add", (x, bias))       x + bias
    copy(x.transpose(0, 2, 1, 3))   a C-contiguous copy

A thread computes 16 bytes of the result, which is C-contiguous, if the operands are contiguous and
aligned along its last dimension, else one element. CuPy's own kernels load one element a thread,
which reaches two fifths of a large GPU's memory bandwidth, and a call of CuPy's costs the host
three times as much.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backend import Info
from ..call.backends import BACKENDS
from ..call.op import Op
from ..declare.schema import Spec
from ..device import recording
from ..device.launch import ReadyPlan
from ..device.source import Source, signatures
from ..dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64, Dtype, element_type
from ..plan import VEC_NBYTES, Config, Launch, Plan, ceil_div

Array = Any
MOST = 1 << 31  # threads of a launch, less than
THREADS = 256  # of a block
_KEPT = 4096  # entries of a cache
SYMBOL = "onnx_expression"
_REALS = (FLOAT32, FLOAT64)
_NUMBERS = (*FLOATS, np.dtype(np.int32), INT64)
_WORDS = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}  # by bytes: copies are by size, not by type


class Expression(NamedTuple):
    """An element-wise function as CUDA C."""

    text: str  # of a, b and c, elements of the operands; ACC is the type of the arithmetic
    dtypes: tuple[Dtype, ...] = FLOATS  # that operands and result may have


EXPRESSIONS: Mapping[str, Expression] = {
    "abs": Expression("fabs(a)"),
    "add": Expression("a + b", _NUMBERS),
    "copy": Expression("a", tuple(_WORDS.values())),
    "divide": Expression("a / b"),
    "erf": Expression("erf(a)", _REALS),
    "exp": Expression("exp(a)", _REALS),
    "log": Expression("log(a)", _REALS),
    "multiply": Expression("a * b", _NUMBERS),
    "negative": Expression("-a", _NUMBERS),
    "reciprocal": Expression("1 / a", _REALS),
    "relu": Expression("a < ACC(0) ? ACC(0) : a"),  # a NaN stays
    "sigmoid": Expression("(a >= 0 ? ACC(1) : exp(-fabs(a))) / (exp(-fabs(a)) + ACC(1))", _REALS),
    "sqrt": Expression("sqrt(a)", _REALS),
    "square": Expression("a * a", _REALS),
    "subtract": Expression("a - b", _NUMBERS),
    "tanh": Expression("tanh(a)", _REALS),
    "where": Expression("a ? b : c", _NUMBERS),
}


def compute(name: str, operands: Sequence[Array], out: Array = None) -> Array | None:
    """Return the result of EXPRESSIONS[name] with NumPy's broadcasting; None if there is no kernel.

    There is none for operands of several types (but the condition of "where"), of a type that the
    expression does not take, or on another device. out: an array of the result's shape and type to
    write, maybe an operand.
    """
    backend, ready = BACKENDS.get(type(operands[0])), None
    is_one = len(set(map(type, operands))) == 1
    if is_one and backend is not None and backend.runs_kernels:
        infos = backend.infos(operands if out is None else (*operands, out))
        ready = _prepared(name, tuple(infos), out is not None)
    if backend is None or ready is None or not backend.is_current(ready.device):
        recording.leave()
        return None
    if out is None:
        out = ready.make()
    arrays = (*operands, out)
    ready.plan.run(arrays, backend.pointers(arrays), (), (), ())
    return out


def copy(x: Array) -> Array | None:
    """Return a C-contiguous copy; None where there is no kernel for it."""
    return compute("copy", (x,))


def dense(xp: Any, x: Any) -> Any:
    """Return an array C-contiguous, copied if need be; anything else as it is."""
    flags = getattr(x, "flags", None)
    if flags is None or flags.c_contiguous:
        return x
    made = None if xp is np else copy(x)
    return xp.ascontiguousarray(x) if made is None else made


class _Ready(NamedTuple):
    """A prepared launch, for operands of certain types, shapes and strides on one device."""

    plan: ReadyPlan
    make: Any  # make() allocates a result
    device: int  # its number


class _Places(NamedTuple):
    """The dimensions of a result, merged where they can be, and the operands' strides in them.

    strides[i][d]: of operand i along dimension d, in elements, 0 where it is broadcast. lines[i]:
    True if operand i is not broadcast along the last dimension.
    """

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def lines(self) -> tuple[bool, ...]:
        return tuple(own[-1] != 0 for own in self.strides)


@functools.lru_cache(_KEPT)
def _prepared(name: str, infos: tuple[Info, ...], has_out: bool) -> _Ready | None:
    """Return the launch of EXPRESSIONS[name]; None if no kernel fits these types and shapes.

    infos: of the operands, and of `out` if has_out; each is (backend, dtype, shape, is 16-byte
    aligned, strides or None, device).
    """
    operands = infos[: len(infos) - has_out]
    backend, dtype, *_, device = operands[-1]
    wanted = [BOOL if name == "where" and i == 0 else dtype for i in range(len(operands))]
    types = [_WORDS.get(dtype.itemsize, dtype)] if name == "copy" else wanted  # in the kernel
    is_ours = [info[1] for info in operands] == wanted and types[-1] in EXPRESSIONS[name].dtypes
    try:
        shape = np.broadcast_shapes(*(info[2] for info in operands))
    except ValueError:
        return None
    result = (backend, dtype, shape, infos[-1][3], None, device)
    has_fitting = not has_out or infos[-1] == result
    size = math.prod(shape)
    if not (is_ours and has_fitting and size and all(i[5] == device for i in infos)):
        return None
    places = _merged(shape, [_strides(info, shape) for info in operands])
    is_aligned = all(info[3] for info in infos)
    n = _vector(places, max(t.itemsize for t in types)) if is_aligned else 1
    if ceil_div(size, n) >= MOST:
        return None
    launch, source = _launch(name, types, shape, places, n)
    plan = ReadyPlan(
        Op.declaration, lambda: source, backend, device, Plan((launch,)), len(types) + 1
    )
    return _Ready(plan, backend.maker(Spec(shape, dtype), device), device)


def _strides(info: Info, shape: tuple[int, ...]) -> list[int]:
    """Return an operand's strides in elements along each dimension of the result, 0: broadcast.

    info: (backend, dtype, shape, is aligned, strides in bytes or None for C order, device).
    """
    _, dtype, own, _, strides, _ = info
    if strides is None:
        steps = [math.prod(own[i + 1 :]) for i in range(len(own))]
    else:
        steps = [stride // dtype.itemsize for stride in strides]
    steps = [0 if extent == 1 else step for extent, step in zip(own, steps, strict=True)]
    return [0] * (len(shape) - len(own)) + steps


def _merged(shape: tuple[int, ...], strides: Sequence[list[int]]) -> _Places:
    """Return the dimensions without those of extent 1, neighbours merged into one where possible.

    Dimensions d and d + 1 become one if strides[d] = strides[d + 1] * extent[d + 1] in all
    operands: (4, 5) with strides (5, 1) and (0, 0) is (20,) with 1 and 0. strides: of each operand.
    """
    extents: list[int] = []
    steps: list[tuple[int, ...]] = []
    for extent, own in zip(shape, zip(*strides, strict=True), strict=True):
        if extent == 1:
            continue
        if steps and all(s == o * extent for s, o in zip(steps[-1], own, strict=True)):
            extents[-1] *= extent
            steps[-1] = own
        else:
            extents.append(extent)
            steps.append(own)
    if not extents:
        extents, steps = [1], [(0,) * len(strides)]
    return _Places(tuple(extents), tuple(zip(*steps, strict=True)))


def _vector(places: _Places, itemsize: int) -> int:
    """Return how many elements a thread computes: 16 bytes of them, or 1.

    More than 1 needs operands that are contiguous or broadcast along the last dimension, whose
    extent and other strides are multiples of n. places: the result's dimensions and the operands'
    strides. itemsize: bytes of the largest element.
    """
    n = VEC_NBYTES // itemsize
    outer = [step for own in places.strides if own[-1] for step in own[:-1]]
    fits = len(places.extents) == 1 or places.extents[-1] % n == 0
    lie_so = all(own[-1] in (0, 1) for own in places.strides)
    return n if fits and lie_so and all(step % n == 0 for step in outer) else 1


def _launch(
    name: str, types: Sequence[Dtype], shape: tuple[int, ...], places: _Places, n: int
) -> tuple[Launch, Source]:
    """Return the launch, and the source of its kernel.

    types: of the operands, the last one's is the result's. shape: of the result. n: elements of a
    thread; extents and strides of dimensions are passed in vectors of n elements.
    """
    y = types[-1]
    specs = [Spec(shape, t, place=i) for i, t in enumerate((*types, y))]
    *outer, last = places.extents
    steps = [
        [*(step // n if own[-1] else step for step in own[:-1]), own[-1]] for own in places.strides
    ]
    size = math.prod(places.extents)
    args = (  # as the kernel's parameters: arrays, size, extents but the first, strides
        *specs,
        size,
        *outer[1:],
        *([ceil_div(last, n)] if outer else ()),
        *itertools.chain(*steps),
    )
    slots = {f"T{i}": element_type(t).c_type for i, t in enumerate(types)}
    slots |= {"TY": slots[f"T{len(types) - 1}"], "ACC": _computed_in(y)}
    config = Config((ceil_div(ceil_div(size, n), THREADS),), (THREADS,))
    source = _source(name, _HEADERS.get(y, ""), len(places.extents), n, places.lines)
    return Launch(SYMBOL, config, args, slots), source


def _computed_in(dtype: Dtype) -> str:
    """Return the C type of the arithmetic: float for half types, as NumPy rounds them."""
    types = element_type(dtype)
    return types.accumulator if dtype in FLOATS else types.c_type


@functools.lru_cache(_KEPT)
def _source(name: str, header: str, rank: int, n: int, lines: tuple[bool, ...]) -> Source:
    """Return the source of a kernel for EXPRESSIONS[name].

    header: includes. rank: of merged dimensions. n: elements of a thread. lines[i]: True if operand
    i varies along the last dimension.
    Operand i is `const Ti* xi`, with strides si_0, si_1, ...; e1, e2, ... are extents.
    """
    which = range(len(lines))
    pointers = [f"const T{i}* x{i}" for i in which]
    extents = [f"u32 e{d}" for d in range(1, rank)]
    steps = [f"i64 s{i}_{d}" for i in which for d in range(rank)]
    parameters = ", ".join([*pointers, "TY* y", "u64 size", *extents, *steps])
    # The thread's index is taken apart into one of each dimension, the last first; pi is the sum of
    # these times the strides of operand i.
    places = "".join(f"i64 p{i} = 0; " for i in which) + "u32 rest = i, k;\n"
    for d in reversed(range(1, rank)):
        adds = "".join(f" p{i} += (i64)k * s{i}_{d};" for i in which)
        places += f"    k = rest % e{d}; rest /= e{d};{adds}\n"
    places += "   " + "".join(f" p{i} += (i64)rest * s{i}_0;" for i in which)
    # Code that loads an operand's vector, picks element k of it, and element j of the remainder.
    loads, picks, rests = "", "", ""
    for i, along in enumerate(lines):
        letter, kind = "abc"[i], "bool" if name == "where" and i == 0 else "ACC"
        if along and n > 1:
            pack = f"Pack<T{i}>"
            loads += f"const {pack} v{i} = reinterpret_cast<const {pack}*>(x{i})[p{i}];\n    "
            picks += f"const {kind} {letter} = ({kind})v{i}.at[k]; "
        else:
            picks += f"const {kind} {letter} = ({kind})x{i}[p{i}]; "
        rests += f"const {kind} {letter} = ({kind})x{i}[{'j' if along else 0}]; "
    text = EXPRESSIONS[name].text
    names = (*(f"T{i}" for i in which), "TY", "ACC")
    types = "\n".join(f"using {each} = CTO_{each};" for each in names)
    has_rest = rank == 1 and n > 1  # one more thread does the elements behind the last vector
    rest = f"for (u64 j = size / N * N; j < size; ++j) {{ {rests}y[j] = (TY)({text}); }}"
    code = _KERNEL.format(
        n=n, parameters=parameters, places=places, loads=loads, picks=picks, symbol=SYMBOL,
        threads=THREADS, header=header, types=types, text=text, rest=rest if has_rest else "",
    )  # fmt: skip
    return Source(f"{SYMBOL}_{name}", code, signatures(code))


_HEADERS = {FLOAT16: "#include <cuda_fp16.h>", BFLOAT16: "#include <cuda_bf16.h>"}
_KERNEL = """
{header}
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

{types}
constexpr int N = {n};
template <typename T> struct alignas(sizeof(T) * N) Pack {{ T at[N]; }};

extern "C" __global__ void {symbol}({parameters}) {{
  const u32 i = blockIdx.x * {threads}u + threadIdx.x;
  if (i < size / N) {{
    {places}
    {loads}Pack<TY> result;
#pragma unroll
    for (int k = 0; k < N; ++k) {{
      {picks}
      result.at[k] = (TY)({text});
    }}
    reinterpret_cast<Pack<TY>*>(y)[i] = result;
  }} else if (i == size / N) {{
    {rest}
  }}
}}
"""
