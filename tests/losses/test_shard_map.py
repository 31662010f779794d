"""The losses inside `jax.shard_map`, which checks varying axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses, negatives
from cpc.train import BATCH_AXIS, make_mesh
from cpc.types import CPCOutputs, Position
from tests.losses.any_rule import assert_same

T, D = 5, 4


def tiles(*args):
    return losses.streaming_info_nce(*args, negatives.batch, 1, block=7, columns=5)[0].sum()


def symmetric(q, k, here, there):
    args = q, k, here, there, negatives.batch, 1
    one, other = losses.streaming_symmetric_info_nce(*args, block=7)
    return one[0].sum() + (other[0] ** 2).sum()


def several_offsets(q, k, here, _, loss=losses.cpc_loss):
    z, positions = jax.tree.map(lambda x: x.reshape(-1, T, *x.shape[1:]), (q, here))
    predictions = jnp.einsum("bth,khd->btkd", z, k[: 2 * D].reshape(2, D, D))
    return loss(CPCOutputs(z, z, predictions), positions, negatives.batch)[0]


def aligned(*args):
    return several_offsets(*args, loss=functools.partial(losses.acpc_loss, num_frames=3))


def learned(*args):
    q, k, *_ = args
    options = {"temperature": 1 + jnp.square(k[0, 0]), "positive_weight": q[0, 0]}
    loss = functools.partial(losses.decoupled, **options)
    return several_offsets(*args, loss=functools.partial(losses.cpc_loss, loss=loss))


@pytest.mark.parametrize("loss", [tiles, symmetric, aligned, learned])
def test_two_devices_equal_the_sum_of_shares(loss):
    """Queries are split, keys are replicated, so key gradients are summed."""
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(4 * T, D)), jnp.float32) for _ in range(2))
    grid = Position.grid(4, T, group=np.arange(4) % 2)
    there = jax.tree.map(lambda p: jnp.asarray(p.ravel()), grid)

    def of_device(q, k, here, there):
        value, gradients = jax.value_and_grad(loss, (0, 1))(q, k, here, there)
        return jax.lax.psum(value, BATCH_AXIS), gradients

    whole, split = jax.P(), jax.P(BATCH_AXIS)
    specs = {"in_specs": (split, whole, split, whole), "out_specs": (whole, (split, whole))}
    two = jax.shard_map(of_device, mesh=make_mesh(2), **specs)

    def by_shares(q, k):
        shares = q.reshape(2, -1, D), *(p.reshape(2, -1) for p in there)
        of_share = jax.lax.map(lambda x: loss(x[0], k, Position(*x[1:]), there), shares)
        return of_share.sum()

    want = jax.jit(jax.value_and_grad(by_shares, (0, 1)))(q, k)
    got = jax.jit(two)(q, k, there, there)
    assert_same(got, want, atol=2e-5)
