"""Write the tables of measured figures into README.md and the pages of the guide.

Each figure is a row of a file in docs/results: table, row, column, value, interval, seeds, source.
sources.csv has the command, revision, device and date of each source. `python docs/tables.py`
replaces the lines between `<!-- table NAME -->` and `<!-- end -->` on every page.
"""

import pathlib
import re
from typing import Any

import pandas as pd

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
TABLE = re.compile(r"(?<=<!-- table )(\S+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def read_results() -> pd.DataFrame:
    """Return every measured figure with the columns of its source; missing entries are ""."""
    read = lambda path: pd.read_csv(path, dtype=str, keep_default_na=False)  # noqa: E731
    files = [path for path in sorted(RESULTS.glob("*.csv")) if path.name != "sources.csv"]
    figures = pd.concat([read(path) for path in files], ignore_index=True)
    return figures.merge(read(RESULTS / "sources.csv"), on="source", how="left", validate="m:1")


def render_table(figures: pd.DataFrame, with_revision: bool) -> str:
    """Return one table as Markdown, and its sources.

    Rows are in order of appearance, columns in the order of the row that has the most of them.
    """
    shown = figures["value"] + figures["interval"].map(lambda text: f" ({text})" if text else "")
    cells = figures.assign(shown=shown).pivot(index="row", columns="column", values="shown")
    longest = figures["row"] == figures["row"].value_counts().idxmax()
    columns = [*dict.fromkeys([*figures["column"][longest], *figures["column"]])]
    cells = cells.reindex(figures["row"].unique())[columns].fillna("")
    lines = ["| | " + " | ".join(cells.columns) + " |", "|---" * (cells.shape[1] + 1) + "|"]
    lines += [f"| {row} | " + " | ".join(values) + " |" for row, *values in cells.itertuples()]
    for source in figures.drop_duplicates(["source", "seeds"]).to_dict("records"):
        seeds, command = source["seeds"], source["command"]
        parts = [
            f"Measured by `{command}`" if command else "",
            f"seed{'' if seeds.isdigit() else 's'} {seeds}" if seeds else "",
            source["device"],
            f"revision {source['revision']}" if with_revision else "",
            source["date"],
        ]
        lines += ["", "; ".join(filter(None, parts)) + "."]
    return "\n".join(lines) + "\n\n"


def render_page(path: pathlib.Path, results: pd.DataFrame) -> str:
    """Return the text of a page with its tables as the results are."""

    def replace(found):
        figures: Any = results[results["table"] == found[1]]
        if figures.empty:
            raise SystemExit(f"{path} has a table {found[1]!r} that no file of {RESULTS} contains")
        return found[1] + found[2] + render_table(figures, path.parent == RESULTS)

    return TABLE.sub(replace, path.read_text())


def find_pages() -> list[pathlib.Path]:
    """Return README and the pages of the site that git tracks."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in pages if page.parent.name != "generated")]


if __name__ == "__main__":
    results = read_results()
    for page in find_pages():
        if (text := render_page(page, results)) != page.read_text():
            page.write_text(text)
