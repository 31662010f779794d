r"""Contrastive predictive coding on raw waveforms (van den Oord et al. 2018, section 3.1).

Trains, watches the information, probes the frozen features and writes a report:

    python -m experiments.audio --config configs/audio_voices.py --workdir runs/voices

Any key of the config can be set, and the same command again resumes:

    python -m experiments.audio --config configs/audio_voices.py --workdir runs/low \
        --config.optim.learning_rate=1e-4
"""

import functools
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs import audio_voices
from cpc import negatives, report
from cpc.data import SAMPLE_RATE_HZ, make_batches, prefetch
from cpc.estimators import Track, Tracker, bound_over_sequences
from cpc.evaluate import feature_spread
from cpc.losses import cpc_loss
from cpc.models import (
    CPC,
    GRU,
    LSTM,
    CausalConv,
    CausalTransformer,
    ConvEncoder,
    LinearPredictor,
    Model,
    make_model,
)
from cpc.train import (
    JsonlWriter,
    ProgressWriter,
    TensorBoardWriter,
    TrainState,
    check_batch_size,
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
from cpc.types import Batch, Position, UserError
from experiments import audio_probes, launch
from experiments.audio_data import AudioData, load_data, synthetic_truth, write_skipped
from experiments.launch import Config

CONFIG = launch.define_config()

CONTEXTS = {"gru": GRU, "lstm": LSTM, "conv": CausalConv, "transformer": CausalTransformer}
RULES = (
    negatives.batch,
    negatives.excluding_sequence,
    negatives.own_sequence,
    negatives.same_group,
    negatives.one_per_sequence,
)


def main() -> None:
    """The command."""
    if CONFIG.value is None:
        raise UserError("no --config is given: name one, such as configs/audio_voices.py")
    run(CONFIG.value, launch.WORKDIR.value, launch.DEVICE.value)


def run(config: Config, workdir: str | None, device: str = "auto") -> None:
    """Train, probe, report; stopped by a signal, say how to resume."""
    launch.check_config(config, audio_voices.get_config())
    audio_probes.check_options(config.probe)
    mesh = launch.start(device)
    check_batch_size(config.data.batch_size, mesh)
    rule, model = build_rule(config), build_model(config.model)
    folder = launch.open_run(workdir, config)
    data = load_data(config, print)
    write_skipped(folder, data)
    if config.data.source == "synthetic":
        encoder = ConvEncoder(padding=config.model.padding)
        truth = synthetic_truth(config.model.num_offsets, encoder.receptive_field, encoder.stride)
        launch.write_json(folder / "truth.json", truth)

    reason, variables = train(config, folder, data, model, rule, mesh)
    if reason:
        print(f"stopped by {reason}; to resume: {launch.command_line()}")
        return
    audio_probes.run_tasks(config, folder, data, model, variables, config.num_steps)
    print(f"report: {report.write_report(folder)}")


def build_model(config: Config) -> Model:
    """Encoder, context and predictor by the config's words."""
    if config.context not in CONTEXTS:
        raise UserError(f"model.context is {config.context!r}: choose one of {', '.join(CONTEXTS)}")
    if config.dtype not in ("float32", "bfloat16"):
        raise UserError(f"model.dtype is {config.dtype!r}: choose float32 or bfloat16")
    dtype = jnp.dtype(config.dtype)
    return make_model(
        CPC(
            ConvEncoder(config.width, norm=config.norm, padding=config.padding, dtype=dtype),
            CONTEXTS[config.context](config.context_width, config.context_layers, dtype=dtype),
            LinearPredictor(config.num_offsets, config.width, dtype=dtype),
        )
    )


def build_rule(config: Config) -> negatives.Rule:
    """The negative rule, with its window and its groups."""
    named = {rule.name: rule for rule in RULES}
    options = config.negatives
    if options.rule not in named:
        raise UserError(f"negatives.rule is {options.rule!r}: choose one of {', '.join(named)}")
    batch_size = config.data.batch_size
    rule = named[options.rule]
    needs_others = rule.name in ("excluding_sequence", "one_per_sequence")
    if needs_others and batch_size // max(options.groups, 1) < 2:
        raise UserError(
            f"a batch of {batch_size} in {options.groups} group(s) leaves the rule {rule.name} no "
            "negatives: raise data.batch_size"
        )
    if options.window:
        rule = rule & negatives.outside_window(options.window)
    if options.groups != 1:
        rule = rule & negatives.within_shards(options.groups, batch_size)
    return rule


def positions(batch: Batch, num_latents: int) -> Position:
    """Where the latents of a batch of windows come from."""
    return Position(
        sequence=batch["sequence"][:, None],
        time=jnp.arange(num_latents)[None],
        lane=jnp.zeros((1, 1), jnp.int32),
        group=batch["speaker"][:, None],
    )


def make_loss(config: Config, model: Model, rule: negatives.Rule) -> Callable:
    """loss_fn(params, extra, batch, rng) -> (loss, (extra, metrics)), on the global batch."""
    options = config.negatives
    sample = None
    if options.num_sampled:
        sample = functools.partial(negatives.sample_uniform, num_negatives=options.num_sampled)

    def loss_fn(params, extra, batch, rng, train=True):
        outputs, extra = model.apply({"params": params, **extra}, batch, train, rng)
        loss, sums = cpc_loss(
            outputs,
            positions(batch, outputs.z.shape[1]),
            rule,
            temperature=options.temperature,
            sample=sample,
            rng=rng,
        )
        return loss, (extra, {"offsets": sums})

    return loss_fn


def train(
    config: Config,
    workdir: pathlib.Path,
    data: AudioData,
    model: Model,
    rule: negatives.Rule,
    mesh: jax.sharding.Mesh,
) -> tuple[str, Any]:
    """Train to the last step or to a signal; returns the signal's name and the variables."""
    draw = make_batches(
        data.train,
        window_samples=config.data.window_samples,
        batch_size=config.data.batch_size,
        seed=config.seed,
        one_speaker=config.data.one_speaker,
        process=jax.process_index(),
        num_processes=jax.process_count(),
    )
    optim = config.optim
    tx, schedule = make_optimizer(
        learning_rate=optim.learning_rate,
        warmup_steps=optim.warmup_steps,
        num_steps=config.num_steps,
        schedule=optim.schedule,
        clip_norm=optim.clip_norm,
        weight_decay=optim.weight_decay,
    )
    loss_fn = make_loss(config, model, rule)
    state = make_state(config, model, loss_fn, tx, draw(0))
    state = replicate(state, mesh)
    step = jit_step(make_train_step(loss_fn, tx, ema_decay=optim.ema_decay), state)
    hours = config.data.batch_size * config.data.window_samples / SAMPLE_RATE_HZ / 3600

    with (
        open_checkpoints(workdir / "checkpoints", print) as checkpoints,
        stop_on_signals() as stop,
    ):
        restored = checkpoints.restore(state)
        state = restored[0] if restored else state
        start = int(state.step)
        console = ProgressWriter(config.num_steps, ("loss", "nats"), (hours, "h audio"))
        if start:
            console.say(f"resuming from step {start:,}")
        writers = [
            JsonlWriter(workdir / "metrics.jsonl", start),
            TensorBoardWriter(workdir / "tensorboard", start),
            console,
        ]
        state, reason = fit(
            state,
            step,
            lambda first: (
                put_batch(batch, mesh)
                for batch in prefetch(
                    draw, first, config.num_steps, num_threads=config.data.num_threads
                )
            ),
            num_steps=config.num_steps,
            summarize=make_summary(Tracker(rule.is_bound, rule.name), schedule, hours, console.say),
            log_every=config.log_every,
            evaluate=make_evaluation(config, data, model, rule, mesh),
            eval_every=config.eval_every,
            checkpoint=checkpoints,
            save_every=config.save_every,
            best="held_out_loss",
            metadata={"next_batch": "step"},
            writers=writers,
            stop=stop,
        )
        for writer in writers:
            writer.close()
    params = state.params if state.ema is None else state.ema
    return reason, {"params": params, **state.extra}


def make_state(config, model, loss_fn, tx, batch) -> TrainState:
    """The state before the first step."""
    root = jax.random.key(config.seed)
    variables = model.init(jax.random.fold_in(root, 0), batch)
    params = variables["params"]
    extra = {name: value for name, value in variables.items() if name != "params"}
    _, (_, metrics) = jax.eval_shape(loss_fn, params, extra, batch, root)
    return init_state(
        params, extra, tx, jax.random.fold_in(root, 1), metrics, config.optim.ema_decay > 0
    )


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


def make_summary(
    tracker: Tracker, schedule: Callable, hours: float, say: Callable[[str], None]
) -> Callable[[Mapping[str, Any], int], dict[str, Any]]:
    """Turns the sums of a window of steps into its record; says so when the state changes."""
    begin, last = time.time(), ""

    def summarize(sums, step):
        nonlocal last
        track = tracker(sums["offsets"])
        warning = tracker.warning(track) or ""
        kind = warning.split(":")[0]
        if kind and kind != last:
            say(f"step {step:,}: {warning}")
        last = kind
        return {
            "loss": sums["loss"] / sums["steps"],
            "gradient_norm": sums["gradient_norm"] / sums["steps"],
            "learning_rate": float(schedule(step - 1)),
            "seconds": time.time() - begin,
            "audio_hours": hours * step,
            **describe_track(tracker, track),
        }

    return summarize


def make_evaluation(
    config: Config,
    data: AudioData,
    model: Model,
    rule: negatives.Rule,
    mesh: jax.sharding.Mesh,
) -> Callable[[TrainState], list[dict[str, Any]]]:
    """Held-out windows: the loss under the training rule, the strict bound, and the spread."""
    size = config.data.batch_size
    num_batches = -(-config.evaluate.num_windows // size)
    if not num_batches:
        return lambda state: []
    draw = make_batches(
        data.test,
        window_samples=config.data.window_samples,
        batch_size=size,
        seed=config.seed + 1,
        one_speaker=config.data.one_speaker,
        process=jax.process_index(),
        num_processes=jax.process_count(),
    )
    batches = [put_batch(draw(i), mesh) for i in range(num_batches)]

    @jax.jit
    def embed(variables, batch):
        outputs, _ = model.apply(variables, batch, False)
        _, sums = cpc_loss(
            outputs,
            positions(batch, outputs.z.shape[1]),
            rule,
            temperature=config.negatives.temperature,
        )
        return outputs, sums

    @jax.jit
    def together(outputs):
        z, c, predictions = jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
        spread = [feature_spread(x.reshape(-1, x.shape[-1])) for x in (z, c)]
        return bound_over_sequences(z, predictions / config.negatives.temperature), spread

    def evaluate(state):
        params = state.params if state.ema is None else state.ema
        parts = [embed({"params": params, **state.extra}, batch) for batch in batches]
        sums = jax.tree.map(lambda *leaves: sum(leaves), *(sums for _, sums in parts))
        strict, spread = jax.device_get(together([outputs for outputs, _ in parts]))
        tracker = Tracker(rule.is_bound, rule.name)
        track = tracker(jax.device_get(sums))
        (std_z, rank_z), (std_c, rank_c) = spread
        held_out = float(np.nansum(track.loss))
        return [
            {
                "held_out_loss": held_out,
                "loss": held_out,
                "std_z": std_z,
                "rank_z": rank_z,
                "std_c": std_c,
                "rank_c": rank_c,
                **describe_track(tracker, track),
            },
            {
                "series": "strict",
                **describe_track(Tracker(True, "one_per_sequence"), Tracker(True)(strict)),
            },
        ]

    return evaluate


if __name__ == "__main__":
    launch.run(main)
