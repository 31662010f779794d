import base64
import html.parser
import json
import re

import numpy as np
import pytest
from fake_run import (
    OFFSETS,
    add_records,
    fake_record,
    probe_row,
    sentences_of,
    write_fake_run,
)
from matplotlib.figure import Figure

from cpc.report import write_report
from cpc.report.paper import TABLE_1, paper_accuracy
from cpc.report.probe_figures import probe_figure, speakers_figure
from cpc.report.records import read_run
from cpc.report.training_figures import accuracy_figure, bound_figure, curves_figure
from cpc.types import UserError

FIGURES = ("accuracy", "bound", "collapse", "curves", "probes", "speakers", "speed")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run directory with its report, made once; tests do not change it."""
    workdir = write_fake_run(tmp_path_factory.mktemp("finished"))
    assert write_report(workdir) == workdir / "report.html"
    return workdir


class Balance(html.parser.HTMLParser):
    """Fails on a tag that is closed out of order."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_page_needs_nothing_beside_itself(finished):
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|<link|<script|@import|url\(", page)
    embedded = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(embedded) == page.count("<img") == len(FIGURES)
    files = {path.stem: path.read_bytes() for path in (finished / "figures").glob("*.png")}
    assert tuple(sorted(files)) == FIGURES
    assert {base64.b64decode(image) for image in embedded} == set(files.values())
    assert all(image.startswith(b"\x89PNG") and len(image) > 8000 for image in files.values())


def test_page_is_well_formed_and_escaped(finished):
    balance = Balance()
    balance.feed((finished / "report.html").read_text(encoding="utf-8"))
    assert balance.open == []
    assert "1009/<b>.flac: no samples" in "".join(balance.text)


def test_page_lays_the_run_beside_the_paper(finished):
    page = (finished / "report.html").read_text(encoding="utf-8")
    row = re.search(r"<tr[^>]*><td>MFCC</td><td>linear</td>(.*?)</tr>", page)
    assert re.findall(r"<td>(.*?)</td>", row[1]) == ["61.4", "60.2 to 62.6", "1e-5", "39.7"]
    row = re.search(r"<tr[^>]*><td>CPC, c</td><td>one hidden layer</td>(.*?)</tr>", page)
    assert re.findall(r"<td>(.*?)</td>", row[1])[-1] == "72.5"
    assert "absolute values do not compare" in page
    by_utterance = page[page.index("Speakers by utterance") :]
    assert "97.4" not in by_utterance  # the paper has no score by utterance


def test_same_records_same_bytes(workdir):
    first = write_report(workdir).read_bytes()
    assert write_report(workdir).read_bytes() == first


@pytest.mark.parametrize(
    "missing",
    [
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "probes/phones.json",
        "probes/speakers.json",
        "probes",
        "skipped.txt",
    ],
)
def test_missing_parts_are_left_out(workdir, missing):
    paths = [workdir / missing] if "." in missing else list((workdir / missing).iterdir())
    for path in paths:
        path.unlink()
    balance = Balance()
    balance.feed(write_report(workdir).read_text(encoding="utf-8"))
    text = "".join(balance.text)
    assert ("No probe is recorded yet" in text) == (missing == "probes")
    assert ("No training step is recorded yet" in text) == (missing == "metrics.jsonl")


def test_page_before_the_first_evaluation(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    (workdir / "metrics.jsonl").write_text(lines[0] + "\n")
    assert "No evaluation on test recordings" in write_report(workdir).read_text()


def test_no_run_is_a_user_mistake(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        write_report(tmp_path)
    with pytest.raises(UserError, match="holds no run"):
        write_report(tmp_path / "nowhere")


def test_damaged_files(workdir):
    metrics = workdir / "metrics.jsonl"
    whole = metrics.read_text()
    expected = read_run(workdir)
    metrics.write_text(whole + '{"step": 600, "spl')  # killed while it wrote
    assert read_run(workdir).train == expected.train
    metrics.write_text('{"step": 6\n' + whole)
    with pytest.raises(UserError, match="line 1 of"):
        read_run(workdir)
    metrics.write_text(whole)
    (workdir / "probes" / "phones.json").write_text("{")
    with pytest.raises(UserError, match=r"phones\.json is damaged"):
        read_run(workdir)


def test_resumed_steps_replace_earlier_ones(workdir):
    again = fake_record(250, "batch", False, 1024, 2.0, np.random.default_rng(1))
    add_records(workdir, again)
    records = read_run(workdir).tests["batch"]
    assert [record["step"] for record in records] == [0, 250, 500]
    assert records[1] == again


def test_training_rule_comes_first(workdir):
    add_records(
        workdir,
        fake_record(0, "an_earlier_name", True, 8, 1.0, np.random.default_rng(1)),
    )
    assert next(iter(read_run(workdir).tests)) == "batch"


def test_bound_figure_shows_the_last_records(workdir):
    (workdir / "truth.json").write_text(
        json.dumps({"offsets": OFFSETS, "mutual_information": [3.0] * 12})
    )
    run = read_run(workdir)
    figure = bound_figure(run)
    assert isinstance(figure, Figure)
    for axes, records in zip(figure.axes, run.tests.values(), strict=True):
        lines = {line.get_label(): line.get_ydata() for line in axes.lines}
        np.testing.assert_array_equal(lines["log N"], records[-1]["log_n"])
        np.testing.assert_array_equal(lines["exact mutual information"], 3.0)
        assert axes.get_ylim()[1] > max(records[-1]["log_n"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "batch: a score, no bound",
        "one per sequence: a lower bound",
    ]


def test_accuracy_figure_has_both_readings_and_chance(workdir):
    run = read_run(workdir)
    top1, pairwise = accuracy_figure(run).axes
    shown = {line.get_label(): np.asarray(line.get_ydata()) for line in top1.lines}
    np.testing.assert_allclose(
        shown["batch, N = 1,024"], 100 * np.array(run.tests["batch"][-1]["acc_top1"])
    )
    np.testing.assert_allclose(shown["chance, 1/64"], 100 / 64)
    assert "chance, 1/2" in {line.get_label() for line in pairwise.lines}


def test_curves_are_means_over_offsets(workdir):
    run = read_run(workdir)
    loss, _ = curves_figure(run).axes
    train = loss.lines[0].get_ydata()
    np.testing.assert_allclose(train, [np.mean(r["offset_loss"]) for r in run.train])


def test_probe_figure_has_a_panel_for_each_task_and_unit(workdir):
    figure = probe_figure(read_run(workdir))
    widths = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]
    np.testing.assert_allclose(widths[0], [35.1, 61.4, 44.1, 56.2, 63.4])  # baselines first
    assert len(widths) == 3


def test_speaker_picture_is_capped_and_needs_points(workdir, monkeypatch):
    monkeypatch.setattr("cpc.report.probe_figures.MAX_POINTS", 60)

    def write(count):
        np.savez(
            workdir / "probes" / "picture.npz",
            features=np.random.default_rng(0).standard_normal((count, 4), dtype=np.float32),
            speaker=np.arange(count) % 2,
            names=np.array(["anna", "ben"]),
        )
        return speakers_figure(read_run(workdir))

    assert write(5) is None
    figure = write(80)
    assert sum(len(points.get_offsets()) for points in figure.axes[0].collections) == 60


def test_verdict_names_states_and_bounds(workdir):
    rng = np.random.default_rng(0)
    strict = fake_record(600, "one_per_sequence", True, 64, 4.2, rng)
    strict["state"] = ["saturated"] * 2 + ["warn"] + ["fine"] * 8 + ["chance"]
    add_records(workdir, strict)
    text = sentences_of(workdir)
    assert f"lower bound on test recordings: {np.mean(strict['bound']):.2f} nats" in text
    assert "Saturated at offsets 1–2 (rule “one per sequence”)" in text
    assert "Close to its ceiling at offset 3" in text
    assert "Not above chance at offset 12" in text
    assert "a score and not a bound" in text


def test_verdict_without_a_bound_does_not_speak_of_one(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if not json.loads(line)["is_bound"]]
    (workdir / "metrics.jsonl").write_text("\n".join(kept))
    text = sentences_of(workdir)
    assert "lower bound" not in text
    assert "score and not a bound" in text


def test_verdict_compares_with_intervals(workdir):
    def rows(ours):
        return [
            probe_row("phones", "d", "c", "linear", "frame", ours, 0.2, 40),
            probe_row("phones", "d", "mfcc", "linear", "frame", 0.60, 0.2, 40),
            probe_row("phones", "d", "random c", "linear", "frame", 0.30, 0.2, 40),
        ]

    for ours, words in (
        (0.70, "above MFCC (60.0 %)"),
        (0.61, "not distinguishable from MFCC (60.0 %)"),
        (0.50, "below MFCC (60.0 %)"),
    ):
        content = json.dumps({"step": 1, "rows": rows(ours)})
        (workdir / "probes" / "phones.json").write_text(content)
        text = sentences_of(workdir)
        assert words in text
        assert "above the untrained network (30.0 %)" in text


def test_verdict_warns_of_collapse_and_of_a_violated_bound(workdir):
    assert "collapsed" not in sentences_of(workdir)
    truth = {"offsets": OFFSETS, "mutual_information": [9.0] * 12}
    (workdir / "truth.json").write_text(json.dumps(truth))
    assert "nowhere exceeds it" in sentences_of(workdir)
    truth["mutual_information"] = [0.5] * 12
    (workdir / "truth.json").write_text(json.dumps(truth))
    assert "which a bound must not" in sentences_of(workdir)
    flat = fake_record(600, "batch", False, 1024, 4.0, np.random.default_rng(0))
    add_records(workdir, flat | {"std_c": 1e-7, "rank_c": 1.0})
    assert "The representation c has collapsed" in sentences_of(workdir)


def test_paper_numbers():
    linear = {
        task: [e.accuracy for e in rows if e.probe == "linear"] for task, rows in TABLE_1.items()
    }
    assert linear == {"phones": [27.6, 39.7, 64.6, 74.6], "speakers": [1.87, 17.6, 97.4, 98.5]}
    assert paper_accuracy("phones", "c", "hidden", "frame") == 72.5
    assert paper_accuracy("speakers", "c", "linear", "utterance") is None
    assert paper_accuracy("phones", "z", "linear", "frame") is None
