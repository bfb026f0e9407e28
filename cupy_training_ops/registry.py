# SPDX-License-Identifier: MIT
"""The registry of all operators by name and version, and every operator as a function.

`gist_pack1_encoder(x)` is `GistPack1Encoder()(x)`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .call.arguments import CALL, by_declared_names, function_signature
from .call.backends import why_no_gpu
from .call.checks import Bindings, convert_value
from .call.op import Op
from .declare.schema import Attribute, Input, Output
from .declare.type_rows import TypeRows, combinations
from .dtypes import ELEMENT_TYPES, Dtype, dtype_name, dtype_names, to_dtype
from .errors import ArgumentError, DtypeError, OpError, ProviderError, refuse, shown, unknown
from .typing import OperatorName, Provider

Versions = type[Op] | tuple[type[Op], ...]
Table = Mapping[str, Versions]  # of a family: class by name, or a class for each version

_FAMILIES = (
    "activation adam attention batch_norm collective control conv cross_entropy dropout "
    "elementwise gather gist gist_guard gist_narrow gist_sparse gradient interop lamb layer_norm "
    "optimizer padding pooling reduction resize rotary softmax tensor"
)
FAMILIES: Mapping[str, Table] = {
    name: importlib.import_module(f"{__package__}.families.{name}.operators").OPS
    for name in _FAMILIES.split()
}

Key = tuple[str, str, int]  # domain, operator, first version
TypeRow = tuple[Dtype, ...]  # of ONNX Runtime: one for each type variable that it binds, in order


class Match(NamedTuple):
    """The operator that runs for a combination of types, and its providers."""

    op: type[Op]
    types: dict[str, Dtype]  # by type variable
    providers: tuple[Provider, ...]

    @property
    def available(self) -> tuple[Provider, ...]:
        """Providers that can run here and now."""
        return tuple(name for name in self.providers if not providers()[name])


class Registration(NamedTuple):
    """An operator in one range of versions: opset `since` up to `until`, None for the newest.

    upstream: the rows of types that ONNX Runtime's CUDA training provider has, empty if it has all
    types of the declaration; None for an operator that is added here.
    """

    op: type[Op]
    domain: str
    name: str
    since: int
    until: int | None
    upstream: tuple[TypeRow, ...] | None

    @property
    def types(self) -> list[dict[str, Dtype]]:
        """All rows of types here, by type variable."""
        return combinations(self.op.types)

    @property
    def added_types(self) -> list[dict[str, Dtype]]:
        """Rows of types that upstream does not have."""
        if self.upstream is None:
            return self.types
        return [row for row in self.types if not self._is_upstreams(row)]

    def _is_upstreams(self, row: Mapping[str, Dtype]) -> bool:
        """Return True if ONNX Runtime has this row, {type variable: dtype}.

        Its rows may bind fewer variables, in the order of the declaration: one that is a part of
        this row, in this order, counts.
        """
        known = set(self.upstream or ())
        lengths, dtypes = {len(each) for each in known}, [row[v] for v in self.op.types]
        parts = (part for n in lengths for part in itertools.combinations(dtypes, n))
        return not known or not known.isdisjoint(parts)


PROVIDERS: tuple[Provider, ...] = ("cuda", "cpu")  # which every operator has


def providers() -> dict[Provider, str]:
    """Return why each provider cannot run here and now; "" for one that can."""
    return {"cuda": why_no_gpu() or "", "cpu": ""}


def classes(table: Table) -> tuple[tuple[str, type[Op]], ...]:
    """Return (name, class) for each operator and version of a family."""
    return tuple(
        (name, cls)
        for name, entry in table.items()
        for cls in (entry if isinstance(entry, tuple) else (entry,))
    )


def merge_tables(families: Mapping[str, Table]) -> dict[Key, type[Op]]:
    """Return all operator classes by Key; refuse one that is in two families' tables."""
    registry: dict[Key, type[Op]] = {}
    for family, table in families.items():
        for name, cls in classes(table):
            key = (cls.domain, name, cls.since)
            if key in registry:
                raise ArgumentError(f"{family}: {key} is registered twice")
            registry[key] = cls
    return registry


REGISTRY = merge_tables(FAMILIES)


def names() -> tuple[str, ...]:
    """Return all operator names, sorted."""
    return tuple(sorted({name for _, name, _ in REGISTRY}))


def get_op(name: str, version: int | None = None, domain: str | None = None) -> type[Op]:
    """Return the class of an operator by name: the newest, or the one for an opset version.

    domain: refuse an operator of another one; None: any.
    """
    wanted = name if isinstance(name, str) else ""
    versions = [cls for (_, known, _), cls in REGISTRY.items() if known == wanted]
    if not versions:
        listed = f"`cupy-training-ops ops` lists the {len(names())} there are"
        raise ArgumentError(unknown("operator", name, names(), listed))
    domains = sorted({cls.domain for cls in versions})
    if domain is not None and domain not in domains:
        refuse(name, "domain", " or ".join(map(repr, domains)), shown(domain))
    if not isinstance(version, int | None):
        refuse(name, "version", "an integer", shown(version))
    serving = [c for c in versions if version is None or _serves(c, version)]
    if not serving:
        ranges = ", ".join(f"{c.since} to {c.until or 'newest'}" for c in versions)
        raise ArgumentError(f"{name}: no version {version}; there are: {ranges}")
    return max(serving, key=lambda cls: cls.since)


def lookup(
    name: OperatorName,
    version: int | None = None,
    /,
    *,
    domain: str | None = None,
    provider: Provider | None = None,
    **dtypes: object,
) -> Match:
    """Find the operator for dtypes by name of an input, output, attribute or type variable.

    version: of the opset; None: newest. domain: refuse another. provider: refuse one that cannot
    run here and now. Raises DtypeError with the existing type combinations if there is none,
    ProviderError with the reason why a provider cannot run.
    """
    cls = get_op(name, version, domain)
    if provider is not None and provider not in PROVIDERS:
        refuse(name, "provider", "'cuda' or 'cpu'", shown(provider))
    bound = _bindings(cls, dtypes)
    rows = combinations(cls.types)
    matches = [row for row in rows if all(row[v] == dtype for v, dtype in bound.items())]
    if not matches:
        known_rows = cls.types.rows if isinstance(cls.types, TypeRows) else rows
        known = "; ".join(map(_in_words, known_rows))
        raise DtypeError(f"{name}: no kernel for {_in_words(dtypes)}; there are: {known}")
    if provider is not None and (why := providers()[provider]):
        raise ProviderError(f"{name}: provider: {provider} cannot run here: {why}")
    return Match(cls, matches[0] | bound, PROVIDERS if provider is None else (provider,))


def registrations(
    *, domain: str | None = None, version: int | None = None, upstream: bool | None = None
) -> tuple[Registration, ...]:
    """Return all operators by name and version.

    domain: of one domain. version: that serve this opset version. upstream: True for those that
    ONNX Runtime's CUDA training provider registers, False for those that are added here.
    """
    listed = []
    for key in sorted(REGISTRY, key=lambda key: key[1:]):
        cls, rows = REGISTRY[key], UPSTREAM.get(key)
        if domain in (None, cls.domain) and (version is None or _serves(cls, version)):
            listed.append(Registration(cls, cls.domain, cls.name, cls.since, cls.until, rows))
    return tuple(r for r in listed if upstream is None or upstream == (r.upstream is not None))


def _serves(cls: type[Op], version: int) -> bool:
    """Return True if an opset version is in the range of this class."""
    return cls.since <= version and (cls.until is None or version <= cls.until)


def _in_words(dtypes: Mapping[str, object]) -> str:
    """Return dtypes by name for a message: "T=float32, U=int64"."""
    return ", ".join(f"{name}={dtype_name(to_dtype(d))}" for name, d in dtypes.items())


def _bindings(cls: type[Op], dtypes: Mapping[str, object]) -> dict[str, Dtype]:
    """Return the dtype of each type variable; refuse unknown names and conflicts.

    dtypes: by name of an input, output, attribute or type variable.
    """
    declared: Iterable[Input | Output | Attribute] = (*cls.inputs, *cls.outputs, *cls.attributes)
    variable = {item.name: item.type for item in declared if item.type} | {v: v for v in cls.types}
    said = cls.declaration
    for known in (said.other_inputs, said.other_outputs, said.other_attributes):
        dtypes = by_declared_names(cls.name, known, dtypes)
    on_host = {i.name: i for i in cls.inputs if i.memory == "host" and i.convert is not None}
    bound: Bindings = {}
    for name, value in dtypes.items():
        if name not in variable:
            refuse(cls.name, name, f"a name among {sorted(variable)}", "an unknown one")
        dtype = to_dtype(value)
        if name in on_host:
            _check_value(cls, on_host[name], dtype)
            continue
        if variable[name] not in cls.types:
            _check_dtype(cls, name, [to_dtype(variable[name])], dtype)
            continue
        if bound.setdefault(variable[name], dtype) != dtype:
            raise DtypeError(f"{cls.name}: {_in_words(dtypes)} do not agree on {variable[name]}")
    return bound


def _check_value(cls: type[Op], item: Input, dtype: Dtype) -> None:
    """Check the dtype of a host value, which may be any that its converter accepts."""
    dtypes = [element.dtype for element in ELEMENT_TYPES if _converts(item, element.dtype)]
    _check_dtype(cls, item.name, dtypes, dtype)


def _check_dtype(cls: type[Op], name: str, allowed: Sequence[Dtype], dtype: Dtype) -> None:
    if dtype not in allowed:
        expected, got = dtype_names(allowed), dtype_name(dtype)
        raise DtypeError(f"{cls.name}: {name}: expected dtype {expected}, got {got}")


def _converts(item: Input, dtype: Dtype) -> bool:
    """Return True if an input accepts ones or zeros of this dtype, as an array or a scalar."""
    ones, zeros = np.ones(item.count, dtype), np.zeros(item.count, dtype)
    for value in (ones, ones[0], zeros, zeros[0]):
        with contextlib.suppress(OpError):
            convert_value(item.name, item, value)
            return True
    return False


# ---- functions -----------------------------------------------------------------------------------

# Newest class of each operator, by name of its function.
OPERATORS = {get_op(name).function_name: get_op(name) for name in names()}


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Return the function with this name, of an operator: its signature has inputs, attributes as
    keywords, and those of every call; its help text is the operator's."""
    cls = OPERATORS[name]
    declaration = cls.declaration
    others = declaration.other_attributes
    declared = frozenset((*(item.name for item in cls.attributes), *others))
    is_plain = not others and not cls.takes_keywords
    of_call = frozenset((*CALL, *(item.name for item in cls.inputs), *declaration.other_inputs))

    def call_operator(*inputs: object, **keywords: Any) -> Any:
        """Call the operator with these attributes, on inputs by position or among the keywords."""
        if is_plain and declared.issuperset(keywords):  # all keywords are attributes
            return cls.shared(**keywords)(*inputs)
        attributes = {}
        names = keywords.keys() - of_call if cls.takes_keywords else declared.intersection(keywords)
        for name in names:  # a comprehension would be a call
            attributes[name] = keywords.pop(name)
        if others:
            attributes = by_declared_names(cls.name, others, attributes)
        return cls.shared(**attributes)(*inputs, **keywords)

    call_operator.__name__ = call_operator.__qualname__ = name
    call_operator.__module__ = __package__  # where pickle finds it
    call_operator.__doc__ = cls.__doc__
    call_operator.__signature__ = function_signature(declaration)  # type: ignore[attr-defined]
    return call_operator


# ---- upstream's registrations --------------------------------------------------------------------

# Registered once, for all types that the operator is declared with.
_ONCE = """
AdamWOptimizer AdasumAllReduce BatchScale BiasFastGeluGrad_dX BiasGeluGrad_dX BiasSoftmaxDropout
BitmaskDropoutGrad ConcatTraining DropoutGrad FlattenAndUnpad GatherElementsGrad GatherGrad Group
InplaceClipGradNorm LogSoftmaxGrad LogSoftmaxGrad_13 MegatronF MegatronG NcclAllGather
NcclAllReduce NcclReduceScatter PadAndUnflatten PassThrough PythonOp PythonOpGrad RecordEvent Recv
SGDOptimizer SGDOptimizerV2 ScaledSum Send SliceGrad SoftmaxDropoutGrad SoftmaxGrad SoftmaxGrad_13
SplitTraining TritonOp View WaitEvent YieldOp
"""
# Rows of types, separated by ";", by "operator" or "domain operator version".
_BY_TYPES = {
    "AdamOptimizer": (
        "float32 int64 float32 float32 float32 float32 float16; float16 int64 float32 float16 "
        "float32 float32 float16; float32 int64 float32 float16 float32 float32 float16; float32 "
        "int64 float32 float32 float16 float16 float16; float32 int64 float32 float32 float16 "
        "float32 float16; float16 int64 float32 float16 float16 float16 float16; float16 int64 "
        "float32 float16 float16 float32 float16; float32 int64 float32 float16 float16 float16 "
        "float16; float32 int64 float32 float16 float16 float32 float16; float32 int64 float32 "
        "float32 float32 float32 bfloat16; bfloat16 int64 float32 bfloat16 float32 float32 "
        "bfloat16; float32 int64 float32 bfloat16 float32 float32 bfloat16; float32 int64 float32 "
        "float32 bfloat16 bfloat16 bfloat16; float32 int64 float32 float32 bfloat16 float32 "
        "bfloat16; bfloat16 int64 float32 bfloat16 bfloat16 bfloat16 bfloat16; bfloat16 int64 "
        "float32 bfloat16 bfloat16 float32 bfloat16; float32 int64 float32 bfloat16 bfloat16 "
        "bfloat16 bfloat16; float32 int64 float32 bfloat16 bfloat16 float32 bfloat16"
    ),
    "All": "bool",
    "BatchNormInternal": (
        "float32 float32 float32; float64 float64 float64; float16 float16 float16; float16 "
        "float16 float32; float16 float32 float32"
    ),
    "BatchNormalizationGrad": (
        "float32 float32 float32; float64 float64 float64; float16 float16 float16; float16 "
        "float16 float32; float16 float32 float32"
    ),
    "ConvGrad": "float32; float64; float16",
    "ConvTransposeGrad": "float32; float64; float16",
    "DivGrad": "float32; float64; float16",
    "FakeQuant": "float32",
    "FakeQuantGrad": "float32",
    "FastGeluGrad": "float32; float64; float16",
    "GatherNDGrad": "int64",
    "GeluGrad": "float32; float64; float16",
    "GistBinarizeDecoder": "float32; float16; float64",
    "GistBinarizeEncoder": "float32; float16; float64",
    "GistPack16Decoder": "float32",
    "GistPack16Encoder": "float32",
    "GistPack1Decoder": "bool; float32",
    "GistPack1Encoder": "bool; float32",
    "GistPack8Decoder": "float32; float16",
    "GistPack8Encoder": "float32; float16",
    "GistPackMsfp15Decoder": "float32",
    "GistPackMsfp15Encoder": "float32",
    "InPlaceAccumulator": (
        "float32 float32; float32 float16; float16 float16; float16 float32; float32 bfloat16; "
        "bfloat16 bfloat16; bfloat16 float32"
    ),
    "InPlaceAccumulatorV2": "float32 float32; float32 float16",
    "InvertibleLayerNormalizationGrad": (
        "float32 float32 float32; float64 float64 float64; float16 float32 float16; float32 "
        "float32 float16; float16 float32 float32"
    ),
    "IsAllFinite": "float16; float32; float64",
    "IsFinite": "float16; float32; float64",
    "LambOptimizer": (
        "float32 float32 float32 float32 float32 float16; float32 float32 float16 float32 float16 "
        "float16; float32 float32 float16 float32 float32 float16; float64 float64 float64 "
        "float64 float64 float16; float16 float32 float16 float16 float16 float16; float16 "
        "float32 float16 float16 float32 float16; float16 float32 float16 float32 float16 "
        "float16; float16 float32 float16 float32 float32 float16; float32 float32 float32 "
        "float32 float32 bfloat16; float32 float32 bfloat16 float32 bfloat16 bfloat16; float32 "
        "float32 bfloat16 float32 float32 bfloat16; float64 float64 float64 float64 float64 "
        "bfloat16; bfloat16 float32 bfloat16 bfloat16 bfloat16 bfloat16; bfloat16 float32 "
        "bfloat16 bfloat16 float32 bfloat16; bfloat16 float32 bfloat16 float32 bfloat16 bfloat16; "
        "bfloat16 float32 bfloat16 float32 float32 bfloat16"
    ),
    "LayerNormalizationGrad": (
        "float32 float32 float32; float64 float64 float64; float16 float32 float16; float32 "
        "float32 float16; float16 float32 float32; bfloat16 float32 bfloat16"
    ),
    "LeakyReluGrad": "float32; float64; float16",
    "MixedPrecisionScale": "float16; float32; bfloat16",
    "QuickGeluGrad": "float32; float64; float16; bfloat16",
    "ReduceAllL2": (
        "float32 float32; float16 float32; float32 float16; float16 float16; bfloat16 float32; "
        "float32 bfloat16; bfloat16 bfloat16"
    ),
    "ReduceSumTraining": "float32; float64; int32; float16",
    "ReluGrad": "float32; float64; float16",
    "ResizeGrad": "float16; float32; float64",
    "Scale": "float16; float32; float64",
    "SigmoidGrad": "float32; float64; float16",
    "SimplifiedLayerNormalizationGrad": (
        "float32 float32 float32; float64 float64 float64; float16 float32 float16; float32 "
        "float32 float16; float16 float32 float32"
    ),
    "SoftmaxCrossEntropy": "float32",
    "SoftmaxCrossEntropyGrad": "float32",
    "ai.onnx SoftmaxCrossEntropyLoss 12": "float16 int64; float32 int64",
    "ai.onnx SoftmaxCrossEntropyLoss 13": "float16 int64; float32 int64; bfloat16 int64",
    "SoftmaxCrossEntropyLossGrad": "float32 int64; float16 int64; bfloat16 int64",
    "SoftmaxCrossEntropyLossInternal": (
        "float16 int64 float32; float32 int64 float32; float16 int64 float16; bfloat16 int64 "
        "bfloat16"
    ),
    "SoftmaxCrossEntropyLossInternalGrad": (
        "float32 int64 float16; float32 int64 float32; float16 int64 float16; bfloat16 int64 "
        "bfloat16"
    ),
    "ai.onnx SparseSoftmaxCrossEntropy 9": "float32 int64",
    "ai.onnx SparseSoftmaxCrossEntropyGrad 9": "float32 int64",
    "TanhGrad": "float32; float64; float16",
    "ZeroGradient": "float32; float16",
}


def _key(text: str) -> Key:
    """Parse "domain operator version" or "operator", of com.microsoft and version 1."""
    words = text.split()
    return (words[0], words[1], int(words[2])) if len(words) > 1 else ("com.microsoft", text, 1)


def _rows(text: str) -> tuple[TypeRow, ...]:
    """Parse rows of dtype names: "float32 int64; float16 int64"."""
    return tuple(tuple(map(to_dtype, row.split())) for row in text.split(";"))


# ONNX Runtime's rows by operator; () if one registration is for all types of the declaration.
UPSTREAM: Mapping[Key, tuple[TypeRow, ...]] = {
    **{_key(name): () for name in _ONCE.split()},
    **{_key(name): _rows(text) for name, text in _BY_TYPES.items()},
}
