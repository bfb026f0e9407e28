# SPDX-License-Identifier: MIT
"""The registry: upstream's registrations are covered, look-ups answer or list what exists."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from cupy_training_ops import (
    ArgumentError,
    DtypeError,
    OpError,
    ProviderError,
    get_op,
    lookup,
    registry,
)
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.declaration import snake_case
from cupy_training_ops.declare.type_rows import TypeRows, combinations
from cupy_training_ops.dtypes import (
    BFLOAT16,
    BOOL,
    FIXED_SIZE,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT64,
    to_dtype,
)
from cupy_training_ops.errors import unknown
from cupy_training_ops.testing.samples import all_samples

DATA = Path(__file__).parent / "data" / "registrations.json"
REGISTRATIONS = json.loads(DATA.read_text())["registrations"]
UPSTREAM = sorted({row["op"] for row in REGISTRATIONS})
SPELLED = {"float": FLOAT32, "double": FLOAT64}  # as upstream spells dtypes; the others are ours


def words(row) -> tuple[np.dtype, ...]:
    """The registered dtypes, one for each type variable that upstream binds."""
    return tuple(SPELLED.get(word) or to_dtype(word) for word in (row["types"] or "").split())


def covered(cls: type[Op], dtypes: tuple[np.dtype, ...]) -> bool:
    """Whether the class takes these for its type variables in order; it may have more of them."""
    choices = itertools.combinations(cls.types.values(), len(dtypes))
    return any(
        all(d in allowed for d, allowed in zip(dtypes, choice, strict=True)) for choice in choices
    )


def test_the_file_is_whole() -> None:
    assert len(REGISTRATIONS) == 210
    assert len(UPSTREAM) == 89


def test_every_operator_of_upstream_is_registered() -> None:
    missing = sorted(set(UPSTREAM) - set(registry.names()))
    assert not missing, f"cupy_training_ops/registry.py: upstream has {missing}"


@pytest.mark.parametrize("name", UPSTREAM)
def test_upstreams_registrations_are_covered(name) -> None:
    for row in REGISTRATIONS:
        if row["op"] != name:
            continue
        since, _, until = row["version"].partition("-")
        cls = get_op(name, int(since))
        assert cls.domain == row["domain"]
        assert (cls.since, cls.until) == (int(since), int(until) if until else None)
        assert covered(cls, words(row)), f"{name} does not take {row['types']}"


def test_the_cover_test_can_fail() -> None:
    pack1, gather = get_op("GistPack1Encoder"), ("T", "Tind")
    assert covered(pack1, (BOOL,))
    assert not covered(pack1, (INT64,))
    assert not covered(pack1, (BOOL, FLOAT32))
    two = type("Two", (Op,), {"types": dict(zip(gather, ((FLOAT32,), (INT64,)), strict=True))})
    assert covered(two, (INT64,))
    assert covered(two, (FLOAT32, INT64))
    assert not covered(two, (INT64, FLOAT32))


@pytest.mark.parametrize("name", registry.names())
def test_a_class_is_found_by_its_name(name) -> None:
    cls = get_op(name)
    assert cls.name == name
    assert cls in registry.REGISTRY.values()
    assert cls.function_name == snake_case(name)
    if not isinstance(cls.types, TypeRows):
        assert combinations(cls.types) == [
            dict(zip(cls.types, c, strict=True)) for c in itertools.product(*cls.types.values())
        ]


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("GistPackMsfp15Encoder", "gist_pack_msfp15_encoder"),
        ("GatherNDGrad", "gather_nd_grad"),
        ("BiasGeluGrad_dX", "bias_gelu_grad_dx"),
        ("SGDOptimizerV2", "sgd_optimizer_v2"),
        ("SoftmaxGrad_13", "softmax_grad_13"),
        ("ReduceAllL2", "reduce_all_l2"),
        ("MegatronF", "megatron_f"),
    ],
)
def test_function_names(name, snake) -> None:
    assert snake_case(name) == snake


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("GistPack1", "GistPack1Encoder"),
        ("gist_pack_1_encodr", "GistPack1Encoder"),
        ("RelluGrad", "ReluGrad"),
        ("softmaxcrossentropylossinternal", "SoftmaxCrossEntropyLossInternal"),
    ],
)
def test_an_unknown_operator_gets_the_names_like_it(name, close) -> None:
    with pytest.raises(ArgumentError, match=rf"no operator '{name}'; did you mean .*{close}.*\?$"):
        get_op(name)


@pytest.mark.parametrize("name", ["Nothing", "", "x" * 100_000, max(registry.names(), key=len)])
def test_a_hint_is_short(name) -> None:
    for wrong in (f"{name}!", f"{name[:40]}{name[:40]}Q"):
        with pytest.raises(ArgumentError) as raised:
            get_op(wrong)
        assert len(f"Error: {raised.value}") <= 200
    with pytest.raises(ArgumentError, match=r"`cupy-training-ops ops` lists the \d+ there are$"):
        get_op("?" + "x" * len(name))


def test_an_unknown_version_lists_the_ranges() -> None:
    with pytest.raises(ArgumentError, match=r"GistPack1Encoder: no version 0; there are: 1 to new"):
        get_op("GistPack1Encoder", 0)


class Old(Op):
    """Y = X, until version 12."""

    domain, since, until = "ai.onnx", 9, 12


class New(Op):
    """Y = X, from version 13."""

    domain, since = "ai.onnx", 13


@pytest.fixture
def _versions(monkeypatch) -> None:
    """Two versions of one operator, as some families have."""
    tables = {"a": {"Both": Old}, "b": {"Both": New}}
    monkeypatch.setattr(registry, "REGISTRY", registry.merge_tables(tables))


@pytest.mark.usefixtures("_versions")
@pytest.mark.parametrize(
    ("version", "expected"), [(None, New), (9, Old), (12, Old), (13, New), (99, New)]
)
def test_the_newest_or_the_one_that_serves(version, expected) -> None:
    assert get_op("Both", version) is expected


@pytest.mark.usefixtures("_versions")
def test_a_version_before_the_first_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Both: no version 8; there are: 9 to 12, 13 to newest"):
        get_op("Both", 8)


def test_duplicates_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"b: \('ai.onnx', 'Both', 9\) is registered twice"):
        registry.merge_tables({"a": {"Both": Old}, "b": {"Both": Old}})


def test_lookup_by_input_output_attribute_and_type_variable() -> None:
    for name, key in (
        ("GistPack8Encoder", "X"),
        ("GistPack8Encoder", "T"),
        ("GistPack8Decoder", "Y"),
        ("GistPack8Decoder", "to"),
    ):
        for dtype in (np.float16, "float16", 10, FLOAT16):
            match = lookup(name, **{key: dtype})
            assert match.op is get_op(name)
            assert match.types == {"T": FLOAT16}
            assert set(match.providers) == {"cuda", "cpu"}


def test_lookup_without_dtypes_gives_the_first_combination() -> None:
    assert lookup("GistPack16Decoder").types == {"T": FLOAT32}


def test_lookup_lists_the_combinations_that_exist() -> None:
    listed = "there are: T=float32; T=float16; T=float64; T=bfloat16"
    with pytest.raises(DtypeError, match=f"GistPack8Encoder: no kernel for X=int64; {listed}"):
        lookup("GistPack8Encoder", X=np.int64)


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({"Z": FLOAT32}, "GistPack8Decoder: Z: expected a name among"),
        ({"Y": FLOAT32, "to": FLOAT16}, "Y=float32, to=float16 do not agree on T"),
        ({"Y": "float99"}, "expected a dtype, its name or its ONNX type number, got 'float99'"),
    ],
)
def test_lookup_refuses_what_makes_no_sense(dtypes, message) -> None:
    with pytest.raises(OpError, match=message):
        lookup("GistPack8Decoder", **dtypes)


def test_lookup_checks_a_fixed_dtype() -> None:
    """GistPack8Decoder takes uint8 codes and nothing else."""
    assert lookup("GistPack8Decoder", X=np.uint8, Y=BFLOAT16).types["T"] == BFLOAT16
    with pytest.raises(DtypeError, match="GistPack8Decoder: X: expected dtype uint8, got float32"):
        lookup("GistPack8Decoder", X=FLOAT32, Y=BFLOAT16)


# Registered dtypes of inputs that upstream reads on the host.
ON_HOST = [
    ("SliceGrad", ("starts", "ends", "axes", "steps"), ("int32", "int64")),
    ("Scale", ("scale",), ("float16", "float32", "float64", "int32", "int64")),
    ("FakeQuant", ("scale", "zero_point"), ("float32",)),
]


@pytest.mark.parametrize(("name", "inputs", "dtypes"), ON_HOST)
def test_lookup_answers_for_values_on_the_host(name, inputs, dtypes) -> None:
    cls = get_op(name)
    for row, dtype in itertools.product(combinations(cls.types), dtypes):
        assert lookup(name, **row, **dict.fromkeys(inputs, dtype)).types == row


HOST_INPUTS = [
    (cls, item)
    for cls in registry.REGISTRY.values()
    for item in cls.inputs
    if item.convert and not item.variadic and not cls.needs
]


@pytest.mark.parametrize(
    ("cls", "item"), HOST_INPUTS, ids=[f"{cls.name}-{item.name}" for cls, item in HOST_INPUTS]
)
def test_lookup_answers_where_the_operator_takes_the_value(cls, item, rng) -> None:
    """A sample's value in each dtype that holds it; the operator decides."""
    sample = next(s for s in all_samples()[cls.name] if "ordinary" in s.label)
    place = cls.inputs.index(item)
    for dtype in FIXED_SIZE:
        inputs = [*sample.make(rng), *[None] * len(cls.inputs)][: len(cls.inputs)]
        value = np.asarray([1] if inputs[place] is None else inputs[place])
        if not np.array_equal(value, value.astype(dtype)):
            continue
        inputs[place] = value.astype(dtype)
        try:
            cls(**sample.attributes)(*inputs)
            accepted = True
        except OpError as error:
            accepted = f"{cls.name}: {item.name}: " not in str(error)
        try:
            answered = lookup(cls.name, **{item.name: dtype}).op is cls
        except DtypeError:
            answered = False
        assert answered == accepted, dtype


def test_lookup_says_which_values_are_taken() -> None:
    expected = "SliceGrad: starts: expected dtype uint8, int8, .*int64, got float32"
    with pytest.raises(DtypeError, match=expected):
        lookup("SliceGrad", starts=FLOAT32)


def test_hints_that_are_too_long_are_left_out() -> None:
    known = [f"{'x' * 60}{i}" for i in range(3)]
    message = unknown("operator", "x" * 60, known, "none")
    assert message == f"no operator {'x' * 60!r}; did you mean {known[0]}?"


# ---- all registrations, and what can run ---------------------------------------------------------


def test_upstreams_rows_are_those_of_its_registrations() -> None:
    listed = [
        (r.domain, r.name, r.since, r.until, row)
        for r in registry.registrations(upstream=True)
        for row in r.upstream or ((),)
    ]
    wanted = []
    for row in REGISTRATIONS:
        since, _, until = row["version"].partition("-")
        versions = int(since), int(until) if until else None
        wanted.append((row["domain"], row["op"], *versions, words(row)))
    assert sorted(listed, key=str) == sorted(wanted, key=str)


def test_what_is_added_is_listed_apart() -> None:
    added, of_upstream = (registry.registrations(upstream=side) for side in (False, True))
    assert {r.op for r in added} | {r.op for r in of_upstream} == set(registry.REGISTRY.values())
    assert {r.name for r in of_upstream} == set(UPSTREAM)
    assert all(r.added_types == r.types for r in added)
    (gelu,) = [r for r in of_upstream if r.name == "GeluGrad"]
    assert gelu.added_types == [{"T": BFLOAT16}]
    (adam,) = [r for r in of_upstream if r.name == "AdamOptimizer"]
    assert 0 < len(adam.added_types) < len(adam.types)
    (view,) = [r for r in of_upstream if r.name == "View"]
    assert view.upstream == ()
    assert view.added_types == []


def test_registrations_are_chosen_by_domain_and_version() -> None:
    onnx = registry.registrations(domain="ai.onnx", version=12)
    assert all((r.domain, r.since <= 12) == ("ai.onnx", True) for r in onnx)
    (loss,) = [r for r in onnx if r.name == "SoftmaxCrossEntropyLoss"]
    assert (loss.since, loss.until) == (12, 12)


def test_an_operator_is_found_by_its_domain() -> None:
    assert get_op("GeluGrad", domain="com.microsoft") is get_op("GeluGrad")
    assert lookup("Conv", domain="ai.onnx").op is get_op("Conv")
    expected = "GeluGrad: domain: expected 'com.microsoft', got 'ai.onnx'"
    for ask in (get_op, lookup):
        with pytest.raises(ArgumentError, match=expected):
            ask("GeluGrad", domain="ai.onnx")


@pytest.mark.parametrize("reason", [None, "CUDA finds no device"])
def test_lookup_says_which_providers_can_run_here(reason, monkeypatch) -> None:
    monkeypatch.setattr(registry, "why_no_gpu", lambda: reason)
    assert registry.providers() == {"cuda": reason or "", "cpu": ""}
    assert lookup("GeluGrad").available == (("cpu",) if reason else ("cuda", "cpu"))
    assert lookup("GeluGrad", provider="cpu").providers == ("cpu",)
    if reason:
        with pytest.raises(ProviderError, match=f"GeluGrad: provider: cuda cannot run .*{reason}"):
            lookup("GeluGrad", provider="cuda")
    else:
        assert lookup("GeluGrad", provider="cuda").providers == ("cuda",)
    with pytest.raises(ArgumentError, match="provider: expected 'cuda' or 'cpu', got 'gpu'"):
        lookup("GeluGrad", provider="gpu")


def test_no_name_of_a_lookup_hides_an_operators_own() -> None:
    for cls in registry.REGISTRY.values():
        declared = {item.name for item in (*cls.inputs, *cls.outputs, *cls.attributes)}
        assert not {"domain", "provider"} & (declared | set(cls.types)), cls.name
