"""Measured figures: the tables of README and the site are current, and each has a source."""

import pathlib
import re
import runpy

import pytest

TABLES = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "docs/tables.py"))
RESULTS, PAGES = TABLES["RESULTS"], TABLES["find_pages"]()
REVISION = re.compile(r"\b[0-9a-f]{7}\b")


@pytest.fixture(scope="module")
def results():
    return TABLES["read_results"]()


def test_tables_are_current(results):
    stale = [page for page in PAGES if page.read_text() != TABLES["render_page"](page, results)]
    assert not stale, "run: python docs/tables.py"


def test_no_page_outside_results_has_a_revision():
    found = [
        (page, line)
        for page in PAGES
        if page.parent != RESULTS
        for line in page.read_text().splitlines()
        if REVISION.search(line)
    ]
    assert not found


def test_each_figure_has_a_source_and_is_shown_once(results):
    assert results["revision"].str.contains(REVISION).all()
    assert results["date"].str.fullmatch(r"\d{4}-\d\d-\d\d").all()
    assert (results["value"] != "").all()
    assert not results.duplicated(["table", "row", "column"]).any()
    text = "".join(page.read_text() for page in PAGES)
    assert set(results["table"]) == set(re.findall(r"<!-- table (\S+) -->", text))


def test_an_unknown_table_is_reported(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table nothing -->\n<!-- end -->\n")
    with pytest.raises(SystemExit, match="nothing"):
        TABLES["render_page"](page, results)
