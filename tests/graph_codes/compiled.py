# SPDX-License-Identifier: MIT
"""Models through AOTAutograd with a partitioner and without Inductor, which would take minutes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.lowering  # decompositions of max-pool look it up
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as f

from cupy_training_ops.torch.graph_codes import ActivationCodes

with warnings.catch_warnings():  # of what Inductor imports
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch._inductor.fx_passes.post_grad import view_to_reshape

WIDTH = 64
Graphs = list[tuple[torch.fx.GraphModule, torch.fx.GraphModule, int]]


def backend(codes: ActivationCodes | None, graphs: Graphs | None = None) -> Any:
    """What torch.compile takes; `graphs` gets both graphs, and how many outputs are the user's."""
    split: Callable[..., Any] = min_cut_rematerialization_partition
    if codes is not None:
        split = codes["custom_partitioner_fn"]

    def partition(gm: Any, inputs: Any, **settings: Any) -> Any:
        forward, backward = split(gm, inputs, **settings | {"compiler": "inductor"})
        for graph in (forward, backward):  # as Inductor does, for layouts may be others
            view_to_reshape(graph)
            graph.recompile()
        if graphs is not None:
            graphs.append((forward, backward, settings["num_fwd_outputs"]))
        return forward, backward

    def run(gm: Any, _: Any) -> Any:
        return make_boxed_func(gm.forward)

    return aot_autograd(
        fw_compiler=run,
        bw_compiler=run,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )


def step(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    codes: ActivationCodes | None,
    graphs: Graphs | None = None,
    **settings: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss and the gradients of all parameters."""
    torch._dynamo.reset()
    model.zero_grad()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        loss = torch.compile(model, backend=backend(codes, graphs), **settings)(*inputs)
        loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients


def errors(plain: dict[str, Tensor], coded: dict[str, Tensor]) -> list[float]:
    """Relative errors of matrices and of weights of convolutions, the smallest first."""
    return sorted(
        float((coded[name] - x).norm() / x.norm()) for name, x in plain.items() if x.dim() > 1
    )


class RmsNorm(nn.Module):
    """As people write it by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


class Block(nn.Module):
    """A decoder's block: attention, and a gated layer or one with GELU."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module], is_gated: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norm(width), norm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gate = nn.Linear(width, 2 * width) if is_gated else None

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, 2)
        ]
        mixed = f.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        if self.gate is None:
            return x + self.down(f.gelu(self.up(y), approximate="tanh"))
        return x + self.down(f.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Two blocks, and the mean of squares as loss."""

    def __init__(self, norm: Callable[[int], nn.Module], is_gated: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(64, norm, is_gated) for _ in range(2)))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return (self.blocks(x) * target).sum()


class Convolutions(nn.Module):
    """Convolutions with batch norms and ReLUs, one of them around another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.second = nn.Sequential(
            nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 1, bias=False), nn.BatchNorm2d(32),
        )  # fmt: skip

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = self.first(x)
        return (torch.relu(self.second(x) + x) * target).sum()


class Layer(nn.Module):
    """A norm and two products around GELU; PyTorch compiles no `nn.Sequential` for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(f.gelu(self.up(self.norm(x))))


class Layers(nn.Module):
    """Two layers with a norm and GELU, and what stands between them."""

    def __init__(
        self,
        between: Callable[[Tensor], Tensor] = lambda x: x,
        wrap: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x),
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(2))
        self.between, self.wrap = between, wrap

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.blocks
        x = self.between(x + self.wrap(first, x))
        return (x + self.wrap(last, x)).square().mean()


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "gelu": (lambda: Decoder(nn.LayerNorm, is_gated=False), (4, 32, 64), (4, 32, 64)),
    "gated": (lambda: Decoder(RmsNorm, is_gated=True), (4, 32, 64), (4, 32, 64)),
    "convolutions": (Convolutions, (8, 3, 16, 16), (8, 32, 8, 8)),
}


def made(name: str, seed: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A model and what it takes."""
    make, shape, target = MODELS[name]
    torch.manual_seed(seed)
    return make(), (normal(seed, *shape), normal(seed + 1, *target))
