# SPDX-License-Identifier: MIT
"""What an operator class declares is collected once, from its body and from its bases."""

from __future__ import annotations

import pytest

from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import Output, attribute, boolean, integer, real
from cupy_training_ops.errors import ArgumentError


class Base(Op):
    first = attribute(integer, 1)
    second = attribute(integer, 2)


class Mixin(Base):
    second = attribute(real, 0.5, doc="another")


class Several(Mixin, Base):
    """Y = X: the nearest base counts, and what is stated again stands where it is stated."""

    outputs = (Output("Y", "float32"),)
    third = attribute(integer)
    first = attribute(integer, 3)


def declared(cls: type[Op]) -> list[tuple[str, object]]:
    return [(item.name, item.default) for item in cls.attributes]


def test_attributes_stand_in_the_order_of_bodies_those_of_bases_first() -> None:
    assert declared(Base) == [("first", 1), ("second", 2)]
    assert declared(Mixin) == [("first", 1), ("second", 0.5)]
    assert [name for name, _ in declared(Several)] == ["second", "third", "first"]
    assert dict(declared(Several)) | {"third": None} == {"second": 0.5, "third": None, "first": 3}


def test_a_class_has_no_value_of_an_attribute_an_instance_has() -> None:
    assert not any(hasattr(Several, name) for name, _ in declared(Several))
    op = Several(third=7)
    assert (op.first, op.second, op.third) == (3, 0.5, 7)
    assert op.attribute_values == {"second": 0.5, "third": 7, "first": 3}


def test_one_object_may_be_an_attribute_of_several_classes_and_names() -> None:
    shared = attribute(integer, 4)

    class Twice(Op):
        left = shared
        right = shared

    assert declared(Twice) == [("left", 4), ("right", 4)]
    with pytest.raises(ArgumentError, match="Twice: right: expected an integer"):
        Twice(right=0.5)


class Method(Op):
    """Y = X: with a method of the name that an attribute has elsewhere."""

    def check(self) -> None:
        """Nothing that a call asks for."""


class Checked(Method):
    """Y = X: values of arrays are looked at on request."""

    check = attribute(boolean, False)


def test_a_method_called_check_is_no_attribute() -> None:
    """Or the operator would look at values, and take no tensors as they are."""
    assert [op.knows_tensors for op in (Method(), Checked(), Checked(check=True))] == [1, 1, 0]
    assert [len(op.checks()) for op in (Method(), Checked(), Checked(check=True))] == [0, 0, 1]
