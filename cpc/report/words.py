"""What a run is made of, in words: recordings or pictures, as its records say."""

from typing import NamedTuple

from cpc.report.records import Run


class Words(NamedTuple):
    """The nouns of a page's sentences."""

    examples: str
    sequence: str
    target: str
    near: str
    ahead: str
    tested: str
    baseline: str
    dashed: str
    """Probes whose lines are dashed."""
    features: str
    """Those that are spoken of first."""
    probes_folder: str


RECORDINGS = Words(
    examples="recordings",
    sequence="sequence",
    target="future frame",
    near="the near future",
    ahead="frames ahead",
    tested="utterances",
    baseline="MFCC",
    dashed="one hidden layer",
    features="c",
    probes_folder="probe scores and the frames of the speaker picture",
)
PICTURES = Words(
    examples="pictures",
    sequence="picture",
    target="patch",
    near="a patch close by",
    ahead="rows ahead",
    tested="pictures",
    baseline="raw pixels",
    dashed="other probes than the linear one",
    features="z",  # the paper's probe of images is on the encoder's output
    probes_folder="probe scores and the arrays of the pictures",
)


def words_of(run: Run) -> Words:
    """The words of pictures where anything that was recorded is about pictures."""
    is_pictures = (
        any(record.get("per_step_unit") == "pictures" for record in run.train)
        or any(row["unit"] == "picture" for probe in run.probes.values() for row in probe["rows"])
        or bool(run.arrays)
        or bool(run.few_labels)
    )
    return PICTURES if is_pictures else RECORDINGS
