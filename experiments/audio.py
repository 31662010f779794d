r"""Contrastive predictive coding on raw waveforms (van den Oord et al. 2018, section 3.1).

Trains, watches the information, probes the frozen features and writes a report:

    python -m experiments.audio --config configs/audio_voices.py --workdir runs/voices

Any key of the config can be set, and the same command again resumes:

    python -m experiments.audio --config configs/audio_voices.py --workdir runs/low \
        --config.optim.learning_rate=1e-4
"""

import copy
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from configs import audio_voices
from cpc.data import SAMPLE_RATE_HZ, make_packed_batches, unpack
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
from cpc.train import check_batch_size
from cpc.types import Batch, Position, UserError
from experiments import audio_probes, launch, training
from experiments.audio_data import AudioData, label_frames, load_data, synthetic_truth
from experiments.audit import AUDIT
from experiments.launch import Config
from experiments.memory import check_memory
from experiments.objective import build_objective, build_rule
from experiments.run_problem import run_problem

CONTEXTS = {"gru": GRU, "lstm": LSTM, "conv": CausalConv, "transformer": CausalTransformer}


def run(
    config: Config, workdir: str | None, device: str = "auto", only_audit: bool = False
) -> None:
    """Check the config, read the data, and run the problem that they make."""
    if config is None:
        raise UserError("no --config is given: name one, such as configs/audio_voices.py")
    launch.check_config(config, audio_voices.get_config())
    audio_probes.check_options(config)
    mesh = launch.start(device)
    check_batch_size(config.data.batch_size, mesh)
    check_negatives(config)
    model = build_model(config.model)
    check_memory(config, mesh, num_latents(config), config.model.width, config.model.num_offsets)
    folder = launch.open_run(workdir, config, mesh)
    data = launch.load_in_turn(lambda: load_data(config, print))
    launch.write_skipped(folder, data.train.skipped)
    audio_probes.check_data(config, data)
    if config.data.source == "synthetic":
        encoder = ConvEncoder(padding=config.model.padding)
        truth = synthetic_truth(config.model.num_offsets, encoder.receptive_field, encoder.stride)
        launch.write_json(folder / "truth.json", truth)

    probe = functools.partial(audio_probes.run_tasks, config, folder, data, model)
    problem = make_problem(config, data, probe, mesh)
    run_problem(config, folder, problem, mesh, only_audit)


def make_problem(
    config: Config, data: AudioData, probe: Callable, mesh: jax.sharding.Mesh | None = None
) -> training.Problem:
    """Model, loss and batches of a config."""
    offsets = tuple(range(1, config.model.num_offsets + 1))
    evaluates = config.evaluate.num_windows > 0
    mixed = copy.deepcopy(config)
    mixed.data.one_speaker = False
    hours = config.data.batch_size * config.data.window_samples / SAMPLE_RATE_HZ / 3600
    return training.Problem(
        model=build_model(config.model),
        objective=build_objective(config, offsets, mesh),
        offsets=offsets,
        views=("forward",),
        prepare=lambda batch, rng, train: unpack(batch),
        look=lambda outputs, batch: [(outputs, positions(batch, outputs.z.shape[1]))],
        label=functools.partial(label_latents, config, data),
        draw=draw_windows(config, data.train, config.seed),
        draw_test=draw_windows(config, data.test, config.seed + 1) if evaluates else None,
        draw_any_test=draw_windows(mixed, data.test, config.seed + 1) if evaluates else None,
        num_tests=-(-config.evaluate.num_windows // config.data.batch_size),
        per_step=(hours, "h audio"),
        probe=probe,
    )


def build_model(config: Config) -> Model:
    """Encoder, context and predictor by the config's words."""
    launch.check_word("model.context", config.context, CONTEXTS)
    launch.check_word("model.dtype", config.dtype, launch.DTYPES)
    dtype = jnp.dtype(config.dtype)
    return make_model(
        CPC(
            ConvEncoder(
                config.width,
                norm=config.norm,
                padding=config.padding,
                dtype=dtype,
                remat=config.remat,
            ),
            CONTEXTS[config.context](config.context_width, config.context_layers, dtype=dtype),
            LinearPredictor(config.num_offsets, config.width, dtype=dtype),
        )
    )


def num_latents(config: Config) -> int:
    """Of a window."""
    return max(1, config.data.window_samples // ConvEncoder().stride)


def check_negatives(config: Config) -> None:
    """Some anchor has a negative at every offset, whoever speaks."""
    rule, batch_size = build_rule(config), config.data.batch_size
    length = num_latents(config)
    sequence, time = np.divmod(np.arange(batch_size * length), length)
    candidates = Position(sequence, time, np.zeros_like(time), np.zeros_like(time))
    for k in range(1, min(config.model.num_offsets, length - 1) + 1):
        first = np.arange(length - k)[:, None]  # the anchors of the first window
        anchors = Position(0 * first, first, 0 * first, 0 * first)
        if not np.any(rule(anchors, candidates, k)):
            raise UserError(
                f"the rule {rule.name} leaves a batch of {batch_size} windows no negatives at "
                f"offset {k}: raise data.batch_size, or choose another rule or window"
            )


def draw_windows(config: Config, recordings, seed: int) -> Callable[[int], Batch]:
    """Index of a step -> this process's share of its batch of windows."""
    return make_packed_batches(
        recordings,
        window_samples=config.data.window_samples,
        batch_size=config.data.batch_size,
        seed=seed,
        one_speaker=config.data.one_speaker,
        process=jax.process_index(),
        num_processes=jax.process_count(),
    )


def label_latents(config: Config, data: AudioData, batch: Batch) -> dict[str, np.ndarray]:
    """Phones where they are known, and speakers, of a training batch's latents (b, t)."""
    phones = label_frames(data, batch["utterance"], batch["start"], num_latents(config))
    known = {"phone": phones} if (phones >= 0).any() else {}
    return {**known, "speaker": batch["speaker"][:, None]}


def positions(batch: Batch, length: int) -> Position:
    """Where the latents of a batch of windows come from."""
    return Position(
        sequence=batch["sequence"][:, None],
        time=jnp.arange(length)[None],
        lane=jnp.zeros((1, 1), jnp.int32),
        group=batch["speaker"][:, None],
    )


if __name__ == "__main__":
    CONFIG = launch.define_config()
    launch.run(lambda: run(CONFIG.value, launch.WORKDIR.value, launch.DEVICE.value, AUDIT.value))
