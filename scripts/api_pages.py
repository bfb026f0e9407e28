# SPDX-License-Identifier: MIT
"""Pages of the site for the Python API and the command line, of signatures and docstrings.

Modules are read, not imported: those for PyTorch have their page where PyTorch is not installed.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import griffe
from operator_pages import docstring, escaped, path_of

import cupy_training_ops as cto
from cupy_training_ops import cli
from cupy_training_ops.registry import FAMILIES

PACKAGE = cto.__name__
# Modules whose names users call.
MODULES = (
    PACKAGE,
    f"{PACKAGE}.onnx",
    f"{PACKAGE}.torch",
    f"{PACKAGE}.torch.functional",
    f"{PACKAGE}.torch.nn",
    f"{PACKAGE}.torch.ops",
)
# Written by generate_tables.py where PyTorch is installed: schemas are known at run time alone.
SCHEMAS = Path(__file__).resolve().parent.parent / "site" / "torch_operators.txt"


def api() -> dict[str, str]:
    """Return pages by their paths below the site."""
    package = griffe.load(PACKAGE, search_paths=[Path(cto.__file__).parent.parent])
    pages = {f"api/{name}.md": "\n\n".join(module(package, name)) + "\n" for name in MODULES}
    return pages | {"api/index.md": index()}


def index() -> str:
    """Return the page that leads to the modules."""
    rows = "\n".join(f"{short(name)} <{name}>" for name in MODULES)
    return (
        "# Python API\n\n"
        "`import cupy_training_ops as cto` is all: `cto.onnx` and `cto.torch` are imported where "
        "they are first used. Operators have a page each: [](../docs/operators.md).\n\n"
        f"```{{toctree}}\n{rows}\n```\n"
    )


def short(name: str) -> str:
    """Return a module's name as programs write it."""
    return f"cto{name.removeprefix(PACKAGE)}"


def module(package: Any, name: str) -> Iterator[str]:
    """Yield the parts of a module's page."""
    read = package[name.removeprefix(PACKAGE).lstrip(".")] if name != PACKAGE else package
    yield f"# {short(name)}"
    yield f"```{{py:module}} {name}\n```"
    yield docstring(read.docstring.value)
    if name == f"{PACKAGE}.torch.ops":
        yield from schemas()
        return
    names = public(read)
    if name == PACKAGE:
        operators = {c for names in FAMILIES.values() for c in names}
        functions = {n for c in operators for n in (cto.get_op(c).function_name, c)}
        names = [each for each in names if each not in functions]
    for each in sorted(names, key=str.lower):
        if f"{name}.{each}" in MODULES:
            yield f"[`{each}`]({name}.{each}.md) is a module of its own."
        else:
            yield member(name, each, defined(read, each))
    if name == PACKAGE:
        yield "## Operators\n\nEach as a function and as a class, on its own page."
        yield "\n".join(map(operators_of, sorted(FAMILIES)))


def operators_of(family: str) -> str:
    """Return a line that leads to the operators of a family."""
    links = (
        f"[`{cto.get_op(name).function_name}`](../{path_of(family, name)})"
        for name in sorted(FAMILIES[family])
    )
    return f"* [{family}](../operators/{family}/index.md): {', '.join(links)}"


def schemas() -> Iterator[str]:
    """Yield the operators that PyTorch's dispatcher knows, by their schemas."""
    for line in SCHEMAS.read_text("utf-8").splitlines():
        called = line.partition("(")[0]
        yield f"```{{py:data}} {called}\nAs `torch.ops.cto`: `{line}`\n```"
    yield "```{py:data} DOORS\nAll of these by name.\n```"


def public(module: Any) -> list[str]:
    """Return `__all__` of a module, which other names of the module may be part of."""
    tree = ast.parse(module.filepath.read_text("utf-8"))
    if str(module.path) == PACKAGE:
        return list(cto.__all__)
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("_NAMES", "_MODULES", "__all__"):
                exec(compile(ast.Module([node], []), str(module.filepath), "exec"), values)
    return list(values["__all__"])


def defined(module: Any, name: str) -> Any:
    """Return the object that a public name of a module stands for."""
    own = module.members.get(name)
    if own is not None:
        return own.final_target if own.is_alias else own
    (place,) = [each for each in definitions(module, name) if each.docstring]
    return place


def definitions(module: Any, name: str) -> Iterator[Any]:
    """Yield the classes and functions of this name in a package, its own modules first."""
    for each in module.members.values():
        if each.is_alias:
            continue
        if each.is_module:
            yield from definitions(each, name)
        elif each.name == name and (each.is_class or each.is_function):
            yield each


def member(module: str, name: str, definition: Any) -> str:
    """Return the section of a public name."""
    about = docstring(definition.docstring.value if definition.docstring else "")
    head = f":module: {module}\n"
    if definition.is_class:
        inner = "\n\n".join(members(definition))
        signed = constructor(definition)
        return f"``````{{py:class}} {name}{signed}\n{head}\n{about}\n\n{inner}\n``````"
    if definition.is_function:
        return f"``````{{py:function}} {name}{signature(definition)}\n{head}\n{about}\n``````"
    return f"``````{{py:data}} {name}\n{head}\n{about}\n``````"


def members(cls: Any) -> Iterator[str]:
    """Yield the public members of a class, those of its bases in this package too."""
    everything = {**cls.inherited_members, **cls.members}
    for name, item in sorted(everything.items()):
        item = item.final_target if item.is_alias else item
        if name.startswith("_") or not item.docstring:
            continue
        about = docstring(item.docstring.value)
        if item.is_function:
            kind = "staticmethod" if "staticmethod" in item.labels else "method"
            kind = "classmethod" if "classmethod" in item.labels else kind
            signed = signature(item, bound=kind != "staticmethod")
            yield f"`````{{py:{kind}}} {name}{signed}\n\n{about}\n`````"
        elif item.is_attribute:
            kind = f"\n:type: {item.annotation}" if item.annotation else ""
            yield f"`````{{py:property}} {name}{kind}\n\n{about}\n`````"


def constructor(cls: Any) -> str:
    """Return the signature that makes an object of a class."""
    constructor = cls.all_members.get("__init__")
    if constructor is None:
        return ""
    constructor = constructor.final_target if constructor.is_alias else constructor
    return signature(constructor, bound=True, returns=False) if constructor.is_function else ""


def signature(function: Any, *, bound: bool = False, returns: bool = True) -> str:
    """Return parameters and result as they are written."""
    parts, keywords = [], False
    positional = [p for p in function.parameters if p.kind is griffe.ParameterKind.positional_only]
    for parameter in list(function.parameters)[1 if bound else 0 :]:
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not keywords:
            keywords = True
            parts.append("*")
        stars = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind, "")
        keywords = keywords or stars == "*"
        text = stars + parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not stars:
            text += f" = {parameter.default}"
        parts.append(text)
        if positional and parameter is positional[-1]:
            parts.append("/")
    result = f" -> {function.returns}" if returns and function.returns is not None else ""
    return f"({', '.join(parts)}){result}"


# ---- the command line ----------------------------------------------------------------------------


def commands() -> str:
    """Return the page of all commands, as click prints their help."""
    context = click.Context(cli.main, info_name=cli.COMMAND, **cli.main.context_settings)
    parts = ["# All commands and options", *command(cli.main, context)]
    return "\n\n".join(parts) + "\n"


def command(shown: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the section of a command, and those of its own commands."""
    path = context.command_path
    usage = shown.collect_usage_pieces(context)
    yield f"## {path}\n\n```{{program}} {path}\n```"
    yield f"    {path} {' '.join(usage)}"
    yield described(shown.help or "")
    rows = [record for p in shown.get_params(context) if (record := p.get_help_record(context))]
    for option, text in rows:
        flag = option.partition("  ")[0]
        yield f"```{{option}} {flag}\n{escaped(text)}\n```"
    if isinstance(shown, click.Group):
        for name in shown.list_commands(context):
            inner = shown.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                yield from command(inner, click.Context(inner, info_name=name, parent=context))


def described(text: str) -> str:
    """Return a command's help; paragraphs behind a backspace stay in lines."""
    shown = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b\n"):
            shown.append("```text\n" + part.removeprefix("\b\n") + "\n```")
        else:
            shown.append(escaped(part))
    return "\n\n".join(shown)


def generated() -> Mapping[str, str]:
    """Return all pages of this module."""
    return api() | {"cli/commands.md": commands()}
