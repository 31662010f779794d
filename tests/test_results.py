"""Scores and runs: writing, reading and comparing."""

import numpy as np
import pytest

from cpc.files import read_json, write_sealed
from cpc.results import paired_difference
from cpc.results.compare import (
    as_student,
    compare,
    difference,
    group_by_seed,
    information,
    is_better,
    lead,
)
from cpc.results.run import evaluations, last_evaluation, read_run
from cpc.results.score import Outcomes, Score, digest, read_scores, write_scores
from cpc.types import UserError
from tests.fake_run import add_records, fake_record, write_fake_run
from tests.small_run import write_run

PHONES = Score("phones", "voices", "frame", "c", "linear", "error rate", 0.25,
               low=0.2, high=0.3, higher_is_better=False)  # fmt: skip


@pytest.fixture
def workdir(tmp_path):
    return write_fake_run(tmp_path, num_steps=500)


def outcomes(right, items="same"):
    return Outcomes(np.array(right, bool), items=items)


def test_score_replaces_only_the_same_question_and_step(tmp_path):
    for fields in (
        {"step": 20}, {"step": 400}, {"step": 20, "value": 0.9, "setting": "other", "num_train": 9},
        {"step": 20, "task": "speakers"}, {"step": 20, "features": "z"},
    ):  # fmt: skip
        write_scores(tmp_path, [PHONES._replace(**fields)])
    found = {(s.task, s.step, s.features, s.num_train): s.value for s in read_scores(tmp_path)}
    assert found == {
        ("phones", 20, "c", 9): 0.9, ("phones", 400, "c", None): 0.25,
        ("speakers", 20, "c", None): 0.25, ("phones", 20, "z", None): 0.25,
    }  # fmt: skip


def test_points_of_a_learning_curve_are_kept(tmp_path):
    curve = [PHONES._replace(num_train=n) for n in (100, 200)]
    shares = [PHONES._replace(task="CTC", num_train=n, setting=f"{n} min") for n in (10, 30)]
    write_scores(tmp_path, [*curve, *shares])
    new = [PHONES._replace(num_train=n, value=0.1) for n in (200, 400)]
    write_scores(tmp_path, [*new, shares[0]._replace(num_train=11, value=0.1)])
    found = [(score.task, score.num_train, score.value) for score in read_scores(tmp_path)]
    assert sorted(found) == [
        ("CTC", 11, 0.1), ("CTC", 30, 0.25), ("phones", 200, 0.1), ("phones", 400, 0.1),
    ]  # fmt: skip


def test_each_score_keeps_its_outcomes(tmp_path):
    """Counts may differ by feature; fractions may have equal numbers of labels."""
    plain = PHONES._replace(metric="nats", value=1.5, setting="k 2", num_train=7)
    counts = {"c": [3, 5], "z": [4, 6]}
    scores = [
        PHONES._replace(features=name, value=3 / sum(n), outcomes=Outcomes([1, 2], n, "same"))
        for name, n in counts.items()
    ]
    right = {"1 % of the labels": [1, 0], "2 % of the labels": [0, 1], "l2 1": [1, 0]}
    options = {"value": 0.5, "num_train": 10, "task": "few"}
    scores += [
        PHONES._replace(setting=name, outcomes=outcomes(own), **options)
        for name, own in right.items()
    ]
    write_scores(tmp_path, [plain, *scores])
    found, first, second, *shares = read_scores(tmp_path)
    assert found == plain
    for score in (first, second):
        assert score.outcomes.counts.tolist() == counts[score.features]
        assert score.outcomes.items == "same"
    assert {score.setting: score.outcomes.sums.tolist() for score in shares} == right


def test_outcomes_of_another_fit_are_dropped(tmp_path):
    """Scores and outcomes are separate files, not replaced atomically."""
    write_scores(tmp_path, [PHONES._replace(value=0.5, outcomes=outcomes([1, 0]))])
    content = read_json(tmp_path / "scores.json")
    content["scores"][0]["value"] = 0.75
    write_sealed(tmp_path / "scores.json", content)
    assert read_scores(tmp_path)[0].outcomes is None
    (tmp_path / "scores.npz").write_bytes(b"PK")  # damage affects only pairing
    (tmp_path / "config.json").write_text("{}")
    run = read_run(tmp_path)
    assert (run.scores.outcomes.tolist(), len(run.problems)) == ([None], 1)
    write_scores(tmp_path, [PHONES._replace(step=3)])
    assert len(read_scores(tmp_path)) == 2


@pytest.mark.parametrize(("name", "value"), [
    ("task", 3), ("setting", None), ("low", "0.2"), ("num_test", True), ("seed", 1.5),
    ("higher_is_better", 0), ("value", np.nan),
])  # fmt: skip
def test_score_of_wrong_type_is_omitted(tmp_path, name, value):
    good, bad = ({n: v for n, v in PHONES._asdict().items() if n != "outcomes"} for _ in range(2))
    write_sealed(tmp_path / "scores.json", {"scores": [{**bad, name: value}, good]})
    assert read_scores(tmp_path, problems := []) == [PHONES]
    assert len(problems) == 1
    (tmp_path / "scores.json").write_text("{")
    write_scores(tmp_path, [PHONES])
    assert read_scores(tmp_path) == [PHONES]
    assert (tmp_path / "damaged-scores.json").read_text() == "{"


def test_resumed_steps_replace_earlier_ones(workdir):
    strict = last_evaluation(read_run(workdir), strict=True)
    assert strict.rule.unique().tolist() == ["one_per_sequence"]
    path = workdir / "metrics.jsonl"
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    again = fake_record(250, "batch", False, 1024, 2.0, np.random.default_rng(1))
    earlier = fake_record(0, "an_earlier_name", True, 8, 1.0, np.random.default_rng(1))
    last = again | {"step": 600, "std_c": None, "bound": [None, *again["bound"][1:]]}
    add_records(workdir, earlier, again)
    run = read_run(workdir)
    found = evaluations(run)
    assert list(found) == ["batch", "one per sequence", "an earlier name"]
    assert last_evaluation(run).rule.unique().tolist() == ["batch"]
    rows = found["batch"]
    assert sorted(rows.step.unique()) == [0, 250, 500]
    assert rows[rows.step == 250].bound.tolist() == again["bound"]
    add_records(workdir, last)  # missing numbers are NaN
    run = read_run(workdir)
    assert np.isnan(run.metrics[run.metrics.step == 600].std_c.iloc[0])
    assert last_evaluation(run).bound.isna().tolist() == [True] + [False] * 11


@pytest.mark.parametrize("has_bound", [True, False])
def test_strict_series_with_the_same_rule(workdir, has_bound):
    rng = np.random.default_rng(0)
    (workdir / "metrics.jsonl").unlink()
    for step in (0, 100):
        plain = fake_record(step, "one_per_sequence", has_bound, 8, 1.5, rng)
        strict = fake_record(step, "one_per_sequence", True, 64, 3.0, rng) | {"series": "strict"}
        for key in () if has_bound else ("bound", "bound_low", "bound_high", "state"):
            del plain[key]
        probes = {"step": step, "split": "test", "series": "probes"}
        add_records(workdir, plain, strict, plain | {"split": "train"}, probes)
    run = read_run(workdir)
    assert list(evaluations(run)) == ["one per sequence", "one per sequence, strict"]
    assert last_evaluation(run).n.iloc[0] == 8
    assert last_evaluation(run).bound.notna().all() == has_bound
    assert last_evaluation(run, strict=True).n.iloc[0] == 64
    found = information(run)
    assert (found.method, found.value) == ("bound", pytest.approx(np.mean(strict["bound"])))


@pytest.mark.parametrize(("file", "content"), [
    ("config.json", "{"), ("config.json", "[]"), ("environment.json", "{"),
    ("audit.json", '{"rows": 3}'), ("truth.json", '{"offsets": [1]}'),
    ("scores.json", '{"scores": [{"task": "x"}]}'),
])  # fmt: skip
def test_damaged_file_is_one_problem(workdir, file, content):
    (workdir / file).write_text(content)
    run = read_run(workdir)
    assert len(run.problems) == 1
    assert file in run.problems[0]
    assert len(run.offsets)


def test_damaged_lines_of_metrics_are_omitted(workdir):
    path = workdir / "metrics.jsonl"
    whole, text = read_run(workdir), path.read_text()
    path.write_text(text + '{"step": 600, "spl')  # killed while writing
    assert read_run(workdir).problems == []
    (workdir / "report.html").touch()  # a finished run does not repair its last line
    (said,) = read_run(workdir).problems
    assert str(path) in said
    path.write_text('{"step": 6\n[]\n' + text)
    run = read_run(workdir)
    assert [str(path) in problem for problem in run.problems] == [True, True]
    assert run.metrics.equals(whole.metrics)
    with pytest.raises(UserError):
        read_run(workdir / "nowhere")


def test_equal_items_are_paired():
    ours, theirs = outcomes([1] * 8 + [0] * 2), outcomes([1] * 3 + [0] * 7)
    a = PHONES._replace(metric="accuracy", value=0.8, outcomes=ours)
    b = a._replace(value=0.3, outcomes=theirs, low=0.0, high=0.6)
    found = difference(a, b)
    assert found == paired_difference(ours.sums, theirs.sums)
    assert (found.value, found.p_value, found.paired) == (0.5, 0.0625, "items")
    other = b._replace(outcomes=outcomes([1] * 3 + [0] * 7, items="others"))
    assert difference(a, other).paired == ""


def test_rates_are_paired_by_utterance():
    """Both errors grow with difficulty, so the paired difference is far more certain."""
    rng = np.random.default_rng(0)
    words, hard = rng.integers(5, 30, 200), rng.uniform(0, 0.5, 200)
    errors = np.round(words * hard)
    scores = [
        PHONES._replace(value=(e.sum() / words.sum()), outcomes=Outcomes(e, words, "test"))
        for e in (errors + 1, errors)
    ]
    found = difference(*scores)
    assert found.value == pytest.approx(200 / words.sum())
    assert 0 < found.low < found.value < found.high
    assert found.high - found.low < 0.01
    assert is_better(found.low, found.high, higher_is_better=False) is False


def test_intervals_of_differences():
    counts = [9, 8, 9, 0]  # an empty item
    a, b = (
        PHONES._replace(value=sum(sums) / 26, outcomes=Outcomes(sums, counts, "test"))
        for sums in ([3, 4, 5, 0], [2, 3, 4, 0])
    )
    found = difference(a, b)
    assert 0 < found.low <= found.value <= found.high < 1
    once, twice = (
        PHONES._replace(outcomes=Outcomes([1, 0, 1], n, "x")) for n in ([1] * 3, [1, 2, 1])
    )
    assert difference(once, twice).value == pytest.approx(2 / 3 - 2 / 4)
    single = [PHONES._replace(outcomes=outcomes(right)) for right in ([1], [0])]
    frames = [PHONES._replace(outcomes=Outcomes([n, 0], [100, 0], "x")) for n in (80, 40)]
    for pair in (single, frames):  # one item gives no interval
        found = difference(*pair)
        assert found.value == pytest.approx(1.0 if pair is single else 0.4)
        assert np.isnan([found.low, found.high]).all()
        assert is_better(found.low, found.high, higher_is_better=True) is None


def test_samples_with_one_counted_item_are_in_the_interval():
    """One of four items differs; each sample of 40 items has about four of them, at times one."""
    sums, counts = np.zeros((2, 40)), np.zeros(40)
    counts[:4], sums[0, 0] = 1, 1
    found = difference(
        *(
            PHONES._replace(value=each.sum() / 4, outcomes=Outcomes(each, counts, "x"))
            for each in sums
        )
    )
    assert found.high == as_student(0.25, 0, 1, 4)[1]


def test_digest_depends_on_values_and_order():
    assert digest([1, 2], "a") == digest(np.array([1, 2], np.int8), "a")
    assert len({digest([1, 2]), digest([2, 1]), digest([[1, 2]]), digest("1")}) == 4


def cells_of(tmp_path, *runs):
    """Write runs of (model, seed, step, scores), and return their frame of scores by cell."""
    found = []
    for model, seed, step, scores in runs:
        name = f"{model},seed={seed}"
        found.append(
            (name, read_run(write_run(tmp_path / name, seed, step, scores=scores, m=model)))
        )
    rows = compare(group_by_seed(found))
    return rows[rows.task != "information"].to_dict("records")


@pytest.mark.parametrize("parts", [("5 % of the labels", "9 % of the labels"), ("1 min", "2 min")])
def test_seeds_with_different_splits_are_compared(tmp_path, parts):
    runs, base = [], PHONES._replace(step=20)
    for seed, number in enumerate((810, 785)):
        scores = [base._replace(value=0.2 + 0.1 * seed, num_train=number)]
        for part, setting in enumerate(parts):
            curve = {"method": "frozen", "num_train": number * (part + 1), "setting": setting}
            scores.append(base._replace(value=0.4 + 0.1 * part, **curve))
        runs.append(("a", seed, 20, scores))
    whole, half, full = cells_of(tmp_path, *runs)
    assert (whole["value"], whole["by_seed"]) == (pytest.approx(0.25), pytest.approx([0.2, 0.3]))
    assert (half["by_seed"], full["by_seed"]) == ([0.4, 0.4], [0.5, 0.5])
    assert (half["num_train"], full["num_train"]) == (810, 1620)


def right_ones(count, **fields):
    value = PHONES._replace(metric="accuracy", value=count / 100, low=None, high=None, **fields)
    return value._replace(outcomes=outcomes(np.arange(100) < count))


def test_difference_over_seeds_includes_items():
    """Two seeds with equal differences, as is common with few items."""
    ours, theirs = ({seed: right_ones(n, seed=seed) for seed in (0, 1)} for n in (55, 50))
    found, alone = lead(ours, theirs), difference(ours[0], theirs[0])
    assert (found.paired, alone.paired) == ("seeds and items", "items")
    assert found[:3] == pytest.approx(alone[:3])
    assert found.low == 0.0 < found.high  # five items of 100: p is 1 in 16
    elsewhere = {s: one._replace(outcomes=None) for s, one in theirs.items()}
    found = lead(ours, elsewhere)
    assert (found.paired, found.low) == ("seeds", pytest.approx(0.05))
    ours, elsewhere = (
        {s: one._replace(low=one.value - 0.1, high=one.value + 0.1) for s, one in of.items()}
        for of in (ours, elsewhere)
    )
    found = lead(ours, elsewhere)
    assert found.paired == "seeds and items"
    assert found.low == pytest.approx(0.05 - 0.1 * 2**0.5)  # as for independent scores


def test_one_seed_compared_with_three():
    """The scatter of three seeds is not taken as zero."""
    ours = {seed: right_ones(n, seed=seed) for seed, n in enumerate((60, 70, 50))}
    theirs = {0: right_ones(40)._replace(low=0.3, high=0.5)}
    assert difference(ours[0], theirs[0]).low > 0
    found = lead(ours, theirs)
    assert (found.paired, found.value) == ("", pytest.approx(0.2))
    half = np.hypot(4.30265 * 0.1 / 3**0.5, 0.1)
    assert found.high - found.value == pytest.approx(half, rel=1e-4)
    assert lead({1: ours[1]}, theirs)[0] == pytest.approx(0.3)


def test_unfinished_runs_are_shown_without_comparison(tmp_path):
    a, b, c = cells_of(tmp_path, *(
        (name, seed, step, [right_ones(count, step=step)])
        for seed, (own, count) in enumerate([(20, 60), (20, 62), (10, 20)])
        for name, step, count in (("a", 20, 60 + seed), ("b", own, count), ("c", 10, 70))
    ))  # fmt: skip
    assert (a["at_end"], b["at_end"], c["at_end"]) == (True, True, False)
    assert b["by_seed"] == [0.60, 0.62]
    assert b["over_first"] == pytest.approx(0.005)
    assert (c["value"], c["by_seed"]) == (pytest.approx(0.7), [0.7] * 3)
    assert np.isnan(c["over_first"])
