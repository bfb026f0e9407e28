# SPDX-License-Identifier: MIT
"""The README of the metadata, whose links are absolute once pyproject.toml has an address.

An index shows the README without the files beside it. `[project.urls]` needs a line as
`Source = "https://host/owner/name"`; until then links stay as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?<!\w)(!?\[[^\]]*\]\()(?!\w+:|#)([^)\s]+\))")


class Readme(MetadataHookInterface):
    """Adds the README to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source", "")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, source) if source else text,
        }


def with_absolute_links(text: str, source: str) -> str:
    """Return Markdown whose relative links lead to the repository, pictures to their bytes."""

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match[1].startswith("!") else "blob"
        return f"{match[1]}{source.rstrip('/')}/{kind}/HEAD/{match[2]}"

    return LINK.sub(absolute, text)
