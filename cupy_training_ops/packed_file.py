# SPDX-License-Identifier: MIT
"""Packed on disk: NumPy's own .npz without pickle, with a format version."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from . import arrays
from .codec import Packed
from .errors import ArgumentError, OpError

FORMAT = "cupy-training-ops packed array"
VERSION = 1


def save(packed: Packed, file: Any) -> None:
    """Members: `header` (JSON text) and `code`. A path is replaced only by a whole file."""
    header = json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "codec": packed.codec,
            "dtype": packed.dtype,
            "shape": packed.shape,
            "options": packed.options,
        }
    )
    code = packed.code if isinstance(packed.code, np.ndarray) else packed.code.get()
    with contextlib.ExitStack() as stack:
        stream = file if hasattr(file, "write") else stack.enter_context(replacing(Path(file)))
        np.savez(stream, header=np.array(header), code=code)


def load(file: Any, provider: str) -> Packed:
    """Read a Packed; whatever is wrong with the file becomes one ArgumentError."""
    if provider not in ("cpu", "cuda"):
        raise ArgumentError(f"Packed: provider: expected 'cpu' or 'cuda', got {provider!r}")
    try:
        with _opened(file) as stream, _members(file, stream) as members:
            header, code = json.loads(str(members["header"])), members["code"]
    except (FileNotFoundError, OpError):
        raise
    except Exception as error:  # NumPy's reader lets through what any of its parsers raises
        raise ArgumentError(f"{file}: no packed array, or a damaged one ({error})") from error
    _check_header(file, header)
    if provider == "cuda":
        code = _on_gpu(code)
    try:
        return Packed(
            header["codec"], header["dtype"], tuple(header["shape"]), code, header["options"]
        )
    except (OpError, KeyError, TypeError) as error:
        raise ArgumentError(f"{file}: damaged packed array: {error}") from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes take the place of `path` at the end, all or none of them."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _opened(file: Any) -> contextlib.AbstractContextManager[IO[bytes]]:
    """The file as a stream: NumPy leaves a damaged archive that it opened itself open."""
    return contextlib.nullcontext(file) if hasattr(file, "read") else Path(file).open("rb")


def _members(file: Any, stream: IO[bytes]) -> Any:
    members = np.load(stream, allow_pickle=False)
    if isinstance(members, np.ndarray):
        raise ArgumentError(f"{file}: no packed array: it holds one of {members.dtype} as it is")
    return members


def _check_header(file: Any, header: Any) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ArgumentError(f"{file}: no packed array: its header does not say {FORMAT!r}")
    if header.get("version") != VERSION:
        raise ArgumentError(
            f"{file}: expected format version {VERSION}, got {header.get('version')}; "
            f"a newer cupy-training-ops may read it"
        )


def _on_gpu(code: Any) -> Any:
    arrays.cuda_backend()
    import cupy

    return cupy.asarray(code)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
