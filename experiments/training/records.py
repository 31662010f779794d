"""Records of a run: summaries of its training steps and evaluations."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.estimators import GroupSplit, Track, Tracker, bound_over_sequences, split_by_group
from cpc.evaluate import feature_spread
from cpc.results import headline_mask, name_of, offset_ranges, rule_title
from cpc.train import TrainState, put_batch, run_on_first
from cpc.types import CPCOutputs, SoundPosition
from experiments.command.config import Config
from experiments.training import objective
from experiments.training.plan import Plan
from experiments.training.problem import Probe, Problem, model_variables

#: Metrics of the objective that are recorded in training, averaged over steps.
TRAIN_METRICS = ("temperature", "queue_age", "frames_per_prediction")
#: Metrics of the objective that are recorded in evaluation, averaged over batches.
EVAL_METRICS = ("frames_per_prediction",)
#: Tracker of the strict bound. This bound holds for any loss and negative rule of a run.
STRICT = Tracker(True, "one_per_sequence")


def strict_sums(
    plan: Plan,
    params: Any,
    state: Any,
    batches: Sequence[Sequence[objective.BranchOutputs]],
    by_group: bool = False,
) -> tuple[Any, list[tuple[CPCOutputs, Any]]]:
    """Return the summed terms of the strict bound, without gradient, and the scored outputs.

    All sequences are contrasted with each other, except pairs that share sound. With `by_group`,
    the sums are a `GroupSplit`. The outputs of all batches and their mask are returned per branch.
    """
    tau, parts, all_scored = objective.temperature(plan, params, state), [], []
    branch_outputs = zip(*jax.lax.stop_gradient(batches), strict=True)
    for branch, rows in zip(plan.geometry.branches, branch_outputs, strict=True):
        arrays = []
        for outputs, place, mask in rows:
            sound = (place.window, place.end) if isinstance(place, SoundPosition) else None
            groups = jnp.broadcast_to(place.group, outputs.z.shape[:-1]).reshape(len(outputs.z), -1)
            arrays.append((objective.scored(plan, outputs), mask, sound, groups[:, 0]))
        outputs, mask, sound, group = jax.tree.map(lambda *x: jnp.concatenate(x), *arrays)
        pair, options = (outputs.z, outputs.predictions / tau), {"where": mask, "sound": sound}
        if by_group:
            parts.append(split_by_group(*pair, group, branch.offsets, **options))
        else:
            parts.append(bound_over_sequences(*pair, branch.offsets, **options))
        all_scored.append((outputs, mask))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts), all_scored


def bound_metrics(plan: Plan, tracker: Tracker, track: Track) -> dict[str, Any]:
    """Return a tracker's estimates by offset, with branch names if there are several branches."""
    branches, description = plan.geometry.branches, plan.description
    offsets = [k for branch in branches for k in branch.offsets]
    shared = [s for one in branches for s in one.shared or (None,) * len(one.offsets)]
    shared = shared if any(branch.shared for branch in branches) else None
    record = describe_offsets(tracker, track, offsets, shared)
    if len(branches) > 1:
        record["directions"] = [branch.name for branch in branches for _ in branch.offsets]
    if not tracker.has_log_n:
        record |= {"top1": mean_of_known(track.acc_top1), "chance": mean_of_known(track.chance)}
        optima = {"optimum": description.optimum, "posterior": description.posterior}
        record |= {name: value for name, value in optima.items() if value}
    return record


def describe_offsets(
    tracker: Tracker, track: Track, offsets: Sequence[int], shared: Any = None
) -> dict[str, Any]:
    """Return a tracker's estimates by offset, with log N - L if the loss has a log N.

    `shared` is the fraction of each target's input that its context has seen, if known.
    """
    return {
        "rule": tracker.rule,
        "is_bound": tracker.is_bound,
        "offsets": list(offsets),
        "n": track.n,
        "offset_loss": track.loss,
        "acc_top1": track.acc_top1,
        "chance_top1": track.chance,
        "acc_pairwise": track.acc_pairwise,
        "has_bound": tracker.has_log_n,
        **({} if shared is None else {"shared": shared}),
        **(describe_bound(track, offsets, shared) if tracker.has_log_n else {}),
    }


def describe_bound(track: Track, offsets: Sequence[int], shared: Any = None) -> dict[str, Any]:
    """Return log N - L with interval and ceiling, and its mean over offsets in `headline_mask`."""
    mask = headline_mask(offsets, track.value, track.state, shared)
    return {
        "log_n": track.log_n,
        "bound": track.value,
        "bound_low": track.low,
        "bound_high": track.high,
        "state": list(track.state),
        "nats": mean_of_known(track.value[mask]),
        "nats_offsets": offset_ranges(np.asarray(offsets)[mask]),
    }


def describe_split(split: GroupSplit) -> dict[str, Any]:
    """Return the strict bound within and between groups by offset, or {} if groups are unused."""
    within, between = STRICT(split.within), STRICT(split.between)
    left_out = split.whole.anchors - split.within.anchors
    if not ((split.within.anchors > 0) & (split.between.n > 0)).any():
        return {}
    values = {"within": within.value, "within_low": within.low, "within_high": within.high}
    values |= {"between": between.value, "between_low": between.low, "between_high": between.high}
    values |= {"within_n": within.n, "within_log_n": within.log_n, "left_out": left_out}
    return values | {"within_state": list(within.state)}


def describe_record(record: Mapping[str, Any]) -> str:
    """Format a training or evaluation record as text, averaging losses over offsets.

    >>> strict = {"split": "test", "series": "strict", "rule": "one_per_sequence"}
    >>> strict |= {"offset_loss": np.array([1.0, 2.0]), "log_n": np.array([4.0, 4.0])}
    >>> strict |= {"has_bound": True, "is_bound": True, "nats": 2.5, "nats_offsets": "5–12"}
    >>> describe_record(strict)
    'lower bound 2.50 nats at offsets 5–12 of log N 4.00 (one per sequence)'
    """
    if record.get("series") == "probes":
        scores = {k: v for k, v in record.items() if "/" in k}
        return "  ".join(f"{name} {value:.3f}" for name, value in scores.items())
    is_train, losses = record.get("split", "train") == "train", np.asarray(record["offset_loss"])
    rule = "" if is_train else f" ({rule_title(record['rule'])})"
    if np.isnan(losses).all():
        return f"no loss at any offset: the batch has no anchors, or the loss is NaN{rule}"
    loss = f"loss {format_number(mean_of_known(losses), 3)}"
    if record["has_bound"]:
        bound = f"{'lower bound' if record['is_bound'] else 'estimate'} {format_nats(record)}"
        ceiling = f"of log N {mean_of_known(np.asarray(record['log_n'])):.2f}"
        if record.get("series") == "strict":
            return f"{bound} {ceiling}{rule}"
        return f"{loss} {ceiling}  {bound}{rule}"
    top1, chance = 100 * record["top1"], 100 * record["chance"]
    line = f"{loss}  top-1 {top1:.1f} % (chance {chance:.2g} %){rule}"
    if math.isnan(record.get("strict_nats", math.nan)):
        return line
    return f"{line}  lower bound {format_nats(record, 'strict_')}"


def format_nats(record: Mapping[str, Any], series: str = "") -> str:
    """Format the mean of log N - L with the offsets that it averages over."""
    offsets = record.get(f"{series}nats_offsets", "")
    several = "s" * any(mark in offsets for mark in "–,")
    where = f" at offset{several} {offsets}" if offsets else ""
    return f"{format_number(record[f'{series}nats'], 2)} nats{where}"


def format_number(value: float, decimals: int) -> str:
    """Format a number with fixed decimals, or with three significant digits from 1e5 on.

    >>> format_number(2.5, 2), format_number(-3e17, 2), format_number(-1e-3, 2)
    ('2.50', '-3e+17', '0.00')
    """
    return f"{value:z.{decimals}f}" if abs(value) < 1e5 else f"{value:.3g}"


def mean_of_known(values: np.ndarray) -> float:
    """Return the mean of the non-NaN values by offset, or NaN if there are none.

    Values are NaN at far offsets without anchors in short clips. Infinite losses are included.
    """
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def sum_with_anchors(losses: np.ndarray, anchors: np.ndarray) -> float:
    """Sum the losses over offsets that have an anchor, or return NaN if no offset has one.

    >>> losses = np.array([1.5, np.nan, 1.0])
    >>> sum_with_anchors(losses, np.array([4, 0, 2])), sum_with_anchors(losses, np.ones(3))
    (2.5, nan)
    """
    used = losses[anchors > 0]
    return float(used.sum()) if used.size else float("nan")


def make_summary(
    problem: Problem, schedule: Callable, say: Callable[[str], None]
) -> Callable[[Mapping[str, Any], int], dict[str, Any]]:
    """Return summarize(sums, step), which records a window of steps and prints new warnings."""
    tracker = make_tracker(problem.plan)
    last = ""
    branches = problem.plan.geometry.branches
    is_named = len(branches) > 1
    labels = [f"{k} {one.name}" if is_named else f"{k}" for one in branches for k in one.offsets]

    def summarize(sums, step):
        nonlocal last
        track = tracker(sums["offsets"])
        strict = STRICT(sums["strict"]) if "strict" in sums else None
        found = tracker.warning(track, labels) if strict is None else STRICT.warning(strict, labels)
        warning = found or "" if sums["steps"] else ""
        steps = sums["steps"] or math.nan  # 0 if no step was finite
        own = bound_metrics(problem.plan, tracker, track)
        bound = describe_bound(strict, own["offsets"], own.get("shared")) if strict else {}
        kind = warning.split(":")[0]
        if kind and kind != last:
            say(f"step {step:,}: {warning}")
        last = kind
        return {
            "loss": sums["loss"] / steps,
            "gradient_norm": sums["gradient_norm"] / steps,
            "learning_rate": float(schedule(step - 1)),
            **{name: sums[name] / steps for name in TRAIN_METRICS if name in sums},
            **{k: v / steps for k, v in sums.get("model", {}).items()},
            **own,
            **{f"strict_{k}": v for k, v in bound.items()},
        }

    return summarize


def make_tracker(plan: Plan) -> Tracker:
    """Return the tracker of the plan's training loss."""
    return Tracker(plan.is_bound, plan.negatives, plan.description.has_log_n)


def probes_due(config: Config, step: int) -> bool:
    """Return whether the evaluation at `step`, unless it is the last step, fits probes."""
    every = config.probe.every
    return every > 0 and step % every == 0 and step < config.num_steps


def make_evaluation(
    problem: Problem, probe: Probe, mesh: jax.sharding.Mesh
) -> Callable[[TrainState], list[dict[str, Any]]]:
    """Return evaluate(state) -> records of loss, strict bound, feature spread and due probes."""
    plan, held_out = problem.plan, problem.held_out
    if held_out is None:
        return lambda state: []

    def put_all(draw: Callable[[int], Any]) -> list[Any]:
        return [put_batch(draw(i), mesh) for i in range(held_out.number)]

    batches = independent = put_all(held_out.draw)
    # The strict bound needs draws from the marginal, unlike batches of one speaker.
    if held_out.draw_independent is not held_out.draw:
        independent = put_all(held_out.draw_independent)
    rng, reducer, tracker = jax.random.key(0), objective.reducer_of(mesh), make_tracker(plan)

    # Jitted separately: inlined in `measure_strict` it would be compiled for every batch.
    @jax.jit
    def predict(variables: Any, batch: Any):
        batch = problem.preprocess(batch, rng, False)
        return problem.split_branches(problem.model.apply(variables, batch, False)[0], batch)

    @jax.jit
    def measure(own, branches):
        _, sums, _, metrics = objective.objective_loss(
            plan, own[0], own[1], branches, rng, False, reducer=reducer
        )
        return sums, {name: metrics[name] for name in EVAL_METRICS if name in metrics}

    @jax.jit
    def measure_strict(own, batches):
        strict, all_scored = strict_sums(plan, own[0], own[1], batches, by_group=True)
        (z, c, _), mask = all_scored[0]
        where = None if mask is None else mask.ravel()
        return strict, *(feature_spread(x.reshape(-1, x.shape[-1]), where) for x in (z, c))

    def evaluate(state):
        variables = model_variables(state.params, state.ema, state.extra)
        own = (state.ema or state.params)["objective"], state.extra["objective"]
        step = int(state.step)

        # One at a time: concurrent programs can deadlock if a CPU is split into several devices.
        outputs = [jax.block_until_ready(predict(variables, batch)) for batch in batches]
        measured = [jax.device_get(measure(own, one)) for one in outputs]
        sums, means = jax.tree.map(lambda *leaves: sum(leaves), *measured)
        track = tracker(sums)
        if independent is not batches:
            outputs = [jax.block_until_ready(predict(variables, batch)) for batch in independent]
        found, (std_z, rank_z), (std_c, rank_c) = jax.device_get(measure_strict(own, outputs))
        strict, split = STRICT(found.whole), describe_split(found)
        spread = {"std_z": std_z, "rank_z": rank_z, "std_c": std_c, "rank_c": rank_c}
        spread |= {name: value / len(batches) for name, value in means.items()}
        loss = {"loss": sum_with_anchors(track.loss, sums.anchors)}
        records = [
            {**loss, **spread, **bound_metrics(plan, tracker, track)},
            {"series": "strict"} | bound_metrics(plan, STRICT, strict) | split,
        ]
        if probes_due(plan.config, step):
            scores = run_on_first(probe, variables, step) or []
            records.append({"series": "probes"} | {name_of(one): one.value for one in scores})
        return records

    return evaluate
