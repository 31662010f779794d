"""Segmental CPC: boundaries and means against a loop over the paper's formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import GRU, LinearPredictor, LogMelEncoder, SegmentalCPC, boundaries, make_model
from cpc.models import segment_means as means_of


def latents(seed, t=40, d=6):
    """Frames that jump every few, and wobble between."""
    rng = np.random.default_rng(seed)
    places = np.cumsum(rng.integers(3, 8, 12))
    frames = rng.normal(size=(13, d))[np.searchsorted(places, np.arange(t), "right")]
    return (frames + 0.2 * rng.normal(size=frames.shape)).astype(np.float32)


def naive_boundaries(z, threshold):
    """Section 2.2 of Bhati et al. (2021), frame by frame; outside the sequence d is 0."""
    z = z.astype(np.float64)
    d = [1 - z[t] @ z[t + 1] / np.linalg.norm(z[t]) / np.linalg.norm(z[t + 1])
         for t in range(len(z) - 1)]  # fmt: skip
    low, high = min(d), max(d)
    d = [(value - low) / (high - low) for value in d]

    def at(t):
        return d[t] if 0 <= t < len(d) else 0.0

    found = [False] * len(z)
    for t in range(len(d)):
        p1, p2 = (min(max(at(t) - at(t + n), 0), max(at(t) - at(t - n), 0)) for n in (1, 2))
        if min(max(max(p1, p2) - threshold, 0), p1) > 0:
            found[t + 1] = True
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.05, 0.4])
def test_boundaries_are_those_of_the_paper(threshold):
    z = np.stack([latents(seed) for seed in range(8)])
    found = np.asarray(boundaries(jnp.asarray(z), threshold))
    np.testing.assert_array_equal(found, [naive_boundaries(one, threshold) for one in z])
    assert 3 < found.sum(1).mean() < 15
    assert not (found[:, 1:] & found[:, :-1]).any()  # no two next to each other


@pytest.mark.slow
def test_padding_changes_nothing():
    z, length = np.stack([latents(0), latents(1)]), 29
    filled = z.copy()
    filled[:, length:] = np.random.default_rng(0).normal(size=filled[:, length:].shape)
    exists = jnp.asarray(np.arange(40) < length)[None].repeat(2, 0)
    short, long = z[:, :length], jnp.where(exists[..., None], filled, jnp.nan)
    begins = boundaries(jnp.asarray(filled), 0.05, exists)
    np.testing.assert_array_equal(begins[:, :length], boundaries(jnp.asarray(short), 0.05))
    assert not begins[:, length:].any()
    wanted, whole = means_of(jnp.asarray(short), begins[:, :length])
    found, there = means_of(long, begins, exists)
    number = wanted.shape[1]
    np.testing.assert_allclose(found[:, :number], wanted, atol=1e-6)
    np.testing.assert_array_equal(there[:, :number], whole)
    assert not there[:, number:].any()


@pytest.mark.slow
def test_means_are_of_the_frames_between_boundaries():
    z = latents(3)
    begins = np.asarray(boundaries(jnp.asarray(z[None]), 0.05))[0]
    found, there = (
        np.asarray(x[0]) for x in means_of(jnp.asarray(z[None]), jnp.asarray(begins)[None])
    )
    parts = np.split(z, np.flatnonzero(begins))
    assert there.tolist() == [True] * len(parts) + [False] * (21 - len(parts))
    for mean, part in zip(found, parts, strict=False):
        np.testing.assert_allclose(mean, part.mean(0), atol=1e-6)
    assert not found[len(parts) :].any()


@pytest.mark.slow
def test_places_have_no_gradient_and_means_have():
    z = jnp.asarray(latents(4)[None])

    def loss(z):
        begins = boundaries(z, 0.05)
        return (means_of(z, begins)[0] ** 2).sum() / 2

    begins = boundaries(z, 0.05)
    means, _ = means_of(z, begins)
    number = np.cumsum(np.asarray(begins[0]))
    size = np.bincount(number)[number]
    np.testing.assert_allclose(
        jax.grad(loss)(z)[0], np.asarray(means)[0][number] / size[:, None], atol=1e-6
    )


def make(padding="same"):
    encoder = LogMelEncoder(8, padding=padding)
    module = SegmentalCPC(encoder, GRU(6), LinearPredictor(1, 8), 8, 0.05)
    x = np.random.default_rng(0).normal(size=(2, 6400)).astype(np.float32)
    return module, random_variables(module, x), jnp.asarray(x)


@pytest.mark.slow
def test_outputs_are_frames_and_segments_that_predict_the_next():
    module, variables, x = make()
    frames, segments = module.apply(variables, x)
    np.testing.assert_array_equal(frames.predictions[:, :, 0], frames.z)
    begins = boundaries(frames.z, 0.05)
    means, _ = means_of(frames.z, begins)
    params = variables["params"]
    hidden = means @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    s = jax.nn.relu(hidden) @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(segments.z, s, rtol=1e-4, atol=1e-4)
    c = GRU(6).apply({"params": params["context"]}, s)
    np.testing.assert_allclose(segments.c, c, rtol=1e-4, atol=1e-4)
    wanted = LinearPredictor(1, 8).apply({"params": params["predictor"]}, c)
    np.testing.assert_allclose(segments.predictions, wanted, rtol=1e-4, atol=1e-4)
    z, by_frame = make_model(module).embed(variables, jnp.asarray(x))
    np.testing.assert_array_equal(z, frames.z)
    number = np.cumsum(np.asarray(begins), 1).astype(int)
    for row in range(2):
        np.testing.assert_array_equal(by_frame[row], np.asarray(segments.c)[row][number[row]])


@pytest.mark.slow
def test_short_signals_are_as_they_would_be_alone():
    module, variables, x = make("causal")
    length = 4000
    alone = module.apply(variables, x[:1, :length])
    together = module.apply(variables, x, False, jnp.array([length, 6400]))
    number = 1 + int(boundaries(alone[0].z, 0.05).sum())
    for ours, wanted, stop in zip(together, alone, (25, number), strict=True):
        np.testing.assert_allclose(ours.c[0, :stop], wanted.c[0, :stop], atol=1e-5)


@pytest.mark.slow
def test_upto_ends_encoder_or_context():
    module, variables, x = make()
    shorter, own = module.upto("z", 2, variables)
    assert shorter.num_layers == {"z": 2, "c": 1}
    assert shorter.apply(own, x, method="encode").shape == (2, 40, 8)


def make_levels():
    """Frames with contexts of their own, of which 3 predictions are made, and of segments 2."""
    encoder, linear = LogMelEncoder(8, padding="same"), LinearPredictor(3, 8)
    module = SegmentalCPC(encoder, GRU(6), LinearPredictor(2, 8), 8, 0.05, GRU(5), linear)
    x = np.random.default_rng(0).normal(size=(2, 6400)).astype(np.float32)
    return module, random_variables(module, x), jnp.asarray(x)


@pytest.mark.slow
def test_frames_with_contexts_predict_by_them_and_change_no_segment():
    module, variables, x = make_levels()
    params = variables["params"]
    frames, segments = module.apply(variables, x)
    c = GRU(5).apply({"params": params["frame_context"]}, frames.z)
    np.testing.assert_allclose(frames.c, c, rtol=1e-4, atol=1e-5)
    wanted = LinearPredictor(3, 8).apply({"params": params["frame_predictor"]}, c)
    np.testing.assert_allclose(frames.predictions, wanted, rtol=1e-4, atol=1e-5)
    without = {k: v for k, v in params.items() if not k.startswith("frame")}
    plain = module.clone(frame_context=None, frame_predictor=None)
    _, alone = plain.apply({"params": without}, x)
    jax.tree.map(np.testing.assert_array_equal, alone, segments)
    assert segments.predictions.shape[-2] == 2


@pytest.mark.slow
def test_c_is_the_context_of_frames_where_they_have_one():
    module, variables, x = make_levels()
    frames, _ = module.apply(variables, x)
    z, c = make_model(module).embed(variables, x)
    np.testing.assert_array_equal(z, frames.z)
    np.testing.assert_array_equal(c, frames.c)
    deep = module.clone(frame_context=GRU(5, num_layers=3))
    assert deep.num_layers == {"z": 5, "c": 3}
    variables = random_variables(deep, np.asarray(x))
    shorter, own = deep.upto("c", 1, variables)
    first = GRU(5, num_layers=3).upto(1, {"params": variables["params"]["frame_context"]})[1]
    wanted = GRU(5).apply(first, shorter.apply(own, x, method="encode"))
    np.testing.assert_allclose(shorter.apply(own, x, method="embed")[1], wanted, atol=1e-5)


@pytest.mark.slow
def test_a_single_latent_is_a_segment():
    assert boundaries(jnp.ones((2, 1, 3)), 0.1).tolist() == [[False], [False]]
