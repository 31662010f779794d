"""Claims against cells: held, refuted, untold, not measured; the statistics; the page."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from scipy import stats
from sklearn.manifold import TSNE

from cpc import report
from cpc.report import (
    reproduction,
    reproduction_bound,
    reproduction_figures,
    reproduction_page,
)
from cpc.report.claims import NEGATIVE_CELLS, TABLES
from cpc.report.comparison import Estimate
from cpc.report.paper import TABLE_2_NEGATIVES, TABLE_2_STEPS
from cpc.report.probe_figures import flat_points
from cpc.report.records import Picture
from cpc.report.reproduction import HELD, MISSING, REFUTED, UNTOLD
from cpc.types import UserError

STEPS, NEGATIVES = (t for t in TABLES if t.number == "2")
OFFSETS = list(range(1, 21))
PLAN = {
    "scale": "small", "data": "voices", "seeds": 1, "size": "9 runs", "hardware": "2 cores",
    "parts": ["table 1", "table 2", "table 3", "figure 2", "figure 3", "figure 5", "bound"],
    "open": [
        {"what": "norm", "choice": "model.norm=none", "cell": "open-norm", "change": "layer"},
        {"what": "dropout", "choice": "none", "cell": "", "change": ""},
    ],
}  # fmt: skip


def probe(features, accuracy, half, kind="linear", data="voices", task="phones"):
    return {
        "task": task, "data": data, "unit": "frame", "features": features, "probe": kind,
        "accuracy": accuracy, "low": accuracy - half, "high": accuracy + half, "majority": 0.125,
    }  # fmt: skip


def record(bound, is_bound=False, offsets=OFFSETS):
    k = np.array(offsets)
    return {
        "step": 20, "split": "test", "rule": "batch", "is_bound": is_bound, "offsets": offsets,
        "n": [64.0] * len(k), "log_n": [math.log(64)] * len(k), "bound": list(bound - k / 50),
        "acc_top1": list(0.9 - k / 40), "acc_pairwise": list(1 - k / 100),
        "state": ["fine"] * len(k),
        **({"series": "strict", "rule": "one_per_sequence"} if is_bound else {}),
    }  # fmt: skip


def write_cell(folder, name, accuracy=None, half=0.005, seed=0, more=(), bound=1.0, **negatives):
    path = folder / f"{name},seed={seed}"
    (path / "probes").mkdir(parents=True)
    config = {"seed": seed, "num_steps": 20, "negatives": negatives}
    (path / "config.json").write_text(json.dumps(config))
    train = {"step": 20, "split": "train", "rule": "batch", "seconds": 1.0}
    records = [train, record(bound), record(bound, is_bound=True)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    rows = [*([probe("c", accuracy, half)] if accuracy is not None else []), *more]
    if rows:
        (path / "probes" / "phones.json").write_text(json.dumps({"step": 20, "rows": rows}))
    return path


def write_plan(folder, names, **changed):
    plan = {"reproduction": {**PLAN, **changed}, "cells": {f"{name},seed=0": {} for name in names}}
    folder.mkdir(exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(plan))


def paper_like(folder, half=0.005, shift=0.0, **changed):
    """Cells that have the paper's own accuracies, but for those that are changed."""
    of_steps = {f"steps-{k}": a for k, a in TABLE_2_STEPS.items() if k != 12}
    cells = dict(zip(NEGATIVE_CELLS, TABLE_2_NEGATIVES.values(), strict=True))
    cells = {**cells, **of_steps, **changed}
    write_plan(folder, cells)
    for name, percent in cells.items():
        if percent is not None:
            write_cell(folder, name, percent / 100 + shift, half)
    return folder


def verdicts(folder, table=NEGATIVES):
    cells = reproduction.read_reproduction(folder).cells
    measured = reproduction.measure(cells, table, "voices")
    judged = reproduction.judge(table, "voices", {name: e for name, (e, _) in measured.items()})
    return {judgement.claim.sentence: judgement.verdict for judgement in judged}


OWN = "leaving out the own sequence hurts"
SAME = "negatives of the same speaker help phones"
EQUAL = "same speaker without the own sequence equals mixed speaker with it"


def test_the_papers_own_numbers_bear_out_all_its_claims(tmp_path):
    folder = paper_like(tmp_path, half=0.0005, shift=-0.2)  # orders know no level
    assert set(verdicts(folder).values()) == {HELD}
    assert set(verdicts(folder, STEPS).values()) == {HELD}


def test_an_order_turned_round_does_not_hold(tmp_path):
    found = verdicts(paper_like(tmp_path, **{"mixed-excl": 70.0}))
    assert found[OWN] == REFUTED
    assert found[SAME] == REFUTED  # 70.0 is above the same speaker's 64.6, too


def test_overlapping_intervals_tell_nothing(tmp_path):
    found = verdicts(paper_like(tmp_path, half=0.02))
    assert found[SAME] == UNTOLD  # 64.6 and 65.5, each +- 2
    assert found[EQUAL] == UNTOLD  # too wide to be called equal
    assert verdicts(paper_like(tmp_path / "b", half=0.02), STEPS)[
        "more offsets help, up to 12"
    ] == (
        UNTOLD  # 63.6 and 64.6, though 28.5 << 57.6
    )


def test_ties(tmp_path):
    assert verdicts(paper_like(tmp_path, half=0.001))[EQUAL] == HELD
    apart = paper_like(tmp_path / "apart", half=0.001, **{"same-excl": 60.0})
    assert verdicts(apart)[EQUAL] == REFUTED


def test_a_missing_cell_leaves_its_claims_unmeasured(tmp_path):
    folder = paper_like(tmp_path, half=0.001, same=None)
    found = verdicts(folder)
    assert found[OWN] == MISSING
    assert found[EQUAL] == HELD
    page = report.write_reproduction(folder).read_text()
    assert "Cells not begun: same." in page
    assert "not measured" in page


def test_a_refuted_pair_outweighs_a_missing_one():
    assert reproduction.join([HELD, MISSING, REFUTED]) == REFUTED
    assert reproduction.join([HELD, UNTOLD, MISSING]) == MISSING
    assert reproduction.join([HELD, UNTOLD]) == UNTOLD


def test_intervals_over_seeds_and_items():
    rows = [probe("c", a, 0.03) for a in (0.1, 0.2, 0.3)]
    found = reproduction.combine(rows)
    seeds = 4.30265 * 0.1 / 3**0.5  # Student's, two degrees of freedom
    assert found.value == pytest.approx(0.2)
    assert found.high == pytest.approx(0.2 + math.hypot(seeds, 0.03), abs=1e-5)
    assert found.low == 0.0  # an accuracy is no less


def test_tau_is_scipys():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, (40, 7)).astype(float)  # with many ties
    y = rng.integers(0, 4, 7).astype(float)
    expected = [stats.kendalltau(row, y).statistic for row in x]
    np.testing.assert_allclose(reproduction.kendall_tau(x, y), expected, atol=1e-12)
    assert np.isnan(reproduction.kendall_tau(np.zeros(3), np.arange(3.0)))


def test_agreement_with_the_paper_and_its_exact_p():
    theirs = [28.5, 57.6, 63.6, 63.8, 64.6]
    tight = [Estimate(v, v - 0.01, v + 0.01) for v in (1.0, 2.0, 3.0, 4.0, 5.0)]
    tau, p = reproduction.order_agreement(theirs, tight)
    assert tau == Estimate(1.0, 1.0, 1.0)
    assert p == pytest.approx(1 / math.factorial(5))  # one order of 120 agrees as well
    values = [2.0, 1.0, 3.0, 5.0, 4.0]
    tau, p = reproduction.order_agreement(theirs, [Estimate(v, v, v) for v in values])
    taus = [stats.kendalltau(order, theirs).statistic for order in itertools.permutations(values)]
    assert tau.value == pytest.approx(0.6)
    assert p == pytest.approx(np.mean(np.array(taus) >= 0.6 - 1e-9))
    wide = [Estimate(v, v - 50, v + 50) for v in values]
    spread = reproduction.order_agreement(theirs, wide)[0]
    assert spread.low < -0.5
    assert spread.high >= 0.8
    assert reproduction.order_agreement(theirs[:2], tight[:2]) is None


def test_equal_rows_have_no_order():
    level = [Estimate(1.0, 0.9, 1.1)] * 3
    agreement = reproduction.order_agreement([28.5, 57.6, 63.6], level)
    assert np.isnan([*agreement[0], agreement[1]]).all()
    said = reproduction_page.order_sentence(reproduction.Result(STEPS, "", {}, {}, [], agreement))
    assert "τ –, p –: cannot be told" in said


def test_a_flat_curve_over_offsets_has_no_order(tmp_path):
    write_plan(tmp_path, ["steps-20"])
    path = write_cell(tmp_path, "steps-20")
    (path / "metrics.jsonl").write_text(json.dumps({**record(1.0), "acc_top1": [0.5] * 20}) + "\n")
    found = reproduction.read_offsets(reproduction.read_reproduction(tmp_path).cells["steps-20"])
    assert found.verdict == UNTOLD
    assert "offset –, p – if" in reproduction_page.offsets_sentence(found)


def test_offsets_fall_rise_or_waver(tmp_path):
    write_plan(tmp_path, ["steps-20"])
    path = write_cell(tmp_path, "steps-20")
    read = reproduction.read_reproduction
    found = reproduction.read_offsets(read(tmp_path).cells["steps-20"])
    assert (found.verdict, found.tau[0]) == (HELD, -1.0)
    assert found.acc_top1[0].value == pytest.approx(87.5)
    for values, expected in ((np.arange(20) / 40, REFUTED), (np.arange(20) % 2, UNTOLD)):
        one = {**record(1.0), "acc_top1": list(map(float, values))}
        (path / "metrics.jsonl").write_text(json.dumps(one) + "\n")
        assert reproduction.read_offsets(read(tmp_path).cells["steps-20"]).verdict == expected
    flat = {**record(1.0), "state": ["chance"] * 18 + ["fine"] * 2}
    (path / "metrics.jsonl").write_text(json.dumps(flat) + "\n")
    assert reproduction.read_offsets(read(tmp_path).cells["steps-20"]).verdict == UNTOLD
    assert reproduction.read_offsets(None) is None


def test_bound_and_probe_over_shared_offsets(tmp_path):
    names = [f"c{number}" for number in range(6)]
    write_plan(tmp_path, names)
    for number, name in enumerate(names):
        path = write_cell(tmp_path, name, 0.5 + 0.05 * number, bound=1.0 + 0.1 * number)
        if number == 0:  # two offsets alone: the others' are compared at those
            short = [record(1.0, offsets=[1, 2]), record(1.0, is_bound=True, offsets=[1, 2])]
            (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in short))
        if number == 5:  # another N does not compare
            other = {**record(9.0, is_bound=True), "n": [8.0] * 20}
            (path / "metrics.jsonl").write_text(json.dumps(other) + "\n")
    points = reproduction_bound.bound_and_probe(reproduction.read_reproduction(tmp_path).cells)[
        "voices"
    ]
    assert [name for name, *_ in points] == names[:5]
    np.testing.assert_allclose([bound for _, bound, _ in points], 0.97 + 0.1 * np.arange(5))
    tau, p = reproduction_bound.correlation(points)
    assert tau.value == pytest.approx(1.0)
    assert p == pytest.approx(2 / math.factorial(5))
    assert reproduction_bound.correlation(points[:3]) is None
    down = [(name, -bound, accuracy) for name, bound, accuracy in points]
    assert "it misleads" in reproduction_bound.predict_sentence(
        {"x": reproduction_bound.correlation(down)}
    )


def whole_folder(folder):
    """Every part of the page has something to show."""
    folder = paper_like(folder)
    mixed = folder / "mixed,seed=0"
    more = [
        probe("random c", 0.3, 0.01), probe("mfcc", 0.4, 0.01), probe("c", 0.7, 0.01, "hidden"),
        probe("c", 0.646, 0.005), probe("supervised", 0.746, 0.01),
    ]  # fmt: skip
    (mixed / "probes" / "phones.json").write_text(json.dumps({"step": 20, "rows": more}))
    plan = json.loads((folder / "sweep.json").read_text())
    plan["cells"] |= {f"{name},seed=0": {} for name in ("open-norm", "open-groups", "steps-20")}
    (folder / "sweep.json").write_text(json.dumps(plan))
    write_cell(folder, "open-norm", 0.7, bound=2.0)
    write_cell(folder, "open-groups", 0.6, groups=4)
    write_cell(folder, "steps-20")
    rng = np.random.default_rng(0)
    speaker = np.arange(40) % 2
    features = (rng.standard_normal((40, 3)) + 9 * speaker[:, None]).astype(np.float32)
    names = np.array(["<b>&\"'ana", "bo"])
    np.savez(mixed / "probes" / "picture.npz", features=features, speaker=speaker, names=names)
    rows = [
        {"offset": k, "n": n, "value": 1.0, "low": 0.9, "high": 1.1, "is_bound": n < 64}
        for k in (1, 3)
        for n in (32, 64)
    ]
    truth = {"offsets": [3], "mutual_information": [1.25]}
    (folder / "bound.json").write_text(json.dumps({"rows": rows, "truth": truth}))
    return folder


def test_the_whole_page(tmp_path):
    folder = whole_folder(tmp_path / "all")
    page = report.write_reproduction(folder).read_text()
    for words in (
        "Held: ", "Cannot be told", "Not measured", "τ", "Figure 2", "Two readings", "truth",
        "Whether log N − L predicts the probe", "device, or of the whole batch",
    ):  # fmt: skip
        assert words in page, words
    assert "+5.4 (" in page  # open-norm over mixed: 70.0 and 64.6
    assert page.count("<script>") == 1
    assert not re.search(r'(src|href)="(?!data:)', page)  # it needs nothing beside itself
    assert "1.00 ±0.10*" in page  # a score is marked
    assert "60.0 (59.5 to 60.5)" in page  # phones of the cell with groups
    summary = (folder / "reproduction.md").read_text()
    assert "| mixed speaker (excl.) | 57.3 | 57.3 (56.8 to 57.8) | 1 |" in summary
    found = json.loads((folder / "reproduction.json").read_text())
    assert "| chance (the largest class) |  | 12.5 | 1 |" in summary
    steps = next(t for t in found["tables"] if "steps" in t["title"])
    assert steps["tau"]["value"] == 1.0
    assert found["figure_3"]["verdict"] == HELD
    supervised = [r for t in found["tables"] for r in t["rows"] if r["row"].startswith("superv")]
    phones, *others = [row["ours"] and row["ours"]["value"] for row in supervised]
    assert phones == 74.6
    assert not any(others)
    claims = next(t for t in found["tables"] if t["title"] == "Table 1: phones by frame")["claims"]
    better = next(claim for claim in claims if claim["claim"].startswith("supervised"))
    assert better["verdict"] == HELD


def test_top_5_stands_beside_table_4(tmp_path):
    table = next(t for t in TABLES if t.number == "4")
    write_plan(tmp_path, ["image"], parts=["table 4"])
    path = write_cell(tmp_path, "image")
    rows = [
        {**probe(name, top_1, 0.01, data="shapes", task="classes"), "unit": "picture", **five}
        for name, top_1, five in (
            ("z", 0.4, {"top_5": {"accuracy": 0.75, "low": 0.74, "high": 0.76}}),
            ("random z", 0.3, {"top_5": {"accuracy": 0.5, "low": 0.49, "high": 0.51}}),
            ("c", 0.4, {}),
        )
    ]
    (path / "probes" / "classes.json").write_text(json.dumps({"step": 20, "rows": rows}))
    cells = reproduction.read_reproduction(tmp_path).cells
    measured = reproduction.measure(cells, table, "shapes")
    assert {name: e.value for name, (e, _) in measured.items()} == {
        "CPC": 75.0, "random initialisation": 50.0,
    }  # fmt: skip
    report.write_reproduction(tmp_path)
    summary = (tmp_path / "reproduction.md").read_text()
    assert "| CPC | 73.6 | 75.0 (74.0 to 76.0) | 1 |" in summary
    assert "Held: classes: the class is more often among CPC's five best" in summary


def test_what_is_open_is_compared_with_its_own_base(tmp_path):
    names = {"open-norm": "layer", "open-clip": "1.0", "image-gru": "gru", "": "no key varies it"}
    choices = [{"what": n, "choice": "", "cell": n, "change": c} for n, c in names.items()]
    cells = ("mixed", "open-norm", "open-clip", "image", "image-gru")
    write_plan(tmp_path, cells, open=choices)
    write_cell(tmp_path, "mixed", 0.5, half=0.03)
    write_cell(tmp_path, "open-norm", 0.6, half=0.04)
    for name, accuracy in (("image", 0.8), ("image-gru", 0.7)):
        row = {**probe("z", accuracy, 0.01, data="shapes", task="classes"), "unit": "picture"}
        write_cell(tmp_path, name, more=[row])
    found = reproduction_page.open_rows(reproduction.read_reproduction(tmp_path))
    assert found[0] == ["open", "here", "varied as", "phones, voices", "classes, shapes"]
    assert [row[2:] for row in found[1]] == [
        ["layer", "60.0, +10.0 (+5.0 to +15.0)", "–"],
        ["1.0", MISSING, "–"],
        ["gru", "–", "70.0, −10.0 (−11.4 to −8.6)"],
        ["no key varies it", "–", "–"],
    ]


def test_names_are_escaped_everywhere(tmp_path):
    folder = whole_folder(tmp_path / "all")
    plan = json.loads((folder / "sweep.json").read_text())
    plan["reproduction"]["open"][0]["what"] = "<i>norm</i>"
    plan["reproduction"]["data"] = "<u>voices</u>"
    (folder / "sweep.json").write_text(json.dumps(plan))
    page = report.write_reproduction(folder).read_text()
    for tag in ("<i>", "<u>", "<b>&", "\"'ana"):
        assert tag not in page, tag
    assert "&lt;b&gt;&amp;&quot;&#x27;ana" in page


def test_points_are_not_laid_out_twice(monkeypatch):
    fitted = []

    class Counted(TSNE):
        def fit_transform(self, X, y=None):
            fitted.append(X)
            return super().fit_transform(X, y)

    monkeypatch.setattr("sklearn.manifold.TSNE", Counted)
    x = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
    first, second, other = (flat_points(points) for points in (x, x.copy(), x[::-1]))
    assert len(fitted) == 2
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_every_point_of_the_picture_is_inside():
    points = np.array([[0.0, 0.0], [5.0, 5.0], [9.0, 9.0]])
    drawn = reproduction_figures.speakers_picture(points, np.array([0, 1, 1]), ["a", "b"])
    places = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    assert places[0] == ("14.0", "14.0")
    assert places[2] == ("706.0", "466.0")
    assert drawn.count("<circle") == 3
    assert drawn.count("<button") == 2
    assert drawn.count('data-speaker="1"') == 3
    many = Picture(np.zeros((60, 2), np.float32), np.arange(60) % 12, tuple("abcdefghijkl"))
    assert len(np.unique(reproduction_figures.chosen_speakers(many).speaker)) == 10


def test_sizes_are_written_in_plain_digits():
    row = {"offset": 1, "value": 1.0, "low": 0.9, "high": 1.1, "is_bound": True}
    rows = [{**row, "n": 2**power} for power in range(5, 17)]
    axes = reproduction_figures.bound_figure(rows, None).axes[0]
    ticks = [text.get_text() for text in axes.get_xticklabels(which="both")]
    assert [text for text in ticks if text] == [f"{2**power:,}" for power in range(5, 17)]


def test_at_the_papers_size_the_gap_is_shown(tmp_path):
    folder = paper_like(tmp_path, shift=0.01)
    plan = json.loads((folder / "sweep.json").read_text())
    plan["reproduction"]["scale"] = "paper"
    (folder / "sweep.json").write_text(json.dumps(plan))
    report.write_reproduction(folder)
    summary = (folder / "reproduction.md").read_text()
    assert "| 12 steps | 64.6 | 65.6 (65.1 to 66.1) | +1.0 | 1 |" in summary


def test_a_folder_without_a_reproduction(tmp_path):
    with pytest.raises(UserError, match="holds no reproduction"):
        report.write_reproduction(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": {}}))
    with pytest.raises(UserError, match="holds no reproduction"):
        report.write_reproduction(tmp_path)


def test_nothing_measured_yet(tmp_path):
    write_plan(tmp_path, ["mixed", "steps-20", "image"])
    page = report.write_reproduction(tmp_path).read_text()
    assert "Cells not begun: mixed, steps-20, image." in page
    assert "Held" not in page
