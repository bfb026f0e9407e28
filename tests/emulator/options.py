# SPDX-License-Identifier: MIT
"""From NVRTC's options to those of g++."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MACRO = ("-D", "--define-macro")
_UNDEFINE = ("-U", "--undefine-macro")
_INCLUDE = ("-I", "--include-path")
_STANDARDS = {"c++17": "c++17", "c++20": "c++20", "c++23": "c++23"}


@dataclass(frozen=True)
class HostOptions:
    """Flags for g++, the language standard, and the folders whose files a source may include."""

    flags: tuple[str, ...]
    standard: str
    include_folders: tuple[Path, ...]


def translate_options(options: Iterable[str]) -> HostOptions:
    """Macros, include folders and the standard; what concerns only GPU code is dropped."""
    flags: list[str] = []
    standard = "c++17"
    for name, value in _split(options):
        if name in _MACRO + _UNDEFINE:
            flags.append(f"{'-D' if name in _MACRO else '-U'}{value}")
        elif name in _INCLUDE:
            flags.append(f"-I{Path(value).resolve()}")
        elif name in ("-std", "--std"):
            standard = _STANDARDS.get(value, standard)
    folders = tuple(Path(flag[2:]) for flag in flags if flag.startswith("-I"))
    return HostOptions(tuple(flags), standard, folders)


def _split(options: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of name and value of options written `-Dx`, `-D x`, `--define-macro=x` alike."""
    pairs = []
    rest = iter(options)
    for option in rest:
        if option in _MACRO + _UNDEFINE + _INCLUDE:
            pairs.append((option, next(rest, "")))
        elif option[:2] in ("-D", "-U", "-I"):
            pairs.append((option[:2], option[2:]))
        else:
            name, _, value = option.partition("=")
            pairs.append((name, value))
    return pairs
