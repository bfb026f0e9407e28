# SPDX-License-Identifier: MIT
"""onnxruntime in a process of its own, which is started again after a model has ended it."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

RUNNER = Path(__file__).with_name("runner.py")
SECONDS = 60.0  # for one request; all take milliseconds


class UpstreamError(Exception):
    """A model was refused, failed, ended the process or took too long."""


@dataclass(frozen=True)
class Request:
    """One node. `inputs` are names, "" for an absent one; `outputs` are dtypes by name.

    A list of names is a sequence; a list of dtypes one whose tensors are called name_0, name_1, ...
    `between`: other nodes stand before and behind it, as a graph's input may not be its output.
    `shapes`: of outputs, where an operator asks the graph for them.
    """

    op: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: Sequence[str | list[str]]
    outputs: Mapping[str, str | list[str]]
    between: bool = False
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def answers(self) -> list[str]:
        """The names of all tensors that come back."""
        return [
            each
            for name, dtype in self.outputs.items()
            for each in (
                [f"{name}_{i}" for i in range(len(dtype))] if isinstance(dtype, list) else [name]
            )
        ]


class Upstream:
    """Asks onnxruntime: `with Upstream(python, folder) as upstream: upstream(request, arrays)`."""

    def __init__(self, python: Path, folder: Path) -> None:
        """python: one that has onnxruntime; folder: an empty one for requests and answers."""
        self._command = [str(python), "-I", str(RUNNER)]
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Upstream:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def __call__(self, request: Request, arrays: Mapping[str, Any]) -> list[Any]:
        """The outputs in order. Raises UpstreamError, which names the operator."""
        answer = self._folder / "answer.npz"
        answer.unlink(missing_ok=True)
        np.savez(self._folder / "request.npz", request=json.dumps(asdict(request)), **arrays)
        reason = self._ask()
        if reason is not None:
            raise UpstreamError(f"{request.op}: {reason}")
        with np.load(answer) as stored:
            return [stored[name] for name in request.answers]

    def _ask(self) -> str | None:
        """Send the request; why there is no answer, or None."""
        process = self._started()
        limit = threading.Timer(SECONDS, process.kill)
        limit.start()
        try:
            process.stdin.write(f"{self._folder}\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        finally:
            limit.cancel()
        return json.loads(reply) if reply else f"the process ended: {self._stop()}"

    def _started(self) -> Any:
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        return self._process

    def _stop(self) -> str:
        """End the process, if there is one; how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "never started"
        process.communicate()
        code = process.returncode
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"
