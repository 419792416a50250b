"""The settings of the documentation's site; `make docs` builds it with Sphinx."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "prefill-router"
author = "the authors of prefill-router"
release = version = version_of("prefill-router")
root_doc = "index"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "site_pages",
]
exclude_patterns = ["site_theme"]

# Pages are Markdown as any reader of it shows it, and notebooks, which `site_pages` turns into it.
source_suffix = {".md": "markdown", ".ipynb": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4
myst_url_schemes = ("http", "https")

# The reference is made of docstrings: names as they are imported, and types as they are written.
highlight_language = "text"
default_role = "code"
autodoc_member_order = "bysource"
# With `--tag outline` it has its packages alone, in a third of the time.
autodoc_default_options = {"exclude-members": "model_config"}
if "outline" not in tags:
    autodoc_default_options["members"] = True
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
toc_object_entries_show_parents = "hide"

# Everything that a page loads is a file beside it, and nothing is fetched, so a folder can be read.
html_theme = "pydata_sphinx_theme"
html_title = "prefill-router"
html_static_path = ["site_theme"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False
html_sidebars = {"index": [], "search": []}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "show_nav_level": 1,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
    "back_to_top_button": False,
}
