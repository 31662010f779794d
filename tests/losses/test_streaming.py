"""Streaming InfoNCE: naive float64 twin, ranks, gradients and memory."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses, negatives
from cpc.losses import cpc_loss, info_nce, sigmoid, streaming_info_nce, streaming_symmetric_info_nce
from cpc.losses.tiles import block_size, num_columns
from cpc.types import CPCOutputs, Position, UserError
from tests.losses.any_rule import any_rule, assert_same, with_index


def naive(q, k, anchors, candidates, rule, offset, g, temperature=1.0, where=None):
    """Return losses, ranks and gradients of sum_i g_i L_i from whole matrices."""
    q, k = np.float64(q), np.float64(k)
    rows = Position(*(np.asarray(p)[:, None] for p in anchors))
    columns = Position(*(np.asarray(p)[None] for p in candidates))
    mask = np.outer(*where) if where else np.ones((len(q), len(k)), bool)
    target = (rows.sequence == columns.sequence) & (rows.time + offset == columns.time) & mask
    target &= rows.lane == columns.lane
    others = np.asarray(rule(rows, columns, offset)) & mask & ~target
    counted = (target.any(1) & others.any(1))[:, None]
    target, others = target & counted, others & counted
    scores = q @ k.T / temperature
    own = np.where(target, scores, 0).sum(1, keepdims=True)
    total = np.logaddexp.reduce(np.where(target | others, scores, -np.inf), 1, keepdims=True)
    share = np.exp(np.where(target | others, scores - total, -np.inf))
    w = (share - target) * g[:, None] / temperature
    return types.SimpleNamespace(
        loss=np.where(counted, total - own, 0)[:, 0], counted=counted[:, 0],
        num_candidates=(target | others).sum(1), rank=(others & (scores >= own)).sum(1),
        wins=(others * ((scores < own) + 0.5 * (scores == own))).sum(1),
        dqueries=w @ k, dkeys=w.T @ q, highest=np.abs(q @ k.T).max(),
    )  # fmt: skip


def one_sided(anchor, candidate, offset):
    return (anchor.lane <= candidate.lane) & (anchor.time + 2 * offset != candidate.time)


RULES = {
    "batch": negatives.batch,
    "excluding_sequence": negatives.excluding_sequence,
    "own_sequence": negatives.own_sequence,
    "same_group": negatives.same_group,
    "one_per_sequence": negatives.one_per_sequence,
    "outside_window": negatives.outside_window(1),
    "within_shards": negatives.within_shards(2, 4),
    "joined": negatives.same_group & negatives.excluding_sequence,
    "careless": lambda anchor, candidate, offset: anchor.lane >= candidate.lane * 0,
    "one-sided": one_sided,
}
#: The loss excludes the positive, not this function.
ANY = any_rule(list(RULES.values())).allows
#: Whole rows, tiles that do not divide n, and blocks that do not divide m.
CUTS = {"whole": {"block": 8}, "tiles": {"block": 8, "columns": 7}}
each_cut = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)


@functools.partial(jax.jit, static_argnames=("offset", "rule", "block", "columns"))
def compiled(q, k, positions, g, tau, offset, where, *, rule, **cut):
    """Return losses, ranks and gradients of sum_i g_i L_i by queries, keys and temperature."""

    def total(q, k, tau):
        loss, standing = streaming_info_nce(
            q, k, *positions, rule, offset, temperature=tau,
            where_anchors=where[0], where_candidates=where[1], **cut,
        )  # fmt: skip
        return (g * loss).sum(), (loss, standing)

    gradients, (loss, standing) = jax.grad(total, (0, 1, 2), has_aux=True)(q, k, tau)
    return loss, standing, gradients


def run(q, k, positions, g, tau=1.0, rule="batch", offset=1, where=None, **cut):
    where = where or [np.ones(len(x), bool) for x in (q, k)]
    places = [with_index(p, list(RULES).index(rule)) for p in positions]
    return compiled(q, k, places, g, tau, offset, where, rule=ANY, **cut)


def example(seed=0, m=23, n=30, d=5, scale=1.0):
    """Return queries, keys and shuffled positions of 4 sequences, 3 lanes and 2 groups."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(range(4), range(5), range(3), indexing="ij"), -1).reshape(-1, 3)

    def positions(count):
        sequence, time, lane = rng.permutation(grid)[:count].T.astype(np.int32)
        return Position(sequence, time, lane, sequence % 2)

    q, k = (scale * rng.normal(size=(rows, d)).astype(np.float32) for rows in (m, n))
    return q, k, (positions(m), positions(n)), rng.normal(size=m).astype(np.float32)


def check(got, want, rtol=3e-5, atol=3e-5):
    loss, standing, gradients = got
    np.testing.assert_allclose(loss, want.loss, rtol=rtol, atol=atol)
    for name in ("num_candidates", "rank", "wins", "counted"):
        np.testing.assert_array_equal(getattr(standing, name), getattr(want, name), err_msg=name)
    size = max(1.0, np.abs(want.dqueries).max(), np.abs(want.dkeys).max())
    np.testing.assert_allclose(gradients[0], want.dqueries, rtol=rtol, atol=size * atol)
    np.testing.assert_allclose(gradients[1], want.dkeys, rtol=rtol, atol=size * atol)


@pytest.mark.parametrize(("name", "offset"), [*((n, 1) for n in RULES), ("outside_window", 0)])
def test_equals_the_naive_twin(name, offset):
    q, k, positions, g = example()
    want = naive(q, k, *positions, RULES[name], offset, g)
    assert 0 < want.counted.sum() < len(q), "only some anchors have a positive"
    check(run(q, k, positions, g, rule=name, offset=offset, **CUTS["tiles"]), want)


@each_cut
def test_padding_has_no_effect(cut):
    q, k, positions, g = example(2)
    g = np.ones_like(g)
    where = np.arange(len(q)) % 4 > 0, np.arange(len(k)) % 5 > 0
    poisoned = [np.where(w[:, None], x, np.nan) for w, x in zip(where, (q, k), strict=True)]
    got = run(*poisoned, positions, g, 0.5, where=where, **cut)
    want = naive(q, k, *positions, negatives.batch, 1, g, 0.5, where)
    check(got, want)
    assert float(got[2][2]) == pytest.approx(-(q * want.dqueries).sum() / 0.5, rel=1e-4)
    for w, gradient in zip(where, got[2], strict=False):
        np.testing.assert_array_equal(np.asarray(gradient)[~w], 0.0)


@each_cut
def test_huge_scores_are_accurate(cut):
    q, k, positions, g = example(3, scale=70.0)
    want = naive(q, k, *positions, negatives.batch, 1, g)
    assert want.highest > 1e4
    got = run(q, k, positions, g, **cut)
    np.testing.assert_allclose(got[0], want.loss, rtol=1e-5, atol=2e-2)  # an ulp of 1e4 is 1e-3
    np.testing.assert_array_equal(got[1].rank, want.rank)
    for gradient, twin in zip(got[2], (want.dqueries, want.dkeys), strict=False):
        np.testing.assert_allclose(gradient, twin, rtol=1e-3, atol=1e-2 * np.abs(twin).max())


@each_cut
def test_half_precision_is_summed_in_float32(cut):
    q, k, positions, g = example(4)
    q, k = (jnp.asarray(x, jnp.bfloat16) for x in (q, k))
    loss, standing, gradients = run(q, k, positions, g, **cut)
    exact = [np.asarray(x, np.float32) for x in (q, k)]
    want = naive(*exact, *positions, negatives.batch, 1, g)
    assert (loss.dtype, gradients[0].dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(loss, want.loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(standing.wins, want.wins)
    for gradient, twin in zip(gradients, (want.dqueries, want.dkeys), strict=False):
        error = np.abs(np.asarray(gradient, np.float32) - twin).max()
        assert error < 0.02 * np.abs(twin).max()  # bf16 keeps 8 bits


def test_temperature_gradient_is_summed_in_float32():
    """The temperature is a Python number without a dtype."""
    halves = jnp.asarray(np.random.default_rng(6).normal(size=(2, 2048, 8)), jnp.bfloat16)
    sequence, time = np.divmod(np.arange(2048), 128)
    place = Position(*(jnp.asarray(p) for p in (sequence, time, 0 * time, 0 * time)))

    def loss(tau, vectors):
        options = {"temperature": tau}
        return streaming_info_nce(*vectors, place, place, negatives.batch, 1, **options)[0].mean()

    got, want = (jax.jit(jax.grad(loss))(2.1, x) for x in (halves, halves.astype(jnp.float32)))
    assert float(got) == pytest.approx(float(want), rel=1e-3)


@pytest.mark.parametrize("columns", [None, 7, 32])
def test_equal_keys_tie_in_tiles_of_any_size(columns):
    """Positives are scored by a product of the tile size, so that rounding is equal."""
    rng = np.random.default_rng(0)
    q, key = (jnp.asarray(rng.normal(size=(rows, 17)), jnp.float32) for rows in (100, 1))
    positions = [Position(z, np.arange(n), z, z) for n in (100, 300) for z in [np.zeros(n, int)]]
    loss, standing = jax.jit(
        lambda q, k: streaming_info_nce(q, k, *positions, negatives.batch, 1, columns=columns)
    )(70 * q, jnp.tile(key, (300, 1)))
    np.testing.assert_allclose(loss, np.log(300), rtol=1e-6)
    np.testing.assert_array_equal(standing.rank, 299)
    np.testing.assert_array_equal(standing.wins, 299 / 2)


def test_both_directions_equal_two_calls():
    """With an asymmetric rule, weights, a temperature and masked positions."""
    q, k, positions, g = example(9)
    h = np.random.default_rng(9).normal(size=len(k)).astype(np.float32)
    where = jnp.arange(len(q)) % 7 > 0, jnp.arange(len(k)) % 5 > 0

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2), has_aux=True)
    def both(q, k, tau):
        here, there = streaming_symmetric_info_nce(
            q, k, *positions, one_sided, 1, temperature=tau, block=8,
            where_anchors=where[0], where_candidates=where[1],
        )  # fmt: skip
        return (g * here[0]).sum() + (h * there[0]).sum(), (here, there)

    gradients, found = both(q, k, 0.5)
    *first, slopes = run(q, k, positions, g, 0.5, "one-sided", 1, where, block=8)
    *second, (dk, dq, dtau) = run(
        k, q, positions[::-1], h, 0.5, "one-sided", -1, where[::-1], block=8
    )
    assert_same(found, (first, second))
    assert_same(gradients, jax.tree.map(jnp.add, slopes, (dq, dk, dtau)), atol=2e-5)


def test_forward_pass_computes_no_gradients():
    q, k, positions, _ = example(7)

    def products(**cut):
        """Count matrix products in the program, counting loop bodies once."""

        def loss(q, k):
            return streaming_info_nce(q, k, *positions, negatives.batch, 1, **cut)[0].sum()

        return str(jax.make_jaxpr(loss)(q, k)).count("dot_general[")

    assert products() == 1
    assert products(columns=7) == 2  # positives, then all scores


@pytest.mark.parametrize("cut", [{"block": 64}, {"block": 256, "columns": 256}])
def test_memory_is_linear(cut):
    m = 4096
    place = Position(*(jax.ShapeDtypeStruct((m,), jnp.int32) for _ in range(4)))
    x = jax.ShapeDtypeStruct((m, 8), jnp.float32)
    g, where = (jax.ShapeDtypeStruct((m,), dtype) for dtype in (jnp.float32, bool))
    rest = (place, place), g, 1.0, 1, (where, where)
    program = compiled.lower(x, x, *rest, rule=RULES["same_group"], **cut).compile()
    assert program.memory_analysis().temp_size_in_bytes < m * 8192  # far below 4 bytes per pair


@pytest.mark.parametrize(("most", "block", "loss", "shape"), [
    (24 * 8, 8, info_nce, "8,24"), (24 * 8 - 1, 8, info_nce, "8,9"),
    (24 * 8, None, info_nce, "20,9"), (24 * 8, None, sigmoid, "8,24"),
])  # fmt: skip
def test_rows_above_the_threshold_are_tiled(most, block, loss, shape, monkeypatch):
    monkeypatch.setattr(losses.tiles, "WHOLE_ROWS", most)
    monkeypatch.setattr(losses.tiles, "COLUMNS", 9)
    z = jnp.zeros((4, 6, 5))

    def value(z):
        outputs = CPCOutputs(z, z, z[:, :, None])
        return cpc_loss(outputs, Position.grid(4, 6), negatives.batch, loss=loss, block=block)[0]

    text = str(jax.make_jaxpr(value)(z))
    assert set(re.findall(r"f32\[(\d+,(?:9|24))\] = dot_general", text)) == {shape}


def test_accelerator_blocks_are_whole_rows_or_large(monkeypatch):
    cases = {100: 8192, 2**17: 2048, 2**19: 512, 10**6: 8192}
    assert [*map(block_size, cases)] == [max(512, 2**19 // n) for n in cases]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for n, anchors in cases.items():
        assert block_size(n) == anchors
        assert block_size(n, n) == min(8192, 2**28 // n)
        assert num_columns(anchors, n, None) == (n if n <= 2**19 else 8192)


def test_invalid_arguments_are_named(unchecked):
    q, k, (anchors, candidates), _ = example()
    right = {"queries": q, "keys": k, "anchors": anchors, "candidates": candidates}
    for options, match in (
        ({"temperature": 0}, "temperature .*got 0"),
        ({"block": 0}, "block .*got 0"),
        ({"columns": 0}, "columns .*got 0"),
        ({"where_anchors": jnp.ones(len(q))}, "where_anchors .*got float32"),
        ({"anchors": candidates}, "sequence of anchors .*got shape"),
        ({"keys": k[:, :4]}, r"keys .*got shape \(30, 4\)"),
        ({"queries": q[:, None]}, r"queries .*got shape \(\d+, 1, 5\)"),
    ):
        with pytest.raises(UserError, match=match):
            streaming_info_nce(**right | {"rule": negatives.batch, "offset": 1} | options)
