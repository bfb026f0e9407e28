# SPDX-License-Identifier: MIT
"""From the text of a CUDA source to the text that g++ compiles; line numbers stay the same."""

import json
import re
from collections.abc import Iterable

_PARENTHESES = r"\((?:[^()]|\([^()]*\))*\)"
_ALIGNMENT = rf"(?:(?:__align__|alignas)\s*{_PARENTHESES}\s*)?"

_DYNAMIC_SHARED = re.compile(
    rf"{_ALIGNMENT}\bextern\s+(?P<volatile>volatile\s+)?{_ALIGNMENT}__shared__\s+{_ALIGNMENT}"
    r"(?P<type>[\w:<>, \t]+?)\s+(?P<name>\w+)\s*\[\s*\]\s*;"
)

# One variable, or several arrays; a type may have commas between angle brackets.
_SHARED = re.compile(
    rf"^(?P<before>[ \t]*{_ALIGNMENT}__shared__\s+{_ALIGNMENT}"
    r"(?:typename\s+)?[\w:]+(?:<[^;\n]*?>[\w:]*)?\s+)"
    r"(?P<variables>\w+\s*(?:\[[^;\n]*\]\s*)*(?:,\s*\w+\s*\[[^;\n]*)?);",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"(?P<name>\b[A-Za-z_]\w*)(?P<extents>\s*(?:\[[^\]]*\]\s*)*)(?:,\s*|$)")

_KERNEL = re.compile(
    r'^[^\n/"]*\bextern\s+"C"\s+__global__\s+'
    rf"(?:void\s+|__launch_bounds__\s*(?P<bounds>{_PARENTHESES})\s*)+(?P<name>\w+)\s*\(",
    re.MULTILINE,
)

_LINE_MARK = re.compile(r"^[ \t]*#[ \t]*line[ \t]+(\d+)[^\n]*\n", re.MULTILINE)


def translate(code: str, name_expressions: Iterable[str] = ()) -> str:
    """Add what the emulator needs to a source whose local includes are already inlined."""
    if not code.startswith("#line"):
        code = f'#line 1 "kernel.cu"\n{code}'
    kernels = list(_KERNEL.finditer(code))
    marked = _mark_kernels(code, kernels)
    shared = _SHARED.sub(_static_shared, _DYNAMIC_SHARED.sub(_dynamic_shared, marked))
    return shared + _table(kernels, name_expressions)


def _dynamic_shared(match: re.Match[str]) -> str:
    """A reference to the runtime's pointer: works in functions and outside of them."""
    kind = (match["volatile"] or "") + match["type"]
    newlines = "\n" * match[0].count("\n")
    return f"{kind}*& {match['name']} = ({kind}*&)::emulator::dynamic_shared;{newlines}"


def _static_shared(match: re.Match[str]) -> str:
    """References too, for g++ checks no access to a variable where it knows that it is inside."""
    variables = list(_VARIABLE.finditer(match["variables"]))
    owned = ", ".join(f"{actual['name']}_{actual['extents']}" for actual in variables)
    references = (
        f"auto& {actual['name']} = ::emulator::opaque({actual['name']}_);" for actual in variables
    )
    return f"{match['before']}{owned}; {' '.join(references)}"


def _mark_kernels(code: str, kernels: list[re.Match[str]]) -> str:
    """Define a macro before each kernel, so that the table omits those that `#if` leaves out."""
    pieces = []
    position = 0
    for match in kernels:
        mark = f"#define CTO_HAS_{match['name']} 1\n#line {_line_number(code, match.start())}\n"
        pieces += [code[position : match.start()], mark]
        position = match.start()
    return "".join([*pieces, code[position:]])


def _line_number(code: str, position: int) -> int:
    """The number that the line at `position` has by the last `#line` before it."""
    mark = list(_LINE_MARK.finditer(code, 0, position))[-1]
    return int(mark[1]) + code.count("\n", mark.end(), position)


def _table(kernels: list[re.Match[str]], name_expressions: Iterable[str]) -> str:
    entries = []
    for match in kernels:
        entry = _entry(match["name"], match["bounds"] or "(1024)")
        entries.append(f"#ifdef CTO_HAS_{match['name']}\n{entry}\n#endif")
    entries += [_entry(expression, "(1024)") for expression in name_expressions]
    lines = [
        '\n#line 1 "table of kernels"',
        'extern "C" __attribute__((visibility("default")))',
        "const emulator::KernelEntry cto_kernels[] = {",
        *entries,
        "{nullptr, nullptr, nullptr, 0, 0}};",
    ]
    return "\n".join(lines) + "\n"


def _entry(name: str, bounds: str) -> str:
    return (
        f"emulator::Trampoline<{name}>::entry({json.dumps(name)}, emulator::max_threads{bounds}),"
    )
