# SPDX-License-Identifier: MIT
"""PyTorch's tensors on the host: taken without a copy, given back as tensors.

`tests/gpu/test_tensors.py` has those on a GPU, `tests/test_foreign.py` JAX's arrays.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from probe.frame_probe import ProbeEither

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.call.arguments import adopt
from cupy_training_ops.call.interop import as_tensor
from cupy_training_ops.testing.compare import assert_matches

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from tensor_cases import CHANNELS_LAST, CONTIGUOUS, DTYPES, dtypes, every_tensor, gradients  # noqa: E402

SHAPE = (2, 8, 3, 5)


@pytest.fixture
def tensor(seed):
    """Makes normal tensors."""
    generator = torch.Generator().manual_seed(seed)

    def build(dtype=torch.float32, layout=CONTIGUOUS, gradients=False, shape=SHAPE):
        x = torch.randn(shape, generator=generator).to(dtype)
        return x.to(memory_format=layout).requires_grad_(gradients)

    return build


@pytest.fixture
def as_data():
    """Nothing records: tensors that require gradients are data."""
    with torch.no_grad():
        yield


def numpy_of(x):
    """The same values in an array of NumPy's own, C-contiguous."""
    wide = x.detach().to(torch.float64).numpy()
    return wide.astype(str(x.dtype).removeprefix("torch."), order="C")


def assert_same(result, expected, layout=CONTIGUOUS) -> None:
    """A tensor with these values, of NumPy's dtype, in this layout."""
    assert isinstance(result, torch.Tensor)
    assert not result.requires_grad
    assert result.is_contiguous(memory_format=layout)
    assert_matches(numpy_of(result) if result.is_floating_point() else result.numpy(), expected, 0)


@every_tensor
@pytest.mark.parametrize("codec", ["binarize", "pack8", "pack16"])
def test_compress_and_decompress(tensor, dtype, layout, gradients, codec) -> None:
    x = tensor(dtype, layout, gradients)
    packed, expected = cto.compress(x, codec), cto.compress(numpy_of(x), codec)
    assert (packed.dtype, packed.shape) == (expected.dtype, expected.shape)
    assert_same(packed.code, expected.code, layout)
    assert_same(packed.decompress(), expected.decompress(), layout)
    t = torch.empty_like(x, requires_grad=False, memory_format=layout)
    assert packed.decompress(out=t) is t
    assert_same(t, expected.decompress(), layout)


@dtypes
@gradients
@pytest.mark.parametrize("codec", ["pack1", "msfp15"])
def test_codecs_that_pack_neighbours(tensor, dtype, gradients, codec, tmp_path) -> None:
    x = tensor(dtype, CONTIGUOUS, gradients)
    packed, expected = cto.compress(x, codec), cto.compress(numpy_of(x), codec)
    assert_same(packed.decompress(), expected.decompress())
    packed.save(tmp_path / "x.npz")
    loaded = cto.Packed.load(tmp_path / "x.npz")
    assert_matches(loaded.decompress(), expected.decompress(), 0)
    t = torch.empty_like(x, requires_grad=False)
    assert loaded.decompress(out=t) is t
    assert_same(t, expected.decompress())


@pytest.mark.usefixtures("as_data")
@every_tensor
def test_gelu_grad_in_and_out(tensor, dtype, layout, gradients) -> None:
    dy, x = tensor(dtype, layout, gradients), tensor(dtype, layout, gradients)
    expected = cto.gelu_grad(numpy_of(dy), numpy_of(x))
    assert_same(cto.gelu_grad(dy, x), expected, layout)
    out = torch.empty_like(x, requires_grad=False)
    assert cto.gelu_grad(dy, x, out=out) is out
    assert_same(out, expected, layout)
    assert cto.gelu_grad(dy, x, out=dy) is dy
    assert_same(dy.detach(), expected, layout)


@pytest.mark.usefixtures("as_data")
@every_tensor
def test_nothing_is_copied(tensor, dtype, layout, gradients) -> None:
    x = tensor(dtype, layout, gradients)
    adopted = adopt("SomeOp", "X", x)
    assert adopted.ctypes.data == x.data_ptr()
    assert (adopted.shape, adopted.dtype.itemsize) == (tuple(x.shape), x.dtype.itemsize)
    if layout is CONTIGUOUS:
        first, second = cto.view(x, [(8, 3, 5), (24, 5)])
        assert (first.data_ptr(), second.data_ptr()) == (x.data_ptr(), x[1].data_ptr())


@pytest.mark.usefixtures("as_data")
def test_other_tensors_than_plain_ones(tensor) -> None:
    x = tensor()
    expected = cto.gelu(numpy_of(x))
    assert_same(cto.gelu(torch.nn.Parameter(x)), expected)
    assert_same(cto.gelu(x[0, 0, 0, 0]), expected[0, 0, 0, 0])
    assert cto.gelu(x[:0]).shape == (0, *SHAPE[1:])
    with torch.inference_mode():
        assert_same(cto.gelu(x.clone()), expected)


@pytest.mark.usefixtures("as_data")
def test_what_is_written_is_the_callers_own_object(tensor) -> None:
    total, x = torch.zeros(SHAPE), tensor(gradients=True)
    assert cto.in_place_accumulator(total, x) is total
    assert torch.equal(total, x)
    flag, buffer = cto.in_place_accumulator_v2(total, x, True)
    assert buffer is total
    assert_same(flag, np.array([True]))
    totals = [torch.zeros(3), torch.zeros(2, 2)]
    sums = cto.in_place_accumulator_list(totals, [torch.ones(3), torch.ones(2, 2)])
    assert all(a is b for a, b in zip(sums, totals, strict=True))
    assert [t.sum().item() for t in totals] == [3, 4]


@pytest.mark.usefixtures("as_data")
def test_lists_host_outputs_and_optional_inputs(tensor) -> None:
    x, y = tensor(gradients=True), tensor()
    joined, lengths = cto.concat_training([x, y], axis=0)
    assert_same(joined, np.concatenate([numpy_of(x), numpy_of(y)]))
    assert_same(lengths, np.array([2, 2]))
    parts = cto.split_training(joined, torch.tensor([2, 2]), axis=0, num_outputs=2)
    assert_same(parts[0], numpy_of(x))
    out = torch.empty(2, *SHAPE[1:])
    assert cto.split_training(joined, (2, 2), axis=0, num_outputs=2, out=(None, out))[1] is out
    assert_same(out, numpy_of(y))
    for bias in (torch.ones(5), None):
        expected = cto.fast_gelu(numpy_of(x), None if bias is None else bias.numpy())
        assert_same(cto.fast_gelu(x, bias), expected)
    only = get_op("DivGrad")()(x, y, y, outputs=("dB",))
    assert only[0] is None
    assert isinstance(only[1], torch.Tensor)
    assert_same(cto.scale(x, torch.tensor(0.5)), cto.scale(numpy_of(x), 0.5))


def test_an_array_in_the_place_of_a_number_counts_too() -> None:
    x, step = torch.ones(4), torch.ones(1, dtype=torch.int64)
    y, new_step = ProbeEither()(x, 0.5, step, (0, 0))
    assert isinstance(y, torch.Tensor)
    assert new_step is step
    assert step.item() == 2
    with pytest.raises(ArgumentError, match="step: expected an array of PyTorch, as X is"):
        ProbeEither()(x, 0.5, step.numpy(), (0, 0))


@pytest.mark.parametrize(
    ("call", "where", "other"),
    [
        (lambda x, y: cto.gelu_grad(x, y), "X", "dY"),
        (lambda x, y: cto.gelu_grad(dY=x, X=y), "X", "dY"),
        (lambda x, y: cto.gelu(x, out=y), "out", "X"),
        (lambda x, y: cto.GeluGrad().bound(x, ...)(X=y), "X", "dY"),
        (lambda x, y: cto.GeluGrad().workspace_nbytes(x, y), "X", "dY"),
        (lambda x, y: cto.concat_training([x, x, y], axis=0), r"inputs\[2\]", "inputs"),
        (lambda x, y: cto.split_training(x, [1, 2], axis=0, out=(x[:1], y[1:])), "out", "input"),
        (lambda x, y: cto.AdamW([x, y]), r"parameters\[1\]", "parameters"),
        (lambda x, y: cto.AdamW([x], low_precision=[y]), r"low_precision\[0\]", "parameters"),
        (lambda x, y: cto.AdamW([x]).step([y]), r"gradients\[0\]", "parameters"),
    ],
)
@pytest.mark.parametrize("first", ["NumPy", "PyTorch"])
def test_arrays_of_two_libraries_are_refused_by_name(call, where, other, first) -> None:
    x, y = torch.ones(3, 3), torch.full((3, 3), 2.0)
    arrays, second = ((x.numpy(), y), "PyTorch") if first == "NumPy" else ((x, y.numpy()), "NumPy")
    expected = rf"{where}: expected an array of {first}, as {other} is, got one of {second}"
    with pytest.raises(ArgumentError, match=expected):
        call(*arrays)
    assert [float(array[0, 0]) for array in arrays] == [1, 2]


@pytest.mark.parametrize("make", [cto.SGD, cto.Adam, cto.AdamW])
def test_rates_of_an_optimizer_may_be_tensors(make) -> None:
    start, gradient = torch.linspace(-1, 1, 7), torch.linspace(1, 2, 7)
    stepped = []
    for number in (float, torch.tensor):
        x = start.clone()
        optimizer = make([x], lr=number(0.125))
        for _ in range(2):
            optimizer.step([gradient], loss_scale=number(2.0), max_norm=number(1.0))
        stepped.append(x)
    assert torch.equal(*stepped)
    assert not torch.equal(stepped[0], start)


def test_what_a_call_does_not_read_may_be_of_any_library() -> None:
    x, y = torch.ones(3), np.ones(3)
    assert cto.pass_through([x, y])[1] is y
    assert cto.group([x, y])[0]
    assert type(cto.gelu(y, workspace=torch.zeros(1024, dtype=torch.uint8))) is np.ndarray


@pytest.mark.usefixtures("as_data")
def test_bound_calls(tensor) -> None:
    dy, x = tensor(gradients=True), tensor(torch.float32, CONTIGUOUS, True)
    expected = cto.gelu_grad(numpy_of(dy), numpy_of(x))
    bound = get_op("GeluGrad")().bound(dy, x)
    assert bound() is bound()
    assert_same(bound(), expected)
    out = torch.empty(SHAPE)
    assert get_op("GeluGrad")().bound(dy, x, out=out)() is out
    for _ in range(2):
        assert_same(get_op("GeluGrad")().bound(..., x)(dY=dy), expected)
        assert get_op("GeluGrad")().bound(..., x, out=out)(dY=dy) is out
    mixed = get_op("GeluGrad")().bound(..., x)
    with pytest.raises(ArgumentError, match="GeluGrad: X: expected an array of NumPy, as dY is"):
        mixed(dY=numpy_of(dy))
    assert_same(mixed(dY=dy), expected)
    total = torch.zeros(SHAPE)
    assert get_op("InPlaceAccumulator")().bound(total, ...)(value=x) is total
    flag, buffer = get_op("InPlaceAccumulatorV2")().bound(total, x)()
    assert buffer is total
    assert_same(flag, np.array([True]))
    scaled = get_op("Scale")().bound(x, 0.5)
    assert scaled(scale=2.0) is scaled(scale=0.25)
    assert_same(scaled(scale=2.0), 2 * numpy_of(x))


def test_refusals_name_the_cause(tensor) -> None:
    x = tensor()
    refused = {
        "it is on the device meta": x.to("meta"),
        "negative bit": torch._neg_view(x),
        "Float8_e5m2": x.to(torch.float8_e5m2),
        "Sparse": x.to_sparse(),
    }
    for cause, value in refused.items():
        with pytest.raises(ArgumentError, match=rf"^Gelu: X: cannot share its memory: .*{cause}"):
            cto.gelu(value)
    with pytest.raises(ArgumentError, match="X: expected a dense array, got a strided one"):
        cto.gelu(x[..., ::2])
    with pytest.raises(ArgumentError, match=r"out \(Y\): expected the layout of X"):
        cto.gelu(x, out=torch.empty(SHAPE).to(memory_format=CHANNELS_LAST))
    with pytest.raises(ArgumentError, match="out: expected a NumPy or CuPy array, got list"):
        cto.gelu(x, out=[x])


def test_pytorch_is_left_alone_where_arrays_are_others(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert type(cto.gelu(np.ones(3, np.float32))) is np.ndarray
    assert "torch" not in sys.modules


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (3, 0), (2, 0, 5), (1, 1), (1, 5)])
def test_results_have_the_strides_of_pytorchs_own(dtype, shape) -> None:
    x = torch.ones(shape, dtype=dtype)
    for result in (cto.relu_grad(x, x), cto.compress(x, "sparse").decompress()):
        assert result.stride() == torch.empty(shape, dtype=dtype).stride()
        if shape:
            assert torch.equal(result.view(torch.uint8), x.view(torch.uint8))


def test_arrays_of_odd_strides_become_tensors_of_ordinary_ones() -> None:
    odd = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (1, 1), (0, 0))
    assert as_tensor(odd).stride() == (1, 1)
    assert as_tensor(odd).data_ptr() == odd.ctypes.data
