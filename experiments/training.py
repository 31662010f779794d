"""What the experiments share: the negative rule, the training run, and the records it writes."""

import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cpc import negatives
from cpc.data import prefetch
from cpc.estimators import Track, Tracker, bound_over_sequences
from cpc.evaluate import feature_spread
from cpc.losses import OffsetSums
from cpc.models import Model
from cpc.train import (
    JsonlWriter,
    ProgressWriter,
    TensorBoardWriter,
    TrainState,
    fit,
    init_state,
    jit_step,
    make_optimizer,
    make_train_step,
    open_checkpoints,
    put_batch,
    replicate,
    stop_on_signals,
)
from cpc.types import Batch, CPCOutputs, UserError
from experiments.launch import Config

RULES = (
    negatives.batch,
    negatives.excluding_sequence,
    negatives.own_sequence,
    negatives.same_group,
    negatives.one_per_sequence,
)


class Problem(NamedTuple):
    """What makes one problem differ from another."""

    model: Model
    score: Callable[[CPCOutputs, Batch, Any], tuple[Any, OffsetSums]]
    """score(outputs, batch, rng) -> the loss and its sums per offset."""
    rule: negatives.Rule
    draw: Callable[[int], Batch]
    """Index of a step -> its batch."""
    draw_test: Callable[[int], Batch] | None
    """Held-out batches, drawn as those of the training; None for no evaluation."""
    draw_any_test: Callable[[int], Batch] | None
    """Held-out batches of independently drawn windows, for the strict bound."""
    audio_hours: float
    """Sound in a batch, in hours."""
    probe: Callable[[Any, int], dict[str, float]]
    """probe(variables, step) fits and records the probes; returns accuracies by name."""


def build_rule(config: Config) -> negatives.Rule:
    """The negative rule of a config, with its window and its groups."""
    named = {rule.name: rule for rule in RULES}
    options, batch_size = config.negatives, config.data.batch_size
    if options.rule not in named:
        raise UserError(f"negatives.rule is {options.rule!r}: choose one of {', '.join(named)}")
    rule = named[options.rule]
    if options.window:
        rule = rule & negatives.outside_window(options.window)
    if options.groups != 1:
        rule = rule & negatives.within_shards(options.groups, batch_size)
    return rule


def train(
    config: Config, workdir: pathlib.Path, problem: Problem, mesh: jax.sharding.Mesh
) -> tuple[str, Any]:
    """Train to the last step or to a signal; returns the signal's name and the variables."""
    state, step, schedule = make_step(config, problem, mesh)

    def batches(first):
        threads = config.data.num_threads
        for batch in prefetch(problem.draw, first, config.num_steps, num_threads=threads):
            yield put_batch(batch, mesh)

    checkpoint = open_checkpoints(workdir / "checkpoints", print)
    with checkpoint, stop_on_signals() as stop:
        restored = checkpoint.restore(state)
        state = restored[0] if restored else state
        start = int(state.step)
        console = ProgressWriter(
            config.num_steps, ("loss", "nats"), (problem.audio_hours, "h audio")
        )
        if start:
            console.say(f"resuming from step {start:,}")
        jsonl = workdir / "metrics.jsonl"
        writers = [
            JsonlWriter(jsonl, start),
            TensorBoardWriter(workdir / "tensorboard", start),
            console,
        ]
        state, reason = fit(
            state,
            step,
            batches,
            num_steps=config.num_steps,
            summarize=make_summary(problem, schedule, console.say, seconds_recorded(jsonl)),
            log_every=config.log_every,
            evaluate=make_evaluation(config, problem, mesh),
            eval_every=config.eval_every,
            checkpoint=checkpoint,
            save_every=config.save_every,
            best="held_out_loss",
            writers=writers,
            stop=stop,
        )
        for writer in writers:
            writer.close()
    return reason, trained_variables(state)


def make_step(
    config: Config, problem: Problem, mesh: jax.sharding.Mesh
) -> tuple[TrainState, Callable[[TrainState, Batch], TrainState], Callable]:
    """The state before the first step, the compiled step, and the learning rate by step."""
    tx, schedule = make_optimizer(
        learning_rate=config.optim.learning_rate,
        warmup_steps=config.optim.warmup_steps,
        num_steps=config.num_steps,
        schedule=config.optim.schedule,
        clip_norm=config.optim.clip_norm,
        weight_decay=config.optim.weight_decay,
    )
    loss_fn = make_loss(problem)
    state = replicate(make_state(config, problem, loss_fn, tx), mesh)
    step = make_train_step(loss_fn, tx, ema_decay=config.optim.ema_decay)
    return state, jit_step(step, state), schedule


def make_loss(problem: Problem) -> Callable:
    """loss_fn(params, extra, batch, rng) -> (loss, (extra, metrics)), on the global batch."""

    def loss_fn(params, extra, batch, rng):
        outputs, extra = problem.model.apply({"params": params, **extra}, batch, True, rng)
        loss, sums = problem.score(outputs, batch, rng)
        return loss, (extra, {"offsets": sums})

    return loss_fn


def make_state(config: Config, problem: Problem, loss_fn: Callable, tx: Any) -> TrainState:
    """The state before the first step."""
    root, batch = jax.random.key(config.seed), problem.draw(0)
    extra = dict(problem.model.init(jax.random.fold_in(root, 0), batch))
    params = extra.pop("params")
    _, (_, metrics) = jax.eval_shape(loss_fn, params, extra, batch, root)
    has_ema = config.optim.ema_decay > 0
    return init_state(params, extra, tx, jax.random.fold_in(root, 1), metrics, has_ema)


def trained_variables(state: TrainState) -> Any:
    """The model's variables as they are evaluated: the running average, if there is one."""
    return {"params": state.params if state.ema is None else state.ema, **state.extra}


def describe_track(tracker: Tracker, track: Track) -> dict[str, Any]:
    """The per-offset numbers of a record."""
    return {
        "rule": tracker.rule,
        "is_bound": tracker.is_bound,
        "offsets": list(range(1, len(track.n) + 1)),
        "n": track.n,
        "log_n": track.log_n,
        "offset_loss": track.loss,
        "bound": track.value,
        "bound_low": track.low,
        "bound_high": track.high,
        "acc_top1": track.acc_top1,
        "chance_top1": 1 / track.n,
        "acc_pairwise": track.acc_pairwise,
        "state": list(track.state),
        "nats": float(np.mean(track.value)),
    }


def seconds_recorded(jsonl: pathlib.Path) -> float:
    """How long the run has trained so far, before this start."""
    records = [json.loads(line) for line in jsonl.read_text().splitlines()]
    return max((record.get("seconds") or 0.0 for record in records), default=0.0)


def make_summary(
    problem: Problem, schedule: Callable, say: Callable[[str], None], seconds_before: float = 0.0
) -> Callable[[Mapping[str, Any], int], dict[str, Any]]:
    """Turns the sums of a window of steps into its record; says so when the state changes."""
    tracker = Tracker(problem.rule.is_bound, problem.rule.name)
    begin, last = time.time() - seconds_before, ""

    def summarize(sums, step):
        nonlocal last
        track = tracker(sums["offsets"])
        warning = tracker.warning(track) or "" if sums["steps"] else ""
        kind = warning.split(":")[0]
        if kind and kind != last:
            say(f"step {step:,}: {warning}")
        last = kind
        return {
            "loss": sums["loss"] / max(sums["steps"], 1.0),
            "gradient_norm": sums["gradient_norm"] / max(sums["steps"], 1.0),
            "learning_rate": float(schedule(step - 1)),
            "seconds": time.time() - begin,
            "audio_hours_per_step": problem.audio_hours,
            **describe_track(tracker, track),
        }

    return summarize


def make_evaluation(
    config: Config, problem: Problem, mesh: jax.sharding.Mesh
) -> Callable[[TrainState], list[dict[str, Any]]]:
    """Held-out batches: the loss under the training rule, the strict bound, and the spread.

    Every `probe.every` steps also the probes.
    """
    if problem.draw_test is None or problem.draw_any_test is None:
        return lambda state: []
    num_batches = -(-config.evaluate.num_windows // config.data.batch_size)
    batches = [put_batch(problem.draw_test(i), mesh) for i in range(num_batches)]
    # A batch of one speaker is not drawn from the marginal, and the strict bound needs that.
    mixed = [put_batch(problem.draw_any_test(i), mesh) for i in range(num_batches)]
    tracker = Tracker(problem.rule.is_bound, problem.rule.name)

    @jax.jit
    def measure(variables, batch):
        outputs, _ = problem.model.apply(variables, batch, False)
        return problem.score(outputs, batch, jax.random.key(0))[1]

    @jax.jit
    def together(variables, batches):
        outputs = [problem.model.apply(variables, batch, False)[0] for batch in batches]
        z, c, predictions = jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
        strict = bound_over_sequences(z, predictions / config.negatives.temperature)
        return strict, *(feature_spread(x.reshape(-1, x.shape[-1])) for x in (z, c))

    def evaluate(state):
        variables, step = trained_variables(state), int(state.step)
        sums = [measure(variables, batch) for batch in batches]
        track = tracker(jax.device_get(jax.tree.map(lambda *leaves: sum(leaves), *sums)))
        strict, (std_z, rank_z), (std_c, rank_c) = jax.device_get(together(variables, mixed))
        held_out = float(np.sum(track.loss))
        spread = {"std_z": std_z, "rank_z": rank_z, "std_c": std_c, "rank_c": rank_c}
        records = [
            {
                "held_out_loss": held_out,
                "loss": held_out,
                **spread,
                **describe_track(tracker, track),
            },
            {
                "series": "strict",
                **describe_track(Tracker(True, "one_per_sequence"), Tracker(True)(strict)),
            },
        ]
        every = config.probe.every
        if every and step % every == 0 and step < config.num_steps:
            records.append({"series": "probes", **problem.probe(variables, step)})
        return records

    return evaluate
