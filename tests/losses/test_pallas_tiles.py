"""The kernels, interpreted on the CPU, against the naive twin; and that they lower for a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from cpc import negatives
from cpc.losses import streaming_info_nce
from cpc.losses.pallas_tiles import score_by_kernels
from cpc.losses.tiles import Places
from cpc.types import Position
from tests.losses import naive_streaming as naive

TRITON = "__gpu$xla.gpu.triton"
RULES = {
    "outside_window": negatives.outside_window(1) & negatives.same_group,
    "one_per_sequence": negatives.one_per_sequence,
    "careless": lambda anchor, candidate, offset: anchor.lane >= candidate.lane * 0,
}


def example(seed=0, m=23, n=40, d=5):
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(range(4), range(5), range(3), indexing="ij"), -1).reshape(-1, 3)

    def places(count):
        sequence, time, lane = rng.permutation(grid)[:count].T.astype(np.int32)
        return Position(*(jnp.asarray(x) for x in (sequence, time, lane, sequence % 2)))

    q, k = (jnp.asarray(rng.normal(size=(rows, d)), jnp.float32) for rows in (m, n))
    return q, k, places(m), places(n), jnp.asarray(rng.normal(size=m), jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", RULES)
def test_interpreted_kernels_equal_the_naive_twin(name, dtype):
    q, k, anchors, candidates, g = example()
    q, k = q.astype(dtype), k.astype(dtype)
    where = jnp.arange(len(q)) % 6 > 0, jnp.arange(len(k)) % 5 > 0
    scores, dq, dk = score_by_kernels(
        q, k, Places(anchors, where[0]), Places(candidates, where[1]), g, RULES[name], 1,
        size=16, interpret=True,
    )  # fmt: skip
    exact = [np.asarray(x, np.float32) for x in (q, k)]
    places = [Position(*(np.asarray(p) for p in x)) for x in (anchors, candidates)]
    wheres = [np.asarray(w) for w in where]
    want = naive.streaming(*exact, *places, RULES[name], 1, np.asarray(g), where=wheres)
    assert 0 < want.counted.sum() < len(q)
    np.testing.assert_allclose(scores.loss, want.loss, rtol=2e-5, atol=2e-5)
    for got, twin in ((scores.rank, want.rank), (scores.wins, want.wins)):
        np.testing.assert_array_equal(got, twin)
    np.testing.assert_array_equal(scores.num_negatives, np.maximum(want.num_candidates - 1, 0))
    close = 2e-5 if dtype == jnp.float32 else 2e-2  # the weights of products keep 8 bits
    dq = np.asarray(g)[:, None] * np.asarray(dq, np.float32)
    for got, twin in ((dq, want.dqueries), (dk, want.dkeys)):
        np.testing.assert_allclose(got, twin, rtol=0, atol=close * np.abs(twin).max())


def test_they_lower_for_a_gpu_and_are_chosen_there_alone():
    q, k, anchors, candidates, _ = example()

    def loss(q, k):
        rule = RULES["outside_window"]
        return streaming_info_nce(q, k, anchors, candidates, rule, 1, kernels=True)[0].sum()

    step = jax.jit(jax.grad(loss, (0, 1)))
    allowed = [export.DisabledSafetyCheck.custom_call(TRITON)]
    for platform, count in (("cuda", 5), ("cpu", 0)):  # 3, and 2 again for unequal weights
        made = export.export(step, platforms=[platform], disabled_checks=allowed)(q, k)
        assert made.mlir_module().count(f"@{TRITON}") == count
    plain = jax.grad(
        lambda q, k: streaming_info_nce(
            q, k, anchors, candidates, RULES["outside_window"], 1
        )[0].sum(), (0, 1)
    )  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, step(q, k), jax.jit(plain)(q, k))
