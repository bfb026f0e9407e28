# SPDX-License-Identifier: MIT
"""Who saves a tensor decides how it is kept: rules, guards, the window, and what stays unknown."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
from late_events import Event

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from cupy_training_ops.codecs.kept.guards import Guard  # noqa: E402
from cupy_training_ops.torch import consumers, kinds  # noqa: E402
from cupy_training_ops.torch.window import Window  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.* bytes were compressed")  # where all is small
SHAPE = (256, 128)
NBYTES = 4 * 256 * 128


@pytest.fixture
def tensor(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape or SHAPE, generator=generator).requires_grad_()


@pytest.fixture
def weight(tensor):
    return nn.Parameter(tensor(128, 128).detach() / 11)


def run(policy, function, *inputs):
    """Gradients and report."""
    kept = cto.torch.compressed_activations(policy)
    with kept:
        total = function(*inputs).sum()
    return torch.autograd.grad(total, inputs, allow_unused=True), kept.report()


def codecs(report) -> dict[str, int]:
    return {name: row["tensors"] for name, row in report["consumers"].items()}


def rule(consumer, codec):
    return {f"{consumer} {codec}": 1}


SIGNED = "msfp15_signed"
IMAGE = (8, 16, 16, 16)
FILTERS = nn.Parameter(torch.randn(16, 16, 3, 3, generator=torch.Generator().manual_seed(0)))
SQUARE = nn.Parameter(torch.randn(128, 128, generator=torch.Generator().manual_seed(0)))

RULES = {
    "linear": (SHAPE, lambda x: functional.linear(x, SQUARE), rule("linear", SIGNED)),
    "linear by name": (
        SHAPE,
        lambda x: functional.linear(input=x, weight=SQUARE),
        rule("linear", SIGNED),
    ),
    "matmul": (SHAPE, lambda x: x @ SQUARE, rule("matmul", SIGNED)),
    "from the left": ((128, 256), lambda x: SQUARE @ x, rule("matmul", SIGNED)),
    "a view of a parameter": (SHAPE, lambda x: x.mm(SQUARE.t()), rule("mm", SIGNED)),
    "einsum": (SHAPE, lambda x: torch.einsum("ij,jk->ik", x, SQUARE), rule("einsum", SIGNED)),
    "addmm": (SHAPE, lambda x: torch.addmm(SQUARE[0], x, SQUARE), rule("addmm", SIGNED)),
    "convolution": (IMAGE, lambda x: functional.conv2d(x, FILTERS), rule("conv2d", SIGNED)),
    "transposed": (
        IMAGE,
        lambda x: functional.conv_transpose2d(x, FILTERS),
        rule("conv_transpose2d", SIGNED),
    ),
    "relu": (SHAPE, torch.relu, rule("relu", SIGNED)),
    "relu in place": (SHAPE, lambda x: torch.relu_(x), rule("relu", SIGNED)),
    "leaky": (SHAPE, functional.leaky_relu, rule("leaky_relu", SIGNED)),
    "pool": (IMAGE, lambda x: functional.max_pool2d(x, 2), rule("max_pool2d", SIGNED)),
    "layer norm": (SHAPE, lambda x: functional.layer_norm(x, (128,)), rule("layer_norm", SIGNED)),
    "rms norm": (SHAPE, lambda x: functional.rms_norm(x, (128,)), rule("rms_norm", SIGNED)),
    "batch norm": (
        IMAGE,
        lambda x: functional.batch_norm(x, None, None, training=True),
        rule("batch_norm", SIGNED),
    ),
    "group norm": (IMAGE, lambda x: functional.group_norm(x, 4), rule("group_norm", SIGNED)),
    "instance norm": (IMAGE, functional.instance_norm, rule("instance_norm", SIGNED)),
    "gelu": (SHAPE, functional.gelu, rule("gelu", "pack16")),
    "silu": (SHAPE, functional.silu, rule("silu", "pack16")),
    "a product of activations": (SHAPE, lambda x: x @ x.mT, rule("matmul", "pack16")),
    "attention": (
        (4, 4, 32, 64),
        lambda x: functional.scaled_dot_product_attention(x, 2 * x, 3 * x),
        {"scaled_dot_product_attention pack16": 4},
    ),
}
EXACT = {
    "softmax": lambda x: x.softmax(1),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "multiplication": lambda x: x * x.roll(1, 0),
    "division": lambda x: x / (x.abs() + 1),
    "logarithm": lambda x: (x.abs() + 1).log(),
    "power": lambda x: x**3,
    "root": lambda x: (x.abs() + 1).sqrt(),
    "variance": lambda x: x.var(1),
    "elu": functional.elu,
}


@pytest.mark.parametrize("name", RULES)
def test_the_consumer_decides(tensor, name) -> None:
    shape, function, expected = RULES[name]
    _, report = run("default", lambda x: function(x * 1), tensor(*shape))
    assert codecs(report) == expected


@pytest.mark.parametrize("name", EXACT)
def test_others_are_untouched(tensor, name) -> None:
    x = tensor()
    (found,), report = run("default", lambda x: EXACT[name](x * 1), x)
    assert torch.equal(found, torch.autograd.grad(EXACT[name](x * 1).sum(), x)[0])
    assert codecs(report) == {}
    assert sum(report["untouched"].values()) == report["passed"]["exact"] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_16_bits_smooth_functions_are_untouched_but_wide(tensor, dtype) -> None:
    x = tensor(256, 256).to(dtype)
    assert codecs(run("default", lambda x: functional.gelu(x * 1), x)[1]) == {}
    assert codecs(run("wide", lambda x: functional.gelu(x * 1), x)[1]) == rule("gelu", SIGNED)


def test_a_product_with_made_weights_is_one_of_activations(tensor, weight) -> None:
    """Of a parametrized layer: its weight is no parameter."""
    _, report = run("default", lambda x, w: (x * 1) @ (w * 2), tensor(), weight)
    assert codecs(report) == {"matmul pack16": 2}


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return 3 * slope * x**2


class Other(TorchFunctionMode):
    """Calls something else under a function's name."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.gelu:
            return args[0].exp()
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


def scripted(x):
    return torch.jit.script(nn.GELU())(x * 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: Cube.apply(x * 1),
        scripted,
        lambda x: torch.ops.aten.gelu(x * 1),
        lambda x: functional.gelu((x * 1).as_subclass(Subclass)).as_subclass(torch.Tensor),
    ],
    ids=["custom", "scripted", "operator", "subclass"],
)
def test_who_is_not_known_has_it_exactly(tensor, function) -> None:
    x = tensor()
    (found,), report = run("default", function, x)
    assert torch.equal(found, torch.autograd.grad(function(x).sum(), x)[0])
    assert codecs(report) == {}
    assert report["passed"].keys() & {"unknown", "subclass", "exact"}


def test_a_mode_below_may_call_what_it_likes(tensor) -> None:
    x = tensor()
    with Other():
        (found,), report = run("default", lambda x: functional.gelu(x * 1), x)
    assert torch.equal(found, x.exp())
    assert codecs(report) == {}


def test_a_function_of_python_is_looked_through(tensor) -> None:
    layer = nn.MultiheadAttention(128, 4, batch_first=True)
    x = tensor(4, 64, 128)
    _, report = run("default", lambda x: layer(x * 1, x * 1, x * 1)[0], x)
    assert "linear msfp15_signed" in codecs(report)
    assert consumers.body(functional.multi_head_attention_forward).__kwdefaults__ is None


# ---- the stricter rule ---------------------------------------------------------------------------


def both(first, second):
    def function(x, w):
        y = x * 1
        return first(y, w).sum() + second(y, w).sum()

    return function


SAVERS = {
    "linear": (lambda y, w: y @ w, 0),
    "gelu": (lambda y, _: functional.gelu(y), 1),
    "multiplication": (lambda y, _: y * y.detach().clone().roll(1).requires_grad_(), 2),
}


@pytest.mark.parametrize("first", SAVERS)
@pytest.mark.parametrize("second", SAVERS)
def test_of_two_consumers_the_stricter_rule_holds(tensor, weight, first, second) -> None:
    (a, rank), (b, other) = SAVERS[first], SAVERS[second]
    inputs = tensor(), weight
    _, report = run("default", both(a, b), *inputs)
    bytes_held = {0: NBYTES // 4, 1: NBYTES // 2, 2: 0}[max(rank, other)]
    assert report["after"] == bytes_held
    assert report["held"] == 0
    assert report["passed"].get("exact", 0) == (NBYTES if max(rank, other) == 2 else 0)


def test_after_a_stricter_consumer_all_gradients_are_exact(tensor, weight) -> None:
    inputs, function = (tensor(), weight), both(SAVERS["linear"][0], lambda y, _: y.exp().log())
    found, _ = run(
        "default", lambda x, w: both(lambda y, w: y @ w, lambda y, _: y**3)(x, w), *inputs
    )
    expected = torch.autograd.grad(
        both(lambda y, w: y @ w, lambda y, _: y**3)(*inputs).sum(), inputs
    )
    assert all(map(torch.equal, found, expected))
    assert function is not None


def test_a_stricter_consumer_of_what_was_written_is_an_error_as_without(tensor, weight) -> None:
    x = tensor()
    with cto.torch.compressed_activations():
        y = x * 1
        total = (y @ weight).sum() + (y * y).sum()
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


# ---- guards --------------------------------------------------------------------------------------


def test_a_large_mean_is_not_compressed(tensor, weight) -> None:
    x = tensor()
    for far, lacks in ((0, {}), (100, {"matmul tiles": 1})):
        _, report = run("default", lambda x, w, far=far: (x + far) @ w, x, weight)
        assert report["failed"] == lacks
        assert report["passed"].get("guard", 0) == NBYTES * bool(lacks)


@pytest.mark.parametrize(
    "way", [lambda y: y, lambda y: y.view(SHAPE) + 0.5, lambda y: y[:, None, :]]
)
def test_a_batch_norm_does_not_see_means_of_features(tensor, weight, way) -> None:
    """Tiles deviate; features do not beside their means."""
    far = 100 * tensor(128).detach()

    def function(x, w, norm):
        y = way((x + far) @ w).reshape(SHAPE)
        return functional.batch_norm(y, None, None, training=True) if norm else y * 2

    inputs = tensor(), weight
    (_, plain) = torch.autograd.grad((function(*inputs, True) ** 3).sum(), inputs)
    (_, found), report = run("default", lambda x, w: function(x, w, True) ** 3, *inputs)
    assert report["failed"]["matmul features"] == 1
    assert (found - plain).norm() <= 1e-4 * plain.norm()
    assert run("default", lambda x, w: function(x, w, False), *inputs)[1]["failed"] == {}


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_16_bits_have_a_range(tensor, scale) -> None:
    x = tensor()
    (found,), report = run("default", lambda x: functional.silu(x * scale), x)
    assert torch.equal(found, torch.autograd.grad(functional.silu(x * scale).sum(), x)[0])
    assert report["failed"] == {"silu range": 1}


def test_no_infinity_that_was_none(tensor) -> None:
    x = tensor()
    far = torch.zeros(SHAPE)
    far[3, 5] = 7e4
    found, _ = run("default", lambda x: functional.gelu(x + far), x)
    assert found[0].isfinite().all()


def test_operands_are_decided_together(tensor) -> None:
    """What one is rounded by is multiplied by the means of the other."""
    x, y = tensor(4, 4, 64, 32), tensor(4, 4, 64, 32)
    _, report = run(
        "default",
        lambda x, y: functional.scaled_dot_product_attention(x * 1, y + 100, x * 2),
        *(x, y),
    )
    assert codecs(report) == {}


@pytest.mark.parametrize(
    ("shape", "order", "groups", "runs", "expected"),
    [
        ((4, 6), (0, 1), (1,), 0, (4, 6, 1)),
        ((4, 6), (0, 1), (0,), 0, (1, 4, 6)),
        ((4, 6), (1, 0), (1,), 0, (1, 6, 4)),
        ((2, 3, 4, 5), (0, 1, 2, 3), (1,), 0, (2, 3, 20)),
        ((2, 3, 4, 5), (0, 2, 3, 1), (1,), 0, (40, 3, 1)),
        ((2, 3, 4, 5), (0, 1, 2, 3), (0, 1), 0, (1, 6, 20)),
        ((2, 3, 4, 5), (0, 2, 3, 1), (0, 1), 0, None),
        ((2, 6, 4, 5), (0, 1, 2, 3), (), 3, (1, 6, 40)),
        ((2, 6, 4, 5), (0, 2, 3, 1), (), 3, None),
        ((2, 3), (0, 1), (), 0, None),
    ],
)
def test_groups_as_they_lie_in_memory(shape, order, groups, runs, expected) -> None:
    assert kinds.grouping_of(shape, order, groups, runs) == expected


def test_nan_is_beyond_every_limit() -> None:
    nan = float("nan")
    for numbers in ([nan, 1, 1, 0], [0, nan, 1, 0], [float("inf"), 0, 0, float("inf")]):
        assert not Guard("tiles", "", (1, 1, 1)).within(numbers)[0]
    assert not Guard("range", "").within([nan, 1, 0])[0]
    assert Guard("tiles", "", (1, 1, 1)).within([0, 0, 0, 0]) == (True, True, True)


# ---- the window, as on a GPU ---------------------------------------------------------------------


@pytest.fixture
def late(monkeypatch):
    """Guards whose numbers come late; the events, and the size of a window."""
    events = []

    def late(numbers, _):
        events.append(Event())
        return numbers, events[-1]

    monkeypatch.setattr("cupy_training_ops.torch.guarding.late", late)
    return events


def windowed(limit):
    kept = cto.torch.compressed_activations()
    kept._guarding.window = Window(limit)
    return kept


def test_the_host_waits_only_where_the_window_is_full(tensor, weight, late) -> None:
    kept, xs = windowed(3 * NBYTES), [tensor() for _ in range(5)]
    with kept:
        made = [(x * 1) @ weight for x in xs]
        assert [event.waits for event in late] == [1, 1, 0, 0, 0]
        late[2].done = True
        made.append((xs[0] * 1) @ weight)
        assert [event.waits for event in late] == [1, 1, 0, 0, 0, 0]
    sum(y.sum() for y in made[:4]).backward()
    assert [event.waits for event in late] == [1, 1, 0, 1, 0, 0]
    assert kept.report()["window"] == 3 * NBYTES


def test_originals_go_when_their_codes_are_good(tensor, weight, late) -> None:
    kept, gone = windowed(8 * NBYTES), []
    with kept:
        for x in [tensor() for _ in range(4)]:
            y = x * 1
            gone.append(weakref.ref(y.untyped_storage()))
            total = (y @ weight).sum()
            for event in late[:-1]:
                event.done = True
            del y, x
        gc.collect()
        assert [each() is None for each in gone] == [True, True, True, False]
    assert total is not None


def test_a_late_failure_gives_the_original(tensor, weight, late) -> None:
    x, kept = tensor(), windowed(8 * NBYTES)
    with kept:
        total = ((x + 100) @ weight).sum()
    assert kept.report()["failed"] == {"matmul tiles": 1}
    (found,) = torch.autograd.grad(total, weight)
    assert torch.equal(found, torch.autograd.grad(((x + 100) @ weight).sum(), weight)[0])
    assert late[0].waits == 1


def test_a_late_failure_of_what_was_written_is_an_error(tensor, weight, late) -> None:
    x, kept = tensor(), windowed(8 * NBYTES)
    with kept:
        y = x + 100
        total = (y @ weight).sum()
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
    assert late[0].waits == 1


def test_the_window_holds_the_largest_tensor(tensor, weight, late) -> None:
    kept = windowed(0)
    with kept:
        made = [(tensor() * 1) @ weight for _ in range(3)]
    assert made
    assert kept.report()["window"] == NBYTES
    assert [event.waits for event in late] == [1, 1, 1]


def test_a_late_device_is_not_waited_for_while_a_share_of_a_step_waits(
    tensor, weight, late, monkeypatch
) -> None:
    monkeypatch.setattr("cupy_training_ops.codecs.kept.window.SHARE", 2)
    kept, waits = windowed(NBYTES), []
    for _ in range(2):
        late.clear()
        with kept:
            made = [((tensor() * 1) @ weight).sum() for _ in range(8)]
            waits.append([event.waits for event in late])
        sum(made).backward()
    assert waits == [[1] * 7 + [0], [1] * 4 + [0] * 4]
    assert kept.report()["window"] == 4 * NBYTES


def test_originals_wait_in_the_room_of_codes_that_are_to_come(
    tensor, weight, late, monkeypatch
) -> None:
    """A step like the last one has all of its codes in the end: 32 of a quarter's bytes each."""
    monkeypatch.setattr("cupy_training_ops.codecs.kept.window.SHARE", 1 << 40)
    kept, waits = windowed(NBYTES), []
    for _ in range(2):
        late.clear()
        with kept:
            made = [((tensor() * 1) @ weight).sum() for _ in range(3)]
            waits.append([event.waits for event in late])
            made += [((tensor() * 1) @ weight).sum() for _ in range(29)]
            waits.append([event.waits for event in late])
        sum(made).backward()
    assert waits == [[1, 1, 0], [1] * 31 + [0], [0, 0, 0], [1] * 31 + [0]]
    assert kept.report()["window"] == 3 * NBYTES


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("n_between", [0, 2])
def test_what_comes_behind_the_limit_changes_no_decision(weight, n_between, monkeypatch) -> None:
    """A norm centres the product of a tensor that is good for the product alone."""
    monkeypatch.setattr("cupy_training_ops.codecs.kept.window.SHARE", 1)
    kept, parts = windowed(NBYTES), []
    for _ in range(2):  # the first finds how much may wait
        x = (torch.randn(SHAPE) * 0.1 + 10 * torch.randn(SHAPE[1])).requires_grad_()
        with kept:
            product = (x * 1) @ weight
            parts = [((torch.randn(SHAPE).requires_grad_() * 1) @ weight) for _ in range(n_between)]
            total = functional.batch_norm(product, None, None, training=True)[0].sum()
        torch.autograd.grad(total + sum(part.sum() for part in parts), x)
    failed = kept.report()["failed"].get("matmul features", 0)
    assert failed == (0 if n_between else 2)


@pytest.mark.usefixtures("late")
def test_decisions_do_not_depend_on_when_they_are_made(weight) -> None:
    """The backward pass of the newest asks while the window is open."""
    found = []
    for limit in (0, 8 * NBYTES):
        x, w = torch.ones(SHAPE).cumsum(1).requires_grad_(), weight
        with windowed(limit):
            total = (torch.relu((x * 1) @ w) @ w).sum()
        found.append(torch.autograd.grad(total, (x, w)))
    assert all(map(torch.equal, *found))


def test_under_capture_decisions_of_steps_before_hold(tensor, weight, monkeypatch) -> None:
    from cupy_training_ops.torch import guarding

    kept, x = cto.torch.compressed_activations(), tensor()

    def step(far):
        with kept:
            total = ((x + far) @ weight).sum() + ((x * 1) @ weight).sum()
        return total

    step(100).backward()
    kept._guarding._later[x.device] = torch.zeros((), dtype=torch.int64)
    monkeypatch.setattr(guarding, "_is_capturing", lambda _: True)
    captured = step(100)
    assert kept.report()["failed_later"] == 0
    assert kept.report()["held"] == NBYTES // 4
    assert captured is not None
    monkeypatch.setattr(guarding, "_is_capturing", lambda _: False)
    fresh = cto.torch.compressed_activations()
    kept = fresh
    step(0).backward()
    kept._guarding._later[x.device] = torch.zeros((), dtype=torch.int64)
    monkeypatch.setattr(guarding, "_is_capturing", lambda _: True)
    captured = step(100)
    assert kept.report()["failed_later"] == 1  # what replays would show


# ---- beside other machinery ----------------------------------------------------------------------


class Writes(torch.autograd.Function):
    """Its gradient writes into what was saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        x.zero_()
        return slope


def test_who_writes_into_a_saved_tensor_changes_no_other_gradient(tensor) -> None:
    """Codes are decoded anew; what passed is an error, as plainly."""
    x = tensor()

    def function(x):
        y = torch.relu(x * 1)
        return (y * y).sum() + Writes.apply(y).sum()

    expected = torch.autograd.grad((torch.relu(x) ** 2 + torch.relu(x)).sum(), x)[0]
    (found,), report = run("lossless", function, x)
    assert report["shared"]
    assert torch.allclose(found, expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run("default", function, x)


def test_jagged_nested_tensors_are_of_another_class(tensor) -> None:
    parts = [tensor(200, 128).detach(), tensor(300, 128).detach()]
    kept = cto.torch.compressed_activations()
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    with kept:
        y = torch.relu(x * 1)
    assert kept.report()["passed"] == {"subclass": 0}
    assert y.requires_grad


def test_strided_nested_tensors_pass(tensor) -> None:
    parts = [tensor(200, 128).detach(), tensor(300, 128).detach()]
    kept = cto.torch.compressed_activations()
    with pytest.warns(UserWarning, match="nested tensors"):
        x = torch.nested.nested_tensor(parts, requires_grad=True)
    with kept:
        y = torch.relu(x * 1)
    y.backward(y.detach())
    assert kept.report()["passed"]["layout"] >= 0
    assert x.grad is not None


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # in PyTorch itself
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_are_not_compiled_anew(tensor, backend) -> None:
    count = []
    chosen = torch._dynamo.lookup_backend(backend)

    def counted(graph, inputs):
        count.append(graph)
        return chosen(graph, inputs)

    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU())
    compiled, x = torch.compile(model, backend=counted), tensor()
    compiled(x)
    for _ in range(2):
        run("default", compiled, x)
        compiled(x)
    assert len(count) == 1
    torch._dynamo.reset()
    run("default", compiled, x)
    compiled(x)
    assert len(count) == 2


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # in PyTorch itself
def test_eager_layers_beside_a_compiled_one_are_compressed(tensor, weight) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(nn.Sequential(nn.Linear(128, 128), nn.ReLU()), backend="aot_eager")
    with cto.torch.compressed_activations() as kept:
        total = (torch.relu(compiled(tensor()) * 1) @ weight).sum()
        assert isinstance(torch.overrides._get_current_function_mode(), consumers.Consumers)
    assert torch.overrides._get_current_function_mode() is None
    assert kept.report()["consumers"].keys() == {"relu msfp15_signed"}
    total.backward()


def test_contexts_within_contexts_and_threads(tensor, weight) -> None:
    outer, inner = (cto.torch.compressed_activations() for _ in range(2))
    inputs = [tensor() for _ in range(4)]
    expected = [torch.autograd.grad(torch.relu(x).sum(), x)[0] for x in inputs]
    found = [None] * 4

    def work(i):
        for _ in range(10):
            with outer:
                first = torch.relu(inputs[i] * 1).sum()
                with inner, outer:
                    total = first + torch.relu((inputs[i] * 1) @ weight).sum() * 0
            found[i] = torch.autograd.grad(total, inputs[i])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(torch.equal, found, expected))
    assert outer.report()["tensors"] == 4 * 10 * 3
    assert inner.report()["tensors"] == 0
    assert outer.report()["held"] == 0


def test_gradients_of_gradients(tensor, weight) -> None:
    x = tensor()

    def second(context):
        with context:
            total = (functional.softplus(torch.relu(x @ weight) @ weight) ** 2).mean()
            (slope,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, weight))

    expected = second(contextlib.nullcontext())
    for one, other in zip(second(cto.torch.compressed_activations()), expected, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()


def test_several_backwards_of_one_graph_are_the_same(tensor, weight) -> None:
    with cto.torch.compressed_activations():
        total = (functional.gelu(torch.relu(tensor() @ weight) @ weight)).sum()
    first, second = (torch.autograd.grad(total, weight, retain_graph=True) for _ in range(2))
    assert torch.equal(first[0], second[0])


def test_masks_are_bits(tensor) -> None:
    x = tensor(256, 512)
    (found,), report = run("default", lambda x: torch.where(x > 0, x * 2, x * 3), x)
    assert torch.equal(found, torch.where(x > 0, 2.0, 3.0))
    assert report["names"] == {
        "NoneType pack1": {"tensors": 1, "shared": 0, "before": 256 * 512, "after": 256 * 64}
    }


# ---- policies ------------------------------------------------------------------------------------


def test_a_function_may_be_told_the_consumer(tensor) -> None:
    seen = []

    def policy(name, dtype, shape, need, *, consumer):
        seen.append((name, dtype, shape, need, consumer))
        return "pack16" if consumer == "gelu" else None

    _, report = run(policy, lambda x: functional.gelu(x * 1).exp(), tensor())
    assert set(seen) == {
        ("MulBackward0", "float32", SHAPE, "value", "gelu"),
        ("ExpBackward0", "float32", SHAPE, "value", "exp"),
    }
    assert codecs(report) == {"gelu pack16": 1}


def test_what_was_default_has_a_name(tensor) -> None:
    x = tensor()
    (found,), report = run("plain_msfp15", lambda x: torch.relu(x * 1), x)
    assert report["names"].keys() == {"ReluBackward0 msfp15"}
    assert not torch.equal(found, (x > 0).float())  # small results became 0


def test_a_warning_says_that_little_was_compressed(tensor) -> None:
    kept = cto.torch.compressed_activations()
    x = tensor(4096, 128)
    said = r"0 bytes were compressed, \d+ were not \(\d+ as 'exact'"
    with pytest.warns(UserWarning, match=said), kept:
        (x * 1).exp().log()
    with kept:  # once
        (x * 1).exp().log()
