# SPDX-License-Identifier: MIT
"""Arrays of other libraries that fail in their own way: refused with operator, argument, cause."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from codec_names import FLOAT_CODECS
from foreign import Foreign
from probe.frame_probe import ProbeCopy, ProbeDelegate, ProbeEither

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, ProviderError
from cupy_training_ops.call import interop
from cupy_training_ops.registry import get_op
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import all_samples, mapped_inputs

X = np.ones(8, np.float32)


def failing(*_, **__):
    raise ZeroDivisionError("of its own")


def out_of_memory(*_, **__):
    raise MemoryError


def strange(**members: object) -> object:
    """An array of a library nobody knows, with these members."""
    return type("Strange", (), members)()


def on_host(_):
    return (1, 0)


def deleted():
    gone = jnp.ones(8)
    gone.delete()
    return gone


STRANGE = {
    "lends nothing": (strange(__dlpack__=failing, __dlpack_device__=on_host), ZeroDivisionError),
    "no device": (strange(__dlpack__=failing), AttributeError),
    "device fails": (strange(__dlpack__=1, __dlpack_device__=failing), ZeroDivisionError),
    "device is a number": (strange(__dlpack__=1, __dlpack_device__=lambda _: 1), TypeError),
    "no function": (strange(__dlpack__=1, __dlpack_device__=on_host), TypeError),
    "no capsule": (strange(__dlpack__=lambda *_, **__: 3, __dlpack_device__=on_host), ValueError),
    "fails when looked at": (strange(__dlpack__=property(failing)), ZeroDivisionError),
    "interface fails": (strange(__cuda_array_interface__=property(failing)), ZeroDivisionError),
    "deleted": (deleted(), (TypeError, RuntimeError)),
}
ON_GPU = {  # CuPy reads these
    "interface is a number": (strange(__cuda_array_interface__=3), TypeError),
    "interface is empty": (strange(__cuda_array_interface__={}), KeyError),
}


def refused(call, argument: str, cause: type[BaseException]) -> None:
    with pytest.raises(ArgumentError, match=f"^{argument}: cannot share its memory: ") as caught:
        call()
    assert isinstance(caught.value.__context__, cause)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("label", [*STRANGE, *ON_GPU])
def test_the_cause_is_kept(label) -> None:
    if label in ON_GPU:
        pytest.importorskip("cupy", reason="CuPy is in the extras")
    array, cause = (STRANGE | ON_GPU)[label]
    refused(lambda: cto.gelu(array), "Gelu: X", cause)
    refused(lambda: cto.gelu(X, out=array), "Gelu: out", cause)
    refused(lambda: cto.gelu(X, workspace=array), "Gelu: workspace", cause)


def test_wherever_an_array_is_given() -> None:
    array, cause = STRANGE["lends nothing"]
    refused(lambda: cto.concat_training([X, array], axis=0), r"ConcatTraining: inputs\[1\]", cause)
    refused(lambda: ProbeEither()(X, 0.5, array, (0, 0)), "ProbeEither: step", cause)
    refused(lambda: cto.GeluGrad().bound(array, X), "GeluGrad: dY", cause)
    refused(lambda: ProbeCopy().bound(...)(X=array), "ProbeCopy: X", cause)
    refused(lambda: cto.Gelu().workspace_nbytes(array), "Gelu: X", cause)


def test_what_a_callable_returns(monkeypatch) -> None:
    array, cause = STRANGE["lends nothing"]
    monkeypatch.setattr(ProbeDelegate, "function", staticmethod(lambda x, _: (x, array)))
    refused(lambda: ProbeDelegate()(X, 2.0), "ProbeDelegate: Same", cause)


def test_a_tracer_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Gelu: X: cannot share its memory: AttributeError: "):
        jax.jit(cto.gelu)(jnp.ones(8))


@pytest.mark.parametrize("kind", [np.ndarray, type(strange(__cuda_array_interface__={}))])
def test_a_class_is_no_array(kind) -> None:
    message = f"Gelu: X: expected a NumPy or CuPy array, got the class {kind.__name__}"
    with pytest.raises(ArgumentError, match=message):
        cto.gelu(kind)


def test_memory_that_is_short_is_no_fault_of_the_array() -> None:
    with pytest.raises(MemoryError):
        cto.gelu(strange(__dlpack__=out_of_memory, __dlpack_device__=on_host))


@pytest.mark.parametrize(
    "array",
    [
        strange(__cuda_array_interface__={"shape": (8,)}),
        strange(__dlpack__=failing, __dlpack_device__=lambda _: (2, 0)),
    ],
)
def test_a_device_array_without_cupy(monkeypatch, array) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ProviderError, match=r"^Gelu: X: CuPy cannot be loaded") as caught:
        cto.gelu(array)
    assert isinstance(caught.value.__context__, ProviderError)


def test_a_device_array_where_cupy_is_not_installed(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends", None)
    expected = r"^Gelu: X: CuPy is not installed; install it with: pip install "
    with pytest.raises(ProviderError, match=expected):
        cto.gelu(strange(__cuda_array_interface__={"shape": (8,)}))


# ---- JAX's arrays, which are read-only ---------------------------------------------------------

JAX_DTYPES = [np.float32, np.float16, jnp.bfloat16]


@pytest.mark.parametrize("dtype", JAX_DTYPES)
def test_jax_arrays_in(rng, dtype) -> None:
    values = rng.standard_normal((4, 6)).astype(dtype)
    x, out = jnp.asarray(values), np.zeros((4, 6), dtype)
    for codec in FLOAT_CODECS:
        packed, expected = cto.compress(x, codec), cto.compress(values, codec)
        assert type(packed.code) is np.ndarray
        assert packed.decompress(out=out) is out
        assert_matches(out, expected.decompress(), 0)
        with pytest.raises(ArgumentError, match=r"out \(Y\): .* to write to, got a read-only one"):
            packed.decompress(out=x)
    expected = cto.gelu_grad(values, values)
    assert_matches(cto.gelu_grad(x, x), expected, 0)
    assert cto.gelu_grad(x, values, out=out) is out
    assert_matches(cto.gelu_grad(x.T, x.T), cto.gelu_grad(values.T.copy(), values.T.copy()), 0)


def written_into(x):
    """Calls that would write into x, and the argument that it is."""
    other = np.ones(8, np.float32)
    yield r"out \(Y\)", lambda: cto.gelu(other, out=x)
    yield "old_sum", lambda: cto.in_place_accumulator(x, other)
    yield "accumulation_buffer", lambda: cto.in_place_accumulator_v2(x, other, True)
    yield r"old_sums\[1\]", lambda: cto.in_place_accumulator_list([other, x], [X, X])
    yield "old_sum", lambda: cto.InPlaceAccumulator().bound(x, other)
    yield r"out \(Y\)", lambda: cto.Gelu().bound(..., out=x)(X=other)


def test_jax_arrays_are_not_written() -> None:
    x = jnp.zeros(8, jnp.float32)
    for argument, call in written_into(x):
        message = f"{argument}: expected an array to write to, got a read-only one"
        with pytest.raises(ArgumentError, match=message):
            call()
    assert not x.any()
    total = np.zeros(8, np.float32)
    assert cto.in_place_accumulator(x, X, out=total) is total  # then x is only read


def test_jax_arrays_on_a_gpu_are_not_written(monkeypatch) -> None:
    """Where memory itself does not say that it is read-only."""
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    monkeypatch.setattr(interop, "share_memory", lambda array: hollow(array.shape, array.dtype))
    x, other = jnp.zeros(8, jnp.float32), hollow((8,), np.float32)
    with hollow_launches() as launches:
        for call in (
            lambda: cto.gelu(other, out=x),
            lambda: cto.in_place_accumulator(x, other),
            lambda: cto.gelu(other, workspace=jnp.zeros(8, jnp.uint8)),
        ):
            with pytest.raises(ArgumentError, match="expected an array to write to, got a read-on"):
                call()
        assert not launches
        cto.gelu(x)
        assert launches


# ---- the caller's own objects ------------------------------------------------------------------


class Subclass(np.ndarray):
    """What NumPy users derive."""


def test_out_of_any_kind_comes_back_itself() -> None:
    for out in (np.zeros(8, np.float32).view(Subclass), Foreign(np.zeros(8, np.float32))):
        assert cto.gelu(X, out=out) is out
        assert cto.gelu(Foreign(X), out=out) is out
        assert cto.Gelu().bound(X, out=out)() is out
        assert cto.Gelu().bound(..., out=out)(X=X) is out
        assert cto.split_training(X, (4, 4), axis=0, num_outputs=2)[0] is not out
    total = np.zeros(8, np.float32).view(Subclass)
    assert cto.in_place_accumulator(total, X) is total
    (result,) = cto.in_place_accumulator_list([total], [X])
    assert result is total
    assert (np.asarray(total) == 2).all()


def test_subclasses_of_cupys_arrays_are_arrays() -> None:
    """As NumPy's: results are plain, what is written comes back itself."""
    cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    kind = type("Tagged", (cupy.ndarray,), {})
    x, out = (kind((8,), X.dtype, hollow((8,), X.dtype).data) for _ in range(2))
    plain = hollow((8,), X.dtype)
    op = cto.Gelu()
    with hollow_launches() as launches:
        for call in (
            lambda: op(x, out=out),
            lambda: op.bound(x, out=out)(),
            lambda: op.bound(..., out=out)(X=x),
            lambda: op(plain, out=out, workspace=kind((8,), np.uint8, x.data + 512)),
        ):
            assert call() is out
        assert len(launches) == 4
        assert type(op(x)) is cupy.ndarray
        accumulated, _ = cto.in_place_accumulator_list([x, plain], [out, hollow((8,), X.dtype)])
        assert accumulated is x


def scalars_for_written() -> Iterator[tuple[str, Any, list[Any], dict[str, Any]]]:
    """A call of each operator that writes an input, which is a scalar of NumPy's."""
    for name, samples in all_samples().items():
        cls = get_op(name)
        replaced = {output.aliases for output in cls.outputs}
        places = [
            i
            for i, item in enumerate(cls.inputs)
            if item.memory == "device" and (item.updated or item.name in replaced)
        ]
        if not places or not samples:
            continue
        inputs = mapped_inputs(cls, samples[0].make(np.random.default_rng(1)), first_element)
        for place in places:
            argument = inputs[place] if place < len(inputs) else None
            is_list = isinstance(argument, list | tuple)
            if isinstance(argument[0] if is_list and argument else argument, np.ndarray):
                wrong = [argument[0][()], *argument[1:]] if is_list else argument[()]
                changed = [*inputs[:place], wrong, *inputs[place + 1 :]]
                yield f"{name}.{cls.inputs[place].name}", cls, changed, dict(samples[0].attributes)


def first_element(array: Any) -> Any:
    """In an array of no dimensions; what is no array as it is."""
    return np.resize(array, ()) if isinstance(array, np.ndarray) else array


def test_a_scalar_is_not_written() -> None:
    """A copy would be, and be forgotten: each operator refuses one, by shape or for what it is."""
    words, seen = "expected an array to write to, got a scalar (", set[str]()
    for call, cls, inputs, attributes in scalars_for_written():
        with pytest.raises(ArgumentError) as refusal:
            cls(**attributes)(*inputs)
        if words in str(refusal.value):
            seen.add(call)
    assert {"InPlaceAccumulator.old_sum", "SGDOptimizer.W", "ScaleInPlace.input"} <= seen
    assert len(seen) > 20
    one, x = np.ones((), np.float32), np.float32(1)
    accumulate = cto.InPlaceAccumulator().bound(..., one)
    accumulate(old_sum=np.zeros((), np.float32))
    for call in (
        lambda: cto.in_place_accumulator(x, one),
        lambda: cto.sgd_optimizer_list(0.1, [x], [one]),
        lambda: accumulate(old_sum=x),  # also where an array came before
        lambda: cto.InPlaceAccumulator().bound(x, one),
        *(lambda make=make: make([x]) for make in (cto.SGD, cto.Adam, cto.AdamW, cto.Lamb)),
        lambda: cto.SGD([one], low_precision=[np.float16(1)]),
    ):
        with pytest.raises(ArgumentError, match=re.escape(words)):
            call()
    assert cto.in_place_accumulator(x, one, out=np.zeros((), np.float32)) == 2  # x is only read


def test_buckets_take_no_scalar() -> None:
    (group,) = cto.ProcessGroup.in_threads(1)
    with group, pytest.raises(ArgumentError, match=r"gradients\[0\]: expected an array to write"):
        cto.GradientBuckets([np.zeros((), "f4")], group).ready(0, np.float32(1))
