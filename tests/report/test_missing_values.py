"""Numbers without a value, series of one step, and pictures that cannot be read."""

import json
import re

import numpy as np
import pytest
from fake_run import OFFSETS, add_records, fake_record, sentences_of

from cpc.report import write_report
from cpc.report.probe_figures import probe_progress_figure
from cpc.report.records import final_bound, final_test, read_run
from cpc.report.training_figures import bound_figure, curves_figure

LISTS = (
    "n",
    "log_n",
    "offset_loss",
    "bound",
    "bound_low",
    "bound_high",
    "acc_top1",
    "acc_pairwise",
)


def without_values(record, offsets, scalars=("loss",)):
    """As JSON writes NaN: null at some offsets, and instead of some numbers."""
    lists = {
        key: [
            None if k in offsets else value for k, value in zip(OFFSETS, record[key], strict=True)
        ]
        for key in LISTS
    }
    return record | lists | dict.fromkeys(scalars)


def test_offsets_without_a_value_are_left_out(workdir):
    rng = np.random.default_rng(0)
    plain = fake_record(600, "batch", False, 1024, 4.4, rng)
    strict = fake_record(600, "one_per_sequence", True, 64, 4.2, rng) | {"bound_low": [None] * 12}
    strict["state"] = ["fine"] * 11 + ["chance"]
    train = plain | {"split": "train", "steps_per_second": None, "seconds": None}
    spread = ("loss", "std_c", "rank_c")
    add_records(
        workdir,
        without_values(train, {1, 12}),
        without_values(plain, {12}, spread),
        without_values(strict, {1, 12}) | {"bound_low": [None] * 12},
    )
    run = read_run(workdir)
    assert np.isnan(run.tests["batch"][-1]["std_c"])
    loss = curves_figure(run).axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(loss[-1], np.mean(plain["offset_loss"][1:-1]))
    page = write_report(workdir).read_text()
    text = sentences_of(workdir)
    assert f"{np.mean(strict['bound'][1:-1]):.2f} nats averaged over 10 offsets" in text
    assert (
        f"{strict['bound'][1]:.2f} at offset 2 and {strict['bound'][10]:.2f} at offset 11" in text
    )
    assert "No number at offsets 1, 12 (rule “one per sequence”)" in text
    assert "at chance at" not in text
    assert "nan" not in text
    assert not re.search(r">[^<]*\bnan\b[^<]*<", page)
    row = re.search(r"<tr[^>]*><td>12</td>(.*?)</tr>", page)
    assert re.findall(r"<td>(.*?)</td>", row[1])[:-1] == ["–"] * 8


def test_an_evaluation_without_any_value(workdir):
    rng = np.random.default_rng(0)
    for name, is_bound in (("batch", False), ("one_per_sequence", True)):
        record = fake_record(600, name, is_bound, 64, 4.0, rng)
        add_records(workdir, without_values(record, OFFSETS, ("loss", "std_z", "rank_z")))
    truth = {"offsets": OFFSETS, "mutual_information": [9.0] * 12}
    (workdir / "truth.json").write_text(json.dumps(truth))
    page = write_report(workdir).read_text()
    assert "The last evaluation on test recordings gave no number" in page
    assert not re.search(r">[^<]*\bnan\b[^<]*<", page)


def test_strict_series_beside_the_same_training_rule(workdir):
    rng = np.random.default_rng(0)
    (workdir / "metrics.jsonl").unlink()
    for step in (0, 100):
        plain = fake_record(step, "one_per_sequence", True, 8, 1.5, rng)
        strict = fake_record(step, "one_per_sequence", True, 64, 3.0, rng) | {"series": "strict"}
        for key in ("std_z", "rank_z", "std_c", "rank_c"):
            del strict[key]
        probes = {"step": step, "split": "test", "series": "probes"}
        add_records(workdir, plain, strict, plain | {"split": "train"}, probes)
    run = read_run(workdir)
    assert [len(records) for records in run.tests.values()] == [2, 2]
    assert final_test(run)["n"][0] == 8
    assert "std_c" in final_test(run)
    assert final_bound(run)["n"][0] == 64
    titles = [axes.get_title(loc="left") for axes in bound_figure(run).axes]
    assert len(set(titles)) == 2
    assert probe_progress_figure(run) is None  # the records hold no accuracy


def test_probes_during_training(workdir):
    names = ("phones/festvox_ru/c/linear/frame", "phones/festvox_ru/mfcc/linear/frame")
    for step, accuracies in ((100, (0.3, 0.6)), (200, (0.5, None))):
        record = {"step": step, "split": "test", "series": "probes"}
        add_records(workdir, record | dict(zip(names, accuracies, strict=True)))
    run = read_run(workdir)
    assert list(run.tests) == ["batch", "one_per_sequence"]
    (axes,) = probe_progress_figure(run).axes
    shown = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert shown == {"CPC, c": [[100, 30], [200, 50]], "MFCC": [[100, 60]]}
    assert "Probes during training" in write_report(workdir).read_text()


@pytest.mark.parametrize(
    "damage", ["cut", "text", "other names", "array", "no such speaker", "nan"]
)
def test_a_picture_that_cannot_be_read_is_left_out(workdir, damage):
    path = workdir / "probes" / "picture.npz"
    arrays = {
        "features": np.random.default_rng(0).standard_normal((40, 4)),
        "speaker": np.arange(40) % 2,
        "names": np.array(["anna", "ben"]),
    }
    changes = {
        "other names": {"x": arrays.pop("names")} if damage == "other names" else {},
        "no such speaker": {"speaker": np.arange(40)},
        "nan": {"features": np.full((40, 4), np.nan)},
    }
    np.savez(path, **(arrays | changes.get(damage, {})))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:700])
    if damage == "text":
        path.write_text("no picture")
    if damage == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    page = write_report(workdir).read_text()
    assert "picture.npz cannot be used" in page
    assert "t-SNE" not in page
