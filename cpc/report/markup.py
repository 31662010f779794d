"""Pieces of HTML: every text is escaped here and nowhere else; and of Markdown and JSON."""

import base64
import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

STYLE = """
:root { --ink: #1f2733; --muted: #5c6776; --line: #e0e5ec; --blue: #2459c9; --soft: #f5f7fa; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1020px; margin: 0 auto; padding: 48px 28px 72px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 52px 0 12px; padding-top: 14px; border-top: 1px solid var(--line); }
p { margin: 8px 0; max-width: 76ch; }
.lead { color: var(--muted); margin-bottom: 24px; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px;
  margin: 24px 0; padding: 0; list-style: none; }
.cards li { background: var(--soft); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 16px; }
.cards b { display: block; font-size: 24px; line-height: 1.3; font-variant-numeric: tabular-nums; }
.cards span { color: var(--muted); font-size: 13px; line-height: 1.35; display: block; }
.verdict { border-left: 3px solid var(--blue); padding: 4px 0 4px 20px; margin: 24px 0; }
.verdict li { margin: 7px 0; max-width: 80ch; }
.verdict ul { margin: 0; padding-left: 16px; }
figure { margin: 18px 0 26px; }
figure img { width: 100%; height: auto; display: block; }
figcaption, .note, caption { color: var(--muted); font-size: 14px; line-height: 1.5;
  max-width: 86ch; }
figcaption b, caption b { color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; margin: 10px 0 24px; width: 100%;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 8px; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid var(--ink); font-weight: 600; vertical-align: bottom;
  white-space: normal; }
td.text, th.text { text-align: left; }
.named th:nth-child(2), .named td:nth-child(2), .plain th { text-align: left; }
.wrapping td { white-space: normal; }
.plain td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.plain td:first-child { width: 30%; }
tr.strong td { font-weight: 600; background: var(--soft); }
.saturated { color: #c8384e; font-weight: 600; } .warn { color: #b3651a; font-weight: 600; }
.chance { color: #7a8594; } .fine { color: #2459c9; }
details { border: 1px solid var(--line); border-radius: 8px; padding: 8px 16px; margin: 10px 0; }
summary { cursor: pointer; font-weight: 600; }
code { font: 13px/1.5 ui-monospace, "SF Mono", "Liberation Mono", Menlo, monospace; }
@media print { h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""


def number_text(value: float | int, style: str) -> str:
    """A number in a format, an en dash when it has no value.

    >>> number_text(0.1234, ".2f"), number_text(math.nan, ".2f")
    ('0.12', '–')
    """
    return format(value, style) if math.isfinite(value) else "–"


def interval_text(low: float | int, high: float | int, style: str) -> str:
    """Both ends of an interval, an en dash when one of them has no value."""
    whole = math.isfinite(low) and math.isfinite(high)
    return f"{low:{style}} to {high:{style}}" if whole else "–"


def page(title: str, body: str) -> str:
    """A whole document with its style inside: it needs nothing beside itself."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading with what belongs to it; nothing at all when there is nothing."""
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>" if body else ""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is a class of the style."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def bullets(sentences: Sequence[str]) -> str:
    """The sentences of the verdict."""
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="verdict">\n<ul>\n{items}\n</ul>\n</div>'


def cards(numbers: Sequence[tuple[str, str]]) -> str:
    """Large numbers with their meaning below: (number, meaning)."""
    items = "\n".join(f"<li><b>{escape(n)}</b><span>{escape(m)}</span></li>" for n, m in numbers)
    return f'<ul class="cards">\n{items}\n</ul>' if numbers else ""


def breakable(text: str) -> str:
    """With a zero-width space where the key of a config may go on in a new line.

    >>> breakable("model.num_offsets=4, 0.5").split("\u200b")
    ['model.', 'num_', 'offsets=', '4, 0.5']
    """
    return re.sub(r"(?<=[a-z])[._=](?=\w)", lambda found: f"{found[0]}\u200b", text)


def picture(png: bytes, title: str, caption: str) -> str:
    """A figure with the PNG inside the page, a bold title and how to read it."""
    data = base64.b64encode(png).decode()
    return (
        f'<figure>\n<img alt="{escape(title)}" src="data:image/png;base64,{data}">\n'
        f"<figcaption><b>{escape(title)}.</b> {escape(caption)}</figcaption>\n</figure>"
    )


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    caption: str = "",
    kinds: Sequence[str] = (),
    style: str = "",
) -> str:
    """A table; `kinds` are the style classes of the rows, `style` is the table's own."""
    kinds = [*kinds, *[""] * (len(rows) - len(kinds))]
    top = f"<caption><b>{escape(title)}.</b> {escape(caption)}</caption>\n" if title else ""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    heading = f"<thead><tr>{columns}</tr></thead>\n" if head else ""
    body = "\n".join(
        f'<tr class="{kind}">' + "".join(f"<td>{cell(text)}</td>" for text in row) + "</tr>"
        for row, kind in zip(rows, kinds, strict=True)
    )
    inside = f"{top}{heading}<tbody>\n{body}\n</tbody>"
    return f'<div class="scroll"><table class="{style}">\n{inside}</table></div>'


def cell(text: str) -> str:
    """A cell's text; the names of saturation states are coloured."""
    if text in ("saturated", "warn", "chance", "fine"):
        return f'<span class="{text}">{text}</span>'
    return escape(text)


def details(summary: str, body: str) -> str:
    """Closed until it is wanted."""
    return f"<details><summary>{escape(summary)}</summary>\n{body}\n</details>"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A table as GitHub reads it.

    >>> print(markdown(["cell", "nats"], [["a|b", "1.5"]]), end="")
    | cell | nats |
    |---|---|
    | a\|b | 1.5 |
    """
    lines = [head, ["---"] * len(head), *rows]
    texts = [[text.replace("|", "\\|").replace("\n", " ") for text in line] for line in lines]
    texts = [f"| {' | '.join(line)} |" for line in texts]
    texts[1] = f"|{'---|' * len(head)}"
    return "\n".join(texts) + "\n"


def finite(tree: Any) -> Any:
    """JSON has no NaN: null instead.

    >>> finite({"low": math.nan, "values": [1.0]})
    {'low': None, 'values': [1.0]}
    """
    if isinstance(tree, dict):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
