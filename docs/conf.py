"""Sphinx configuration of the documentation site: `make docs` builds it into `docs/_build/html`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from g2uardfl import __version__

project = "g2uardfl"
author = "The g2uardfl authors"
copyright = "the g2uardfl authors, Apache-2.0"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "generated_pages",
    "inline_svg",
    "markdown_docstrings",
    "self_contained",
]
exclude_patterns = ["_build", "**/_list.md", "notes/README.md", "results/notes"]
suppress_warnings = ["epub.unknown_project_files"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = f"g2uardfl {release}"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
