# SPDX-License-Identifier: MIT
"""CuPy's folder of compiled kernels: without one that can be made, CuPy cannot be imported."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from ..errors import ProviderError, pass_on

REMEDY = "export CUPY_CACHE_DIR=$(mktemp -d)"


def folder() -> str:
    """Where CuPy looks; an empty CUPY_CACHE_DIR counts, and is no folder."""
    return os.environ.get("CUPY_CACHE_DIR", os.path.expanduser("~/.cupy/kernel_cache"))


def make() -> None:
    """Make the folder as CuPy's import would, which a failure would leave half done for good."""
    with usable():
        os.makedirs(folder(), exist_ok=True)


def require_writable() -> None:
    """Write a file into the folder: permissions do not tell what a file system refuses."""
    make()
    with usable(), tempfile.TemporaryFile(dir=folder()):
        pass


@contextlib.contextmanager
def usable() -> Iterator[None]:
    """Turn what a file system says of the folder into the standard refusal."""
    try:
        yield
    except OSError as error:
        pass_on(error)
        raise ProviderError(
            f"CuPy's kernel cache {folder()!r} cannot be used "
            f"({error.strerror or error}); name another folder with: {REMEDY}"
        ) from None


@contextlib.contextmanager
def importing(part: str) -> Iterator[None]:
    """Where CuPy, or a part of it, is imported: what stands in the way, and what mends it."""
    try:
        import cupy_backends  # noqa: F401 - light, and without it no folder need be made

        make()
        yield
    except ProviderError:
        raise
    except (ImportError, RuntimeError, OSError) as error:
        pass_on(error)
        reason = " ".join(str(error.__cause__ or error).split())  # CuPy's own fills a screen
        raise ProviderError(
            f"{part} cannot be loaded ({reason}); "
            "install it with: pip install 'cupy-training-ops[cuda12x]'"
        ) from None
