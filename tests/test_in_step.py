# SPDX-License-Identifier: MIT
"""The homes of every family agree, both ways; where they do not, the file to edit is named."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from never_sampled import NEVER_SAMPLED

from cupy_training_ops import registry
from cupy_training_ops.call import backends
from cupy_training_ops.call.op import Op
from cupy_training_ops.call.view_ops import DelegatingOp, ViewOp
from cupy_training_ops.declare.declaration import snake_case
from cupy_training_ops.device import source
from cupy_training_ops.plan import Device, Launch
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.idle import IdleBackend, launches
from cupy_training_ops.testing.samples import as_tuple

ROOT = Path(__file__).resolve().parent.parent
HOME = "cupy_training_ops/families"
SHARED = {"algorithm", "core", "format", "math"}  # of cuda_src: headers of several families
LABELS = ("ordinary", "odd", "empty", "one", "misaligned", "large")
BACKENDS = (IdleBackend(Device(80, (7, 0))), IdleBackend(Device(132, (9, 0), 227 * 1024)))
# Operators whose samples launch nothing, each with the reason.
NEVER_LAUNCHED = dict.fromkeys(
    registry.FAMILIES["collective"], "in a group of one rank arrays stay where they are"
)


@dataclass(frozen=True)
class Family:
    """What stands in the homes of one family."""

    name: str
    ops: registry.Table
    cpu: Mapping[str, Callable[..., Any]]
    samples: Mapping[str, tuple[Sample, ...]]
    symbols: frozenset[str]
    planned: Mapping[str, frozenset[str]]  # operator to the symbols its samples launch

    @property
    def functions(self) -> dict[str, type[Op]]:
        return {cls.function_name: cls for _, cls in registry.classes(self.ops)}


@functools.cache
def home(family: str) -> Family:
    """Read all homes of a family; a home that is missing is empty."""
    ops = registry.FAMILIES[family]
    module = optional_module(f"cupy_training_ops.families.{family}.reference")
    samples = getattr(
        optional_module(f"cupy_training_ops.families.{family}.samples"), "SAMPLES", {}
    )
    symbols = source.load(family).kernels if family in source.families() else ()
    planned = {name: symbols_of(samples.get(name, ())) for name in ops}
    return Family(family, ops, public_functions(module), samples, frozenset(symbols), planned)


def optional_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def public_functions(module: Any) -> dict[str, Callable[..., Any]]:
    result = vars(module).items() if module else ()
    return {
        name: f
        for name, f in result
        if inspect.isfunction(f) and f.__module__ == module.__name__ and not name.startswith("_")
    }


def symbols_of(samples: tuple[Sample, ...]) -> frozenset[str]:
    made = map(made_once, samples)
    logs = (launches(sample, backend) for sample in made for backend in BACKENDS)
    return frozenset(step.symbol for log in logs for step in log if isinstance(step, Launch))


def made_once(sample: Sample) -> Sample:
    """The sample with inputs that are there: to make them takes as long as to plan for a device."""
    inputs = sample.make(np.random.default_rng(0))
    return dataclasses.replace(sample, make=lambda _: inputs)


def computes(cls: type[Op]) -> bool:
    """Whether an operator has kernels: those that only make views or host values have none."""
    return cls.plan is not Op.plan


# ---- what can be out of step; each complaint starts with the file to edit ------------------------


def class_complaints(family: Family) -> Iterator[str]:
    file = f"{HOME}/{family.name}/operators.py"
    for name, cls in registry.classes(family.ops):
        first = (cls.__doc__ or "").partition("\n")[0]
        if "=" not in first and len(first.split()) < 5:
            yield f"{file}: {name}: the docstring's first line says no formula or meaning"
        if cls.name != name or cls.family != family.name:
            yield f"{file}: {name}: OPS lists {cls.__module__}.{cls.name} under this name"
        if (
            not computes(cls)
            and not issubclass(cls, ViewOp | DelegatingOp)
            and any(o.memory != "host" for o in cls.outputs)
        ):
            yield f"{file}: {name}: neither plan nor views nor a callable makes its outputs"
    listed = [cls.__name__ for _, cls in registry.classes(family.ops)]
    if sorted(listed) != listed:
        yield f"{file}: OPS is not in alphabetical order"


def cpu_complaints(family: Family) -> Iterator[str]:
    file = f"{HOME}/{family.name}/reference.py"
    for name, cls in family.functions.items():
        if name in family.cpu:
            for complaint in signature_complaints(cls, family.cpu[name]):
                yield f"{file}: {name}: {complaint}"
        elif computes(cls):
            yield f"{file}: no function {name} for {cls.name}"
    for name in family.cpu.keys() - family.functions.keys():
        yield f"{file}: {name} belongs to no operator of {family.name}/operators.py"


def signature_complaints(cls: type[Op], function: Callable[..., Any]) -> Iterator[str]:
    """Inputs by position, attributes by keyword with the class's names and no defaults."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    if len(parameters) - len(keywords) != len(cls.inputs):
        yield f"takes {len(parameters) - len(keywords)} inputs, {cls.name} has {len(cls.inputs)}"
    unpacked = names_of(function) if len(parameters) < len(signature.parameters) else set()
    for name in (keywords.keys() | unpacked) ^ {a.name for a in cls.attributes}:
        yield f"keyword {name} is not in both {signature} and the attributes of {cls.name}"
    for name, default in keywords.items():
        if default is not inspect.Parameter.empty:
            yield f"{name} has a default, which {cls.name} alone says"


def names_of(function: Callable[..., Any]) -> set[str]:
    """The names in the TypedDict that a function unpacks."""
    hints = typing.get_type_hints(function).values()
    (names,) = (h for h in hints if typing.get_origin(h) is typing.Unpack)
    return set(typing.get_type_hints(*typing.get_args(names)))


def sample_complaints(family: Family) -> Iterator[str]:
    file = f"{HOME}/{family.name}/samples.py"
    for name, cls in registry.classes(family.ops):
        labels = [sample.label for sample in family.samples.get(name, ())]
        if cls.needs and labels:
            yield f"{file}: {name}: samples, though a call needs {cls.needs}"
        for wanted in () if cls.needs else LABELS:
            if not any(wanted in label.split("-") for label in labels):
                yield f"{file}: {name}: no sample labelled {wanted}"
        if len(set(labels)) != len(labels):
            yield f"{file}: {name}: two samples have the same label"
        for sample in family.samples.get(name, ()):
            yield from (f"{file}: {sample.id}: {wrong}" for wrong in mislabelled(name, sample))
    for name in family.samples.keys() - family.ops.keys():
        yield f"{file}: {name} is no operator of {family.name}/operators.py"


def mislabelled(name: str, sample: Sample) -> Iterator[str]:
    words = sample.label.split("-")
    if sample.op != name:
        yield f"belongs to {sample.op}, listed under {name}"
    if ("misaligned" in words) != bool(sample.offset):
        yield f"starts {sample.offset} elements off a boundary"
    if "empty" in words and all(array.size for array in sample_arrays(sample)):
        yield "has no empty array"


def sample_arrays(sample: Sample) -> list[np.ndarray]:
    flat: list[Any] = []
    for value in sample.make(np.random.default_rng(0)):
        flat += value if isinstance(value, list) else [value]
    return [value for value in flat if isinstance(value, np.ndarray)]


def kernel_complaints(family: Family) -> Iterator[str]:
    """Kernels are named after their operator, or after the family where operators share them."""
    file = f"cuda_src/{family.name}/{family.name}.cu"
    newest = dict(registry.classes(family.ops))
    for name, planned in family.planned.items():
        for symbol in planned - family.symbols:
            yield f"{file}: no kernel {symbol}, which {name} launches"
        for symbol in planned:
            if symbol.partition("__")[0] not in (snake_case(name), family.name):
                yield f"{HOME}/{family.name}/operators.py: {name} launches {symbol}"
        if computes(newest[name]) and not planned and name not in NEVER_LAUNCHED:
            yield f"{HOME}/{family.name}/samples.py: no sample launches {name}"
    for symbol in family.symbols:
        if symbol.partition("__")[0] not in {*family.functions, family.name}:
            yield f"{file}: {symbol} belongs to no operator of {family.name}/operators.py"
    text = "".join(path.read_text() for path in (ROOT / HOME / family.name).glob("*.py"))
    for symbol in family.symbols:
        if f'"{symbol}"' not in text:
            yield f"{HOME}/{family.name}: no line has the kernel's whole name, {symbol}"
    unreached = family.symbols - frozenset().union(*family.planned.values()) - NEVER_SAMPLED.keys()
    for symbol in unreached:
        yield f"{HOME}/{family.name}/samples.py: no sample launches {symbol}"


def home_complaints(family: Family) -> Iterator[str]:
    """A family with operators has a file in every home (kernels where something is computed)."""
    files = [f"{HOME}/{family.name}/samples.py"]
    files += [f"tests/families/{family.name}/test_reference.py"]
    if any(map(computes, family.functions.values())):
        files += [f"{HOME}/{family.name}/reference.py", f"cuda_src/{family.name}/{family.name}.cu"]
    for file in files:
        if not (ROOT / file).is_file():
            yield f"{file}: there is no such file"


CHECKS = (class_complaints, cpu_complaints, sample_complaints, kernel_complaints, home_complaints)


def complaints(family: Family) -> list[str]:
    """Everything that is out of step; nothing is asked of a family without operators."""
    return sorted(text for check in CHECKS for text in check(family)) if family.ops else []


# ---- the tests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", registry.FAMILIES)
def test_the_homes_agree(family) -> None:
    wrong = complaints(home(family))
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.parametrize("folder", [HOME, "cuda_src", "tests/families"])
def test_no_home_has_a_stranger(folder) -> None:
    """A folder whose family stands in no registry table serves nobody."""
    sources = [*(ROOT / folder).glob("*/*.py"), *(ROOT / folder).glob("*/*.cu")]
    families = {path.parent.name for path in sources} - SHARED
    strange = families - registry.FAMILIES.keys()
    assert not strange, f"cupy_training_ops/registry.py: _FAMILIES lacks {strange} of {folder}"


@pytest.mark.parametrize("family", registry.FAMILIES)
def test_samples_meet_every_dtype(family) -> None:
    samples = home(family).samples
    for name, cls in registry.classes(registry.FAMILIES[family]):
        missing = () if cls.needs else dtypes_missed(cls, samples.get(name, ()))
        file = f"{HOME}/{family}/samples.py"
        assert not missing, f"{file}: {name}: no sample has {missing}"


def dtypes_missed(cls: type[Op], samples: tuple[Sample, ...]) -> set[tuple[str, str]]:
    """Type variables and dtypes that no sample meets; makes as few samples as show it."""
    missing = {(name, str(dtype)) for name, dtypes in cls.types.items() for dtype in dtypes}
    for sample in reversed(samples):  # the last ones are small and of many types
        op = cls(**sample.attributes)
        missing -= {(a.type, str(getattr(op, a.name))) for a in cls.attributes if a.type}
        if not missing:
            break
        inputs = sample.make(np.random.default_rng(0))
        for declared, value in zip(cls.inputs, inputs, strict=False):
            arrays = value if isinstance(value, list) else [value]
            missing -= {(declared.type, str(a.dtype)) for a in arrays if isinstance(a, np.ndarray)}
        if {variable for variable, _ in missing} & of_outputs_alone(cls):
            results = as_tuple(op(*inputs))
            missing -= {(o.type, str(r.dtype)) for o, r in zip(cls.outputs, results, strict=True)}
    return missing


def of_outputs_alone(cls: type[Op]) -> set[str]:
    """Type variables that follow from others."""
    arguments = {item.type for item in (*cls.inputs, *cls.attributes)}
    return {output.type for output in cls.outputs} - arguments


def test_nothing_flushes_subnormals_on_purpose() -> None:
    """CuPy's own -ftz=true is enough; no option of ours changes arithmetic."""
    for path in (ROOT / "cupy_training_ops").rglob("*.py"):
        for line in path.read_text().splitlines():
            result = re.search(r"-(ftz|use_fast_math|fmad)\b|--use_fast_math", line)
            assert result is None or line.startswith("_LIKE_CUPY = "), f"{path}: {line}"


def test_families_name_dtypes_by_the_one_table() -> None:
    """NumPy knows no "bfloat16": np.dtype of a text is a mistake that only shows on that type."""
    wrong = re.compile(r"np\.dtype\(\s*[\"']|astype\(\s*[\"']|dtype\s*==\s*[\"'](float|bfloat|int)")
    for path in (ROOT / HOME).rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not wrong.search(line), f"{path}:{number}: {line.strip()}"


# ---- breaking a family on purpose: each break is named with its file -----------------------------


class Stray(registry.get_op("GistPack8Decoder")):
    """Y = X, in the wrong module."""


def own_default(x, *, to, shape, keep_nonfinite=False):  # noqa: ARG001
    return x


def no_input(*, to, shape=None):  # noqa: ARG001
    return None


def wrong_keyword(x, *, to, form=None):  # noqa: ARG001
    return x


def wrong_names(x, **keywords: typing.Unpack[typing.TypedDict("Names", {"to": Any, "size": int})]):
    return x, keywords


GIST = home("gist")
PACK8 = "GistPack8Decoder"
without = {k: v for k, v in GIST.cpu.items() if k != "gist_pack8_decoder"}
few = tuple(s for s in GIST.samples[PACK8] if "empty" not in s.label and not s.offset)
twice = (*GIST.samples[PACK8], dataclasses.replace(GIST.samples[PACK8][0]))
mute = type("Mute", (registry.get_op(PACK8),), {"__doc__": "Decodes."})
needy = type("Needy", (registry.get_op(PACK8),), {"__doc__": "Y = X.", "needs": "more"})
BREAKS = {
    "families/gist/operators.py: GistPack8Decoder: OPS lists": {"ops": GIST.ops | {PACK8: Stray}},
    "families/gist/operators.py: Mute: the docstring": {"ops": GIST.ops | {"Mute": mute}},
    "families/gist/operators.py: OPS is not in alpha": {"ops": dict(reversed(GIST.ops.items()))},
    "families/gist/reference.py: no function gist_pack8_decoder": {"cpu": without},
    "families/gist/reference.py: helper belongs to no operator": {
        "cpu": GIST.cpu | {"helper": len}
    },
    "families/gist/reference.py: gist_pack_msfp15_decoder: keep_nonfinite has": {
        "cpu": GIST.cpu | {"gist_pack_msfp15_decoder": own_default}
    },
    "families/gist/reference.py: gist_pack8_decoder: keyword form": {
        "cpu": GIST.cpu | {"gist_pack8_decoder": wrong_keyword}
    },
    "families/gist/reference.py: gist_pack8_decoder: keyword size": {
        "cpu": GIST.cpu | {"gist_pack8_decoder": wrong_names}
    },
    "families/gist/reference.py: gist_pack8_decoder: takes 0 inputs": {
        "cpu": GIST.cpu | {"gist_pack8_decoder": no_input}
    },
    "gist/samples.py: GistPack8Decoder: no sample labelled empty": {
        "samples": GIST.samples | {PACK8: few}
    },
    "gist/samples.py: GistPack8Decoder: no sample labelled misaligned": {
        "samples": GIST.samples | {PACK8: few}
    },
    "gist/samples.py: GistPack8Decoder: two samples": {"samples": GIST.samples | {PACK8: twice}},
    "gist/samples.py: GistPack8Decoder: samples, though a call needs more": {
        "ops": GIST.ops | {PACK8: needy}
    },
    "gist/samples.py: Gone is no operator": {"samples": GIST.samples | {"Gone": ()}},
    "gist/samples.py: GistPack16Decoder-float32-ordinary: belongs to GistPack16Decoder": {
        "samples": GIST.samples | {PACK8: GIST.samples["GistPack16Decoder"]}
    },
    "cuda_src/gist/gist.cu: no kernel gist_pack8_decoder": {
        "symbols": GIST.symbols - {"gist_pack8_decoder"}
    },
    "cuda_src/gist/gist.cu: gist_stranger belongs": {"symbols": GIST.symbols | {"gist_stranger"}},
    "gist/samples.py: no sample launches gist_pack8_decoder__tiny": {
        "symbols": GIST.symbols | {"gist_pack8_decoder__tiny"}
    },
    "families/gist: no line has the kernel's whole name, gist_pack8_decoder__tiny": {
        "symbols": GIST.symbols | {"gist_pack8_decoder__tiny"}
    },
    "families/gist/operators.py: GistPack8Decoder launches gist_pack1_decoder": {
        "planned": GIST.planned | {PACK8: frozenset({"gist_pack1_decoder"})}
    },
    "gist/samples.py: no sample launches GistPack8Decoder": {
        "planned": GIST.planned | {PACK8: frozenset()}
    },
    "tests/families/nowhere/test_reference.py: there is no such file": {"name": "nowhere"},
    "cuda_src/nowhere/nowhere.cu: there is no such file": {"name": "nowhere"},
}


@pytest.mark.parametrize("named", BREAKS)
def test_a_break_is_named_with_its_file(named) -> None:
    result = complaints(dataclasses.replace(GIST, **BREAKS[named]))
    assert any(named in text for text in result), result


def test_nothing_is_asked_of_a_family_that_has_not_begun() -> None:
    assert complaints(Family("begun", {}, {}, {}, frozenset(), {})) == []


def test_planning_leaves_the_cpu_provider_in_place() -> None:
    assert backends.BACKENDS[np.ndarray] is backends.CPU
