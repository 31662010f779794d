import json
import re

import numpy as np
import pytest
from fake_image_run import CLASSES, DIRECTIONS, OFFSETS, cut, draw_pictures, write_fake_image_run
from fake_run import add_records, sentences_of
from matplotlib.colors import to_hex
from test_report import Balance

from cpc.report import write_report
from cpc.report.draw import GREEN, RED
from cpc.report.image_figures import (
    augmented_figure,
    few_labels_figure,
    neighbours_figure,
    units_figure,
)
from cpc.report.page import page_body
from cpc.report.probe_figures import probe_figure, probe_progress_figure
from cpc.report.records import read_run
from cpc.report.tables import probe_tables
from cpc.report.training_figures import accuracy_figure, bound_figure

FIGURES = {
    "accuracy",
    "augmented",
    "bound",
    "collapse",
    "curves",
    "few_labels",
    "neighbours",
    "probe_progress",
    "probes",
    "speed",
    "units",
}
OF_AUDIO = r"utterance|speaker|recording|audio|MFCC|hearing|frames|phone"


@pytest.fixture
def pictures(tmp_path):
    """A run directory on pictures that a test may damage."""
    return write_fake_image_run(tmp_path / "run")


def text_of(workdir):
    """What a person reads on the page, without drawing the figures."""
    balance = Balance()
    balance.feed(page_body(read_run(workdir), {}))
    assert balance.open == []
    return "".join(balance.text)


def test_page_of_pictures_shows_all_figures_and_speaks_of_pictures(pictures):
    page = write_report(pictures).read_text(encoding="utf-8")
    assert {path.stem for path in (pictures / "figures").glob("*.png")} == FIGURES
    assert page.count("<img") == len(FIGURES)
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    text = "".join(balance.text)
    assert not re.search(OF_AUDIO, text.split("How it was made")[0])
    assert "448 pictures each second" in text
    assert "tested on 10,000 pictures" in text
    assert "same <class>" in text
    assert "{" not in text.split("Loss and bound")[1]  # each caption has its words
    assert "Not recorded yet" not in text


@pytest.mark.parametrize("missing", ["neighbours.npz", "units.npz", "augmented.npz"])
def test_pictures_that_are_missing_are_named(pictures, missing):
    (pictures / "probes" / missing).unlink()
    text = text_of(pictures)
    assert f"Not recorded yet: probes/{missing};" in text
    assert "cannot be used" not in text


def test_page_before_any_probe(pictures):
    for path in (pictures / "probes").iterdir():
        path.unlink()
    (pictures / "audit.json").unlink()
    text = text_of(pictures)
    assert "No probe is recorded yet" in text
    assert "probes/neighbours.npz, probes/units.npz, probes/augmented.npz" in text
    assert "Few labels" not in text
    assert "Audit" not in text
    assert "lower bound on test pictures" in text
    run = read_run(pictures)
    for figure in (neighbours_figure, units_figure, augmented_figure, few_labels_figure):
        assert figure(run) is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("neighbours", {"query_labels": np.full(8, 4)}),
        ("neighbours", {"query_labels": np.full(8, -1)}),
        ("neighbours", {"neighbour_labels": np.zeros((8, 3), int)}),
        ("neighbours", {"queries": np.zeros((3, 28, 28, 1), np.uint8)}),
        ("units", {"patches": np.zeros((8, 2, 8, 8, 1), np.float32)}),
        ("units", {"patches": np.zeros((7, 2, 8, 8, 1), np.uint8)}),
        ("units", {"patches": np.zeros((8, 2, 8, 8, 2), np.uint8)}),
        ("augmented", {"plain": np.zeros((8, 8, 8, 1), np.uint8)}),
        ("augmented", None),
    ],
)
def test_damaged_arrays_are_left_out(pictures, name, change):
    path = pictures / "probes" / f"{name}.npz"
    if change is None:
        path.write_bytes(path.read_bytes()[:500])
    else:
        with np.load(path) as arrays:
            whole = dict(arrays)
        np.savez(path, **(whole | change))
    run = read_run(pictures)
    assert name not in run.arrays
    text = text_of(pictures)
    assert f"{name}.npz cannot be used (it is damaged)" in text
    assert "Not recorded yet" not in text


def test_neighbours_are_framed_by_class(pictures):
    arrays = read_run(pictures).arrays["neighbours"]
    (axes,) = neighbours_figure(read_run(pictures)).axes
    assert len(axes.images) == 8 + 64
    is_same = arrays["neighbour_labels"] == arrays["query_labels"][:, None]
    frames = [to_hex(frame.get_edgecolor()) for frame in axes.patches]
    assert frames == [GREEN if same else RED for same in is_same.ravel()]
    words = [text.get_text() for text in axes.texts]
    assert words[:8] == [CLASSES[label] for label in arrays["query_labels"]]
    assert words[8:] == [CLASSES[label] for label in arrays["neighbour_labels"][~is_same]]
    np.testing.assert_array_equal(
        axes.images[8 + 13].get_array()[..., 2], arrays["neighbours"][1, 5, ..., 0]
    )


def test_units_and_augmentation_in_colour(pictures):
    rng = np.random.default_rng(1)
    patches = rng.integers(0, 256, (3, 40, 6, 6, 3), np.uint8)
    np.savez(pictures / "probes" / "units.npz", units=np.array([7, 1, 2]), patches=patches)
    (axes,) = units_figure(read_run(pictures)).axes
    assert len(axes.images) == 3 * 12  # as many as fit
    np.testing.assert_array_equal(axes.images[13].get_array(), patches[1, 1])
    assert [text.get_text() for text in axes.texts] == ["unit 7", "unit 1", "unit 2"]

    plain = cut(draw_pictures(rng.integers(0, 4, 5), rng))
    np.savez(pictures / "probes" / "augmented.npz", plain=plain, augmented=255 - plain)
    (axes,) = augmented_figure(read_run(pictures)).axes
    upper, lower = axes.images[1].get_array(), axes.images[4 + 1].get_array()
    assert len(axes.images) == 2 * 4
    assert upper.shape == (6 * 9 - 1, 6 * 9 - 1, 3)
    np.testing.assert_array_equal(upper[9:17, 18:26, 0], plain[1, 1, 2, ..., 0])
    np.testing.assert_array_equal(lower[9:17, 18:26], 255 - upper[9:17, 18:26])
    assert (upper[8] == 255).all()


def test_few_label_curves(pictures):
    run = read_run(pictures)
    assert "few_labels" not in run.probes
    (axes,) = few_labels_figure(run).axes
    shown = dict(zip(axes.get_legend_handles_labels()[1], axes.containers, strict=True))
    assert list(shown) == [
        "random initialisation, z, frozen",
        "raw pixels, frozen",
        "CPC, z, frozen",
        "CPC, z, fine-tuned",
        "supervised",
    ]
    line, *_ = shown["CPC, z, frozen"].lines
    np.testing.assert_allclose(line.get_xdata().astype(float), [1, 2, 5, 10, 20, 50, 100])
    np.testing.assert_allclose(line.get_ydata()[[0, -1]], [72, 85])
    assert [tick.get_text() for tick in axes.get_xticklabels()][:2] == ["1 %\n600", "2 %\n1,200"]
    row = re.search(r"<tr[^>]*><td>CPC, z, frozen</td>(.*?)</tr>", page_body(run, {}))
    assert re.findall(r"<td>(.*?)</td>", row[1])[0] == "72.0 ± 2.6"


def test_probe_figures_of_pictures(pictures):
    run = read_run(pictures)
    (axes,) = probe_figure(run).axes
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == [
        "random initialisation, c",
        "random initialisation, z",
        "raw pixels",
        "CPC, z",
        "CPC, c",
        "random initialisation, z, kNN",
        "CPC, z, kNN",
        "supervised, whole network",
    ]
    (axes,) = probe_progress_figure(run).axes
    shown = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert shown["CPC, z"] == pytest.approx([60, 72.5, 85])


def test_table_shows_the_lead_over_the_untrained_network(pictures):
    body = page_body(read_run(pictures), {})
    row = re.search(r"<tr[^>]*><td>CPC, z</td><td>linear</td>(.*?)</tr>", body)
    cells = re.findall(r"<td>(.*?)</td>", row[1])
    assert cells == ["85.5", "84.8 to 86.2", "+11.4 (+10.6 to +12.2)", "lbfgs, l2 0.001"]
    row = re.search(r"<tr[^>]*><td>raw pixels</td><td>linear</td>(.*?)</tr>", body)
    assert re.findall(r"<td>(.*?)</td>", row[1])[2] == ""


@pytest.mark.parametrize(
    ("versus", "words"),
    [
        ([0.01, 0.002, 0.018, 0.01], "above the untrained network (84.5 %) by +1.0"),
        ([0.01, -0.002, 0.022, 0.1], "not distinguishable from the untrained network"),
        ([-0.01, -0.02, -0.001, 0.01], "below the untrained network"),
    ],
)
def test_verdict_compares_on_the_same_pictures(pictures, versus, words):
    """The intervals of both accuracies overlap: only the paired difference can tell."""
    path = pictures / "probes" / "classes.json"
    content = json.loads(path.read_text())
    for row in content["rows"]:
        if (row["features"], row["probe"]) == ("random z", "linear"):
            row |= {"accuracy": 0.845, "low": 0.838, "high": 0.852}
        if (row["features"], row["probe"]) == ("z", "linear"):
            row["versus"]["random z"] = versus
    path.write_text(json.dumps(content))
    assert words in sentences_of(pictures)


def test_table_has_a_column_of_top_5_where_it_is_recorded(pictures):
    assert "top-5" not in probe_tables(read_run(pictures))[0]
    path = pictures / "probes" / "classes.json"
    recorded = json.loads(path.read_text())
    for row in recorded["rows"]:
        if (row["features"], row["probe"]) == ("z", "linear"):
            row["top_5"] = {"accuracy": 0.955, "low": 0.95, "high": 0.96}
    path.write_text(json.dumps(recorded))
    (table,) = probe_tables(read_run(pictures))
    assert table.count("top-5 %") == 1
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tr")]
    assert {len(row) for row in rows if row} == {7}
    assert [row[4] for row in rows if row and row[4]] == ["95.5"]


def test_verdict_speaks_of_few_labels(pictures):
    text = sentences_of(pictures)
    assert "With 1 % of the labels (600), z frozen reaches 72.0 % (69.4 to 74.6)" in text
    assert "the same network on these labels alone 62.0 % (59.4 to 64.6)" in text


def test_directions_have_panels_and_lines_of_their_own(pictures):
    run = read_run(pictures)
    strict = run.tests["one_per_sequence"][-1]
    panels = bound_figure(run).axes
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"{rule}, {direction}: {kind}"
        for rule, kind in (("batch", "a score, no bound"), ("one per sequence", "a lower bound"))
        for direction in DIRECTIONS
    ]
    (ceiling,) = [line for line in panels[0].lines if line.get_label() == "log N"]
    assert ceiling.get_xdata().tolist() == OFFSETS
    top1, _ = accuracy_figure(run).axes
    shown = {line.get_label(): line.get_ydata() for line in top1.lines}
    np.testing.assert_allclose(
        shown["one per sequence, up, N = 128"], 100 * np.array(strict["acc_top1"][3:])
    )
    assert top1.get_xlabel() == "offset k (rows ahead)"


def test_verdict_averages_over_directions_and_names_them(pictures):
    strict = read_run(pictures).tests["one_per_sequence"][-1]
    state = ["fine", "chance", "chance", "saturated", "fine", "chance"]
    bound = [2.0, 1.0, 0.5, 3.0, 2.0, None]
    add_records(pictures, strict | {"step": 600, "state": state, "bound": bound})
    text = sentences_of(pictures)
    assert "1.50 nats averaged over 3 offsets and 2 directions" in text
    assert "2.50 at offset 2 and 0.50 at offset 4" in text
    assert "Saturated at offset 2 (up)" in text
    assert "Not above chance at offsets 3–4 (down) (rule" in text
    assert "No number at offset 4 (up)" in text
