"""Numbers exchanged between devices and matrix products of compiled criteria."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from cpc import negatives
from cpc.losses.blocks import Plan
from cpc.losses.tiles import Latents
from cpc.parallel import gathered_losses, ring_losses
from cpc.train import BATCH_AXIS, batch_sharding, make_mesh
from cpc.types import Position

SIZE = {"b": 8, "length": 4, "width": 16, "offsets": 2}


def compile_criterion(criterion, p, b, length, width, offsets):
    mesh = make_mesh(p)
    positions = jax.tree.map(jnp.asarray, Position.grid(b, length))
    anchors = Latents(positions, jnp.ones((b, length), bool))
    steps = tuple(range(1, offsets + 1))
    plan = Plan(negatives.batch, None, None, steps, b * length, None)

    def loss(predictions, z):
        args = predictions, z.reshape(-1, width), anchors, jax.tree.map(jnp.ravel, anchors)
        return criterion(*args, plan, mesh, BATCH_AXIS)[0].sum()

    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    rows = jax.NamedSharding(mesh, jax.P(None, BATCH_AXIS))
    shapes = (
        shape((offsets, b, length, width), sharding=rows),
        shape((b, length, width), sharding=batch_sharding(mesh)),
    )
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return step.lower(*shapes).compile()


def collectives(text):
    """Return the sizes of float matrices by the collective that returns them."""
    found = {}
    pattern = r"= f32\[([\d,]+)\]\S* (all-gather|reduce-scatter|collective-permute|all-reduce)\("
    for shape, name in re.findall(pattern, text):
        numbers = [int(size) for size in shape.split(",")]
        if len(numbers) > 1:
            found.setdefault(name, []).append(functools.reduce(int.__mul__, numbers))
    return found


@pytest.mark.parametrize("p", [2, 8, 4])
def test_exchanged_numbers(p):
    """Gather all keys and share gradients once; the ring has three permutes and one back."""
    n = SIZE["b"] * SIZE["length"] * SIZE["width"]
    criterion, want = gathered_losses, {"all-gather": [n], "reduce-scatter": [n // p]}
    if p == 4:
        criterion, want = ring_losses, {"collective-permute": [n // p] * 4}
    assert collectives(compile_criterion(criterion, p, **SIZE).as_text()) == want


@pytest.mark.parametrize(
    ("criterion", "p", "times", "products"), [(gathered_losses, 4, 1, 6), (ring_losses, 4, 4, 8)]
)
def test_flop_equal_the_cost_analysis(criterion, p, times, products):
    """FLOP are 6 or 8 times anchors, keys and width, to 5 %.

    The compiler counts elementwise work and loop bodies once; only the ring loops here.
    """
    size = {"b": 8, "length": 8, "width": 512, "offsets": 1}
    counted = compile_criterion(criterion, p, **size).cost_analysis()["flops"]
    flop = products * (8 * 8 // p) * (8 * 8) * 512
    assert flop < times * counted < 1.05 * flop
