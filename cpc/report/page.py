"""The page of a run: report.html, which opens from disk and needs nothing beside itself."""

from pathlib import Path

import numpy as np

from cpc.report import markup
from cpc.report.draw import save_picture
from cpc.report.image_figures import (
    augmented_figure,
    few_labels_figure,
    neighbours_figure,
    units_figure,
)
from cpc.report.paper import SOURCE
from cpc.report.probe_figures import (
    grouped_rows,
    probe_figure,
    probe_progress_figure,
    speakers_figure,
)
from cpc.report.records import (
    ARRAYS,
    Run,
    by_direction,
    final_bound,
    final_test,
    known,
    mean_by_offset,
    mean_known,
    read_run,
)
from cpc.report.tables import (
    audit_table,
    few_labels_table,
    file_table,
    imagenet_table,
    offset_table,
    probe_tables,
    provenance,
)
from cpc.report.training_figures import (
    accuracy_figure,
    bound_figure,
    collapse_figure,
    curves_figure,
    speed_figure,
)
from cpc.report.verdict import duration, verdict
from cpc.report.words import PICTURES, words_of

CAPTIONS = {
    "curves": (
        "Loss and log N − L over training",
        "InfoNCE loss (left) and log N − L (right), in nats, averaged over offsets; dashed: the "
        "ceiling log N, which is also the loss of guessing. A loss that stays at log N has "
        "learned nothing; log N − L near log N cannot grow further, whatever the model knows. "
        "Only the curve marked as a bound is a lower bound on mutual information. log N − L "
        "far lower on test than on train is overfitting.",
    ),
    "bound": (
        "log N − L at each offset, last evaluation",
        "Points are test {examples} with 95 % intervals over blocks of {sequence}s; dashed: the "
        "ceiling log N. It should fall with the offset: {near} is easier to predict. A "
        "point at the ceiling is saturated: it says that the information is at least about log N. "
        "Two panels compare the training rule with one candidate from each {sequence}, whose "
        "independence makes log N − L a bound.",
    ),
    "accuracy": (
        "Accuracy of predicting the positive, by offset (the paper's Figure 3)",
        "How often the true {target} wins, on test {examples}. Left: against all negatives at "
        "once; right: against one negative at a time. The paper does not say which it plots, so "
        "both readings are here; dotted: chance. Expect a high start and a fall with the offset. "
        "Top-1 depends on N and compares only between runs with the same N.",
    ),
    "probes": (
        "Probe accuracy on frozen features",
        "Bars: accuracy on test {tested}; black lines: 95 % intervals over {tested}; dotted: "
        "always answering the most frequent class. CPC is worth its training where its bar "
        "exceeds that of the same network at random initialisation, and useful where it exceeds "
        "{baseline}.",
    ),
    "probe_progress": (
        "Probes during training",
        "Accuracy of the probes fitted at evaluations along the way, on test {tested}; dashed: "
        "{dashed}. A curve that still rises asks for a longer training; one that falls "
        "while the bound rises tells of features that serve the prediction and not the task.",
    ),
    "speakers": (
        "Contexts of test utterances by speaker (the paper's Figure 2)",
        "t-SNE of c: each point is a stretch of a test utterance, each colour a speaker. "
        "Separate islands mean that the context knows who speaks. Only neighbourhoods carry "
        "meaning: distances between islands and their sizes do not.",
    ),
    "few_labels": (
        "Accuracy against labels",
        "Accuracy on test pictures when a probe of frozen features, or the whole network, sees "
        "only so many of the labels; the subsets are stratified and nested. Lines: 95 % intervals "
        "over test pictures and subsets. Features are worth their training where their curve "
        "reaches an accuracy further left than that of the supervised network or of raw pixels.",
    ),
    "neighbours": (
        "Nearest neighbours",
        "Left: test pictures; then the labelled pictures whose z, pooled over the grid, has the "
        "highest cosine to theirs, nearest first. Green: of the same class; red: of the class "
        "that is named.",
    ),
    "units": (
        "Patches that excite a unit most (the paper's Figure 5)",
        "Each row is one dimension of z and the patches of test pictures at which it is largest, "
        "strongest first. A unit that has learned something answers to one kind of thing.",
    ),
    "augmented": (
        "Patches as the training sees them",
        "The overlapping patches of some training pictures, laid side by side: above without, "
        "below with the augmentation of the training. What a person cannot recognise any more is "
        "too much.",
    ),
    "collapse": (
        "Spread of the representation",
        "Standard deviation (mean over dimensions) and effective rank, the exponential of the "
        "entropy of the covariance's eigenvalue shares, on test {examples}. Either one falling "
        "towards zero means collapse: all inputs get nearly the same features.",
    ),
    "speed": (
        "Speed and optimisation",
        "Steps a second, learning rate and norm of the gradient while training. A step rate that "
        "dips tells of evaluations or of another job on the machine; a gradient norm that jumps "
        "tells of a learning rate too high.",
    ),
}

FIGURES = {
    "curves": curves_figure,
    "bound": bound_figure,
    "accuracy": accuracy_figure,
    "probes": probe_figure,
    "probe_progress": probe_progress_figure,
    "few_labels": few_labels_figure,
    "speakers": speakers_figure,
    "neighbours": neighbours_figure,
    "units": units_figure,
    "augmented": augmented_figure,
    "collapse": collapse_figure,
    "speed": speed_figure,
}


def write_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png into a run directory, from its recorded files alone.

    Works at any time of a run: parts that are not recorded yet are named as missing.

    Returns:
        The path of the page.

    Raises:
        UserError: the directory holds no run, or a recorded file is damaged.
    """
    run = read_run(Path(workdir))
    pictures = {}
    for name, make in FIGURES.items():
        figure = make(run)
        if figure is not None:
            title, caption = CAPTIONS[name]
            caption = caption.format(**words_of(run)._asdict())
            pictures[name] = save_picture(run.workdir, name, figure, title, caption)
    path = run.workdir / "report.html"
    title = f"{run_name(run)}: contrastive predictive coding"
    path.write_text(markup.page(title, page_body(run, pictures)), encoding="utf-8")
    return path


def page_body(run: Run, pictures: dict[str, str]) -> str:
    """All sections in reading order: what, how well, why to believe it, how it was made."""

    def part(name: str) -> str:
        return pictures.get(name, "")

    words = words_of(run)
    finals = [records[-1] for records in run.tests.values() if records[-1].get("offsets")]
    tables = markup.details(
        "All numbers of each offset",
        "\n".join(
            offset_table(part, words.examples) for record in finals for part in by_direction(record)
        ),
    )
    missing = "No probe is recorded yet; run the probe command on this directory to add them."
    return "\n".join(
        [
            f"<h1>{markup.escape(run_name(run))}</h1>",
            markup.paragraph(subtitle(run), "lead"),
            markup.cards(headline_numbers(run)),
            markup.bullets(verdict(run)),
            markup.section(
                "Loss and bound", part("curves"), part("bound"), tables if finals else ""
            ),
            markup.section("Accuracy by offset", part("accuracy")),
            markup.section("Negatives", audit_table(run.audit) if run.audit else ""),
            markup.section(
                "What the representation knows",
                part("probes") or markup.paragraph(missing),
                *probe_tables(run),
                part("probe_progress"),
                *comparison(run),
            ),
            markup.section("Few labels", part("few_labels"), few_labels_table(run.few_labels)),
            markup.section("Speakers", part("speakers"), picture_note(run)),
            markup.section(
                "Pictures", part("neighbours"), part("units"), part("augmented"), array_notes(run)
            ),
            markup.section("Health of the run", part("collapse"), part("speed")),
            markup.section(
                "How it was made",
                *provenance(run.environment, run.config),
                skipped_files(run),
                markup.details("Files of the run", file_table(run, words.probes_folder)),
            ),
        ]
    )


def comparison(run: Run) -> list[str]:
    """What the paper's numbers are, and what of them can be compared."""
    if not run.probes:
        return []
    if words_of(run) is PICTURES:
        note = (
            "The paper probes features of ImageNet, so absolute values do not compare with those "
            "of other pictures; what compares is the order: above the untrained network and above "
            "raw pixels, and more so with few labels. CPC v2 reports the accuracy of a network "
            "trained from pixels with 2 to 5 times fewer labels."
        )
        return [markup.paragraph(note, "note"), markup.details("The paper", imagenet_table())]
    note = (
        f"The paper's column is {SOURCE}. Its recordings, speakers and label sets differ from "
        "those used here, so absolute values do not compare; the order of the rows does: random "
        "initialisation, MFCC, CPC, supervised."
    )
    return [markup.paragraph(note, "note")]


def array_notes(run: Run) -> str:
    """Which pictures are missing, and why."""
    if words_of(run) is not PICTURES:
        return ""
    notes = [f"A picture is left out: {problem}." for problem in run.array_problems]
    damaged = " ".join(run.array_problems)
    absent = [
        f"{name}.npz" for name in ARRAYS if name not in run.arrays and f"{name}.npz" not in damaged
    ]
    if absent:
        notes.append(
            f"Not recorded yet: probes/{', probes/'.join(absent)}; the probe command on this "
            "directory adds what its config asks for."
        )
    return "\n".join(markup.paragraph(note, "note") for note in notes)


def picture_note(run: Run) -> str:
    """Why the picture of speakers is missing."""
    problem = run.picture_problem
    return markup.paragraph(f"The picture is left out: {problem}.") if problem else ""


def run_name(run: Run) -> str:
    """The config's name, or the directory's."""
    return str(run.config.get("name") or run.workdir.resolve().name)


def subtitle(run: Run) -> str:
    """What kind of thing this is, and from which revision."""
    revision = str(run.environment.get("git_revision") or "")
    data = run.config.get("data")
    source = data.get("source") or data.get("name") if isinstance(data, dict) else data
    parts = [
        "A run of contrastive predictive coding (van den Oord, Li, Vinyals 2018)",
        f"data: {source}" if source else "",
        f"revision {revision[:12]}" if revision else "",
        str(run.workdir.resolve()),
    ]
    return " · ".join(part for part in parts if part)


def headline_numbers(run: Run) -> list[tuple[str, str]]:
    """The few numbers that are asked for first."""
    numbers = []
    record = final_bound(run) or final_test(run)
    values = known(record.get("bound", [])) if record else ()
    if record is not None and len(values):
        kind = "bound" if record.get("is_bound") else "score log N − L"
        ceiling = markup.number_text(mean_known(record["log_n"]), ".2f")
        numbers.append(
            (
                f"{np.mean(values):.2f} nats",
                f"{kind}, mean of {len(mean_by_offset(record)[0])} offsets (ceiling {ceiling})",
            )
        )
    features = words_of(run).features
    for (task, data, unit), rows in grouped_rows(run).items():
        for row in rows:
            if row["features"] == features and row["probe"] == "linear":
                meaning = f"{task} by {unit}, linear on {features}, {data}"
                numbers.append((f"{100 * row['accuracy']:.1f} %", meaning))
    if run.train:
        last = run.train[-1]
        seconds = known(last.get("seconds", []))
        time = f" in {duration(seconds[0])}" if len(seconds) else ""
        numbers.append((f"{last['step']:,}", f"training steps{time}"))
    return numbers


def skipped_files(run: Run) -> str:
    """And why."""
    if not run.skipped:
        return ""
    lines = "<br>".join(f"<code>{markup.escape(line)}</code>" for line in run.skipped)
    return markup.details(f"Skipped files ({len(run.skipped):,})", lines)
