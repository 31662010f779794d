"""The run page: numbers, figures, tables and summary sentences."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from test_engine import Page

from cpc.files import read_json, write_json
from cpc.report import Words, closing_lines, run_page, score_section, sentences, write_report
from cpc.report.engine import Section, cells, write_page
from cpc.report.run_page import accuracy_figure, bound_figure, curves_figure
from cpc.report.scores import headlines, score_groups
from cpc.report.sentences import against_phrase, state_sentences
from cpc.results.run import last_scores, read_run
from cpc.results.score import Outcomes, Score, score_frame, show_value, write_scores
from tests.fake_image_run import DIRECTIONS, write_fake_image_run
from tests.fake_image_run import OFFSETS as ROWS_AHEAD
from tests.fake_run import (
    OFFSETS,
    add_records,
    draw_nothing,
    fake_record,
    remove_seals,
    write_fake_run,
)

AUDIO = Words("recordings", baselines=("mfcc",), titles={"mfcc": "MFCC"}, tested="utterances")
IMAGES = Words("images", features=("z", "c"), baselines=("pixels",), ahead="rows ahead")
FIGURES = {"accuracy", "bound", "collapse", "curves", "scores", "speed"}


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
def images(tmp_path):
    return write_fake_image_run(tmp_path / "run")


def axes_of(figures):
    (one,) = figures
    return one.figure.axes


def summary(run, words):
    return sentences.summary(run, headlines(run.scores, words), words)


def headline(run, words):
    return run_page.headline(run, headlines(run.scores, words))


PHONES = Score("phones", "ru", "frame", "c", "linear", "accuracy", 0.73, 0.72, 0.74, 0.21)


def add_run(tmp_path, *scores):
    (tmp_path / "config.json").write_text("{}")
    write_scores(tmp_path, scores)
    return read_run(tmp_path)


def rewrite_lines(workdir, lines):
    (workdir / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    remove_seals(workdir)


def tables_of(run, words):
    groups = score_groups(last_scores(run.scores), words)
    return {group: score_section.score_table(group, rows, words) for group, rows in groups.items()}


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
    for missing in ("scores.json", "environment.json", "skipped.txt", "metrics.jsonl"):
        (workdir / missing).unlink()
        Page(write_report(workdir, AUDIO).read_text(encoding="utf-8"))


def test_numbers_table_and_figure_of_scores(finished):
    run = read_run(finished)
    bound = run.offsets[(run.offsets.rule == "one_per_sequence") & (run.offsets.step == 500)].bound
    numbers = [number for number, _ in headline(run, AUDIO)]
    assert numbers == [f"{bound.mean():.2f} nats", "56.2 %", "87.1 %", "99.2 %", "500"]
    panels = axes_of(score_section.scores_figure(last_scores(run.scores), AUDIO))
    widths = [[bar.get_width() for bar in axes.patches] for axes in panels]
    np.testing.assert_allclose(widths[0], [35.1, 61.4, 44.1, 56.2, 63.4])  # baselines first
    assert len(widths) == 3
    tables = tables_of(run, AUDIO)
    rows = cells(tables["phones", "festvox-ru", "frame"])
    assert rows == [
        ["chance", "", "21.3", "", "", ""],
        ["untrained, c", "linear", "35.1", "33.9 to 36.3", "", "l2 1e-05"],
        ["MFCC", "linear", "61.4", "60.2 to 62.6", "", "l2 1e-05"],
        ["CPC, z", "linear", "44.1", "42.9 to 45.3", "", "l2 1e-05"],
        ["CPC, c", "linear", "56.2", "55.0 to 57.4", "+21.1 (+19.4 to +22.8)", "l2 1e-05"],
        ["CPC, c", "one hidden layer", "63.4", "62.2 to 64.6", "", "l2 1e-05"],
    ]
    assert tables["phones", "festvox-ru", "frame"].strong == [3, 4, 5]


@pytest.mark.parametrize("own", [False, True])
def test_chance_is_shown_per_metric_and_per_feature_if_they_differ(own):
    scores = [
        Score("boundaries", "ru", "utterance", features, "peaks", metric, 0.6, chance=chance)
        for features, more in (("random z", 0.0), ("z", 0.1 * own))
        for metric, chance in (("F1", 0.2 + more), ("R-value", 0.4 + more))
    ]
    table = score_section.score_table(("boundaries", "ru", "utterance"), score_frame(scores), AUDIO)
    rows = [dict(zip(table.frame.columns, row, strict=True)) for row in cells(table)]
    if own:
        assert [row["chance"] for row in rows] == ["0.2 and 0.4", "0.3 and 0.5"]
    else:
        assert (rows[0]["features"], rows[0]["F1"]) == ("chance", "0.2")
        assert rows[0]["R-value"] == "0.4"
    panels = axes_of(score_section.scores_figure(score_frame(scores), AUDIO))
    lines = [len(axes.collections) for axes in panels if axes.get_yticklabels()]
    assert (len({*lines}), lines[0] > 0) == (1, own)


def test_tables_and_figures_of_images(images):
    top_5 = Score("classes", "shapes", "image", "z", "linear", "top-5 accuracy", 0.955, 0.95, 0.96)
    write_scores(images, [top_5._replace(step=500)])
    run = read_run(images)
    table = tables_of(run, IMAGES)["classes", "shapes", "image"]
    ours = dict(zip(table.frame.columns, cells(table)[4], strict=True))
    assert ours == {
        "features": "CPC, z", "method": "linear", "accuracy, %": "85.5",
        "top-5 accuracy, %": "95.5", "95 % interval": "84.8 to 86.2",
        "over untrained": "+11.4 (+10.3 to +12.5)",  # unpaired: +10.4 to +12.4
        "setting": "lbfgs, l2 0.001",
    }  # fmt: skip
    panels = axes_of(bound_figure(run, IMAGES))
    assert [axes.get_title(loc="left").split(":")[0] for axes in panels] == [
        f"{rule}, {direction}" for rule in ("batch", "one per sequence") for direction in DIRECTIONS
    ]
    (ceiling,) = [line for line in panels[0].lines if line.get_label() == "log N"]
    assert ceiling.get_xdata().tolist() == ROWS_AHEAD
    top1, _ = axes_of(accuracy_figure(run, IMAGES))
    assert "one per sequence, up, N = 128" in {line.get_label() for line in top1.lines}
    assert top1.get_xlabel() == "offset k (rows ahead)"


def test_learning_curves(images):
    run = read_run(images)
    groups = score_groups(last_scores(run.scores), IMAGES)
    group = ("few_labels", "shapes", "image")
    rows = {
        row[0]: row[1:] for row in cells(score_section.curve_table(group, groups[group], IMAGES))
    }
    assert rows["CPC, z, frozen"][0] == "72.0 ± 2.6"
    (figure,) = score_section.curve_figures(last_scores(run.scores), IMAGES)
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
    (axes,) = axes_of(score_section.progress_figure(run.scores, IMAGES))
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["CPC, z"] == [[0, 60], [250, 72.5], [500, 85.5]]


def test_each_data_set_unit_and_metric_has_a_learning_curve(images):
    asked = {
        ("utterance", "accuracy"): 0.2, ("frame", "accuracy"): 0.5, ("frame", "top-5 accuracy"): 0.8
    }  # fmt: skip
    score = Score("speakers", "a/b", "", "c", "linear", "", 0.0, step=500)
    curve = [
        score._replace(unit=unit, metric=metric, value=value + n / 1e4, num_train=n, data=data)
        for (unit, metric), value in asked.items()
        for n in (100, 200)
        for data in ("a/b", "../a_b")
    ]
    write_scores(images, curve)
    section = score_section.scores_section(read_run(images), IMAGES)
    values = {one.title: cells(one)[0][1] for one in section.tables}
    for (unit, metric), value in asked.items():
        title = f"Speakers by {unit}, a/b: {metric}, % by number of labels"
        assert values[title] == show_value(value + 0.01, metric)
    drawn = [one.name for one in section.figures if one.name.startswith("curve_speakers")]
    assert len({*drawn}) == 6
    sentences = [one for one in summary(read_run(images), AUDIO) if "labels of a/b" in one]
    assert ["top-5 accuracy of" in one for one in sentences] == [False, False, True]
    write_page(images, "curves", "", "", sections=[section])
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
    (said,) = [one for one in summary(run, AUDIO) if "lower bound" in one]
    places = "offsets 2, 4, 6, 8, 10, 12 (frames), offsets 2, 4 (segments)"
    assert f"1.20 nats averaged over {places}" in said
    assert "2.00 at offset 2 and 1.00 at offset 12 of frames" in said
    number, meaning = headline(run, AUDIO)[0]
    assert (number, meaning[:40]) == ("1.20 nats", "bound, mean over k = 2, 4, 6, 8, 10, 12 ")
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
    assert headline(run, AUDIO)[0][0] == f"{mean:.2f} nats"
    assert "k = 4–12" in headline(run, AUDIO)[0][1]
    (said,) = [one for one in summary(run, AUDIO) if "are within a group" in one]
    assert "offsets 4–12, 1.00 nats" in said
    assert f"{mean - 1:.2f} tell" in said
    bound, parts = run_page.bound_section(run, AUDIO).tables
    assert [len(bound.frame), len(parts.frame)] == [12, 12]
    assert bound.frame["input shared with the context %"].tolist()[:3] == [80, 50, 0]
    assert cells(parts)[0][1:3] == ["4.000", "1.000 (2.000 to 2.000)"]
    add_records(workdir, full | more | {"step": 700, "state": ["saturated"] * 12})
    assert "k = 12" in headline(read_run(workdir), AUDIO)[0][1]


def test_states_name_their_offsets():
    bound, state = [2.0, 1.0, np.nan, 3.0, 2.0], ["fine", "chance", "chance", "saturated", "warn"]
    rows = pd.DataFrame(
        {"offset": [2, 3, 4, 5, 6], "direction": "", "bound": bound, "state": state}
    )
    named = [
        re.findall(r"offsets? ([\d–, ]*\d)", sentence) for sentence in state_sentences(rows, "")
    ]
    assert named == [["4"], ["5"], ["6"], ["3"]]  # missing, saturated, warn, chance
    rows["direction"] = ["down"] * 2 + ["up"] * 3
    assert "offset 5 (up)" in state_sentences(rows, "")[1]
    assert len(state_sentences(rows.assign(state="fine", bound=1.0), "")) == 1


def test_only_bounds_are_called_bounds(workdir):
    def sentences():
        return summary(read_run(workdir), AUDIO)

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


@pytest.mark.parametrize(("num_won", "num_lost", "higher_is_better", "word"), [
    (13, 3, True, "better"), (25, 15, True, "not"), (3, 13, False, "better"),
])  # fmt: skip
def test_paired_differences_decide_comparisons(num_won, num_lost, higher_is_better, word):
    """The intervals overlap, so only the paired difference is significant."""

    def score(features, is_right):
        value, own = float(is_right.mean()), Outcomes(is_right, items="d")
        one = PHONES._replace(features=features, value=value, outcomes=own)
        return one._replace(
            low=value - 0.015, high=value + 0.015, higher_is_better=higher_is_better
        )

    item = np.arange(1000)
    ours = score("z", item < 855)
    other = score("pixels", (item >= num_won) & (item < 855 + num_lost))
    assert against_phrase(ours, other, IMAGES).split()[0] == word
    assert against_phrase(ours._replace(outcomes=None), other, IMAGES).split()[0] == "not"


def test_features_are_compared_with_baselines_and_untrained_network(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    rng = np.random.default_rng(0)
    hard, count = rng.uniform(20, 60, 200), np.full(200, 100)

    def score(features, lead):
        sums = np.clip(hard + lead + rng.normal(0, 1, 200), 0, 100)
        value, own = float(sums.mean() / 100), Outcomes(sums, count, "same")
        one = PHONES._replace(data="toy", features=features, value=value, outcomes=own)
        return one._replace(low=value - 0.02, high=value + 0.02, chance=None)

    features = {"c": 5, "mfcc": 2, "mfcc context": 8, "random c": 3.5}
    write_scores(tmp_path, [score(name, lead) for name, lead in features.items()])
    words = AUDIO._replace(
        baselines=("mfcc", "mfcc context"), titles={"mfcc": "MFCC", "mfcc context": "stacked"}
    )
    ours, gain = (one for one in summary(read_run(tmp_path), words) if "linear on c" in one)
    assert all(word in ours for word in ("better than MFCC (", "worse than stacked ("))
    assert re.search(r"\+1\.[3-7] \(\+1\.\d to \+1\.\d\) points, paired by items", gain)
    write_scores(tmp_path, [score("random c", 12.0)])
    (loss,) = [one for one in summary(read_run(tmp_path), words) if "minus" in one]
    assert "training has lost" in loss


def test_summary_warns_of_collapse_and_of_a_violated_bound(workdir):
    def number_of_sentences():
        return len(summary(read_run(workdir), AUDIO))

    before, said = number_of_sentences(), []
    for nats in (9.0, 0.5):
        truth = {"offsets": OFFSETS, "mutual_information": [nats] * 12}
        (workdir / "truth.json").write_text(json.dumps(truth))
        said += [one for one in summary(read_run(workdir), AUDIO) if "exact" in one]
    kept, broken = said
    assert kept != broken
    assert number_of_sentences() == before + 1
    flat = fake_record(600, "batch", False, 1024, 4.0, np.random.default_rng(0))
    add_records(workdir, flat | {"std_c": 1e-7, "rank_c": 1.0})
    assert any("1e-07" in one for one in summary(read_run(workdir), AUDIO))


def test_lower_error_rates_are_better(tmp_path):
    rate = Score("words", "news", "utterance", "c", "ctc", "word error rate", 0.123, 0.11, 0.14,
                 higher_is_better=False, num_test=70)  # fmt: skip
    run = add_run(tmp_path, rate, rate._replace(features="random c", value=0.9, low=0.8, high=0.95))
    assert headline(run, AUDIO)[0][0] == "12.3 %"
    table = tables_of(run, AUDIO)["words", "news", "utterance"]
    assert list(table.frame.columns)[2] == "word error rate, %"
    assert [row[0] for row in cells(table)] == ["untrained, c", "CPC, c"]
    assert cells(table)[1][4].startswith("−77.7")
    (axes,) = axes_of(score_section.scores_figure(last_scores(score_frame([rate])), AUDIO))
    assert "lower is better" in axes.get_xlabel()
    assert [line for line in axes.lines if line.get_linestyle() == ":"] == []
    (sentence,) = [one for one in summary(run, AUDIO) if "12.3" in one]
    gains = [one for one in summary(run, AUDIO) if "−77.7" in one]
    assert "chance" not in sentence
    assert ["lost" in one for one in gains] == [False, False]


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
    for new in (*[...] * 4, *WRONG[::3]):
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
    headline(run, AUDIO)
    summary(run, AUDIO)


def test_summary_starts_with_gains_and_names_losses(tmp_path):
    hidden = PHONES._replace(method="hidden", value=0.745, low=0.74, high=0.75)
    scores = [
        PHONES, PHONES._replace(features="random c", value=0.682, low=0.67, high=0.69),
        PHONES._replace(features="mfcc", value=0.6, low=0.59, high=0.61),
        PHONES._replace(data="en", value=0.681, low=0.67, high=0.69),
        PHONES._replace(data="en", features="random c", value=0.631, low=0.62, high=0.64),
        PHONES._replace(task="nats", metric="nats", value=2.5, low=2.4, high=2.6),
        PHONES._replace(task="nats", metric="nats", features="random c", value=1.0), hidden,
        hidden._replace(features="mfcc", value=0.788, low=0.78, high=0.79),
    ]  # fmt: skip
    run = add_run(tmp_path, *scores)
    first, *others = summary(run, AUDIO)
    assert first == "CPC over untrained: phones +4.8 and +5.0 points, nats +1.50 nats."
    (lost,) = [one for one in others if "hidden" in one]
    assert all(word in lost for word in ("MFCC", "78.8 % to 74.5 %"))
    lines = closing_lines(tmp_path, AUDIO)
    assert lines[1].split()[-4:] == ["21.0", "60.0", "68.2", "73.0"]
    assert lines[-2:] == [first, lost]
    # A loss on another metric of the headline's method is also named.
    five = PHONES._replace(metric="top-5 accuracy", value=0.8, low=0.79, high=0.81)
    better = five._replace(features="mfcc", value=0.9, low=0.89, high=0.91)
    said = summary(add_run(tmp_path, PHONES, five, better), AUDIO)
    assert any("top-5 accuracy" in one and "90.0 % to 80.0 %" in one for one in said)


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
    first, line = summary(read_run(tmp_path), AUDIO)[0], closing_lines(tmp_path, AUDIO)[0]
    assert ("own_sequence" in first) is ("own_sequence" in line) is is_worse


def test_difference_on_one_item_is_inconclusive(tmp_path):
    own = {"low": None, "high": None, "outcomes": Outcomes([38], [100], "one")}
    ours = PHONES._replace(value=0.38, **own)
    other = ours._replace(features="random c", value=0.76, outcomes=Outcomes([76], [100], "one"))
    (sentence,) = [one for one in summary(add_run(tmp_path, ours, other), AUDIO) if "minus" in one]
    assert all(word in sentence for word in ("−38.0 points", "one test item"))
    assert "distinguishable" not in sentence
    assert "without an interval" in against_phrase(ours, other, AUDIO)


def test_infinite_loss_is_reported_as_worse_than_chance(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        record["bound"][2] = record["offset_loss"][2] = None  # as infinity is recorded
        record["state"][2] = "diverged"
    rewrite_lines(workdir, [json.dumps(record) for record in records])
    said = summary(read_run(workdir), AUDIO)
    assert any("Worse than guessing at offset 3" in one for one in said)
    assert not any("No number at" in one for one in said)


@pytest.mark.parametrize("unranked", [(), ("phones",)])
def test_unranked_tasks_have_no_better_direction(tmp_path, unranked):
    run = add_run(tmp_path, PHONES._replace(metric="nats", higher_is_better=False))
    (table,) = score_section.scores_section(run, AUDIO._replace(unranked=unranked)).tables
    assert ("Lower is better" in table.note) is not bool(unranked)
