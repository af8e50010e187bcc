"""Sphinx' configuration: `make docs` builds this folder, warnings are errors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

project = "tracelens"
author = "the tracelens authors"
copyright = "the tracelens authors"
try:
    release = installed("tracelens-gpu")
except PackageNotFoundError:  # read from a checkout that is not installed
    release = ""

extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_block", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
version = release
nitpicky = True

html_theme = "furo"
html_title = f"tracelens {release}".strip()
html_copy_source = False
html_show_sphinx = False
