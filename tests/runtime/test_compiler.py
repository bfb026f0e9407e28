# SPDX-License-Identifier: MIT
"""The memo of compiled kernels: one compile for each key, whoever asks and however many."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cupy_training_ops import CompileError
from cupy_training_ops.runtime import compiler
from cupy_training_ops.runtime.compiler import kernel, slot_options
from cupy_training_ops.runtime.source import Source, signatures

TEXT = """
extern "C" __global__ void first(float* y) {}
extern "C" __global__ void second(float* y) {}
"""
_fresh = itertools.count()


class CountingBackend:
    """Compiles nothing, slowly, and writes down what it was asked for."""

    name = "counting"

    def __init__(self) -> None:
        self.loads: list[tuple[str, tuple[str, ...]]] = []
        self.functions: list[str] = []

    def load(self, source, options):
        self.loads.append((source.name, options))
        time.sleep(0.02)  # long enough for every other thread to arrive
        return self

    def get_function(self, name):
        self.functions.append(name)
        return object()


@pytest.fixture
def source() -> Source:
    """A source no test has compiled before: the memo lives as long as the process."""
    code = f"// {next(_fresh)}\n{TEXT}"
    return Source("fake", code, signatures(code))


def test_many_threads_compile_once(source) -> None:
    backend, together = CountingBackend(), threading.Barrier(16)

    def ask(_):
        together.wait()
        return kernel(backend, source, {"T": "float"}, "first", 0)

    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(ask, range(16)))
    assert len(found) == len(backend.loads) == len(backend.functions) == 1


def test_kernels_of_one_file_share_a_module(source) -> None:
    backend = CountingBackend()
    first = kernel(backend, source, {"T": "float"}, "first", 0)
    second = kernel(backend, source, {"T": "float"}, "second", 0)
    assert first is not second
    assert len(backend.loads) == 1
    assert backend.functions == ["first", "second"]


def test_the_order_of_slots_does_not_matter(source) -> None:
    backend = CountingBackend()
    kernel(backend, source, {"T": "float", "U": "i64"}, "first", 0)
    kernel(backend, source, {"U": "i64", "T": "float"}, "first", 0)
    assert len(backend.loads) == 1


@pytest.mark.parametrize("changed", ["slots", "device", "code", "backend"])
def test_what_a_kernel_depends_on_compiles_anew(source, changed) -> None:
    one = CountingBackend()
    other = CountingBackend() if changed == "backend" else one
    text = source.code + ("// edited" if changed == "code" else "")
    first = kernel(one, source, {"T": "float"}, "first", 0)
    second = kernel(
        other,
        Source("fake", text, source.kernels),
        {"T": "double" if changed == "slots" else "float"},
        "first",
        1 if changed == "device" else 0,
    )
    assert first is not second
    assert len(one.loads + (other.loads if other is not one else [])) == 2


def test_an_unknown_kernel_is_refused_before_compiling(source) -> None:
    backend = CountingBackend()
    with pytest.raises(CompileError, match=r"fake\.cu defines no kernel third"):
        kernel(backend, source, {}, "third", 0)
    assert not backend.loads


def test_a_failed_compile_is_not_remembered(source, monkeypatch) -> None:
    backend = CountingBackend()

    def fails(*_):
        raise CompileError("no")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "load", fails)
        with pytest.raises(CompileError, match="no"):
            kernel(backend, source, {}, "first", 0)
    assert kernel(backend, source, {}, "first", 0) is not None


def test_slots_become_prefixed_defines() -> None:
    options = slot_options({"U": "i64", "T": "__half"})
    assert options == ("--std=c++17", "-DCTO_T=__half", "-DCTO_U=i64")


def test_headers_are_found_in_a_toolkit(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(compiler, "_pathfinder_folder", lambda: None)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").touch()
    assert compiler.header_folder.__wrapped__() == str(tmp_path / "include")


def test_missing_headers_say_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(compiler, "header_folder", lambda: None)
    with pytest.raises(CompileError, match="pip install nvidia-cuda-runtime-cu12"):
        compiler.header_options.__wrapped__()
