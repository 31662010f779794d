"""Contrastive predictive coding on sound (van den Oord et al. 2018, section 3.1)."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from configs.audio import KEYS
from cpc.data import SAMPLE_RATE_HZ, TARGET_RMS, Recordings, make_packed_batches
from cpc.types import Batch, UserError
from experiments.command.config import Config, subset, with_settings
from experiments.kinds.audio import model
from experiments.kinds.audio.augmentation import check_augmentation, preprocess, record_augmentation
from experiments.kinds.audio.data import (
    AudioData,
    data_locations,
    known_nats,
    label_frames,
    load_data,
)
from experiments.kinds.audio.embed import embed_files
from experiments.kinds.audio.model import build_model, choose_offsets, num_latents
from experiments.kinds.audio.probes import check_options, feature_sets, probe_tasks
from experiments.kinds.audio.sections import PAGE
from experiments.training.checks import check_shared, check_signals, reject
from experiments.training.plan import Geometry, Plan
from experiments.training.probes import Probes
from experiments.training.problem import HeldOut, Problem
from experiments.training.sequences import write_truth

#: Code bitrates are unranked because a collapsed codebook has the lowest one.
PROBES = Probes(probe_tasks, feature_sets, data_locations, unranked=("codes",))

#: Maximum number of samples per synthetic recording. Thousands take about a minute to generate.
MAX_SYNTHETIC = 2**20


def make_problem(plan: Plan, data: AudioData) -> Problem:
    """Combine a validated config (`plan`) with its model, batches and held-out data."""
    config, held_out = plan.config, None
    if config.evaluate.num_windows > 0:
        draw = draw_mixed = draw_windows(config, data.test, config.seed + 1)
        if config.data.one_speaker:
            mixed = with_settings(config, {"data.one_speaker": False})
            draw_mixed = draw_windows(mixed, data.test, config.seed + 1)
        number = -(-config.evaluate.num_windows // config.data.batch_size)
        held_out = HeldOut(draw, draw_mixed, number)
    hours = config.data.batch_size * config.data.window_samples / SAMPLE_RATE_HZ / 3600
    made = build_model(config)
    return Problem(
        plan=plan,
        model=made,
        preprocess=functools.partial(preprocess, config),
        split_branches=functools.partial(model.split_branches, made.module),
        label=functools.partial(label_latents, config, data),
        draw=draw_windows(config, data.train, config.seed),
        held_out=held_out,
        per_step=(hours, "h audio"),
        record=lambda folder: record(config, folder, data),
    )


def draw_windows(config: Config, recordings: Recordings, seed: int) -> Callable[[int], Batch]:
    """Return draw(step), which returns this process's share of a batch of windows.

    Raises a UserError if no recording has a latent at the furthest offset.
    """
    longest, furthest = int(recordings.lengths.max(initial=0)), choose_offsets(config)[-1]
    number = int(model.build_encoder(config).num_existing(np.array([longest]))[0])
    further = {"loss.align_to": config.loss.align_to, "model.horizon": config.model.horizon}
    key = next((key for key, value in further.items() if value), "model.num_offsets")
    if longest < config.data.window_samples and number <= furthest:
        length = f"{longest:,} samples ({longest / SAMPLE_RATE_HZ:.2f} s) and {number} latents"
        raise UserError(
            f"the longest of {len(recordings):,} recordings has {length}, too few for offset "
            f"{furthest}: lower {key}"
        )
    sizes = subset(config.data, "window_samples", "batch_size", "one_speaker")
    processes: Any = {"process": jax.process_index(), "num_processes": jax.process_count()}
    return make_packed_batches(recordings, **sizes, seed=seed, **processes)


def geometry(config: Config) -> Geometry:
    """Validate a config and return its geometry: the numbers of latents and predictions."""
    check_shared(config)
    check_signals(config)
    check_options(config)
    model.check_model(config)
    check_augmentation(config)
    is_synthetic = config.data.source == "synthetic"
    reject(config,
        (config.loss.name == "sup_con" and config.data.one_speaker, "loss.name data.one_speaker",
         "all candidates would be in the positive's group; set data.one_speaker=False"),
        (is_synthetic and config.data.window_samples > MAX_SYNTHETIC,
         "data.source data.window_samples",
         "synthetic recordings would take too long to generate; set data.window_samples to at most "
         f"{MAX_SYNTHETIC:,}"),
    )  # fmt: skip
    return model.geometry(config)


def label_latents(config: Config, data: AudioData, batch: Batch) -> dict[str, np.ndarray]:
    """Return the speaker and, if known, the phone of each latent (b, t) in a training batch."""
    stride = model.build_encoder(config).stride
    phones = label_frames(data, batch["utterance"], batch["start"], num_latents(config), stride)
    known = {"phone": phones} if (phones >= 0).any() else {}
    return {**known, "speaker": batch["speaker"][:, None]}


def record(config: Config, workdir: pathlib.Path, data: AudioData) -> None:
    """Write augmentation examples and, for synthetic data, the exact mutual information."""
    record_augmentation(config, workdir, draw_windows(config, data.train, config.seed))
    if config.data.source == "synthetic":
        encoder, furthest = model.build_encoder(config), choose_offsets(config)[-1]
        write_truth(workdir, known_nats(furthest, encoder.receptive_field, encoder.stride))


def describe_input(config: Config, workdir: pathlib.Path | None = None) -> dict[str, Any]:
    """Return the window shape, sample rate and normalized loudness of the model input."""
    shape = [config.data.window_samples]
    return {"kind": "audio", "shape": shape, "rms": TARGET_RMS, "sample_rate_hz": SAMPLE_RATE_HZ}
