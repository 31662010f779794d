"""Quantised latents: their gradients, their codebook, and the encoder that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from random_variables import noise, random_variables

from cpc import models
from cpc.models.quantized import Codebook, perplexity, restart_codes
from cpc.types import UserError

X = 0.5 * noise(2, 100)
NUMBER = jnp.array([100, 50])  # 10 and 5 latents
EXIST = np.arange(10) < np.array([[10], [5]])


def make(**options):
    module = models.QuantizedEncoder(models.ConvEncoder(6, (10,), (10,)), 5, 4, **options)
    variables = random_variables(module, X)
    book = {"counts": jnp.array([1.0, 2.0, 0.5, 0.01, 1.0]), "sums": 0.7 * noise(5, 4, seed=4)}
    return module, {**variables, "codebook": book}


def projected(module, variables):
    """Return the latents before they are quantised, in float64, and their codes."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    own, frames = params["encoder"], np.asarray(X, np.float64).reshape(2, 10, 10)
    z = np.maximum(frames @ own["kernel0"][:, 0] + own["bias0"], 0)
    z = z @ params["project"]["kernel"] + params["project"]["bias"]
    vectors = np.asarray(Codebook(**variables["codebook"]).vectors, np.float64)
    return z, vectors, ((z[..., None, :] - vectors) ** 2).sum(-1).argmin(-1)


def train(module, variables, x):
    """Return latents, state, and the penalty's gradient by the parameters, after one batch."""

    @jax.jit
    def step(params, x):
        def run(params):
            z, state = module.apply(
                {**variables, "params": params}, x, True, NUMBER,
                mutable=["codebook", "penalties", "measures"],
            )  # fmt: skip
            return state["penalties"]["commitment"], (z, state)

        (_, (z, state)), slope = jax.value_and_grad(run, has_aux=True)(params)
        return z, state, slope

    return step(variables["params"], x)


@pytest.mark.parametrize("restart", [False, True])
def test_training_moves_the_codebook_by_the_latents_that_exist(restart):
    module, variables = make(commitment=0.5, decay=0.9, restart=restart)
    z, vectors, codes = projected(module, variables)
    run = train(module, variables, X)
    jax.tree.map(
        np.testing.assert_array_equal, run[1:], train(module, variables, X.at[1, 50:].set(7.0))[1:]
    )
    found, state, slope = run
    np.testing.assert_allclose(found, vectors[codes], rtol=1e-5)
    error = np.where(EXIST[..., None], z - vectors[codes], 0)
    np.testing.assert_allclose(state["penalties"]["commitment"], 0.5 * (error**2).sum() / 60, 1e-4)
    wanted = 0.5 * 2 * error.sum((0, 1)) / 60
    np.testing.assert_allclose(slope["project"]["bias"], wanted, rtol=1e-3, atol=1e-6)
    counts = np.bincount(codes[EXIST], minlength=5)
    wanted = np.exp(scipy.stats.entropy(counts))
    np.testing.assert_allclose(state["measures"]["perplexity"], wanted, rtol=1e-5)
    old = variables["codebook"]
    means = np.asarray(old["sums"]) / np.asarray(old["counts"])[:, None]
    np.testing.assert_allclose(vectors, means, rtol=2e-3)  # counts are smoothed a little
    wanted = 0.9 * np.asarray(old["counts"]) + 0.1 * counts
    is_dead = wanted < 0.1 * wanted.mean()
    assert is_dead.any()
    if restart:
        wanted = np.where(is_dead, wanted.mean(), wanted)
    np.testing.assert_allclose(state["codebook"]["counts"], wanted, rtol=1e-5)
    sums = np.stack([z[EXIST & (codes == i)].sum(0) for i in range(5)])
    kept = ~is_dead if restart else slice(None)
    wanted = 0.9 * np.asarray(old["sums"]) + 0.1 * sums
    np.testing.assert_allclose(state["codebook"]["sums"][kept], wanted[kept], rtol=1e-4, atol=1e-5)


def test_evaluation_gives_the_codes_to_the_last_bit_and_passes_the_gradient():
    """The gradient is that of the projection itself, and the codebook has none."""
    module, variables = make()
    weights = noise(2, 10, 4, seed=1)

    def through(variables):
        z = module.apply(variables, X)  # no collection is mutable: the codebook stays
        return (z * weights).sum(), z

    def plain(params):
        z = module.encoder.apply({"params": params["encoder"]}, X)
        return ((z @ params["project"]["kernel"] + params["project"]["bias"]) * weights).sum()

    @jax.jit
    def differentiate(variables):
        slope, z = jax.grad(through, has_aux=True)(variables)
        return z, slope, jax.grad(plain)(variables["params"]), Codebook(**variables["codebook"])

    z, slope, wanted, book = differentiate(variables)
    _, _, codes = projected(module, variables)
    np.testing.assert_array_equal(module.find_codes(variables, z), codes)
    np.testing.assert_allclose(z, np.asarray(book.vectors)[codes], rtol=1e-6)
    assert len({row.tobytes() for row in np.asarray(z).reshape(-1, 4)}) == len(np.unique(codes))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), slope["params"], wanted
    )
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), slope["codebook"])


def test_dead_codes_restart_at_latents_that_exist():
    z = jnp.arange(6.0)[:, None]
    mask = jnp.array([False, True, True, True, True, False])
    restart = jax.jit(restart_codes)
    found = restart(Codebook(jnp.array([9.0, 0.1, 0.1]), jnp.array([[9.0], [0], [0]])), z, mask)
    np.testing.assert_allclose(found.counts, [9.0, 9.2 / 3, 9.2 / 3], rtol=1e-6)
    np.testing.assert_allclose(found.sums[:, 0] / found.counts, [1.0, 2.0, 3.0], rtol=1e-6)
    kept = Codebook(jnp.ones(3), jnp.ones((3, 1)))
    jax.tree.map(np.testing.assert_array_equal, restart(kept, z, mask), kept)
    assert float(perplexity(jnp.zeros(4))) == pytest.approx(1)


def test_half_precision_quantises_in_single():
    encoder = models.ConvEncoder(6, (10,), (10,), dtype=jnp.bfloat16)
    module = models.QuantizedEncoder(encoder, 5, 4, dtype=jnp.bfloat16)
    _, variables = make()
    z, state = jax.eval_shape(lambda x: module.apply(variables, x, True, mutable=["codebook"]), X)
    assert z.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32")}


def make_cpc(**options):
    encoder = models.QuantizedEncoder(models.LogMelEncoder(6, padding="same"), 7, 4, **options)
    return models.CPC(encoder, models.GRU(5), models.LinearPredictor(2, 4))


def test_geometry_and_layers_are_the_encoders():
    module, inner = make_cpc().encoder, models.LogMelEncoder(6, padding="same")
    for name in ("layers", "pads", "padding", "stride", "receptive_field", "frames_around",
                 "shortest"):  # fmt: skip
        assert getattr(module, name) == getattr(inner, name)
    assert module.num_latents(1600) == inner.num_latents(1600)
    whole, variables = make_cpc(), random_variables(make_cpc(), noise(1, 1600))
    assert models.layer_depths(whole)["z"] == 6
    shorter, own = models.end_at(whole, variables, "z5")
    assert shorter.encoder == inner
    wanted = variables["params"]["encoder"]["encoder"]
    jax.tree.map(np.testing.assert_array_equal, own["params"]["encoder"], wanted)
    assert models.end_at(whole, variables, "z")[0] == whole
    with pytest.raises(UserError, match="QuantizedEncoder has no layers"):
        make_cpc().clone(cuts=(1,))
