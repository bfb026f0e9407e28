# SPDX-License-Identifier: MIT
"""Gradients of products of matrices: finite differences in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import cupy_training_ops as cto

from .one_operator import check_gradients, trained_x

MICROSOFT = "com.microsoft"


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("flip_a", [0, 1])
@pytest.mark.parametrize("flip_b", [0, 1])
@pytest.mark.parametrize(
    ("batches_a", "batches_b"),
    [((), ()), ((5,), ()), ((), (5,)), ((5,), (5,)), ((6, 1), (5,)), ((1,), (2,)), ((2, 2), ())],
)
def test_gradients_of_fused_products(batches_a, batches_b, flip_a, flip_b, alpha, rng) -> None:
    a = rng.standard_normal((*batches_a, *((3, 2) if flip_a else (2, 3))))
    b = rng.standard_normal((*batches_b, *((4, 3) if flip_b else (3, 4))))
    options = {"transA": flip_a, "transB": flip_b, "alpha": alpha}
    check_gradients("FusedMatMul", [a, b], rng, domain=MICROSOFT, **options)


@pytest.mark.parametrize(("flip_a", "flip_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("first_a", "first_b"), [(0, 1), (1, 0), (1, 1)])
def test_gradients_of_products_whose_batches_are_not_first(
    first_a, first_b, flip_a, flip_b, rng
) -> None:
    """(M, batch, K) and the like, of one batch dimension and of two."""
    for batches in ((5,), (5, 2)):
        a = rng.standard_normal((*batches, *((3, 2) if flip_a else (2, 3))))
        b = rng.standard_normal((*batches, *((4, 3) if flip_b else (3, 4))))
        a = np.moveaxis(a, -2, 0) if first_a else a
        b = np.moveaxis(b, -2, 0) if first_b else b
        options = {
            "transA": flip_a,
            "transB": flip_b,
            "transBatchA": first_a,
            "transBatchB": first_b,
        }
        arrays = [np.ascontiguousarray(each) for each in (a, b)]
        check_gradients("FusedMatMul", arrays, rng, domain=MICROSOFT, **options)


@pytest.mark.parametrize(
    "shapes", [((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((5, 2, 3), (3,))]
)
def test_a_vector_is_not_transposed(shapes, rng) -> None:
    arrays = [rng.standard_normal(shape) for shape in shapes]
    flips = {name: int(len(s) == 1) for name, s in zip(("transA", "transB"), shapes, strict=True)}
    check_gradients("FusedMatMul", arrays, rng, domain=MICROSOFT, **flips)


@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("bias", [None, (), (4,), (2, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize(("flip_a", "flip_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gradients_of_gemm(flip_a, flip_b, bias, beta, rng) -> None:
    a = rng.standard_normal((3, 2) if flip_a else (2, 3))
    b = rng.standard_normal((4, 3) if flip_b else (3, 4))
    c = [] if bias is None else [rng.standard_normal(bias)]
    options = {"transA": flip_a, "transB": flip_b, "alpha": 1.5, "beta": beta}
    check_gradients("Gemm", [a, b, *c], rng, **options)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ba", [(2, 3)]),
        ("ij->i", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("i,i->", [(3,), (3,)]),
        ("ij,k->i", [(2, 3), (4,)]),
        ("ii->i", [(3, 3)]),
        ("ii->", [(3, 3)]),
        ("iij,j->i", [(3, 3, 2), (2,)]),
        ("iii->i", [(3, 3, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
        ("iJ,Jk -> k", [(2, 3), (3, 4)]),
        ("...i,ij->...j", [(2, 5, 3), (3, 4)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("...ij,...jk->...ik", [(1, 2, 3), (5, 3, 4)]),
        ("...ij,...jk->...ik", [(6, 1, 2, 3), (5, 3, 4)]),
        ("...ij,jk", [(5, 2, 3), (3, 4)]),
        ("i...,i...->...", [(3, 4), (3, 1)]),
        ("...ij->...i", [(5, 2, 3)]),
        ("i...->i...", [(2, 3)]),
        ("...,->...", [(2, 3), ()]),
        ("ij,ij->ij", [(3, 1), (1, 4)]),  # extents of 1 are broadcast
        ("ij,ij->i", [(2, 1), (2, 3)]),
        ("ij,ij,j->", [(2, 1), (1, 3), (3,)]),
        ("...ij,ij->...", [(2, 2, 3), (1, 3)]),
    ],
)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_gradients_of_einsum(equation, shapes, is_dynamic, rng) -> None:
    arrays = [rng.standard_normal(shape) for shape in shapes]
    if is_dynamic and "..." in equation:
        with pytest.raises(cto.ArgumentError, match="its gradient needs the rank of"):
            check_gradients("Einsum", arrays, rng, is_dynamic=True, equation=equation)
    else:
        check_gradients("Einsum", arrays, rng, is_dynamic=is_dynamic, equation=equation)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (2, 4, 4)])
def test_gradients_of_determinants(shape, rng) -> None:
    inputs = [rng.standard_normal(shape)]
    check_gradients("Det", inputs, rng)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_singular_matrix_has_its_cofactors_as_gradient(rank, rng) -> None:
    """Finite differences go through the matrices beside it."""
    x = rng.standard_normal((3, rank)) @ rng.standard_normal((rank, 3))
    check_gradients("Det", [x], rng)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("length", [None, 3, 4, 5, 7])
@pytest.mark.parametrize("inverse", [0, 1])
def test_gradients_of_fourier_transforms(length, inverse, is_complex, rng) -> None:
    """Cut, whole and filled; of half a spectrum; by both forms of the axis."""
    x = rng.standard_normal((2, 5, 3, 1 + is_complex))
    lengths = None if length is None else np.array(length)
    check_gradients("DFT", [x, lengths], rng, opset=17, axis=1, inverse=inverse)
    check_gradients("DFT", [x, lengths, np.array(-3)], rng, opset=20, inverse=inverse)
    if not inverse and not is_complex:
        check_gradients("DFT", [x, lengths], rng, opset=20, onesided=1)


def test_operators_without_a_gradient_are_refused_with_the_reason() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"]),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["wide"], ["loss"], keepdims=0),
    ]
    with pytest.raises(cto.ArgumentError, match="moves in steps"):
        trained_x(nodes, np.eye(2, dtype=np.float32))


def test_products_of_whole_numbers_are_refused_with_the_reason(rng) -> None:
    """x is quantized and multiplied: its gradient would be lost without a word."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["whole"]),
        helper.make_node("MatMulInteger", ["whole", "whole"], ["product"]),
        helper.make_node("Cast", ["product"], ["y"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    with pytest.raises(cto.ArgumentError, match="train the model before it is quantized"):
        trained_x(nodes, rng.random((2, 2)).astype(np.float32), scale=np.float32(0.1))
