"""The last lines of a run on the console: one score per task beside its baselines."""

from pathlib import Path

from cpc.report.score_section import column_of
from cpc.report.scores import METHODS, feature_title, headlines, score_groups
from cpc.report.sentences import gain_sentence, harm_sentences, lost_sentences
from cpc.report.words import Words
from cpc.results import last_scores, read_run, show_value, text_table


def closing_lines(workdir: str | Path, words: Words) -> list[str]:
    """Return a table of each task's headline score and its baselines, and what training gained."""
    run, lines = read_run(workdir), []
    found = headlines(score_groups(last_scores(run.scores), words), words)
    for ours, rows in found:
        alike = {
            score.features: score
            for score in rows.itertuples()
            if (score.method, score.metric) == (ours.method, ours.metric)
        }
        learned, untrained = ours.features, f"random {ours.features}"
        if learned in words.baselines or learned.startswith("random "):  # nothing learned is scored
            learned, untrained = "", learned
        names = (*words.baselines, "" if untrained in words.baselines else untrained, learned)
        values = [alike[name].value if name in alike else None for name in names]
        how = METHODS.get(ours.method, ours.method)
        name = f"{ours.task.replace('_', ' ')} of {ours.data} by {ours.unit}, {how}"
        shown = ["" if one is None else show_value(one, ours.metric) for one in values]
        name += f", {column_of(ours.metric)}"
        lines.append([name, show_value(ours.chance, ours.metric), *shown])
    if not lines:
        return []
    titles = [feature_title(name, words) for name in words.baselines]
    head = ["score", "chance", *titles, "untrained", "CPC"]
    gain = gain_sentence(found)
    return [
        *harm_sentences(run, found, words),
        *text_table([head, *lines]),
        *([gain] if gain else []),
        *lost_sentences(found, words),
    ]
