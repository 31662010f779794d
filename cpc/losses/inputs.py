"""Argument validation for the batch losses, and removal of padding from their arrays.

Known positions, such as NumPy arrays or arrays outside of `jax.jit`, are checked in Python. Traced
positions are checked in the compiled program.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from cpc.losses.blocks import Plan
from cpc.losses.masking import check_broadcasts, read_mask
from cpc.losses.table import describe
from cpc.losses.tiles import Latents
from cpc.types import (
    AnyPosition,
    CPCOutputs,
    NegativeRule,
    Rule,
    UserError,
    check_array,
    check_function,
    check_type,
    is_positive,
)


def check_arguments(outputs: Any, positions: Any, rule: Any, loss: Any, sampler: Any) -> None:
    """Validate the type of each argument, and the shapes of outputs and positions."""
    check_type("outputs", outputs, CPCOutputs, "pass CPCOutputs(z, c, predictions)")
    check_type("positions", positions, AnyPosition, "pass Position.grid(b, t) of cpc.types")
    fix = "pass a rule such as cpc.negatives.batch, or Rule(name, function)"
    check_type("rule", rule, Rule, fix)
    fix = "pass a function (positive, negatives, where) such as cpc.losses.info_nce"
    check_function("loss", loss, 3, fix)
    if sampler is not None:
        fix = "pass a sampler such as cpc.negatives.uniform_draws(16)"
        check_function("sampler", sampler, 4, fix)
    z, _, predictions = outputs
    check_array("z", z)
    check_array("predictions", predictions)
    *latents, width = z.shape
    num_offsets = predictions.shape[-2] if predictions.ndim > 1 else 0
    if z.ndim < 3 or not num_offsets or predictions.shape != (*latents, num_offsets, width):
        problem = f"z and predictions do not match (got shapes {z.shape} and {predictions.shape})"
        raise UserError(f"{problem}: pass (b, t, ..., d) and (b, t, ..., k, d), with k at least 1")
    for name, each in positions._asdict().items():
        if not isinstance(each, int):
            check_array(f"the positions' {name}", each, np.integer)
        check_broadcasts(f"the positions' {name}", each, tuple(latents))


def read_batch(
    outputs: CPCOutputs, positions: AnyPosition, where: Bool[Array, "b t ..."] | None
) -> tuple[CPCOutputs, Latents]:
    """Return the outputs with zeros for padding, and `Latents` (b, a), one row per sequence."""
    mask = read_mask("where", where, outputs.z.shape[:-1])
    if where is not None:  # padding may be NaN, and 0 * NaN is NaN
        masks = CPCOutputs(where[..., None], where[..., None], where[..., None, None])
        outputs = jax.tree.map(lambda given, x: jnp.where(given, x, 0.0), masks, outputs)

    def flatten(x):
        return jnp.broadcast_to(x, mask.shape).reshape(len(mask), -1)

    return outputs, jax.tree.map(flatten, Latents(positions, mask))


def check_layout(
    positions: AnyPosition, where: Any, shape: tuple[int, ...], plan: Plan, is_aligned: bool
) -> Any:
    """Return True if the positions have the structure that the rule assumes, or raise UserError.

    If the positions are traced, the result is a traced boolean instead.
    """
    num_shards = plan.num_shards(shape[0])
    if not is_aligned and num_shards == 1:
        return True
    leaves = jax.tree.leaves((positions, where))
    xp = jnp if any(isinstance(leaf, Tracer) for leaf in leaves) else np
    mask = xp.ones(shape, bool) if where is None else xp.asarray(where)
    if is_aligned:
        fits = is_grid(xp, positions, mask)
    else:
        shards = xp.broadcast_to(positions.sequence, shape) // (shape[0] // num_shards)
        fits = _has_value_per_row(xp, *(x.reshape(num_shards, -1) for x in (shards, mask)))
    if isinstance(fits, Tracer):
        return fits
    if not fits:
        problem = f"positions are not in shards of {plan.shard_size} sequences under the rule"
        fix = "sort the batch by sequence, or set shard_size=None in the Rule"
        if is_aligned:
            problem = "positions are not aligned under the rule"
            fix = "use the same lanes and consecutive times, or set aligned=False in the Rule"
        raise UserError(f"{problem} {getattr(plan.rule, 'name', 'given')}: {fix}")
    return True


def check_batch(positions: AnyPosition, shape: tuple[int, ...], plan: Plan) -> None:
    """If the positions are known, validate that some latent of the batch has a negative."""

    def allows(anchor, candidate, offset):
        allowed = plan.rule(anchor, candidate, offset)
        if plan.loss is None or not describe(plan.loss).uses_group_positives:
            return allowed
        return allowed & ((anchor.group != candidate.group) | (anchor.group < 0))

    if not any(isinstance(p, Tracer) for p in positions):
        flat = jax.tree.map(lambda p: np.broadcast_to(p, shape).ravel(), positions)
        name = getattr(plan.rule, "name", "given")
        check_negatives(flat, flat, Rule(name, allows), plan.offsets)


def mark_misfit(
    total: Float[Array, ""], num_anchors: Float[Array, " k"], fits: Any, is_alone: bool
) -> Float[Array, ""]:
    """Return the loss, or NaN if the positions do not fit the rule.

    If `is_alone` is True, the batch is a single sequence, and must have an anchor with a negative.
    In a larger batch, groups may exclude all negatives by chance.
    """
    if is_alone:
        fits &= num_anchors.any()
    return total if fits is True else jnp.where(fits, total, jnp.nan)


def is_grid(xp: Any, positions: AnyPosition, mask: Bool[Any, "b t ..."]) -> Any:
    """Return whether all sequences have the same lanes, first time, and consecutive times.

    Positions broadcast to the mask's shape (b, t, *lanes). Masked latents are ignored. `xp` is
    NumPy, or jax.numpy if any array is traced.
    """
    b, t = mask.shape[:2]
    time, lane, mask = (
        xp.broadcast_to(x, mask.shape).reshape(b, t, -1)
        for x in (positions.time, positions.lane, mask)
    )
    start = time - xp.arange(t)[:, None]
    lanes, by_lane = (xp.moveaxis(x, -1, 0).reshape(lane.shape[-1], -1) for x in (lane, mask))
    times_fit = _has_value_per_row(xp, start.reshape(1, -1), mask.reshape(1, -1))
    return times_fit & _has_value_per_row(xp, lanes, by_lane)


def check_negatives(
    anchors: AnyPosition, candidates: AnyPosition, rule: NegativeRule, offsets: Iterable[int]
) -> None:
    """Validate that an anchor has a positive and a negative, if all positions are known.

    Masks are ignored, because a batch may consist mostly of padding. Blocks of anchors are compared
    with all candidates until an anchor passes, usually in the first block.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((anchors, candidates))):
        return
    there = jax.tree.map(lambda p: np.asarray(p)[None], candidates)
    some_positive, size = False, max(1, 2**18 // there.time.size)
    eagerly = jax.ensure_compile_time_eval  # avoids tracing known positions under jit
    with eagerly():
        for k, start in itertools.product(offsets, range(0, len(anchors.time), size)):
            here = jax.tree.map(lambda p, i=start: np.asarray(p)[i : i + size, None], anchors)
            positive, negative = is_positive(here, there, k), rule(here, there, k)
            if isinstance(negative, Tracer):
                return
            with_positive = positive.any(-1)
            some_positive |= with_positive.any()
            if (np.asarray(negative) & ~positive)[with_positive].any():
                return
    if not some_positive:
        times = f"{np.min(there.time)} to {np.max(there.time)}"
        problem = f"no anchor has a positive {offsets} steps ahead (got times {times})"
        raise UserError(f"{problem}: pass times in latents, as from Position.grid")
    name, num = getattr(rule, "name", "given"), len(np.unique(there.sequence))
    problem = f"no anchor has a negative under the rule {name} (got {num} sequences)"
    raise UserError(f"{problem}: pass a larger batch or another rule")


def _has_value_per_row(xp, x, mask) -> Any:
    """Return whether the unmasked values of each row are equal, and differ between rows."""
    highest = np.iinfo(np.int32).max
    least = xp.where(mask, x, highest).min(-1)
    most = xp.where(mask, x, -highest).max(-1)
    ascending = xp.sort(least)
    differ = (ascending[1:] > ascending[:-1]) | (ascending[1:] == highest)
    return (least >= most).all() & differ.all()
