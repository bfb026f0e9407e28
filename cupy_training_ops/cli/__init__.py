# SPDX-License-Identifier: MIT
"""The command line `cupy-training-ops`: results on stdout, progress and warnings on stderr."""

from __future__ import annotations

import click

from .. import __version__
from . import (
    compile,
    completion,
    doctor,
    encode_decode,
    info,
    launch,
    onnx,
    ops,
    roundtrip,
    verify,
)
from .errors import Group


@click.group(
    cls=Group,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog=f"Completion by the shell: {completion.TURNED_ON['bash']}; `completion -h` says more.",
)
@click.version_option(__version__, prog_name=completion.COMMAND, message="%(prog)s %(version)s")
def main() -> None:
    """ONNX Runtime's CUDA training operators on CuPy: try codecs, check and warm this machine.

    Exit codes: 0 all well, 1 a check failed, 2 usage, bad input or output, 3 no GPU though one is
    asked for, 130 interrupted, 141 a closed pipe.
    """


main.add_command(roundtrip.roundtrip)
main.add_command(encode_decode.encode)
main.add_command(encode_decode.decode)
main.add_command(info.info)
main.add_command(ops.ops)
main.add_command(verify.verify)
main.add_command(compile.compile_kernels)
main.add_command(doctor.doctor)
main.add_command(onnx.onnx)
main.add_command(launch.launch)
main.add_command(completion.completion)
