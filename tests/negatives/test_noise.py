"""Noise distributions against other implementations' and closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpc import negatives
from cpc.types import UserError
from tests.goldens.goldens import load_golden

SAMPLER_META, SAMPLERS = load_golden("tf_samplers.json")
DRAWN = [name for name, (_, _, out) in SAMPLERS.items() if "prob_float64" in out]
ALPHA_META, ALPHAS = load_golden("alpha_smoothing.json")


def noise(params, inputs):
    if params["sampler"] == "fixed_unigram":
        reserved = np.zeros(params["num_reserved_ids"])
        return negatives.unigram(
            np.concatenate([reserved, inputs["unigrams"]]), params["distortion"]
        )
    return getattr(negatives, params["sampler"])(params["range_max"])


def test_goldens_are_covered():
    assert len(DRAWN) == 20, "all but the sampler of every class and the masks of hits"


@pytest.mark.parametrize("name", DRAWN)
def test_equals_other_samplers(name):
    params, inputs, expected = SAMPLERS[name]
    tolerance = SAMPLER_META["tolerance"]
    q = noise(params, inputs)
    assert q.sum() == pytest.approx(1.0, abs=1e-14)
    q = q[inputs["class_ids"]]
    np.testing.assert_allclose(q, expected["prob_float64"], rtol=tolerance["prob_float64_rtol"])
    tries = params["num_tries"]
    rejected = params["unique"] and tries > params["num_sampled"]
    np.testing.assert_allclose(
        negatives.expected_count(q, tries, unique=rejected),
        expected["expected_count"],
        rtol=tolerance["vs_float32_source_rtol"],
    )


def test_expected_count_is_what_samples_hold():
    rng = np.random.default_rng(0)
    q = negatives.probabilities(np.array([5.0, 3.0, 1.0, 1.0]))
    draws = rng.choice(4, size=(20_000, 3), p=q)
    counts = (draws[:, :, None] == np.arange(4)).sum(1)
    for unique, seen in ((False, counts), (True, counts > 0)):
        error = 4 * seen.std(0) / np.sqrt(len(seen))
        expected = negatives.expected_count(q, 3, unique=unique)
        assert (np.abs(seen.mean(0) - expected) < error).all()


@pytest.mark.parametrize("name", ALPHAS)
def test_alpha_of_a_mass(name):
    _, inputs, expected = ALPHAS[name]
    counts, minority = np.array(inputs["freq"]), np.array(inputs["minority"])
    mask = np.isin(np.arange(len(counts)), minority)
    close = {"abs": ALPHA_META["tolerance"]["alpha_atol"], "rel": 0}
    for alpha, mass in zip(inputs["alpha_grid"], expected["mass_grid"], strict=True):
        found = negatives.unigram(counts, alpha)[minority].sum()
        assert found == pytest.approx(mass, rel=ALPHA_META["tolerance"]["mass_rtol"])
    refused = 0
    for i, target in enumerate(inputs["t"]):
        free = negatives.solve_alpha(counts, mask, target, low=-2, high=3)
        assert free == pytest.approx(expected["alpha_unbounded"][i], **close)
        if expected["alpha"][i] is None:
            with pytest.raises(UserError, match="out of reach: alpha from 0"):
                negatives.solve_alpha(counts, minority, target)
            refused += 1
        else:
            alpha = negatives.solve_alpha(counts, minority, target)
            assert alpha == pytest.approx(expected["alpha"][i], **close)
    assert refused > 0


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 10**6), min_size=2, max_size=30),
    st.integers(1, 29),
    st.floats(0.0, 1.0),
)
def test_solved_alpha_gives_the_mass(counts, num_rare, share):
    counts = np.sort(counts)
    rare = np.arange(min(num_rare, len(counts) - 1))
    least, most = (negatives.unigram(counts, a)[rare].sum() for a in (1, 0))
    target = least + share * (most - least)
    alpha = negatives.solve_alpha(counts, rare, target)
    assert 0 <= alpha <= 1
    assert negatives.unigram(counts, alpha)[rare].sum() == pytest.approx(target, rel=1e-12)


def test_alpha_zero_is_uniform_over_what_was_seen():
    counts = np.array([7, 0, 1, 100])
    np.testing.assert_allclose(negatives.unigram(counts, 0), [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-15)
    assert negatives.unigram(counts, -1)[1] == 0
    corpus = negatives.probabilities(counts)
    np.testing.assert_allclose(negatives.unigram(counts, 1), corpus, rtol=1e-14)


@pytest.mark.parametrize("scale", [1e308, 1.0, 1e-320])
def test_scale_of_the_weights_does_not_matter(scale):
    weights = np.array([1.0, 0.5, 1.5, 0.0]) * scale
    expected = [1 / 3, 1 / 6, 1 / 2, 0]
    np.testing.assert_allclose(negatives.probabilities(weights), expected, rtol=1e-3)


@pytest.mark.parametrize(("weights", "match"), [
    ([1.0, -2.0], "class 1 is -2.0"),
    ([np.nan, 1.0], "class 0 is nan"),
    ([0.0, 0.0], "all weights are 0"),
    ([[1.0, 2.0]], "shape"),
])  # fmt: skip
def test_bad_weights_are_named(weights, match):
    for make in (negatives.probabilities, lambda weights: negatives.unigram(weights, 1.0)):
        with pytest.raises(UserError, match=match):
            make(np.array(weights))


def test_bad_numbers_are_named():
    for make in (negatives.uniform, negatives.log_uniform):
        with pytest.raises(UserError, match="one number a class"):
            make(0)
    for minority, match in (
        (np.array([], int), "0 of 3 classes"),
        (np.array([0, 1, 2]), "3 of 3 classes"),
        (np.array([0]), "count 4 and another class only 1"),
    ):
        with pytest.raises(UserError, match=match):
            negatives.solve_alpha(np.array([4, 2, 1]), minority, 0.3)
    with pytest.raises(UserError, match="alpha is nan"):
        negatives.unigram(np.array([1, 2]), float("nan"))
    with pytest.raises(UserError, match="one draw is 1"):
        negatives.expected_count(1.5, 3, unique=False)
    with pytest.raises(UserError, match="num_draws is -1"):
        negatives.expected_count(0.5, -1, unique=True)
    with pytest.raises(UserError, match=r"0\.6 is out of reach: .* gives 0\.1 to 0\.5"):
        negatives.solve_alpha(np.array([9, 1]), np.array([1]), 0.6)


def test_the_ends_of_the_interval_are_attained_but_for_rounding():
    counts, rare = np.array([70, 11, 5, 3]), np.array([2, 3])
    least, most = (negatives.unigram(counts, alpha)[rare].sum() for alpha in (1, 0))
    assert negatives.solve_alpha(counts, rare, np.nextafter(least, 0)) == pytest.approx(1.0)
    assert negatives.solve_alpha(counts, rare, np.nextafter(most, 1)) == pytest.approx(0, abs=1e-9)
