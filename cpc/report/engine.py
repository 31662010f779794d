"""Pages with sections of text, figures and tables, written as HTML, Markdown and JSON.

HTML pages are self-contained, and equal content gives equal bytes. The template escapes all texts.
"""

import base64
import functools
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from cpc.files import replacing, write_json, write_text
from cpc.results import Frame

if TYPE_CHECKING:  # these imports take a second, which would delay the start of training
    import jinja2
    import matplotlib.figure
    from markupsafe import Markup

#: A column's format: a format specification such as ".2f", or a function from value to text.
Format: TypeAlias = str | Callable[[Any], str]


class Figure(NamedTuple):
    """A figure on a page. It is also written to figures/NAME.png."""

    name: str
    figure: "matplotlib.figure.Figure"
    title: str
    caption: str


class Table(NamedTuple):
    """A table on a page: a frame, and formats for its columns."""

    title: str
    frame: Frame
    note: str = ""
    formats: Mapping[str, Format] = {}
    """Formats by column. Columns without a format are formatted by `show`."""


class Sound(NamedTuple):
    """A short recording that can be played on a page."""

    title: str
    path: str
    """Path of the wav file, relative to the page."""
    content: bytes


class Section(NamedTuple):
    """Text, figures and tables under a heading. A section without a title is the summary."""

    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    details: Sequence[Table] = ()
    """Tables that are collapsed until the reader opens them."""
    sounds: Sequence[Sound] = ()


def figure_of(name: str, made: Any, title: str, caption: str) -> list[Figure]:
    """Return a list with the matplotlib figure `made` as a `Figure`, or [] if it is None."""
    return [] if made is None else [Figure(name, made, title, caption)]


def write_page(
    folder: str | Path,
    name: str,
    title: str,
    lead: str,
    sections: Sequence[Section | None],
    also: Sequence[str] = (),
) -> Path:
    """Write a page and its figures into a folder, and return the HTML file's path.

    Args:
        folder: the folder, which is created if necessary.
        name: the page's file name without extension.
        title: the title of the page.
        lead: the line under the title.
        sections: sections in reading order. None and sections without content are left out.
        also: further formats. "md" and "json" also write the page as name.md and name.json.
    """
    from cpc.report.draw import stack_panels

    images, narrow = {}, {}
    kept = [section for section in sections if section and any(section[1:])]
    for figure in (figure for section in kept for figure in section.figures):
        if figure.name in images:
            raise ValueError(f"two figures of the page {name} are named {figure.name}: rename one")
        images[figure.name] = to_png(figure.figure)
        if stack_panels(figure.figure):
            narrow[figure.name] = to_png(figure.figure, 110)
    content = {"title": title, "lead": lead, "sections": kept}
    page = environment().get_template("page.html.j2").render(content, images=images, narrow=narrow)
    path = Path(folder) / f"{name}.html"
    for figure, png in images.items():
        with replacing(path.parent / "figures" / f"{figure}.png", is_durable=False) as part:
            part.write_bytes(png)
    if "md" in also:
        write_text(path.with_suffix(".md"), as_markdown(title, lead, kept))
    if "json" in also:
        write_json(path.with_suffix(".json"), as_json(title, lead, kept))
    write_text(path, page)
    return path


@functools.cache
def environment() -> "jinja2.Environment":
    """Return the Jinja environment with the page template and its filters."""
    import jinja2

    loader = jinja2.PackageLoader("cpc.report")
    made = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.undefined = jinja2.StrictUndefined
    made.filters |= {"breakable": breakable, "cells": cells, "kinds": kinds, "state": state}
    made.filters["base64"] = lambda content: base64.b64encode(content).decode()
    return made


def to_png(figure: "matplotlib.figure.Figure", dpi: int = 160) -> bytes:
    """Render a figure as PNG. A "$" in a text does not start a formula."""
    import matplotlib.text
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for text in figure.findobj(matplotlib.text.Text):
        text.set_parse_math(False)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if axis.get_scale() == "log":  # tick labels such as 10^2 are formulas
            for number in axis.get_ticklabels(which="both"):
                number.set_parse_math(True)
    buffer, canvas, figure_dpi = io.BytesIO(), figure.canvas, figure.dpi
    try:
        # `savefig` would draw twice, first to lay out the panels, but each draw lays them out.
        figure.dpi = dpi
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    finally:
        figure.dpi = figure_dpi
        figure.set_canvas(canvas)
    return buffer.getvalue()


def duration(seconds: float | int) -> str:
    """Format a time span given in seconds.

    >>> duration(42.4), duration(605), duration(9000)
    ('42 s', '10 min 5 s', '2 h 30 min')
    """
    minutes, seconds = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def show(value: Any, style: Format = "") -> str:
    """Format a value for a table. Non-finite numbers become an en dash.

    >>> show(0.12345), show(-1.5, ".2f"), show(float("nan")), show(60000), show("a"), show(True)
    ('0.1235', '−1.50', '–', '60,000', 'a', 'yes')
    """
    if callable(style):
        return style(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "–"
    default = ",.0f" if value == round(value) else ",.4g"
    return format(value, style or default).replace("-", "−").replace("e−0", "e−")


def show_interval(low: float | int, high: float | int, style: str = ".2f") -> str:
    """Format an interval from `low` to `high`. If an end is not finite, return an en dash.

    >>> show_interval(0.5, 0.75), show_interval(0.5, float("nan"))
    ('0.50 to 0.75', '–')
    """
    known = math.isfinite(low) and math.isfinite(high)
    return f"{show(low, style)} to {show(high, style)}" if known else "–"


def cells(table: Table) -> list[list[str]]:
    """Return a table's formatted cells, row by row."""
    columns = []
    for name, values in table.frame.items():
        values, style = list(values), table.formats.get(name, "")
        if any(isinstance(value, str) for value in values):  # a missing text becomes ""
            values = ["" if value is None or value != value else value for value in values]
        columns.append([show(value, style) for value in values])
    return [list(row) for row in zip(*columns, strict=True)]


def kinds(table: Table) -> list[str]:
    """Return each column's kind: "number", "text", or "long" for text that may be wrapped."""
    found = []
    for (_, values), *texts in zip(table.frame.items(), *cells(table), strict=True):
        is_text = any(isinstance(value, str) for value in values)
        is_long = max(map(len, texts), default=0) > 36
        found.append("long" if is_long else "text" if is_text else "number")
    return found


def state(text: str) -> str:
    """Return a cell's CSS class: its text if that is an offset state such as "warn", else ""."""
    return text if text in ("saturated", "warn", "chance", "fine", "diverged") else ""


def breakable(text: str) -> "Markup":
    """Return an HTML text with optional line breaks after dots, underscores and equals signs.

    >>> str(breakable("model.num_offsets=<4>"))
    'model.<wbr>num_<wbr>offsets=<wbr>&lt;4&gt;'
    """
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<=[a-z])([._=])(?=[\w&])", r"\1<wbr>", str(escape(text))))


def markdown(table: Table) -> str:
    r"""Return a table as Markdown.

    >>> import pandas as pd
    >>> print(markdown(Table("t", pd.DataFrame({"cell": ["a|b"], "nats": [1.5]}))), end="")
    | cell | nats |
    |---|---|
    | a\|b | 1.5 |
    """

    def one_line(text: object) -> str:
        return escaped(str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " "))

    lines = (table.frame.columns, *cells(table))
    head, *rows = (f"| {' | '.join(map(one_line, line))} |" for line in lines)
    return "\n".join([head, f"|{'---|' * table.frame.shape[1]}", *rows]) + "\n"


def escaped(text: str) -> str:
    """Escape characters that Markdown would interpret as HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def as_markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a page as Markdown, with links to its figures."""
    parts = [f"# {escaped(title)}", escaped(lead)]
    for section in sections:
        parts += [f"## {escaped(section.title)}" if section.title else ""]
        parts += [escaped(sentence) for sentence in section.sentences]
        parts += [f"![{escaped(one.title)}](figures/{one.name}.png)" for one in section.figures]
        parts += [f"[{escaped(one.title)}]({one.path})" for one in section.sounds]
        for table in (*section.tables, *section.details):
            name = f"**{escaped(table.title)}.** " if table.title else ""
            parts += [f"{name}{escaped(table.note)}".strip(), markdown(table).rstrip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(title: str, lead: str, sections: Sequence[Section]) -> dict[str, Any]:
    """Return a page as JSON data. Numbers in tables are not rounded."""
    return {
        "title": title,
        "lead": lead,
        "sections": [
            {
                "title": section.title,
                "sentences": section.sentences,
                "figures": [figure.name for figure in section.figures],
                "tables": [
                    {"title": one.title, "note": one.note, "rows": one.frame.to_dict("records")}
                    for one in (*section.tables, *section.details)
                ],
            }
            for section in sections
        ],
    }
