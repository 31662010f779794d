"""Models of words against loops over places."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models.words import MODELS, band, banded_sum, look, spans, word_model
from cpc.types import UserError

T, R, D, V = 12, 2, 4, 9


def text(seed=0):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, V, T + 2 * R)
    sentence = np.sort(rng.integers(0, 3, T + 2 * R))
    words[:R], sentence[:R] = -1, -1
    return words, sentence


def naive_context(words, sentence, place, before):
    """Rows' numbers of what a place sees, None where nothing is: before, or on both sides."""
    offsets = range(-1, -R - 1, -1) if before else [i for i in range(-R, R + 1) if i]
    there = words[place] >= 0
    return [
        int(words[place + i])
        if there and words[place + i] >= 0 and sentence[place + i] == sentence[place] else None
        for i in offsets
    ]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_encode_equals_a_loop(name):
    words, sentence = text()
    model = word_model(name, D, R, 5)
    params = model.init(jax.random.key(0), V)
    table = np.asarray(params["tables"]["input"])
    dense = jax.tree.map(
        lambda x: jax.random.normal(jax.random.key(x.size), x.shape), params["dense"]
    )
    sees = look(jnp.asarray(words), jnp.asarray(sentence), R)
    got = jax.jit(model.encode)(jnp.asarray(table[np.maximum(words, 0)]), sees, dense)
    dense = jax.tree.map(np.asarray, dense)
    for i in range(T):
        seen = naive_context(words, sentence, R + i, model.is_causal)
        rows = np.stack([np.zeros(D) if w is None else table[w] for w in seen])
        if name == "skip_gram":
            want = table[words[R + i]]
        elif name == "cbow":
            want = rows.sum(0) / max(1, sum(w is not None for w in seen))
        elif name == "vlbl":
            want = (dense["position"] * rows).sum(0)
        elif name == "lbl":
            want = sum(row @ matrix for row, matrix in zip(rows, dense["position"], strict=True))
        else:
            want = np.tanh(rows.ravel() @ dense["kernel"] + dense["bias"])
        np.testing.assert_allclose(got[i], want, atol=1e-5)


@pytest.mark.parametrize("block", [3, 12])
def test_band_and_spans_lay_each_word_at_its_place(block):
    sees = np.random.default_rng(0).random((T, 2 * R + 1)) < 0.5
    laid = np.asarray(band(jnp.asarray(sees), block))
    places = np.asarray(spans(jnp.arange(T + 2 * R), block, R))
    for i in range(T):
        g, c = divmod(i, block)
        want = {i + j for j in np.flatnonzero(sees[i])}
        assert set(places[g][laid[g, c]].tolist()) == want
    rows = np.random.default_rng(1).normal(size=(T + 2 * R, D))
    total = banded_sum(jnp.asarray(rows), jnp.asarray(sees))
    want = [rows[i : i + 2 * R + 1][sees[i]].sum(0) for i in range(T)]
    np.testing.assert_allclose(total, want, atol=1e-5)


def test_a_language_model_sees_nothing_of_what_comes():
    words, sentence = text()
    for name in ("vlbl", "lbl", "nplm"):
        model = word_model(name, D, R)
        params = model.init(jax.random.key(0), V)
        sees = look(jnp.asarray(words), jnp.asarray(sentence), R)

        def of_place(rows, model=model, params=params, sees=sees):
            return model.encode(rows, sees, params["dense"])[5].sum()

        slope = jax.jit(jax.grad(of_place))(jnp.ones((T + 2 * R, D)))
        assert not slope[R + 5 :].any()
    with pytest.raises(UserError, match=r"'gpt'.*skip_gram"):
        word_model("gpt", 4, 2)
    with pytest.raises(UserError, match="reach 0"):
        word_model("cbow", 4, 0)
