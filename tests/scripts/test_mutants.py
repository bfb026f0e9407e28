# SPDX-License-Identifier: MIT
"""Which faults are planted to see whether tests notice them."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import mutants
import pytest

from cupy_training_ops.registry import FAMILIES

CUDA = """// a < b
#define N 3 + 4
template <int n = 2 + 1>
__device__ int f(int a, int b) {
  if (a < b && b != 7) return a + 2;
  return a * b;
}
"""
PYTHON = '''"""a + b"""
def f(a: int | None, b) -> 3 | 4:
    zip(a, strict=True)
    if a < b and b != 7:
        return a + 2
    return a is None
'''


def changes(make, text: str) -> set[str]:
    return {mutant.label(text).partition(":")[2] for mutant in make("x", text)}


def test_faults_of_cuda_leave_comments_macros_and_templates_alone() -> None:
    assert changes(mutants.in_cuda, CUDA) == {
        "5: < -> <=",
        "5: && -> ||",
        "5: != -> ==",
        "5: + -> -",
        "5: 7 -> 8",
        "5: 2 -> 3",
        "5: ( -> (!",
        "6: * -> +",
    }


def test_faults_of_python() -> None:
    assert changes(mutants.in_python, PYTHON) == {
        "4: < -> <=",
        "4: and -> or",
        "4: != -> ==",
        "4: 7 -> 8",
        "4:  -> not",
        "5: + -> -",
        "5: 2 -> 3",
        "6: is -> is not",
    }


def test_each_fault_changes_the_text_in_its_place_alone() -> None:
    for mutant in mutants.in_python("x", PYTHON):
        planted = mutant.planted(PYTHON)
        ast.parse(planted)
        assert planted != PYTHON
        assert len(planted) - len(PYTHON) == len(mutant.new) - len(mutant.old)


@pytest.mark.parametrize("family", ["conv", "softmax"])
def test_a_family_has_faults_in_both_languages_and_tests_of_them(family) -> None:
    assert family in FAMILIES
    found = list(mutants.mutants(mutants.ROOT, family, random.Random(0)))[:12]
    assert {Path(mutant.path).suffix == ".py" for mutant in found} == {True, False}
    for mutant in found:
        names = mutants.tests(mutants.ROOT, family, mutant)
        assert f"tests/families/{family}/test_kernels.py" in names
        assert "tests/test_kernels.py" in names
