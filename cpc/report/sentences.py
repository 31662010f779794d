"""What a run says, in sentences: each one follows from recorded numbers."""

import math
from collections.abc import Sequence

import numpy as np

from cpc.report.engine import show
from cpc.report.scores import (
    METHODS,
    Groups,
    Headline,
    feature_title,
    headlines,
    is_curve,
    score_groups,
    task_title,
)
from cpc.report.words import Words
from cpc.results import (
    Difference,
    Frame,
    Row,
    Run,
    difference,
    evaluations,
    in_percent,
    is_better,
    last_evaluation,
    last_scores,
    rule_title,
    show_value,
    training_rule,
    unit_of,
)

#: Loss, as a fraction of the untrained network's score, that is reported without an interval.
MIN_HARM = 0.01


def summary(run: Run, words: Words) -> list[str]:
    """Return the sentences that open the page, the most important first."""
    groups = score_groups(last_scores(run.scores), words)
    found = headlines(groups, words)
    gain = gain_sentence(found)
    return [
        *harm_sentences(run, found, words),
        *collapse_sentences(run),
        *([gain] if gain else []),
        *(score_sentences(found, words) if len(run.scores) else ["No probe is recorded yet."]),
        *lost_sentences(found, words),
        *curve_sentences(groups, words),
        *([] if was_given(run) else bound_sentences(run, words)),
        *truth_sentences(run),
        *progress_sentences(run),
        *problem_sentences(run),
    ]


def was_given(run: Run) -> bool:
    """Return whether a directory has scores of weights that came from elsewhere."""
    return not len(run.metrics) and len(run.scores) > 0 and not any(run.workdir.glob("checkpoints"))


def progress_sentences(run: Run) -> list[str]:
    """Return how long the run was, and how fast."""
    if not len(run.train):
        given = "The weights were given; nothing was trained here."
        return [given if was_given(run) else "No training step is recorded yet."]
    sentence = f"{run.step:,} training steps"
    if math.isfinite(seconds := last_known(run.train, "seconds")):
        sentence += f" in {duration(seconds)}"
    if {"per_step", "steps_per_second"} <= {*run.train}:
        rate = (run.train.per_step * run.train.steps_per_second).median()
        if math.isfinite(rate):
            sentence += f", {rate_phrase(rate, str(run.train.per_step_unit.iloc[-1]))} each second"
    return [f"{sentence}, {device_phrase(run)}."]


def last_known(rows: Frame, key: str) -> float:
    """Return the last value of a number; NaN if it has none."""
    known = rows[key].dropna().tolist() if key in rows else []
    return float(known[-1]) if known else math.nan


def rate_phrase(rate: float | int, unit: str) -> str:
    """Return how much data a second sees; hours of data are a time span.

    >>> rate_phrase(0.02, "h audio"), rate_phrase(0.03, "M steps"), rate_phrase(1.5, "images")
    ('1 min 12 s of audio', '30,000 steps', '1.5 images')
    """
    hours, _, of_what = unit.partition(" ")
    if hours != "h":
        count = {"M": 1e6, "k": 1e3}.get(hours, 1)
        rate, unit = rate * count, unit if count == 1 else of_what
        return f"{rate:,.0f} {unit}" if rate >= 10 else f"{rate:.2g} {unit}"
    seconds = 3600 * rate
    return f"{duration(seconds) if seconds >= 10 else f'{seconds:.2g} s'} of {of_what or 'data'}"


def device_phrase(run: Run) -> str:
    """Return on what the run was made."""
    devices = run.environment.get("devices") or []
    if not devices or not isinstance(devices, list):
        return "on an unrecorded device"
    names = sorted({str(device) for device in devices})
    return f"on {len(devices)} x {names[0]}" if len(names) == 1 else f"on {', '.join(names)}"


def bound_sentences(run: Run, words: Words) -> list[str]:
    """Return the bound, what the training loss says, and which offsets are not to be trusted."""
    trained, strict = last_evaluation(run), last_evaluation(run, strict=True)
    if not len(trained):
        return [f"No evaluation on test {words.examples} is recorded yet."]
    sentences = []
    if strict.bound.notna().any():
        known = strict[strict.bound.notna()]
        first = known[known.direction == known.direction.iloc[0]]
        directions = known.direction.nunique()
        over, whose = f"averaged over {len(known)} offsets, ", ""
        if directions > 1:
            over = f"averaged over {len(known)} predictions in {directions} directions, "
            whose = f" of {first.direction.iloc[0]}"
        mean, unit = f"{nats(known.bound.mean())} nats {over}", ""
        if len(known) == 1:
            mean, unit = "", " nats"
        ends = [f"{nats(one.bound)}{unit} at offset {one.offset}" for one in first.itertuples()]
        places = " and ".join(ends[:: max(1, len(ends) - 1)]) + whose
        sentences.append(
            "Mutual information between context and future latent, lower bound on test "
            f"{words.examples}: {mean}{places} "
            f"(rule “{title_of(run, strict)}”, ceiling log N = "
            f"{show(strict.log_n.mean(), '.2f')})."
        )
    rule = rule_title(str(trained.rule.iloc[0]))
    if not trained.is_bound.all() and trained.bound.notna().any():
        sentences.append(
            f"Under the training rule “{rule}”, log N − L is {nats(trained.bound.mean())} nats "
            f"of at most {show(trained.log_n.mean(), '.2f')}. It is an estimate and not a bound on "
            "mutual information, because these negatives are not independent of the anchor."
        )
    elif trained.bound.isna().all() and trained.acc_top1.notna().any():
        sentences.append(
            f"Under the training rule “{rule}”, the positive beats every negative "
            f"{100 * trained.acc_top1.mean():.1f} % of the time (chance "
            f"{100 * trained.chance_top1.mean():.2g} %). This loss has no log N − L"
            + (f"; {optimum}." if (optimum := optimum_phrase(run)) else ".")
        )
    if not sentences:
        sentences = [f"The last evaluation on test {words.examples} gave no number at any offset."]
    shown = strict if len(strict) else trained
    return [*sentences, *state_sentences(shown, title_of(run, shown))]


def nats(value: float | int) -> str:
    """Return nats with two decimals, or with three digits if a training has run away.

    >>> nats(1.234), nats(-0.5), nats(-3e17)
    ('1.23', '−0.50', '−3e+17')
    """
    return show(float(value), ".2f" if abs(value) < 1e5 else ".3g")


def optimum_phrase(run: Run) -> str:
    """Return what the scores of a loss without a log N are at its optimum; "" if unknown."""
    found = []
    for key, words in (("optimum", "its optimal score is"), ("posterior", "posterior:")):
        known = [one for one in run.metrics.get(key, []) if isinstance(one, str)]
        found += [f"{words} {known[-1]}"] if known else []
    return "; ".join(found)


def title_of(run: Run, rows: Frame) -> str:
    """Return the name of an evaluation among those of a run."""
    key = rows[["rule", "series"]].iloc[0]
    for title, found in evaluations(run).items():
        if (found[["rule", "series"]].iloc[0] == key).all():
            return title
    return rule_title(str(key.rule))


def state_sentences(rows: Frame, rule: str) -> list[str]:
    """Return the offsets that cannot be trusted, and why."""
    has_value = rows.bound.notna() | (rows.state == "diverged")  # an infinite loss has no number
    if not has_value.any():
        return []
    states, sentences = rows.state.where(has_value, ""), []
    if not has_value.all():
        missing = offsets_phrase(rows[~has_value])
        sentences.append(f"No number at {missing} (rule “{rule}”): nothing was measured there.")
    words = {
        "saturated": "Saturated at {} ({}): the number is the ceiling log N, not the information; "
        "only more negatives can show more.",
        "warn": "Close to its ceiling at {} ({}): there it probably understates the information.",
        "chance": "Not above chance at {} ({}): the 95 % interval reaches 0; train longer, or test "
        "on more data.",
        "diverged": "Worse than guessing at {} ({}): the loss is more than twice log N, as when a "
        "training diverges; lower the learning rate.",
    }
    for state, sentence in words.items():
        if (states == state).any():
            places = offsets_phrase(rows[states == state])
            sentences.append(sentence.format(places, f"rule “{rule}”"))
    if (states != "").any() and not sentences:
        sentences.append(f"No offset is saturated and none is at chance (rule “{rule}”).")
    return sentences


def offsets_phrase(rows: Frame) -> str:
    """Return offsets in words, by direction where there are several."""
    parts = [
        offset_phrase(part.offset.to_numpy(int)) + (f" ({direction})" if direction else "")
        for direction, part in rows.groupby("direction", sort=False)
    ]
    return ", ".join(parts)


def offset_phrase(offsets: np.ndarray) -> str:
    """Return offsets in words, neighbors joined.

    >>> offset_phrase(np.array([1, 2, 3, 7]))
    'offsets 1–3, 7'
    """
    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"offset{'s' if len(offsets) > 1 else ''} {', '.join(parts)}"


def truth_sentences(run: Run) -> list[str]:
    """Return the bound beside the exact information, where the source's information is known."""
    if run.truth is None:
        return []
    found = last_evaluation(run, strict=True).merge(run.truth, on="offset").dropna(subset="bound")
    if not len(found):
        return []
    reached = 100 * found.bound.sum() / max(found.mutual_information.sum(), 1e-9)
    violated = int((found.bound_low > found.mutual_information).sum())
    sentence = (
        f"The exact information of this source is known: the bound reaches {reached:.0f} % of it"
    )
    if violated:
        return [f"{sentence}, but exceeds it at {violated} offsets, which no bound may."]
    return [f"{sentence} and nowhere exceeds it by more than its interval."]


def score_sentences(found: Sequence[Headline], words: Words) -> list[str]:
    """Return whether the features beat the baselines, and what training them gave."""
    sentences = []
    for ours, rows in found:
        untrained, *baselines = (
            [
                score
                for score in rows[rows.features == name].itertuples()
                if (score.method, score.metric) == (ours.method, ours.metric)
            ]
            for name in (f"random {ours.features}", *words.baselines)
        )
        chance = "" if math.isnan(ours.chance) else f"chance {with_unit(ours.chance, ours.metric)}"
        inside = "; ".join(part for part in (interval_phrase(ours), chance) if part)
        against = " and ".join(
            against_phrase(ours, other, words)
            for others in baselines
            for other in others
            if other.features != ours.features
        )
        sentences.append(
            f"{task_title(ours.task)} of {ours.data} by {ours.unit}, {ours.method} on "
            f"{ours.features}: {ours.metric} {with_unit(ours.value, ours.metric)}"
            + (f" ({inside})" if inside else "")
            + (f"; {against}." if against else ".")
        )
        sentences += [trained_sentence(ours, other) for other in untrained]
    return sentences


def gains(found: Sequence[Headline]) -> list[tuple[Row, Difference]]:
    """Return the headline score of each task and its difference from the untrained network's."""
    return [
        (ours, difference(ours, other))
        for ours, rows in found
        for other in rows[rows.features == f"random {ours.features}"].itertuples()
        if (other.method, other.metric) == (ours.method, ours.metric)
    ]


def gain_sentence(found: Sequence[Headline]) -> str:
    """Return what training gave to each task, over the untrained network; "" if unknown."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for ours, gain in gains(found):
        what = "" if ours.metric == "accuracy" else f" {ours.metric}"
        key = (f"{ours.task.replace('_', ' ')}{what}", ours.metric)
        tasks.setdefault(key, []).append(signed(gain.value, ours.metric))
    points = [f"{task} {' and '.join(all_)}" for (task, m), all_ in tasks.items() if in_percent(m)]
    others = [
        f"{task} {' and '.join(all_)} {unit_of(m)}".rstrip()
        for (task, m), all_ in tasks.items()
        if not in_percent(m)
    ]
    parts = ", ".join([*([f"{', '.join(points)} points"] if points else []), *others])
    return f"CPC over untrained: {parts}." if parts else ""


def harm_sentences(run: Run, found: Sequence[Headline], words: Words) -> list[str]:
    """Return where training has made the features worse, and what to try; [] if nowhere."""
    harmed = []
    for ours, gain in gains(found):
        before = ours.value - gain.value
        is_worse = is_better(gain.low, gain.high, ours.higher_is_better) is False
        if not has_interval(gain):
            loss = -gain.value if ours.higher_is_better else gain.value
            is_worse = loss > MIN_HARM * abs(before)
        if is_worse:
            harmed.append(
                f"{ours.task.replace('_', ' ')} of {ours.data} by {ours.unit}, {ours.method} on "
                f"{ours.features}, {'' if ours.metric == 'accuracy' else f'{ours.metric} '}"
                f"from {with_unit(before, ours.metric)} to "
                f"{with_unit(ours.value, ours.metric)}"
            )
    if not harmed:
        return []
    advice = "train on more data, or compare checkpoints of fewer and more steps"
    section = next((name for name in ("negatives", "cpc") if name in run.config), "")
    rule = training_rule(run) or str(run.config.get(section, {}).get("rule"))
    if section and rule.startswith("own_sequence"):
        advice += (
            f"; for what tells {words.sequence}s apart set {section}.rule=batch, with more "
            f"{words.sequence}s, such as more subjects, per batch"
        )
    elif section:
        advice = (
            f"set {section}.rule=own_sequence for what changes within a {words.sequence}; for what "
            f"tells {words.sequence}s apart take more of them, such as more subjects, per batch"
        )
    return [f"Training has made the features worse for {'; '.join(harmed)}: {advice}."]


def lost_sentences(headlines: Sequence[Headline], words: Words) -> list[str]:
    """Return where a baseline beats the learned features, except for the headline's comparison."""
    sentences = []
    for ours, rows in headlines:
        others = [one for one in rows.itertuples() if one.features in words.baselines]
        same = {(s.method, s.metric): s for s in rows[rows.features == ours.features].itertuples()}
        for other in others:
            mine = same.get((other.method, other.metric))
            if mine is None or (other.method, other.metric) == (ours.method, ours.metric):
                continue
            found, how = difference(mine, other), METHODS.get(mine.method, mine.method)
            what = "" if mine.metric == ours.metric else f", {mine.metric}"
            if is_better(found.low, found.high, mine.higher_is_better) is False:
                sentences.append(
                    f"{feature_title(other.features, words)} beats CPC, {mine.features}, on "
                    f"{ours.task.replace('_', ' ')} of {ours.data} by {ours.unit} with "
                    f"{how}{what}: "
                    f"{with_unit(other.value, other.metric)} to "
                    f"{with_unit(mine.value, mine.metric)}."
                )
    return sentences


def trained_sentence(ours: Row, untrained: Row) -> str:
    """Return what training gave: a score minus that of the same network untrained."""
    found = difference(ours, untrained)
    points = f" {'points' if in_percent(ours.metric) else unit_of(ours.metric)}".rstrip()
    paired = f", paired by {found.paired}" if found.paired else ""
    better = is_better(found.low, found.high, ours.higher_is_better)
    verdict = {True: "", False: ": training has lost", None: ": not distinguishable"}[better]
    if not has_interval(found):
        verdict = f"; no interval, as {no_interval_reason(ours, untrained)}"
    return (
        f"Trained minus untrained, {ours.method} on {ours.features} for "
        f"{ours.task.replace('_', ' ')} of {ours.data} by {ours.unit}: "
        f"{lead_phrase(found, ours.metric)}{points}{paired} (the untrained network: "
        f"{with_unit(untrained.value, untrained.metric)}){verdict}."
    )


def has_interval(found: Difference) -> bool:
    """Return whether a difference has an interval."""
    return math.isfinite(found.low) and math.isfinite(found.high)


def no_interval_reason(*scores: Row) -> str:
    """Return why a difference of scores has no interval."""
    known = [score.outcomes.counts for score in scores if score.outcomes is not None]
    is_one = bool(known) and all(np.count_nonzero(counts) == 1 for counts in known)
    return "there is one test item" if is_one else "not both scores have one"


def with_unit(value: float | int, metric: str) -> str:
    """Return a value with its unit; a dash if it is NaN."""
    unit = "" if math.isnan(value) else unit_of(metric)
    return f"{show_value(value, metric)} {unit}".strip()


def interval_phrase(score: Row) -> str:
    """Return the interval of a score in words; "" if it has none."""
    if math.isnan(score.low + score.high):
        return ""
    return f"{show_value(score.low, score.metric)} to {show_value(score.high, score.metric)}"


def with_interval(score: Row) -> str:
    """Return the value of a score with its unit, and its interval if it has one."""
    inside = interval_phrase(score)
    return with_unit(score.value, score.metric) + (f" ({inside})" if inside else "")


def against_phrase(ours: Row, other: Row, words: Words) -> str:
    """Return in words whether one score is better than another, and by how much.

    A difference whose interval holds zero is called a tie.
    """
    found = difference(ours, other)
    name = f"{feature_title(other.features, words)} ({with_unit(other.value, other.metric)})"
    better = is_better(found.low, found.high, ours.higher_is_better)
    points = f" {'points' if in_percent(ours.metric) else unit_of(ours.metric)}".rstrip()
    lead = f"{lead_phrase(found, ours.metric)}{points}" if found.paired else ""
    if not has_interval(found):
        lead = f"{lead_phrase(found, ours.metric)}{points}"
        return f"difference from {name} {lead}, without an interval"
    if better is None:
        return f"not distinguishable from {name}" + (f", difference {lead}" if lead else "")
    return f"{'better' if better else 'worse'} than {name}" + (f" by {lead}" if lead else "")


def lead_phrase(lead: Difference | tuple[float, ...], metric: str) -> str:
    """Return a difference with its interval, of rates and accuracies in points.

    >>> lead_phrase((0.0123, -0.004, 0.03), "accuracy")
    '+1.2 (−0.4 to +3.0)'
    """
    value, low, high = (signed(one, metric) for one in lead[:3])
    return f"{value} ({low} to {high})" if math.isfinite(lead[1] + lead[2]) else value


def signed(value: float | int, metric: str) -> str:
    """Return a difference with its sign."""
    return f"{'−' if value < 0 else '+'}{show_value(abs(value), metric)}"


def curve_sentences(groups: Groups, words: Words) -> list[str]:
    """Return what the features are worth where labels are fewest."""
    sentences = []
    for rows in groups.values():
        if not is_curve(rows):
            continue
        fewest = list(rows[rows.num_train == rows.num_train.min()].itertuples())
        alone = [score for score in fewest if score.features == "supervised"]
        for ours in (score for score in fewest if score.features == words.features[0]):
            sentence = (
                f"With {ours.num_train:,.0f} labels of {ours.data}"
                f"{f' ({ours.setting})' if ours.setting else ''}, "
                f"{ours.features} {ours.method} reaches "
                f"{'' if ours.metric == 'accuracy' else f'a {ours.metric} of '}"
                f"{with_interval(ours)}"
            )
            for other in (score for score in alone if score.metric == ours.metric):
                sentence += f"; the same network on these labels alone {with_interval(other)}"
            sentences.append(f"{sentence}.")
    return sentences


def collapse_sentences(run: Run) -> list[str]:
    """Return a warning where the representation has collapsed."""
    test, sentences = run.metrics[run.metrics.split == "test"], []
    for name in ("z", "c"):
        std, rank = (last_known(test, f"{key}_{name}") for key in ("std", "rank"))
        if std < 1e-4 or rank < 2:
            sentences.append(
                f"The representation {name} has collapsed: standard deviation {std:.2g}, "
                f"effective rank {rank:.2g}."
            )
    return sentences


def problem_sentences(run: Run) -> list[str]:
    """Return what could not be used: files of the data, and files of the run."""
    count = len(run.skipped)
    skipped = [f"{count:,} files were skipped or cut short: see below."] if count else []
    return [*skipped, *run.problems]


def duration(seconds: float | int) -> str:
    """Return a time span as a person reads it at once.

    >>> duration(42.4), duration(605), duration(9000)
    ('42 s', '10 min 5 s', '2 h 30 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
