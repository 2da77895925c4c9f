"""The documentation's build: `make docs`. Pages are MyST Markdown; the API pages read the docstrings."""

import inspect
import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

from autowarm import __version__

HERE = Path(__file__).parent

project, author, copyright = "autowarm", "the autowarm authors", "the autowarm authors"
release = version = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "data"]
html_theme = "furo"
html_title = "autowarm"
html_static_path = ["_static"]
html_css_files = ["autowarm.css"]
html_math_renderer = "mathml"  # by the browser itself: equations need neither scripts nor the network

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebook is stored as it ran; the tests run it again

smartquotes_action = "D"  # dashes alone: Δ' is a symbol
default_role = "py:obj"  # `Profile` in a docstring is a link where there is such an object, and code where not
add_module_names = False  # the page's title names the module, and a narrow screen has no room for both
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True


def adapt_docstring(app, what, name, obj, options, lines):
    """Docstrings are written to be read as they are; this makes reStructuredText of them."""
    if what == "property":  # Napoleon has taken what stands before a colon for its type
        lines[:] = [*inspect.cleandoc(obj.__doc__ or "").splitlines(), ""]
    for i, line in enumerate(lines):
        line = re.sub(r"(?<!\\)\|", r"\\|", line)  # |x| is an absolute value, not a substitution
        lines[i] = re.sub(r"(?<!`)(`[^`]+`)(?=\w)", r"\1\\ ", line)  # `Point`s


def pages_of_tables(app):
    """A page for each stored table, which would otherwise be downloaded."""
    folder = HERE / "generated" / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    tables = sorted((HERE / "data" / "tables").glob("*.csv"))
    for page in {*folder.iterdir()} - {folder / f"{path.stem}.md" for path in tables}:
        page.unlink()  # of a table that has gone
    for path in tables:
        title = path.stem.replace("-", " ").capitalize()
        directive = f"```{{csv-table}}\n:file: ../../data/tables/{path.name}\n:header-rows: 1\n```"
        download = f"{{download}}`CSV <../../data/tables/{path.name}>`"
        text = f"---\norphan: true\n---\n\n# {title}\n\n{directive}\n\n{download}\n"
        page = folder / f"{path.stem}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def link_tables(app, docname, source):
    """Links to a stored table lead to its page."""
    source[0] = re.sub(r"\]\(data/tables/([\w-]+)\.csv\)", r"](generated/tables/\1.md)", source[0])


def skip_field(app, what, name, obj, skip, options):
    """A NamedTuple's fields are described in its docstring, and Python's own say only their places."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def equation(translator, node):
    """Write a formula as MathML, which docutils makes of LaTeX."""
    block = isinstance(node, nodes.math_block)
    translator.body.append(tex2mathml(node.astext().strip(), as_block=block))
    raise nodes.SkipNode


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", pages_of_tables)
    app.connect("source-read", link_tables)
    app.connect("autodoc-process-docstring", adapt_docstring)
    app.connect("autodoc-skip-member", skip_field)
    app.add_html_math_renderer("mathml", (equation, None), (equation, None))
