# SPDX-License-Identifier: MIT
"""`benchmark`: some operators on this machine, beside a copy and beside PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import click
import numpy as np

from ..codecs import compress
from ..optimizers import AdamW
from ..registry import function
from .machine import array_library, computing, provider_option
from .report import duration
from .terminal import JsonLines, align, json_option, progress, say, wrap
from .trial import seconds

CLASSES = 1024  # elements of a row
ROWS = {"cpu": 4096, "cuda": 65_536}  # of each array, by default
COPY = "copy"
OPERATORS = (  # functions of the package that are measured
    "cross_entropy_loss_and_grad",
    "dropout",
    "gelu",
    "gelu_grad",
    "layer_normalization",
    "layer_normalization_grad",
    "softmax",
    "softmax_grad_13",
)
HEADINGS = ("", "ms", "GB/s", "of a copy", "PyTorch ms", "PyTorch / ours")
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A call, the bytes that it has to read and write, and PyTorch's call if it has one."""

    name: str
    call: Call
    nbytes: int
    peer: Call | None = None


@dataclass(frozen=True)
class Row:
    """Times of a case."""

    name: str
    nbytes: int  # read and written
    seconds: float
    copy_s: float  # of a copy of as many bytes
    torch_s: float | None  # seconds of PyTorch's call

    def fields(self) -> dict[str, Any]:
        """Return the fields of a JSON object."""
        return {
            "operator": self.name,
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "gb_per_s": self.nbytes / self.seconds / 1e9,
            "of_copy": self.copy_s / self.seconds,
            "torch_s": self.torch_s,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the cells below HEADINGS."""
        rate = f"{self.nbytes / self.seconds / 1e9:.1f}"
        peer = "-" if self.torch_s is None else duration(self.torch_s)
        ratio = "-" if self.torch_s is None else f"{self.torch_s / self.seconds:.2f}"
        return (
            self.name,
            duration(self.seconds),
            rate,
            f"{self.copy_s / self.seconds:.2f}",
            peer,
            ratio,
        )


@click.command()
@provider_option
@click.option(
    "--rows",
    type=click.IntRange(1),
    help=f"Of {CLASSES} float32 numbers.  [default: 65536 on a GPU, 4096 on the CPU]",
)
@json_option
def benchmark(provider: str, rows: int | None, as_json: bool) -> None:
    """Measure operators on this machine, beside a copy and beside PyTorch.

    Each call is that of a training step: arrays of float32 in memory, results in arrays that are
    there. "of a copy" is the rate of bytes read and written over that of a copy in the same run:
    near 1 memory is the limit. PyTorch, where it is installed, computes the same on the same
    arrays, eagerly; on the CPU one thread each.

    On a GPU times are between CUDA events, the median of five runs of 20 launches; without one the
    NumPy provider is measured beside NumPy's copies.
    """
    xp = array_library(provider)
    n_rows = rows or ROWS["cpu" if xp is np else "cuda"]
    torch = _torch(xp)
    lines = JsonLines("benchmark", computing(xp), xp is not np) if as_json else None
    measured = []
    cases = list(_cases(xp, n_rows, torch))
    with progress(cases, "measuring", lambda case: case.name) as shown:
        for row in _measured(shown, xp):
            measured.append(row)
            if lines is not None:
                lines.write("benchmark", **row.fields())
    if lines is None:
        for line in _title(xp, n_rows, torch):
            say(line)
        click.echo("\n".join(align([HEADINGS, *(row.cells() for row in measured)])))


def _title(xp: Any, rows: int, torch: ModuleType | None) -> Iterator[str]:
    """Yield lines about the machine, the arrays' shape (rows, CLASSES) and PyTorch's version.

    xp: NumPy or CuPy, where the calls run. torch: the module, None if it is not compared with.
    """
    where = "the NumPy provider beside NumPy's copies: there is no GPU" if xp is np else "a GPU"
    if xp is np and array_library("auto") is not np:
        where = "the NumPy provider beside NumPy's copies"
    peer = "PyTorch is not here" if torch is None else f"PyTorch {torch.__version__}"
    yield from wrap(f"{computing(xp)}, {where}; {rows} x {CLASSES} float32; {peer}")


def _torch(xp: Any) -> ModuleType | None:
    """Return PyTorch if it is installed and computes where `xp`, NumPy or CuPy, does, else None."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    if xp is np:
        torch.set_num_threads(1)
        return torch
    return torch if torch.cuda.is_available() else None


def _measured(cases: Any, xp: Any) -> Iterator[Row]:
    """Yield a row for each case; the first one is the copy, which the others are compared with.

    xp: NumPy or CuPy, where the calls run.
    """
    rate = 0.0  # of the copy, bytes a second
    for case in cases:
        took = seconds(case.call, xp)
        rate = rate or case.nbytes / took
        torch_s = None if case.peer is None else seconds(case.peer, xp)
        yield Row(case.name, case.nbytes, took, case.nbytes / rate, torch_s)


def _cases(xp: Any, rows: int, torch: ModuleType | None) -> Iterator[Case]:
    """Yield the copy, then the calls to measure, on float32 arrays of (rows, CLASSES) in `xp`.

    torch: the module whose calls of the same names are measured beside, or None.
    """
    rng = np.random.default_rng(0)
    of = {name: function(name) for name in OPERATORS}
    shape = (rows, CLASSES)
    x, dy = (xp.asarray(rng.standard_normal(shape, np.float32)) for _ in range(2))
    scale, bias = xp.ones(CLASSES, np.float32), xp.zeros(CLASSES, np.float32)
    labels = xp.asarray(rng.integers(0, CLASSES, rows))
    out, other = xp.empty_like(x), xp.empty_like(x)
    one = x.nbytes
    peers = _peers(torch, x, dy, scale, bias, labels) if torch is not None else {}

    def case(name: str, call: Call, nbytes: int) -> Case:
        return Case(name, call, nbytes, peers.get(name))

    yield case(COPY, lambda: xp.copyto(out, x), 2 * one)
    yield case("gelu", lambda: of["gelu"](x, out=out), 2 * one)
    yield case("gelu_grad", lambda: of["gelu_grad"](dy, x, out=out), 3 * one)
    yield case("softmax", lambda: of["softmax"](x, out=out), 2 * one)
    y = of["softmax"](x)
    yield case("softmax_grad_13", lambda: of["softmax_grad_13"](dy, y, out=out), 3 * one)
    yield case("layer_normalization", lambda: of["layer_normalization"](x, scale, bias), 2 * one)
    _, mean, inv_std = of["layer_normalization"](x, scale, bias)
    saved = (dy, x, scale, mean, inv_std)
    yield case("layer_normalization_grad", lambda: of["layer_normalization_grad"](*saved), 3 * one)
    yield case(
        "cross_entropy_loss_and_grad",
        lambda: of["cross_entropy_loss_and_grad"](x, labels),
        2 * one,
    )
    yield case("dropout", lambda: of["dropout"](x, 0.1, True, seed=1), 2 * one + x.size)
    optimizer = AdamW([other])
    # Reads gradient, parameter and both moments; writes the latter three.
    yield case("AdamW.step", lambda: optimizer.step([dy]), 7 * one)
    for codec in ("pack16", "msfp15_signed", "int8_signed"):
        packed = compress(x, codec)
        moved = one + packed.nbytes
        yield case(f"compress {codec}", partial(compress, x, codec), moved)
        yield case(f"decompress {codec}", partial(packed.decompress, out=out), moved)


def _peers(
    torch: ModuleType, x: Any, dy: Any, scale: Any, bias: Any, labels: Any
) -> dict[str, Call]:
    """Return PyTorch's calls by the name of their case, over the memory of these arrays.

    x, dy: (rows, CLASSES), an input and the gradient of an output. scale, bias: (CLASSES,) of a
    normalisation. labels: (rows,) integers.
    """
    aten, functional = torch.ops.aten, torch.nn.functional
    tx, tdy, tscale, tbias, tlabels = map(torch.from_dlpack, (x, dy, scale, bias, labels))
    y = torch.softmax(tx, -1)
    normal, mean, rstd = aten.native_layer_norm(tx, [CLASSES], tscale, tbias, 1e-5)
    del normal
    scores = tx.clone().requires_grad_()
    parameter = torch.zeros_like(tx).requires_grad_()
    parameter.grad = tdy.clone()
    optimizer = torch.optim.AdamW([parameter], fused=True)

    def loss_and_gradient() -> Any:
        return torch.autograd.grad(functional.cross_entropy(scores, tlabels), scores)

    half = tx.half()
    return {
        "gelu": lambda: functional.gelu(tx),
        "gelu_grad": lambda: aten.gelu_backward(tdy, tx),
        "softmax": lambda: torch.softmax(tx, -1),
        "softmax_grad_13": lambda: aten._softmax_backward_data(tdy, y, -1, tx.dtype),
        "layer_normalization": lambda: functional.layer_norm(tx, [CLASSES], tscale, tbias),
        "layer_normalization_grad": lambda: aten.native_layer_norm_backward(
            tdy, tx, [CLASSES], mean, rstd, tscale, tbias, [True, True, True]
        ),
        "cross_entropy_loss_and_grad": loss_and_gradient,
        "dropout": lambda: functional.dropout(tx, 0.1),
        "AdamW.step": optimizer.step,
        "compress pack16": lambda: tx.half(),
        "decompress pack16": lambda: half.float(),
    }
