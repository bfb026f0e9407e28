# SPDX-License-Identifier: MIT
"""The emulator's test kernels are valid for NVRTC, so that they test real CUDA C++."""

from pathlib import Path

import pytest

from emulator.toolchain import header_folder

KERNELS = sorted((Path(__file__).parent / "kernels").glob("*.cu"))


OF_CPU = ("async_copies", "warpgroup_products")  # which have nothing for GPUs


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernels_compile_with_nvrtc(path):
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", exc_type=ImportError)

    def size(text: str) -> int:
        program = nvrtc.createProgram(text, path.name, (), ())
        options = (f"-I{header_folder()}", "-arch=sm_90", "--std=c++17")
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError:
            pytest.fail(nvrtc.getProgramLog(program))
        return len(nvrtc.getCUBIN(program))

    assert (size(path.read_text()) > size("")) == (path.stem not in OF_CPU)
