"""The site: `make docs` writes it to build/docs."""

import importlib
import importlib.metadata
import inspect
import os
import pathlib
import re
import sys

from docutils.parsers.rst import directives
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

project = "cpc"
author = "The cpc authors"
release = importlib.metadata.version("cpc-jax")
html_title = "cpc"
html_static_path = ["static"]
html_css_files = ["site.css"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
autosummary_generate = False
exclude_patterns = ["notebooks/*.py", "notebooks/studies", "**/.ipynb_checkpoints"]
html_theme = "sphinx_book_theme"
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True}
myst_heading_anchors = 3
copybutton_prompt_text = ">>> "
add_function_parentheses = False  # shorter entries in the list of contents
toc_object_entries_show_parents = "hide"

# A notebook that fails is an error of the site; one that has not changed is not run again.
nb_execution_mode = "cache"
nb_execution_cache_path = "build/notebooks"
nb_execution_timeout = 900
nb_execution_raise_on_error = True
# Notebooks compile more than they compute. One level of optimization less saves a quarter of their
# time; at level 0, as in the tests, their training steps would cost three times as much.
XLA_FLAGS = "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"  # the older emitters compile faster
os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

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
        if what in ("attribute", "property", "data"):  # napoleon takes "a: b" for type and text
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


def group_members(module, first=()):
    """Return the public names of a module as (functions, data, classes); `first` lead their group.

    Data are included if they have a docstring of their own, or a comment that documents them.
    """
    own = [name for name in vars(module) if name[0] != "_" and is_defined_in(module, name)]
    comments = [name for scope, name in ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
                if not scope]  # fmt: skip
    functions, data, classes = [], [], []
    if hasattr(module, "__path__"):  # a package exports what it imports
        own = [
            n for n, value in vars(module).items() if n[0] != "_" and not inspect.ismodule(value)
        ]
    for name in sorted({*own, *comments}, key=str.lower):
        value = getattr(module, name)
        if inspect.isclass(value):
            classes.append(name)
        elif name in comments or "__doc__" in getattr(value, "__dict__", {}):
            data.append(name)
        elif callable(value) and hasattr(value, "__name__") and value.__doc__:
            functions.append(name)
    rank = {name: place for place, name in enumerate(first)}
    lead = lambda names: sorted(names, key=lambda name: rank.get(name, len(rank)))  # noqa: E731
    return tuple(map(lead, (functions, data, classes)))


def is_defined_in(module, name):
    """Whether a module defines the function or class that it calls by a name."""
    value = vars(module)[name]
    is_code = inspect.isclass(value) or inspect.isroutine(value)
    return is_code and value.__module__ == module.__name__


class ApiPage(SphinxDirective):
    """A module's docstring, a table of its members, then functions, data and classes."""

    required_arguments = 1
    option_spec = {"first": directives.unchanged}  # noqa: RUF012

    def run(self):
        """Write the page as autodoc's directives and parse it."""
        name = self.arguments[0]
        module = importlib.import_module(name)
        groups = group_members(module, self.options.get("first", "").split())
        lines = [f".. automodule:: {name}", "   :no-members:", ""]
        for title, members in zip(("Functions", "Data", "Classes"), groups, strict=True):
            if members:
                lines += [f".. rubric:: {title}", "", ".. autosummary::", "   :nosignatures:", ""]
                lines += [*(f"   {member}" for member in members), ""]
        for kind, members in zip(("function", "data", "class"), groups, strict=True):
            for member in members:
                lines += [f".. auto{kind}:: {name}.{member}"]
                lines += ["   :no-value:"] * (kind == "data") + [""]
        return self.parse_text_to_nodes("\n".join(lines))


def write_lists(app):
    """Write the pages that list configs and keys, which git ignores."""
    sys.path.insert(0, str(pathlib.Path(app.srcdir).parent))
    from experiments.command.keys import write_pages
    from experiments.kinds.registry import KINDS

    write_pages(f"{app.srcdir}/generated", {name: kind.KEYS for name, kind in KINDS.items()})


def setup(app):
    """Connect what is above to what it comes before or after."""
    app.add_directive("api-page", ApiPage)
    app.connect("builder-inited", write_lists)
    app.connect("autodoc-process-docstring", keep_formulas, priority=1)
    app.connect("autodoc-process-docstring", keep_colons, priority=999)
    app.connect("html-page-context", shorten_types)
