"""Optimizers with learning rate schedules, gradient clipping and weight decay."""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from cpc.types import Array, PyTree, UserError

Schedule = Callable[[Any], Any]


def make_optimizer(
    *,
    learning_rate: float,
    warmup_steps: int = 0,
    num_steps: int,
    schedule: str = "constant",
    name: str = "adam",
    clip_norm: float = 0.0,
    weight_decay: float = 0.0,
    **numbers: float,
) -> tuple[optax.GradientTransformation, Schedule]:
    """Make an optimizer and its schedule, a function from the step to the learning rate.

    Gradients are clipped to the global norm `clip_norm`, unless it is 0. Weight decay is decoupled
    (Loshchilov and Hutter 2019) and is not applied to vectors, scalars, biases and norm scales.

    Args:
        name: one of `OPTIMIZERS`.
        numbers: further options of the optimizer. b1 and b2 are the decay rates of running
            averages, and eps is added to denominators. Each optimizer has its own defaults.
    """
    rate = make_schedule(learning_rate, warmup_steps, num_steps, schedule)
    if clip_norm < 0 or weight_decay < 0:
        raise UserError(
            f"clip_norm and weight_decay must be at least 0 (got {clip_norm} and {weight_decay})"
        )
    if name not in OPTIMIZERS:
        names = ", ".join(map(repr, OPTIMIZERS))
        raise UserError(f"the optimizer is unknown (got {name!r}): choose one of {names}")
    used = inspect.signature(OPTIMIZERS[name]).parameters
    for label, value in numbers.items():
        if label not in used:
            raise UserError(f"{name} does not use {label} (got {value}): remove that setting")
    if name == "schedule_free" and schedule != "constant":
        raise UserError(f"schedule_free requires the schedule 'constant' (got {schedule!r})")
    own = OPTIMIZERS[name](rate, weight_decay, **numbers)
    return (optax.chain(optax.clip_by_global_norm(clip_norm), own) if clip_norm else own), rate


def make_adam(
    rate: Schedule, weight_decay: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Return Adam (Kingma and Ba 2015)."""
    if weight_decay:
        return optax.adamw(rate, b1, b2, eps, weight_decay=weight_decay, mask=_decayed)
    return optax.adam(rate, b1, b2, eps)


def make_lion(
    rate: Schedule, weight_decay: float, b1: float = 0.9, b2: float = 0.99
) -> optax.GradientTransformation:
    """Return Lion (Chen et al. 2023)."""
    return optax.lion(rate, b1, b2, weight_decay=weight_decay, mask=_decayed)


def make_muon(
    rate: Schedule, weight_decay: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Return Muon (Jordan et al. 2024).

    Updates are scaled to a root mean square of 0.2 (Liu et al. 2025). Biases and embeddings are
    updated by Adam with Nesterov momentum, which uses `b1`, `b2` and `eps`.
    """
    muon = functools.partial(
        optax.contrib.muon,
        eps=eps,
        adam_b1=b1,
        adam_b2=b2,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=_matrices,
    )
    if not weight_decay:
        return muon(rate)
    # The weight decay of optax's Muon would exclude the parameters that Adam updates.
    falling = optax.add_decayed_weights(-weight_decay, _decayed)
    return optax.chain(muon(1.0), falling, optax.scale_by_schedule(rate))


def make_rmsprop(
    rate: Schedule, weight_decay: float, b2: float = 0.99, eps: float = 1e-5
) -> optax.GradientTransformation:
    """Return RMSProp (Tieleman and Hinton 2012)."""
    if weight_decay:
        raise UserError(
            f"rmsprop does not support weight_decay (got {weight_decay}): set weight_decay to 0"
        )
    return optax.rmsprop(rate, decay=b2, eps=eps)


def make_schedule_free(
    rate: Schedule, weight_decay: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Return schedule-free Adam, which averages parameters instead of decaying the learning rate.

    See Defazio et al. (2024). Evaluate the model at the parameters from `schedule_free_average`.
    """
    adam = optax.adamw(rate, 0.0, b2, eps, weight_decay=weight_decay, mask=_decayed)
    # Optax counts the steps of this average from 1.
    return optax.contrib.schedule_free(adam, lambda count: rate(count - 1), b1)


#: Optimizers by name, as functions of (schedule, weight decay, further options).
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": make_adam,
    "lion": make_lion,
    "muon": make_muon,
    "rmsprop": make_rmsprop,
    "schedule_free": make_schedule_free,
}


def _decayed(params: PyTree) -> PyTree:
    # Biases and scales of the predictors are stacked over offsets, so ndim alone is not enough.
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            jnp.ndim(leaf) > 1 and not any(word in str(path[-1:]) for word in ("bias", "scale"))
        ),
        params,
    )


def _matrices(params: PyTree) -> PyTree:
    """Return, per leaf, the axes that Muon uses as rows and columns, or None to use Adam.

    Stacked matrices are orthogonalized separately: a predictor's matrices W_k, blocks of recurrent
    weights, and weights of networks that are stacked over offsets.
    """
    axes = optax.contrib.MuonDimensionNumbers

    def of_leaf(path: Any, leaf: Array, is_weights: bool) -> Any:
        names = [str(getattr(key, "key", key)) for key in path]
        if not is_weights or names[-1] == "embedding":
            return None
        if jnp.ndim(leaf) == 3 and "W" in names:
            return axes(0, 2)
        if jnp.ndim(leaf) == 3 and (names[-1].startswith("recurrent") or "offsets" in names):
            return axes(1, 2)
        return axes(tuple(range(jnp.ndim(leaf) - 1)), -1)

    return jax.tree_util.tree_map_with_path(of_leaf, params, _decayed(params))


def schedule_free_average(opt_state: PyTree, params: PyTree) -> PyTree | None:
    """Return schedule-free Adam's averaged parameters, or None for other optimizers.

    Adam updates parameters z. Their average x is weighted by the squared learning rate, and
    gradients are computed at y = b1 x + (1 - b1) z. So x = (y - (1 - b1) z) / b1 (Defazio et al.
    2024).

    Args:
        opt_state: the optimizer state after an update.
        params: the parameters y after the same update.
    """
    is_own = lambda node: isinstance(node, optax.contrib.ScheduleFreeState)  # noqa: E731
    for node in jax.tree.leaves(opt_state, is_leaf=is_own):
        if is_own(node):
            return optax.contrib.schedule_free_eval_params(node, params)
    return None


def make_schedule(
    learning_rate: float, warmup_steps: int, num_steps: int, schedule: str
) -> Schedule:
    """Make a learning rate schedule with a linear warm-up, as a function of the step.

    The rate is learning_rate * min(1, (step + 1) / warmup_steps) * fall, where fall is 1
    ("constant"), (1 + cos(pi * progress)) / 2 ("cosine") or 1 - progress ("linear"), and progress
    increases from 0 at the end of the warm-up to 1 at `num_steps`.

    >>> rate = make_schedule(0.8, 4, 12, "cosine")
    >>> [round(float(rate(step)), 3) for step in (0, 3, 4, 8, 12)]
    [0.2, 0.8, 0.8, 0.4, 0.0]
    """
    if schedule not in ("constant", "cosine", "linear"):
        raise UserError(
            f"the schedule is unknown (got {schedule!r}): choose 'constant', 'cosine' or 'linear'"
        )
    if not learning_rate > 0:
        raise UserError(f"learning_rate must be above zero (got {learning_rate})")
    if not 0 <= warmup_steps <= num_steps:
        raise UserError(
            f"warmup_steps is {warmup_steps}, but must be between 0 and num_steps {num_steps}"
        )

    def rate(step: Any) -> Any:
        warm = jnp.minimum(1.0, (step + 1) / max(warmup_steps, 1))
        if schedule == "constant":
            return learning_rate * warm
        progress = jnp.clip((step - warmup_steps) / max(num_steps - warmup_steps, 1), 0.0, 1.0)
        fall = 1 - progress if schedule == "linear" else 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return learning_rate * warm * fall

    return rate


def scale_by_layer(decay: float, parts: Sequence[str]) -> optax.GradientTransformation:
    """Scale each update by `decay` to the power of its layer's depth below the head.

    These layer-wise learning rates are used for fine-tuning (Clark et al. 2020, ELECTRA; Bao et al.
    2021, BEiT), because the lowest layers are the most general and should change the least. Chain
    this transformation after an optimizer.

    Args:
        decay: a layer's learning rate divided by that of the layer above. 1 gives equal rates.
        parts: submodule names from the head down; "context" includes context_backward. The numbers
            in variable names order a submodule's layers. Stem and input are below all numbered
            layers, and variables without a number are in the highest layer. Other submodules learn
            at the full rate.

    >>> params = {"encoder": {"conv0": 1.0, "conv1": 1.0}, "context": {"w": 1.0}, "head": 1.0}
    >>> update, _ = scale_by_layer(0.5, ("context", "encoder")).update(params, optax.EmptyState())
    >>> {part: jax.tree.map(float, own) for part, own in update.items()}
    {'context': {'w': 0.5}, 'encoder': {'conv0': 0.125, 'conv1': 0.25}, 'head': 1.0}
    """

    def place(path: Any) -> tuple[str, tuple[int, ...]] | None:
        """Return a variable's submodule and layer numbers, or None if it is not in `parts`."""
        own, *below = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        part = next((part for part in parts if own == part or own.startswith(f"{part}_")), None)
        if part is None:
            return place(path[1:]) if below else None
        if {"stem", "input"} & {*below}:
            return part, (-1,)
        numbers = (re.findall(r"\d+", name) for name in below)
        return part, tuple(map(int, next(filter(None, numbers), ())))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        places = {place(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates)}
        found = sorted((one for one in places if one), reverse=True)
        depths: dict[Any, int] = {None: 0}
        depth = 0
        for part in parts:
            own = [one for one in found if one[0] == part]
            numbered = [one for one in own if one[1]] or own
            depths |= {one: depth + i for i, one in enumerate(numbered, start=1)}
            depths[part, ()] = depth + 1
            depth += len(numbered)
        scale = lambda path, leaf: leaf * decay ** depths[place(path)]  # noqa: E731
        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
