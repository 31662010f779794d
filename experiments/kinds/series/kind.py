"""The kind "series" for numbers at any rate with any number of channels."""

import functools
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from configs.series import KEYS
from cpc.models import ConvEncoder, Model
from cpc.report.words import Words
from cpc.types import Batch
from experiments.command.config import Config, subset, with_settings
from experiments.kinds.series.data import (
    SeriesData,
    ar1_information,
    labels_of_frames,
    load_data,
    make_windows,
)
from experiments.kinds.series.embed import embed_files
from experiments.kinds.series.probes import feature_sets, probe_tasks
from experiments.training.checks import check_probes, check_shared, check_signals, reject
from experiments.training.objective import BranchOutputs
from experiments.training.plan import Branch, Geometry, Plan, make_plan
from experiments.training.probes import Probes
from experiments.training.problem import HeldOut, Page, Problem
from experiments.training.sequences import make_cpc, positions, shared_input, write_truth

#: The rule "auto" selects own_sequence below this number of groups, or below the batch size.
FEW_GROUPS = 32

PROBES = Probes(probe_tasks, feature_sets)
PAGE = Page(
    words=Words(
        examples="series",
        ahead="latents ahead",
        tested="files",
        baselines=("raw",),
        titles={"raw": "the input itself"},
    ),
    use="""from cpc import models

embed = models.load("{folder}")
# x: (b, t, {shape[1]}), (t, {shape[1]}) or a list of (t, {shape[1]})
z, c = embed(x)  # both (b, t, width)""",
)


def build_model(config: Config) -> Model:
    """Build the encoder, context network and predictor of a config."""
    return make_cpc(config.model, build_encoder(config))


def build_encoder(config: Config) -> ConvEncoder:
    """Build the convolutional encoder of a config."""
    options = config.model
    sizes = options.width, tuple(options.kernels), tuple(options.strides)
    given, dtype = subset(options, "norm", "padding", "remat"), jnp.dtype(options.dtype)
    return ConvEncoder(*sizes, **given, dtype=dtype, channels=config.data.channels)


def geometry(config: Config) -> Geometry:
    """Validate a config and return its geometry: the numbers of latents and predictions."""
    check_shared(config)
    check_probes(config)
    check_signals(config)
    reject(config,
        (config.data.file_label == "table" and not config.data.file_labels,
         "data.file_label data.file_labels",
         "set data.file_labels to a CSV file with lines name,label"),
    )  # fmt: skip
    apart = 0 if config.negatives.overlap else config.data.window_steps
    encoder, offsets = build_encoder(config), tuple(range(1, config.model.num_offsets + 1))
    branch = Branch("forward", offsets, shared_input(offsets, encoder))
    length = encoder.num_latents(config.data.window_steps)
    return Geometry(length, config.model.width, (branch,), window="data.window_steps", apart=apart)


def choose_rule(config: Config, data: SeriesData) -> tuple[str, str]:
    """Return the negative sampling rule for `negatives.rule=auto`, and the reason for it.

    If there are few groups, a network could minimize the loss by memorizing them. All negatives
    then come from the positive's own sequence.
    """
    options, few = config.negatives, max(FEW_GROUPS, config.data.batch_size)
    if config.data.source == "ar1":
        return "batch", "all sequences come from one process"
    if options.queue or options.shards != 1 or config.loss.name == "sup_con":
        return "batch", "negatives.queue, negatives.shards and sup_con need other sequences"
    num_groups = len({data.groups[file] for file, *_ in data.train.pieces})
    count = f"{num_groups:,} training group{'s' * (num_groups > 1)}"
    if num_groups < few:
        return "own_sequence", f"{count}, fewer than {few}, could be memorized"
    return "batch", f"{count} are {few} or more"


def resolve_rule(plan: Plan, data: SeriesData) -> Plan:
    """Replace the negative sampling rule "auto" by a chosen rule, and print it."""
    config, rule = plan.config, "batch"  # the plan interprets auto as batch
    if config.negatives.rule == "auto":
        rule, reason = choose_rule(config, data)
        print(f"negatives: rule={rule}, as {reason}; set --config.negatives.rule to change it")
    if rule == "batch":
        return plan
    return make_plan(with_settings(config, {"negatives.rule": rule}), plan.geometry)


def make_problem(plan: Plan, data: SeriesData) -> Problem:
    """Combine a validated config (`plan`) with its model, batches and held-out data."""
    plan, config, options = resolve_rule(plan, data), plan.config, plan.config.data
    draw = functools.partial(make_windows, **subset(options, "window_steps", "batch_size"))
    encoder, held_out = build_encoder(config), None
    if config.evaluate.num_windows > 0:
        draw_test = draw(data.test, seed=config.seed + 1)
        number = -(-config.evaluate.num_windows // options.batch_size)
        held_out = HeldOut(draw_test, draw_test, number)

    def split_branches(outputs, batch):
        _, groups = np.unique(data.groups, return_inverse=True)
        # A file's group replaces a missing label.
        files = np.where(data.file_labels >= 0, data.file_labels, len(data.file_names) + groups)
        group = jnp.asarray(files, jnp.int32)[batch["utterance"]]
        time, mask = jnp.arange(outputs.z.shape[1])[None], None
        if "num_samples" in batch:
            mask = time < encoder.num_existing(batch["num_samples"])[:, None]
        spans = encoder.stride * time, encoder.stride * (time + 1)
        place = positions(batch, group, batch["sample"][:, None], *spans)
        return [BranchOutputs(outputs, place, mask)]

    return Problem(
        plan=plan,
        model=build_model(config),
        preprocess=lambda batch, rng, train: batch,
        split_branches=split_branches,
        label=functools.partial(label_latents, config, data),
        draw=draw(data.train, seed=config.seed),
        held_out=held_out,
        per_step=(options.batch_size * options.window_steps / 1e6, "M steps"),
        record=lambda folder: record(config, folder, data),
    )


def label_latents(config: Config, data: SeriesData, batch: Batch) -> dict[str, np.ndarray]:
    """Return the file and known labels of each latent (b, t) in a training batch."""
    encoder, files = build_encoder(config), batch["utterance"]
    labels = {"file": files[:, None]}
    if data.file_names:
        labels["file_label"] = data.file_labels[files][:, None]
    if data.step_names:
        number = encoder.num_latents(config.data.window_steps)
        labels["step_label"] = np.stack(
            [
                labels_of_frames(data.step_labels[file], int(start), number, encoder.stride)
                for file, start in zip(files, batch["start"], strict=True)
            ]
        )
    return labels


def record(config: Config, workdir: pathlib.Path, data: SeriesData) -> None:
    """Write the exact mutual information of source ar1, for offsets whose latents share no step."""
    options = config.data
    if options.source != "ar1":
        return
    encoder, nats = build_encoder(config), {}
    for k in range(1, config.model.num_offsets + 1):
        ahead = k * encoder.stride - encoder.receptive_field + 1
        if ahead > 0:
            nats[k] = ar1_information(options.correlation, ahead, options.channels)
    write_truth(workdir, nats)


def describe_input(config: Config, workdir: pathlib.Path | None = None) -> dict[str, Any]:
    """Return the model input's shape and rate, and the settings for reading files."""
    return {
        "kind": "series",
        "shape": [config.data.window_steps, config.data.channels],
        "rate_hz": config.data.rate_hz or None,
        "standardize": config.data.standardize,
        "step_label": config.data.step_label,
    }
