# SPDX-License-Identifier: MIT
"""The emulator's test kernels are valid for NVRTC, so that they test real CUDA C++."""

from pathlib import Path

import pytest

from emulator.toolchain import header_folder

KERNELS = sorted((Path(__file__).parent / "kernels").glob("*.cu"))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernels_compile_with_nvrtc(path):
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", exc_type=ImportError)
    program = nvrtc.createProgram(path.read_text(), path.name, (), ())
    options = (f"-I{header_folder()}", "-arch=sm_90", "--std=c++17")
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    assert len(nvrtc.getCUBIN(program)) > 1000
