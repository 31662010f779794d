"""The kernels, interpreted on the CPU, against the naive twin and the scan; and that they lower.

No TPU is needed; lowering for one says nothing of running there.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from cpc import negatives
from cpc.losses import streaming_info_nce
from cpc.losses.pallas_tpu import score_on_tpu
from cpc.losses.tiles import Latents
from cpc.types import Position
from tests.losses import naive_streaming as naive

CALL = "@tpu_custom_call"
WINDOW = negatives.outside_window(1) & negatives.same_group


def careless(anchor, candidate, offset):
    """Allows the positive too."""
    return anchor.lane >= candidate.lane * 0


def example(seed=0, m=23, n=40, d=5):
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(range(4), range(5), range(3), indexing="ij"), -1).reshape(-1, 3)

    def positions(count):
        sequence, time, lane = rng.permutation(grid)[:count].T.astype(np.int32)
        return Position(*(jnp.asarray(x) for x in (sequence, time, lane, sequence % 2)))

    q, k = (jnp.asarray(rng.normal(size=(rows, d)), jnp.float32) for rows in (m, n))
    return q, k, positions(m), positions(n), jnp.asarray(rng.normal(size=m), jnp.float32)


def interpreted(rule, q, k, anchors, candidates, g, where):
    """2 tiles of anchors by 3 of candidates, neither filled."""
    latents = [Latents(*x) for x in zip((anchors, candidates), where, strict=True)]
    run = jax.jit(lambda *args: score_on_tpu(*args, rule, 1, size=16, interpret=True))
    scores, dq, dk = run(q, k, *latents, g)
    return scores, g[:, None] * dq, dk


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "dtype", "close"),
    [(careless, jnp.float32, 2e-5), (WINDOW, jnp.bfloat16, 2e-2)],  # products of 8 bits
    ids=["float32", "bfloat16"],
)
def test_interpreted_kernels_equal_the_naive_twin(rule, dtype, close):
    q, k, anchors, candidates, g = example()
    k = jnp.where(jnp.arange(len(k))[:, None] % 2 == 0, k[:1], k)  # tied
    q, k = q.astype(dtype), k.astype(dtype)
    where = jnp.arange(len(q)) % 6 > 0, jnp.arange(len(k)) % 5 > 0
    scores, dq, dk = interpreted(rule, q, k, anchors, candidates, g, where)
    exact = [np.asarray(x, np.float32) for x in (q, k)]
    positions = [Position(*(np.asarray(p) for p in x)) for x in (anchors, candidates)]
    wheres = [np.asarray(w) for w in where]
    want = naive.streaming(*exact, *positions, rule, 1, np.asarray(g), where=wheres)
    assert 0 < want.counted.sum() < len(q)
    assert np.any(want.wins % 1), "half a win is a tie"
    np.testing.assert_allclose(scores.loss, want.loss, rtol=2e-5, atol=2e-5)
    for got, twin in ((scores.rank, want.rank), (scores.wins, want.wins)):
        np.testing.assert_array_equal(got, twin)
    np.testing.assert_array_equal(scores.num_negatives, np.maximum(want.num_candidates - 1, 0))
    for got, twin in ((dq, want.dqueries), (dk, want.dkeys)):
        np.testing.assert_allclose(got, twin, rtol=0, atol=close * np.abs(twin).max())


def test_what_jax_counts_in_64_bits_stays_in_32():
    q, k, anchors, candidates, g = example()
    where = jnp.ones(len(q), bool), jnp.ones(len(k), bool)
    run = functools.partial(interpreted, WINDOW)
    with jax.enable_x64(True):
        found = jax.eval_shape(run, q, k, anchors, candidates, g, where)
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype("f4")}


@pytest.fixture(scope="module")
def huge():
    """Inputs with scores beyond 1e4, the scan's losses and ranks, and its gradients."""
    q, k, anchors, candidates, g = example(1)
    q, k = 70 * q, 70 * k
    where = jnp.arange(len(q)) % 6 > 0, jnp.arange(len(k)) % 5 > 0
    assert jnp.abs(q @ k.T).max() > 1e4

    @jax.jit
    def scan(q, k):
        loss, standing = streaming_info_nce(
            q, k, anchors, candidates, WINDOW, 1, columns=16,
            where_anchors=where[0], where_candidates=where[1],
        )  # fmt: skip
        return (g * loss).sum(), (loss, standing.rank)

    return (q, k, anchors, candidates, g, where), jax.grad(scan, (0, 1), has_aux=True)(q, k)


@pytest.mark.slow
def test_interpreted_kernels_equal_the_scan_where_scores_are_huge(huge):
    inputs, (gradients, (loss, rank)) = huge
    scores, *derivatives = interpreted(WINDOW, *inputs)
    np.testing.assert_allclose(scores.loss, loss, rtol=1e-6, atol=2e-2)  # an ulp of 1e4 is 1e-3
    np.testing.assert_array_equal(scores.rank, rank)
    for got, want in zip(derivatives, gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2 * jnp.abs(want).max())


@pytest.mark.slow
def test_they_are_lowered_for_a_tpu_alone():
    q, k, anchors, candidates, _ = example()

    def loss(q, k, kernels=True):
        return streaming_info_nce(q, k, anchors, candidates, WINDOW, 1, kernels=kernels)[0].sum()

    step = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)
    for platform, calls in (("cuda", 0), ("tpu", 5), ("cpu", 0)):
        module = export.export(step, platforms=[platform])(q, k).mlir_module()
        assert module.count(CALL) == calls  # 3, and 2 again for unequal weights
    jax.tree.map(np.testing.assert_array_equal, step(q, k), step(q, k, False))
