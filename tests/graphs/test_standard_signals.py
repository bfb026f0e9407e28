# SPDX-License-Identifier: MIT
"""Fourier transforms, windows, mel bands, and optimizers' steps, against PyTorch and formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import cupy_training_ops as cto

from .nodes import expected, result

torch = pytest.importorskip("torch")
F = np.float32
PREVIEW = "ai.onnx.preview.training"


def pairs(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag], axis=-1)


@pytest.mark.parametrize("n", [None, 5, 8, 11])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_spectra_by_their_sums(n: int | None, axis: int, rng) -> None:
    """y_k = sum of x_t e^(-2 pi i k t / n), and back."""
    x = rng.standard_normal((7, 8, 3)) + 1j * rng.standard_normal((7, 8, 3))
    place = axis if axis >= 0 else 2
    m = n or x.shape[place]
    cut = np.moveaxis(x, place, -1)[..., :m]
    cut = np.pad(cut, [(0, 0), (0, 0), (0, m - cut.shape[-1])])
    turns = np.exp(-2j * np.pi * np.outer(np.arange(m), np.arange(m)) / m)
    length = None if n is None else np.array(n)
    for factor, inverse in ((turns, 0), (turns.conj() / m, 1)):
        exact = np.moveaxis(cut @ factor, -1, place)
        actual = result("DFT", pairs(x), length, np.array(axis), inverse=inverse)
        np.testing.assert_allclose(actual, pairs(exact), rtol=1e-9, atol=1e-9)
    exact = np.moveaxis(cut.real @ turns, -1, place)
    actual = result("DFT", x.real[..., None], length, np.array(axis))
    np.testing.assert_allclose(actual, pairs(exact), rtol=1e-9, atol=1e-9)
    half = np.take(exact, range(m // 2 + 1), place)
    actual = result("DFT", x.real[..., None], length, np.array(axis), onesided=1)
    np.testing.assert_allclose(actual, pairs(half), rtol=1e-9, atol=1e-9)
    back = result("DFT", actual, np.array(m), np.array(axis), onesided=1, inverse=1)
    np.testing.assert_allclose(back[..., 0], np.moveaxis(cut.real, -1, place), atol=1e-12)


def test_an_early_spectrum_has_its_axis_as_an_attribute(rng) -> None:
    x = rng.standard_normal((2, 5, 4, 1)).astype(F)
    new = result("DFT", x, None, np.array(2))
    assert new.dtype == F
    np.testing.assert_array_equal(result("DFT", x, version=17, axis=2), new)
    default = result("DFT", x, None, np.array(1))
    np.testing.assert_array_equal(result("DFT", x, version=17), default)
    back = result("DFT", result("DFT", x, onesided=1), onesided=1, inverse=1)
    np.testing.assert_allclose(back, x, atol=1e-6)  # of an even length


@pytest.mark.parametrize(
    ("shape", "attributes", "words"),
    [
        ((3, 4, 3), {}, r"expected \(\.\.\., 1\) or"),
        ((3, 4, 2), {"onesided": 1}, "onesided: expected a real input"),
        ((3, 4, 1), {"onesided": 1, "inverse": 1}, "onesided: expected a complex input"),
        ((3, 0, 1), {}, "dft_length: expected at least 1, got 0"),
    ],
)
def test_signals_that_do_not_fit_are_refused(shape, attributes, words) -> None:
    with pytest.raises(cto.ArgumentError, match=words):
        result("DFT", np.zeros(shape), **attributes)
    with pytest.raises(cto.ArgumentError, match="an axis before"):
        result("DFT", np.zeros((3, 4, 2)), None, np.array(-1))


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("has_window", [False, True])
def test_short_spectra_are_those_of_torch(onesided: int, has_window: bool, rng) -> None:
    x, window = rng.standard_normal((2, 30)), rng.uniform(0, 1, 8)
    exact = torch.stft(
        torch.tensor(x), 8, 3, window=torch.tensor(window if has_window else np.ones(8)),
        center=False, onesided=bool(onesided), return_complex=True,
    )  # fmt: skip
    inputs = (np.array(3), window if has_window else None, None if has_window else np.array(8))
    actual = result("STFT", x[..., None], *inputs, onesided=onesided)
    np.testing.assert_allclose(actual, pairs(exact.numpy().swapaxes(1, 2)), atol=1e-12)
    complex_signal = pairs(x + 1j * x[::-1])
    actual = result("STFT", complex_signal, *inputs, onesided=0)
    frames = np.stack([(x + 1j * x[::-1])[:, k : k + 8] for k in range(0, 23, 3)], axis=1)
    frames = frames * window if has_window else frames
    np.testing.assert_allclose(actual, pairs(np.fft.fft(frames)), atol=1e-12)


def test_frames_that_do_not_fit_are_refused(rng) -> None:
    x = rng.standard_normal((2, 30, 1))
    with pytest.raises(cto.ArgumentError, match=r"window: expected shape \(8,\), got \(7,\)"):
        result("STFT", x, np.array(3), np.ones(7), np.array(8))
    for step, length in ((0, 8), (3, 31), (3, 0)):
        with pytest.raises(cto.ArgumentError, match="frames of 1 to 30"):
            result("STFT", x, np.array(step), None, np.array(length))
    with pytest.raises(cto.ArgumentError, match="onesided: expected a real signal"):
        result("STFT", np.concatenate([x, x], axis=2), np.array(3), None, np.array(8))


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("n", [2, 9, 0])
def test_windows_are_those_of_torch(periodic: int, n: int) -> None:
    options = {"periodic": bool(periodic), "dtype": torch.float64}
    exact = {
        "HannWindow": torch.hann_window(n, **options),
        "HammingWindow": torch.hamming_window(n, alpha=25 / 46, beta=21 / 46, **options),
        "BlackmanWindow": torch.blackman_window(n, **options),
    }
    for name, window in exact.items():
        actual = result(name, np.array(n), periodic=periodic, output_datatype=11)
        np.testing.assert_allclose(actual, window, atol=1e-12)
        assert result(name, np.array(n), periodic=periodic).dtype == F


@pytest.mark.parametrize("bands", [3, 8, 40])
def test_mel_bands_are_those_of_the_reference(bands: int) -> None:
    numbers = [np.array(bands), np.array(256), np.array(8192)]
    numbers += [np.array(20, F), np.array(3800, F)]
    (exact,) = expected("MelWeightMatrix", *numbers)
    np.testing.assert_allclose(result("MelWeightMatrix", *numbers), exact, atol=1e-6)
    numbers[4] = np.array(30_000, F)
    with pytest.raises(cto.ArgumentError, match="edges within 129 bins"):
        result("MelWeightMatrix", *numbers)
    numbers[4] = np.array(10, F)
    with pytest.raises(cto.ArgumentError, match=r"edges in order, got 8192, 20\.0 and 10\.0"):
        result("MelWeightMatrix", *numbers)


# ---- optimizers ----------------------------------------------------------------------------------


def stepped(op: str, rate: float, t: int, arrays: list[Any], n: int, **attributes: Any) -> Any:
    names = [f"x{i}" for i in range(len(arrays) + 2)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(n)], domain=PREVIEW, **attributes)
    return cto.onnx.call(node, [np.array(rate), np.array(t), *arrays])


CASES = [
    ("Momentum", {"alpha": 0.75, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.125}, 1,
     lambda p: torch.optim.SGD(p, 0.1, momentum=0.75, weight_decay=0.125)),
    ("Momentum", {"alpha": 0.75, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.0}, 1,
     lambda p: torch.optim.SGD(p, 0.1, momentum=0.75, dampening=0.5)),
    ("Momentum", {"alpha": 0.75, "beta": 1.0, "mode": "nesterov", "norm_coefficient": 0.0}, 1,
     lambda p: torch.optim.SGD(p, 0.1, momentum=0.75, nesterov=True)),
    ("Adagrad", {"epsilon": 2.0**-20, "decay_factor": 0.5, "norm_coefficient": 0.25}, 1,
     lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.5, weight_decay=0.25, eps=2.0**-20)),
    ("Adam", {"alpha": 0.75, "beta": 0.875, "epsilon": 0.0}, 2,
     lambda p: torch.optim.Adam(p, 0.1, betas=(0.75, 0.875), eps=0)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_steps_are_those_of_torch(case: Any, rng) -> None:
    """Two variables, four steps. ONNX's Adam counts steps from 1, the others from 0."""
    op, attributes, n_states, make = case
    shapes = [(3, 4), (5,)]
    variables = [rng.standard_normal(shape) for shape in shapes]
    states = [np.zeros(shape) for _ in range(n_states) for shape in shapes]
    theirs = [torch.tensor(x, requires_grad=True) for x in variables]
    optimizer = make(theirs)
    for t in range(4):
        gradients = [rng.standard_normal(shape) for shape in shapes]
        for variable, gradient in zip(theirs, gradients, strict=True):
            variable.grad = torch.tensor(gradient)
        optimizer.step()
        count = t + 1 if op == "Adam" else t
        new = stepped(
            op, 0.1, count, [*variables, *gradients, *states], 2 + len(states), **attributes
        )
        variables, states = list(new[:2]), list(new[2:])
        for variable, other in zip(variables, theirs, strict=True):
            np.testing.assert_allclose(variable, other.detach(), rtol=1e-9, atol=1e-12)


def test_adam_by_its_formulas(rng) -> None:
    x, g, v, h = (rng.uniform(0.5, 1, 4) for _ in range(4))
    options = {"norm_coefficient": 0.25, "norm_coefficient_post": 0.125, "epsilon": 0.5}
    for t in (0, 3):
        actual = stepped("Adam", 0.1, t, [x, g, v, h], 3, alpha=0.5, beta=0.875, **options)
        whole = 0.25 * x + g
        new_v, new_h = 0.5 * v + 0.5 * whole, 0.875 * h + 0.125 * whole**2
        rate = 0.1 * np.sqrt(1 - 0.875**t) / (1 - 0.5**t) if t else 0.1
        new = (1 - 0.125) * (x - rate * new_v / (np.sqrt(new_h) + 0.5))
        for one, other in zip(actual, (new, new_v, new_h), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_steps_that_do_not_fit_are_refused(rng) -> None:
    x = rng.standard_normal(3)
    own = {"alpha": 0.5, "beta": 1.0, "norm_coefficient": 0.0}
    with pytest.raises(cto.ArgumentError, match="mode='other' is not computed here"):
        stepped("Momentum", 0.1, 1, [x, x, x], 2, mode="other", **own)
    with pytest.raises(cto.ArgumentError, match="inputs: expected 3 for each variable, got 4"):
        stepped("Momentum", 0.1, 1, [x] * 4, 2, mode="standard", **own)
    with pytest.raises(cto.ArgumentError, match="as the variable"):
        stepped("Momentum", 0.1, 1, [x, x, x[:2]], 2, mode="standard", **own)
    node = helper.make_node("Momentum", ["r"], ["y"])
    with pytest.raises(cto.ArgumentError, match="unknown operator Momentum of ONNX's own domain"):
        cto.onnx.call(node, [x])


def test_features_of_classical_models(rng) -> None:
    x = rng.standard_normal((3, 5))
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    for row, places in ((x, [4, 0, 0]), (x[0], [1])):
        actual = cto.onnx.call(node, [row, np.array([places])])[0]
        np.testing.assert_array_equal(actual, np.atleast_2d(row[..., places]))
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.25)
    np.testing.assert_array_equal(cto.onnx.call(node, [x])[0], x > 0.25)


# ---- Resize --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("size", [(5, 4), (3, 11), (9, 20)])
def test_wide_windows_are_those_of_torch(mode: str, size: tuple[int, int], rng) -> None:
    x = rng.standard_normal((1, 2, 9, 11))
    attributes = {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}
    actual = result("Resize", x, None, None, np.array([1, 2, *size]), mode=mode, **attributes)
    exact = torch.nn.functional.interpolate(torch.tensor(x), size, mode="bi" + mode, antialias=True)
    np.testing.assert_allclose(actual, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_wide_windows_keep_what_is_the_same_everywhere(mode: str) -> None:
    x = np.full((1, 1, 9, 11), 3.0)
    actual = result("Resize", x, None, None, np.array([1, 1, 4, 3]), mode=mode, antialias=1)
    np.testing.assert_allclose(actual, np.full((1, 1, 4, 3), 3.0), rtol=1e-12)


def test_a_crop_of_one_pixel_is_its_middle() -> None:
    x = np.arange(9.0)
    roi, sizes = np.array([0.25, 0.5]), np.array([1])
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    np.testing.assert_array_equal(result("Resize", x, roi, None, sizes, **crop), [3])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("by_scales", [False, True])
def test_crops_are_those_of_the_reference(mode: str, by_scales: bool, rng) -> None:
    x = rng.standard_normal((1, 1, 6, 8)).astype(F)
    roi = F([0, 0, 0.25, -0.125, 1, 1, 0.75, 1.25])
    sizes = np.array([1, 1, 5, 7])
    inputs = (roi, F([1, 1, 1.5, 0.75]), None) if by_scales else (roi, None, sizes)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": mode}
    attributes |= {"extrapolation_value": 7.0}
    if by_scales:  # whose lengths the reference takes for those of the whole image
        actual = result("Resize", x, *inputs, **attributes)
        assert actual.shape == (1, 1, 4, 8)
        return
    actual = result("Resize", x, *inputs, **attributes)
    (exact,) = expected("Resize", x, *inputs, **attributes)
    np.testing.assert_allclose(actual, exact, rtol=1e-5, atol=1e-6)
    assert (actual == 7).any()
    with pytest.raises(cto.ArgumentError, match="roi: expected 8 numbers, got 0"):
        result("Resize", x, None, None, sizes, **attributes)


@pytest.mark.parametrize(("policy", "shape"), [("not_larger", (4, 7)), ("not_smaller", (6, 11))])
def test_a_shape_keeps_its_proportions(policy: str, shape: tuple[int, int], rng) -> None:
    """9 x 17 for 6 x 7: 7 / 17 and 6 / 9 are the scales."""
    x = rng.standard_normal((2, 9, 17))
    sizes = np.array([6, 7])
    actual = result("Resize", x, None, None, sizes, axes=[1, 2], keep_aspect_ratio_policy=policy)
    assert actual.shape == (2, *shape)


def test_whole_numbers_have_no_values_between(rng) -> None:
    x = rng.integers(0, 9, (1, 1, 3, 3))
    with pytest.raises(cto.DtypeError, match="for mode=linear, got int64"):
        result("Resize", x, None, F([1, 1, 2, 2]), mode="linear")
    text = """<ir_version: 10, opset_import: ["" : 19]>
    g (uint8[1, 4] x, float[2] s) => (uint8[1, 8] y) { y = Resize <mode = "cubic"> (x, , s) }"""
    with pytest.raises(cto.ArgumentError, match="for mode=cubic, got uint8"):
        cto.onnx.Session(onnx.parser.parse_model(text))
    assert result("Resize", x, None, F([1, 1, 2, 2])).shape == (1, 1, 6, 6)
    with pytest.raises(cto.ArgumentError, match="extents of at least 0"):
        result("Resize", x, None, None, np.array([1, 1, -2, 2]))
