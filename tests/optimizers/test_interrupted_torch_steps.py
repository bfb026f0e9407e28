# SPDX-License-Identifier: MIT
"""Steps of PyTorch's protocol that are interrupted at any line, refused, or made by threads."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interrupts import at_each_line
from optimizers.test_interrupted_steps import MOST_REFUSED, TORN, Loop, as_bytes

torch = pytest.importorskip("torch")

import cupy_training_ops as cto  # noqa: E402
from cupy_training_ops import OpError, ProviderError  # noqa: E402
from cupy_training_ops.optimizers import whole  # noqa: E402

SHAPES = ((7, 40), (130,), (), (5, 4))
KINDS: dict[str, Callable[..., Any]] = {
    "SGD": cto.torch.SGD,
    "AdamW": cto.torch.AdamW,
    "AdamW, clipped": lambda groups, **options: cto.torch.AdamW(groups, max_norm=0.5, **options),
    "AdamW in codes": lambda groups, **options: cto.torch.AdamW(groups, state="8bit", **options),
    "AdamW in few bits": lambda groups, **options: cto.torch.AdamW(groups, state="4bit", **options),
    "AMSGrad": lambda groups, **options: cto.torch.Adam(groups, amsgrad=True, **options),
    "SGD with momentum": lambda groups, **options: cto.torch.SGD(groups, momentum=0.9, **options),
    "Lamb": cto.torch.Lamb,
}


class Tensors(Loop):
    """Two groups; in one the last parameter has its first gradient later."""

    def __init__(self, kind: str, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        made = [torch.randn(shape, generator=generator) for shape in SHAPES]
        parameters = [torch.nn.Parameter(tensor) for tensor in made]
        gradients = [torch.randn(shape, generator=generator) for shape in SHAPES]
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.3}]
        self.optimizer = KINDS[kind](groups, lr=0.1)
        for parameter, gradient in zip(parameters[:-1], gradients, strict=False):
            parameter.grad = gradient
        self.optimizer.step()
        parameters[-1].grad = gradients[-1]
        self.optimizer.step()
        self.step = self.optimizer.step
        own = [parameter.detach().numpy() for parameter in parameters]
        self.begin(own, [self.optimizer.state_dict])

    def state(self) -> list[bytes]:
        """Without groups, which PyTorch gives more options as it loads them."""
        state = as_bytes(self.optimizer.state_dict()["state"])
        return [x.tobytes() for x in self._values()] + list(state)

    def go_back(self) -> Loop:
        """Where nothing is torn, in the tensors that there are: calls stay bound."""
        if self.optimizer._whole.is_torn or getattr(self.optimizer, "bits", None):
            return super().go_back()
        values, state = self._start
        for own, value in zip(self._arrays, values, strict=True):
            own[...] = value
        for key, parameter in enumerate(self.optimizer._parameters()):
            for name, value in state["state"].get(key, {}).items():
                self.optimizer.state[parameter][name].copy_(value)
        return self


pytestmark = pytest.mark.usefixtures("large_coded")


@pytest.mark.parametrize(
    "kind",
    ["AdamW", *(pytest.param(k, marks=pytest.mark.thorough) for k in KINDS if k != "AdamW")],
)
def test_an_interrupt_at_any_line_leaves_a_whole_step(kind, seed) -> None:
    loop = Tensors(kind, seed)
    lines = loop.interrupt()
    assert len(loop.refusals) <= MOST_REFUSED * len(lines)


def test_an_interrupt_within_no_grad_leaves_the_mode_before(monkeypatch, seed) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    loop = Tensors("AdamW", seed).go_back()
    with torch.enable_grad(), monkeypatch.context() as patched:
        patched.setattr(torch.no_grad, "__exit__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop.step()
        assert torch.is_grad_enabled()
    assert loop.state() in (loop.before, loop.after)


def torn(seed: int) -> Tensors:
    """A loop as a step leaves it that is interrupted between its writes."""
    loop = Tensors("AdamW", seed)
    loop.optimizer._whole.is_torn = True
    return loop


def test_a_torn_state_stays_one_in_copies(seed) -> None:
    loop = torn(seed)
    for other in (copy.deepcopy(loop.optimizer), pickle.loads(pickle.dumps(loop.optimizer))):
        with pytest.raises(ProviderError, match=TORN):
            other.step()
        other.load_state_dict(loop._start[1])
        other.step()


def test_a_refused_state_leaves_what_was(seed) -> None:
    """One that is torn is torn still, any other can go on."""
    loop = Tensors("AdamW", seed).go_back()
    wrong = copy.deepcopy(loop._start[1])
    wrong["state"][0]["exp_avg"] = torch.zeros(3)
    for bad in (wrong, {"state": {}, "param_groups": []}):
        with pytest.raises((OpError, ValueError)):
            loop.optimizer.load_state_dict(bad)
        assert loop.state() == loop.before
    loop.step()
    assert loop.state() == loop.after
    loop = torn(seed)
    with pytest.raises(OpError):
        loop.optimizer.load_state_dict(wrong)
    with pytest.raises(ProviderError, match=TORN):
        loop.step()


@pytest.mark.parametrize("kind", ["AdamW", "AdamW in codes", "AdamW in few bits", "AMSGrad"])
def test_loading_is_whole(kind, seed) -> None:
    loop = Tensors(kind, seed)
    arrays = loop.go_back().before[: len(loop._arrays)]
    state = copy.deepcopy(loop.optimizer.state_dict())
    for own in state["state"].values():
        own["step"].fill_(9)
        own["exp_avg"].mul_(2)
    loop.optimizer.load_state_dict(copy.deepcopy(state))
    wanted = loop.state()
    assert wanted[: len(arrays)] == arrays

    def check(made: Loop, place: object) -> None:
        try:
            actual = made.state()
        except ProviderError:
            return
        assert actual in (made.before, wanted), place

    load = lambda made: made.optimizer.load_state_dict(copy.deepcopy(state))  # noqa: E731
    at_each_line(super(Tensors, loop).go_back, load, check)  # counts become others


def test_groups_that_are_checked_are_updated_together(seed) -> None:
    """The second of two groups is refused before the first is updated."""
    loop = Tensors("AdamW", seed).go_back()
    loop.optimizer.param_groups[1]["lr"] = -1.0
    with pytest.raises(OpError):
        loop.step()
    loop.optimizer.param_groups[1]["lr"] = 0.3
    assert loop.state() == loop.before
    loop.step()
    assert loop.state() == loop.after
    assert not whole.Whole("AdamW").is_torn
    assert np.isfinite(loop._arrays[0]).all()
