# SPDX-License-Identifier: MIT
"""CUDA source text: finds a family's file, inlines our headers, reads kernels' signatures.

Local includes are inlined here, so that CuPy's disk cache, which hashes the text, notices every
edit of a header; `#line` directives preserve file names and line numbers.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import CompileError

_PACKAGE = Path(__file__).resolve().parent.parent
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"\s*$')
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?void\s+'
    r"(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)",
)
_BETWEEN = re.compile(r",(?![^<]*>)")  # parameters, not template arguments
_QUALIFIER = re.compile(r"\b(const|__restrict__|__grid_constant__|volatile|struct)\b")


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter as written in CUDA: `const T* x` is ("x", "T", True)."""

    name: str
    c_type: str
    pointer: bool


@dataclass(frozen=True)
class Source:
    """One `.cu` file with its headers inlined, and its kernels' parameters by name."""

    name: str
    code: str
    kernels: dict[str, tuple[Parameter, ...]]


def source_folder() -> Path:
    """Return the folder of the `.cu` files: in an installed package, or beside it in a checkout."""
    for folder in (_PACKAGE / "cuda_src", _PACKAGE.parent / "cuda_src"):
        if folder.is_dir():
            return folder
    raise CompileError(f"cuda_src not found in {_PACKAGE} nor beside it; reinstall the package")


def families() -> tuple[str, ...]:
    """Return the names of families with kernels."""
    return tuple(sorted(path.stem for path in source_folder().glob("*/*.cu")))


@functools.cache
def load(family: str, folder: Path | None = None) -> Source:
    """Read `<family>/<family>.cu` of `cuda_src`, or `<family>.cu` of another folder."""
    path = folder / f"{family}.cu" if folder else source_folder() / family / f"{family}.cu"
    folder = folder or source_folder()
    if not path.is_file():
        raise CompileError(f"no kernel source {path.name} in {folder}")
    code = "\n".join(_inline(path, folder, set())) + "\n"
    return Source(family, code, signatures(code))


def signatures(code: str) -> dict[str, tuple[Parameter, ...]]:
    """Return parameters by kernel name, for every `extern "C" __global__ void` in the text."""
    bare = _COMMENT.sub(" ", code)
    return {match[1]: _parameters(match[2]) for match in _KERNEL.finditer(bare)}


def _inline(path: Path, folder: Path, seen: set[Path]) -> list[str]:
    """Return the lines of a file, each local include replaced by its file the first time.

    folder: the root of the file's includes. seen: files that are inlined so far; others are added.
    """
    seen.add(path)
    shown = f"{folder.name}/{path.relative_to(folder).as_posix()}"
    lines = [f'#line 1 "{shown}"']
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        include = _INCLUDE.match(line)
        if not include:
            lines.append(line)
            continue
        home = _home_of(include[1], path, folder)
        if home / include[1] not in seen:
            lines += _inline(home / include[1], home, seen)
        lines.append(f'#line {number + 1} "{shown}"')
    return lines


def _home_of(name: str, path: Path, folder: Path) -> Path:
    """Return the folder with the include `name`: `folder`, the root of the including file `path`,
    or `cuda_src`."""
    for home in (folder, source_folder()):
        if (home / name).is_file():
            return home
    how = ": python scripts/generate_headers.py writes it" if Path(name).stem == "facts" else ""
    raise CompileError(f"{path.name}: included file {name} not found{how}")


def _parameters(text: str) -> tuple[Parameter, ...]:
    """Parse the text between a kernel's parentheses."""
    parts = [part for part in (piece.strip() for piece in _BETWEEN.split(text)) if part]
    return tuple(_parameter(part) for part in parts)


def _parameter(text: str) -> Parameter:
    """Parse one parameter: the last word is its name, the others but for qualifiers its type."""
    words = _QUALIFIER.sub(" ", text).replace("*", " * ").split()
    *type_words, name = words
    pointer = "*" in type_words
    return Parameter(name, " ".join(word for word in type_words if word != "*"), pointer)
