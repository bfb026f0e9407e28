# SPDX-License-Identifier: MIT
"""Steps of training graphs on this machine's GPU beside PyTorch's of the same networks.

    PYTHONPATH=. python scripts/onnx_times.py [gpt] [resnet] [small]

For each network: milliseconds of a step, eager and replayed, bytes that are allocated at the most,
and how far the losses of the first steps are from PyTorch's, whose products have TF32 as ours.
`--kernels N` also lists where the time of a step is spent.
"""

from __future__ import annotations

import cProfile
import functools
import io
import lzma
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "graphs")]

import click
import cupy
import onnx
import torch
from onnx_peers import ADAM_W, GRAPHS, PEERS

import cupy_training_ops as cto
from cupy_training_ops.onnx import training
from cupy_training_ops.onnx.checkpoint import Checkpoint

MIB = 1 << 20
OPTIMIZER = """<ir_version: 8, opset_import: ["com.microsoft" : 1, "" : 15]>
optimizer (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
  seq(float[]) first_order_moments, seq(float[]) second_order_moments) => (bool[1] updated)
{ updated = com.microsoft.AdamWOptimizer <adam_mode: int = 0, epsilon: float = 1e-06,
  weight_decay: float = 0.01> (learning_rate, step, params, gradients, first_order_moments,
  second_order_moments) }"""
RATE = 1e-3


class Used(cupy.cuda.MemoryHook):
    """Bytes of CuPy's pools that are in use, and the most of them."""

    name = "Used"

    def __init__(self) -> None:
        self.now = self.most = 0

    def malloc_postprocess(self, **given: Any) -> None:
        self.now += given["mem_size"]
        self.most = max(self.most, self.now)

    def free_postprocess(self, **given: Any) -> None:
        self.now -= given["mem_size"]


@contextmanager
def artifacts(name: str, net: Any) -> Iterator[Path]:
    """A folder with the network's graphs; its parameters take the place of a checkpoint."""
    arrays = {n: p.detach().cpu().numpy() for n, p in net.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        data = lzma.decompress((GRAPHS / f"{name}.onnx.xz").read_bytes())
        (Path(folder) / "training_model.onnx").write_bytes(data)
        onnx.save(onnx.parser.parse_model(OPTIMIZER), Path(folder) / "optimizer_model.onnx")
        with mock.patch.object(training, "read_checkpoint", return_value=Checkpoint(arrays, {})):
            yield Path(folder)


def times(step: Callable[[], Any], wait: Callable[[], Any], count: int = 20) -> float:
    """The median of a step's milliseconds, five at a time."""
    found = []
    for _ in range(max(1, count // 5)):
        wait()
        start = time.perf_counter()
        for _ in range(5):
            step()
        wait()
        found.append((time.perf_counter() - start) / 5 * 1e3)
    return statistics.median(found)


def of_torch(net: Any, x: Any, labels: Any, n_losses: int) -> tuple[list[float], float, int]:
    """Losses, milliseconds of a step, bytes at the most."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, fused=True, **ADAM_W)

    def step() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [float(step()) for _ in range(n_losses)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    ms = times(step, torch.cuda.synchronize)
    return losses, ms, torch.cuda.max_memory_allocated()


def of_ours(
    folder: Path, graph: bool, x: Any, labels: Any, n_losses: int
) -> tuple[list[float], float, int]:
    """The same of a training session."""
    with Used() as used:
        session = cto.onnx.TrainingSession(folder, cupy, tf32=True, graph=graph)
        session.lr = RATE
        losses = [float(session.step(x, labels)) for _ in range(n_losses)]
        used.most = used.now
        session.step(x, labels)
        rooms = [getattr(runs, "_memory", None) for runs in runs_of(session)]
        nbytes = used.most + sum(room.size for room in rooms if room is not None)
    wait = cupy.cuda.Device().synchronize
    ms = times(lambda: session.step(x, labels), wait)
    if not graph:
        host_time(lambda: session.step(x, labels), wait)
    return losses, ms, nbytes


def runs_of(session: Any) -> tuple[Any, Any]:
    return session._run_training, session._run_optimizer


def host_time(step: Callable[[], Any], wait: Callable[[], Any]) -> None:
    """How long the host takes to queue a step for an idle device, and ones behind each other."""
    found: tuple[list[float], list[float]] = [], []
    for waits in (True, False):
        wait()
        for _ in range(10):
            if waits:
                wait()
            start = time.perf_counter()
            step()
            found[waits].append((time.perf_counter() - start) * 1e3)
    apart, behind = (statistics.median(times) for times in found[::-1])
    print(f"  queued in {apart:.2f} ms by the host, behind each other {behind:.2f}", flush=True)


def where_time_goes(step: Callable[[], Any], count: int) -> None:
    """Kernels of two steps by the time that they take."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    rows = [r for r in profiler.key_averages() if r.self_device_time_total > 0]
    rows.sort(key=lambda r: -r.self_device_time_total)
    total = sum(r.self_device_time_total for r in rows) / 2e3
    print(f"  device {total:.3f} ms in {sum(r.count for r in rows) // 2} pieces of work")
    for row in rows[:count]:
        print(f"  {row.self_device_time_total / 2e3:8.3f} ms {row.count // 2:5} {row.key[:100]}")


def large(name: str, kernels: int, rows: int) -> None:
    """One network of PEERS."""
    peer = PEERS[name]
    torch.manual_seed(0)
    net = peer.net().cuda()
    x, labels = (t.cuda() for t in peer.batch(rows or peer.rows))
    given = cupy.asarray(x), cupy.asarray(labels)
    with artifacts(name, net) as folder:
        losses, theirs, most = of_torch(net, x, labels, 3)
        del net
        torch.cuda.empty_cache()
        print(f"{name}: PyTorch {theirs:.2f} ms, {most / MIB:.0f} MiB, losses {losses}", flush=True)
        for graph in (False, True):
            found, ours, nbytes = of_ours(folder, graph, *given, 3)
            words = "replayed" if graph else "eager"
            apart = max(abs(a - b) / b for a, b in zip(found, losses, strict=True))
            print(
                f"{name}: {words} {ours:.2f} ms ({ours / theirs:.2f}), {nbytes / MIB:.0f} MiB "
                f"({nbytes / most:.2f}), losses apart {apart:.1e} {found}",
                flush=True,
            )
            cupy.get_default_memory_pool().free_all_blocks()
        if kernels:  # at last: what was profiled once is slower from then on
            session = cto.onnx.TrainingSession(folder, cupy, tf32=True)
            session.step(*given)
            where_time_goes(lambda: session.step(*given), kernels)
            where_the_host_is(lambda: session.step(*given), kernels)


def where_the_host_is(step: Callable[[], Any], count: int) -> None:
    """Functions of three steps by the time that they take themselves."""
    profiler = cProfile.Profile()
    profiler.runcall(lambda: [step() for _ in range(3)])
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(count)
    print(text.getvalue().partition("ncalls")[2], flush=True)


def small() -> None:
    """The graphs of tests/graphs/data, replayed, beside PyTorch's eager steps."""
    from nets import CASES

    losses: dict[str, Callable[..., Any]] = {
        "CrossEntropyLoss": torch.nn.functional.cross_entropy,
        "MSELoss": torch.nn.functional.mse_loss,
        "BCEWithLogitsLoss": torch.nn.functional.binary_cross_entropy_with_logits,
    }
    torch.set_default_device("cuda")
    torch.backends.cudnn.benchmark = False  # it would take seconds
    for name, case in CASES.items():
        net, (x, labels) = case.net(), case.batch()
        for n, parameter in net.named_parameters():
            parameter.requires_grad_(n not in case.frozen)
        theirs = times(small_step(case, net, losses[case.loss], x, labels), torch.cuda.synchronize)
        given = cupy.asarray(x), cupy.asarray(labels)
        found = []
        for graph in (False, True):
            folder = ROOT / "tests" / "graphs" / "data" / name
            session = cto.onnx.TrainingSession(folder, cupy, graph=graph)
            for _ in range(3):
                session.step(*given)
            wait = cupy.cuda.Device().synchronize
            found.append(times(functools.partial(session.step, *given), wait))
        print(
            f"{name:15} PyTorch {theirs * 1e3:6.0f} us, eager {found[0] * 1e3:6.0f} "
            f"({found[0] / theirs:.2f}), replayed {found[1] * 1e3:6.0f} ({found[1] / theirs:.2f})",
            flush=True,
        )


def small_step(case: Any, net: Any, loss: Callable[..., Any], x: Any, labels: Any) -> Any:
    """PyTorch's step of a case of tests/graphs/nets.py."""
    trained = [p for p in net.parameters() if p.requires_grad]
    if case.optimizer == "AdamW":
        optimizer: Any = torch.optim.AdamW(trained, lr=RATE, fused=True, **ADAM_W)
    else:
        optimizer = torch.optim.SGD(trained, lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        loss(net(x), labels).backward()
        if case.clip is not None:
            torch.nn.utils.clip_grad_norm_(trained, case.clip)
        optimizer.step()

    return step


@click.command()
@click.argument("names", nargs=-1)
@click.option("--kernels", default=0, help="How many kernels to list.")
@click.option("--rows", default=0, help="Of a batch; the network's own without.")
def main(names: tuple[str, ...], kernels: int, rows: int) -> None:
    """Time the networks named, or all."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    for name in names or (*PEERS, "small"):
        if name == "small":
            small()
        else:
            large(name, kernels, rows)


if __name__ == "__main__":
    main()
