# SPDX-License-Identifier: MIT
"""Every kernel compiles, for every type and architecture, without spilling; needs no GPU.

By default half of the sources are compiled, with one binding of their types for one architecture,
all three drawn for the session; with -m thorough the others too, for the other architectures too,
and each binding for one of three; with CTO_ALL_ARCHITECTURES=1 each for all eight.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cupy_training_ops import CompileError, ProviderError
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device import compiler
from cupy_training_ops.device.compiler import (
    ARCHITECTURES,
    Resources,
    compile_for,
    nvrtc,
    slot_options,
)
from cupy_training_ops.device.source import load
from cupy_training_ops.dtypes import FLOATS
from cupy_training_ops.families.collective.operators import adasum_slots
from cupy_training_ops.plan import Device, Launch
from cupy_training_ops.registry import FAMILIES, classes, get_op
from cupy_training_ops.testing.idle import Module, modules
from cupy_training_ops.testing.samples import all_samples

MAX_REGISTERS = 128  # so that at least 512 threads fit on a multiprocessor
MAX_SHARED_NBYTES = 48 * 1024  # what every GPU gives without being asked
# (kernel, architecture) that may have more registers: how many, and the reason.
EXCEPTIONS: dict[tuple[str, str], tuple[int, str]] = {
    ("conv__image", "100"): (168, "the compiler spills 32 bytes where it has 128"),
    ("conv__depthwise_walks_weight", "100"): (168, "of 5 x 5 taps it spills where it has 128"),
    **{
        (kernel, "120"): (255, "the compiler spills where it has 128")
        for kernel in (
            "conv__depthwise_lines",
            "conv__depthwise_lines_weight",
            "conv__depthwise_walks_weight",
        )
    },
    **{
        (kernel, architecture): (255, "each warp has 64 x 64 sums, or as many in other places")
        for kernel in ("conv__staged", "conv__direct_weight")
        for architecture in ("80", "86", "89", "90", "100", "120")
    },
    **{
        (f"attention__{kernel}", architecture): (255, "a warp has the sums of whole rows")
        for kernel in ("forward", "gradient_of_queries", "gradient_of_keys")
        for architecture in ARCHITECTURES
    },
    **{
        ("adam__largest_list", architecture): (168, "the compiler spills some types that have 128")
        for architecture in ARCHITECTURES
    },
}


COMPILED = sorted(
    {c.family for ops in FAMILIES.values() for _, c in classes(ops) if c.plan is not Op.plan}
)
# The first and the newest, and the one that the package is measured on.
THOROUGH_ARCHITECTURES = ("70", "90", "120")
EVERY_BINDING = os.environ.get("CTO_ALL_ARCHITECTURES") == "1"
DRAWN_SHARE = 0.5  # of the families


@functools.cache
def wanted(family: str, architecture: str) -> list[Module]:
    """What the samples of a family's operators compile on this architecture."""
    device = compiler.device_of(architecture)
    samples = chain.from_iterable(all_samples().get(name, ()) for name in FAMILIES[family])
    result = modules(samples, device)
    sampled = [(m.source.name, m.slots) for m in result]
    result += [m for m in unsampled(family, device) if (m.source.name, m.slots) not in sampled]
    return result + [m._replace(slots={**m.slots, "KEY": "u64"}) for m in result if sorts(m)]


def unsampled(family: str, device: Device) -> list[Module]:
    """What no sample launches: Adasum's kernels need several ranks, some tiles large arrays."""
    if family == "conv":
        return large_convolutions(device)
    if family != "collective":
        return []
    source = load(family)
    return [Module(source, adasum_slots(t), tuple(sorted(source.kernels))) for t in FLOATS]


def large_convolutions(device: Device) -> list[Module]:
    """Tall tiles over staged arrays and of lines, and gathered ones with offsets of 64 bits."""
    results: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for dtype, tf32, (n, channels, extent, kernel) in itertools.product(
        FLOATS, (False, True), ((64, 256, 14, 3), (64, 128, 56, 1), (1, 2, 40_000, 3))
    ):
        x = Spec((n, channels, extent, extent), dtype)
        w = Spec((channels, channels, kernel, kernel), dtype)
        op = get_op("ConvGrad")(pads=(kernel // 2,) * 4, allow_tf32=tf32)
        for step in op.plan(device, x, x, w, x, w, None).steps:
            assert isinstance(step, Launch)
            results.setdefault(tuple(sorted(step.slots.items())), set()).add(step.symbol)
    return [Module(load("conv"), dict(s), tuple(sorted(names))) for s, names in results.items()]


def sorts(module: Module) -> bool:
    """Whether its keys may have 64 bits, for which samples are too small; of one type of index."""
    return module.slots.get("KEY") == "u32" and module.slots["INDEX"] == "i64"


def drawn(candidates: Iterable[Module], draw: random.Random) -> list[Module]:
    """One binding of each source."""
    bindings: dict[str, list[Module]] = {}
    for module in candidates:
        bindings.setdefault(module.source.name, []).append(module)
    return [draw.choice(modules) for modules in bindings.values()]


def missing_nvrtc() -> str | None:
    """Why nothing can be compiled here, or None."""
    try:
        compiler.supported_architectures()
    except ProviderError as error:
        return str(error)
    return None


@pytest.fixture
def _nvrtc() -> None:
    """NVRTC, or a skip with the reason; in CI (CI=true) a failure."""
    reason = missing_nvrtc()
    if reason is not None and os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, but {reason}")
    if reason is not None:
        pytest.skip(reason)


def excess(resources: dict[str, Resources], architecture: str) -> list[str]:
    """Kernels that take more than they may."""
    return [
        f"{kernel} on sm_{architecture}: {used}"
        for kernel, used in resources.items()
        if used.spill_nbytes
        or used.registers > EXCEPTIONS.get((kernel, architecture), (MAX_REGISTERS, ""))[0]
        or used.shared_nbytes > MAX_SHARED_NBYTES
    ]


def faults(module: Module, architecture: str) -> list[str]:
    """What is wrong with this module's machine code; nothing of the kind is known of others."""
    try:
        result = compile_for(module.source, slot_options(module.slots), architecture)
    except CompileError as error:
        return [str(error)]
    assert set(module.symbols) <= result.keys() == module.source.kernels.keys()
    assert all(used.registers for used in result.values())
    return [f"{module.label}: {text}" for text in excess(result, architecture)]


def check(checked: Iterable[Module], architecture: str) -> None:
    """All that is wrong, of all modules."""
    if architecture not in compiler.supported_architectures():
        pytest.skip(f"this NVRTC does not compile for sm_{architecture}")
    wrong = [text for module in checked for text in faults(module, architecture)]
    assert not wrong, "\n".join(["", *wrong])


def cases() -> Iterator[Any]:
    """Those that are not drawn are thorough; THOROUGH_ARCHITECTURES have a test of their own."""
    draw = random.Random(os.environ["CTO_SEED"])
    families = set(draw.sample(COMPILED, round(DRAWN_SHARE * len(COMPILED))))
    for family in COMPILED:
        drawn = draw.choice([*ARCHITECTURES])
        for architecture in ARCHITECTURES:
            if EVERY_BINDING or (architecture == drawn and family in families):
                yield pytest.param(family, architecture)
            elif architecture not in THOROUGH_ARCHITECTURES:
                yield pytest.param(family, architecture, marks=pytest.mark.thorough)


every_family = pytest.mark.parametrize("family", COMPILED)


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize(("family", "architecture"), list(cases()))
def test_kernels_compile_within_their_limits(family, architecture, seed) -> None:
    result = wanted(family, architecture)
    draw = random.Random(f"{seed} {family} {architecture}")
    check(result if EVERY_BINDING else drawn(result, draw), architecture)


@pytest.mark.thorough
@pytest.mark.usefixtures("_nvrtc")
@every_family
@pytest.mark.parametrize("architecture", THOROUGH_ARCHITECTURES)
def test_kernels_of_every_type_compile_within_their_limits(family, architecture, seed) -> None:
    """Each binding for one of these architectures: for all of them it took most of CI's time."""

    def is_drawn(module: Module) -> bool:
        draw = random.Random(f"{seed} {module.label}")
        return draw.choice(THOROUGH_ARCHITECTURES) == architecture

    check(filter(None if EVERY_BINDING else is_drawn, wanted(family, architecture)), architecture)


@pytest.mark.usefixtures("_nvrtc")
def test_the_readme_says_which_cuda_serves_which_capability() -> None:
    text = " ".join((Path(__file__).parent.parent / "README.md").read_text("utf-8").split())
    said = re.search(
        r"`cuda12x` serves compute capability (\S*) to (\S*) \(to (\S*) with a CUDA before 12\.8\)"
        r", `cuda13x` in its place (\S*) to (\d+\.\d)",
        text,
    )
    assert said is not None
    major, minor = nvrtc().getVersion()
    oldest, newest, newest_before, *of_13 = said.groups()
    of_12 = [oldest, newest if (major, minor) >= (12, 8) else newest_before]
    first, *_, last = (f"{a[:-1]}.{a[-1]}" for a in compiler.supported_architectures())
    assert [first, last] == (of_12 if major == 12 else of_13)


@every_family
def test_every_family_with_kernels_is_compiled(family) -> None:
    """Some sample has a module; which there are is asked where they are compiled."""
    device = compiler.device_of("90")
    samples = chain.from_iterable(all_samples().get(name, ()) for name in FAMILIES[family])
    result = chain(unsampled(family, device), (m for s in samples for m in modules([s], device)))
    assert family in (module.source.name for module in result)


def test_one_binding_of_each_source_is_drawn() -> None:
    result = wanted(COMPILED[0], "90") + wanted(COMPILED[1], "90")
    draws = [drawn(result, random.Random(seed)) for seed in range(50)]
    assert all([m.source.name for m in draw] == COMPILED[:2] for draw in draws)
    assert {m.label for draw in draws for m in draw} == {m.label for m in result}


def test_exceptions_are_needed() -> None:
    """An entry for a kernel that is no more, or an architecture that is not built, goes."""
    kernels = {name for family in COMPILED for name in load(family).kernels}
    for kernel, architecture in EXCEPTIONS:
        assert kernel in kernels
        assert architecture in ARCHITECTURES


# ---- the gate itself -----------------------------------------------------------------------------

HUNGRY = """
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* y) {
    float v[48];
    for (int i = 0; i < 48; ++i) v[i] = y[i * threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 48; ++i)
        for (int j = 0; j < 48; ++j) v[i] += v[j] * v[(i + j) % 48];
    for (int i = 0; i < 48; ++i) y[i * threadIdx.x] = v[i];
}
extern "C" __global__ void sharing(float* y) {
    __shared__ float tile[1234];
    tile[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x ^ 1];
}
extern "C" __global__ void modest(float* y) { y[threadIdx.x] = 1; }
"""


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("architecture", ["80", "90"])
def test_a_spill_is_seen(tmp_path, architecture) -> None:
    (tmp_path / "hungry.cu").write_text(HUNGRY)
    result = compile_for(load("hungry", tmp_path), (), architecture)
    assert result["spilling"].spill_nbytes > 0
    assert result["modest"].spill_nbytes == 0
    assert 0 < result["modest"].registers < 32
    assert result["sharing"].shared_nbytes == 1234 * 4
    (wrong,) = excess(result, architecture)
    assert wrong.startswith(f"spilling on sm_{architecture}")


@pytest.mark.usefixtures("_nvrtc")
def test_what_was_compiled_before_is_measured_again(tmp_path) -> None:
    """Beside a driver, whose cache keeps what NVRTC compiled and gives it without figures."""
    (tmp_path / "hungry.cu").write_text(HUNGRY)
    first, second = (compile_for(load("hungry", tmp_path), (), "90") for _ in range(2))
    assert first == second != {}


@pytest.mark.parametrize(
    ("used", "fits"),
    [
        (Resources(MAX_REGISTERS, 0, MAX_SHARED_NBYTES), True),
        (Resources(MAX_REGISTERS + 1, 0, 0), False),
        (Resources(16, 0, MAX_SHARED_NBYTES + 1), False),
        (Resources(16, 4, 0), False),
    ],
)
def test_the_limits(used, fits) -> None:
    assert (
        excess({"some_kernel": used}, "90") == [] if fits else excess({"some_kernel": used}, "90")
    )


@pytest.mark.usefixtures("_nvrtc")
def test_a_compile_error_names_the_true_file_and_line(tmp_path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "bad.cuh").write_text("#pragma once\n\nint f() { return nothing; }\n")
    (tmp_path / "broken.cu").write_text(
        '// a comment\n#include "include/bad.cuh"\n'
        'extern "C" __global__ void broken(float* y) {\n    y[0] = neither;\n}\n'
    )
    with pytest.raises(CompileError, match=r"broken\.cu did not compile for sm_90") as caught:
        compile_for(load("broken", tmp_path), slot_options({"T": "float"}), "90")
    folder = tmp_path.name
    assert f"{folder}/include/bad.cuh(3): error" in caught.value.log
    assert f"{folder}/broken.cu(4): error" in caught.value.log
    assert "-DCTO_T=float" in str(caught.value)
    assert caught.value.log in str(caught.value)


def test_a_missing_nvrtc_says_what_to_install(monkeypatch) -> None:
    from cupy_backends.cuda.libs import nvrtc

    def fails():
        raise RuntimeError("libnvrtc.so not found")

    monkeypatch.setattr(nvrtc, "getVersion", fails)
    assert "pip install" in missing_nvrtc()
    assert "libnvrtc.so not found" in missing_nvrtc()
