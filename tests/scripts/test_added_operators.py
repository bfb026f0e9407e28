# SPDX-License-Identifier: MIT
"""The page on adding an operator, as a script: what it says is enough, and how much it is."""

from __future__ import annotations

import re
import subprocess
import sys

import added_operators
import click
import pytest
from runs import EMULATED_RUNS, reason_not_to_run

from cupy_training_ops import ProviderError

PAGE = added_operators.PAGE.read_text(encoding="utf-8")
ELEMENTWISE, *_ = added_operators.sections(PAGE)
MOST_FILES, MOST_LINES = 6, 40  # of an element-wise operator, with example, oracle, benchmark case
ASKED = [  # parts of the names of tests that have to have passed in the copy
    ("test_in_step.py", "the_homes_agree[activation]"),
    ("test_in_step.py", "the_homes_agree[padding]"),
    ("test_in_step.py", "every_dtype[activation]"),
    ("test_in_step.py", "every_dtype[padding]"),
    ("test_help.py", "everything_declared_is_printed_once[SoftplusGrad]"),
    ("test_help.py", "everything_declared_is_printed_once[TriuGrad]"),
    ("activation/test_reference.py", "finite_difference[SoftplusGrad]"),
    ("activation/test_reference.py", "jax_vector_jacobian_product[float64-SoftplusGrad]"),
    ("padding/test_reference.py", "triu_grad_is_the_gradient_of_triu"),
]
EMULATED = [
    ("test_kernels.py", "emulated", "-SoftplusGrad-"),
    ("test_kernels.py", "emulated", "-TriuGrad-"),
]
# What walks the registry, or reads what is generated; of the families' tests those of the new ones.
WALKERS = """
tests/test_docs.py tests/test_registry.py tests/test_in_step.py tests/test_help.py
tests/test_named.py tests/test_copies.py tests/test_packaging.py tests/test_types.py
tests/upstream/test_onnxruntime.py tests/scripts/test_benchmark.py
tests/scripts/test_upstream_schemas.py tests/test_facts.py tests/test_shared.py
"""
FAMILIES = 'tests/families/activation tests/families/padding -k "SoftplusGrad or triu"'


def test_the_page_is_enough_and_an_element_wise_operator_a_few_lines() -> None:
    command = [sys.executable, added_operators.__file__, "--no-compile"]  # thorough, below
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counted = re.search(rf"{ELEMENTWISE}: (\d+) files, (\d+) lines", ran.stdout)
    assert int(counted[1]) <= MOST_FILES, counted[0]
    assert int(counted[2]) <= MOST_LINES, counted[0]
    passed = re.findall(r"^PASSED (\S+)", ran.stdout, re.MULTILINE)
    asked = [*ASKED, *([] if reason_not_to_run(EMULATED_RUNS[0]) else EMULATED)]
    assert [parts for parts in asked if not has(passed, parts)] == []


def has(tests: list[str], parts: tuple[str, ...]) -> bool:
    """Whether the name of a test has all these parts."""
    return any(all(part in test for part in parts) for test in tests)


@pytest.mark.thorough
@pytest.mark.timeout(900)  # two thousand tests
def test_nothing_that_walks_the_registry_finds_something_missing(tmp_path) -> None:
    root = added_operators.copied(tmp_path)
    for blocks in added_operators.sections(PAGE).values():
        added_operators.add(blocks, root)
    for command in filter(added_operators.possible, next(added_operators.commands(PAGE))):
        if not command.startswith("pytest "):
            assert added_operators.run(command, root) == 0
    assert added_operators.run(f"pytest {' '.join(WALKERS.split())}", root) == 0
    assert added_operators.run(f"pytest {FAMILIES}", root) == 0


def test_a_block_goes_where_the_words_before_it_say() -> None:
    text = 'TABLE = {\n    "a": 1,\n    "c": 3,\n}\n\n\ndef f():\n    return 1\n'
    for words, lines, expected in (
        ("At the end of `x.py`:", "g = 2", text + "\ng = 2\n"),
        ("At the end of `x.py`:", "def g():\n    pass", text + "\n\ndef g():\n    pass\n"),
        (
            "A row in `TABLE` of `x.py`:",
            '    "b": 2,',
            text.replace('    "c"', '    "b": 2,\n    "c"'),
        ),
        ("A row in `TABLE` of `x.py`:", '    "d": 4,', text.replace("}", '    "d": 4,\n}')),
        ("before `def f`\nin `x.py`:", "g = 2", text.replace("def f", "g = 2\n\n\ndef f")),
        ("in place of `def f` in `x.py`:", "def g():", text.replace("def f", "def g")),
    ):
        assert added_operators.block(words, lines).put(text)[0] == expected


def test_a_block_whose_place_is_not_said_or_not_there_is_an_error() -> None:
    with pytest.raises(click.ClickException, match="no words say where `x = 1` goes"):
        added_operators.block("Then:", "x = 1\n")
    with pytest.raises(click.ClickException, match="no line begins with def f"):
        added_operators.block("before `def f` in `x.py`:", "x = 1\n").put("def ff():\n")


def test_without_nvrtc_nothing_is_compiled(monkeypatch, capsys) -> None:
    def absent():
        raise ProviderError("no NVRTC")

    monkeypatch.setattr(added_operators, "nvrtc", absent)
    (first, _) = added_operators.commands(PAGE)
    left = [command for command in first if not added_operators.possible(command)]
    assert [command.split()[1] for command in left] == ["compile"]
    assert "not run: cupy-training-ops compile" in capsys.readouterr().out
