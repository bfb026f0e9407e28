# SPDX-License-Identifier: MIT
"""The zoo compiled with codes inside of its graphs, beside the same graphs without.

AOTAutograd without Inductor; each run draws some, and `-m thorough` takes all.
"""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

import cupy_training_ops as cto  # noqa: E402

from ..graph_codes.compiled import backend  # noqa: E402
from .functions import FUNCTIONS  # noqa: E402
from .measured import difference  # noqa: E402
from .models import MODELS  # noqa: E402
from .parts import ROWS, WIDTH  # noqa: E402

# Dynamo's are not ours, and ours say that a graph has no codes
pytestmark = pytest.mark.filterwarnings("ignore", "error:activation_codes")
TWICE = {"gradient_penalty"}  # compiled graphs have no second derivative
NAMES = sorted(
    [
        *(("function", name) for name in FUNCTIONS if name not in TWICE),
        *(("deep", name) for name in FUNCTIONS if name not in TWICE),
        *(("model", name) for name in MODELS),
    ]
)
DRAWN = 6


def gradients_of_function(name, seed, is_deep, codes):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, WIDTH, generator=g)
    weights = [
        torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=g) * WIDTH**-0.5)
        for _ in range(1 + is_deep)
    ]

    def total(x, *weights):
        y = x @ weights[0]
        if is_deep:
            y = 1.4 * torch.relu(y) @ weights[1]
        return FUNCTIONS[name](y, torch.Generator().manual_seed(seed))

    torch._dynamo.reset()
    actual = torch.compile(total, backend=backend(codes))(x, *weights)
    return list(torch.autograd.grad(actual, weights))


def gradients_of_model(name, seed, codes):
    torch.manual_seed(seed)
    model, x = MODELS[name]()
    weight = torch.randn_like(model(x).detach())
    torch.manual_seed(0)  # of dropout
    torch._dynamo.reset()
    total = (torch.compile(model, backend=backend(codes))(x) * weight).sum()
    return list(torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad]))


def assert_near(kind, name, seed):
    actual = []
    codes = cto.torch.activation_codes(least=1 << 10)
    for given in (None, codes):
        if kind == "model":
            actual.append(gradients_of_model(name, seed, given))
        else:
            actual.append(gradients_of_function(name, seed, kind == "deep", given))
    result = difference(*actual, codes.report())
    assert result.is_finite, f"{kind} {name}, seed {seed}"
    assert result.whole <= 0.02, f"{kind} {name}, seed {seed}"
    if not codes.report()["coded"]:
        assert result.is_equal, f"{kind} {name}, seed {seed}"


def test_a_drawn_share_is_near(seed):
    for kind, name in random.Random(seed).sample(NAMES, DRAWN):
        assert_near(kind, name, seed % 1000)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_gradients_are_near(kind, name):
    assert_near(kind, name, 0)
