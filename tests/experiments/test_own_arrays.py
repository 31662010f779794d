"""The study of user arrays: input checks, row splits, readings and claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import configs.arrays
from cpc.estimators import beyond_normal
from cpc.results import read_scores
from cpc.types import UserError
from experiments import status
from experiments.command.config import with_settings
from experiments.information import arrays, rotations
from experiments.information import own_arrays as study
from experiments.information import page as findings
from experiments.information.arrays import Pairs
from experiments.information.rotations import Interval, Reading
from tests.estimators import forty_tasks

TASKS = {task.name: task for task in beyond_normal()}
ROWS = 800


def small(**settings):
    return with_settings(configs.arrays.get_config(), {**study.QUICK, **settings})


def write(folder, **values):
    for name, value in values.items():
        np.save(folder / f"{name}.npy", value)
    return [str(folder / f"{name}.npy") for name in values]


def read(folder, x, y):
    return arrays.read_pairs(*write(folder, x=x, y=y), max_rows=10**6, seed=0)


def good(n=400, d=2):
    return np.random.default_rng(d).normal(size=(n, d))


def with_value(value, *rows):
    z = good()
    z[list(rows), 1] = value
    return z


@pytest.mark.parametrize(("x", "y", "said"), [
    (good(), good(399), "400 .*y.npy has 399"), (good(150), good(150), "got 150"),
    (with_value(np.nan, 3, 5), good(), "2 NaN and 0 infinite numbers in 2 of 400 rows"),
    (good(), with_value(-np.inf, 7), "y.npy has 0 NaN and 1 infinite numbers in 1 of 400 rows"),
    (good(), with_value(2.5, *range(400)), "1 constant columns of 2.* first is 1"),
    (np.ones((1, 3)), np.ones((1, 3)), "200"),  # reported as too few rows, not as constant
    (good() > 0, good(), "x.npy.*bool"), (np.zeros((0, 2)), good(), "is empty"),
])  # fmt: skip
def test_unusable_arrays_are_rejected(tmp_path, x, y, said):
    with pytest.raises(UserError, match=said):
        read(tmp_path, x, y)


def test_shuffling_rows_keeps_pairs(tmp_path):
    x = np.random.default_rng(0).integers(0, 100, 300).astype(">f2")  # a single column
    pairs = read(tmp_path, x, 2 * x)
    assert (pairs.x.shape, pairs.x.dtype) == ((300, 1), np.float64)
    assert sorted(pairs.x[:, 0]) == sorted(x.astype(float))
    np.testing.assert_array_equal(pairs.y, 2 * pairs.x)
    assert not np.array_equal(pairs.x[:, 0], x), "rows are in random order"
    few = arrays.read_pairs(*write(tmp_path, x=x, y=good(300)), max_rows=250, seed=0)
    assert len(few.x) == 250
    assert few.remarks == ("A random 250 of 300 rows are used (max_rows).",)
    (tmp_path / "x.npy").write_text("these are words")
    with pytest.raises(UserError, match=r"cannot read .*x\.npy"):
        arrays.read_array(tmp_path / "x.npy")


def test_dependent_rows_are_remarked(tmp_path):
    walk = np.cumsum(good(300, 1), axis=0)
    assert "Neighbouring rows of x are alike" in read(tmp_path, walk, good(300)).remarks[0]
    numbered = np.column_stack([good(300, 9), np.arange(300)])
    assert "of y are alike in column 9" in read(tmp_path, good(300), numbered).remarks[0]
    x, y = good(300, 1), good(300, 2)
    x[10:30], y[10:30] = x[0], y[0]
    assert read(tmp_path, x, y).remarks[-1].startswith("20 rows are copies")


@pytest.mark.parametrize("seed", range(2))
def test_independent_rows_are_not_remarked(seed):
    rng = np.random.default_rng(seed)
    rare = np.eye(100)[rng.permutation(200) // 2]  # each event occurs twice
    rare[rng.permutation(200)[:100]] = 0
    rare = rare[:, rare.std(0) > 0]
    for z in (rare, rng.standard_t(1, (200, 30)), rng.normal(size=(200, 300))):
        assert not any("alike" in said for said in arrays.remark(z, good(200)))


def test_each_row_is_held_out_once():
    x = np.arange(400.0)[:, None]
    turned, also = arrays.rotate(x, 10 * x, 200, "standardize")
    rank = np.argsort(np.argsort(turned[..., 0]))  # scaling keeps the order
    np.testing.assert_array_equal(rank, np.argsort(np.argsort(also[..., 0])))
    assert sorted(rank[:, 300:].ravel()) == list(range(400))
    assert all(len(set(rows)) == 400 for rows in rank)


def test_only_training_rows_determine_the_scaling():
    x, y = good(400, 1), good(400, 2)
    changed = x.copy()
    changed[300:] *= 50  # held-out rows of the first rotation
    for transform in arrays.TRANSFORMS:
        a, b = (arrays.rotate(z, y, 100, transform)[0][0] for z in (x, changed))
        np.testing.assert_array_equal(a[:300], b[:300])
        assert not np.array_equal(a[300:], b[300:])
    standard = arrays.rotate(x, y, 100, "standardize")[0][0, :100]
    assert (standard.mean(), standard.std()) == pytest.approx((0, 1), abs=1e-6)


def test_shuffle_breaks_pairs_and_keeps_marginals():
    x = good(400, 1)
    sides = arrays.rotate(x, x, 400, "standardize", np.random.default_rng(0))
    turned, shuffled = (side[..., 0] for side in sides)
    for a, b in zip(turned, shuffled, strict=True):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.2
        np.testing.assert_allclose(np.sort(a), np.sort(b), atol=1e-5)
    # Each rotation has its own shuffle.
    assert len({tuple(np.roll(one, -100 * r)) for r, one in enumerate(shuffled)}) == 4


def test_intervals_equal_students_t():
    values = good(9, 1)[:, 0]
    want = scipy.stats.t.interval(0.95, 8, values.mean(), values.std(ddof=1) / 3)
    np.testing.assert_allclose(rotations.student(values)[1:], want)
    one_more = rotations.student(values, prediction=True)
    wide = (one_more.high - one_more.low) / (want[1] - want[0])
    assert wide == pytest.approx(np.sqrt(1 + 9)), "sqrt(1 + 1 / n) over sqrt(1 / n)"


NULL = Interval(0.0, -0.1, 0.1)
LINE = {"limit": Interval(1.2, 1.1, 1.3), "gain": Interval(0.2, 0.1, 0.3), "bend": NULL}
INFO_NCE = Reading("info_nce", "joint", "lower bound", 4.0, Interval(1.0, 0.9, 1.1), NULL)
KSG = INFO_NCE._replace(estimator="ksg", critic="none", label="no bound, no critic")


def test_line_over_inverse_sample_size():
    luck = np.array([0.0, 0.1, -0.1, 0.0])
    straight = 2.0 + luck - 0.3 * np.array([[1.0], [2.0], [4.0]])
    found = rotations.with_line(INFO_NCE, straight)
    assert found.line == pytest.approx((1.7, 1.4, 0.8))
    assert found.limit.value == pytest.approx(2.0)
    assert found.gain == pytest.approx((0.3, 0.3, 0.3))
    assert found.bend == pytest.approx((0, 0, 0), abs=1e-9)
    bent = rotations.with_line(INFO_NCE, straight + np.array([[0.0], [0.5], [0.0]]))
    assert bent.bend == pytest.approx((0.5, 0.5, 0.5))


def test_step_is_chosen_by_training_objective_on_other_rows(monkeypatch):
    steps, batches = jnp.arange(3.0), jnp.ones((3, 4))

    def fake_watch(config, draw, held_out, rng):
        assert [x.shape for x, _ in held_out] == [(100, 1)] * 2
        best = {"info_nce": 0, "js": 1, "smile": 2}
        chosen = {f"separable/{n}": -abs(steps - s)[:, None] * batches for n, s in best.items()}
        objectives = {"separable/js": chosen["separable/js"], "separable/info_nce": batches}
        return (objectives, chosen), ({}, dict.fromkeys(chosen, steps[:, None] * batches))

    monkeypatch.setattr(rotations, "fit_and_watch", fake_watch)
    config = small(seed=77)
    pairs = Pairs(good(400, 1), good(400, 1), ())
    found = rotations.fit(pairs, config, "separable")
    means = {name.split("/")[1]: batches.mean() for name, (_, batches) in found.items()}
    assert means == {"info_nce": 0.0, "js": 1.0, "smile": 1.0}


def test_smaller_fractions_train_on_fewer_rows(monkeypatch):
    drawn, name = [], "separable/info_nce"

    def fake_watch(config, draw, held_out, rng):
        jax.debug.callback(lambda *xy: drawn.append(xy), *draw(rng))
        # The second reading is best on the first batch, the first on all four.
        chooses = {name: jnp.array([[0.0, 9.0, 9.0, 9.0], [1.0] * 4])}
        return ({}, chooses), ({}, {name: jnp.array([[0.0] * 4, [1.0] * 4])})

    monkeypatch.setattr(rotations, "fit_and_watch", fake_watch)
    config = small(seed=79, estimators=("info_nce",), transform="standardize")
    x = np.random.default_rng(0).permutation(404).astype(float)[:, None]
    pairs = Pairs(x, 3 * x + 1, ())
    for fraction, read in ((0.25, 1.0), (1.0, 0.0)):
        drawn.clear()
        found = rotations.fit(pairs, config, "separable", fraction=fraction)
        jax.effects_barrier()
        assert found[name][1].tolist() == [[read] * 4] * 4
        num_train = int(202 * fraction)
        turned, _ = arrays.rotate(x, x, num_train, "standardize")
        known = [set(rows.ravel().tolist()) for rows in turned[:, :num_train]]
        assert len(drawn) == 4
        for x_batch, y_batch in drawn:
            np.testing.assert_allclose(x_batch, y_batch, atol=1e-5)
            rows = set(np.asarray(x_batch).ravel().tolist())
            assert len(rows) == 25
            assert any(rows <= one for one in known)


#: Shared by tests of equal shapes, so that they share compiled programs.
TRAINED = small(max_rows=ROWS, num_steps=120, read_every=60)


def test_claims_are_below_and_estimates_near_the_truth():
    tasks = [TASKS[name] for name in ("1v1-normal-0.75", "half_cube-1v1-normal-0.75")]
    records = [forty_tasks.measure_task(TRAINED, task) for task in tasks]
    for record in records:
        assert 0.2 < record["low"] <= record["truth"], record["task"]
        assert record["state"] == "fine"
        found = {one.estimator: one for one in record["readings"]}
        assert found["ksg"].found.value == pytest.approx(record["truth"], abs=0.1)
        assert found["ksg"].found.low <= record["truth"] <= found["ksg"].found.high
        assert found["info_nce"].ceiling == pytest.approx(np.log(ROWS // 16))
        for one in found.values():
            assert one.null.low <= 0.02, one
            assert one.null.high >= -0.02, one
            assert one.null.high < one.found.low, one
    # Ranks are invariant to increasing maps.
    a, b = (r["readings"][-2].found.value for r in records)
    assert a == pytest.approx(b, abs=1e-6)


def test_independent_arrays_have_no_information():
    readings = rotations.measure(Pairs(good(ROWS, 1), good(ROWS, 1)[::-1], ()), TRAINED, str)
    assert findings.state_of(findings.headline(readings)) == "chance"
    said = findings.claim(readings, ROWS)
    assert said[0].startswith("No information was found: InfoNCE reads ")


@pytest.mark.parametrize(("found", "line", "said"), [
    ((1.0, 0.9, 1.1), {}, "at least 0.90 nats; not saturated; more data would add 0.20"),
    ((3.0, 2.9, 3.1), {}, "near the ceiling of 4.00"),
    ((3.9, 3.8, 4.0), {}, "saturated at the ceiling of 4.00"),
    ((0.3, 0.05, 0.5), {}, "No information was found"),
    ((1.0, 0.9, 1.1), {"gain": Interval(0.1, -0.1, 0.3)}, "add nothing that can be told"),
    ((1.0, 0.9, 1.1), {"gain": Interval(-0.2, -0.3, -0.1)}, "promises nothing"),
    ((1.0, 0.9, 1.1), {"bend": Interval(0.2, 0.1, 0.3)}, "do not quite follow"),
    ((-1e9, -2e9, 0.0), {"gain": NULL}, "InfoNCE diverged on"),
])  # fmt: skip
def test_claim_states_bound_ceiling_and_gain(found, line, said):
    read = INFO_NCE._replace(found=Interval(*found), **{**LINE, **line})
    assert said in findings.claim([read], 1000)[0]


@pytest.mark.parametrize(("value", "is_near"), [(3.99, True), (3.0, True), (1.0, False)])
def test_estimate_at_its_ceiling_is_named_in_the_claim(value, is_near):
    ksg = KSG._replace(found=Interval(value, value - 0.1, value + 0.1))
    known = {"gain": Interval(0.1, -0.1, 0.3), "bend": NULL, "null": Interval(0.1, 0.0, 0.2)}
    for found in (Interval(1.0, 0.9, 1.1), Interval(0.3, 0.05, 0.5)):
        said = findings.claim([INFO_NCE._replace(found=found, **known), ksg], 1000)
        assert any(f"KSG reads {value:.2f} of at most 4.00" in line for line in said) == is_near
        rest = any("not saturated" in line or "more data" in line for line in said)
        assert not (is_near and rest)


NOISE = np.random.default_rng(9).normal(size=(500, 3))
CLASSES = np.random.default_rng(9).integers(0, 4, (500, 1)).astype(float)
ENTROPY = scipy.stats.entropy(np.unique(CLASSES, return_counts=True)[1])


@pytest.mark.parametrize(("x", "y", "words"), [
    (NOISE, NOISE + 1e-9 * good(500, 3), ["if "]),
    (NOISE, np.concatenate([good(500, 2), np.exp(-NOISE[:, 2:])], axis=1),
     ["column 2 of y", "column 2 of x", "without limit"]),
    (NOISE, NOISE @ np.random.default_rng(1).normal(size=(3, 2)), ["linear", "without limit"]),
    (NOISE, np.float32(1e6 * (NOISE[:, :1] + 0.3 * NOISE[:, 1:2])), ["linear", "without limit"]),
    (NOISE[:, :2], np.stack([NOISE[:, 0] + NOISE[:, 2], NOISE[:, 1] + NOISE[:, 2]], 1) @
     [[1.0, 0.3], [-1.0, 0.5]], ["linear", "without limit"]),
    (CLASSES, np.array([2.0, 9.0, 1.0, 5.0])[CLASSES.astype(int)],
     ["one-to-one", f"{ENTROPY:.2f} nats"]),
    (np.eye(4)[CLASSES[:, 0].astype(int)][:, :3] @ np.diag([1.0, 2.0, 3.0]), CLASSES,
     ["linear", f"{ENTROPY:.2f} nats"]),
])  # fmt: skip
def test_deterministic_columns_are_claimed_first(x, y, words):
    identity = arrays.find_identity(x, np.float64(y))
    assert all(word in identity.lower() for word in words), identity
    for found in (INFO_NCE.found, NULL):  # in the second, the bound finds nothing
        read = INFO_NCE._replace(found=found, gain=NULL, bend=NULL)
        said = findings.claim([read], 500, identity)
        assert said[0] == identity
        wrong = ("not saturated", "ore data", "No information")
        assert not any(words in line for words in wrong for line in said)


def test_other_dependence_is_not_an_identity():
    for y in (NOISE**2, NOISE + 1e-3 * good(500, 3), (NOISE > 0).astype(float), CLASSES):
        assert arrays.find_identity(NOISE, y) == ""
    assert arrays.find_identity(CLASSES, np.maximum(CLASSES, 1)) == ""


def test_estimate_above_the_limit_of_rows_or_critic_is_named():
    wild = KSG._replace(found=Interval(30.0, 29.0, 31.0), estimator="smile")
    assert "1,000 rows can pass 18.8 nats" in findings.claim([INFO_NCE, wild], 1000)[-1]
    best = INFO_NCE._replace(**LINE)
    for low, is_above in ((1.4, True), (1.2, False)):
        ksg = KSG._replace(found=Interval(1.5, low, 1.6), ceiling=None)
        said, *_ = findings.claim([best, ksg], 1000)
        assert ("KSG reads 1.50" in said) == is_above
        assert ("more data would add" in said) != is_above


def test_estimates_at_a_ceiling_have_no_interval_and_diverged_ones_no_score():
    pair = INFO_NCE._replace(ceiling=1.02), INFO_NCE
    assert ["(" in nats for nats in findings.reading_table(pair, 1000).frame.nats] == [False, True]
    at, below = findings.to_scores(pair, "a, b", 0, 1000)
    assert (at.low, at.high, at.value) == (None, None, below.value)
    assert below.low is not None
    wild = INFO_NCE._replace(found=Interval(-1e6, -2e6, 0.0), line=(-1e6, 0.0, 0.0))
    assert findings.to_scores([wild], "a, b", 0, 400) == []
    row = findings.reading_table([wild], 400).frame.iloc[0]
    assert (row.nats, row["n / 4, n / 2, n"]) == ("diverged", "0.00, 0.00, diverged")
    (axes,) = findings.estimates_figure([wild]).axes
    assert not axes.get_yticks().size


def test_one_correlated_pair_among_many_columns_is_found(tmp_path):
    """One of 1,600 pairs has rho = 0.9, which is 0.83 nats."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 500, 40))
    noise = read(tmp_path, x, y)
    assert not any("correlation" in said for said in noise.remarks)
    y[:, 7] = np.exp(0.9 * x[:, 3] + np.sqrt(1 - 0.81) * y[:, 7])
    pairs = read(tmp_path, x, y)
    (said,) = [said for said in pairs.remarks if "correlation" in said]
    assert "Columns 3 of x and 7 of y" in said
    rho = np.corrcoef(x[:, 3], np.log(y[:, 7]))[0, 1]
    nats = float(said.split(": ")[1].split()[0])
    assert nats == pytest.approx(-0.5 * np.log(1 - rho**2), abs=0.05)
    (*_, cca) = rotations.read_samples(pairs, small(), print)
    assert cca.estimator == "cca"
    assert cca.found.value == pytest.approx(0.83, abs=0.25)


def test_results_of_other_arrays_are_not_overwritten(tmp_path, monkeypatch):
    report = lambda config, pairs, names, folder: (folder / "information.html").touch()  # noqa: E731
    monkeypatch.setattr(study, "report", report)
    files, folder = write(tmp_path, a=good(), b=good(), c=good()), tmp_path / "run"
    study.run(small(), *files[:2], str(folder))
    with pytest.raises(UserError, match="--workdir"):
        study.run(small(), *files[1:], str(folder))
    study.run(small(), *files[:2], str(folder))
    assert [row.state for row in status.read_all(tmp_path)] == ["finished"]


@pytest.mark.whole
def test_command_writes_page_and_scores(tmp_path, capsys):
    x = good(ROWS, 1)
    paths = write(tmp_path, left=x, right=x + 0.5 * good(ROWS, 2)[:, :1])
    study.run(TRAINED, *paths, str(tmp_path / "run"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"report: {tmp_path / 'run' / 'information.html'}"
    assert any(line.startswith("x and y share at least 0.") for line in lines)
    text = (tmp_path / "run" / "information.md").read_text()
    assert "x: left.npy, 1 columns; y: right.npy, 1 columns; 800 rows." in text
    assert "InfoNCE, separable" in text
    scores = {score.method: score for score in read_scores(tmp_path / "run")}
    trained = {f"{name}, separable" for name in ("info_nce", "js", "smile")}
    assert set(scores) == trained | {"ksg, none", "cca, none"}
    info = scores["info_nce, separable"]
    assert info.low < info.value < info.high
    assert (info.setting, abs(info.chance) < 0.2) == ("lower bound", True)
    assert (tmp_path / "run" / "figures" / "estimates.png").exists()


def test_equal_pairs_disable_nearest_neighbour_estimates():
    said, config = [], small(max_rows=ROWS)
    x = np.random.default_rng(0).integers(0, 2, (400, 1)).astype(float)
    found = rotations.read_samples(Pairs(x, 1 - x, ()), config, said.append)
    assert not found
    assert said[0].startswith("ksg is skipped: more than k = 10 pairs are equal")
    assert said[1].startswith("cca is skipped: a linear combination of the columns of y")


@pytest.mark.parametrize(("key", "value"), [
    ("read_every", 7), ("critics", ()), ("estimators", ("nwj",)), ("shuffles", 1),
    ("read_size", 4), ("max_rows", 100),
])  # fmt: skip
def test_invalid_values_are_rejected(key, value):
    with pytest.raises(UserError, match=key):
        study.check(with_settings(configs.arrays.get_config(), {key: value}))
