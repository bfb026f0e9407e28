# SPDX-License-Identifier: MIT
"""`convert` of residual networks, if it is asked for: training, left modules, undo, export."""

from __future__ import annotations

import copy
import functools
import pickle
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch import nn  # noqa: E402

import cupy_training_ops.torch as cto  # noqa: E402
from cupy_training_ops import ArgumentError  # noqa: E402
from cupy_training_ops.torch import image_models  # noqa: E402

from . import residual_networks  # noqa: E402
from .residual_networks import BasicBlock, Bottleneck, ResNet  # noqa: E402

ALSO = image_models.NAMES
compiled = pytest.mark.filterwarnings("ignore")  # torch.compile warns of itself
blocks = pytest.mark.parametrize("block", [BasicBlock, Bottleneck])


@pytest.fixture
def network(seed):
    """Makes a network and images in float64, the same for the same block."""

    def made(block, *, is_last=False):
        torch.manual_seed(seed)
        model = ResNet(block).double()
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.normal_(norm.weight)
                nn.init.normal_(norm.bias)
        images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
        if is_last:
            model = model.to(memory_format=torch.channels_last)
            images = images.contiguous(memory_format=torch.channels_last)
        return model, images

    return made


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of the one pass."""
    count = [0]
    ours = image_models.batch_norm_relu

    def counting(*arguments, **named):
        count[0] += 1
        return ours(*arguments, **named)

    monkeypatch.setattr(image_models, "batch_norm_relu", counting)
    return count


def step(model, images):
    """Train for three steps; outputs, and the state after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    outputs = []
    for _ in range(3):
        optimizer.zero_grad()
        outputs.append(model(images))
        outputs[-1].square().mean().backward()
        optimizer.step()
    return outputs, model.state_dict()


def assert_alike(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)


@blocks
@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
def test_training_is_that_of_the_plain_network(network, calls, block, is_last) -> None:
    plain, images = network(block, is_last=is_last)
    model = copy.deepcopy(plain)
    conversion = cto.convert(model, also=ALSO)
    names = [*conversion.swapped.values()]
    assert names.count(block.__name__) == 8
    assert names.count("ResNet") == 1
    assert [*model.state_dict()] == [*plain.state_dict()]
    assert_alike(step(model, images), step(plain, images))
    names = [name for name, m in plain.named_modules() if isinstance(m, nn.BatchNorm2d)]
    n_calls = 3 * sum("downsample" not in name for name in names)
    assert calls[0] == n_calls
    assert_alike(model.eval()(images), plain.eval()(images))
    assert calls[0] == n_calls
    conversion.undo()
    assert type(model) is ResNet
    assert {type(m) for m in model.modules()} == {type(m) for m in plain.modules()}


@blocks
def test_nothing_is_swapped_unless_it_is_asked_for(network, block) -> None:
    model, _ = network(block)
    assert cto.convert(model).swapped == {}
    assert set(cto.convert(model, also=["ResNet"]).swapped.values()) == {"ResNet"}
    assert set(cto.convert(model, also={block.__name__}).swapped.values()) == {block.__name__}
    assert cto.convert(model, also=ALSO).swapped == {}  # a second time


@pytest.mark.parametrize("also", ["ResNet", ["Conv2d"], ("ResNet", None), ("ResNet", 3)])
def test_other_names_are_refused(network, also) -> None:
    model, _ = network(BasicBlock)
    with pytest.raises(ArgumentError, match="convert: also: expected names of BasicBlock"):
        cto.convert(model, also=also)
    assert type(model) is ResNet


class Derived(BasicBlock):
    __module__ = "models"


def test_what_is_left_says_why() -> None:
    hooked = BasicBlock(8, 8)
    hooked.bn2.register_forward_hook(lambda *_: None)
    patched = BasicBlock(8, 8)
    patched.relu.forward = torch.sigmoid
    model = nn.ModuleDict(
        {
            "subclass": Derived(8, 8),
            "hooked": hooked,
            "patched": patched,
            "synchronized": BasicBlock(8, 8, norm=nn.SyncBatchNorm),
            "elu": BasicBlock(8, 8, relu=nn.ELU),
            "sequence": nn.Sequential(nn.SyncBatchNorm(8), nn.ReLU()),
        }
    )
    left = cto.convert(model, also=ALSO).left
    assert left == {
        "subclass": "a subclass of BasicBlock, which may compute something else",
        "hooked": "bn2 has hooks, which would not be called",
        "patched": "relu has a forward pass of its own",
        "synchronized": "bn1 is a SyncBatchNorm, not PyTorch's own BatchNorm2d",
        "elu": "relu is a ELU, not a ReLU",
        "sequence": "0 is a SyncBatchNorm, not PyTorch's own BatchNorm2d",
    }


def test_what_happens_to_parts_later_is_seen(network, calls) -> None:
    """With hooks, evaluation of a batch norm, other classes of parts the module's own pass runs."""
    model, _ = network(BasicBlock)
    cto.convert(model, also=("BasicBlock",))
    block, x = model.layer1[0], torch.randn(2, 8, 8, 8, dtype=torch.float64)
    seen = []
    block(x)
    assert calls[0] == 2
    hook = block.relu.register_forward_hook(lambda *_: seen.append(1))
    block(x)
    assert (len(seen), calls[0]) == (2, 2)
    hook.remove()
    block.bn2.eval()
    block(x)
    assert calls[0] == 2
    block.bn2.train()
    with_hook = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    try:
        block(x)
    finally:
        with_hook.remove()
    assert (len(seen) > 4, calls[0]) == (True, 2)
    block.bn1 = nn.GroupNorm(2, 8).double()
    block(x)
    assert calls[0] == 2


PASSES = (BasicBlock, "forward"), (ResNet, "forward"), (ResNet, "_forward_impl")


def twice(function, is_wrapped):
    def doubled(self, x):
        return 2 * function(self, x)

    return functools.wraps(function)(doubled) if is_wrapped else doubled


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["", "wrapped"])
@pytest.mark.parametrize(("cls", "name"), PASSES)
def test_a_pass_that_was_put_into_a_class_is_the_one_that_runs(
    network, monkeypatch, cls, name, is_wrapped
) -> None:
    (plain, images), (model, _) = network(BasicBlock), network(BasicBlock)
    cto.convert(model, also=ALSO)
    own = getattr(cls, name)
    with monkeypatch.context() as patches:
        patches.setattr(cls, name, twice(own, is_wrapped))
        assert_alike(model(images), plain(images))
        conversion = cto.convert(plain, also=(cls.__name__,))
        assert set(conversion.left.values()) == {
            f"the forward pass of {cls.__name__} is not torchvision's"
        }
    assert_alike(model(images), plain(images))


def test_a_pass_of_one_network_alone_is_the_one_that_runs(network) -> None:
    model, images = network(BasicBlock)
    cto.convert(model, also=ALSO)
    model._forward_impl = lambda x: 2 * x
    assert torch.equal(model(images), 2 * images)


def test_a_pass_that_was_put_into_a_class_of_sequences_is_the_one_that_runs(monkeypatch) -> None:
    model, images = Kind(nn.BatchNorm2d(4), nn.ReLU()), torch.randn(2, 4, 3, 3)
    cto.convert(model, also=("Sequential",))
    for cls in (Kind, nn.Sequential):
        with monkeypatch.context() as patches:
            patches.setattr(cls, "forward", lambda *_: 3)
            assert model(images) == 3
            again = cto.convert(Kind(nn.BatchNorm2d(4), nn.ReLU()), also=("Sequential",))
            assert not again.swapped
    assert model(images).min() == 0


class Kind(nn.Sequential):
    """A subclass without a forward pass of its own, as torchvision has."""


class Other(nn.Sequential):
    def forward(self, input):
        return super().forward(input) * 2


@pytest.mark.parametrize("cls", [nn.Sequential, Kind])
def test_a_batch_norm_and_its_relu_in_a_sequence(calls, cls) -> None:
    torch.manual_seed(0)
    plain = cls(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.BatchNorm2d(8),
        nn.ReLU(True),
        nn.Conv2d(8, 4, 3),
    )
    model, images = copy.deepcopy(plain), torch.randn(3, 3, 9, 9)
    assert cto.convert(model, also=("Sequential",)).swapped == {"": cls.__name__}
    actual, expected = step(model, images), step(plain, images)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert calls[0] == 6
    assert type(model[1:3])(*model[1:3])(torch.randn(2, 8, 4, 4)).min() == 0


def test_sequences_that_have_no_such_neighbours_or_another_pass() -> None:
    model = nn.ModuleList(
        (
            nn.Sequential(nn.BatchNorm2d(4), nn.Sigmoid(), nn.ReLU()),
            nn.Sequential(),
            Other(nn.BatchNorm2d(4), nn.ReLU()),
        )
    )
    conversion = cto.convert(model, also=("Sequential",))
    assert conversion.swapped == {}
    assert conversion.left == {"2": "a subclass of Sequential with a forward pass of its own"}


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm2d(4, momentum=None), (3, 4, 5, 6)),
        (nn.BatchNorm2d(4, affine=False), (3, 4, 5, 6)),
        (nn.BatchNorm2d(4, track_running_stats=False), (3, 4, 5, 6)),
        (nn.BatchNorm1d(4), (7, 4)),
        (nn.BatchNorm3d(4, eps=1e-2, momentum=0.5), (2, 4, 2, 3, 4)),
    ],
    ids=str,
)
def test_forms_of_batch_norms(calls, norm, shape) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(copy.deepcopy(norm), nn.ReLU()).double()
    model, x = copy.deepcopy(plain), torch.randn(shape, dtype=torch.float64)
    cto.convert(model, also=("Sequential",))
    for _ in range(3):
        gradients = [
            torch.autograd.grad(m(x.requires_grad_()).square().sum(), x)[0] for m in (model, plain)
        ]
        assert_alike(*gradients)
        x = x.detach() + 1
    assert calls[0] == 3
    assert_alike(model.state_dict(), plain.state_dict())


def test_images_of_a_wrong_rank_are_refused_as_by_pytorch() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    cto.convert(model, also=("Sequential",))
    with pytest.raises(ValueError, match="expected 4D input"):
        model(torch.ones(3, 4))


@blocks
def test_copies_and_pickles_go_on(network, calls, block, monkeypatch) -> None:
    for name in ("torchvision", "torchvision.models", residual_networks.MODULE):
        monkeypatch.setitem(sys.modules, name, residual_networks)
    model, images = network(block)
    cto.convert(model, also=ALSO)
    expected = model(images)
    n = calls[0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_alike(other(images), expected)
        assert calls[0] > n
        n = calls[0]


@compiled
@blocks
def test_compiled_has_pytorchs_operators_without_a_break(network, block) -> None:
    plain, images = network(block)
    model, graphs = copy.deepcopy(plain), []

    def backend(graph, _):
        graphs.append(graph.graph)
        return graph.forward

    cto.convert(model, also=ALSO)
    function = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    outputs = function(images), plain(images)
    assert "cto" not in str(graphs)
    for output in outputs:
        output.square().mean().backward()
    assert_alike(*outputs)
    assert_alike(model.state_dict(), plain.state_dict())
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert_alike(a.grad, b.grad)


@compiled
@blocks
def test_exported_programs_and_traces_have_pytorchs_operators(network, calls, block) -> None:
    model, images = network(block)
    cto.convert(model, also=ALSO)
    program = torch.export.export(model, (images,))
    assert "cto" not in str(program.graph)
    traced = torch.jit.trace(model, images, check_trace=False)
    assert "cto" not in str(traced.inlined_graph)
    graph = torch.fx.symbolic_trace(model).graph
    assert "cto" not in str(graph)
    assert calls[0] == 0
