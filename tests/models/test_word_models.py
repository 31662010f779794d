"""Word models compared with loops over positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models.words import (
    MODELS,
    band_mask,
    banded_sum,
    context_mask,
    overlapping_blocks,
    word_model,
)
from cpc.types import UserError

T, R, D, V = 12, 2, 4, 9


def text(seed=0):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, V, T + 2 * R)
    sentence = np.sort(rng.integers(0, 3, T + 2 * R))
    words[:R], sentence[:R] = -1, -1
    return words, sentence


def naive_context(words, sentence, place, is_causal):
    """Return the ids of the context words of a position, or None for masked ones."""
    offsets = range(-1, -R - 1, -1) if is_causal else [i for i in range(-R, R + 1) if i]
    around = [place + i for i in offsets]
    is_seen = [min(words[[place, i]]) >= 0 and sentence[i] == sentence[place] for i in around]
    return [int(words[i]) if seen else None for i, seen in zip(around, is_seen, strict=True)]


@pytest.mark.parametrize("name", MODELS)
def test_encode_equals_a_loop(name):
    words, sentence = text()
    model = word_model(name, D, R, 5)
    assert model.is_causal == (name in ("vlbl", "lbl", "nplm"))
    params = model.init(jax.random.key(0), V)
    table = np.asarray(params["tables"]["input"])
    dense = jax.tree.map(
        lambda x: np.random.default_rng(x.size).normal(size=x.shape).astype("f"), params["dense"]
    )
    sees = context_mask(jnp.asarray(words), jnp.asarray(sentence), R)
    got = jax.jit(model.encode)(jnp.asarray(table[np.maximum(words, 0)]), sees, dense)
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
def test_band_and_spans_select_the_context_words(block):
    sees = np.random.default_rng(0).random((T, 2 * R + 1)) < 0.5
    mask = np.asarray(band_mask(jnp.asarray(sees), block)).reshape(T, -1)
    places = np.asarray(overlapping_blocks(jnp.arange(T + 2 * R), block, R))
    for i in range(T):
        assert places[i // block][mask[i]].tolist() == (i + np.flatnonzero(sees[i])).tolist()
    rows = np.random.default_rng(1).normal(size=(T + 2 * R, D))
    total = banded_sum(jnp.asarray(rows), jnp.asarray(sees))
    want = [rows[i : i + 2 * R + 1][sees[i]].sum(0) for i in range(T)]
    np.testing.assert_allclose(total, want, atol=1e-5)


@pytest.mark.parametrize(("name", "reach", "words"), [
    ("gpt", 2, "'gpt'.*skip_gram"), ("cbow", 0, "reach 0"),
])  # fmt: skip
def test_mistakes_are_reported(name, reach, words):
    with pytest.raises(UserError, match=words):
        word_model(name, 4, reach)
