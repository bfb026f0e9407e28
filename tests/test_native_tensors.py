# SPDX-License-Identifier: MIT
"""Calls that take PyTorch's tensors by their metadata: the same launches as on CuPy's arrays.

Without a GPU: tensors of the host stand for a GPU's, with hollow or emulated kernels.
"""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, ProviderError, get_op
from cupy_training_ops.call import interop
from cupy_training_ops.call.backends import CPU
from cupy_training_ops.call.keys import host_key
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import all_samples, mapped_inputs
from cupy_training_ops.testing.samples import flat as taken_apart

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import (  # noqa: E402
    EmulatedTensors,
    HollowTensors,
    numpy_of,
    tensor_of,
    tensors_on,
)

from cupy_training_ops.testing.hollow import hollow, hollow_launches  # noqa: E402

SAMPLES = [sample for samples in all_samples().values() for sample in samples]
NATIVE = [s for s in SAMPLES if get_op(s.op).takes_tensors and not s.attributes.get("check")]


def like(value):
    """A hollow array like an array, its axes in the same order; anything else as it is."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    axes = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])
    dense = hollow(tuple(value.shape[axis] for axis in axes), value.dtype)
    return dense.transpose(*np.argsort(axes)) if axes else dense


def kernels(launches) -> list[tuple]:
    """Names, and what of the arguments is no address and holds none."""
    return [
        (name, *[str(v) for v in arguments if not isinstance(v, np.uint64 | np.void)])
        for name, arguments in launches
        if name not in ("fill", "clear")
    ]


def is_adopted(values) -> bool:
    """Complex tensors may be conjugated."""
    result = itertools.chain.from_iterable(v if isinstance(v, list) else (v,) for v in values)
    arrays = [v for v in result if isinstance(v, np.ndarray)]
    return not arrays or any(v.dtype.kind == "c" for v in arrays)


@pytest.mark.parametrize("sample", NATIVE, ids=lambda sample: sample.id)
def test_a_call_over_tensors_has_the_launches_of_one_over_arrays(sample: Sample, rng) -> None:
    values = sample.make(rng)
    if is_adopted(values):
        pytest.skip("it is taken as arrays are")
    op = get_op(sample.op)(**sample.attributes)
    expected = op(*values)
    with torch.no_grad(), tensors_on(HollowTensors()) as backend, hollow_launches() as launches:
        op(*mapped_inputs(op, values, like))
        results = op(*mapped_inputs(op, values, tensor_of))
        assert kernels(backend.launches) == kernels(launches)
    for result, wanted in zip(taken_apart(results), taken_apart(expected), strict=True):
        assert isinstance(result, torch.Tensor) == (wanted is not None)
        if wanted is not None:
            assert (tuple(result.shape), numpy_of(result).dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.parametrize(
    ("name", "attributes", "shapes"),
    [
        ("ReluGrad", {}, [(3, 70), (3, 70)]),
        ("LayerNormalizationGrad", {}, [(5, 70), (5, 70), (70,), (5, 1), (5, 1)]),
        ("ConcatTraining", {"axis": 1}, [[(3, 5), (3, 7)]]),
    ],
)
def test_results_are_the_cpu_providers(name, attributes, shapes, rng) -> None:
    def convert(shape):
        if isinstance(shape, list):
            return list(map(convert, shape))
        return rng.standard_normal(shape).astype(np.float32)

    values, op = list(map(convert, shapes)), get_op(name)(**attributes)
    expected = taken_apart(op(*values))
    with tensors_on(EmulatedTensors()):
        for _ in range(2):
            actual = taken_apart(op(*mapped_inputs(op, values, tensor_of)))
    for result, wanted in zip(actual, expected, strict=True):
        assert_matches(numpy_of(result), wanted)


# ---- what may change about a tensor --------------------------------------------------------------


@pytest.fixture
def backend():
    """Tensors of the host with kernels that are noted."""
    with torch.no_grad(), tensors_on(HollowTensors()) as result:
        yield result


def addresses(backend) -> list[int]:
    """Of the arrays of the last launch."""
    return [int(v) for v in backend.launches[-1][1] if isinstance(v, np.uint64)]


def test_nothing_is_exchanged(backend, monkeypatch) -> None:
    """No array of CuPy's or NumPy's is made, and no stream object."""
    for name in ("share_memory", "as_tensor", "_stream"):
        monkeypatch.setattr(interop, name, None)
    monkeypatch.setattr(torch.Tensor, "__dlpack__", None)
    dy, x = torch.randn(2, 3, 70)
    for _ in range(2):
        result = get_op("ReluGrad")()(dy, x)
        assert addresses(backend)[:3] == [dy.data_ptr(), x.data_ptr(), result.data_ptr()]


@pytest.mark.parametrize("how", ["set_", "data", "resize_"])
def test_a_call_takes_a_tensors_memory_as_it_is_now(backend, how) -> None:
    op, (dy, x) = get_op("ReluGrad")(), torch.randn(2, 3, 70)
    op(dy, x)
    changed(x, how)
    with_new = (dy[:1], x[:1]) if how == "resize_" else (dy, x)
    result = op(*with_new)
    assert addresses(backend)[:3] == [t.data_ptr() for t in (*with_new, result)]


def changed(x, how) -> None:
    if how == "set_":
        x.set_(torch.randn(3, 70))
    elif how == "data":
        x.data = torch.randn(3, 70)
    else:
        x.resize_(9, 70)


@pytest.mark.parametrize("how", ["set_", "data", "resize_"])
def test_lists_are_known_again_by_their_memory(backend, how) -> None:
    op, sums = get_op("InPlaceAccumulatorList")(), [torch.randn(3, 70) for _ in range(3)]
    values = [torch.randn(3, 70) for _ in range(3)]
    for _ in range(2):
        op(sums, values)
    if how == "resize_":
        changed(sums[1], how)
        with pytest.raises(ArgumentError, match=r"\[1\]"):
            op(sums, values)
        return
    before = values[1].data_ptr()
    changed(values[1], how)
    op(sums, values)
    tables = [v for v in backend.launches[-1][1] if isinstance(v, np.void)]
    result = np.frombuffer(b"".join(v.tobytes() for v in tables if v.nbytes % 8 == 0), np.uint64)
    assert values[1].data_ptr() in result
    assert before not in result


@pytest.mark.parametrize("how", ["set_", "data", "resize_"])
def test_a_bound_call_refuses_a_tensor_that_became_another(backend, how) -> None:
    dy, x, out = torch.randn(3, 3, 70)
    x = x.clone()
    bound = get_op("ReluGrad")().bound(dy, x, out=out)
    bound()
    changed(x, how)
    n = len(backend.launches)
    with pytest.raises(ArgumentError, match="ReluGrad: X: expected the tensor as it was bound"):
        bound()
    assert len(backend.launches) == n


def test_a_bound_call_makes_its_results_once(backend) -> None:
    dy, x = torch.randn(2, 3, 70)
    bound = get_op("ReluGrad")().bound(dy, x)
    first = bound()
    assert bound() is first
    assert addresses(backend)[2] == first.data_ptr()


def test_host_results_of_a_bound_call_are_tensors(backend) -> None:
    a, b = torch.randn(2, 3, 70)
    for op in (get_op("ConcatTraining")(axis=0), get_op("ConcatTraining")(axis=1)):
        bound, expected = op.bound([a, b]), op([a, b])
        first, second = bound(), bound()
        assert second[0] is first[0]
        assert torch.equal(second[1], expected[1])
        assert second[1] is not first[1]
    assert backend.launches


def test_a_tensor_whose_elements_are_in_another_order_is_another(backend) -> None:
    """The memory, the shape and the dtype are the same."""
    dy, x = torch.randn(2, 70, 70)
    bound, listed = get_op("ReluGrad")().bound(dy, x), get_op("ConcatTraining")(axis=1)
    bound()
    listed([dy, x])
    n = len(backend.launches)
    x.t_()
    with pytest.raises(ArgumentError, match="ReluGrad: X: expected the tensor as it was bound"):
        bound()
    with pytest.raises(ArgumentError, match=r"ConcatTraining: inputs\[1\]"):
        listed([dy, x])
    assert len(backend.launches) == n


@pytest.mark.parametrize("n", [0, 4])
def test_empty_tensors_are_taken_by_their_metadata(backend, n) -> None:
    """They have no address; a bound call makes them, where nobody gave them, and is given them."""
    x = torch.arange(30.0).reshape(10, 3)
    bound = get_op("SplitTraining")(axis=0).bound(x, np.array([n, 10 - n, 0]))
    assert [tuple(part.shape) for part in bound()] == [(n, 3), (10 - n, 3), (0, 3)]
    empty = torch.empty(0, 3)
    assert get_op("ReluGrad")()(empty, empty, out=empty) is empty
    assert len(backend.launches) == 1


def test_a_workspace_without_elements_serves_where_none_is_needed(backend, monkeypatch) -> None:
    """It has no address; what it lends is CuPy's where there is a GPU."""
    op, (dy, x) = get_op("ReluGrad")(), torch.randn(2, 3, 70)
    assert op.workspace_nbytes(dy, x) == 0
    monkeypatch.setattr(backend, "name", "cuda")
    monkeypatch.setattr(CPU, "info", lambda a: (backend, a.dtype, a.shape, True, None, 0))
    op(dy, x, workspace=torch.empty(0, dtype=torch.uint8))
    assert len(backend.launches) == 1


def test_a_workspace_is_not_exchanged(backend, monkeypatch) -> None:
    """By DLPack one library's stream waits for the other's, which ends a capture."""
    op, scores = get_op("SoftmaxCrossEntropyLoss")(), torch.randn(4500, 8)
    labels = torch.zeros(4500, dtype=torch.int64)
    memory = torch.empty(op.workspace_nbytes(scores, labels) + 64, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 16 :]
    monkeypatch.setattr(interop, "share_memory", lambda _: pytest.fail("it was exchanged"))
    for _ in range(2):
        op(scores, labels, workspace=memory)
        assert memory.data_ptr() in addresses(backend)
        backend.launches.clear()
    assert not op.workspaces._stores


@pytest.mark.parametrize("captures", ["CuPy", "PyTorch"])
def test_nothing_is_exchanged_between_two_streams_under_capture(
    backend, monkeypatch, captures
) -> None:
    """One would wait for the other: CUDA ends the capture, and says so at its end alone."""
    op, scores = get_op("SoftmaxCrossEntropyLoss")(), torch.randn(4500, 8)
    labels = torch.zeros(4500, dtype=torch.int64)
    stream = SimpleNamespace(cuda_stream=64)
    is_current = []  # the device, of whose stream alone PyTorch can say it

    @contextlib.contextmanager
    def on(device):
        is_current.append(device)
        yield
        is_current.clear()

    of_cupy = SimpleNamespace(capturing=lambda _: captures == "CuPy", on=on)
    monkeypatch.setattr(backend, "capturing", lambda _: captures == "PyTorch" and bool(is_current))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(interop, "has_same_stream", lambda _: False)
    monkeypatch.setattr(interop, "cuda_backend", lambda: of_cupy)
    with pytest.raises(ProviderError, match=r"Loss: workspace: under graph capture .* one stream"):
        op(scores, labels, workspace=hollow((2**20,), np.uint8))
    assert not backend.launches


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint8])
def test_a_workspace_that_does_not_serve_is_refused_in_words(backend, dtype) -> None:
    with pytest.raises(ArgumentError, match="ReluGrad: workspace: expected a uint8 array"):
        get_op("ReluGrad")()(*torch.randn(2, 3, 70), workspace=torch.empty(2, 0, dtype=dtype))
    assert not backend.launches


@pytest.mark.parametrize("unusual", ["negative", "sparse", "mixed", "subclass", "batched"])
def test_unusual_tensors_are_adopted_or_refused(backend, unusual) -> None:
    """Never taken by their memory alone."""
    dy, x = torch.randn(2, 3, 70)
    if unusual == "negative":
        x = torch._neg_view(x)
    elif unusual == "sparse":
        x = x.to_sparse()
    elif unusual == "mixed":
        dy = dy.numpy()
    elif unusual == "subclass":
        x = x.as_subclass(type("Tagged", (torch.Tensor,), {}))
    op = get_op("ReluGrad")()
    if unusual == "batched":
        with pytest.raises((ArgumentError, RuntimeError)):
            torch.func.vmap(op)(dy, x)
    elif unusual == "mixed":
        with pytest.raises(ArgumentError, match="X: expected an array of NumPy, as dY is"):
            op(dy, x)
    elif unusual in ("sparse", "negative"):
        with pytest.raises(ArgumentError, match="X: cannot share its memory"):
            op(dy, x)
    else:
        op(dy, x)
    assert not backend.launches


def test_parameters_are_tensors(backend) -> None:
    weights = torch.nn.Parameter(torch.randn(3, 70))
    get_op("SGDOptimizer")()(torch.tensor([0.1]), weights, torch.randn(3, 70))
    assert weights.data_ptr() in addresses(backend)


def test_a_graph_has_scratch_memory_of_its_own(backend, monkeypatch) -> None:
    """PyTorch's allocator gives a capture memory that the graph owns: no call need come before."""
    op, scores = get_op("SoftmaxCrossEntropyLoss")(), torch.randn(4500, 8)
    labels = torch.zeros(4500, dtype=torch.int64)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "capturing", lambda _: True)
        op(scores, labels)
        assert backend.launches
        assert not op.workspaces._stores
    op(scores, labels)
    assert op.workspaces._stores


# ---- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shapes", "out"),
    [
        ("ReluGrad", [(3, 70), (3, 71)], None),
        ("ReluGrad", [(3, 70), (3, 70)], (70, 3)),
        ("LayerNormalizationGrad", [(5, 7), (5, 7), (8,), (5, 1), (5, 1)], None),
        ("ReluGrad", [(3, 70)], None),
    ],
)
def test_refusals_have_the_words_of_arrays(backend, rng, name, shapes, out) -> None:
    """Shapes, too, which PyTorch prints as its own."""
    op, said = get_op(name)(), []
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    with hollow_launches() as launches:
        for convert in (like, tensor_of):
            target = None if out is None else convert(np.zeros(out, np.float32))
            with pytest.raises(ArgumentError) as refused:
                op(*map(convert, values), out=target)
            said.append(str(refused.value))
        assert not launches
    assert said[0] == said[1]
    assert not backend.launches


def test_open_calls_with_an_empty_tensor_tell_alignments_and_lost_memory_apart(backend) -> None:
    empty, memory = torch.empty(0), torch.randn(1024 + 4)
    first = -memory.data_ptr() % 16 // 4
    bound = get_op("ReduceAllL2")().bound(...)
    for start in (first, first + 1, first):
        bound(X=[empty, memory[start : start + 1000]])
    assert len(bound._forms[True]._calls) == 2
    gone = torch.randn(1000)
    gone.untyped_storage().resize_(0)
    backend.launches.clear()
    with pytest.raises(ArgumentError, match=r"X\[1\]: cannot share its memory"):
        bound(X=[empty, gone])
    assert not backend.launches


def test_a_checked_call_without_tables_follows_a_tensor_to_other_memory(backend) -> None:
    dy, x, out = torch.randn(3, 1, 70)
    checked = get_op("ReluGrad")().bound(dy, ..., out=out).checked(X=x)
    checked()
    backend.launches.clear()
    x.data = torch.randn(1, 70)
    checked()
    assert x.data_ptr() in backend.launches[0][1]


@pytest.mark.parametrize("value", [np.array(3, object), np.array([[3]], object)])
def test_objects_in_an_array_are_no_part_of_a_key(value) -> None:
    """Their addresses may be others' soon."""
    with pytest.raises(KeyError):
        host_key(value)
