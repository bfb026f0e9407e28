# SPDX-License-Identifier: MIT
"""The memo of compiled kernels: one compile for each key, whoever asks and however many."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from cupy_training_ops import CompileError, ProviderError
from cupy_training_ops.device import compiler
from cupy_training_ops.device.compiler import compile_ahead, has_warpgroups, kernel, slot_options
from cupy_training_ops.device.source import Source, signatures

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
        actual = set(pool.map(ask, range(16)))
    assert len(actual) == len(backend.loads) == len(backend.functions) == 1


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


class MeetingBackend(CountingBackend):
    """Of modules, which load when so many are asked for at once."""

    loads_at_once = True
    is_capturing = False

    def __init__(self, parties: int) -> None:
        super().__init__()
        self._together = threading.Barrier(parties)
        self.on_devices: list[int] = []

    def capturing(self, device):
        return self.is_capturing

    def load(self, source, options):
        self.loads.append((source.name, options))
        self._together.wait(timeout=5)
        return self

    @contextlib.contextmanager
    def on(self, device):
        self.on_devices.append(device)
        yield


def test_modules_are_compiled_at_the_same_time(source) -> None:
    """Each once, on their device, and the kernels are found there; what is known is left out."""
    backend, types = MeetingBackend(3), ("float", "double", "__half")
    compile_ahead(backend, [(source, {"T": t}) for t in (*types, "float")], 3)
    assert {kernel(backend, source, {"T": t}, "first", 3) is None for t in types} == {False}
    assert len(backend.loads) == 3
    assert backend.on_devices == [3] * 3
    compile_ahead(backend, [(source, {"T": t}) for t in ("float", "i64")], 3)
    assert len(backend.loads) == 3  # one alone is loaded where it is asked for


def test_what_fails_ahead_is_said_where_it_is_asked_for(source, monkeypatch) -> None:
    backend = MeetingBackend(2)

    def fails(*_):
        raise CompileError("no")

    wanted = [(source, {"T": t}) for t in ("float", "double")]
    with monkeypatch.context() as patch:
        patch.setattr(backend, "load", fails)
        compile_ahead(backend, wanted, 0)
        with pytest.raises(CompileError, match="no"):
            kernel(backend, source, {"T": "float"}, "first", 0)
    compile_ahead(backend, wanted, 0)
    assert len(backend.loads) == 2


def test_nobody_waits_for_a_thread_that_compiles_ahead(source) -> None:
    """Which would wait for itself where a finalizer calls in one of its threads."""
    backend, inner = MeetingBackend(2), MeetingBackend(2)
    wanted = [(source, {"T": t}) for t in ("float", "double")]
    load = backend.load

    def calls(*args):
        compile_ahead(inner, wanted, 0)
        return load(*args)

    backend.load = calls
    compile_ahead(backend, wanted, 0)
    assert (len(backend.loads), inner.loads) == (2, [])


def test_a_backend_that_loads_one_at_a_time_compiles_nothing_ahead(source) -> None:
    backend = MeetingBackend(2)
    backend.loads_at_once = False
    compile_ahead(backend, [(source, {"T": t}) for t in ("float", "double")], 0)
    assert not backend.loads


def test_a_capture_compiles_nothing_in_other_threads(source) -> None:
    """PyTorch's own mode forbids others what it forbids the thread that captures."""
    backend = MeetingBackend(2)
    backend.is_capturing = True
    wanted = [(source, {"T": t}) for t in ("float", "double")]
    compile_ahead(backend, wanted, 0)
    assert not backend.loads
    backend.is_capturing = False
    compile_ahead(backend, wanted, 0)
    assert len(backend.loads) == 2


def test_slots_become_prefixed_defines() -> None:
    options = slot_options({"U": "i64", "T": "__half"})
    assert options == ("--std=c++17", "-DCTO_T=__half", "-DCTO_U=i64")


def test_a_slot_asks_for_the_instructions_of_warpgroups() -> None:
    assert "-arch=sm_90a" not in slot_options({"T": "__half", "WARPGROUPS": "0"})
    assert slot_options({"WARPGROUPS": "1"})[-2:] == ("-DCTO_WARPGROUPS=1", "-arch=sm_90a")


class RefusedError(Exception):
    """Of an NVRTC before 12.9."""


@pytest.mark.parametrize("takes_both", [True, False])
def test_warpgroups_are_where_nvrtc_takes_two_architectures(monkeypatch, takes_both) -> None:
    """It is asked once, and only for 9.0."""
    asked = []

    def compile_program(_, options) -> None:
        asked.append(options)
        if not takes_both:
            raise RefusedError

    made = {"createProgram": lambda *_: 0, "destroyProgram": lambda _: None}
    binding = SimpleNamespace(compileProgram=compile_program, NVRTCError=RefusedError, **made)
    monkeypatch.setattr(compiler, "nvrtc", lambda: binding)
    compiler._compiles_warpgroups.cache_clear()
    try:
        assert not has_warpgroups((8, 9))
        assert not has_warpgroups((10, 0))
        assert not asked
        assert [has_warpgroups((9, 0)) for _ in range(2)] == [takes_both] * 2
        assert asked == [("-arch=sm_90a", "-arch=sm_90")]
    finally:
        compiler._compiles_warpgroups.cache_clear()


def test_this_nvrtc_has_warpgroups_from_12_9_on() -> None:
    try:
        version = compiler.nvrtc().getVersion()
    except ProviderError as error:
        pytest.skip(str(error))
    assert has_warpgroups((9, 0)) is (version >= (12, 9))


@pytest.mark.parametrize("takes_it", [True, False])
def test_threads_compile_where_nvrtc_takes_the_option(monkeypatch, takes_it) -> None:
    asked = []

    def compile_program(_, options) -> None:
        asked.append(options)
        if not takes_it:
            raise RefusedError

    made = {"createProgram": lambda *_: 0, "destroyProgram": lambda _: None}
    binding = SimpleNamespace(compileProgram=compile_program, NVRTCError=RefusedError, **made)
    monkeypatch.setattr(compiler, "nvrtc", lambda: binding)
    expected = ("--split-compile=8",)
    compiler.thread_options.cache_clear()
    try:
        actual = [compiler.thread_options() for _ in range(2)]
        assert actual == [expected if takes_it else ()] * 2
        assert asked == [expected]
    finally:
        compiler.thread_options.cache_clear()


def headers(folder, version=None):
    """A folder like one of CUDA headers; of a version, or none that it tells."""
    folder.mkdir(parents=True)
    (folder / "cuda_fp16.h").touch()
    if version:
        (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    return str(folder)


@pytest.fixture
def no_headers(monkeypatch):
    """Nothing of NVIDIA's is installed, and NVRTC is of CUDA 12."""
    monkeypatch.setattr(compiler, "_nvrtc_major", lambda: 12)
    monkeypatch.setattr(compiler, "_wheel_roots", list)
    monkeypatch.setattr(compiler, "_pathfinder_folder", lambda: None)
    for name in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_headers")
def test_headers_are_found_in_a_toolkit(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    folder = headers(tmp_path / "include")
    assert compiler.header_folder.__wrapped__() == folder


@pytest.mark.usefixtures("no_headers")
@pytest.mark.parametrize("major", [12, 13])
def test_of_two_header_wheels_that_of_the_compiler_is_taken(monkeypatch, tmp_path, major) -> None:
    wheels = {
        12: headers(tmp_path / "nvidia" / "cuda_runtime" / "include", 12090),
        13: headers(tmp_path / "nvidia" / "cu13" / "include", 13000),
    }
    monkeypatch.setattr(compiler, "_wheel_roots", lambda: [str(tmp_path / "nvidia")])
    monkeypatch.setattr(compiler, "_nvrtc_major", lambda: major)
    for actual in wheels.values():  # pathfinder names either
        monkeypatch.setattr(compiler, "_pathfinder_folder", lambda actual=actual: actual)
        assert compiler.header_folder.__wrapped__() == wheels[major]


@pytest.mark.usefixtures("no_headers")
def test_headers_of_another_cuda_version_are_passed_over(monkeypatch, tmp_path) -> None:
    wheel = headers(tmp_path / "13", 13000)
    monkeypatch.setattr(compiler, "_pathfinder_folder", lambda: wheel)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "12"))
    toolkit = headers(tmp_path / "12" / "include", 12060)
    assert compiler.header_folder.__wrapped__() == toolkit
    monkeypatch.delenv("CUDA_PATH")
    assert compiler.header_folder.__wrapped__() != wheel


@pytest.mark.parametrize(
    ("major", "package"), [(12, "nvidia-cuda-runtime-cu12"), (13, "nvidia-cuda-runtime==13.*")]
)
def test_missing_headers_name_the_package_of_the_compiler(monkeypatch, major, package) -> None:
    monkeypatch.setattr(compiler, "_nvrtc_major", lambda: major)
    monkeypatch.setattr(compiler, "header_folder", lambda: None)
    with pytest.raises(CompileError, match=re.escape(f"pip install {package}")):
        compiler.header_options.__wrapped__()


def test_missing_headers_name_the_cuda_that_is_here(monkeypatch) -> None:
    monkeypatch.setattr(compiler, "header_folder", lambda: None)
    major, _ = compiler.nvrtc().getVersion()
    with pytest.raises(CompileError, match=rf"headers of CUDA {major} .* pip install nvidia-cuda-"):
        compiler.header_options.__wrapped__()
