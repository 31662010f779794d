"""Segmental CPC: boundaries and means against a loop over the paper's formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from random_variables import noise, random_variables

from cpc import models

THRESHOLDS = (0.05, 0.4)
CONTEXT = models.CausalConv(6, 1)


def latents(seed, t=40, d=6):
    """Return frames that jump every few, and wobble between."""
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


def test_boundaries_and_means_are_those_of_the_paper():
    """Rows of 29 frames have padding, which may hold anything, and in the means NaN."""
    z = np.stack([latents(seed) for seed in range(8)])
    length = np.array([40, 29, 40, 29, 40, 40, 40, 40])
    mask = np.arange(40) < length[:, None]
    filled = jnp.where(mask[..., None], z, noise(*z.shape))

    @functools.partial(jax.jit, static_argnums=0)
    def run(threshold):
        given = jnp.asarray(mask)
        begins = models.boundaries(filled, threshold, given)

        def half_square(z):
            holed = jnp.where(given[..., None], z, jnp.nan)
            means, there = models.segment_means(holed, begins, given)
            return (jnp.where(there[..., None], means, 0) ** 2).sum() / 2, (means, there)

        slope, rest = jax.grad(half_square, has_aux=True)(filled)
        return begins, slope, *rest

    for threshold in THRESHOLDS:
        begins, slope, means, there = map(np.asarray, run(threshold))
        for row, number in enumerate(length):
            one = z[row, :number]
            wanted = naive_boundaries(one, threshold)
            np.testing.assert_array_equal(begins[row, :number], wanted)
            assert not begins[row, number:].any()
            parts = np.split(one, np.flatnonzero(wanted))
            assert there[row].tolist() == [True] * len(parts) + [False] * (21 - len(parts))
            for mean, part in zip(means[row], parts, strict=False):
                np.testing.assert_allclose(mean, part.mean(0), atol=1e-6)
            assert not means[row, len(parts) :].any()
            segment = np.cumsum(wanted)
            size = np.bincount(segment)[segment, None]
            np.testing.assert_allclose(slope[row, :number], means[row][segment] / size, atol=1e-6)
        assert 3 < begins.sum(1).mean() < 15


def make(**frames):
    encoder = models.ConvEncoder(8, (4,), (2,))
    module = models.SegmentalCPC(encoder, CONTEXT, models.LinearPredictor(2, 8), 8, 0.05, **frames)
    x = noise(2, 80)
    return module, random_variables(module, x), x


def test_outputs_are_of_frames_and_of_segments():
    frame = models.CausalConv(5, 2)
    module, variables, x = make(frame_context=frame, frame_predictor=models.LinearPredictor(3, 8))
    plain = module.clone(frame_context=None, frame_predictor=None)
    params = variables["params"]

    @jax.jit
    def run(x):
        frames, segments = module.apply(variables, x)
        begins = models.boundaries(frames.z, 0.05)
        means, _ = models.segment_means(frames.z, begins)
        s = means @ params["hidden"]["kernel"] + params["hidden"]["bias"]
        s = jax.nn.relu(s) @ params["output"]["kernel"] + params["output"]["bias"]
        c = CONTEXT.apply({"params": params["context"]}, s)
        of_frames = frame.apply({"params": params["frame_context"]}, frames.z)
        wanted = {
            "frames": (of_frames, params["frame_predictor"]["W"]["kernel"], frames),
            "segments": (c, params["predictor"]["W"]["kernel"], segments),
        }
        embedded = [one.apply(variables, x, method="embed") for one in (module, plain)]
        return begins, s, wanted, plain.apply(variables, x), embedded

    begins, s, wanted, (bare, same), (with_context, without) = run(x)
    _, _, frames = wanted["frames"]
    _, _, segments = wanted["segments"]
    np.testing.assert_allclose(segments.z, s, rtol=1e-4, atol=1e-4)
    for c, kernel, found in wanted.values():
        np.testing.assert_allclose(found.c, c, rtol=1e-4, atol=1e-4)
        predictions = np.einsum("bth,hkd->btkd", c, kernel)
        np.testing.assert_allclose(found.predictions, predictions, rtol=1e-4, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), same, segments)
    for found in (bare.c, bare.predictions[:, :, 0], with_context[0], without[0]):
        np.testing.assert_allclose(found, frames.z, atol=1e-6)
    np.testing.assert_allclose(with_context[1], frames.c, atol=1e-6)
    for row, number in enumerate(np.cumsum(np.asarray(begins), 1)):
        np.testing.assert_allclose(without[1][row], np.asarray(segments.c)[row][number], atol=1e-6)


def test_short_signals_are_as_they_would_be_alone():
    find = jax.jit(functools.partial(models.boundaries, threshold=0.05))
    assert find(jnp.ones((2, 1, 3))).tolist() == [[False], [False]]  # a single latent is a segment
    module, variables, x = make()
    alone = jax.jit(module.apply)(variables, x[:1, :50])
    apply = jax.jit(module.apply, static_argnums=2)
    together = apply(variables, x, False, jnp.array([50, 80]))
    number = 1 + int(find(alone[0].z).sum())
    assert number > 2
    for ours, wanted, stop in zip(together, alone, (25, number), strict=True):
        np.testing.assert_allclose(ours.c[0, :stop], wanted.c[0, :stop], atol=1e-5)


def test_layers_are_of_the_encoder_and_of_the_context_that_c_is_of():
    both = {"frame_context": models.GRU(5, 3), "frame_predictor": models.LinearPredictor(3, 8)}
    for frames, name in ((both, "frame_context"), ({}, "context")):
        module, _, _ = make(**frames)
        module = module.clone(context=models.GRU(6, 2))
        variables = random_variables(module, noise(1, 80))
        assert module.num_layers == {"z": 1, "c": 3 if frames else 2}
        shorter, own = module.upto("c", 1, variables)
        assert shorter == module.clone(**{name: getattr(module, name).clone(num_layers=1)})
        assert sorted(own["params"][name]) == ["bias0", "input0", "recurrent0"]
        assert own["params"].keys() == variables["params"].keys()
