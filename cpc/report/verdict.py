"""What a run says, in sentences: each one follows from recorded numbers."""

from typing import Any

import numpy as np

from cpc.report.image_figures import curve
from cpc.report.markup import number_text
from cpc.report.probe_figures import feature_title, grouped_rows
from cpc.report.records import (
    Run,
    final_bound,
    final_test,
    known,
    mean_by_offset,
    mean_known,
    rule_name,
)
from cpc.report.tables import lead_phrase
from cpc.report.words import words_of


def verdict(run: Run) -> list[str]:
    """The sentences that open the page, the most important first."""
    return [
        *progress_sentences(run),
        *bound_sentences(run),
        *truth_sentences(run),
        *probe_sentences(run),
        *few_label_sentences(run),
        *collapse_sentences(run),
        *skipped_sentences(run),
    ]


def progress_sentences(run: Run) -> list[str]:
    """How long the run was, and of what speed."""
    if not run.train:
        return ["No training step is recorded yet."]
    last = run.train[-1]
    sentence = f"{last['step']:,} training steps"
    if len(seconds := known(last.get("seconds", []))):
        sentence += f" in {duration(seconds[0])}"
    keys = ("per_step", "steps_per_second")
    rates = known([r[keys[0]] * r[keys[1]] for r in run.train if all(key in r for key in keys)])
    unit = last.get("per_step_unit")
    if len(rates) and unit == "h audio":
        seconds = 3600 * float(np.median(rates))
        heard = duration(seconds) if seconds >= 10 else f"{seconds:.2g} s"
        sentence += f", hearing {heard} of audio each second"
    elif len(rates):
        sentence += f", seeing {np.median(rates):,.0f} {unit} each second"
    return [f"{sentence}, {device_phrase(run)}."]


def device_phrase(run: Run) -> str:
    """On what the run was made."""
    devices = run.environment.get("devices") or []
    if not devices:
        return "on an unrecorded device"
    names = sorted({str(device) for device in devices})
    return f"on {len(devices)} x {names[0]}" if len(names) == 1 else f"on {', '.join(names)}"


def bound_sentences(run: Run) -> list[str]:
    """The bound, whether it is one, and which offsets are at chance or at the ceiling."""
    record, examples = final_test(run), words_of(run).examples
    if record is None or not record.get("bound"):
        return [f"No evaluation on test {examples} is recorded yet."]
    strict = final_bound(run)
    if not len(known((strict or record)["bound"])):
        return [f"The last evaluation on test {examples} gave no number at any offset."]
    sentences = []
    if strict is not None:
        offsets, bound = mean_by_offset(strict)
        directions = len(set(strict.get("directions", [])))
        over = f"{len(offsets)} offsets" + (f" and {directions} directions" if directions else "")
        sentences.append(
            "Mutual information between context and future latent, lower bound on test "
            f"{examples}: {bound.mean():.2f} nats averaged over {over}, "
            f"{bound[0]:.2f} at offset {offsets[0]} and {bound[-1]:.2f} at offset {offsets[-1]} "
            f"(rule “{rule_name(strict)}”, ceiling log N = "
            f"{number_text(mean_known(strict['log_n']), '.2f')})."
        )
    if not record.get("is_bound") and len(known(record["bound"])):
        sentences.append(
            f"Under the training rule “{rule_name(record)}”, log N − L is "
            f"{mean_known(record['bound']):.2f} nats of at most "
            f"{number_text(mean_known(record['log_n']), '.2f')}. It is a score and not a bound on "
            "mutual information, because these negatives are not independent of the anchor."
        )
    return [*sentences, *state_sentences(strict or record)]


def state_sentences(record: dict[str, Any]) -> list[str]:
    """Offsets that cannot be trusted, and why."""
    has_value = np.isfinite(record["bound"])
    states = np.array(record.get("state", [""] * len(has_value)))
    states = np.where(has_value, states, "")
    rule = f"rule “{rule_name(record)}”"
    sentences = []
    if not has_value.all():
        missing = places_phrase(record, ~has_value)
        sentences.append(f"No number at {missing} ({rule}): nothing was measured there.")
    if "saturated" in states:
        sentences.append(
            f"Saturated at {places_phrase(record, states == 'saturated')} ({rule}): the "
            "number is the ceiling log N, not the information; only more negatives can show more."
        )
    if "warn" in states:
        sentences.append(
            f"Close to its ceiling at {places_phrase(record, states == 'warn')} ({rule}): "
            "there it probably understates the information."
        )
    if "chance" in states:
        sentences.append(
            f"Not above chance at {places_phrase(record, states == 'chance')} ({rule}): "
            "nothing is predicted that far ahead."
        )
    if states.any() and not sentences:
        sentences.append(f"No offset is saturated and none is at chance ({rule}).")
    return sentences


def places_phrase(record: dict[str, Any], chosen: np.ndarray) -> str:
    """Offsets in words, by direction where there are several.

    >>> record = {"offsets": [2, 3, 2, 3], "directions": ["down", "down", "up", "up"]}
    >>> places_phrase(record, np.array([True, True, False, True]))
    'offsets 2–3 (down), offset 3 (up)'
    """
    offsets = np.array(record["offsets"])
    if "directions" not in record:
        return offset_phrase(offsets[chosen])
    directions = np.array(record["directions"])
    parts = {name: offsets[chosen & (directions == name)] for name in dict.fromkeys(directions)}
    return ", ".join(f"{offset_phrase(part)} ({name})" for name, part in parts.items() if len(part))


def truth_sentences(run: Run) -> list[str]:
    """The bound beside the exact information, where the source's information is known."""
    strict = final_bound(run)
    if not run.truth or strict is None:
        return []
    truth = dict(zip(run.truth["offsets"], run.truth["mutual_information"], strict=True))
    pairs = [
        (low, bound, truth[offset])
        for offset, bound, low in zip(
            strict["offsets"],
            strict["bound"],
            strict.get("bound_low", strict["bound"]),
            strict=True,
        )
        if offset in truth and np.isfinite(bound)
    ]
    if not pairs:
        return []
    share = 100 * sum(bound for _, bound, _ in pairs) / max(sum(t for *_, t in pairs), 1e-9)
    violated = sum(low > exact for low, _, exact in pairs)
    sentence = (
        f"The exact information of this source is known: the bound reaches {share:.0f} % of it"
    )
    if violated:
        return [f"{sentence}, but lies above it at {violated} offsets, which a bound must not."]
    return [f"{sentence} and nowhere exceeds it by more than its interval."]


def probe_sentences(run: Run) -> list[str]:
    """Whether the features beat the untrained network and the baseline in a linear probe."""
    first, second = ("c", "z") if words_of(run).features == "c" else ("z", "c")
    sentences = []
    for (task, data, unit), rows in grouped_rows(run).items():
        linear = {row["features"]: row for row in rows if row["probe"] == "linear"}
        ours = linear.get(first) or linear.get(second)
        if ours is None:
            continue
        against = [
            compare(ours, linear[name])
            for name in (f"random {ours['features']}", "mfcc", "pixels")
            if name in linear
        ]
        sentences.append(
            f"{task.capitalize()} of {data} by {unit}, linear probe on {ours['features']}: "
            f"{100 * ours['accuracy']:.1f} % "
            f"({100 * ours['low']:.1f} to {100 * ours['high']:.1f}; "
            f"majority class {100 * ours['majority']:.1f} %)"
            + (f"; {' and '.join(against)}." if against else ".")
        )
    return sentences or ["No probe is recorded yet."]


def compare(ours: dict[str, Any], other: dict[str, Any]) -> str:
    """In words: by the difference on the same pictures, or else by the intervals.

    Intervals that overlap, and a difference whose interval holds zero, are called a tie.
    """
    is_random = other["features"].startswith("random")
    name = "the untrained network" if is_random else feature_title(other["features"])
    name = f"{name} ({100 * other['accuracy']:.1f} %)"
    versus = ours.get("versus", {}).get(other["features"])
    low, high = (
        versus[1:3] if versus else (ours["low"] - other["high"], ours["high"] - other["low"])
    )
    lead = f" by {lead_phrase(versus)} points" if versus else ""
    if low > 0:
        return f"above {name}{lead}"
    if high < 0:
        return f"below {name}{lead}"
    return f"not distinguishable from {name}{lead}"


def few_label_sentences(run: Run) -> list[str]:
    """What the features are worth where labels are fewest."""
    sentences = []
    theirs = {row["fraction"]: row for row in curve(run.few_labels, "supervised", "fine-tuned")}
    for mode in ("frozen", "fine-tuned"):
        points = curve(run.few_labels, "z", mode)
        if not points:
            continue
        row = points[0]
        sentence = (
            f"With {100 * row['fraction']:g} % of the labels ({row['num_labels']:,}), z {mode} "
            f"reaches {100 * row['accuracy']:.1f} % "
            f"({100 * row['low']:.1f} to {100 * row['high']:.1f})"
        )
        if row["fraction"] in theirs:
            other = theirs[row["fraction"]]
            sentence += f"; the same network on these labels alone {100 * other['accuracy']:.1f} %"
            sentence += f" ({100 * other['low']:.1f} to {100 * other['high']:.1f})"
        sentences.append(f"{sentence}.")
    return sentences


def collapse_sentences(run: Run) -> list[str]:
    """A warning when the representation has collapsed."""
    record = final_test(run) or {}
    sentences = []
    for name in ("z", "c"):
        std, rank = record.get(f"std_{name}"), record.get(f"rank_{name}")
        if std is not None and rank is not None and (std < 1e-4 or rank < 2):
            sentences.append(
                f"The representation {name} has collapsed: standard deviation {std:.2g}, "
                f"effective rank {rank:.2g}."
            )
    return sentences


def skipped_sentences(run: Run) -> list[str]:
    """Files that could not be used."""
    count = len(run.skipped)
    return [f"{count:,} files were skipped; they are listed below."] if count else []


def offset_phrase(offsets: np.ndarray) -> str:
    """Offsets in words, runs joined.

    >>> offset_phrase(np.array([1, 2, 3, 7]))
    'offsets 1–3, 7'
    """
    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"offset{'s' if len(offsets) > 1 else ''} {', '.join(parts)}"


def duration(seconds: float | int) -> str:
    """A time span that a person reads at once.

    >>> duration(42.4), duration(605), duration(9000)
    ('42 s', '10 min 5 s', '2 h 30 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
