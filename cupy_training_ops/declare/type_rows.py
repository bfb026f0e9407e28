# SPDX-License-Identifier: MIT
"""Which types an operator's type variables may be, alone and together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from ..dtypes import Dtype, to_dtype

Group = tuple[Dtype, ...]
Types = Mapping[str, Group]  # type variable to the dtypes it may be


class TypeRows(Mapping[str, tuple[Dtype, ...]]):
    """The combinations of dtypes that exist, if they are not the product of the type variables.

    rows: dicts of dtypes by variable. As a mapping: {variable: all dtypes that it has in some row}.
    free: dtypes of variables that are in no row, as each of them goes with every row.
    """

    def __init__(self, variables: str, *rows: str, free: Types | None = None, **groups: Group):
        """Make rows of dtypes by variable.

        variables: names, "T U". rows: names of dtypes in that order, "float32 int64"; a group's
        name is a row for each of its dtypes. free: variables that are in no row.

        TypeRows("T U", "float32 float32", "H float32", H=(FLOAT16, BFLOAT16)) has three rows.
        """
        self.variables = tuple(variables.split())
        self.free = dict(free or {})
        names = [variable for variable in self.variables if variable not in self.free]
        self.rows = tuple(
            dict(zip(names, dtypes, strict=True))
            for row in rows
            for dtypes in _expand(row.split(), groups)
        )

    def __getitem__(self, variable: str) -> tuple[Dtype, ...]:
        if variable not in self.variables:
            raise KeyError(variable)
        if variable in self.free:
            return self.free[variable]
        return tuple(dict.fromkeys(row[variable] for row in self.rows))

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def fitting(self, bound: Mapping[str, Dtype]) -> list[dict[str, Dtype]]:
        """Return the rows that agree with these bindings, by variable."""
        return [row for row in self.rows if not _distance(row, bound)]

    def nearest(self, bound: Mapping[str, Dtype]) -> list[dict[str, Dtype]]:
        """Return the rows that differ from the bindings in the fewest variables."""
        least = min(_distance(row, bound) for row in self.rows)
        return [row for row in self.rows if _distance(row, bound) == least]


def _expand(
    names: list[str], groups: Mapping[str, tuple[Dtype, ...]]
) -> Iterator[tuple[Dtype, ...]]:
    """Yield tuples of dtypes for a row of names: one for each choice of a member of its groups."""
    used = [name for name in groups if name in names]
    for members in itertools.product(*(groups[name] for name in used)):
        chosen = dict(zip(used, members, strict=True))
        yield tuple(chosen[n] if n in chosen else to_dtype(n) for n in names)


def _distance(row: Mapping[str, Dtype], bound: Mapping[str, Dtype]) -> int:
    """Return in how many bound variables a row differs."""
    return sum(row[v] != dtype for v, dtype in bound.items() if v in row)


def combinations(types: Types) -> list[dict[str, Dtype]]:
    """Return all combinations of dtypes that exist, as dicts by type variable."""
    if isinstance(types, TypeRows):
        return [{**row, **free} for row in types.rows for free in combinations(types.free)]
    return [dict(zip(types, c, strict=True)) for c in itertools.product(*types.values())]
