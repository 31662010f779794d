"""Rows of the bench: numbers for json, a line for the reader, a verdict on what has a target."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Target(NamedTuple):
    """What a figure should reach."""

    figure: str
    bound: float
    at_least: bool = True

    def is_met(self, value: float) -> bool:
        """Is it reached?"""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        """The figure's name and its bound."""
        return f"{self.figure} {'>=' if self.at_least else '<='} {self.bound:g}"


class Row(NamedTuple):
    """One line of the table."""

    name: str
    figures: dict[str, Any]
    """Names with their units -> numbers or words."""
    text: str
    """The same, for the reader."""
    target: Target | None = None

    def is_met(self) -> bool | None:
        """Is the target reached? None without one."""
        return self.target and self.target.is_met(self.figures[self.target.figure])


def describe(row: Row) -> dict[str, Any]:
    """A row as json holds it."""
    judged = {"target": str(row.target), "met": row.is_met()} if row.target else {}
    return {"name": row.name, **row.figures, **judged}


def format_table(rows: Sequence[Row]) -> str:
    """One line a row: name, figures, target and verdict."""
    widths = [max(len(row.name) for row in rows), max(len(row.text) for row in rows)]
    lines = []
    for row in rows:
        verdict = f"{row.target}: {'met' if row.is_met() else 'MISSED'}" if row.target else ""
        lines.append(f"{row.name:<{widths[0]}}  {row.text:<{widths[1]}}  {verdict}".rstrip())
    return "\n".join(lines)
