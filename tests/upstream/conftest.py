# SPDX-License-Identifier: MIT
"""onnxruntime for the session; where it cannot be had, its tests are skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from upstream.environment import UnavailableError, upstream_python
from upstream.process import Upstream


@pytest.fixture(scope="session")
def upstream_interpreter(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    cache = getattr(pytestconfig, "cache", None)  # None under -p no:cacheprovider
    folder = Path(cache.mkdir("upstream")) if cache else tmp_path_factory.mktemp("environment")
    try:
        return upstream_python(folder)
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def upstream(
    upstream_interpreter: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upstream]:
    with Upstream(upstream_interpreter, tmp_path_factory.mktemp("upstream")) as process:
        yield process
