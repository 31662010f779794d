import json
import math

import numpy as np
import pytest
from scipy import stats

from cpc.report.engine import cells as texts
from cpc.results import Outcomes, Score, compare, difference, group_by_seed, read_run, write_scores
from cpc.types import UserError
from experiments.command.run_dir import record_state
from experiments.compare.page import best_sentences, curves, score_steps, write_comparison
from experiments.compare.tables import ScoreKey, all_scores, cell_table, headline
from tests.fake_run import draw_nothing, remove_seals
from tests.small_run import probe_score, write_run


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    draw_nothing(monkeypatch)


LINEAR = ScoreKey("classes", "clothes", "image", "z", "linear", "accuracy")


def write(tmp_path, **runs):
    folder = tmp_path / "out"
    write_comparison([(name, path) for name, path in runs.items()], folder)
    cells = json.loads((folder / "comparison.json").read_text())["cells"]
    return {cell["cell"]: cell for cell in cells}, (folder / "comparison.md").read_text()


def score(cell, features="z", task="classes"):
    (found,) = [s for s in cell["scores"] if (s["features"], s["task"]) == (features, task)]
    return found


def ends(found, over=""):
    prefix = f"{over}_" if over else ""
    return [found[over or "value"], found[f"{prefix}low"], found[f"{prefix}high"]]


def probes(z, random, half=0.01):
    return [probe_score("z", z, half), probe_score("random z", random, half)]


def right(fraction, num=400):
    """Return outcomes in a fixed image order, so that differences are paired."""
    return Outcomes(np.arange(num) < fraction * num, items="clothes")


def cells_of(tmp_path, **runs):
    return group_by_seed([(name, read_run(path)) for name, path in runs.items()])


def test_one_seed_has_intervals_over_items(tmp_path):
    paired = [one._replace(outcomes=right(one.value)) for one in probes(0.6, 0.5, 0.03)]
    base = write_run(tmp_path / "base", nats=1.25, scores=paired)
    other = write_run(tmp_path / "other", nats=1.5, scores=probes(0.7, 0.5, 0.04), norm="layer")
    cells, table = write(tmp_path, base=base, other=other)
    bound = score(cells["base"], "c", "information")
    assert (bound["value"], bound["method"]) == (pytest.approx(1.25), "bound")
    assert cells["other"]["settings"] == {"model.norm": "layer"}
    assert ends(score(cells["base"])) == pytest.approx([0.6, 0.57, 0.63])
    lead, found = difference(*paired), score(cells["base"])
    assert ends(found, "over_untrained") == pytest.approx([lead.value, lead.low, lead.high])
    assert lead.paired == found["over_untrained_paired"] == "items"
    assert found["over_first"] is None
    # Independent half-widths add in quadrature: 0.03 and 0.04 make 0.05.
    assert ends(score(cells["other"]), "over_first") == pytest.approx([0.1, 0.05, 0.15])
    half = 0.04 * math.sqrt(2)
    over = ends(score(cells["other"]), "over_untrained")
    assert over == pytest.approx([0.2, 0.2 - half, 0.2 + half])
    _, _, first, second = table.splitlines()
    shown = f"+10.0 (+{100 * lead.low:.1f} to +{100 * lead.high:.1f})"
    assert first.startswith(f"| base | none | 1.25, k = 2–3 | 60.0 (57.0 to 63.0) | {shown} |  |")
    assert "| +10.0 (+5.0 to +15.0) | 1 | 20 | 30 s |" in second


def test_several_seeds_have_intervals_over_seeds(tmp_path):
    """Student's t-interval of the mean; differences are paired by seed."""
    ours, theirs = [0.62, 0.60, 0.67], [0.50, 0.49, 0.54]
    runs = {}
    for name, values, more in (("base", theirs, {}), ("far", ours, {"offsets": 5})):
        for seed, value in enumerate(values):
            scores, one = probes(value, 0.4 + 0.01 * seed), f"{name},seed={seed}"
            runs[one] = write_run(tmp_path / one, seed, 20, 1 + seed, scores, **more)
    # An unfinished run does not count.
    early = [one._replace(step=10) for one in probes(0.1, 0.4)]
    late = write_run(tmp_path / "late", 3, step=10, scores=early, offsets=5)
    cells, table = write(tmp_path, **runs, **{"far,seed=3": late})
    assert "| 3 of 4 |" in table
    assert list(cells) == ["base", "far"]
    interval = stats.t.interval(0.95, 2, loc=2.0, scale=1 / math.sqrt(3))
    assert ends(score(cells["base"], "c", "information")) == pytest.approx([2.0, *interval])
    found = score(cells["far"])
    assert found["by_seed"] == ours
    differences = np.subtract(ours, theirs)
    over_seeds = stats.t.ppf(0.975, 2) * differences.std(ddof=1) / math.sqrt(3)
    half, mean = math.hypot(over_seeds, 0.01, 0.01), differences.mean()
    assert ends(found, "over_first") == pytest.approx([mean, mean - half, mean + half])
    over = score(cells["base"])["over_untrained"]
    assert over == pytest.approx(np.mean(theirs) - 0.41)


def test_intervals_of_accuracies_stay_within_0_and_1(tmp_path):
    """Error rates may exceed 1."""
    for seed, value in enumerate((0.1, 0.9)):
        rate = Score("CTC", "d", "phone", "z", "linear", "phone error rate", 1.1 + seed / 10)
        scores = [probe_score("z", value), rate]
        write_scores(write_run(tmp_path / f"r_seed{seed}", seed), scores)
    cells = cells_of(tmp_path, **{path.name: path for path in sorted(tmp_path.iterdir())})
    found = [ends(row) for row in compare(cells).query("features == 'z'").to_dict("records")]
    assert found[0] == [0.5, 0.0, 1.0]
    assert found[1] == pytest.approx([1.15, 0.5147, 1.7853], abs=1e-4)


def test_equal_configs_with_two_names_are_two_cells(tmp_path):
    one, two, three = (write_run(tmp_path / str(n), seed) for n, seed in enumerate((0, 1, 0)))
    cells = cells_of(tmp_path, **{"base,seed=0": one, "same,seed=1": two})
    assert [cell.name for cell in cells] == ["base", "same"]
    assert [len(cell.runs) for cell in cells_of(tmp_path, first=one, second=two)] == [2]
    cells = cells_of(tmp_path, first=one, again=three)
    assert [cell.name for cell in cells] == ["first", "again"]


def test_failed_missing_and_damaged_runs_are_listed(tmp_path):
    good = write_run(tmp_path / "good", scores=probes(0.5, 0.4))
    failed, damaged = tmp_path / "failed", write_run(tmp_path / "damaged")
    failed.mkdir()
    failure = {"status": 2, "error": "no <data> there", "command": "python -m again"}
    record_state(failed, "failed", **failure)
    (damaged / "config.json").write_text("{not json")
    absent = tmp_path / "absent"
    cells, table = write(tmp_path, good=good, failed=failed, damaged=damaged, absent=absent)
    assert list(cells) == ["good", "damaged", "failed"]
    assert "python -m again" in cells["failed"]["runs"][0]["problem"]
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert all(word in page for word in ("no &lt;data&gt; there", "config.json"))
    assert "| failed | " in table
    with pytest.raises(UserError, match="no <da"):
        write_comparison([("failed", failed), ("absent", absent)], tmp_path / "none")


def test_first_cell_without_scores_is_not_replaced(tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    (first / "config.json").write_text(json.dumps({"seed": 0, "num_steps": 20}))
    a = write_run(tmp_path / "a", scores=probes(0.6, 0.5))
    b = write_run(tmp_path / "b", scores=probes(0.7, 0.5), norm="layer")
    runs = {"first": first, "a": a, "b": b}
    cells, table = write(tmp_path, **runs)
    assert (cells["first"]["scores"], "| first |" in table) == ([], True)
    assert score(cells["b"])["over_first"] is None
    found = cells_of(tmp_path, **runs)
    assert best_sentences(found, compare(found))[-1].endswith("linear on z: b, 70.0 %.")


def test_incomparable_bounds_are_not_ranked(tmp_path):
    base = write_run(tmp_path / "base", nats=1.0)
    other = write_run(tmp_path / "other", nats=3.0, norm="x")
    remove_seals(other)
    text = (other / "metrics.jsonl").read_text()

    def best(**changed):
        now = text
        for before, after in changed.values():
            assert before in now
            now = now.replace(before, after)
        (other / "metrics.jsonl").write_text(now)
        cells = cells_of(tmp_path, base=base, other=other)
        return cells, best_sentences(cells, compare(cells))

    assert best()[1][0].startswith("Highest bound: other")
    ceiling = best(n=("2.08, 2.08", "4.08, 4.08"))[1]
    cells, estimate = best(kind=('"is_bound": true', '"is_bound": false'))
    assert [len(ceiling), len(estimate)] == [1, 1]
    assert not any("other" in one for one in ceiling + estimate)
    assert texts(cell_table(cells, compare(cells), []))[1][2] == "3.00, k = 2–3 (estimate)"
    # One shared offset with equal numbers of negatives.
    offsets = ('"offsets": [2, 3]', '"offsets": [1, 2]')
    sentence = best(k=offsets)[1][0]
    assert "their offsets differ" in sentence
    assert "negatives" not in sentence
    near = best(k=offsets, n=("2.08, 2.08", "2.01, 2.02"))[1][0]  # as in another seed
    assert "negatives" not in near
    far = best(k=offsets, n=("2.08, 2.08", "1.86, 1.87"))[1][0]  # offset 2 is the second of `other`
    assert "their numbers of negatives differ" in far


def test_scores_over_training_steps(tmp_path):
    early = [probe_score("z", 0.01 * step)._replace(step=step) for step in (5, 10)]
    run = write_run(tmp_path / "run", scores=[*early, *probes(0.5, 0.4)])
    cells = cells_of(tmp_path, run=run)
    steps, values = score_steps(cells[0].runs[0][1], LINEAR)
    assert (steps.tolist(), values) == ([5, 10, 20], pytest.approx([5, 10, 50]))
    (figure,) = curves(cells, compare(cells))
    assert len(figure.figure.axes) == 2


def test_lowest_error_rate_is_best(tmp_path):
    rate = Score("words", "news", "utterance", "c", "ctc", "error rate", 0.30, 0.28, 0.32,
                 higher_is_better=False, step=20)  # fmt: skip
    runs = {}
    for name, value in (("base", 0.30), ("other", 0.20)):
        runs[name] = write_run(tmp_path / name, norm=name)
        write_scores(runs[name], [rate._replace(value=value, low=value - 0.02, high=value + 0.02)])
    cells = cells_of(tmp_path, **runs)
    scores = compare(cells)
    assert [question.metric for question in headline(scores)] == ["error rate"]
    best = best_sentences(cells, scores)[-1]
    assert all(word in best for word in ("other, 20.0 %", "−10.0"))
    row = texts(all_scores(scores))[1]
    assert row[:2] + row[8:9] == ["other", "words", "20.0 (18.0 to 22.0)"]
