# SPDX-License-Identifier: MIT
"""The command line `cupy-training-ops`: results on stdout, progress and warnings on stderr."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .. import __version__
from . import benchmark, doctor, files, launch, onnx, operators, roundtrip
from .errors import Group

COMMAND = "cupy-training-ops"
VARIABLE = "_CUPY_TRAINING_OPS_COMPLETE"  # environment variable by which shells ask Click
TURNED_ON = {
    "bash": f'eval "$({COMMAND} completion bash)"',
    "zsh": f'eval "$({COMMAND} completion zsh)"',
    "fish": f"{COMMAND} completion fish | source",
}
_EPILOG = "\b\nTo turn it on, in the file that the shell reads when it starts:\n" + "\n".join(
    f"  {shell:5} {line}" for shell, line in TURNED_ON.items()
)


@click.group(
    cls=Group,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog=f"Completion by the shell: {TURNED_ON['bash']}; `completion -h` says more.",
)
@click.version_option(__version__, prog_name=COMMAND, message="%(prog)s %(version)s")
def main() -> None:
    """ONNX Runtime's CUDA training operators on CuPy: try codecs, check and warm this machine.

    Exit codes: 0 all well, 1 a check failed, 2 usage, bad input or output, 3 no GPU though one is
    asked for, 130 interrupted, 141 a closed pipe.
    """


@main.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(list(TURNED_ON)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete names.

    Those of commands, options, operators, codecs, and of the arrays in the files given.
    """
    of_shell = get_completion_class(shell)
    assert of_shell is not None  # Click has all three
    click.echo(of_shell(ctx.find_root().command, {}, COMMAND, VARIABLE).source())


for command in (
    roundtrip.roundtrip,
    benchmark.benchmark,
    files.encode,
    files.decode,
    files.info,
    operators.ops,
    operators.verify,
    operators.compile_kernels,
    doctor.doctor,
    onnx.onnx,
    launch.launch,
):
    main.add_command(command)
