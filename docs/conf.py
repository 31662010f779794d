"""The site: `make docs` writes it to build/docs."""

import importlib.metadata
import re

project = "cpc"
author = "The cpc authors"
release = importlib.metadata.version("cpc-jax")
html_title = "cpc"
html_static_path = ["static"]
html_css_files = ["site.css"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["notebooks/*.py", "**/.ipynb_checkpoints"]
html_theme = "sphinx_book_theme"
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True}
myst_heading_anchors = 3
copybutton_prompt_text = ">>> "

# A notebook that fails is an error of the site; one that has not changed is not run again.
nb_execution_mode = "cache"
nb_execution_cache_path = "build/notebooks"
nb_execution_timeout = 900
nb_execution_raise_on_error = True

default_role = "code"  # docstrings say `x` of what is code
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
COLON = "\ue000"


def keep_formulas(app, what, name, subject, options, lines):
    """Show as it stands what a docstring indents; say nothing of fields that have no docstring."""
    shown, in_section, last = [], False, ""
    for number, line in enumerate(lines):
        in_section = bool(SECTION.match(line)) or (in_section and (not line or line[0] == " "))
        begins = number > 0 and not lines[number - 1].strip() and not last.startswith(" ")
        if line.startswith("  ") and begins and not in_section:
            shown += ["::", ""]
        if what in ("attribute", "property"):  # of which napoleon takes "a: b" for a type and text
            line = line.replace(":", COLON)
        if not line.startswith("Alias for field number"):
            shown.append(line)
        last = line or last
    lines[:] = shown


def keep_colons(app, what, name, subject, options, lines):
    """Undo what was done for napoleon."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def shorten_types(app, page, template, context, doctree):
    """Show jaxtyping's types as they are written."""
    context["body"] = context.get("body", "").replace("jaxlib._jax.", "")


def setup(app):
    """Connect what is above to what it comes before or after."""
    app.connect("autodoc-process-docstring", keep_formulas, priority=1)
    app.connect("autodoc-process-docstring", keep_colons, priority=999)
    app.connect("html-page-context", shorten_types)
