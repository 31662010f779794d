"""Quantised latents: their gradients, their codebook, and the encoder that they stand for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import (
    CPC,
    GRU,
    ConvEncoder,
    LinearPredictor,
    LogMelEncoder,
    Pretrained,
    QuantizedEncoder,
    end_at,
    layer_depths,
    load_pretrained,
    make_model,
    save,
    stream_contexts,
    stream_latents,
)
from cpc.models.quantized import (
    Codebook,
    given_to_codes,
    move_codebook,
    nearest_codes,
    perplexity,
    restart_codes,
)
from cpc.types import UserError

X = jnp.float32(0.1 * np.random.default_rng(0).normal(size=(2, 1600)))


def make_encoder(**options):
    return QuantizedEncoder(ConvEncoder(6), 5, 4, **options)


def start(module, seed=0):
    return jax.jit(module.init)(jax.random.key(seed), X)


def trained(module, variables, x=X, num_samples=None):
    state = {name: value for name, value in variables.items() if name != "params"}
    apply = functools.partial(module.apply, train=True, mutable=list(state))
    return jax.jit(apply)(variables, x, num_samples=num_samples)


def projected(module, variables, x=X):
    """Latents before they are quantised, in NumPy from the encoder's own output."""
    own = {"params": variables["params"]["encoder"]}
    z = np.asarray(jax.jit(module.encoder.apply)(own, x), np.float64)
    dense = variables["params"]["project"]
    return z @ np.asarray(dense["kernel"], np.float64) + np.asarray(dense["bias"], np.float64)


def codes_of(module, variables, x=X):
    vectors = np.asarray(Codebook(**variables["codebook"]).vectors, np.float64)
    return ((projected(module, variables, x)[..., None, :] - vectors) ** 2).sum(-1).argmin(-1)


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True])
def test_latents_are_the_nearest_codes_to_the_last_bit(train):
    module = make_encoder()
    variables = start(module)
    z = trained(module, variables)[0] if train else jax.jit(module.apply)(variables, X)
    vectors = np.asarray(Codebook(**variables["codebook"]).vectors)
    np.testing.assert_array_equal(z, vectors[codes_of(module, variables)])
    found = module.find_codes(variables, z)
    np.testing.assert_array_equal(found, codes_of(module, variables))


@pytest.mark.slow
def test_the_gradient_passes_the_codes():
    """It is that of the projection itself, and the codebook has none."""
    module, weights = make_encoder(), np.random.default_rng(1).normal(size=(2, 10, 4))
    variables = start(module)

    def through(params):
        return (module.apply({**variables, "params": params}, X) * weights).sum()

    def plain(params):
        z = module.encoder.apply({"params": params["encoder"]}, X)
        return ((z @ params["project"]["kernel"] + params["project"]["bias"]) * weights).sum()

    found, want = (jax.jit(jax.grad(f))(variables["params"]) for f in (through, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, want)
    of_codes = jax.jit(
        jax.grad(lambda book: module.apply({**variables, "codebook": book}, X).sum())
    )
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(of_codes(variables["codebook"])))


@pytest.mark.slow
def test_the_penalty_is_the_mean_square_and_pulls_latents_alone():
    module = make_encoder(commitment=0.5)
    variables = start(module)

    def penalty(params):
        state = trained(module, {**variables, "params": params})[1]
        return state["penalties"]["commitment"]

    value, slope = jax.jit(jax.value_and_grad(penalty))(variables["params"])
    z = projected(module, variables)
    vectors = np.asarray(Codebook(**variables["codebook"]).vectors, np.float64)
    error = z - vectors[codes_of(module, variables)]
    assert float(value) == pytest.approx(0.5 * np.square(error).mean(), rel=1e-4)
    want = 0.5 * 2 * error.sum((0, 1)) / error.size
    np.testing.assert_allclose(slope["project"]["bias"], want, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_codebook_is_the_running_k_means():
    rng = np.random.default_rng(0)
    z, exists = rng.normal(size=(50, 3)), rng.random(50) < 0.7
    book = Codebook(jnp.array([1.0, 2.0, 0.5]), jnp.float32(rng.normal(size=(3, 3))))
    codes = nearest_codes(book.vectors, jnp.float32(z))
    found = move_codebook(book, jnp.float32(z), codes, jnp.array(exists), 0.9)
    for i in range(3):
        own = z[exists & (np.asarray(codes) == i)]
        assert float(found.counts[i]) == pytest.approx(0.9 * book.counts[i] + 0.1 * len(own))
        want = 0.9 * np.asarray(book.sums[i]) + 0.1 * own.sum(0)
        np.testing.assert_allclose(found.sums[i], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.vectors[i], want / found.counts[i], rtol=1e-3)


@pytest.mark.slow
def test_without_decay_codes_are_the_means_of_their_latents():
    z = jnp.array([[0.0], [1.0], [10.0], [14.0]])
    book = Codebook(jnp.ones(2), jnp.array([[1.0], [11.0]]))
    book = move_codebook(book, z, nearest_codes(book.vectors, z), jnp.ones(4, bool), 0.0)
    np.testing.assert_allclose(book.vectors, [[0.5], [12.0]], rtol=1e-4)


@pytest.mark.slow
def test_dead_codes_begin_at_latents_that_exist():
    z = jnp.arange(6.0)[:, None]
    exists = jnp.array([False, True, True, True, True, False])
    book = Codebook(jnp.array([9.0, 0.1, 0.1]), jnp.array([[9.0], [0.0], [0.0]]))
    found = restart_codes(book, z, exists)
    np.testing.assert_allclose(found.counts, [9.0, 9.2 / 3, 9.2 / 3], rtol=1e-6)
    np.testing.assert_allclose(found.sums[:, 0] / found.counts, [1.0, 2.0, 3.0], rtol=1e-6)
    kept = Codebook(jnp.ones(3), jnp.ones((3, 1)))
    jax.tree.map(np.testing.assert_array_equal, restart_codes(kept, z, exists), kept)


def test_perplexity_is_the_number_of_codes_that_are_used_alike():
    assert float(perplexity(jnp.array([3.0, 0.0, 3.0, 3.0]))) == pytest.approx(3)
    assert float(perplexity(jnp.zeros(4))) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_padding_is_nothing_to_the_codebook_and_the_penalty(restart):
    module = make_encoder(restart=restart)
    variables = start(module)
    number = jnp.array([1600, 800])  # of the bare encoder, which sees what follows
    found = [trained(module, variables, x, number)[1] for x in (X, X.at[1, 800:].set(7.0))]
    jax.tree.map(np.testing.assert_array_equal, *found)
    whole = trained(module, variables)[1]
    assert float(whole["penalties"]["commitment"]) != float(found[0]["penalties"]["commitment"])
    codes = codes_of(module, variables)
    kept = np.concatenate([codes[0], codes[1, :5]])
    counts = np.bincount(kept, minlength=5)
    if not restart:
        start_counts = np.asarray(variables["codebook"]["counts"])
        np.testing.assert_allclose(
            found[0]["codebook"]["counts"], 0.99 * start_counts + 0.01 * counts, rtol=1e-5
        )
    p = counts[counts > 0] / counts.sum()
    want = np.exp(-(p * np.log(p)).sum())
    assert float(found[0]["measures"]["perplexity"]) == pytest.approx(want, rel=1e-5)


def make_cpc(**options):
    encoder = QuantizedEncoder(LogMelEncoder(6, padding="same"), 7, 4, **options)
    return CPC(encoder, GRU(5), LinearPredictor(2, 4))


@pytest.mark.slow
def test_evaluation_leaves_the_codebook_where_it_is():
    model = make_model(make_cpc())
    variables = model.init(jax.random.key(0), {"x": X})
    state = {name: value for name, value in variables.items() if name != "params"}
    apply = jax.jit(model.apply, static_argnums=2)
    _, after = apply(variables, {"x": X}, False)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    _, after = apply(variables, {"x": X}, True, jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    moved = [bool((after["codebook"]["encoder"][k] != v).any())
             for k, v in state["codebook"]["encoder"].items()]  # fmt: skip
    assert moved == [True, True]


def test_geometry_is_the_encoders():
    module, inner = make_cpc().encoder, LogMelEncoder(6, padding="same")
    for name in ("layers", "pads", "padding", "stride", "receptive_field", "frames_around",
                 "shortest"):  # fmt: skip
        assert getattr(module, name) == getattr(inner, name)
    assert module.num_latents(1600) == inner.num_latents(1600)
    numbers = jnp.array([300, 900])
    np.testing.assert_array_equal(module.num_existing(numbers), inner.num_existing(numbers))


@pytest.mark.slow
def test_layers_before_the_codes_are_the_encoders():
    module = make_cpc()
    variables = random_variables(module, X)
    assert layer_depths(module)["z"] == 6
    shorter, own = end_at(module, variables, "z5")
    found = shorter.apply(own, X, method="encode")
    inner = {"params": variables["params"]["encoder"]["encoder"]}
    np.testing.assert_array_equal(found, LogMelEncoder(6, padding="same").apply(inner, X))
    whole, same = end_at(module, variables, "z")
    assert whole == module
    assert same is variables or jax.tree.structure(same) == jax.tree.structure(variables)


@pytest.mark.slow
def test_it_is_exported_and_loaded(tmp_path):
    module = make_cpc(restart=True, decay=0.5, commitment=1.0)
    given = {"kind": "audio", "shape": [1600], "sample_rate_hz": 16000, "rms": 0.05}
    variables = start(module)
    save(tmp_path, Pretrained(module, variables, given))
    again = load_pretrained(tmp_path)
    assert again.module == module
    kept = {name: variables[name] for name in ("params", "codebook")}
    jax.tree.map(np.testing.assert_array_equal, again.variables, kept)
    found, want = (make_model(module).embed(v, X) for v in (again.variables, variables))
    jax.tree.map(np.testing.assert_array_equal, found, want)
    assert trained(module, again.variables)[1].keys() == {"codebook"}


@pytest.mark.slow
def test_a_recording_in_chunks_has_the_codes_of_the_whole():
    module, x = make_cpc(restart=True), 0.1 * jax.random.normal(jax.random.key(3), (4800,))
    variables = trained_once(module, start(module))
    z, c = jax.jit(make_model(module).embed)(variables, x[None])

    def read(first, stop):
        return jnp.pad(x, (0, max(0, stop - len(x))))[first:stop]

    parts = list(stream_latents(module, variables, read, 30, 7))
    found = np.concatenate(parts, 1)[:, :30]
    assert len(np.unique(z[0, :25], axis=0)) > 2
    np.testing.assert_array_equal(found[:, :25], z[:, :25])
    contexts = np.concatenate(list(stream_contexts(module, variables, iter(parts))), 1)
    np.testing.assert_allclose(contexts[:, :25], c[:, :25], atol=1e-5)


def trained_once(module, variables):
    return {**variables, **trained(module, variables)[1]}


@pytest.mark.slow
def test_half_precision_quantises_in_single():
    module = QuantizedEncoder(ConvEncoder(6, dtype=jnp.bfloat16), 5, 4, dtype=jnp.bfloat16)
    variables = start(module)
    z, state = trained(module, variables)
    assert z.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32")}
    vectors = Codebook(**variables["codebook"]).vectors.astype(jnp.bfloat16)
    assert all(any((row == vector).all() for vector in vectors) for row in z.reshape(-1, 4))


def test_counts_and_sums_are_of_each_code():
    given = given_to_codes(
        jnp.array([[1.0], [2.0], [4.0]]), jnp.array([1, 1, 0]), jnp.array([True, True, False]), 3
    )
    assert given.counts.tolist() == [0, 2, 0]
    assert given.sums.ravel().tolist() == [0, 3, 0]


def test_codes_have_no_layers_to_cut():
    with pytest.raises(UserError, match="QuantizedEncoder has no layers to end modules after"):
        CPC(QuantizedEncoder(ConvEncoder(6), 5, 4), GRU(4), LinearPredictor(2, 4), cuts=(1,))
