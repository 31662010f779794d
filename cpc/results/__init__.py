"""Measured numbers as one table: the score, its writer, the reader of runs, the comparison.

Only this package reads run directories. `read_run` reports damaged files in `Run.problems`.
"""

from cpc.results.compare import (
    Cell,
    Difference,
    compare,
    difference,
    group_by_seed,
    information,
    is_better,
    over_seeds,
    paired_difference,
    settings,
    stem,
)
from cpc.results.run import (
    Run,
    at_end,
    evaluations,
    last_evaluation,
    last_known,
    last_scores,
    read_run,
    rule_title,
    training_rule,
)
from cpc.results.score import (
    QUESTION,
    Frame,
    Outcomes,
    Row,
    Score,
    digest,
    in_percent,
    name_of,
    print_scores,
    read_scores,
    score_frame,
    show_value,
    text_table,
    unit_of,
    with_unit,
    write_scores,
)

__all__ = [
    "QUESTION", "Cell", "Difference", "Frame", "Outcomes", "Row", "Run", "Score", "at_end",
    "compare", "difference", "digest", "evaluations", "group_by_seed", "in_percent", "information",
    "is_better", "last_evaluation", "last_known", "last_scores", "name_of", "over_seeds",
    "paired_difference", "print_scores", "read_run", "read_scores", "rule_title", "score_frame",
    "settings", "show_value", "stem", "text_table", "training_rule", "unit_of", "with_unit",
    "write_scores",
]  # fmt: skip
