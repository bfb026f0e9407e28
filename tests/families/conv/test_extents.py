# SPDX-License-Identifier: MIT
"""Extents and pads that follow from ONNX attributes: by hand, and as ONNX gives them."""

from __future__ import annotations

import itertools

import pytest

from cupy_training_ops import ArgumentError
from cupy_training_ops.families.conv.extents import AUTO_PADS, Attributes, Convolution


def along(image: int, kernel: int, **attributes) -> tuple[int, int]:
    """The extent of Y along one axis and the pad before X."""
    given = {k: (v,) if isinstance(v, int) else v for k, v in attributes.items()}
    actual = Attributes("Conv", **given).convolution((1, 1, image), (1, 1, kernel))
    return actual.output[0], actual.pads[0]


def back(output: int, kernel: int, **attributes) -> tuple[int, int]:
    """The extent of a transposed convolution's Y and the pad before it."""
    given = {k: (v,) if isinstance(v, int) else v for k, v in attributes.items()}
    actual = Attributes("ConvTranspose", **given).transposed_convolution(
        (1, 1, output), (1, 1, kernel)
    )
    assert actual.output == (output,)
    return actual.image[0], actual.pads[0]


@pytest.mark.parametrize(
    ("image", "kernel", "attributes", "expected"),
    [
        (7, 3, {}, (5, 0)),
        (7, 3, {"pads": (2, 1)}, (8, 2)),
        (7, 3, {"pads": (0, 1), "strides": 2}, (3, 0)),
        (7, 3, {"dilations": 3}, (1, 0)),
        (7, 3, {"auto_pad": "VALID", "pads": (0, 0)}, (5, 0)),
        (5, 3, {"auto_pad": "SAME_LOWER", "strides": 2}, (3, 1)),
        (7, 4, {"auto_pad": "SAME_UPPER"}, (7, 1)),
        (7, 4, {"auto_pad": "SAME_LOWER"}, (7, 2)),
        (8, 3, {"auto_pad": "SAME_UPPER", "strides": 2}, (4, 0)),
        (8, 3, {"auto_pad": "SAME_LOWER", "strides": 2}, (4, 1)),
        (7, 1, {"auto_pad": "SAME_LOWER", "strides": 3}, (3, 0)),
        (7, 3, {"auto_pad": "SAME_UPPER", "dilations": 4}, (7, 4)),
        (0, 3, {"auto_pad": "SAME_UPPER"}, (0, 0)),
        (0, 2, {"pads": (1, 2)}, (2, 1)),
        (1, 1, {"strides": 2**31 - 1, "pads": (5, 0)}, (1, 5)),
        (1, 2, {"dilations": 2**30 - 1, "pads": (2**30 - 1, 0)}, (1, 2**30 - 1)),
    ],
)
def test_extents_and_pads(image, kernel, attributes, expected) -> None:
    output, pad = along(image, kernel, **attributes)
    assert output == expected[0]
    assert pad == expected[1] or not output


@pytest.mark.parametrize(
    ("output", "kernel", "attributes", "expected"),
    [
        (3, 3, {}, (5, 0)),
        (3, 3, {"strides": 3, "pads": (1, 1)}, (7, 1)),
        (3, 3, {"strides": 2, "pads": (2, 2)}, (3, 2)),
        (3, 3, {"strides": 3, "output_shape": 10, "output_padding": 1}, (10, 0)),
        (3, 3, {"strides": 2, "output_shape": 8, "output_padding": 1}, (8, 0)),
        (3, 3, {"strides": 3, "output_padding": 2, "pads": (0, 1)}, (10, 0)),
        (3, 2, {"dilations": 2}, (5, 0)),
        (3, 3, {"auto_pad": "SAME_UPPER", "strides": 2}, (6, 0)),
        (3, 3, {"auto_pad": "SAME_LOWER", "strides": 2}, (6, 1)),
        (3, 1, {"auto_pad": "SAME_UPPER", "strides": 2}, (6, 0)),
        (4, 4, {"output_shape": 4}, (4, 2)),
        (4, 4, {"output_shape": 4, "auto_pad": "SAME_UPPER"}, (4, 1)),
        (4, 4, {"output_shape": 4, "auto_pad": "SAME_LOWER"}, (4, 2)),
        (4, 4, {"output_shape": 9}, (9, 0)),  # no pads are taken away
        (1, 3, {"pads": (1, 2)}, (0, 1)),
        (0, 3, {"strides": 2}, (1, 0)),
    ],
)
def test_extents_and_pads_of_transposed_ones(output, kernel, attributes, expected) -> None:
    assert back(output, kernel, **attributes) == expected


def test_same_pads_take_all_there_are() -> None:
    """Whatever auto_pad says, explicit pads of the same size give the same extents."""
    for image, kernel, stride, dilation, how in itertools.product(
        range(1, 9), (1, 2, 3, 5), (1, 2, 3), (1, 2), AUTO_PADS[1:3]
    ):
        actual = along(image, kernel, strides=stride, dilations=dilation, auto_pad=how)
        missing = max(0, (actual[0] - 1) * stride + (kernel - 1) * dilation + 1 - image)
        assert actual[1] == (missing if how == "SAME_UPPER" else missing + 1) // 2
        explicit = (actual[1], missing - actual[1])
        assert along(image, kernel, strides=stride, dilations=dilation, pads=explicit) == actual


def test_more_axes_in_front() -> None:
    given = Attributes("Conv", 2, strides=(2,), dilations=(3,), pads=(4, 1))
    actual = given.convolution((5, 6, 9), (8, 3, 2))
    assert actual.padded_to(1) == actual
    assert actual.padded_to(3) == Convolution(
        5, 6, 8, 2, (1, 1, 9), (1, 1, 6), (1, 1, 2), (1, 1, 2), (1, 1, 3), (0, 0, 4)
    )
    assert (actual.x_shape, actual.y_shape, actual.w_shape) == ((5, 6, 9), (5, 8, 6), (8, 3, 2))
    assert (actual.rank, actual.group_channels, actual.group_filters) == (1, 3, 4)


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        (1, {"pads": (2**31 - 1, 0)}),
        (2, {"strides": 2**31 - 1, "pads": (1, 0)}),
        (2, {"dilations": 2**30, "pads": (2**30 - 1, 1)}),
    ],
)
def test_places_have_32_bits(kernel, attributes) -> None:
    with pytest.raises(ArgumentError, match=r"^Conv: X: expected fewer than 2\^31 elements"):
        along(1, kernel, **attributes)


def test_errors_name_the_operator_and_the_argument() -> None:
    with pytest.raises(ArgumentError, match=r"^Pool: strides: expected 1 integer, got \(1, 2\)$"):
        Attributes("Pool", strides=(1, 2)).convolution((1, 1, 4), (1, 1, 2))
