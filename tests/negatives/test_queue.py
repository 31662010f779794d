"""The queue: a deque as twin, under jit, and with rules."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.negatives.queue import Queue, ages, make_queue, push
from cpc.types import Position, UserError

SIZE = 5
compiled_push = jax.jit(push, donate_argnums=0)


def batch(m, seed):
    rng = np.random.default_rng(seed)
    keys = jnp.asarray(rng.normal(size=(m, 2)), jnp.float32)
    positions = Position(*(jnp.asarray(rng.integers(-9, 9, m), jnp.int32) for _ in range(4)))
    where = jnp.asarray(rng.random(m) < 0.7)
    return jnp.where(where[:, None], keys, jnp.nan), positions, where


def in_order(queue: Queue):
    order = (np.arange(SIZE) + int(queue.cursor)) % SIZE
    return [
        (*np.asarray(queue.keys[i]).tolist(), *(int(p[i]) for p in queue.positions), int(at))
        for i, at in zip(order, np.asarray(queue.pushed)[order], strict=True)
        if queue.mask[i]
    ]


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_deque(seed):
    """Pushes of fewer, as many and more latents than the queue holds; negative sequences stay."""
    batches = np.random.default_rng(seed).permutation([2, 2, 5, 11, 2, 5])
    queue, twin = make_queue(SIZE, 2), collections.deque(maxlen=SIZE)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), queue)
    for step, m in enumerate(batches):
        keys, positions, where = batch(m, seed + step)
        queue = compiled_push(queue, keys, positions, step, where)
        for i in range(m):
            sequence, *others = (int(p[i]) for p in positions)
            row = (*np.asarray(keys[i]).tolist(), min(sequence, -1 - sequence), *others, step)
            if where[i]:
                twin.append(row)
        assert in_order(queue) == list(twin)
        assert not queue.keys[~queue.mask].any()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), queue) == shapes  # not compiled again
    now = np.sort(np.asarray(ages(queue, len(batches))))
    want = [len(batches) - row[-1] for row in twin]
    np.testing.assert_array_equal(now, np.sort(want + [-1] * (SIZE - len(want))))


def test_keys_have_no_gradient_and_the_dtype_of_the_queue():
    keys, positions, _ = batch(2, 0)

    def total(keys):
        return push(make_queue(3, 2), keys, positions, 0).keys.sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(keys), 0.0)
    half = jax.eval_shape(lambda: push(make_queue(3, 2, jnp.bfloat16), keys, positions, 0))
    assert half.keys.dtype == jnp.bfloat16
    assert {x.dtype for x in half.positions} == {jnp.dtype("int32")}


def test_queued_latents_belong_to_other_sequences():
    """Queued latents of sequence 0 at times 0 to 3 in two groups; the anchor is 0 at time 0."""
    zeros = jnp.zeros(4, jnp.int32)
    positions = Position(zeros, jnp.arange(4), zeros, jnp.array([0, 1, 0, 1]))
    queue = compiled_push(make_queue(4, 2), jnp.zeros((4, 2)), positions, 0, zeros == 0)
    anchor = Position(*(jnp.zeros((1, 1), jnp.int32),) * 4)
    there = jax.tree.map(lambda p: p[None], queue.positions)
    for rule, allowed in (
        (negatives.batch, 4), (negatives.excluding_sequence, 4), (negatives.outside_window(3), 4),
        (negatives.own_sequence, 0), (negatives.within_shards(2, 4), 0), (negatives.same_group, 2),
        (negatives.one_per_sequence, 1),
    ):  # fmt: skip
        assert int(rule(anchor, there, 1).sum()) == allowed, rule.name


def test_invalid_pushes_are_rejected():
    for size, width in ((0, 4), (4, 0)):
        with pytest.raises(UserError, match=r"(size|width) .*got 0"):
            make_queue(size, width)
    keys, positions, _ = batch(3, 0)
    with pytest.raises(UserError, match=r"keys .*got shape \(3, 2\).*\(3, 4\)"):
        push(make_queue(3, 4), keys, positions, 0)
    with pytest.raises(UserError, match=r"\(3,\)"):
        push(make_queue(3, 2), keys, positions._replace(lane=jnp.zeros((1, 1), jnp.int32)), 0)
