# SPDX-License-Identifier: MIT
"""Commands on a terminal of 80 columns, in a pipe, and without colour: run by test_terminal.py.

A process that may fork. Reads a JSON list of commands from stdin; prints what each writes in each
place, and its status.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import sys
import termios
from contextlib import suppress
from typing import NoReturn

from cupy_training_ops.cli import main

SIZE = struct.pack("HHHH", 40, 80, 0, 0)  # lines, columns


def on_terminal(command: list[str], **environment: str) -> tuple[str, int]:
    child, terminal = pty.fork()
    if not child:
        os.environ.update(environment)
        fcntl.ioctl(1, termios.TIOCSWINSZ, SIZE)
        run(command)
    return written(terminal, child)


def in_pipe(command: list[str]) -> tuple[str, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        run(command)
    os.close(writing)
    return written(reading, child)


def run(command: list[str]) -> NoReturn:
    """End as the command does."""
    status = 1
    try:
        main(command, prog_name="cupy-training-ops")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(status)


def written(stream: int, child: int) -> tuple[str, int]:
    text = bytearray()
    with suppress(OSError):  # as which a terminal ends
        while part := os.read(stream, 4096):
            text += part
    os.close(stream)
    _, status = os.waitpid(child, 0)
    return text.decode().replace("\r\n", "\n"), os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    commands = json.load(sys.stdin)
    places = (on_terminal, in_pipe, lambda command: on_terminal(command, NO_COLOR="1"))
    json.dump([[place(command) for place in places] for command in commands], sys.stdout)
