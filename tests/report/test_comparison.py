import json
import math

import numpy as np
import pytest
from scipy import stats
from small_run import probe_row, record, write_run

from cpc.report import comparison, write_comparison
from cpc.report.comparison import Estimate, Probe, read_cells
from cpc.types import UserError

LINEAR = Probe("classes", "clothes", "picture", "z", "linear")


def write(tmp_path, **runs):
    folder = tmp_path / "out"
    write_comparison([(name, path) for name, path in runs.items()], folder)
    cells = json.loads((folder / "comparison.json").read_text())["cells"]
    return {cell["cell"]: cell for cell in cells}, (folder / "comparison.md").read_text()


def rows(z, random, half=0.01, **more):
    return [probe_row("z", z, half, **more), probe_row("random z", random, half)]


def test_one_seed(tmp_path):
    """Intervals over test items; over the untrained network as recorded, pairs of items."""
    versus = {"versus": {"random z": [0.10, 0.08, 0.12, 0.001]}}
    base = write_run(tmp_path / "base", nats=1.25, rows=rows(0.6, 0.5, 0.03, **versus))
    other = write_run(tmp_path / "other", nats=1.5, rows=rows(0.7, 0.5, 0.04), norm="layer")
    cells, table = write(tmp_path, base=base, other=other)
    assert cells["base"]["nats"]["value"] == pytest.approx(1.25)
    assert cells["base"]["nats"]["is_bound"] is True
    assert cells["other"]["settings"] == {"model.norm": "layer"}
    found = {cell: cells[cell]["probes"][0] for cell in cells}
    assert found["base"]["features"] == "random z"  # baselines first
    found = {cell: cells[cell]["probes"][1] for cell in cells}
    assert found["base"]["accuracy"] == pytest.approx({"value": 0.6, "low": 0.57, "high": 0.63})
    assert found["base"]["over_untrained"] == {"value": 0.10, "low": 0.08, "high": 0.12}
    assert found["base"]["over_first"] is None
    # Half-widths of 0.03 and 0.04 make one of 0.05; 0.04 and 0.04 one of 0.04 * sqrt(2).
    over = found["other"]["over_first"]
    assert over == pytest.approx({"value": 0.1, "low": 0.05, "high": 0.15})
    half = 0.04 * math.sqrt(2)
    over = found["other"]["over_untrained"]
    assert over == pytest.approx({"value": 0.2, "low": 0.2 - half, "high": 0.2 + half})
    head, _, first, second = table.splitlines()
    assert head.startswith("| cell | norm | log N − L, nats | classes, clothes, linear on z, % |")
    assert first.startswith(
        "| base | none | 1.25 | 60.0 (57.0 to 63.0) | +10.0 (+8.0 to +12.0) |  |"
    )
    assert "| +10.0 (+5.0 to +15.0) | 1 | 20 | 30 s |" in second


def test_several_seeds(tmp_path):
    """Student's t-interval of the mean; differences are paired by seed."""
    ours, theirs = [0.62, 0.60, 0.67], [0.50, 0.49, 0.54]
    runs = {}
    for seed in range(3):
        runs[f"base,seed={seed}"] = write_run(
            tmp_path / f"b{seed}", seed, nats=1 + seed, rows=rows(theirs[seed], 0.4 + 0.01 * seed)
        )
    for seed in range(3):
        runs[f"far,seed={seed}"] = write_run(
            tmp_path / f"f{seed}", seed, rows=rows(ours[seed], 0.4), offsets=5
        )
    cells, _ = write(tmp_path, **runs)
    assert list(cells) == ["base", "far"]
    low, high = stats.t.interval(0.95, 2, loc=2.0, scale=1 / math.sqrt(3))
    assert cells["base"]["nats"] == pytest.approx(
        {"value": 2.0, "low": low, "high": high, "is_bound": True}
    )
    probe = cells["far"]["probes"][1]
    assert probe["by_seed"] == ours
    differences = np.subtract(ours, theirs)
    low, high = stats.t.interval(
        0.95, 2, loc=differences.mean(), scale=differences.std(ddof=1) / math.sqrt(3)
    )
    expected = {"value": differences.mean(), "low": low, "high": high}
    assert probe["over_first"] == pytest.approx(expected)
    over_random = cells["base"]["probes"][1]["over_untrained"]
    assert over_random["value"] == pytest.approx(np.mean(theirs) - 0.41)


def test_two_seeds_without_a_common_one(tmp_path):
    a = [write_run(tmp_path / f"a{s}", s, rows=rows(0.5 + 0.01 * s, 0.4)) for s in (0, 1)]
    b = [write_run(tmp_path / f"b{s}", s, rows=rows(0.5, 0.4), norm="x") for s in (2, 3)]
    named = {f"{p.name[0]}_seed{i}": p for i, p in enumerate([*a, *b])}
    cells, _ = write(tmp_path, **named)
    half = stats.t.ppf(0.975, 1) * 0.005
    over = cells["b"]["probes"][1]["over_first"]
    assert over == pytest.approx({"value": -0.005, "low": -0.005 - half, "high": -0.005 + half})


def test_an_interval_of_accuracies_stays_among_them(tmp_path):
    for seed, accuracy in enumerate((0.1, 0.9)):
        write_run(tmp_path / f"r_seed{seed}", seed, rows=rows(accuracy, 0.4))
    (cell,) = read_cells([(p.name, p) for p in sorted(tmp_path.iterdir())])
    row = comparison.probe_row(cell, cell, LINEAR)
    assert row is not None
    assert row.accuracy == Estimate(0.5, 0.0, 1.0)


def test_equal_configs_under_two_names_of_a_sweep_stay_two_cells(tmp_path):
    """Even where the seed of one is missing."""
    paths = {
        "base,seed=0": write_run(tmp_path / "1", 0),
        "same,seed=1": write_run(tmp_path / "2", 1),
    }
    assert [cell.name for cell in read_cells(list(paths.items()))] == ["base", "same"]
    one = {"first": tmp_path / "1", "second": tmp_path / "2"}
    assert [len(cell.entries) for cell in read_cells(list(one.items()))] == [2]
    same_seed = write_run(tmp_path / "3", 0)
    cells = read_cells([("first", tmp_path / "1"), ("again", same_seed)])
    assert [cell.name for cell in cells] == ["first", "again"]


def test_failed_waiting_and_damaged_runs(tmp_path):
    good, failed, damaged = (tmp_path / name for name in ("good", "failed", "damaged"))
    write_run(good, rows=rows(0.5, 0.4))
    failed.mkdir()
    failure = {"status": 2, "error": "no <data> there", "command": "python -m again"}
    (failed / "failed.json").write_text(json.dumps(failure))
    write_run(damaged)
    (damaged / "config.json").write_text("{not json")
    absent = tmp_path / "absent"
    cells, table = write(tmp_path, good=good, failed=failed, damaged=damaged, absent=absent)
    assert list(cells) == ["good", "failed", "damaged"]
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "no &lt;data&gt; there. To try again: python -m again" in page
    assert "config.json is damaged" in page
    assert "| failed | " in table
    with pytest.raises(UserError, match=r"no run has recorded anything yet; failed failed: no <da"):
        write_comparison([("failed", failed), ("absent", absent)], tmp_path / "none")


def test_scores_and_other_ceilings_are_not_ranked(tmp_path):
    base = write_run(tmp_path / "base", nats=1.0)
    score = write_run(tmp_path / "score", nats=3.0, norm="x")
    text = (score / "metrics.jsonl").read_text().replace('"is_bound": true', '"is_bound": false')
    (score / "metrics.jsonl").write_text(text)
    _, table = write(tmp_path, base=base, score=score)
    assert "| 3.00 (score) |" in table
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "does not compare between all cells: not all are bounds." in page
    assert "Highest bound" not in page


def test_probes_over_the_training(tmp_path):
    log = [
        record(step, "test", 1.0, series="probes") | {"classes/z/linear": 0.01 * step}
        for step in (5, 10)
    ]
    write_run(tmp_path / "run", rows=rows(0.5, 0.4), log=log)
    (cell,) = read_cells([("run", tmp_path / "run")])
    from cpc.report.comparison_figures import curves_figure, probe_series

    steps, values = probe_series(cell.runs[0], LINEAR)
    assert steps.tolist() == [5, 10, 20]
    assert values == pytest.approx([5, 10, 50])
    figure = curves_figure([cell])
    assert figure is not None
    assert len(figure.axes) == 2


def test_the_papers_column(tmp_path):
    run, folder = write_run(tmp_path / "run"), tmp_path / "out"
    write_comparison([("run,seed=0", run)], folder, {"run": "higher | better"})
    assert "| paper |" in (folder / "comparison.md").read_text()
    assert "higher \\| better" in (folder / "comparison.md").read_text()
    with pytest.raises(UserError, match="names ruhn, which is no cell: cells are run"):
        write_comparison([("run,seed=0", run)], folder, {"ruhn": "up"})
