"""Which of the paper's claims the cells of a reproduction bear out."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from cpc.results import Difference, Frame
from cpc.results.compare import UNKNOWN
from experiments.reproduce.cells import FAR_OFFSETS
from experiments.reproduce.claims import CHANCE, TABLES, PaperTable
from experiments.reproduce.estimates import combine, in_percent, lead
from experiments.reproduce.ranks import order_agreement
from experiments.reproduce.read import Reproduction
from experiments.reproduce.trends import read_offsets
from experiments.reproduce.verdicts import MISSING, VERDICTS, join, judge_pair
from experiments.training.supervised import AT_LIMIT


class Result(NamedTuple):
    """A table of the paper on one labelled set."""

    table: PaperTable
    data: str
    rows: Frame
    """By label: cell, paper, value, low, high (percent; NaN if not measured), seeds, and at_limit:
    whether a training on labels was ended by its number of steps."""
    pairs: Frame
    """A row for each pair of each claim: claim, lower, relation, higher, verdict, and of the higher
    minus the lower in points value, low, high, paired and seeds, as `lead` has them."""
    order: Difference | None
    """Kendall's tau of the order against the paper's, and its p."""

    @property
    def verdicts(self) -> dict[str, str]:
        """What became of each claim."""
        return {
            str(claim): join(rows.verdict.tolist())
            for claim, rows in self.pairs.groupby("claim", sort=False)
        }


def read_results(reproduction: Reproduction) -> list[Result]:
    """Return each table that was asked for, once for each set that its task was probed on."""
    scores = reproduction.scores
    return [
        read_result(scores, table, data)
        for table in TABLES
        if f"table {table.number}" in reproduction.plan["parts"]
        for data in labelled_sets(scores, table) or [""]
    ]


def read_result(scores: Frame, table: PaperTable, data: str) -> Result:
    """Return a table as far as it is measured."""
    found = find_rows(scores, table, data)
    rows = measure(table, found)
    return Result(table, data, rows, judge(table, found), order_agreement(rows))


def labelled_sets(scores: Frame, table: PaperTable) -> list[str]:
    """Return the names of the sets that a table's task was probed on."""
    cells = {row.cell for row in table.rows}
    asked = (scores.task == table.task) & (scores.unit == table.unit) & scores.cell.isin(cells)
    return sorted(scores[asked].data.unique())


def find_rows(scores: Frame, table: PaperTable, data: str) -> dict[str, Frame]:
    """Return the scores of each row of a table by label, one for each seed; none not measured."""
    of_task = (scores.task == table.task) & (scores.data == data) & (scores.unit == table.unit)
    found = {}
    for row in table.rows:
        mine = scores[of_task & (scores.cell == row.cell)]
        if row.features == CHANCE:  # whatever was probed, without an interval
            mine = mine[(mine.metric == "accuracy") & mine.chance.notna()].drop_duplicates("seed")
            mine = mine.assign(value=mine.chance, low=math.nan, high=math.nan, outcomes=None)
        else:
            asked = {"features": row.features, "method": row.method, "metric": table.metric}
            mine = mine[(mine[list(asked)] == pd.Series(asked)).all(axis=1)]
        found[row.label] = mine
    return found


def measure(table: PaperTable, found: Mapping[str, Frame]) -> Frame:
    """Return the rows of a table by label, in percent, NaN where nothing is measured."""
    rows = []
    for row in table.rows:
        mine = found[row.label]
        over = in_percent(combine(mine)) if len(mine) else UNKNOWN
        at_limit = bool(mine.setting.str.endswith(AT_LIMIT).any())
        rows.append((row.label, row.cell, row.paper, *over[:3], len(mine), at_limit))
    names = ["row", "cell", "paper", "value", "low", "high", "seeds", "at_limit"]
    return pd.DataFrame(rows, columns=pd.Index(names)).astype({"paper": float}).set_index("row")


def judge(table: PaperTable, found: Mapping[str, Frame]) -> Frame:
    """Return each pair of each claim of a table, with its verdict; see `Result.pairs`.

    By the interval of `lead`: a pair is told apart only beyond the scatter of seeds and that of
    test items, each for itself and both together.
    """
    rows = []
    for claim in table.claims:
        for low, high in claim.pairs:
            over, seeds, verdict = UNKNOWN, 0, MISSING
            if len(found[low]) and len(found[high]):
                over, seeds = lead(found[high], found[low])
                over = in_percent(over)
                verdict = judge_pair(over, claim.relation)
            own = over.paired, seeds, verdict
            rows.append((claim.sentence, low, claim.relation, high, *over[:3], *own))
    names = ["claim", "lower", "relation", "higher", "value", "low", "high"]
    return pd.DataFrame(rows, columns=pd.Index([*names, "paired", "seeds", "verdict"]))


def verdict(
    reproduction: Reproduction,
    results: Sequence[Result],
    told: Sequence[tuple[str, str, int]] = (),
) -> list[str]:
    """Return which claims held, which did not, which cannot be told, and which are not measured.

    `told` are claims of no table: the sentence, its verdict, and on how many seeds that rests.
    """
    found: dict[str, dict[str, list[str]]] = {}  # verdict -> claim -> the labelled sets
    rest_on = [n for result in results for n in result.pairs.seeds if n]
    several = {
        one.table.title for one in results for other in results
        if one.table is other.table and one.data != other.data
    }  # fmt: skip
    for result in results:
        on = [result.data] if result.table.title in several else []
        for claim, word in result.verdicts.items():
            sentence = f"{result.table.task}: {claim}"
            found.setdefault(word, {}).setdefault(sentence, []).extend(on)
    if "figure 3" in reproduction.plan["parts"]:
        offsets = read_offsets(reproduction.runs.get(FAR_OFFSETS, []))
        word = offsets.verdict if offsets else MISSING
        rest_on += [offsets.seeds] if offsets else []
        found.setdefault(word, {})["accuracy falls with the offset (Figure 3)"] = []
    for claim, word, seeds in told:
        rest_on += [seeds] if seeds else []
        found.setdefault(word, {})[claim] = []

    def listed(claims: dict[str, list[str]]) -> str:
        return "; ".join(f"{c} ({', '.join(on)})" if on else c for c, on in claims.items())

    waiting = ", ".join(reproduction.waiting)
    alone = [number == 1 for number in rest_on]
    how_many = "All" if all(alone) else "Some"
    on_one_seed = f"{how_many} of these verdicts rest on one seed, and say nothing about others."
    return [
        *(f"{words}: {listed(found[word])}." for word, words in VERDICTS.items() if word in found),
        *([on_one_seed] if any(alone) else []),
        *([f"Cells not begun: {waiting}."] if waiting else []),
        *reproduction.problems,
    ]
