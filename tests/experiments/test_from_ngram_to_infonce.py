"""The study of words: figures of small sizes agree with theory, and make a page."""

import json

import numpy as np
import pytest
import scipy.sparse

from cpc.data.words import WordStream
from cpc.files import seal, write_json
from experiments.studies.from_ngram_to_infonce import __main__ as study
from experiments.studies.from_ngram_to_infonce import (
    cost,
    fit,
    limits,
    perplexity,
    retrieval,
    vectors,
)
from experiments.studies.from_ngram_to_infonce.page import RECORD


def agrees(finding):
    assert finding["agrees"], [one for one in finding["rows"] if not one["agrees"]]


def test_log_z_runs_away_from_likelihood_and_not_from_nce():
    agrees(limits.runaway(200))


def test_skip_gram_is_pmi_less_log_k():
    agrees(limits.pointwise((5,), 8000, 12))


def test_the_gradient_of_nce_comes_to_that_of_likelihood():
    agrees(perplexity.gradient(fit.made_up(6000, 60), (1, 100, 10_000, 100_000), 1))


def test_the_correction_for_popularity_finds_more_of_what_goes_with_a_query():
    agrees(retrieval.two_towers(retrieval.made_up(10_000, 300), 4, "made"))


def test_no_group_is_on_both_sides_and_every_item_is_trained_on():
    rng = np.random.default_rng(0)
    words, item = rng.integers(0, 9, (200, 3)), rng.integers(0, 40, 200)
    train, test = retrieval.divide(retrieval.Pairs(words, item, rng.integers(0, 90, 200)))
    assert len(test.item)
    assert set(test.item) <= set(train.item)
    assert not set(train.group) & set(test.group)


def test_pairs_are_counted_as_skip_gram_draws_them():
    words = np.array([[0, 1, 2, 3, 4], [2, 3, 4, 1, -1]]) - 1  # slices with a margin of one
    stream = WordStream(
        lambda launch: {"tokens": words, "sentence": np.where(words < 0, -1, words // 3)}, 1, 0.0
    )
    counts = vectors.count_pairs(stream, 2, 1, 4).toarray()
    assert counts[0, 1] == counts[1, 0] == 2  # an epoch each
    assert counts[1, 2] == 2
    assert counts[2, 3] == 0  # of two sentences
    np.testing.assert_array_equal(counts, counts.T)


def test_pmi_of_independent_words_is_nothing():
    p = np.array([0.5, 0.3, 0.2])
    pairs = scipy.sparse.coo_array(1000 * np.outer(p, p))
    np.testing.assert_allclose(vectors.pmi_of(pairs, p), 0, atol=1e-12)


def test_a_claim_is_held_refuted_or_open():
    low, high = vectors.interval(np.array([1.0, 2.0, 3.0]))[1:]
    assert (low, high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)
    verdicts = [vectors.say("It", x, "{}") for x in ((1, 0.5, 2), (-1, -2, -0.5), (0, -1, 1))]
    for verdict, word in zip(verdicts, ("held", "refuted", "open"), strict=True):
        assert word in verdict


@pytest.mark.slow
def test_folk_claims_are_asked_over_seeds():
    judged = vectors.made_up(20_000, 100)
    found = vectors.folk_claims(judged, 1, range(2), {**vectors.SMALL, "model.width": 8})
    assert len(found["curves"]["rates"]["CBOW"]) == 2
    assert '"CBOW trains faster"' in found["claim"]


def test_parts_of_a_text_are_renumbered_by_frequency():
    text = fit.made_up(5000, 50)
    counts = text.train.vocabulary.counts
    assert (np.diff(counts[1:]) <= 0).all()
    both = np.concatenate([text.train.tokens, text.test.tokens])
    np.testing.assert_array_equal(np.bincount(both, minlength=len(counts)), counts)


def test_a_run_resumes_and_writes_its_page(tmp_path, monkeypatch, capsys):
    calls = []

    def measure(name, one):
        def counted():
            calls.append(name)
            return one()

        return counted

    few = {
        "runaway": measure("runaway", lambda: limits.runaway(50, 0.4)),
        "draw_cost": measure("draw_cost", lambda: cost.draw_cost((100, 1000), 1000, 1)),
    }
    monkeypatch.setattr(study, "figures", lambda quick: few)
    write_json(tmp_path / RECORD, {"runaway": seal(few["runaway"]())})
    calls.clear()
    study.run(str(tmp_path), True, "cpu")
    assert calls == ["draw_cost"]
    assert set(json.loads((tmp_path / RECORD).read_text())) == set(few)
    assert "From n-grams to InfoNCE" in (tmp_path / "report.html").read_text()
    assert "report:" in capsys.readouterr().out


@pytest.mark.slow
def test_quick_form(tmp_path):
    study.run(str(tmp_path), True, "cpu")
    assert set(json.loads((tmp_path / RECORD).read_text())) == set(study.figures(True))
