"""Word models: objectives at their optimum, loss terms, readings, resume and input checks."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.keys import make_config
from configs.words import KEYS
from cpc.data import Corpus, Vocabulary
from cpc.negatives import unigram
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.words import evaluate, run, step
from experiments.kinds.words.run import Text, load_data, synthetic
from tests.fake_run import run_and_resume

V = 6
#: A language model that can be exact: it has a score for each pair of words.
EXACT = {
    "epochs": 10, "steps_per_launch": 40, "data.subsample": 0.0, "data.positions": 256,
    "model.name": "vlbl", "model.width": 8, "model.reach": 1, "model.bias": "unigram",
    "model.reduce": False, "objective.share": 0, "objective.draws": 64, "objective.alpha": 1.0,
    "optim.rule": "adagrad", "optim.learning_rate": 0.3,
}  # fmt: skip


@functools.cache
def chain():
    """Return 10,000 words of a Markov chain and the count of each pair."""
    rng = np.random.default_rng(0)
    follows, tokens = rng.dirichlet(np.full(V - 1, 0.7), size=V - 1), [0]
    for _ in range(10_000):
        tokens.append(rng.choice(V - 1, p=follows[tokens[-1]]))
    order = np.argsort(-np.bincount(tokens, minlength=V - 1))
    tokens = (np.argsort(order)[tokens] + 1).astype(np.int32)
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(V)), np.bincount(tokens, minlength=V))
    corpus = Corpus(tokens, np.array([0, len(tokens)]), np.array([0, 1]), vocabulary, [])
    pairs = np.zeros((V, V))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    return corpus, pairs


def make_run(**given):
    corpus, _ = chain()
    settings = {name.replace("__", "."): value for name, value in given.items()}
    config = with_settings(make_config(KEYS), {**EXACT, **settings})
    run.interpret(run, config)
    return run.make(config, Text(corpus, corpus))


@functools.cache
def train_run(**given):
    made = make_run(**{f"objective__{name}": value for name, value in given.items()})
    state = made.state
    for i in range(made.config.epochs * made.stream.per_epoch):
        state = made.launch(state, made.stream.launch(i))
    return made._replace(state=state)


def predict(trained):
    corpus, _ = chain()
    log_p, log_z, _ = evaluate.predict_log_probs(trained, corpus.tokens, corpus.sentence_starts)
    return float(np.exp(-log_p.mean())), log_z


def best_perplexity():
    _, pairs = chain()
    p = pairs / np.maximum(pairs.sum(1, keepdims=True), 1)
    return np.exp(-(pairs[pairs > 0] * np.log(p[pairs > 0])).sum() / pairs.sum())


OBJECTIVES = [
    {"name": "full_softmax"},
    {"name": "nce", "noise": "uniform"},
    {"name": "info_nce", "noise": "batch", "share": 32},
    {"name": "sampled_softmax", "subtract_log_q": False},
    {"name": "sampled_logistic", "remove_hits": True},
]
#: Contextual and learned noise take longer.
SLOW_OBJECTIVES = [
    {"name": "ranking_nce", "noise": "bigram", "share": 1, "draws": 8},
    {"name": "nce", "noise": "proposal", "share": 1, "draws": 8, "k": 8},
    {"name": "nce", "noise": "learned_unigram", "log_z": "learned"},
]


@pytest.mark.parametrize(
    "given",
    [*OBJECTIVES, *(pytest.param(given, marks=pytest.mark.nightly) for given in SLOW_OBJECTIVES)],
    ids=lambda given: "-".join(map(str, given.values())),
)
def test_each_objective_reaches_the_optimal_perplexity(given):
    """No model is better than the empirical pair frequencies."""
    perplexity, log_z = predict(train_run(**given))
    best = best_perplexity()
    assert best - 1e-3 <= perplexity <= 1.01 * best
    if given["name"] == "nce":  # NCE normalizes itself
        assert abs(log_z.mean()) < 0.05
        assert log_z.std() < 0.1


def test_uncorrected_batch_noise_learns_the_ratio():
    trained = train_run(name="info_nce", noise="batch", share=32, subtract_log_q=False)
    assert predict(trained)[0] <= 1.01 * best_perplexity()  # evaluated as a ratio
    wrong = trained.config.copy_and_resolve_references()
    wrong.objective.subtract_log_q = True
    assert predict(trained._replace(config=wrong))[0] > 1.02 * best_perplexity()


def draw_step(made, params, key):
    choose, loss_fn = step.make(made.config, made.model, made.noise)
    batch = jax.tree.map(lambda x: jnp.asarray(x[0]), made.stream.launch(0))
    places, ids = choose(params, made.state.extra, batch, key)

    def loss(params):
        rows = {n: t if ids[n] is None else t[ids[n]] for n, t in params["tables"].items()}
        parts = {"tables": rows, "dense": params["dense"]}
        return loss_fn(parts, made.state.extra, batch, places)[0]

    return loss, places, batch


@pytest.mark.parametrize(("name", "remove", "share", "draws"), [
    ("negative_sampling", True, 8, 4), ("nce", False, 0, 40), ("nce", False, 1, 0),
    ("sampled_softmax", True, 8, 4), ("ranking_nce", False, 8, 4),
])  # fmt: skip
def test_skip_gram_loss_equals_a_loop_over_pairs(name, remove, share, draws):
    made = make_run(model__name="skip_gram", model__reach=2, model__bias="unigram",
                     objective__name=name, objective__remove_hits=remove, objective__k=3,
                     objective__share=share, objective__draws=draws, data__positions=16,
                     objective__subtract_log_q="nce" not in name)  # fmt: skip

    @jax.jit
    def first_loss(params, key):  # parameters are not all zero
        params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), params)
        loss, places, batch = draw_step(made, params, key)
        return loss(params), places.drawn, params["tables"], batch["tokens"]

    found = first_loss(made.state.params, jax.random.key(0))
    got, drawn, tables, words = jax.tree.map(np.asarray, found)
    tables = {n: table.astype(np.float64) for n, table in tables.items()}
    corpus, _ = chain()
    log_q = np.log(np.maximum(unigram(np.bincount(corpus.tokens, minlength=V), 1.0), 1e-30))
    size, weight = share or 16, 3 / (draws or 3)
    constant, total = np.log(3.0) if name == "nce" else 0.0, 0.0
    for i, j in itertools.product(range(16), (-2, -1, 1, 2)):
        center, label = words[2 + i], words[2 + i + j]
        if center < 0 or label < 0:
            continue
        scores = tables["output"] @ tables["input"][center] + tables["bias"]
        if name != "negative_sampling":
            scores = scores - log_q - constant
        noise = np.array([scores[w] for w in drawn[i // size] if not (remove and w == label)])
        if name in ("negative_sampling", "nce"):
            total += np.logaddexp(0, -scores[label]) + weight * np.logaddexp(0, noise).sum()
        elif len(noise):
            total += np.logaddexp.reduce(np.append(noise, scores[label])) - scores[label]
    assert float(got) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("name", ["skip_gram", "cbow"])
def test_unknown_words_are_excluded_from_perplexity(name):
    made = make_run(model__name=name, model__bias="none")
    words = chain()[0].tokens[:200]
    text = np.append(np.insert(words, [0, 7, 7, 50], 0), [0, 0])  # sentence 2 is unknown
    told = evaluate.predict_log_probs(made, text, np.array([0, len(text) - 2, len(text)]))
    assert (told[2] == 1).all()
    for got, want in zip(
        told, evaluate.predict_log_probs(made, words, np.array([0, len(words)])), strict=True
    ):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(told[1], 0.0, atol=1e-5)  # untrained, p is q
    # Without known words there is a message and no score.
    unknown = chain()[0]._replace(tokens=np.zeros(9, np.int32), sentence_starts=np.array([0, 9]))
    made.config.evaluate.similarity, lines = False, []
    made = made._replace(text=made.text._replace(test=unknown))
    assert not evaluate.evaluate(made, lines.append)[0]
    assert "no word of the held-out text" in lines[0]


@pytest.mark.parametrize("name", ["skip_gram", "cbow"])
def test_log_z_is_read_from_the_trained_row(name):
    made = make_run(model__name=name, model__bias="none", objective__name="nce",
                     objective__log_z="learned")  # fmt: skip
    params = dict(made.state.params)
    params["tables"] = {**params["tables"], "log_z": 10.0 * jnp.arange(V + 1)}
    words = chain()[0].tokens[:9]
    made = made._replace(state=made.state._replace(params=params))
    log_z = evaluate.predict_log_probs(made, words, np.array([0, len(words)]))[1]
    # Skip-gram: the centre word, once per neighbour; CBOW: the word before, or the last row.
    of = np.repeat(words, 2)[1:-1] if name == "skip_gram" else np.append(V, words[:-1])
    np.testing.assert_allclose(log_z, np.log(V - 1) - 10.0 * of, rtol=1e-5)


@pytest.mark.parametrize("noise", ["bigram", "proposal"])
def test_contextual_noise_is_multiplied_back(noise):
    """Scores of 0 mean that p equals q."""
    made = make_run(objective__name="negative_sampling", objective__noise=noise,
                     objective__share=1, model__bias="none")  # fmt: skip
    tables, dense = made.state.params["tables"], dict(made.state.params["dense"])
    corpus, pairs = chain()
    if noise == "bigram":
        u = unigram(np.bincount(corpus.tokens, minlength=V), 1.0)
        q = 0.8 * pairs[1:] / pairs[1:].sum(1, keepdims=True) + 0.2 * u
    else:
        logits = np.random.default_rng(0).normal(size=(V, V))
        dense["noise"] = {"input": jnp.eye(V), "output": jnp.asarray(logits.T), "bias": jnp.ones(V)}
        q = np.exp(logits[1:]) / np.exp(logits[1:]).sum(1, keepdims=True)
    made = made._replace(state=made.state._replace(params={"tables": tables, "dense": dense}))
    words = corpus.tokens[:300]
    log_p, log_z, _ = evaluate.predict_log_probs(made, words, np.array([0, len(words)]))
    np.testing.assert_allclose(log_p[1:], np.log(q[words[:-1] - 1, words[1:]]), atol=1e-5)
    np.testing.assert_allclose(log_z, 0.0, atol=1e-5)


def test_counts_of_learned_unigram_noise_do_not_overflow():
    noise = make_run(objective__noise="learned_unigram").noise
    state = {"counts": jnp.array([1, 0, 0, 0, 2**30, 2**30 - 10], jnp.int32)}
    state, _ = noise.learn(state, {}, None, jnp.full((64, 1), 4))  # past 2^31
    one = jnp.zeros(1, jnp.int32)
    ids, log_q = noise.draw(jax.random.key(0), state, {}, one, one, (1, 500))
    assert np.bincount(ids[0], minlength=V)[4] == pytest.approx(250, abs=60)
    assert state["counts"][0] == 1  # never zero
    np.testing.assert_allclose(log_q(jnp.array([4, 5])), np.log(0.5), atol=1e-6)


@pytest.mark.whole
def test_resumed_run_equals_uninterrupted_run(tmp_path, monkeypatch, capsys):
    corpus = synthetic(0, 3000, 50)
    assert corpus.sentence_starts[-1] == len(corpus.tokens) == corpus.vocabulary.counts.sum()
    assert (np.diff(corpus.vocabulary.counts[1:]) <= 0).all()
    monkeypatch.setattr(run, "load_data", lambda *given: Text(corpus, corpus))
    config = with_settings(make_config(KEYS), {
        "data.source": "synthetic", "data.positions": 128, "steps_per_launch": 4, "epochs": 4,
        "data.subsample": 1e-3, "model.width": 8, "log_launches": 1, "save_launches": 2,
        "evaluate.max_places": 500, "evaluate.similarity": False,
        "objective.noise": "learned_unigram",
    })  # fmt: skip
    folders = run_and_resume(config, tmp_path, monkeypatch, capsys)
    vectors = [np.load(folder / "vectors.npz")["vectors"] for folder in folders]
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize(("given", "words"), [
    ({"objective.unique": True, "objective.draws": 9}, "9 distinct classes"),
    ({"objective.noise": "minority", "objective.minority_mass": 0.9}, "out of reach"),
    ({"objective.noise": "bigram"}, "objective.noise is 'bigram'"),
    ({"objective.share": 7}, "objective.share is 7 and data.positions is"),
    ({"objective.noise": "batch"}, "objective.noise is 'batch'"),
    ({"objective.log_z": "learned"}, "objective.log_z is 'learned'"),
    ({"objective.noise": "proposal", "objective.share": 1, "objective.unique": True},
     "objective.noise is 'proposal'"),
])  # fmt: skip
def test_invalid_settings_are_rejected(given, words):
    with pytest.raises(UserError, match=words):
        make_run(**given)


def test_unusable_text_is_rejected():
    words = Vocabulary(("<unk>", "the"), np.array([0, 50]))
    corpus = Corpus(np.ones(50, np.int32), np.array([0, 50]), np.array([0, 1]), words, [])
    config = make_config(KEYS)
    with pytest.raises(UserError, match=r"data\.min_count"):
        run.make(config, Text(corpus, corpus))
    config.data.source = "folder"
    with pytest.raises(UserError, match=r"data\.path"):
        load_data(config, print)


def test_text_is_read_in_its_format(tmp_path, monkeypatch):
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    path, config = tmp_path / "ptb.txt", make_config(KEYS)
    path.write_text(" mr. <unk> is n \n is mr. <unk> \n")
    config.data.update(source="folder", path=str(path), min_count=1, test_fraction=0.0)
    for config.data.form, words in (("lines", {"mr.", "is", "n"}), ("prose", {"mr", "is", "n"})):
        corpus = load_data(config, str).train
        assert {*corpus.vocabulary.words} - {"unk"} == {"<unk>", *words}


def test_words_without_two_axes_have_no_map():
    for vectors in (np.ones((9, 4)), np.arange(9.0)[:, None], np.full((9, 4), np.nan)):
        assert evaluate.map_words(vectors) is None
    assert evaluate.map_words(np.arange(4.0)[None]) is None
    some = np.random.default_rng(0).standard_normal((9, 4))
    assert np.isfinite(evaluate.map_words(some)).all()
