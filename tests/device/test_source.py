# SPDX-License-Identifier: MIT
"""Source text: inlined headers, `#line` marks that tell the truth, signatures as written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupy_training_ops import CompileError
from cupy_training_ops.device.source import Parameter, families, load, signatures, source_folder

MARK = re.compile(r'#line (\d+) "([^"]+)"')
read = load.__wrapped__  # as a new process reads it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source folder with one family and one header of its own."""
    home = tmp_path / "cuda"
    (home / "include").mkdir(parents=True)
    (home / "include" / "own.cuh").write_text("#pragma once\nconstexpr int N = 3;\n")
    (home / "family.cu").write_text(
        '// first line\n#include "include/own.cuh"\n#include <cuda_fp16.h>\n'
        '#include "include/own.cuh"\nextern "C" __global__ void k(float* y) { *y = N; }\n'
    )
    return home


def marked_lines(code: str) -> Iterator[tuple[str, int, str]]:
    """Every line with the file and number that the compiler would give it."""
    name, number = "", 0
    for line in code.splitlines():
        mark = MARK.fullmatch(line)
        if mark:
            number, name = int(mark[1]), mark[2]
        else:
            yield name, number, line
            number += 1


@pytest.mark.parametrize("family", families())
def test_marks_name_the_true_file_and_line(family) -> None:
    root = source_folder().parent
    files = {}
    for name, number, line in marked_lines(read(family).code):
        lines = files.setdefault(name, (root / name).read_text(encoding="utf-8").splitlines())
        assert lines[number - 1] == line, f"{name}:{number}"
    assert f"cuda_src/{family}/{family}.cu" in files
    assert "cuda_src/core/types.cuh" in files


def test_a_header_is_inlined_once_and_system_headers_stay(folder) -> None:
    code = read("family", folder).code
    assert code.count("constexpr int N = 3;") == 1
    assert code.count("#include <cuda_fp16.h>") == 1
    assert '#include "' not in code
    assert ("cuda/family.cu", 5) in {(name, number) for name, number, _ in marked_lines(code)}


def test_editing_a_header_changes_the_code(folder) -> None:
    before = read("family", folder).code
    header = folder / "include" / "own.cuh"
    header.write_text(header.read_text().replace("3", "4"))
    after = read("family", folder).code
    assert before != after
    assert "constexpr int N = 4;" in after


def test_another_folders_source_uses_the_packages_headers(folder) -> None:
    (folder / "other.cu").write_text('#include "core/types.cuh"\n')
    names = {name for name, _, _ in marked_lines(read("other", folder).code)}
    assert "cuda_src/core/types.cuh" in names


def test_a_missing_header_is_named_with_the_file_that_wants_it(folder) -> None:
    (folder / "include" / "own.cuh").write_text('#include "include/gone.cuh"\n')
    with pytest.raises(CompileError, match=r"own\.cuh: included file include/gone\.cuh not found"):
        read("family", folder)


def test_a_missing_header_of_facts_is_named_with_what_writes_it(folder) -> None:
    (folder / "include" / "own.cuh").write_text('#include "gone/facts.cuh"\n')
    with pytest.raises(CompileError, match=r"gone/facts\.cuh not found: .*generate_headers\.py"):
        read("family", folder)


def test_a_missing_source_is_named_with_its_folder(folder) -> None:
    with pytest.raises(CompileError, match=rf"no kernel source gone\.cu in {folder}"):
        read("gone", folder)


def test_stems_are_the_cu_files() -> None:
    assert families() == tuple(sorted(path.stem for path in source_folder().rglob("*.cu")))
    assert "gist" in families()


SIGNATURES = {
    "void k(const float* x, i64 n)": [("x", "float", True), ("n", "i64", False)],
    "void k(const T* __restrict__ x)": [("x", "T", True)],
    "void k(T *x, T*y, T * z)": [("x", "T", True), ("y", "T", True), ("z", "T", True)],
    "void k(float* const x)": [("x", "float", True)],
    "void __launch_bounds__(256) k(bool b)": [("b", "bool", False)],
    "__launch_bounds__(256, 2) void k(bool b)": [("b", "bool", False)],
    "void\n__launch_bounds__(THREADS)\n    k(\n  int a,\n  int b)": [
        ("a", "int", False),
        ("b", "int", False),
    ],
    "void k(volatile unsigned int* flags)": [("flags", "unsigned int", True)],
    "void k(const __grid_constant__ struct Table t)": [("t", "Table", False)],
    "void k(Pointers<4> inputs, Extents extents)": [
        ("inputs", "Pointers<4>", False),
        ("extents", "Extents", False),
    ],
    "void k(cto::Table<CAPACITY, 2> table, const own::Pair<A, B>* pairs, int n)": [
        ("table", "cto::Table<CAPACITY, 2>", False),
        ("pairs", "own::Pair<A, B>", True),
        ("n", "int", False),
    ],
    "void k(int a /* of (x, y) */, // and\n int b)": [("a", "int", False), ("b", "int", False)],
    "void k()": [],
}


@pytest.mark.parametrize("text", SIGNATURES)
def test_a_signature_is_read_as_written(text) -> None:
    read_as = signatures(f'extern "C" __global__ {text} {{ }}')
    assert read_as == {"k": tuple(Parameter(*row) for row in SIGNATURES[text])}


@pytest.mark.parametrize(
    "text",
    [
        "template <class T> __global__ void k(T* x) {}",
        "__global__ void k(float* x) {}",
        '// extern "C" __global__ void k(float* x) {}',
        '/* extern "C" __global__ void k(float* x)\n {} */',
        'extern "C" __device__ void k(float* x) {}',
    ],
)
def test_what_is_no_entry_point_is_not_read(text) -> None:
    assert signatures(text) == {}


@pytest.mark.parametrize("family", families())
def test_no_entry_point_escapes_the_reader(family) -> None:
    source = read(family)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source.code, flags=re.DOTALL)
    assert len(source.kernels) == len(re.findall(r"\b__global__\b", text))
