"""Sentences that explain the first table and the curves of a run's page, or warn of problems."""

import math
from collections import Counter
from collections.abc import Sequence

from cpc import results
from cpc.report.engine import duration, show
from cpc.report.scores import DIFFERENCE, METHODS, Headline, feature_title
from cpc.report.words import Words
from cpc.results import Run

#: Minimum worsening to report without an interval, relative to the untrained network's score.
MIN_HARM = 0.01
#: Phrases for metrics that are recorded for a loss without log N - L, by metric name.
OPTIMA = {"optimum": "its optimal score is", "posterior": "posterior:"}
#: Warnings by offset state. The fields are the offsets and the negative sampling rule.
STATES = {
    "saturated": "Saturated at k = {} ({}): the number is the ceiling log N, not the information. "
    "To measure more, use more negatives.",
    "chance": "Not above chance at k = {} ({}): the 95 % interval reaches 0. Train longer, or test "
    "on more data.",
    "diverged": "Worse than guessing at k = {} ({}): the loss is more than twice log N. If the "
    "training diverged, lower the learning rate.",
}


def reading_sentences(run: Run, found: Sequence[Headline], words: Words) -> list[str]:
    """Return sentences that explain how the first table and the curves were measured."""
    was_given = not len(run.metrics) and found and not any(run.workdir.glob("checkpoints"))
    if was_given:
        trained = ["The weights were given, and nothing was trained here."]
    else:
        trained = [*bound_sentences(run, words), progress_sentence(run)]
    return [*table_sentences(found, words), *trained]


def warnings(run: Run, found: Sequence[Headline], words: Words) -> list[str]:
    """Return the warnings about a run and its features, most important first."""
    skipped = f"{len(run.skipped):,} files were skipped or truncated: see below."
    return [
        *harm_sentences(run, found, words),
        *lost_sentences(found, words),
        *collapse_sentences(run),
        *state_sentences(run),
        *truth_sentences(run),
        *([skipped] if run.skipped else []),
        *run.problems,
    ]


def table_sentences(found: Sequence[Headline], words: Words) -> list[str]:
    """Return sentences that explain how the scores in the first table were measured."""
    if not found:
        return ["No probe is recorded yet. To fit probes, run cpc probe on this directory."]
    sentence = (
        f"Scores are measured on test {words.tested} with a linear probe of frozen features unless "
        "the row names another method."
    )
    if any(one.score.features in words.features for one in found):
        sentence += f" CPC is {words.features[0]} unless the row names other features."
    if any(f"random {one.score.features}" in one.same_probe for one in found):
        sentence += " Untrained is the same network at random initialization."
    if any(math.isfinite(one.score.chance) for one in found):
        sentence += " Chance is the score of guessing, such as always the most frequent class."
    lead = (
        f"{DIFFERENCE}: the difference between CPC and the best score to its left, with a 95 % "
        f"interval over test {words.tested}. It is paired if all answers on them were recorded."
    )
    names = dict.fromkeys(one.score.data for one in found)
    notes = (f"{name}: {words.notes[name]}" for name in names if name in words.notes)
    return [sentence, lead, *notes]


def bound_sentences(run: Run, words: Words) -> list[str]:
    """Return a sentence on log N - L or, if the loss has none, on the accuracy."""
    found, rows, sentences = results.information(run), results.last_evaluation(run), []
    if found is not None:
        own = results.headline_rows(results.last_evaluation(run, strict=found.method == "bound"))
        kind = "a lower bound on the mutual information of context and future"
        if found.method != "bound":
            kind = "an estimate, not a bound, because the negatives are not independent"
        sentences.append(
            f"log N − L on test {words.examples} is {show(found.value, '.2f')} nats, the mean over "
            f"{found.setting} by the rule “{results.rule_title(found.data)}”, whose ceiling log N "
            f"is {show(own.log_n.mean(), '.2f')}: {kind}."
        )
    has_log_n = rows.bound.notna().any() or (rows.state == "diverged").any()
    if not has_log_n and rows.acc_top1.notna().any():
        known = {key: list(run.metrics[key].dropna()) for key in OPTIMA if key in run.metrics}
        optima = "".join(f"; {OPTIMA[key]} {texts[-1]}" for key, texts in known.items() if texts)
        rule = results.rule_title(str(rows.rule.iloc[0]))
        sentences.append(
            f"The loss by the rule “{rule}” has no log N − L; the "
            f"positive beats every negative {100 * rows.acc_top1.mean():.1f} % of the time "
            f"(chance {100 * rows.chance_top1.mean():.2g} %){optima}."
        )
    return sentences or [f"No bound on test {words.examples} is recorded yet."]


def progress_sentence(run: Run) -> str:
    """Return a sentence with the training steps, time and devices."""
    if not len(run.train):
        return "No training step is recorded yet."
    seconds, devices = results.last_known(run.train, "seconds"), run.environment.get("devices")
    time = f" in {duration(seconds)}" if math.isfinite(seconds) else ""
    counts = Counter(map(str, devices if isinstance(devices, list) else []))
    where = ", ".join(f"{count} x {name}" for name, count in counts.items())
    return f"{run.step:,} training steps{time}, on {where or 'an unrecorded device'}."


def harm_sentences(run: Run, found: Sequence[Headline], words: Words) -> list[str]:
    """Return a warning with advice if training made the features worse for some tasks."""
    harmed = []
    for title, ours, same_probe, _ in found:
        if not (untrained := same_probe.get(f"random {ours.features}")):
            continue
        gain = results.difference(ours, untrained)
        is_worse = results.is_better(gain.low, gain.high, ours.higher_is_better) is False
        if not math.isfinite(gain.low + gain.high):
            loss = -gain.value if ours.higher_is_better else gain.value
            is_worse = loss > MIN_HARM * abs(untrained.value)
        if is_worse:
            values = (results.with_unit(one.value, ours.metric) for one in (untrained, ours))
            harmed.append(f"{title}, from {' to '.join(values)}")
    if not harmed:
        return []
    advice = "train on more data, or compare checkpoints of fewer and more steps"
    section = next((name for name in ("negatives", "cpc") if name in run.config), "")
    rule = results.training_rule(run) or str(run.config.get(section, {}).get("rule"))
    more = f"use more {words.sequence}s, such as more subjects, per batch"
    if section and rule.startswith("own_sequence"):
        advice += f"; to distinguish {words.sequence}s, set {section}.rule=batch and {more}"
    elif section:
        advice = (
            f"to learn what changes within a {words.sequence}, set {section}.rule=own_sequence; "
            f"to distinguish {words.sequence}s, {more}"
        )
    return [f"Training has made the features worse for {'; '.join(harmed)}: {advice}."]


def lost_sentences(found: Sequence[Headline], words: Words) -> list[str]:
    """Return a warning if a baseline beats CPC by probes that are not in the first table."""
    lost: dict[tuple[str, str], str] = {}
    for title, ours, _, by_probe in found:
        for (method, metric), scores in by_probe.items():
            mine = scores.get(ours.features)
            if mine is None or (method, metric) == (ours.method, ours.metric):
                continue
            for other in (scores[name] for name in words.baselines if name in scores):
                lead = results.difference(mine, other)
                if results.is_better(lead.low, lead.high, mine.higher_is_better) is False:
                    values = (results.with_unit(one.value, metric) for one in (other, mine))
                    probe = [] if method == ours.method else [METHODS.get(method, method)]
                    probe += [] if metric == ours.metric else [metric]
                    name = ", ".join([title, *probe])
                    beaten = (
                        f"{name} ({feature_title(other.features, words)}, {' to '.join(values)})"
                    )
                    lost.setdefault((title, method), beaten)  # only the first for each method
    return [f"A baseline beats CPC by other probes: {'; '.join(lost.values())}."] if lost else []


def collapse_sentences(run: Run) -> list[str]:
    """Return a warning for each representation, z or c, that has collapsed."""
    test, sentences = run.metrics[run.metrics.split == "test"], []
    for name in ("z", "c"):
        std, rank = (results.last_known(test, f"{key}_{name}") for key in ("std", "rank"))
        if std < 1e-4 or rank < 2:
            size = f"standard deviation {std:.2g}, effective rank {rank:.2g}"
            sentences.append(f"The representation {name} has collapsed: {size}.")
    return sentences


def state_sentences(run: Run) -> list[str]:
    """Return warnings about offsets whose log N - L cannot be trusted, one per state and rule."""
    strict = results.last_evaluation(run, strict=True)
    rows = strict if len(strict) else results.last_evaluation(run)
    # An infinite loss is recorded as missing.
    rows, sentences = rows[rows.bound.notna() | (rows.state == "diverged")], []
    for (state, rule), part in rows.groupby(["state", "rule"]):
        if state in STATES:
            places = results.offset_ranges(part.offset)
            sentences.append(STATES[state].format(places, f"rule “{results.rule_title(rule)}”"))
    return sentences


def truth_sentences(run: Run) -> list[str]:
    """Return a sentence that compares the bound with the exact mutual information, if known."""
    if run.truth is None:
        return []
    found = results.last_evaluation(run, strict=True).merge(run.truth, on="offset")
    found = found.dropna(subset="bound")
    if not len(found):
        return []
    reached = 100 * found.bound.sum() / max(found.mutual_information.sum(), 1e-9)
    violated = int((found.bound_low > found.mutual_information).sum())
    verdict = " and nowhere exceeds it by more than its interval"
    if violated:
        verdict = f", but exceeds it at {violated} offsets, which a valid bound cannot do"
    known = "The exact information of this source is known"
    return [f"{known}: the bound reaches {reached:.0f} % of it{verdict}."]
