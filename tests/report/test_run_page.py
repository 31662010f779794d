"""The run page: its tables, figures and sentences, and the last lines on the console."""

import itertools
import json
import shutil

import numpy as np
import pytest
from test_engine import Page

from cpc.files import read_json, write_json
from cpc.report import Words, closing_lines, run_page, scores, sentences, write_report
from cpc.report.engine import Section, cells, write_page
from cpc.report.run_page import accuracy_figure, bound_figure, bound_section, curves_figure
from cpc.report.scores import DIFFERENCE, all_scores, headlines, score_table
from cpc.results.run import last_scores, read_run
from cpc.results.score import Outcomes, Score, write_scores
from tests import fake_image_run, fake_run
from tests.fake_run import OFFSETS, add_records, draw_nothing, fake_record, write_fake_run

AUDIO = Words("recordings", baselines=("mfcc",), titles={"mfcc": "MFCC"}, tested="utterances")
IMAGES = Words("images", features=("z", "c"), baselines=("pixels",), ahead="rows ahead")
FIGURES = {"accuracy", "bound", "collapse", "curves", "speed"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a run directory with all files, which tests must not change."""
    workdir = write_fake_run(tmp_path_factory.mktemp("finished"), 500)
    row = {"name": "a", "value": 1.0, "unit": "u", "meaning": "what a means"}
    write_json(workdir / "audit.json", {"rule": "batch", "title": "x", "rows": [row]})
    write_json(workdir / "truth.json", {"offsets": [1, 2], "mutual_information": [1.0, 0.5]})
    return workdir


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    draw_nothing(monkeypatch)


@pytest.fixture
def workdir(tmp_path):
    """Return a run directory that a test may damage, without the slow speaker map."""
    write_fake_run(tmp_path, num_steps=500)
    (tmp_path / "probes" / "speaker_map.npz").unlink()
    return tmp_path


@pytest.fixture
def images(tmp_path):
    return fake_image_run.write_fake_image_run(tmp_path / "run")


def axes_of(figures):
    (one,) = figures
    return one.figure.axes


def summary(run, words=AUDIO):
    found = headlines(run.scores, words)
    return [
        *sentences.warnings(run, found, words), *sentences.reading_sentences(run, found, words)
    ]  # fmt: skip


def rows_of(table, key="task"):
    """Return the texts of a table as {column: text} by the text of one column."""
    lines = [dict(zip(table.frame.columns, row, strict=True)) for row in cells(table)]
    return {line[key]: line for line in lines}


def tasks_of(run, words=AUDIO):
    return rows_of(score_table(headlines(run.scores, words), words))


PHONES = Score("phones", "ru", "frame", "c", "linear", "accuracy", 0.73, 0.72, 0.74, 0.21)


def add_run(tmp_path, *scores):
    (tmp_path / "config.json").write_text("{}")
    write_scores(tmp_path, scores)
    return read_run(tmp_path)


def rewrite_lines(workdir, lines):
    (workdir / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    fake_run.remove_seals(workdir)


def test_page_has_all_parts_and_is_reproducible(finished):
    own = [lambda run: Section("Mine", [f"of {run.name}"]), lambda run: None]
    written, again = (write_report(finished, AUDIO, own).read_bytes() for _ in range(2))
    assert written == again
    page = written.decode()
    assert {path.stem for path in (finished / "figures").glob("*.png")} == FIGURES
    assert page.count("<img") == len(FIGURES)
    text = "".join(Page(page).text)
    of_audit, of_config, skipped = "what a means", "model.context_width", "1009/<b>.flac: no samp"
    command = read_run(finished).environment["command"]
    for word in (of_audit, of_config, skipped, "git_revision", "of audio_voices", command):
        assert word in text


def test_missing_and_damaged_files_are_omitted(workdir):
    (workdir / "scores.json").write_text("{")
    (problem,) = read_run(workdir).problems
    assert problem in "".join(Page(write_report(workdir, AUDIO).read_text()).text)
    for missing in (("scores.json", "environment.json"), ("skipped.txt", "metrics.jsonl")):
        for name in missing:
            (workdir / name).unlink()
        Page(write_report(workdir, AUDIO).read_text(encoding="utf-8"))


def test_tables_of_scores(finished):
    run = read_run(finished)
    assert cells(score_table(headlines(run.scores, AUDIO), AUDIO)) == [
        ["phones, festvox-ru", "21.3", "61.4", "35.1", "56.2", "−5.2 (−6.9 to −3.5)"],
        ["speakers by frame, voices", "26.0", "71.3", "31.1", "87.1", "+15.8 (+14.1 to +17.5)"],
        ["speakers by utterance, voices", "26.0", "96.1", "45.2", "99.2", "+3.1 (+1.4 to +4.5)"],
    ]
    rows = cells(all_scores(run.scores, AUDIO))
    assert [row[2] for row in rows[:5]] == ["random c", "mfcc", "z", "c", "c"]
    assert len(rows) == len(run.scores)
    assert rows[3] == [
        "phones by frame", "festvox-ru", "c", "linear", "502,446", "56.2 %", "55.0 to 57.4",
        "accuracy", "21.3", "l2 1e-05", "+21.1 (+19.4 to +22.8)", "93,926",
    ]  # fmt: skip


def test_tables_and_figures_of_images(images):
    run = read_run(images)
    rows = tasks_of(run, IMAGES)
    assert rows["classes, shapes"][DIFFERENCE] == "+3.2 (+2.2 to +4.2)"
    assert rows["few labels, shapes, 600 labels, frozen"]["CPC"] == "72.0"
    panels = axes_of(bound_figure(run, IMAGES))
    titles = itertools.product(("batch", "one per sequence"), fake_image_run.DIRECTIONS)
    drawn = [axes.get_title(loc="left").split(":")[0] for axes in panels]
    assert drawn == [f"{rule}, {direction}" for rule, direction in titles]
    (ceiling,) = [line for line in panels[0].lines if line.get_label() == "log N"]
    assert ceiling.get_xdata().tolist() == fake_image_run.OFFSETS
    top1, _ = axes_of(accuracy_figure(run, IMAGES))
    assert "one per sequence, up, N = 128" in {line.get_label() for line in top1.lines}
    assert top1.get_xlabel() == "offset k (rows ahead)"


def test_learning_curves(images):
    run = read_run(images)
    (figure,) = scores.curve_figures(last_scores(run.scores), IMAGES)
    (axes,) = axes_of([figure])
    assert figure.name == "curve_few_labels_shapes_image_accuracy"
    lines = dict(zip(axes.get_legend_handles_labels()[1], axes.containers, strict=True))
    assert list(lines) == [
        "untrained, z, frozen", "pixels, frozen", "CPC, z, frozen", "CPC, z, fine-tuned",
        "supervised",
    ]  # fmt: skip
    line, *_ = lines["CPC, z, frozen"].lines
    assert [float(line.get_xdata()[at]) for at in (0, -1)] == [600, 60_000]
    assert [float(line.get_ydata()[at]) for at in (0, -1)] == pytest.approx([72, 85])
    assert axes.get_xticklabels()[0].get_text() == "600\n1 % of the labels"
    (axes,) = axes_of(scores.progress_figure(run.scores, IMAGES))
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["CPC, z"] == [[0, 60], [250, 72.5], [500, 85.5]]


def test_each_data_set_unit_and_metric_has_a_learning_curve(images):
    asked = ("utterance", "accuracy"), ("frame", "accuracy"), ("frame", "top-5 accuracy")
    curve = [
        Score("speakers", data, unit, "c", "linear", metric, 0.5, step=500, num_train=n)
        for (unit, metric), n, data in itertools.product(asked, (100, 200), ("a/b", "../a_b"))
    ]
    write_scores(images, curve)
    section = scores.scores_section(read_run(images).scores, IMAGES)
    drawn = [one.name for one in section.figures if one.name.startswith("curve_speakers")]
    assert len({*drawn}) == 6
    write_page(images, "curves", "", "", [section])
    assert all((images / "figures" / f"{name}.png").exists() for name in drawn)


def test_figures_of_offsets_show_the_last_records(workdir):
    truth = {"offsets": OFFSETS, "mutual_information": [3.0] * 12}
    (workdir / "truth.json").write_text(json.dumps(truth))
    run = read_run(workdir)
    for axes, rule in zip(
        axes_of(bound_figure(run, AUDIO)), ("batch", "one_per_sequence"), strict=True
    ):
        rows = run.offsets[(run.offsets.rule == rule) & (run.offsets.step == 500)]
        rows = rows[rows.split == "test"]
        lines = {line.get_label(): line.get_ydata() for line in axes.lines}
        np.testing.assert_array_equal(lines["log N"], rows.log_n)
        np.testing.assert_array_equal(lines["exact mutual information"], 3.0)
        assert axes.get_ylim()[1] > rows.log_n.max()
        assert axes.get_title(loc="left").startswith(rule.replace("_", " "))
    top1, pairwise = axes_of(accuracy_figure(run, AUDIO))
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in top1.lines}
    rows = run.offsets[(run.offsets.rule == "batch") & (run.offsets.split == "test")]
    np.testing.assert_allclose(lines["batch, N = 1,024"], 100 * rows[rows.step == 500].acc_top1)
    np.testing.assert_allclose(lines["chance, 1.6 %"], 100 / 64)
    assert "chance, 50 %" in {line.get_label() for line in pairwise.lines}
    # Curves are means over the offsets that have a value.
    record = fake_record(600, "batch", False, 1024, 4.4, np.random.default_rng(0))
    loss = [None, *record["offset_loss"][1:]]
    add_records(workdir, record | {"split": "train", "offset_loss": loss})
    left, _ = axes_of(curves_figure(read_run(workdir)))
    np.testing.assert_allclose(left.lines[0].get_ydata()[-1], np.mean(loss[1:]))


def test_branches_are_averaged_by_number_of_predictions(workdir):
    rng, directions = np.random.default_rng(0), ["frames"] * 6 + ["segments"] * 2
    for is_bound, rule in ((False, "batch"), (True, "one_per_sequence")):
        full = fake_record(600, rule, is_bound, 256, 4.0, rng)
        record = {k: v[:8] if isinstance(v, list) else v for k, v in full.items()}
        bound = [2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.4, 0.2]
        offsets, n = [2, 4, 6, 8, 10, 12, 2, 4], [256] * 6 + [32] * 2
        more = {"offsets": offsets, "n": n, "bound": bound, "directions": directions}
        add_records(workdir, record | more)
    run = read_run(workdir)
    (said,) = [one for one in summary(run) if "lower bound" in one]
    assert "1.20 nats, the mean over k = 2, 4, 6, 8, 10, 12 " in said
    top1, _ = axes_of(accuracy_figure(run, AUDIO))
    assert {"batch, frames, N = 256", "batch, segments, N = 32"} <= {
        line.get_label() for line in top1.lines
    }


def test_headline_skips_saturated_and_shared_offsets(workdir):
    full = fake_record(600, "one_per_sequence", True, 64, 4.2, np.random.default_rng(0))
    more = {"bound": np.linspace(4.0, 1.8, 12), "shared": [0.8, 0.5] + [0.0] * 10}
    more |= {"state": ["fine"] * 2 + ["saturated"] + ["warn"] * 9, "within": [1.0] * 12}
    more |= {"between": more["bound"] - 1, "within_state": ["fine"] * 12, "left_out": [3] * 12}
    ends = ("within_low", "within_high", "between_low", "between_high", "within_n", "within_log_n")
    add_records(workdir, full | more | {name: [2.0] * 12 for name in ends})
    run = read_run(workdir)
    mean = more["bound"][3:].mean()
    (said,) = [one for one in summary(run) if "lower bound" in one]
    assert f"{mean:.2f} nats, the mean over k = 4–12 " in said
    _, bound, parts = bound_section(run, AUDIO).details
    assert [len(bound.frame), len(parts.frame)] == [12, 12]
    assert bound.frame["input shared with the context %"].tolist()[:3] == [80, 50, 0]
    assert cells(parts)[0][1:3] == ["4.000", "1.000 (2.000 to 2.000)"]
    add_records(workdir, full | more | {"step": 700, "state": ["saturated"] * 12})
    assert any("the mean over k = 12 " in one for one in summary(read_run(workdir)))


def test_states_name_their_offsets(workdir):
    full = fake_record(600, "one_per_sequence", True, 64, 4.2, np.random.default_rng(0))
    state = ["saturated"] * 2 + ["warn", "chance", "chance", "diverged"] + ["fine"] * 6
    bound = [*full["bound"][:4], None, None, *full["bound"][6:]]  # infinity is recorded as None
    add_records(workdir, full | {"state": state, "bound": bound})
    said = [one for one in summary(read_run(workdir)) if "(rule “one per sequence”)" in one]
    assert [one.split(" (rule")[0] for one in said] == [
        "Not above chance at k = 4", "Worse than guessing at k = 6", "Saturated at k = 1–2"
    ]  # fmt: skip


def test_only_bounds_are_called_bounds(workdir):
    def sentences():
        return summary(read_run(workdir))

    assert sum("lower bound" in one for one in sentences()) == 1
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if not json.loads(line)["is_bound"]]
    rewrite_lines(workdir, kept)
    assert not any("lower bound" in one for one in sentences())
    for chance, shown in (({}, "0.098"), ({"chance_top1": [0.002] * 12}, "0.2")):
        records = [{**json.loads(line), **chance} for line in kept]
        without = [{k: v for k, v in one.items() if not k.startswith("bound")} for one in records]
        rewrite_lines(workdir, map(json.dumps, without))
        words = " ".join(sentences())
        top1 = read_run(workdir).offsets.query("split == 'test' and step == 500").acc_top1.mean()
        assert f"{100 * top1:.1f} % of the time (chance {shown} %)" in words
    assert not any(word in words for word in ("chance at", "aturated", "estimate"))
    assert "nan" not in words


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("kind", ["paired", "independent", "single"])
def test_difference_is_from_the_strongest_other_score(tmp_path, higher, kind):
    sign, item = 1 if higher else -1, np.arange(1000)
    values = {"c": 0.5, "mfcc": 0.5 - sign * 0.1, "random c": 0.5 - sign * 0.02}
    values["W_1 c"] = 0.5 + sign * 0.4  # neither a baseline nor CPC
    scores = []
    for name, value in values.items():
        own = {"chance": None, "higher_is_better": higher, "low": None, "high": None}
        if kind == "paired":
            own["outcomes"] = Outcomes(item < 1000 * value, items="d")
        if kind == "independent":
            own |= {"low": value - 0.03, "high": value + 0.03}
        scores.append(PHONES._replace(features=name, value=value, **own))
    run = add_run(tmp_path, *scores)
    (line,) = tasks_of(run).values()
    assert line["task"].endswith("↓") is not higher
    assert {*line} == {"task", "MFCC", "untrained", "CPC", DIFFERENCE}
    value, *ends = line[DIFFERENCE].strip(")").replace(" (", " to ").split(" to ")
    assert value == ("+2.0" if higher else "−2.0")
    includes_zero = {end[0] for end in ends} == {"+", "−"}
    assert (len(ends), includes_zero) == (0 if kind == "single" else 2, kind == "independent")


def test_summary_warns_of_collapse_and_of_a_violated_bound(workdir):
    before, said = summary(read_run(workdir)), []
    for nats in (9.0, 0.5):
        truth = {"offsets": OFFSETS, "mutual_information": [nats] * 12}
        (workdir / "truth.json").write_text(json.dumps(truth))
        said += [one for one in summary(read_run(workdir)) if "exact" in one]
    kept, broken = said
    assert kept != broken
    assert len(summary(read_run(workdir))) == len(before) + 1
    flat = fake_record(600, "batch", False, 1024, 4.0, np.random.default_rng(0))
    add_records(workdir, flat | {"std_c": 1e-7, "rank_c": 1.0})
    assert any("1e-07" in one for one in summary(read_run(workdir)))


#: Values of wrong type or size that a damaged file may contain.
WRONG = (None, "a", "7", 3, -1.5, True, 1e308, [], {}, [None], ["a"], {"a": 1})


def damage(value, rng):
    keys = [*value] if isinstance(value, dict) else [0] if isinstance(value, list) and value else []
    if not keys or rng.random() < 0.2:
        return rng.choice(np.array([*WRONG, ...], object))
    key = keys[rng.choice(len(keys))]
    new = damage(value[key], rng)
    if isinstance(value, list):
        return [new, *value[1:]]
    return {name: one for name, one in {**value, key: new}.items() if one is not ...}


def test_page_is_written_despite_values_of_wrong_type(finished, tmp_path):
    workdir = shutil.copytree(finished, tmp_path / "run")
    score = Score("tone", "voices", "frame", "c", "linear", "accuracy", 0.5, 0.4, 0.6, 0.1)
    write_scores(workdir, [score, score._replace(features="random c")])
    names = ("audit.json", "truth.json", "scores.json", "environment.json", "config.json")
    whole, rng = {name: read_json(workdir / name) for name in names}, np.random.default_rng(0)
    for new in (*[...] * 3, *WRONG[::4]):
        for name, content in whole.items():
            write_json(workdir / name, damage(content, rng) if new is ... else new)
        write_report(workdir, AUDIO)


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"split": [None], "rank_c": "a", "bound": {}, "n": "a", "state": 3}, False),
     ({"step": 1e308}, True), ({"step": "7", "offsets": 3}, False)],
)  # fmt: skip
def test_record_with_wrong_types_affects_only_itself(finished, tmp_path, change, problem):
    workdir = shutil.copytree(finished, tmp_path / "run")
    first, *rest = (workdir / "metrics.jsonl").read_text().splitlines()
    rewrite_lines(workdir, [json.dumps({**json.loads(first), **change}), *rest, "[3]", rest[0]])
    run = read_run(workdir)
    assert len(run.metrics) == len(rest) + (not problem)
    assert len(run.problems) == 1 + problem  # a line with a list, and the record
    summary(run)


def test_console_ends_with_the_table_and_losses(tmp_path):
    hidden = PHONES._replace(method="hidden", value=0.745, low=0.74, high=0.75)
    five = PHONES._replace(metric="top-5 accuracy", value=0.8, low=0.79, high=0.81)
    more = {"features": "mfcc", "low": 0.89, "high": 0.91}
    scores = [
        PHONES, PHONES._replace(features="random c", value=0.682, low=0.67, high=0.69),
        PHONES._replace(features="mfcc", value=0.6, low=0.59, high=0.61),
        PHONES._replace(task="nats", metric="nats", value=2.5, low=2.4, high=2.6, chance=None),
        hidden, hidden._replace(value=0.9, **more), five, five._replace(value=0.9, **more),
    ]  # fmt: skip
    add_run(tmp_path, *scores)
    head, phones, nats, *losses = closing_lines(tmp_path, AUDIO)
    assert head.split()[:5] == ["task", "chance", "MFCC", "untrained", "CPC"]
    assert phones.split()[2:7] == ["21.0", "60.0", "68.2", "73.0", "+4.8"]
    assert nats.split() == ["nats,", "ru", "2.50"]
    said = " ".join(losses)
    assert all(word in said for word in ("hidden layer (MFCC, 90.0 % to 74.5 %)", "top-5 accuracy"))


def test_console_table_fits_its_width(tmp_path):
    titles = {f"b{n}": f"mean of some other embeddings {n}" for n in range(3)}
    names = ["c", "random c", *titles]
    scores = [PHONES._replace(task="a long name of a task " * 3, features=name) for name in names]
    add_run(tmp_path, *scores)
    lines = closing_lines(tmp_path, Words(baselines=tuple(titles), titles=titles))
    assert max(map(len, lines)) <= run_page.WIDTH
    assert {word for word in " ".join(lines).split() if word in "012"} == {*"012"}


@pytest.mark.parametrize(("trained", "untrained", "metric", "is_worse"), [
    ((0.37,), (0.76,), "accuracy", True), ((0.758,), (0.76,), "accuracy", False),
    ((0.74, 0.60, 0.88), (0.76, 0.62, 0.90), "accuracy", False),
    ((0.97, 0.96, 0.98), (0.76, 0.75, 0.77), "error rate", True),
])  # fmt: skip
def test_features_worse_than_untrained_come_first(tmp_path, trained, untrained, metric, is_worse):
    own = {"metric": metric, "higher_is_better": metric == "accuracy", "chance": None}
    scores = [
        PHONES._replace(features=name, value=value, low=ends[0], high=ends[1], **own)
        for name, (value, *ends) in (("c", (*trained, None, None)),
                                     ("random c", (*untrained, None, None)))
    ]  # fmt: skip
    add_run(tmp_path, *scores)
    (tmp_path / "config.json").write_text('{"negatives": {"rule": "batch"}}')
    first, lines = summary(read_run(tmp_path))[0], closing_lines(tmp_path, AUDIO)
    assert ("own_sequence" in first) is ("own_sequence" in " ".join(lines)) is is_worse


@pytest.mark.parametrize("unranked", [(), ("phones",)])
def test_unranked_tasks_have_no_better_direction(tmp_path, unranked):
    run = add_run(tmp_path, PHONES._replace(metric="nats", higher_is_better=False))
    words = AUDIO._replace(unranked=unranked)
    shown = [*tasks_of(run, words), *rows_of(all_scores(run.scores, words), "metric")]
    assert ["↓" in text for text in shown] == [not unranked] * 2
