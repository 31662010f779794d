"""The last lines of a run on the console: one score per task next to its baselines."""

from pathlib import Path

from cpc.report.scores import METHODS, column_of, feature_title, headlines, task_phrase
from cpc.report.sentences import gain_sentences, harm_sentences, lost_sentences
from cpc.report.words import Words
from cpc.results import read_run, show_value, text_table


def closing_lines(workdir: str | Path, words: Words) -> list[str]:
    """Return a table of each task's headline score and its baselines, and what training gained."""
    run, lines = read_run(workdir), []
    found = headlines(run.scores, words)
    for headline in found:
        ours, scores = headline.score, headline.same_probe
        learned, untrained = ours.features, f"random {ours.features}"
        if learned in words.baselines or learned.startswith("random "):  # nothing learned is scored
            learned, untrained = "", learned
        names = (*words.baselines, "" if untrained in words.baselines else untrained, learned)
        how = METHODS.get(ours.method, ours.method)
        name = f"{task_phrase(ours)}, {how}, {column_of(ours.metric)}"
        values = [scores[name].value if name in scores else None for name in names]
        shown = ["" if value is None else show_value(value, ours.metric) for value in values]
        lines.append([name, show_value(ours.chance, ours.metric), *shown])
    if not lines:
        return []
    titles = [feature_title(name, words) for name in words.baselines]
    return [
        *harm_sentences(run, found, words),
        *text_table([["score", "chance", *titles, "untrained", "CPC"], *lines]),
        *gain_sentences(found),
        *lost_sentences(found, words),
    ]
