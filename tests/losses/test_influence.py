"""Moments of the weights that sequences receive as negatives, compared with float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.losses import MemoryBank, cpc_loss, debiased
from cpc.parallel import make_reducer
from cpc.train import BATCH_AXIS, batch_sharding, make_mesh
from cpc.types import CPCOutputs, Position
from tests.losses.any_rule import assert_same, contrasts

B, T, D, OFFSETS, FURTHER = 8, 5, 4, (1, 3), 5
TAU, PRIOR = 0.2, 0.1
FLOOR = np.exp(-1 / TAU)


def make_problem():
    rng = np.random.default_rng(0)

    def unit(*shape):
        x = rng.normal(size=(*shape, D))
        return jnp.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True), jnp.float32)

    z, predictions, keys = unit(B, T), unit(B, T, 2), unit(FURTHER)
    positions = jax.tree.map(jnp.asarray, Position.grid(B, T, group=rng.integers(3, size=B)))
    where = jnp.asarray(np.arange(T) < np.where(np.arange(B) == 3, 4, T)[:, None])
    far = Position(*(jnp.full(FURTHER, x, jnp.int32) for x in (100, 100, 0, 1)))
    memory = MemoryBank(keys, far, jnp.arange(FURTHER) != 2)
    return CPCOutputs(z, z, predictions), positions, where, memory


def naive_value(positive, scores, loss, sampler):
    """Return log N - L of an anchor and the derivatives of L by the negative scores."""
    kept = scores >= (np.sort(scores)[-4] if sampler and len(scores) > 4 else -np.inf)
    exp, own = np.exp(scores) * kept, np.exp(positive)
    noise, slope = exp.sum(), 1.0
    if loss:  # debiased
        noise, floor = (noise - kept.sum() * PRIOR * own) / (1 - PRIOR), kept.sum() * FLOOR
        noise, slope = (noise, 1 / (1 - PRIOR)) if noise > floor else (floor, 0.0)
    return np.log1p(kept.sum()) - np.log1p(noise / own), slope * exp / (own + noise)


def naive_moments(rule, loss=None, sampler=None, where=None, memory=None):
    """Return sums of u_b, u_b^2 and u_b a_b per offset, (3, k)."""
    outputs, positions, *_ = make_problem()
    sums = np.zeros((3, len(OFFSETS), B + 1))  # the memory is last
    args = outputs.z, outputs.predictions, positions, rule, OFFSETS, where, memory
    for row, i, target, allowed, scores in contrasts(*args, tau=TAU):
        value, weights = naive_value(scores[target, row], scores[allowed, row], loss, sampler)
        sums[:2, row, i // T] += value, 1
        other = allowed // T != i // T
        np.add.at(sums[2, row], allowed[other] // T, weights[other])
    values, anchors, received = sums[..., :B]
    u = values - received
    return np.stack([u, u**2, u * anchors]).sum(-1)


RULES = {
    "batch": negatives.batch,
    "other": negatives.excluding_sequence,
    "group": negatives.same_group,
    "aligned": negatives.one_per_sequence,
    "shards": negatives.excluding_sequence & negatives.within_shards(4, B),
}
PATHS = {
    "whole rows": ("group", {"block": 16, "memory": True, "where": True}),
    "columns across sequences": ("batch", {"columns": 7, "memory": True, "where": True}),
    "columns within a sequence": ("group", {"columns": 4}),
    "shards": ("shards", {}),
    "a choice": ("other", {"sampler": negatives.hardest(4)}),
    "aligned with a choice": ("aligned", {"sampler": negatives.hardest(4)}),
    "another loss": ("batch", {"loss": True}),
    "aligned with another loss": ("aligned", {"loss": True, "where": True}),
    "a mesh of the compiler": ("other", {"where": True, "devices": 8}),
    "a ring": ("group", {"where": True, "memory": True, "devices": 4, "ring": True}),
}  # fmt: skip
#: Rules whose program differs without a gradient.
WITHOUT_GRADIENT = ("whole rows", "columns across sequences", "a ring")


@pytest.mark.parametrize("path", PATHS)
def test_moments_equal_the_naive_twin(path, monkeypatch):
    name, options = PATHS[path]
    options = dict(options)
    outputs, positions, where, memory = make_problem()
    devices, loss, ring = (options.pop(key, None) for key in ("devices", "loss", "ring"))
    mesh = make_mesh(devices or 1)
    if ring:
        monkeypatch.setattr("cpc.parallel.reducer.GATHERED_BYTES", 100)
        options["reducer"] = make_reducer(mesh, BATCH_AXIS)
    given = {"where": where, "memory": memory}
    options |= (of_arrays := {key: given[key] for key in given.keys() & options})
    if loss:
        options["loss"] = functools.partial(debiased, prior=PRIOR)
    want = naive_moments(RULES[name], loss, options.get("sampler"), **of_arrays)

    options |= {"temperature": TAU, "offsets": OFFSETS}

    def value(outputs):
        return cpc_loss(outputs, positions, RULES[name], **options)

    outputs = jax.device_put(outputs, batch_sharding(mesh)) if devices else outputs
    (_, sums), _ = jax.jit(jax.value_and_grad(value, has_aux=True))(outputs)
    got = np.stack([sums.projection, sums.value_squared, sums.value_anchors])
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())
    if path in WITHOUT_GRADIENT:
        _, again = jax.jit(value)(outputs)
        assert_same(again, sums, 1e-5, 0)
