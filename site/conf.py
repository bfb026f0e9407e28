# SPDX-License-Identifier: MIT
"""Sphinx's configuration of the documentation site, which scripts/build_site.py builds."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

import cupy_training_ops as cto

project = "cupy-training-ops"
author = "the authors of cupy-training-ops"
copyright = f"{author}, MIT licence"
version = release = cto.__version__
extensions = ["myst_parser", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["tour_source"]
highlight_language = "text"
add_module_names = False
toc_object_entries_show_parents = "hide"
smartquotes = False  # they make one dash of an option's two
python_maximum_signature_line_length = 88
option_emphasise_placeholders = True

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]

sphinx_gallery_conf = {
    "examples_dirs": "tour_source",
    "gallery_dirs": "tour",
    "filename_pattern": "tour",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "image_scrapers": (),  # no picture, so no matplotlib
    "reset_modules": (),
}

html_theme = "pydata_sphinx_theme"
html_title = "cupy-training-ops"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": [], "benchmarks": [], "tour/tour": []}
html_theme_options: dict[str, Any] = {
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": {"**": ["page-toc"], "benchmarks": []},
}


class LinkedNames(SphinxTransform):
    """Make a link of each name of the package that stands as code outside of a link."""

    default_priority = 5

    def apply(self, **_: object) -> None:
        names = {name: name for name in cto.__all__} | {f"cto.{name}": name for name in cto.__all__}
        for literal in list(self.document.findall(nodes.literal)):
            name = names.get(literal.astext().removesuffix("()"))
            inside = (nodes.reference, nodes.title, addnodes.pending_xref, addnodes.desc_signature)
            if name is None or any(isinstance(p, inside) for p in _around(literal)):
                continue
            target = f"{cto.__name__}.{name}"
            link = addnodes.pending_xref(
                "", literal.deepcopy(), refdomain="py", reftype="obj", reftarget=target
            )
            link["refdoc"], link["refwarn"] = self.env.docname, False
            literal.replace_self(link)


def _around(node: nodes.Node) -> list[nodes.Node]:
    """Return the nodes that a node is part of."""
    parents = []
    while node.parent is not None:
        node = node.parent
        parents.append(node)
    return parents


def setup(app: Sphinx) -> None:
    app.add_transform(LinkedNames)
