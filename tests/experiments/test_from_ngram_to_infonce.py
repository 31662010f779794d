"""The study of words: figures of small sizes agree with theory, and make a page."""

import itertools
import json

import numpy as np
import pytest
import scipy.sparse
import scipy.special

from cpc.data import Corpus, Vocabulary
from cpc.data.words import WordStream
from cpc.files import seal, write_json
from experiments.studies.from_ngram_to_infonce import __main__ as study
from experiments.studies.from_ngram_to_infonce import (
    cost,
    factorised,
    fit,
    folk,
    limits,
    perplexity,
    retrieval,
    vectors,
)
from experiments.studies.from_ngram_to_infonce.figures import FIGURES
from experiments.studies.from_ngram_to_infonce.page import RECORD


def agrees(finding):
    assert finding["agrees"], [one for one in finding["rows"] if not one["agrees"]]


def test_log_z_runs_away_from_likelihood_and_not_from_nce():
    agrees(limits.runaway(200))


@pytest.mark.slow
def test_skip_gram_is_pmi_less_log_k():
    agrees(limits.pointwise((5,), 8000, 12))


@pytest.mark.slow
def test_the_gradient_of_nce_comes_to_that_of_likelihood():
    agrees(perplexity.gradient(fit.made_up(6000, 60), (1, 100, 10_000, 100_000), 1))


@pytest.mark.slow
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
    counts = factorised.count_pairs(stream, 2, 1, 4).toarray()
    assert counts[0, 1] == counts[1, 0] == 2  # an epoch each
    assert counts[1, 2] == 2
    assert counts[2, 3] == 0  # of two sentences
    np.testing.assert_array_equal(counts, counts.T)


def test_pmi_of_independent_words_is_nothing():
    p = np.array([0.5, 0.3, 0.2])
    pairs = scipy.sparse.coo_array(1000 * np.outer(p, p))
    np.testing.assert_allclose(factorised.pmi_of(pairs, p), 0, atol=1e-12)


@pytest.mark.slow
def test_ppmi_is_decomposed_as_lapack_has_it():
    rng = np.random.default_rng(0)
    pmi = rng.standard_normal((200, 3)) @ rng.standard_normal((3, 200))
    pmi += 0.1 * rng.standard_normal(pmi.shape)
    pairs = scipy.sparse.coo_array(rng.random((200, 200)))
    of_word, of_context = factorised.ppmi_svd(pairs, pmi[pairs.coords], 8)
    u, s, v = np.linalg.svd(np.maximum(pmi, 0))
    np.testing.assert_allclose(of_word @ of_context.T, (u[:, :8] * s[:8]) @ v[:8], atol=0.02 * s[0])
    np.testing.assert_allclose(np.linalg.norm(of_word, axis=0) ** 2, s[:8], rtol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(of_context, axis=0) ** 2, s[:8], rtol=1e-3)


@pytest.mark.slow
def test_skip_gram_follows_pmi_and_its_decomposition():
    found = study.figures(True)["factorised"]()
    agrees(found)
    ((name, row),) = found["curves"]["rows"].items()
    assert name == "made"
    assert all(0.5 < value < 0.9 for value, _, _ in row["values"].values()), "can be told apart"


def test_made_up_words_lie_by_their_directions():
    """E_t[exp(s cos(a - t)) exp(s cos(b - t))] is I0(2 s cos((a - b) / 2)), so PMI is known."""
    judged = vectors.made_up(400_000, 12, 1.5)
    text, ((pairs, said),) = judged.text.train, judged.sets.values()
    tokens = np.asarray(text.tokens).reshape(-1, 10)
    counts = np.zeros((12, 12))
    for i in range(1, 10):
        np.add.at(counts, (tokens[:, i:].ravel(), tokens[:, :-i].ravel()), 1)
    p = (counts + counts.T)[1:, 1:] / (2 * counts.sum())
    pmi = np.log(p / np.outer(p.sum(0), p.sum(0)))
    rows = vectors.index(text.vocabulary)
    measured = [pmi[rows[a] - 1, rows[b] - 1] for a, b in pairs]
    true = np.log(scipy.special.i0(2 * 1.5 * np.sqrt((1 + said) / 2)) / scipy.special.i0(1.5) ** 2)
    off = np.array([a != b for a, b in pairs])
    # Sentences are normalised one by one, which takes something off all of a word's.
    assert np.corrcoef(np.array(measured)[off], true[off])[0, 1] > 0.95


def test_contexts_of_rare_words_are_compared_as_by_a_loop():
    rng = np.random.default_rng(0)
    tables = {"input": rng.standard_normal((20, 4)), "output": rng.standard_normal((20, 4))}
    tokens = rng.integers(1, 20, 60).astype(np.int32)
    starts = np.array([0, 7, 8, 30, 60])
    tokens[7] = 19  # rare, and its sentence has no other word
    corpus = Corpus(tokens, starts, np.array([0, 4]), Vocabulary(("",) * 20, np.ones(20)), [])
    places = []
    for a, b in itertools.pairwise(starts.tolist()):
        for i in range(a, b):
            near = [tokens[j] for j in range(max(a, i - 2), min(b, i + 3)) if j != i]
            if tokens[i] >= 12 and near:
                places.append((tokens[i], np.mean(tables["input"][near], 0)))
    wins = [
        tables["output"][w] @ own > tables["output"][w] @ other
        for w, own in places
        for v, other in places
        if v != w
    ]
    assert len(places) > 10
    found = folk.pairwise(tables, corpus, np.arange(20) >= 12, 2)
    assert found == pytest.approx(np.mean(wins), abs=1e-9)
    tables["output"][:] = 0
    assert folk.pairwise(tables, corpus, np.arange(20) >= 12, 2) == 0.5


def test_rare_pairs_are_those_with_a_rare_word():
    judged = vectors.made_up(20_000, 60)
    is_rare, at, said = folk.rare_words(judged)
    counts = judged.text.train.vocabulary.counts
    every = vectors.known_pairs(judged)[0]
    assert counts[is_rare].max() < counts[1:][~is_rare[1:]].min()
    assert counts[at].min(1).max() <= np.sort(counts[every].min(1))[len(every) // 2]
    assert 0.2 * len(every) < len(at) == len(said) < 0.5 * len(every)


def test_held_out_words_are_thinned_out_as_trained_ones():
    corpus = fit.made_up(60_000, 50).train
    keep = np.linspace(0, 1, len(corpus.vocabulary.words))
    text = vectors.divide(corpus, keep)
    whole = vectors.divide(corpus, np.ones(len(keep))).test
    kept, of = (np.bincount(x.tokens, minlength=len(keep)) for x in (text.test, whole))
    assert kept[0] == 0
    assert np.abs(kept - keep * of).max() < 5 * np.sqrt(of.max() / 4)
    starts = text.test.sentence_starts
    assert starts[-1] == len(text.test.tokens)
    assert (np.diff(starts) > 0).all()


def test_a_claim_is_held_refuted_or_open():
    low, high = vectors.interval(np.array([1.0, 2.0, 3.0]))[1:]
    assert (low, high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)
    verdicts = [folk.say("It", x, "{}") for x in ((1, 0.5, 2), (-1, -2, -0.5), (0, -1, 1))]
    for verdict, word in zip(verdicts, ("held", "refuted", "not decided"), strict=True):
        assert word in verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skip_gram_or_cbow", "sampled_softmax_or_nce"])
def test_folk_claims_are_asked_over_seeds(name):
    judged = vectors.made_up(20_000, 100)
    if name == "skip_gram_or_cbow":
        found = folk.models(judged, 1, range(2), vectors.SMALL)
        assert '"CBOW trains faster"' in found["claim"]
    else:
        found = folk.objectives(judged, 1, range(2), vectors.SMALL)
        assert found["claim"].count("Sampled softmax suits CBOW") == 2
    assert len(found["rows"]) == 4
    panels = found["curves"]["panels"]
    assert {len(values) for rows in panels.values() for values in rows.values()} == {2}
    assert len(FIGURES[name](found["curves"]).axes) == len(panels)


def test_parts_of_a_text_are_renumbered_by_frequency():
    text = fit.made_up(5000, 50)
    counts = text.train.vocabulary.counts
    assert (np.diff(counts[1:]) <= 0).all()
    both = np.concatenate([text.train.tokens, text.test.tokens])
    np.testing.assert_array_equal(np.bincount(both, minlength=len(counts)), counts)


@pytest.mark.slow
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
