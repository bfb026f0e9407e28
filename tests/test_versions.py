# SPDX-License-Identifier: MIT
"""What a call writes into PyTorch's tensors raises their versions, and nothing else does: autograd
refuses a gradient by what was saved and overwritten."""

from __future__ import annotations

import contextlib

import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
pytest.importorskip("cupy", reason="CuPy is in the extras")

from tensor_backends import HollowTensors, tensors_on  # noqa: E402

N = 96


def scaled(x: torch.Tensor) -> None:
    cto.scale(torch.ones(N), 2.0, out=x)


def accumulated(x: torch.Tensor) -> None:
    cto.in_place_accumulator(x, torch.ones(N))


def listed(x: torch.Tensor) -> None:
    cto.in_place_accumulator_list([torch.ones(N), x], [torch.ones(N), torch.ones(N)])


def bound(x: torch.Tensor) -> None:
    cto.get_op("Scale")().bound(torch.ones(N), 2.0, out=x)()


def opened(x: torch.Tensor) -> None:
    call = cto.get_op("Scale")().bound(..., 2.0, out=x)
    for _ in range(2):
        call(input=torch.ones(N))


def decoded(x: torch.Tensor) -> None:
    cto.compress(torch.ones(N), "msfp15").decompress(out=x)


def of_a_list(make):
    def step(x: torch.Tensor) -> None:
        optimizer = make([torch.ones(N), x], lr=0.1)
        for _ in range(2):
            optimizer.step([torch.ones(N), torch.ones(N)], max_norm=1.0)

    return step


def of_pytorch(make, **options):
    def step(x: torch.Tensor) -> None:
        parameters = [torch.nn.Parameter(torch.ones(N)), torch.nn.Parameter(x)]
        optimizer = make(parameters, lr=0.1, **options)
        for parameter in parameters:
            parameter.grad = torch.ones(N)
        optimizer.step()

    return step


WRITERS = {
    "out": scaled,
    "an input that is replaced": accumulated,
    "one of a list": listed,
    "bound": bound,
    "bound, open": opened,
    "decompress": decoded,
    "cto.SGD": of_a_list(cto.SGD),
    "cto.AdamW": of_a_list(cto.AdamW),
    "cto.torch.AdamW": of_pytorch(cto.torch.AdamW),
    "cto.torch.AdamW of 8 bits": of_pytorch(cto.torch.AdamW, state="8bit", max_norm=1.0),
    "cto.torch.SGD": of_pytorch(cto.torch.SGD),
    "cto.torch.Lamb": of_pytorch(cto.torch.Lamb, max_norm=1.0),
}


@pytest.fixture(params=["the host's", "a GPU's"])
def home(request):
    with tensors_on(HollowTensors()) if request.param == "a GPU's" else contextlib.nullcontext():
        yield


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_was_saved_and_overwritten_has_no_gradient(write) -> None:
    x, w = torch.ones(N), torch.ones(N, requires_grad=True)
    loss = (w * x).sum()
    with torch.no_grad():
        write(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.usefixtures("home")
def test_what_is_read_keeps_its_version() -> None:
    x, dy, flag = torch.ones(N), torch.ones(N), torch.zeros(1, dtype=torch.bool)
    total, parameters = torch.ones(N), [torch.ones(N), torch.ones(N)]
    cto.relu_grad(dy, x)
    cto.get_op("ReluGrad")().bound(dy, x)()
    cto.compress(x, "msfp15")
    cto.view(x, [(N,)])
    cto.pass_through([x])
    cto.in_place_accumulator(total, x)
    cto.SGD(parameters, lr=0.1).step([x, None])
    results = [t._version for t in (x, dy, flag, parameters[1])]
    assert results == [0, 0, 0, 0]


@pytest.mark.usefixtures("home")
def test_a_bound_call_writes_its_own_results_anew() -> None:
    call = cto.get_op("ReluGrad")().bound(torch.ones(N), torch.ones(N))
    w = torch.ones(N, requires_grad=True)
    loss = (w * call()).sum()
    call()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tensors_of_inference_have_no_versions() -> None:
    with torch.inference_mode():
        x, p = torch.ones(N), torch.nn.Parameter(torch.ones(N))
        scaled(x)
        p.grad = torch.ones(N)
        cto.SGD([x], lr=0.1).step([torch.ones(N)])
        cto.torch.SGD([p], lr=0.1).step()
    assert x[0] == pytest.approx(1.9)
    assert p[0].item() == pytest.approx(0.9)
