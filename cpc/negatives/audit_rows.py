"""The rows of an audit: what was counted, in words and units."""

from typing import Any, NamedTuple, TypeAlias


class AuditRow(NamedTuple):
    """One number of an audit; `_asdict()` of it goes into a JSON file as it is."""

    name: str
    value: float | int | None
    """None where there is nothing to count."""
    unit: str
    meaning: str


Audit: TypeAlias = tuple[AuditRow, ...]
#: Unit and meaning of each number. What ends in _predicted stands beside the same name observed.
WORDS = {
    "anchors": ("anchors", "that have a positive, over all batches and offsets"),
    "anchors_without_negative": ("of anchors", "are left out of the loss"),
    "negatives_min": ("negatives", "of the anchor in the loss that has the fewest"),
    "negatives_mean": ("negatives", "of an anchor in the loss, on average"),
    "log_n": ("nats", "ceiling of log N - L, N = negatives + 1"),
    "accidental_hits": ("of anchors", "have their own positive among their negatives"),
    "accidental_hits_predicted": ("of anchors", "if draws were independent: 1 - (1 - q)^K"),
    "false_negatives": ("of negatives", "have the label of the positive, where labels are known"),
    "false_negatives_predicted": ("of negatives", "if draws were independent of the labels"),
    "anchors_with_false_negatives": ("of anchors", "have a negative with the positive's label"),
    "same_utterance": ("of negatives", "come from the recording of the anchor"),
    "effective_negatives": ("negatives", "sample size of the weights, (sum w)^2 / sum w^2"),
    "effective_negatives_predicted": ("negatives", "K V^2 / sum 1 / q, for many draws"),
    "weight_entropy": ("nats", "of the weights; log of their number if all weigh the same"),
    "duplicates": ("of negatives", "repeat or mix negatives that the anchor already has"),
    "duplicates_predicted": ("of negatives", "if draws were independent"),
    "classes": ("classes", "can be drawn"),
    "entropy": ("nats", "of the distribution"),
    "effective_classes": ("classes", "exp of the entropy"),
    "most_probable": ("of draws", "are of the most probable class"),
    "impossible_draws": ("draws", "of classes with q = 0"),
    "chi_square": ("a degree", "of freedom: about 1 if the draws follow q"),
    "queue_size": ("latents", "fit into the queue"),
    "queue_filled": ("of slots", "hold a latent"),
    "age_min": ("steps", "since the newest latent was added"),
    "age_mean": ("steps", "since a latent was added, on average"),
    "age_max": ("steps", "since the oldest latent was added"),
}


def make_rows(**values: Any) -> Audit:
    """Return a row for each value, with the unit and the meaning of its name."""
    return tuple(AuditRow(name, value, *WORDS[name]) for name, value in values.items())


def format_audit(rows: Audit) -> str:
    """An audit for the console: a line a row, columns aligned.

    >>> print(format_audit((AuditRow("log_n", 2.0794415, "nats", "ceiling"),
    ...                     AuditRow("anchors", 1024, "", "with a positive"))))
    log_n    2.079 nats  ceiling
    anchors  1,024       with a positive
    """
    values = [_format(row.value) for row in rows]
    names, numbers, units = (
        max((len(text) for text in column), default=0)
        for column in ([row.name for row in rows], values, [row.unit for row in rows])
    )
    return "\n".join(
        f"{row.name:<{names}}  {value:>{numbers}} {row.unit:<{units}}  {row.meaning}"
        for row, value in zip(rows, values, strict=True)
    )


def _format(value):
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
