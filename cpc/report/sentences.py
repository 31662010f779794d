"""Sentences that summarise a run from its recorded numbers."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from cpc.report.engine import duration, show
from cpc.report.scores import (
    METHODS,
    Headline,
    capitalize,
    feature_title,
    metric_groups,
    task_phrase,
)
from cpc.report.words import Words
from cpc.results import (
    Difference,
    Frame,
    Row,
    Run,
    difference,
    evaluations,
    headline_rows,
    in_percent,
    is_better,
    last_evaluation,
    last_known,
    last_scores,
    offset_ranges,
    rule_title,
    show_value,
    training_rule,
    unit_of,
    with_unit,
)

#: Loss, as a fraction of the untrained network's score, that is reported without an interval.
MIN_HARM = 0.01


def summary(run: Run, found: Sequence[Headline], words: Words) -> list[str]:
    """Return the opening sentences of the page, most important first."""
    skipped = f"{len(run.skipped):,} files were skipped or cut short: see below."
    return [
        *harm_sentences(run, found, words),
        *collapse_sentences(run),
        *gain_sentences(found),
        *(score_sentences(found, words) if len(run.scores) else ["No probe is recorded yet."]),
        *lost_sentences(found, words),
        *curve_sentences(run, words),
        *([] if was_given(run) else bound_sentences(run, words)),
        *truth_sentences(run),
        progress_sentence(run),
        *([skipped] if run.skipped else []),
        *run.problems,
    ]


def was_given(run: Run) -> bool:
    """Return whether a directory has scores of weights that were trained elsewhere."""
    return not len(run.metrics) and len(run.scores) > 0 and not any(run.workdir.glob("checkpoints"))


def progress_sentence(run: Run) -> str:
    """Return sentences on the length and speed of the run."""
    if not len(run.train):
        given = "The weights were given; nothing was trained here."
        return given if was_given(run) else "No training step is recorded yet."
    sentence = f"{run.step:,} training steps"
    if math.isfinite(seconds := last_known(run.train, "seconds")):
        sentence += f" in {duration(seconds)}"
    if {"per_step", "steps_per_second"} <= {*run.train}:
        rate = (run.train.per_step * run.train.steps_per_second).median()
        if math.isfinite(rate):
            sentence += f", {rate_phrase(rate, str(run.train.per_step_unit.iloc[-1]))} each second"
    devices = run.environment.get("devices")
    names = sorted(map(str, devices)) if isinstance(devices, list) else []
    where = ", ".join(dict.fromkeys(names)) or "an unrecorded device"
    count = f"{len(names)} x " if len(set(names)) == 1 else ""
    return f"{sentence}, on {count}{where}."


def rate_phrase(rate: float | int, unit: str) -> str:
    """Return the data per second in words; hours of data become a time span.

    >>> rate_phrase(0.02, "h audio"), rate_phrase(0.03, "M steps"), rate_phrase(1.5, "images")
    ('1 min 12 s of audio', '30,000 steps', '1.5 images')
    """
    prefix, _, noun = unit.partition(" ")
    if prefix == "h":
        seconds = 3600 * rate
        span = duration(seconds) if seconds >= 10 else f"{seconds:.2g} s"
        return f"{span} of {noun or 'data'}"
    if prefix in ("M", "k"):
        rate, unit = rate * {"M": 1e6, "k": 1e3}[prefix], noun
    return f"{rate:,.0f} {unit}" if rate >= 10 else f"{rate:.2g} {unit}"


def bound_sentences(run: Run, words: Words) -> list[str]:
    """Return sentences on the bound, the estimate and the offsets that cannot be trusted."""
    trained, strict = last_evaluation(run), last_evaluation(run, strict=True)
    if not len(trained):
        return [f"No bound on test {words.examples} is recorded yet."]
    sentences, rule = [], rule_title(str(trained.rule.iloc[0]))
    if strict.bound.notna().any():
        sentences.append(
            "Mutual information between context and future latent, lower bound on test "
            f"{words.examples}: {bound_phrase(strict[strict.bound.notna()])} "
            f"(rule “{title_of(run, strict)}”, ceiling log N = "
            f"{show(strict.log_n.mean(), '.2f')})."
        )
        sentences += split_sentences(strict, words)
    if not trained.is_bound.all() and trained.bound.notna().any():
        sentences.append(
            f"Under the training rule “{rule}”, log N − L is "
            f"{bound_phrase(trained[trained.bound.notna()])}, of at most "
            f"{show(trained.log_n.mean(), '.2f')}. It is an estimate and not a bound on "
            "mutual information, because these negatives are not independent of the anchor."
        )
    elif trained.bound.isna().all() and trained.acc_top1.notna().any():
        sentences.append(
            f"Under the training rule “{rule}”, the positive beats every negative "
            f"{100 * trained.acc_top1.mean():.1f} % of the time (chance "
            f"{100 * trained.chance_top1.mean():.2g} %). This loss has no log N − L"
            f"{optimum_phrase(run)}."
        )
    if not sentences:
        sentences = [f"The last evaluation on test {words.examples} gave no number at any offset."]
    rows = strict if len(strict) else trained
    return [*sentences, *state_sentences(rows, title_of(run, rows))]


def bound_phrase(rows: Frame) -> str:
    """Return the mean bound of the `headline_rows`, and the bound at the first and last offset."""
    first = rows[rows.direction == rows.direction.iloc[0]]
    ends = [
        f"{nats(one.bound)} nats at offset {one.offset}" for one in first.iloc[[0, -1]].itertuples()
    ]
    if len(rows) == 1:
        return ends[0]
    places = " and ".join(dict.fromkeys(end.replace(" nats", "") for end in ends))
    if rows.direction.nunique() > 1:
        places += f" of {first.direction.iloc[0]}"
    chosen = headline_rows(rows)
    return f"{nats(chosen.bound.mean())} nats averaged over {offsets_phrase(chosen)}, {places}"


def split_sentences(strict: Frame, words: Words) -> list[str]:
    """Return the two parts of the strict bound, within and between groups; [] if not recorded."""
    rows = headline_rows(strict)
    rows = rows[rows.within.notna()] if "within" in rows else rows[:0]
    if not len(rows):
        return []
    return [
        f"Averaged over {offsets_phrase(rows)}, {nats(rows.within.mean())} nats of it are within a "
        f"{words.group} (a lower bound, ceiling {show(rows.within_log_n.mean(), '.2f')}), and "
        f"{nats(rows.between.mean())} tell one {words.group} from another (the difference)."
    ]


def nats(value: float | int) -> str:
    """Return nats with two decimals, or with three digits if a training has diverged.

    >>> nats(1.234), nats(-0.5), nats(-3e17)
    ('1.23', '−0.50', '−3e+17')
    """
    return show(float(value), ".2f" if abs(value) < 1e5 else ".3g")


def optimum_phrase(run: Run) -> str:
    """Return the recorded optimum of a loss without a log N, after a semicolon; "" if unknown."""
    found = ""
    for key, words in (("optimum", "its optimal score is"), ("posterior", "posterior:")):
        known = [one for one in run.metrics.get(key, []) if isinstance(one, str)]
        found += f"; {words} {known[-1]}" if known else ""
    return found


def title_of(run: Run, rows: Frame) -> str:
    """Return the title of an evaluation of a run."""
    return next(title for title, found in evaluations(run).items() if rows.index[0] in found.index)


#: Sentence for each state of offsets, with fields for the offsets and the rule.
STATE_SENTENCES = {
    "saturated": "Saturated at {} ({}): the number is the ceiling log N, not the information; "
    "only more negatives can show more.",
    "warn": "Close to its ceiling at {} ({}): there it probably understates the information.",
    "chance": "Not above chance at {} ({}): the 95 % interval reaches 0; train longer, or test "
    "on more data.",
    "diverged": "Worse than guessing at {} ({}): the loss is more than twice log N, as when a "
    "training diverges; lower the learning rate.",
}


def state_sentences(rows: Frame, rule: str) -> list[str]:
    """Return sentences on the offsets that cannot be trusted, with reasons."""
    has_value = rows.bound.notna() | (rows.state == "diverged")  # an infinite loss is not recorded
    if not has_value.any():
        return []
    states, sentences = rows.state.where(has_value, ""), []
    if not has_value.all():
        missing = offsets_phrase(rows[~has_value])
        sentences.append(f"No number at {missing} (rule “{rule}”): nothing was measured there.")
    for state, sentence in STATE_SENTENCES.items():
        if (states == state).any():
            places = offsets_phrase(rows[states == state])
            sentences.append(sentence.format(places, f"rule “{rule}”"))
    if (states != "").any() and not sentences:
        sentences.append(f"No offset is saturated and none is at chance (rule “{rule}”).")
    return sentences


def offsets_phrase(rows: Frame) -> str:
    """Return offsets in words, with neighbors joined, grouped by direction.

    >>> import pandas as pd
    >>> offsets_phrase(pd.DataFrame({"offset": [1, 2, 3, 7], "direction": "up"}))
    'offsets 1–3, 7 (up)'
    """
    phrases = []
    for direction, part in rows.groupby("direction", sort=False):
        of_direction = f" ({direction})" if direction else ""
        several = "s" * (len(part) > 1)
        phrases.append(f"offset{several} {offset_ranges(part.offset)}{of_direction}")
    return ", ".join(phrases)


def truth_sentences(run: Run) -> list[str]:
    """Return sentences that compare the bound with the exact information, if known."""
    if run.truth is None:
        return []
    found = last_evaluation(run, strict=True).merge(run.truth, on="offset").dropna(subset="bound")
    if not len(found):
        return []
    reached = 100 * found.bound.sum() / max(found.mutual_information.sum(), 1e-9)
    violated = int((found.bound_low > found.mutual_information).sum())
    verdict = " and nowhere exceeds it by more than its interval"
    if violated:
        verdict = f", but exceeds it at {violated} offsets, which no bound may"
    known = "The exact information of this source is known"
    return [f"{known}: the bound reaches {reached:.0f} % of it{verdict}."]


def score_sentences(found: Sequence[Headline], words: Words) -> list[str]:
    """Return sentences on the features against baselines, and on the gain of training."""
    sentences = []
    for headline in found:
        ours, others = headline.score, headline.same_probe
        chance = "" if math.isnan(ours.chance) else f"chance {with_unit(ours.chance, ours.metric)}"
        ends = interval_phrase(ours.low, ours.high, ours.metric)
        inside = "; ".join(part for part in (ends, chance) if part)
        against = " and ".join(
            against_phrase(ours, others[name], words)
            for name in words.baselines
            if name in others and name != ours.features
        )
        sentences.append(
            f"{capitalize(task_phrase(ours))}, {ours.method} on {ours.features}: "
            f"{ours.metric} {with_unit(ours.value, ours.metric)}"
            f"{f' ({inside})' if inside else ''}{f'; {against}' if against else ''}."
        )
        if untrained := others.get(f"random {ours.features}"):
            sentences.append(trained_sentence(ours, untrained))
    return sentences


def gains(found: Sequence[Headline]) -> Iterator[tuple[Row, Difference]]:
    """Yield each headline score with its difference from the untrained network's."""
    for headline in found:
        if untrained := headline.same_probe.get(f"random {headline.score.features}"):
            yield headline.score, difference(headline.score, untrained)


def gain_sentences(found: Sequence[Headline]) -> list[str]:
    """Return a sentence with the gain of training for each task; [] if unknown."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for ours, gain in gains(found):
        task, metric = ours.task.replace("_", " "), ours.metric.removeprefix("accuracy")
        key = (metric if metric.startswith(task) else f"{task} {metric}".strip()), ours.metric
        tasks.setdefault(key, []).append(signed(gain.value, ours.metric))
    said = {key: f"{key[0]} {' and '.join(each)}" for key, each in tasks.items()}
    points = [text for (_, metric), text in said.items() if in_percent(metric)]
    parts = [f"{', '.join(points)} points"] if points else []
    parts += [
        f"{text}{points_of(metric)}" for (_, metric), text in said.items() if not in_percent(metric)
    ]
    return [f"CPC over untrained: {', '.join(parts)}."] if parts else []


def harm_sentences(run: Run, found: Sequence[Headline], words: Words) -> list[str]:
    """Return warnings of tasks for which training made the features worse, with advice."""
    harmed = []
    for ours, gain in gains(found):
        before = ours.value - gain.value
        is_worse = is_better(gain.low, gain.high, ours.higher_is_better) is False
        if not has_interval(gain):
            loss = -gain.value if ours.higher_is_better else gain.value
            is_worse = loss > MIN_HARM * abs(before)
        if is_worse:
            metric = "" if ours.metric == "accuracy" else f"{ours.metric} "
            harmed.append(
                f"{task_phrase(ours)}, {ours.method} on {ours.features}, {metric}from "
                f"{with_unit(before, ours.metric)} to {with_unit(ours.value, ours.metric)}"
            )
    if not harmed:
        return []
    advice = "train on more data, or compare checkpoints of fewer and more steps"
    section = next((name for name in ("negatives", "cpc") if name in run.config), "")
    rule = training_rule(run) or str(run.config.get(section, {}).get("rule"))
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
    """Return sentences on baselines that beat the learned features, except in the headline."""
    sentences = []
    for ours, _, by_probe in found:
        for probe, scores in by_probe.items():
            mine = scores.get(ours.features)
            if mine is None or probe == (ours.method, ours.metric):
                continue
            metric = "" if mine.metric == ours.metric else f", {mine.metric}"
            how = f"{METHODS.get(mine.method, mine.method)}{metric}"
            for other in (scores[name] for name in words.baselines if name in scores):
                lead = difference(mine, other)
                if is_better(lead.low, lead.high, mine.higher_is_better) is False:
                    sentences.append(
                        f"{feature_title(other.features, words)} beats CPC, {mine.features}, on "
                        f"{task_phrase(ours)} with {how}: {with_unit(other.value, other.metric)} "
                        f"to {with_unit(mine.value, mine.metric)}."
                    )
    return sentences


def trained_sentence(ours: Row, untrained: Row) -> str:
    """Return the difference of a score from that of the same network untrained."""
    lead = difference(ours, untrained)
    better = is_better(lead.low, lead.high, ours.higher_is_better)
    verdict = {True: "", False: ": training has lost", None: ": not distinguishable"}[better]
    if not has_interval(lead):
        known = [one.outcomes.counts for one in (ours, untrained) if one.outcomes is not None]
        is_one = bool(known) and all(np.count_nonzero(counts) == 1 for counts in known)
        reason = "there is one test item" if is_one else "not both scores have one"
        verdict = f"; no interval, because {reason}"
    return (
        f"Trained minus untrained, {ours.method} on {ours.features} for {task_phrase(ours)}: "
        f"{lead_phrase(lead, ours.metric)}{points_of(ours.metric)}"
        f"{f', paired by {lead.paired}' if lead.paired else ''} (the untrained network: "
        f"{with_unit(untrained.value, untrained.metric)}){verdict}."
    )


def has_interval(found: Difference) -> bool:
    """Return whether a difference has an interval."""
    return math.isfinite(found.low) and math.isfinite(found.high)


def against_phrase(ours: Row, other: Row, words: Words) -> str:
    """Return a phrase that compares two scores, with their difference."""
    found = difference(ours, other)
    name = f"{feature_title(other.features, words)} ({with_unit(other.value, other.metric)})"
    lead = f"{lead_phrase(found, ours.metric)}{points_of(ours.metric)}"
    if not has_interval(found):
        return f"difference from {name} {lead}, without an interval"
    better = is_better(found.low, found.high, ours.higher_is_better)
    if better is None:
        return f"not distinguishable from {name}" + (f", difference {lead}" if found.paired else "")
    by = f" by {lead}" if found.paired else ""
    return f"{'better' if better else 'worse'} than {name}{by}"


def curve_sentences(run: Run, words: Words) -> list[str]:
    """Return sentences on the scores of the features with the fewest labels."""
    sentences = []
    for rows in metric_groups(last_scores(run.scores), words, curves=True).values():
        fewest = rows[rows.num_train == rows.num_train.min()]
        for ours in fewest[fewest.features == words.features[0]].itertuples():
            setting = f" ({ours.setting})" if ours.setting else ""
            metric = "" if ours.metric == "accuracy" else f"a {ours.metric} of "
            alone = "".join(
                f"; the same network on these labels alone {with_interval(other)}"
                for other in fewest[fewest.features == "supervised"].itertuples()
            )
            sentences.append(
                f"With {ours.num_train:,.0f} labels of {ours.data}{setting}, {ours.features} "
                f"{ours.method} reaches {metric}{with_interval(ours)}{alone}."
            )
    return sentences


def with_interval(score: Row) -> str:
    """Return the value of a score with its unit, and its interval if it has one."""
    ends = interval_phrase(score.low, score.high, score.metric)
    return with_unit(score.value, score.metric) + (f" ({ends})" if ends else "")


def collapse_sentences(run: Run) -> list[str]:
    """Return a warning for each representation that has collapsed."""
    test, sentences = run.metrics[run.metrics.split == "test"], []
    for name in ("z", "c"):
        std, rank = (last_known(test, f"{key}_{name}") for key in ("std", "rank"))
        if std < 1e-4 or rank < 2:
            size = f"standard deviation {std:.2g}, effective rank {rank:.2g}"
            sentences.append(f"The representation {name} has collapsed: {size}.")
    return sentences


def interval_phrase(low: float | int, high: float | int, metric: str) -> str:
    """Return an interval in words; "" if it is NaN."""
    if math.isnan(low + high):
        return ""
    return f"{show_value(low, metric)} to {show_value(high, metric)}"


def lead_phrase(lead: Difference | tuple[float, ...], metric: str) -> str:
    """Return a difference with its interval, in points for rates and accuracies.

    >>> lead_phrase((0.0123, -0.004, 0.03), "accuracy")
    '+1.2 (−0.4 to +3.0)'
    """
    value, low, high = (signed(one, metric) for one in lead[:3])
    return f"{value} ({low} to {high})" if math.isfinite(lead[1] + lead[2]) else value


def points_of(metric: str) -> str:
    """Return the unit of a difference with a leading space; "" without a unit."""
    return " points" if in_percent(metric) else f" {unit_of(metric)}".rstrip()


def signed(value: float | int, metric: str) -> str:
    """Return a difference with its sign."""
    return f"{'−' if value < 0 else '+'}{show_value(abs(value), metric)}"
