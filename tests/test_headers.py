# SPDX-License-Identifier: MIT
"""Each CUDA header compiles by itself and together with all others, in any order; needs no GPU."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cupy_training_ops import CompileError, ProviderError
from cupy_training_ops.dtypes import ELEMENT_TYPES
from cupy_training_ops.runtime import offline
from cupy_training_ops.runtime.compiler import LANGUAGE
from cupy_training_ops.runtime.source import Source, families, load, signatures, source_folder

FOLDER = source_folder()
HEADERS = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.cuh"))
PROBE = Path(__file__).parent / "probe"
ARCHITECTURES = ("70", "90", "120")
GROUPS = {"alphabetical": HEADERS, "reverse": HEADERS[::-1]} | {name: [name] for name in HEADERS}


def cases() -> Iterator[Any]:
    """Each group for an architecture that is drawn for the session; the others are thorough."""
    every = os.environ.get("CTO_ALL_ARCHITECTURES") == "1"
    for group in GROUPS:
        draw = random.Random(f"{os.environ['CTO_SEED']} {group}").choice(ARCHITECTURES)
        for architecture in ARCHITECTURES:
            marks = () if every or architecture == draw else pytest.mark.thorough
            yield pytest.param(group, architecture, marks=marks)


def compile_headers(folder: Path, names: list[str], architecture: str) -> None:
    """One translation unit that includes these headers and nothing else."""
    try:
        known = offline.supported_architectures()
    except ProviderError as error:
        pytest.skip(str(error))
    if architecture not in known:
        pytest.skip(f"this NVRTC does not compile for sm_{architecture}")
    includes = "".join(f'#include "{name}"\n' for name in names)
    (folder / "headers.cu").write_text(includes)
    offline.compile_for(load.__wrapped__("headers", folder), (LANGUAGE,), architecture)


@pytest.mark.parametrize(("group", "architecture"), list(cases()))
def test_headers_compile(tmp_path, group, architecture) -> None:
    compile_headers(tmp_path, GROUPS[group], architecture)


def test_accumulators_are_those_of_the_type_table(tmp_path) -> None:
    code = "".join(
        f"static_assert(ARE_SAME<Acc<{row.c_type}>, {row.accumulator}>);\n"
        for row in ELEMENT_TYPES
        if row.dtype.kind != "c"
    )
    text = f'#include "core/types.cuh"\nusing namespace cto;\n{code}'
    (tmp_path / "table.cuh").write_text(text)
    compile_headers(tmp_path, ["table.cuh"], "90")


def test_a_name_defined_twice_is_noticed(tmp_path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.cuh").write_text("#pragma once\nnamespace cto { struct Run {}; }\n")
        compile_headers(tmp_path, [f"{name}.cuh"], "90")
    with pytest.raises(CompileError, match="has already been defined"):
        compile_headers(tmp_path, ["one.cuh", "two.cuh"], "90")


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_has_a_namespace_of_its_own_and_no_slots(name) -> None:
    """But for defaults of slots, which are generated."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert "CTO_" not in text.replace("__CUDA_CPU__", "") or name.endswith("/facts.cuh")
    assert "#pragma once" in text
    opened = re.findall(r"^namespace ([\w:]+) \{$", text, re.MULTILINE)
    assert opened == (["cto"] if name == "core/types.cuh" else opened[:1])
    others = [(FOLDER / other).read_text(encoding="utf-8") for other in HEADERS if other != name]
    assert not any(f"\nnamespace {opened[0]} {{\n" in other for other in others)


# ---- structs in the launch parameters ------------------------------------------------------------

SCALARS = {row.c_type for row in ELEMENT_TYPES} | {"T", "ACC", "float", "int"}


def copied_structs(source: Source) -> list[str]:
    """Structs passed by value that a kernel would copy to local memory where it indexes them."""
    text = re.sub(r"\s+", " ", source.code)
    return [
        f"{source.name}.cu: {kernel}: {p.c_type} {p.name}"
        for kernel, parameters in signatures(source.code).items()
        for p in parameters
        if not p.pointer and p.c_type not in SCALARS
        and f"const __grid_constant__ {p.c_type} {p.name}" not in parameter_text(text, kernel)
    ]  # fmt: skip


def parameter_text(text: str, kernel: str) -> str:
    """What stands between the parentheses of a kernel."""
    found = re.search(rf'extern "C" __global__ [^{{]*\b{kernel}\(([^)]*)\)', text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("family", [*families(), "probe"])
def test_structs_are_grid_constants(family) -> None:
    assert copied_structs(load(family, PROBE if family == "probe" else None)) == []


@pytest.mark.parametrize(
    ("parameters", "copied"),
    [
        ("const __grid_constant__ Table t, const float* x, i64 n", []),
        ("Table t", ["Table t"]),
        ("const Table t, const __grid_constant__ Table<4> u", ["Table t"]),
    ],
)
def test_a_copied_struct_is_named(parameters, copied) -> None:
    code = f'extern "C" __global__ void k({parameters}) {{}}\n'
    assert copied_structs(Source("own", code, {})) == [f"own.cu: k: {text}" for text in copied]
