"""Tests of a reproduction's verdicts, statistics and page."""

import itertools
import json
import math
import pathlib

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from configs.audio import KEYS
from configs.keys import make_config
from cpc.evaluate import bootstrap_interval
from cpc.files import plain, write_arrays, write_json
from cpc.report.engine import cells as shown
from cpc.results import Difference, Outcomes, Run, Score, over_seeds, score_frame, write_scores
from cpc.results.run import make_frames
from cpc.types import UserError
from experiments.command.run_dir import record_state
from experiments.kinds.paper import TABLE_2_NEGATIVES, TABLE_2_STEPS
from experiments.kinds.text.probes import make_score
from experiments.reproduce import cells, page
from experiments.reproduce import statistics as st
from experiments.reproduce.claims import NEGATIVE_CELLS, TABLES, TASKS
from experiments.reproduce.page import write_reproduction
from experiments.reproduce.statistics import HELD, MISSING, ONE_SEED, REFUTED, UNDECIDED, UNTOLD
from tests.fake_run import draw_nothing, write_records

Finding = st.Finding
STEPS, NEGATIVES = (t for t in TABLES if t.number == "2")
OFFSETS = list(range(1, 21))
PLAN = {
    "scale": "small", "data": "voices", "seeds": 1, "size": "9 runs", "hardware": "2 cores",
    "parts": ["table 1", "table 2", "table 3", "table 5", "figure 2", "figure 3", "figure 5",
              "bound"],
    "open": [
        {"kind": "audio", "what": "norm", "choice": "none", "cell": "open-norm", "change": "layer"},
        {"kind": "audio", "what": "dropout", "choice": "none", "cell": "", "change": ""},
    ],
}  # fmt: skip
IMAGES = {"data": "shapes", "task": "classes", "unit": "image"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    draw_nothing(monkeypatch)


def probe(features, accuracy, half, method="linear", data="voices", task="phones", unit="frame"):
    interval = {"low": accuracy - half, "high": accuracy + half}
    return Score(task, data, unit, features, method, "accuracy", accuracy, **interval, chance=0.125)


def record(bound, is_bound=False, offsets=OFFSETS, **more):
    k = np.array(offsets)
    return {
        "step": 20, "split": "test", "rule": "batch", "is_bound": is_bound, "offsets": offsets,
        "n": [64.0] * len(k), "log_n": [math.log(64)] * len(k), "bound": list(bound - k / 50),
        "acc_top1": list(0.9 - k / 40), "acc_pairwise": list(1 - k / 100),
        "state": ["fine"] * len(k),
        **({"series": "strict", "rule": "one_per_sequence"} if is_bound else {}), **more,
    }  # fmt: skip


def make_run(records, scores=(), seed=0, num_steps=20):
    """A run that was never written."""
    metrics, offsets = make_frames(records)
    scores = score_frame([score._replace(step=20) for score in scores])
    config = {"seed": seed, "num_steps": num_steps}
    return Run(pathlib.Path(), config, {}, metrics, offsets, scores, None, None, [], [])


def frame_of(cells):
    """Scores of cells as a reproduction reads them."""
    rows = [(cell, score) for cell, scores in cells.items() for score in scores]
    return score_frame([score for _, score in rows]).assign(cell=[cell for cell, _ in rows])


def paper_like(half=0.005, shift=0.0, **changed):
    """Scores of cells with the paper's own accuracies, except for the given changes."""
    of_steps = {f"steps-{k}": a for k, a in TABLE_2_STEPS.items() if k != 12}
    percents = dict(zip(NEGATIVE_CELLS, TABLE_2_NEGATIVES.values(), strict=True))
    percents = {**percents, **of_steps, **changed}
    known = {cell: [probe("c", a / 100 + shift, half)] for cell, a in percents.items() if a}
    return frame_of({cell: with_seeds(scores) for cell, scores in known.items()})


def with_seeds(scores):
    return [score._replace(seed=seed) for score in scores for seed in range(3)]


def verdicts(scores, table=NEGATIVES):
    return verdicts_of(st.read_result(scores, table, "voices"))


def verdicts_of(result):
    """The verdict on each claim, before Holm's correction."""
    claims = result.pairs.groupby("claim", sort=False)
    return {claim: st.join([*rows.verdict]) for claim, rows in claims}


def reproduction_of(scores, waiting=(), **plan):
    return st.Reproduction({**PLAN, **plan}, {}, scores, [], list(waiting))


OWN = "leaving out the own sequence hurts"
SAME = "negatives of the same speaker help phones"
EQUAL = "same speaker without the own sequence equals mixed speaker with it"


def test_orders_that_hold_do_not_hold_or_cannot_be_told():
    scores = paper_like(half=0.0005, shift=-0.2)  # the paper's own; orders know no level
    assert {*verdicts(scores).values(), *verdicts(scores, STEPS).values()} == {HELD}
    found = verdicts(paper_like(**{"mixed-excl": 70.0}))
    assert found[OWN] == found[SAME] == REFUTED  # 70.0 also exceeds 64.6 of the same speaker
    wide = paper_like(half=0.02)  # 64.6 and 65.5, each +- 2, and too wide to be called equal
    assert verdicts(wide)[SAME] == verdicts(wide)[EQUAL] == UNTOLD
    # 63.6 and 64.6, though 28.5 << 57.6
    assert verdicts(wide, STEPS)["more offsets help, up to 12"] == UNTOLD
    assert verdicts(paper_like(half=0.0005))[EQUAL] == HELD
    assert verdicts(paper_like(half=0.001, **{"same-excl": 60.0}))[EQUAL] == REFUTED
    scores = paper_like(half=0.0005, same=None)  # a missing cell leaves its claims unmeasured
    assert [verdicts(scores)[claim] for claim in (OWN, EQUAL)] == [MISSING, HELD]
    assert st.read_result(scores, NEGATIVES, "voices").rows.seeds.tolist() == [3, 0, 3, 3, 3]
    joined = [st.join([HELD, UNTOLD, *more]) for more in ([], [MISSING], [MISSING, REFUTED])]
    assert joined == [UNTOLD, MISSING, REFUTED]


def answers(right, seed=0):
    """A score with one binary outcome per item."""
    low, high = bootstrap_interval(right, np.ones(len(right), int))
    score = probe("c", float(right.mean()), 0.0)._replace(low=low, high=high, seed=seed)
    return score._replace(outcomes=Outcomes(right, items="test"))


def pair(wins, level=600, count=1000):
    """Two rows that are right on the first items, one of them on more items, by seed."""
    number, wins = np.arange(count), [*enumerate(wins)]
    return (
        score_frame([answers(number < level + n, seed) for seed, n in wins]),
        score_frame([answers(number < level, seed) for seed, _ in wins]),
    )


def test_one_test_item_tells_nothing():
    scores = {"mixed": [answers(np.array([True]))], "mixed-excl": [answers(np.array([False]))]}
    result = st.read_result(frame_of(scores), NEGATIVES, "voices")
    assert result.pairs.verdict[0] == ONE_SEED
    rows = shown(page.table_section(PLAN, result).tables[1])
    assert not any("nan" in cell for row in rows for cell in row)


def test_leads_are_in_points_and_of_the_seeds_that_both_rows_have():
    ours, theirs = pair([20, 100, -30])
    for count, paired, value in ((3, "seeds and items", 3.0), (1, "items", 2.0), (0, "", math.nan)):
        over, number = st.lead(ours[:count], theirs[:count])
        assert (over.paired, number) == (paired, count)
        assert over.value == pytest.approx(value, nan_ok=True)
    assert st.lead(ours, theirs.assign(seed=[7, 8, 9]))[1] == 3
    assert st.lead(ours, theirs[:1])[1] == 1  # a seed that both have does not stand for three


def test_p_values_are_those_of_the_t_test_and_agree_with_verdicts():
    rng = np.random.default_rng(0)
    for seeds, relation in itertools.product((2, 3, 10), ("<", "=", "no gain")):
        for values in rng.normal(rng.normal(0, 3, (60, 1)), 1, (60, seeds)):
            over = over_seeds(values.tolist())
            _, word, p, *_ = st.judge_claim("", over, seeds, 1.0, relation, equal=2.0)
            assert word == st.judge_pair(over, relation, 2.0)
            assert (p < 0.05) == (word != UNTOLD)
            if relation == "<":
                assert p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-6)
            if word == HELD and relation != "<":  # two one-sided tests
                sides = [stats.ttest_1samp(values, edge, alternative=side).pvalue
                         for edge, side in ((-2, "greater"), (2, "less"))]  # fmt: skip
                assert p == pytest.approx(2 * max(sides), rel=1e-6)
    assert st.judge_claim("", over, 1, 1.0).verdict == ONE_SEED
    unknown = st.judge_claim("", Difference(math.nan, math.nan, math.nan), 3, 1.0)
    assert unknown[1:3] == (UNTOLD, 1.0)


def test_power_is_that_of_noncentral_t_and_of_simulated_seeds():
    for seeds, deviation, effect in itertools.product((2, 3, 10), (0.5, 2.5), (0.0, 1.0, 4.0)):
        half = stats.t.ppf(0.975, seeds - 1) * deviation / seeds**0.5
        over, ratio = Difference(0.3, 0.3 - half, 0.3 + half), effect / (deviation / seeds**0.5)
        expected = stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, ratio)
        assert st.power(over, seeds, effect) == pytest.approx(expected, abs=1e-4)
        drawn = np.random.default_rng(0).normal(0, deviation, (20_000, seeds))
        width = half / deviation * drawn.std(axis=1, ddof=1)
        equal = (abs(drawn.mean(axis=1)) + width < 2.0).mean()
        assert st.power(over, seeds, 0.0, 2.0) == pytest.approx(equal, abs=0.015)
    assert math.isnan(st.power(over, 1, 1.0))
    assert st.power(Difference(0.3, 0.3, 0.3), 3, 1.0) == 1.0


def test_holm_takes_back_verdicts_from_the_first_p_above_its_level():
    for p_values in np.random.default_rng(0).uniform(0, 0.05, (200, 6)) ** 1.5:
        words = [HELD, st.HARMS, REFUTED] * 2
        found = [Finding("", word, p) for word, p in zip(words, p_values, strict=True)]
        others = [Finding("", MISSING), Finding("", UNTOLD, 1.0), Finding("", ONE_SEED)]
        corrected = st.correct([*others, *found])
        assert corrected[:3] == others
        ordered = np.array([*sorted(p_values), 1.0])  # the last is undecided
        first = ordered[(ordered > 0.05 / np.arange(7, 0, -1)).argmax()]
        wanted = [word if p < first else UNDECIDED for word, p in zip(words, p_values, strict=True)]
        assert [one.verdict for one in corrected[3:]] == wanted


@pytest.mark.parametrize(("pairs", "word", "p"), [
    ([(HELD, 0.001), (HELD, 0.04)], HELD, 0.04), ([(REFUTED, 0.04)], REFUTED, 0.04),
    ([(REFUTED, 0.04), (HELD, 0.001)], UNDECIDED, 0.08),
    ([(REFUTED, 0.02), (REFUTED, 0.04), (UNTOLD, 1.0)], UNDECIDED, 0.06),
    ([(HELD, 0.001), (UNTOLD, 1.0)], UNTOLD, 1.0),
    ([(HELD, 0.001), (ONE_SEED, math.nan)], ONE_SEED, math.nan),
])  # fmt: skip
def test_any_pair_refutes_and_all_must_hold(pairs, word, p):
    rows = [(OWN, *pair, 0.5) for pair in pairs]
    frame = pd.DataFrame(rows, columns=pd.Index(["claim", "verdict", "p_value", "power"]))
    result = st.Result(NEGATIVES, "en", frame[:0], frame, None)
    (found,) = st.read_findings(reproduction_of(frame_of({}), parts=["table 2"]), [result])
    assert (found.verdict, found.p_value) == (word, pytest.approx(p, nan_ok=True))
    assert not found.data  # the only set is not named


def test_a_claim_names_the_sets_on_which_it_holds():
    rows = {"mixed": 0.6, "mixed-excl": 0.5, "same": 0.6, "same-excl": 0.5}
    scores = {
        cell: [*with_seeds([probe("c", a, 0.001, data="en")]), probe("c", a, 0.001, data="ru")]
        for cell, a in rows.items()
    }
    found = reproduction_of(frame_of(scores), parts=["table 2", "figure 3"], waiting=["current"])
    more = [Finding("agents: x", HELD, 1e-9, 0.5)]
    held, *others = st.verdict(found, st.read_results(found), more)
    assert held.startswith("Held: ")
    assert f"phones: {OWN} (en, power 100 %)" in held
    assert held.endswith("agents: x (power 50 %).")
    starts = {one.split(" (")[0].split(":")[0]: one for one in others}
    assert "Figure 3" in starts["Not measured"]
    assert f"{OWN} (ru)" in starts["One seed"]
    assert others[-1].endswith(": current.")


def test_tau_is_scipys():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, (40, 7)).astype(float)  # with many ties
    y = rng.integers(0, 4, 7).astype(float)
    expected = [stats.kendalltau(row, y).statistic for row in x]
    np.testing.assert_allclose(st.kendall_tau(x, y), expected, atol=1e-12)
    assert np.isnan(st.kendall_tau(np.zeros(3), np.arange(3.0)))


def agreement(theirs, ours, half):
    ends = {"low": np.subtract(ours, half), "high": np.add(ours, half)}
    return st.order_agreement(pd.DataFrame({"paper": theirs, "value": ours, **ends}))


def test_agreement_with_the_paper_and_its_exact_p():
    theirs = [28.5, 57.6, 63.6, 63.8, 64.6]
    tau = agreement(theirs, [1.0, 2.0, 3.0, 4.0, 5.0], 0.01)
    assert tau[:3] == (1.0, 1.0, 1.0)
    assert tau.p_value == pytest.approx(1 / math.factorial(5))  # one order of 120 agrees as well
    values = [2.0, 1.0, 3.0, 5.0, 4.0]
    tau = agreement(theirs, values, 0.0)
    taus = [stats.kendalltau(order, theirs).statistic for order in itertools.permutations(values)]
    assert tau.value == pytest.approx(0.6)
    assert tau.p_value == pytest.approx(np.mean(np.array(taus) >= 0.6 - 1e-9))
    wide = agreement(theirs, values, 50)
    assert wide.low < -0.5 < 0.8 <= wide.high
    assert agreement([*theirs[:2], math.nan], [*values[:2], 7.0], 0.0) is None
    equal = agreement(theirs[:3], [1.0] * 3, 0.1)
    assert np.isnan([*equal[:3], equal.p_value]).all()
    assert UNTOLD in page.order_sentence(equal)


def offsets_of(*top1, **more):
    """Figure 3 of a run for each list of accuracies by offset."""
    runs = [
        make_run([record(1.0, acc_top1=[float(value) for value in values], **more)], seed=seed)
        for seed, values in enumerate(top1)
    ]
    return st.read_offsets(runs)


def test_offsets_fall_rise_waver_or_are_flat():
    falling, late = 0.9 - np.array(OFFSETS) / 40, strict_run(1, num_steps=40)
    found = offsets_of(falling)
    assert (found.finding.verdict, found.tau) == (ONE_SEED, -1.0)
    for values, state, word in (
        (np.arange(20) / 40, "fine", REFUTED), (np.arange(20) % 2, "fine", UNTOLD),
        (np.full(20, 0.5), "fine", UNTOLD), (falling, "chance", UNTOLD),
    ):  # fmt: skip
        state = [state] * 18 + ["fine"] * 2
        assert offsets_of(values, values, state=state).finding.verdict == word
    assert st.read_offsets([late]) is None
    assert not len(st.final_scores(late))
    found = offsets_of(falling, falling - 0.1)
    assert found.finding[1::2][:2] == (HELD, 1.0)
    assert found.finding.p_value < 1e-9
    value, low, high = found.frame["acc_top1 %"][0]
    assert value == pytest.approx(82.5)
    half = 12.7062 * np.std([0.775, 0.875], ddof=1) / 2**0.5  # Student's, one degree of freedom
    assert value - low == pytest.approx(100 * half, rel=1e-5)
    assert high == 100.0  # accuracies are at most 100 %
    found = offsets_of(falling, 0.01 * np.arange(20))  # one rises, where the mean falls
    assert (found.tau, *found.finding[1:3]) == (-1.0, UNTOLD, 1.0)


def strict_run(number, offsets=OFFSETS, n=64.0, bound=None, **more):
    bound = 1.0 + 0.1 * number if bound is None else bound
    strict = record(bound, is_bound=True, offsets=offsets, n=[n] * len(offsets))
    train = {"step": 20, "split": "train", "rule": "batch", "seconds": 1.0}
    records = [train, record(bound, offsets=offsets), strict]
    return make_run(records, [probe("c", 0.5 + 0.05 * number, 0.005)], **more)


def test_bound_and_probe_over_shared_offsets_of_5_and_more():
    runs = {f"c{number}": [strict_run(number)] for number in range(6)}
    runs["c0"] = [strict_run(0, offsets=[1, 2, 6, 8])]  # the others are compared at the last two
    runs["c1"] = [strict_run(1, n=61.0)]  # as another seed's may be
    runs["c5"] = [strict_run(5, n=8.0, bound=9.0)]  # another N does not compare
    runs["near"] = [strict_run(9, offsets=[1, 2])]  # does not narrow the offsets of the others
    runs["late"] = [strict_run(7, num_steps=40)]  # not at its end
    points, *others = st.bound_and_probe(runs, NEGATIVES)
    assert others == [[6, 8], 1, 1]
    assert points.cell.tolist() == [*runs][:5]
    assert set(points.data) == {"voices"}
    np.testing.assert_allclose(points.nats, 0.86 + 0.1 * np.arange(5))
    nothing = st.bound_and_probe({"near": runs["near"]}, NEGATIVES)
    assert (len(nothing.points), *nothing[1:]) == (0, [], 1, 0)
    tau = st.rank_correlation(points.nats, points.percent)
    assert tau.value == pytest.approx(1.0)
    assert tau.p_value == pytest.approx(2 / math.factorial(5))
    assert st.rank_correlation(points.nats[:3], points.percent[:3]) is None
    assert st.rank_correlation(-points.nats, points.percent).high < 0


@pytest.mark.parametrize(("parts", "cell", "measured"), [
    (["table 3", "table 4"], "image", [[40.0, 30.0], [75.0, 50.0]]),
    (["table 5"], "text", [[75.0, 55.0]] * 3),
])  # fmt: skip
def test_rows_of_tables_3_to_5(parts, cell, measured):
    """Table 4 has the accuracy of the five best."""
    scores = [probe(name, value, 0.01, **IMAGES)._replace(metric=metric)
              for metric, *pair in (("accuracy", 0.4, 0.3), ("top-5 accuracy", 0.75, 0.5))
              for name, value in zip(("z", "random z"), pair, strict=True)]  # fmt: skip
    if cell == "text":
        scores = text_scores()
    tables = st.read_results(reproduction_of(frame_of({cell: with_seeds(scores)}), parts=parts))
    found = [one.rows.value[["CPC", "random initialization"]].tolist() for one in tables]
    assert found == measured
    for one in tables:
        held = {word for claim, word in verdicts_of(one).items() if "untrained" in claim}
        assert held == {HELD}
    if cell == "text":
        assert [one.rows.paper["CPC"] for one in tables[:2]] == [76.9, 80.1]


def text_scores():
    """Scores of trained and untrained features on the sentence tasks of Table 5."""
    tasks = (("movies", "sentence", "z"), ("products", "sentence", "z"),
             ("next", "sentence within document", "c"))  # fmt: skip
    found = []
    for task, unit, own in tasks:
        for name, right in (("", 750), ("random ", 550)):
            outcomes = Outcomes(np.arange(1000) < right, np.ones(1000, int), items=task)
            score = make_score(task, "books", name + own, outcomes, 0.5, "")
            found.append(score._replace(unit=unit, step=20))
    return found


def lines(table):
    """The texts of a table's rows, under their heads."""
    return [dict(zip(table.frame.columns, row, strict=True)) for row in shown(table)]


def test_what_is_open_is_compared_with_its_own_base():
    names = {"open-norm": "layer", "open-clip": "1.0", "image-gru": "gru", "": "no key varies it"}
    choices = [
        {"what": n, "choice": "", "cell": n, "change": c, "kind": cells.KIND_OF.get(n, "audio")}
        for n, c in names.items()
    ]
    scores = {"mixed": [probe("c", 0.5, 0.03)], "open-norm": [probe("c", 0.6, 0.04)],
              "image": [probe("z", 0.8, 0.01, **IMAGES)],
              "image-gru": [probe("z", 0.7, 0.01, **IMAGES)]}  # fmt: skip
    audio, image = page.open_section(reproduction_of(frame_of(scores), open=choices)).tables
    assert [[*row.values()][2:] for row in lines(audio)] == [
        ["layer", "60.0 (56.0 to 64.0)", "+10.0 (+5.0 to +15.0)"],
        ["1.0", "–", "–"], ["no key varies it", "", ""],
    ]  # fmt: skip
    assert [*image.frame][3:] == ["classes %, shapes", "over image, shapes"]
    assert [*lines(image)[0].values()][3:] == ["70.0 (69.0 to 71.0)", "−10.0 (−11.4 to −8.6)"]


def test_a_table_at_the_papers_size_and_a_training_that_its_steps_ended():
    result = st.read_result(paper_like(shift=0.01), STEPS, "voices")
    rows = lines(page.table_section({"scale": "paper"}, result).tables[0])
    assert (rows[3]["ours %"], rows[3]["ours − paper"]) == ("65.6 (65.1 to 66.1)", "+1.0")
    for words, is_named in (("best at step 9 of 20, the most", True), ("best at step 9", False)):
        ended = frame_of({"mixed": [probe("supervised", 0.7, 0.01)._replace(setting=words)]})
        result = st.read_result(ended, TABLES[0], "voices")
        note = page.table_section(PLAN, result).tables[0].note
        assert ("Ended by its number of steps" in note) == is_named


POINTS = 11
NOISE = (-0.02, 0.0, 0.03)


def agent_run(seed, level, last=POINTS):
    """A run whose returns rise by 0.2 around a level: `level` is the area under its curve."""
    records = [
        {"step": 20 * i, "num_steps": 20 * POINTS, "split": "train", "seconds": 1.0 * i,
         "frames": 6400 * i, "return": level + 0.2 * ((i - 1) / (POINTS - 1) - 0.5)}
        for i in range(1, last + 1)
    ]  # fmt: skip
    return make_run(records, seed=seed)._replace(config={"seed": seed})


def learned_of(gain, seeds=3, last=POINTS):
    """Each task, of which CPC's area is higher by `gain`, except for the noise of a seed."""
    arms = [], []
    for seed in range(seeds):
        own = 10 * NOISE[seed]  # of both arms: it cancels
        arms[0].append(agent_run(seed, -0.5 + own))
        arms[1].append(agent_run(seed, -0.5 + own + gain + NOISE[seed], last))
    curves = [st.read_curves(runs) for runs in arms]
    return [st.compare_arms(task, *curves) for task in TASKS]


@pytest.mark.parametrize(("gain", "seen", "visible"), [
    (0.3, HELD, REFUTED), (0.0, UNTOLD, HELD), (-0.3, REFUTED, st.HARMS), (0.09, HELD, UNTOLD),
])  # fmt: skip
def test_claims_on_agents(gain, seen, visible):
    """Helps is higher by an interval above 0, does not matter by one within 0.1."""
    found = learned_of(gain)
    assert [one.finding.verdict for one in found] == [seen, visible, visible]
    one = found[0]
    assert (one.seeds, one.over.value) == (3, pytest.approx(gain + np.mean(NOISE)))
    half = 4.302653 * np.std(NOISE, ddof=1) / 3**0.5  # Student's, of the pairs alone
    assert one.over.high - one.over.value == pytest.approx(half)
    assert one.areas[0].value == pytest.approx(-0.5 + 10 * np.mean(NOISE))
    if gain == 0.3:
        (row, *_) = lines(page.agents_section(found).tables[0])
        assert (row["with − without"], row["verdict"]) == ("+0.30 (+0.24 to +0.37)", HELD)
        # With one seed, or with unfinished training.
        few, going_on = learned_of(gain, seeds=1), learned_of(gain, last=POINTS - 1)
        assert [(one.finding.verdict, one.seeds) for one in few] == [(ONE_SEED, 1)] * 3
        assert [(one.finding.verdict, one.seeds) for one in going_on] == [(MISSING, 0)] * 3


def write_cell(folder, name, accuracy=None, more=(), bound=1.0):
    """Write a cell of seed 0 and add it to the folder's plan."""
    path = folder / f"{name},seed=0"
    path.mkdir(parents=True)
    config = plain(make_config(KEYS)) | {"seed": 0, "num_steps": 20}
    write_json(path / "config.json", config)
    train = {"step": 20, "split": "train", "rule": "batch", "seconds": 1.0}
    write_records(path, [train, record(bound), record(bound, is_bound=True)])
    scores = [*([probe("c", accuracy, 0.005)] if accuracy is not None else []), *more]
    if scores:
        write_scores(path, [score._replace(step=20) for score in scores])
    return path


def write_plan(folder, names, **changed):
    plan = {"reproduction": {**PLAN, **changed}, "cells": {f"{name},seed=0": {} for name in names}}
    folder.mkdir(exist_ok=True)
    write_json(folder / "sweep.json", plan)


def write_whole(folder):
    """Write a folder in which every part of the page has something to show."""
    image = {"image": 0.5, "image-gru": 0.4}
    percents = dict(zip(NEGATIVE_CELLS, TABLE_2_NEGATIVES.values(), strict=True))
    percents |= {f"steps-{k}": a for k, a in TABLE_2_STEPS.items() if k != 12}
    write_plan(folder, (*percents, "open-norm", "steps-20", "text", *image))
    more = [probe("random c", 0.3, 0.01), probe("mfcc", 0.4, 0.01),
            probe("c", 0.7, 0.01, "hidden"), probe("supervised", 0.746, 0.01)]  # fmt: skip
    for name, percent in percents.items():
        write_cell(folder, name, percent / 100, more=more if name == "mixed" else ())
    write_cell(folder, "open-norm", 0.7, bound=2.0)
    write_cell(folder, "steps-20")
    write_cell(folder, "text", more=text_scores())
    for name, accuracy in image.items():
        write_cell(folder, name, more=[probe("z", accuracy, 0.01, **IMAGES)])
    mixed = folder / "mixed,seed=0"
    (mixed / "probes").mkdir()
    speaker = np.arange(40) % 2
    features = np.random.default_rng(0).standard_normal((40, 3)) + 9 * speaker[:, None]
    write_arrays(
        mixed / "probes" / "speaker_map.npz", features=features.astype(np.float32),
        speaker=speaker, names=np.array(["<b>&\"'ana", "bo"]),
    )  # fmt: skip
    (folder / "bound.json").write_text("{")  # a file of earlier versions


def test_the_whole_page(tmp_path):
    write_whole(tmp_path)
    plan = json.loads((tmp_path / "sweep.json").read_text())
    plan["reproduction"]["open"][0]["what"] = "<i>norm</i>"
    (tmp_path / "sweep.json").write_text(json.dumps(plan))
    text = write_reproduction(tmp_path).read_text()
    assert not any(tag in text for tag in ("<i>", "<b>&", "\"'ana"))
    found = json.loads((tmp_path / "reproduction.json").read_text())["sections"]
    found = {section["title"]: section for section in found}
    phones = found["Table 1: phones by frame, voices"]["tables"]
    rows = {row["row"]: row["ours %"] for row in phones[0]["rows"]}
    assert rows["supervised, same architecture"] == [74.6, 73.6, 75.6]
    assert rows["chance (the largest class)"] == [12.5, None, None]
    assert {row["verdict"] for row in phones[1]["rows"]} == {ONE_SEED}
    assert not any(row["seeds"] for row in found["Table 1: speakers by frame"]["tables"][0]["rows"])
    others = found["Comparison with the paper"]["tables"][0]["rows"]
    assert next(row["MR"] for row in others if row["method"] == "here: z") == 75.0
    assert found["Figure 2: what c knows of speakers"]["figures"] == ["speakers"]
    assert all(percent in text for percent in ("100.0 % of", "48.7 % by"))  # 20 of either speaker
    (far,) = found["Figure 3: how often the positive wins, by offset"]["tables"]
    assert [row["offset"] for row in far["rows"]] == OFFSETS
    assert far["rows"][0]["acc_top1 %"] == [87.5, None, None]
    choices = found["What the paper leaves open"]["tables"][0]["rows"]
    assert choices[0]["over mixed, voices"][0] == 5.4  # mixed has 64.6
    figures = ("bound_and_probe.png", "offsets.png", "speakers.png")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {*figures}


def test_what_is_absent_failed_or_damaged_is_said_once(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": {}}))
    with pytest.raises(UserError, match="not contain a reproduction"):
        write_reproduction(tmp_path)
    write_plan(tmp_path, ["mixed", "steps-20", "image"])
    write_reproduction(tmp_path)
    found = st.read_reproduction(tmp_path)
    assert found.waiting == ["mixed", "steps-20", "image"]
    words = {word for one in st.read_results(found) for word in verdicts_of(one).values()}
    assert words == {MISSING}
    write_plan(tmp_path, ["mixed", "same"])
    path = write_cell(tmp_path, "mixed", 0.5)
    (path / "metrics.jsonl").write_text("{\n" + (path / "metrics.jsonl").read_text())
    (tmp_path / "same,seed=0").mkdir()
    failure = {"error": "no room", "command": "python -m experiments.train"}
    record_state(tmp_path / "same,seed=0", "failed", **failure)
    found = st.read_reproduction(tmp_path)
    damage, failed = found.problems
    assert "metrics.jsonl" in damage
    assert all(word in failed for word in ("same,seed=0", *failure.values()))
    assert not found.waiting
    assert {damage, failed} <= {*st.verdict(found, [])}
