# SPDX-License-Identifier: MIT
"""What a source may look like, and what compile errors say."""

import numpy as np
import pytest

from emulator import EmulatedModule, EmulatorCompileError, require_emulator
from emulator.options import translate_options

pytestmark = pytest.mark.usefixtures("emulator_present")


@pytest.fixture(scope="module")
def emulator_present():
    """Skips where kernels cannot run."""
    require_emulator()


def _run(code, out, *args, options=(), threads=1):
    EmulatedModule(code, options).get_function("k")((1,), (threads,), (out, *args))
    return out


@pytest.mark.parametrize(
    "head",
    [
        'extern "C" __global__ void k(int* out)',
        'extern "C" __global__ void __launch_bounds__(64) k(int* out)',
        'extern "C" __global__ __launch_bounds__(BOUND(2), 1) void k(int* out)',
        'extern "C" __global__\n__launch_bounds__(BOUND(2) * 1)\nvoid\nk(int* out)',
        'extern "C"  __global__  void  k (\n    int* __restrict__ out)',
    ],
)
def test_ways_to_write_a_kernels_head(head):
    code = f"#define BOUND(x) (32 * (x))\n{head} {{\n  out[threadIdx.x] = __LINE__;\n}}\n"
    line = 2 + head.count("\n") + 1
    np.testing.assert_array_equal(_run(code, np.zeros(3, np.int32), threads=3), line)


DYNAMIC_SHARED = (
    "extern __shared__ int s[];",
    "extern __shared__ __align__(16) int s[];",
    "extern __align__(16) __shared__ int s[];",
    "alignas(16) extern __shared__ int s[];",
    "extern volatile __shared__ int s[];",
    "extern __shared__ volatile int s[];",
    "extern __shared__\n  __align__(16)\n  Number s[ ] ;",
    "extern __shared__ space::Pair<int, 3> s[];",
    "extern __shared__ __align__(16) unsigned s[];",
)
TYPES = "using Number = int; namespace space { template <class T, int n> using Pair = T; }\n"
ROTATE = "s[threadIdx.x] = K + threadIdx.x; __syncthreads(); out[threadIdx.x] = s[3 - threadIdx.x];"


@pytest.mark.parametrize("outside", [False, True])
def test_ways_to_declare_dynamic_shared_memory(outside):
    code = TYPES
    for k, declaration in enumerate(DYNAMIC_SHARED):
        scope = f"namespace n{k} {{\n{declaration}\n}}\n" if outside else ""
        local = f"using namespace n{k};" if outside else declaration
        code += f'{scope}extern "C" __global__ void k{k}(int* out) {{\n{local}\n'
        code += ROTATE.replace("K", str(k)) + " }\n"
    module = EmulatedModule(code)
    for k in range(len(DYNAMIC_SHARED)):
        out = np.zeros(4, np.int32)
        module.get_function(f"k{k}")((1,), (4,), (out,), 16)
        np.testing.assert_array_equal(out, k + np.array([3, 2, 1, 0]))


def test_line_marks_name_places_in_errors():
    code = (
        '#line 1 "cuda_src/a.cu"\n'
        '#line 40 "cuda_src/include/b.cuh"\n'
        "__device__ int good() { return 1; }\n"
        "__device__ int bad() { return undeclared_name; }\n"
        '#line 3 "cuda_src/a.cu"\n'
        'extern "C" __global__ void k(int* out) {\n'
        "  also_undeclared();\n"
        "}\n"
    )
    with pytest.raises(EmulatorCompileError) as caught:
        EmulatedModule(code)
    assert "cuda_src/include/b.cuh:41:" in str(caught.value)
    assert "undeclared_name" in str(caught.value)
    assert "cuda_src/a.cu:4:" in str(caught.value)


def test_line_numbers_survive_several_kernels():
    kernels = "".join(
        f'extern "C" __global__ void k{i}(int* out) {{ *out = __LINE__; }}\n' for i in range(4)
    )
    module = EmulatedModule(f'// one\n{kernels}#line 90 "b.cu"\n{kernels.replace("k", "m")}')
    for prefix, first in (("k", 2), ("m", 90)):
        out = np.zeros(4, np.int32)
        for i in range(4):
            module.get_function(f"{prefix}{i}")((1,), (1,), (out[i : i + 1],))
        np.testing.assert_array_equal(out, first + np.arange(4))


def test_emulator_macro_is_defined():
    code = """
#ifndef __CUDA_CPU__
#error "not the emulator"
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#error "no architecture"
#endif
extern "C" __global__ void k(int* out) { *out = VALUE; }
"""
    assert _run(code, np.zeros(1, np.int32), options=("-DVALUE=42",))[0] == 42


def test_modules_do_not_share_equally_named_variables():
    code = """
template <class T> __device__ T keep(T value) { __shared__ T kept[SIZE];
  for (int i = 0; i < SIZE; ++i) kept[i] = value; __syncthreads(); return kept[SIZE - 1]; }
extern "C" __global__ void k(int* out, int x) { *out = keep(x); }
"""
    modules = [EmulatedModule(code, (f"-DSIZE={size}",)) for size in (1, 900)]
    for value, module in enumerate([*modules, *modules]):
        out = np.zeros(1, np.int32)
        module.get_function("k")((1,), (1,), (out, np.int32(value)))
        assert out[0] == value


def test_changed_include_files_are_noticed(tmp_path):
    header = tmp_path / "number.h"
    code = '#include "number.h"\nextern "C" __global__ void k(int* out) { *out = NUMBER; }\n'
    for number in (1, 2):
        header.write_text(f"#define NUMBER {number}\n")
        assert _run(code, np.zeros(1, np.int32), options=(f"-I{tmp_path}",))[0] == number


def test_options_of_nvrtc_are_translated(tmp_path):
    macros = ("-DA=1", "-D", "B", "--define-macro=C=x,y", "-U", "D")
    gpu_only = ("--use_fast_math", "-arch=sm_90", "-ftz=true")
    options = translate_options((*macros, f"--include-path={tmp_path}", *gpu_only, "--std=c++20"))
    assert options.flags == ("-DA=1", "-DB", "-DC=x,y", "-UD", f"-I{tmp_path}")
    assert options.standard == "c++20"
    assert options.include_folders == (tmp_path,)
    assert translate_options(["-std=c++14"]).standard == "c++17"
