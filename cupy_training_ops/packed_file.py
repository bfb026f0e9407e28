# SPDX-License-Identifier: MIT
"""Packed on disk: NumPy's own .npz without pickle, with a format version."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from .codec import Packed
from .errors import ArgumentError, OpError, ProviderError
from .frame import backends

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
    try:
        packed = Packed(
            header["codec"], header["dtype"], tuple(header["shape"]), code, header["options"]
        )
    except (OpError, KeyError, TypeError) as error:
        raise ArgumentError(f"{file}: damaged packed array: {error}") from None
    return packed if provider == "cpu" else dataclasses.replace(packed, code=_on_gpu(code))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes take the place of `path` at the end, all or none of them.

    A link stays, and what it points to is replaced; a file that was there keeps its mode. A pipe or
    a device gets the bytes, and a folder is refused.
    """
    old = _status(path)
    if old is None or stat.S_ISREG(old.st_mode):
        with _renamed_to(Path(os.path.realpath(path)), old) as stream:
            yield stream
    else:
        with path.open("wb") as stream:
            whole = io.BytesIO()
            yield whole
            stream.write(whole.getbuffer())


@contextlib.contextmanager
def _renamed_to(path: Path, old: os.stat_result | None) -> Iterator[IO[bytes]]:
    """A new file beside `path`, which becomes it at the end or vanishes."""
    new = path.with_name(f".{secrets.token_hex(8)}.tmp")
    created = new.open("xb")
    try:
        with created as stream:
            if old is not None:  # before the first byte, which the old mode may keep from others
                os.chmod(new, stat.S_IMODE(old.st_mode))
            yield stream
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _status(path: Path) -> os.stat_result | None:
    """What is at a path, or at the end of a link; None where there is nothing."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


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
    version = header.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        raise ArgumentError(
            f"{file}: expected format version {VERSION}, got {version!r}"
            f"{'; a newer cupy-training-ops may read it' if newer else ''}"
        )


def _on_gpu(code: Any) -> Any:
    backends.cuda_backend()
    import cupy

    try:
        return cupy.asarray(code)
    except RuntimeError as error:  # CUDA's own: no GPU, no driver
        raise ProviderError(
            f"Packed: provider: cannot use 'cuda' here: {error}; "
            f"`cupy-training-ops doctor` says more"
        ) from None
