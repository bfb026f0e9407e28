# SPDX-License-Identifier: MIT
"""`completion`: what makes a shell complete commands, options, operators, codecs and arrays."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

COMMAND = "cupy-training-ops"
VARIABLE = "_CUPY_TRAINING_OPS_COMPLETE"  # as Click calls it
TURNED_ON = {
    "bash": f'eval "$({COMMAND} completion bash)"',
    "zsh": f'eval "$({COMMAND} completion zsh)"',
    "fish": f"{COMMAND} completion fish | source",
}
_EPILOG = "\b\nTo turn it on, in the file that the shell reads when it starts:\n" + "\n".join(
    f"  {shell:5} {line}" for shell, line in TURNED_ON.items()
)


@click.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(list(TURNED_ON)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete names.

    Those of commands, options, operators, codecs, and of the arrays in the files given.
    """
    of_shell = get_completion_class(shell)
    assert of_shell is not None  # Click has all three
    click.echo(of_shell(ctx.find_root().command, {}, COMMAND, VARIABLE).source())
