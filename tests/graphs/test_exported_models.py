# SPDX-License-Identifier: MIT
"""Models that PyTorch exported, trained here and there: ten steps in float64.

Learning rates and momenta are exact in float32, in which ONNX writes numbers.
"""

from __future__ import annotations

import io
import math
import warnings

import numpy as np
import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch")
nn = torch.nn
functional = nn.functional

STEPS, RATE = 10, 0.125


class Convolutions(nn.Module):
    """Convolutions with batch norm and pools, a residual sum, and a dropout of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4, momentum=0.25)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.norm2 = nn.BatchNorm2d(4, momentum=0.25)
        self.down = nn.Conv2d(4, 6, 3, stride=2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 3, 2, 1)
        x = functional.relu(x + self.norm2(self.second(x)))
        x = functional.avg_pool2d(functional.leaky_relu(self.down(x), 0.25), 2, 1)
        x = functional.dropout(functional.adaptive_avg_pool2d(x, 1).flatten(1), 0.0, self.training)
        return self.head(x)


class Block(nn.Module):
    """A transformer's block, causal, in front of a mean and a layer of scores."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(11, width)
        self.places = nn.Parameter(torch.randn(6, width) / 4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.places
        x = x + self.attention(self.norm1(x))
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return self.head(x.mean(1))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        mixed = scores.masked_fill(~mask, -1e9).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class UNet(nn.Module):
    """Down and up again, with a skip, a bilinear and a nearest upsampling, and scores of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.below = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.lowest = nn.Conv2d(6, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.up, self.out = nn.Conv2d(12, 4, 3, padding=1), nn.ConvTranspose2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = functional.silu(self.into(x))
        b = functional.silu(self.norm(self.below(functional.max_pool2d(a, 2))))
        c = functional.silu(self.lowest(functional.avg_pool2d(b, 2)))
        c = functional.interpolate(c, scale_factor=2, mode="nearest")
        b = functional.silu(self.up(torch.cat([b, c], 1)))
        b = functional.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(torch.cat([a, b], 1))


class LocalResponses(nn.Module):
    """A convolution and LocalResponseNorm, which is written with a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3), nn.LocalResponseNorm(3, alpha=0.5)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.first(x)).mean((2, 3)))


def states_of(x: torch.Tensor, first: torch.Tensor, again: torch.Tensor) -> torch.Tensor:
    """The states of a cell, written into a list."""
    states: list[torch.Tensor] = []
    state = torch.zeros_like(x[:, 0])
    for t in range(x.size(1)):
        state = torch.tanh(x[:, t] @ first + state @ again)
        states.append(state)
    return torch.stack(states, 1)


class Loop(nn.Module):
    """A cell in a loop, which is exported as one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.first, self.again = (nn.Parameter(torch.randn(8, 8) / 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            run = torch.jit.script(states_of)
        return self.head(run(self.embed(x), self.first, self.again).mean(1))


def pictures(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((4, 2, 11, 10)), rng.integers(0, 3, 4)


def sentences(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, 11, (4, 6)), rng.integers(0, 3, 4)


def segments(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((2, 2, 8, 12)), rng.integers(0, 3, (2, 8, 12))


MODELS = {
    "convolutions": (Convolutions, pictures),
    "transformer": (Block, sentences),
    "u-net": (UNet, segments),
    "local responses": (LocalResponses, pictures),
    "loop": (Loop, sentences),
}


def exported(model: nn.Module, x: torch.Tensor, opset: int, is_dynamic: bool) -> bytes:
    """The model as torch.onnx.export writes it, in the mode that it is in.

    A model in evaluation is written with one initializer for all parameters that are equal.
    """
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (x,),
            stream,
            dynamo=False,
            opset_version=opset,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["x"],
            output_names=["scores"],
            dynamic_axes={"x": {0: "n"}, "scores": {0: "n"}} if is_dynamic else None,
        )
    return stream.getvalue()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("mode", "opset", "is_dynamic"),
    [
        pytest.param("training", 17, False, id="training"),
        pytest.param("evaluation", 20, True, id="evaluation", marks=pytest.mark.thorough),
    ],
)
def test_ten_steps_are_those_of_pytorch(
    name: str, mode: str, opset: int, is_dynamic: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    make, batch = MODELS[name]
    model = make().double().train(mode == "training")
    batches = [batch(rng) for _ in range(STEPS)]
    file = exported(model, torch.tensor(batches[0][0]), opset, is_dynamic)
    session = cto.onnx.TrainingSession.from_model(file, loss="cross_entropy", optimizer="SGD")
    session.lr = RATE
    model.train()
    ours = list(model.parameters())
    for x, labels in batches:
        loss = functional.cross_entropy(model(torch.tensor(x)), torch.tensor(labels))
        for array, gradient in zip(ours, torch.autograd.grad(loss, ours), strict=True):
            array.data -= RATE * gradient
        assert abs(float(session.step(x, labels)) - loss.item()) < 1e-9
    state = {k: array for k, array in model.state_dict().items() if "num_batches" not in k}
    assert session.parameters.keys() == state.keys()
    for key, array in state.items():
        np.testing.assert_allclose(
            session.parameters[key], array.detach(), rtol=0, atol=1e-8, err_msg=key
        )
    model.eval()
    x, labels = batches[0]
    loss = functional.cross_entropy(model(torch.tensor(x)), torch.tensor(labels))
    assert abs(float(session.eval(x, labels)) - loss.item()) < 1e-8


def exported_by_dynamo(model: nn.Module, x: torch.Tensor, opset: int) -> bytes:
    """The model as the newer exporter writes it, with batch norms as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, (x,), dynamo=True, opset_version=opset, optimize=False, verbose=False
        )
    return program.model_proto.SerializeToString()


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize(
    ("name", "opset"),  # torch.export takes no scripted function
    [
        (name, opset)
        for name in MODELS
        for opset in (17, 18, 23)
        if (name, opset > 17) != ("loop", 1)
    ],
)
def test_ten_steps_in_float32(name, opset, optimizer, rng) -> None:
    """Losses and, of SGD, parameters; AdamW moves by chance what has a gradient of rounding."""
    kind, batch = MODELS[name]
    x, labels = batch(rng)
    x = torch.tensor(x.astype(np.float32) if x.dtype == np.float64 else x)
    torch.manual_seed(int(rng.integers(2**31)))
    model = kind().train()
    if opset == 17:
        file = exported(model, x, opset, False)
    else:
        pytest.importorskip("onnxscript")
        file = exported_by_dynamo(model, x, opset)
    session = cto.onnx.TrainingSession.from_model(file, loss="cross_entropy", optimizer=optimizer)
    session.lr = rate = 2**-9
    steps = {
        "AdamW": lambda p: torch.optim.AdamW(p, rate, (0.9, 0.999), 1e-8, 0.01),
        "SGD": lambda p: torch.optim.SGD(p, rate),
    }[optimizer](model.parameters())
    for _ in range(STEPS):
        steps.zero_grad()
        loss = functional.cross_entropy(model(x), torch.tensor(labels))
        loss.backward()
        steps.step()
        difference = abs(float(session.step(x.numpy(), labels)) - loss.item())
        assert difference < (1e-5 if optimizer == "SGD" else 1e-4)
    for key, array in model.named_parameters() if optimizer == "SGD" else ():
        np.testing.assert_allclose(session.parameters[key], array.detach(), rtol=0, atol=1e-4)
