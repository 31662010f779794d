import base64
import html.parser
import json
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Drawing

from cpc.report.draw import add_shared_legend, label, make_figure
from cpc.report.engine import Figure, Section, Table, cells, kinds, markdown, to_png, write_page

SCRIPT = "<script>alert('a & b')</script>"


class Page(html.parser.HTMLParser):
    """A parsed page; fails on tags closed out of order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text, self.rows = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("meta", "img", "br", "wbr", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def drawing():
    figure = Drawing(figsize=(2, 1))
    figure.add_subplot().plot([1, 2])
    return figure


def test_every_text_is_escaped(tmp_path):
    frame = {"name": [SCRIPT, "b"], "nats": [1.23456, np.nan], SCRIPT: [60_000, 2]}
    table = Table(SCRIPT, pd.DataFrame(frame), SCRIPT, {"nats": ".2f"})
    section = Section(SCRIPT, [SCRIPT], [Figure("f", drawing(), SCRIPT, SCRIPT)], [table], [table])
    summary = Section("", [SCRIPT])
    path = write_page(tmp_path, "p", SCRIPT, SCRIPT, [summary, section], also=("md", "json"))
    page = Page(path.read_text())
    assert "script" not in page.tags
    assert "".join(page.text).count(SCRIPT) >= 12
    assert page.rows[1] == [SCRIPT, "1.23", "60,000"]
    assert page.rows[2] == ["b", "–", "2"]
    assert "<script>" not in (tmp_path / "p.md").read_text()
    stored = json.loads((tmp_path / "p.json").read_text())["sections"][-1]["tables"][0]["rows"]
    assert [row["nats"] for row in stored] == [1.23456, None]  # unrounded


def test_page_is_one_file(tmp_path):
    section = Section("s", figures=[Figure("f", drawing(), "t", "c")])
    page = write_page(tmp_path, "p", "t", "l", sections=[section]).read_text()
    assert not re.search(r"https?://|<link|<script|@import|url\(", page)
    (embedded,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(embedded) == (tmp_path / "figures" / "f.png").read_bytes()


def test_dollars_in_names_are_not_mathematics():
    figure, (axes, powers) = make_figure(2)
    axes.plot([1, 2], label="prices_$_and_$^")
    axes.set_yticks([1, 2], ["a$_$", "$^$"])
    axes.annotate("$_$", (0, 1))
    label(axes, "$x$", "$^$", "prices_$_and_$^")
    powers.plot([1, 1000])
    powers.set_yscale("log")
    add_shared_legend(figure, [axes])
    png = to_png(figure)
    assert "mathdefault" in powers.get_yticklabels()[2].get_text()
    assert powers.get_yticklabels()[2].get_parse_math()
    assert png == to_png(figure)


def test_empty_sections_are_omitted_and_duplicate_figures_rejected(tmp_path):
    page = write_page(tmp_path, "p", "t", "l", sections=[Section("nothing"), Section("s", ["x"])])
    assert "nothing" not in page.read_text()
    assert not (tmp_path / "figures").exists()
    twice = Section("s", figures=[Figure("f", drawing(), title, "c") for title in "ab"])
    with pytest.raises(ValueError, match="two figures of the page p are named f"):
        write_page(tmp_path, "p", "t", "l", sections=[twice])


@pytest.mark.parametrize(("values", "kind", "texts"), [
    ([0.5, 1e-5], "number", ["0.5", "1e−5"]), (["a", None], "text", ["a", ""]),
    (["a" * 40], "long", ["a" * 40]), ([None, None], "number", ["", ""]),
    ([-3, True], "number", ["−3", "yes"]),
])  # fmt: skip
def test_column_kinds_and_texts(values, kind, texts):
    table = Table("t", pd.DataFrame({"x": pd.Series(values, dtype=object)}))
    assert kinds(table) == [kind]
    assert [row[0] for row in cells(table)] == texts


def test_markdown_cells_are_escaped():
    lines = markdown(Table("t", pd.DataFrame({"run": ["<img src=x>", "a|b", "a\\|b", "a\nb"]})))
    assert lines.splitlines()[2:] == ["| &lt;img src=x> |", "| a\\|b |", "| a\\\\\\|b |", "| a b |"]
