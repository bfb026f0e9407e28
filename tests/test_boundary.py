# SPDX-License-Identifier: MIT
"""The public surface: whose arrays are taken, what is refused in which words, names and help."""

from __future__ import annotations

import builtins
import inspect
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import gpu_reason

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError, OpError, ProviderError, get_op, registry
from cupy_training_ops.call.arguments import adopt
from cupy_training_ops.dtypes import BFLOAT16, FLOATS, dtype_name
from cupy_training_ops.testing.compare import assert_matches

ROOT = Path(__file__).resolve().parent.parent
jax.config.update("jax_enable_x64", True)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


def normal(rng: np.random.Generator, dtype=np.float32, n: int = 37) -> np.ndarray:
    return rng.standard_normal(n).astype(dtype)


class OnlyDlpack:
    """An array of a library nobody knows, which lends its memory through DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Subclass(np.ndarray):
    """What NumPy users derive."""


# ---- foreign arrays ------------------------------------------------------------------------------


@floats
def test_jax_arrays_are_taken(rng, dtype) -> None:
    x = normal(rng, dtype)
    result = cto.gist_pack16_encoder(jnp.asarray(x))
    assert type(result) is np.ndarray
    assert_matches(result, cto.gist_pack16_encoder(x), 0)


@floats
def test_jax_arrays_are_not_copied(rng, dtype) -> None:
    x = jnp.asarray(normal(rng, dtype))
    adopted = adopt("SomeOp", "X", x)
    assert (adopted.dtype, adopted.shape) == (dtype, x.shape)
    assert adopted.ctypes.data == x.unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d != BFLOAT16], ids=dtype_name)
def test_dlpack_alone_is_enough_and_shares_memory(rng, dtype) -> None:
    x = normal(rng, dtype)
    adopted = adopt("SomeOp", "X", OnlyDlpack(x))
    assert np.shares_memory(adopted, x)
    assert_matches(cto.gist_pack8_encoder(OnlyDlpack(x)), cto.gist_pack8_encoder(x))


def test_results_can_be_written_into_a_foreign_array(rng) -> None:
    x, target = normal(rng), np.full(37, 7, np.uint8)
    argument = OnlyDlpack(target)
    assert cto.gist_pack8_encoder(x, out=argument) is argument
    assert_matches(target, cto.gist_pack8_encoder(x))


def test_torch_tensors_are_taken(rng) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; GPU machines have it")
    x = normal(rng)
    tensor = torch.from_numpy(x)
    assert adopt("SomeOp", "X", tensor).ctypes.data == tensor.data_ptr()
    for arguments in (tensor, tensor.to(torch.float16)):
        code = cto.gist_pack8_encoder(arguments)
        assert isinstance(code, torch.Tensor)
        assert_matches(code.numpy(), cto.gist_pack8_encoder(arguments.numpy()))


@pytest.mark.gpu
@floats
def test_torch_tensors_on_the_gpu_are_taken(rng, dtype) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; GPU machines have it")
    x = torch.from_numpy(normal(rng)).to(getattr(torch, dtype_name(dtype))).cuda()
    adopted = adopt("SomeOp", "X", x)
    assert (adopted.data.ptr, adopted.dtype) == (x.data_ptr(), dtype)
    expected = cto.gist_pack8_encoder(x.to(torch.float64).cpu().numpy().astype(dtype))
    assert_matches(cto.gist_pack8_encoder(x).cpu().numpy(), expected)


@pytest.mark.parametrize("view", [Subclass, np.memmap])
def test_subclasses_of_numpys_arrays_are_taken(rng, tmp_path, view) -> None:
    x = normal(rng)
    if view is np.memmap:
        x.tofile(tmp_path / "x")
        argument = np.memmap(tmp_path / "x", np.float32)
    else:
        argument = x.view(view)
    result = cto.gist_pack8_encoder(argument)
    assert type(result) is np.ndarray
    assert_matches(result, cto.gist_pack8_encoder(x))


@floats
def test_scalars_of_numpy_are_arrays_of_rank_0(rng, dtype) -> None:
    scalar = normal(rng, dtype)[3]
    result = cto.gist_pack16_encoder(scalar)
    assert result.shape == ()
    assert result == np.asarray(scalar).astype(np.float16)


@pytest.mark.gpu
def test_host_and_device_do_not_mix(rng) -> None:
    import cupy

    x = normal(rng)
    with pytest.raises(ArgumentError, match=r"X is on the host, out .* is on cuda device 0"):
        cto.gist_pack8_encoder(x, out=cupy.empty(37, np.uint8))


# ---- refusals ------------------------------------------------------------------------------------


class Unwilling:
    """Says it has DLPack, and then cannot."""

    def __dlpack__(self, **keywords):
        raise BufferError("its memory is compressed")

    def __dlpack_device__(self):
        return (1, 0)


class OfAGpu:
    """A device array, as a machine without a GPU meets it."""

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (8,), "typestr": "<f4", "data": (4096, False), "version": 3
    }  # fmt: skip


class OfAGpuByDlpack(Unwilling):
    def __dlpack_device__(self):
        return (2, 0)


@pytest.mark.parametrize("array", [OfAGpu(), OfAGpuByDlpack()])
def test_a_device_array_without_a_gpu_is_one_of_our_errors(array) -> None:
    if gpu_reason() is None:
        pytest.skip("there is a GPU")
    with pytest.raises(
        ProviderError, match=r"^GistPack8Encoder: X: cannot use a device array here"
    ):
        cto.gist_pack8_encoder(array)


def read_only() -> np.ndarray:
    out = np.zeros(37, np.uint8)
    out.flags.writeable = False
    return out


X = np.ones(37, np.float32)
REFUSED = [
    (([1.0],), {}, ArgumentError, "X: expected a NumPy or CuPy array, got list"),
    ((1.0,), {}, ArgumentError, "X: expected a NumPy or CuPy array, got float"),
    (("text",), {}, ArgumentError, "X: expected a NumPy or CuPy array, got str"),
    ((None,), {}, ArgumentError, "X: expected an array, got None"),
    ((Unwilling(),), {}, ArgumentError, "X: cannot share its memory: its memory is compressed"),
    ((), {}, ArgumentError, r"inputs: expected \(X\), got 0 arguments"),
    ((X, X), {}, ArgumentError, r"inputs: expected \(X\), got 2 arguments"),
    ((X.astype(np.int64),), {}, DtypeError, "X: expected dtype float32, .*bfloat16, got int64"),
    ((X.astype(">f4"),), {}, DtypeError, "X: expected dtype float32, .* got >f4"),
    ((X.astype(complex),), {}, DtypeError, "X: expected dtype float32, .* got complex128"),
    ((X.astype(object),), {}, DtypeError, "X: expected dtype float32, .* got object"),
    ((np.zeros(3, "f4,i4"),), {}, DtypeError, "X: expected dtype float32, .* got "),
    ((X[::-1],), {}, ArgumentError, "X: expected a dense array, got a strided one"),
    ((OnlyDlpack(X[::2]),), {}, ArgumentError, "X: expected a dense array"),
    ((X,), {"out": np.zeros(36, np.uint8)}, ArgumentError, r"out \(Y\): expected shape \(37,\)"),
    ((X,), {"out": np.zeros(37, np.int8)}, DtypeError, r"out \(Y\): expected dtype uint8, got"),
    ((X,), {"out": np.zeros(74, np.uint8)[::2]}, ArgumentError, r"out \(Y\): expected a dense"),
    ((X,), {"out": (np.zeros(37, np.uint8),) * 2}, ArgumentError, "out: expected 1 arrays or None"),
    ((X,), {"out": [0] * 37}, ArgumentError, "out: expected a NumPy or CuPy array, got list"),
    ((X,), {"out": X[:10].view(np.uint8)[:37]}, ArgumentError, r"memory shared with X"),
    ((X,), {"out": read_only()}, ArgumentError, r"out \(Y\): expected an array to write to"),
    ((X,), {"out": jnp.zeros(37, jnp.uint8)}, ArgumentError, "to write to, got a read-only one"),
    ((jnp.ones(8, jnp.float8_e5m2),), {}, ArgumentError, "X: cannot share its memory"),
    ((X,), {"outputs": ("Z",)}, ArgumentError, r"outputs: expected a tuple of names among \('Y',"),
    ((X,), {"outputs": "Y"}, ArgumentError, "outputs: expected a tuple of names"),
]


@pytest.mark.parametrize(("inputs", "keywords", "error", "message"), REFUSED)
def test_refusals_name_operator_and_argument(inputs, keywords, error, message) -> None:
    for call in (cto.gist_pack8_encoder, cto.GistPack8Encoder()):
        with pytest.raises(error, match=f"^GistPack8Encoder: .*{message}"):
            call(*inputs, **keywords)


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({}, ArgumentError, "to: expected a value: it is required, got none"),
        ({"to": "float8"}, DtypeError, "to: expected a dtype, its name or its ONNX type number"),
        ({"to": np.int32}, DtypeError, "to: expected float32, float16, .* got int32"),
        ({"to": np.float32, "shape": (-1,)}, ArgumentError, "shape: expected extents of at least"),
        ({"to": np.float32, "shape": (2.5,)}, ArgumentError, "shape: expected an integer, got 2.5"),
        ({"to": np.float32, "form": 3}, ArgumentError, "form: expected an attribute among"),
    ],
)
def test_attributes_are_checked_when_they_are_given(attributes, error, message) -> None:
    codes = np.zeros(8, np.uint8)
    with pytest.raises(error, match=f"^GistPack8Decoder: {message}"):
        cto.GistPack8Decoder(**attributes)
    with pytest.raises(error, match=f"^GistPack8Decoder: {message}"):
        cto.gist_pack8_decoder(codes, **attributes)


def test_every_error_is_of_one_family_and_of_pythons() -> None:
    kinds = {"ArgumentError": ValueError, "DtypeError": TypeError}
    kinds |= {"ProviderError": RuntimeError, "CompileError": RuntimeError}
    for name, python in kinds.items():
        assert issubclass(getattr(cto, name), OpError)
        assert issubclass(getattr(cto, name), python)


# ---- names, signatures, help ---------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.names())
def test_function_and_class_are_the_same_operator(name) -> None:
    cls = get_op(name)
    function = getattr(cto, cls.function_name)
    assert getattr(cto, name) is cls
    assert function.__name__ == cls.function_name
    assert inspect.getdoc(function) == inspect.getdoc(cls)
    parameters = inspect.signature(function).parameters
    inputs = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert inputs == [item.name for item in cls.inputs]
    own = [p for p in parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert [p.name for p in own[-3:]] == ["out", "outputs", "workspace"]
    attributes = own[len(inputs) : -3]
    more = [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    assert [*attributes, *more] == list(inspect.signature(cls).parameters.values())
    assert bool(more) == cls.takes_keywords
    assert [a.name for a in attributes] == [a.name for a in cls.attributes]


def test_optional_inputs_and_attributes_have_defaults() -> None:
    decoder = inspect.signature(cto.gist_pack_msfp15_decoder)
    assert str(decoder) == (
        "(X, *, to, shape=None, keep_nonfinite=False, out=None, outputs=None, workspace=None)"
    )


@floats
def test_function_and_class_give_the_same(rng, dtype) -> None:
    codes = rng.integers(0, 256, 64, np.uint8)
    for to in (dtype, dtype_name(dtype), dtype.type):
        expected = cto.GistPackMsfp15Decoder(to=to, shape=[8, 8], keep_nonfinite=1)(codes)
        actual = cto.gist_pack_msfp15_decoder(codes, to=to, shape=[8, 8], keep_nonfinite=1)
        assert_matches(actual, expected, 0)


def test_a_function_tells_true_from_one() -> None:
    """Remembered instances are told apart by type: 2 is refused though True was taken."""
    x = np.ones(8, np.float32)
    cto.gist_pack_msfp15_encoder(x, keep_nonfinite=True)
    with pytest.raises(ArgumentError, match=r"keep_nonfinite: expected a bool, got 1.0"):
        cto.gist_pack_msfp15_encoder(x, keep_nonfinite=1.0)


def test_everything_promised_is_there() -> None:
    assert len(set(cto.__all__)) == len(cto.__all__)
    for name in cto.__all__:
        assert getattr(cto, name) is not None
    assert set(cto.__all__) == set(dir(cto)) - {"all", "onnx", "torch", "typing", "__version__"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gist_pack9_encoder", "; did you mean gist_pack1_encoder, "),
        ("cross_entropy", "; did you mean softmax_cross_entropy, cross_entropy_loss_and_grad, "),
        ("adamw", "; did you mean AdamW, "),
        ("no_such_thing_at_all", "; `cupy-training-ops ops` lists the operators"),
        ("__wrapped__", ""),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_those_like_it(name, hint) -> None:
    with pytest.raises(AttributeError) as refusal:
        getattr(cto, name)
    message = f"module 'cupy_training_ops' has no attribute {name!r}"
    assert str(refusal.value).startswith(f"{message}{hint}")
    assert hint or str(refusal.value) == message


def test_what_is_public_hides_nothing_of_pythons() -> None:
    starred: dict[str, object] = {}
    exec("from cupy_training_ops import *", starred)
    assert not [name for name in starred if hasattr(builtins, name)]
    assert starred["is_all_finite"] is cto.is_all_finite
    assert cto.all(np.array([True, False])).tolist() == [False]


def test_dir_shows_no_internals() -> None:
    assert not {"Any", "annotations", "function", "OPERATORS", "registry"} & set(dir(cto))
    assert {"all", "gelu", "Gelu", "compress", "__version__"} <= set(dir(cto))


# ---- importing -----------------------------------------------------------------------------------

PROBE = """
import sys
import cupy_training_ops
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_importing_leaves_cupy_alone() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = set(ran.stdout.split())
    assert "cupy_training_ops" in modules
    assert not {"cupy", "jax", "onnx", "torch", "click", "cuda"} & modules
