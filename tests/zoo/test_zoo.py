# SPDX-License-Identifier: MIT
"""Gradients with codes beside plain ones: of a zoo of functions, losses and models.

A third was set aside before thresholds were chosen. Each run draws some; `-m thorough` takes all.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch import nn  # noqa: E402

from . import shaped  # noqa: E402
from .measured import (  # noqa: E402
    FUNCTIONS,
    MODELS,
    Found,
    Step,
    compared,
    of_function,
    of_model,
    saved_bytes,
    stepped,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's, and of ours where all is small
NAMES = sorted([*(("function", name) for name in FUNCTIONS), *(("model", n) for n in MODELS)])
SET_ASIDE = NAMES[2::3]  # looked at once, when thresholds were chosen
DRAWN = 24
MEASURED = 1e-3  # of the largest norm: gradients that are 0 but for rounding are no measure


def step_of(kind: str, name: str, seed: int) -> Step:
    return of_function(name, seed) if kind == "function" else of_model(name, seed)


def assert_near(kind: str, name: str) -> None:
    for seed in range(3):
        actual = compared(step_of(kind, name, seed))
        assert actual.is_finite, f"{name}, seed {seed}"
        if not actual.report["before"]:
            assert actual.is_equal, f"{name}, seed {seed}"
        assert actual.whole <= 0.02, f"{name}, seed {seed}"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_there_is_a_zoo() -> None:
    assert len(NAMES) >= 60
    assert len(SET_ASIDE) >= len(NAMES) // 3


def test_a_drawn_share_is_near_plain_training(seed) -> None:
    for kind, name in random.Random(seed).sample(NAMES, DRAWN):
        assert_near(kind, name)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "name"), NAMES, ids="-".join)
def test_gradients_are_near_plain_training(kind, name) -> None:
    assert_near(kind, name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_behind_two_layers_too(name) -> None:
    actual = compared(of_function(name, 0, is_deep=True))
    assert actual.is_finite
    assert actual.whole <= 0.02


# ---- networks in the shapes that people train ----------------------------------------------------


def matrices(step: Step, actual: Found) -> list[float]:
    """The errors of weights, in the order of layers."""
    plain = step(contextlib.nullcontext())
    least = MEASURED * max(float(each.norm()) for each in plain)
    pairs = zip(actual.each, plain, strict=True)
    return [error for error, g in pairs if g.dim() > 1 and float(g.norm()) >= least]


def measured(make, seed: int, *given, policy: str = "default"):
    """Errors of weights, all in one, and how many times less is saved."""
    step = make(seed, *given)
    actual = compared(step, policy)
    before, after = saved_bytes(actual.report)
    return actual, matrices(step, actual), before / after


@pytest.mark.parametrize("kaiming", [False, True], ids=["default", "kaiming"])
@pytest.mark.parametrize("depth", [2, 6])
def test_layers_with_relu(depth, kaiming) -> None:
    actual, errors, ratio = measured(shaped.multilayer, 0, depth, kaiming)
    assert actual.each[0] <= 0.001
    assert max(errors) <= 0.015
    assert ratio >= 3


DEEP = list(itertools.product([2, 3, 4, 6, 8, 12, 16, 24], [False, True], range(3)))
# All samples look alike to its last layers, and slopes of samples nearly cancel: what is left is
# multiplied by one vector of activations, whose rounding is 1.76 %.
CANCELS = 12, False, 2


@pytest.mark.thorough
@pytest.mark.parametrize(("depth", "kaiming", "seed"), [case for case in DEEP if case != CANCELS])
def test_deep_layers_with_relu(depth, kaiming, seed) -> None:
    actual, errors, ratio = measured(shaped.multilayer, seed, depth, kaiming)
    assert actual.each[0] <= 0.001
    assert max(errors) <= 0.015
    assert ratio >= 3


@pytest.mark.thorough
def test_deep_layers_whose_slopes_cancel() -> None:
    actual, errors, ratio = measured(shaped.multilayer, CANCELS[-1], *CANCELS[:-1])
    assert actual.each[0] <= 0.001
    assert 0.015 < max(errors) <= 0.018
    assert ratio >= 3


def by_hand(y):
    return (y - y.mean(0)) / (y.var(dim=0) + 1e-5).sqrt()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(64), by_hand], ids=["norm", "by hand"])
def test_deep_layers_whose_slopes_a_norm_makes_cancel(norm) -> None:
    """All samples look alike to the last layers, and sums of what the norm sends back are 0."""
    torch.manual_seed(0)
    layers = [nn.Linear(256, 256 if i < 12 else 64) for i in range(13)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]
    x, target = torch.randn(256, 256), torch.arange(256) % 64
    step = stepped(model, lambda: nn.functional.cross_entropy(norm(model(x)), target))
    actual = compared(step)
    assert actual.whole <= 0.005
    assert max(matrices(step, actual)) <= 0.02
    assert actual.report["tensors"] >= 4  # of the first layers


SHAPED = {  # mean and worst error, and how many times less is saved
    "resnet13": (shaped.resnet13, 0.02, 0.03, 3.4),
    "resnet50": (shaped.resnet50, 0.03, 0.04, 3.4),
    "transformer": (shaped.transformer, 0.015, 0.02, 2.4),
    "unet": (shaped.unet, 0.015, 0.02, 2.8),
}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SHAPED)
def test_networks(name, seed) -> None:
    make, mean, worst, least = SHAPED[name]
    actual, errors, ratio = measured(make, seed)
    assert actual.is_finite
    assert sum(errors) / len(errors) <= mean
    assert max(errors) <= worst
    assert ratio >= least


@pytest.mark.thorough
def test_a_resnet_in_bfloat16_saves_little_less_than_half() -> None:
    """Of half its width: small tensors and indices of pools weigh as little as in the whole."""
    _, _, ratio = measured(shaped.resnet50, 0, torch.bfloat16, 32)
    assert ratio >= 1.85


BFLOAT16 = {
    "layers": lambda seed, dtype: shaped.multilayer(seed, 6, True, dtype),
    "resnet13": shaped.resnet13,
    "transformer": lambda seed, dtype: shaped.transformer(seed, 4, 128, dtype),
}


# How many times bfloat16's own error codes may add. A transformer's gradients have no more than
# 0.44 % of that, and codes of a product's input are 1.4 % off.
TIMES = {"layers": 2, "resnet13": 2, "transformer": 3.3}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BFLOAT16)
def test_codes_of_bfloat16_add_little_to_its_own_error(name, seed) -> None:
    import cupy_training_ops as cto

    kept = cto.torch.compressed_activations("default")
    narrow = BFLOAT16[name](seed, torch.bfloat16)
    steps = BFLOAT16[name](seed, None), narrow, narrow
    contexts = contextlib.nullcontext(), contextlib.nullcontext(), kept
    wide, plain, coded = (
        torch.cat([g.double().flatten() for g in step(context)])
        for step, context in zip(steps, contexts, strict=True)
    )
    assert kept.report()["tensors"]
    assert (coded - plain).norm() <= TIMES[name] * (plain - wide).norm()


@pytest.mark.thorough
def test_wide_halves_a_transformer_in_bfloat16() -> None:
    actual, _, ratio = measured(shaped.transformer, 0, 12, 128, torch.bfloat16, policy="wide")
    assert actual.whole <= 0.02
    assert ratio >= 2


# ---- real models, where they are installed -------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.skipif(not importlib.util.find_spec("torchvision"), reason="needs torchvision")
def test_resnet50_of_torchvision() -> None:
    from torchvision.models import resnet50

    torch.manual_seed(0)
    step = shaped.scores(resnet50(num_classes=10), torch.randn(8, 3, 64, 64), 10)
    errors = matrices(step, compared(step))
    assert sum(errors) / len(errors) <= 0.03
    assert max(errors) <= 0.04


@pytest.mark.thorough
@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
def test_llama_of_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    widths = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 128}
    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(**widths, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4)
    )
    tokens = torch.randint(128, (8, 64))
    actual = compared(stepped(model, lambda: model(input_ids=tokens, labels=tokens).loss))
    assert actual.is_finite
    assert actual.whole <= 0.02
