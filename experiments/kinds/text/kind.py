"""The kind "text", which predicts sentences (van den Oord et al. 2018, section 3.3)."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from configs.text import KEYS
from cpc import data
from cpc.data.sources.grammar import grammar_information
from cpc.models import Model, QuickThoughts, SentenceEncoder, make_model
from cpc.types import Batch, UserError
from experiments.command.config import Config, subset
from experiments.kinds.text.data import TextData, load_data, make_runs
from experiments.kinds.text.embed import embed_files
from experiments.kinds.text.probes import feature_sets, probe_tasks
from experiments.kinds.text.sections import PAGE
from experiments.training.checks import check_probes, reject
from experiments.training.objective import BranchOutputs
from experiments.training.plan import Branch, Geometry, Plan
from experiments.training.probes import Probes
from experiments.training.problem import HeldOut, Problem
from experiments.training.sequences import make_cpc, positions, write_truth

PROBES = Probes(probe_tasks, feature_sets)

#: Name of the file in a run directory that lists words by id.
VOCABULARY = "vocabulary.tsv"


def build_model(config: Config) -> Model:
    """Build the CPC model of a config, or two encoders for `quick_thoughts`."""
    encoder = build_encoder(config)
    if config.model.name == "quick_thoughts":
        return make_model(QuickThoughts(encoder, build_encoder(config)))
    return make_cpc(config.model, encoder)


def build_encoder(config: Config) -> SentenceEncoder:
    """Build the sentence encoder of a config, with embeddings for `<unk>` and all words."""
    options = config.model
    sizes = options.embedding_width, options.width, options.kernel
    return SentenceEncoder(config.data.max_vocabulary + 1, *sizes, dtype=jnp.dtype(options.dtype))


def geometry(config: Config) -> Geometry:
    """Validate a config and return its geometry: the numbers of latents and predictions."""
    check_probes(config)
    is_cpc, has_vectors = config.model.name == "cpc", "vectors" in config.probe.features
    reject(config,
        (not is_cpc and {*config.freeze} >= {"encoder", "context"}, "freeze model.name",
         "no part is left to train; remove a part"),
        (has_vectors and not config.probe.word_vectors, "probe.features probe.word_vectors",
         "set probe.word_vectors to a file, or remove vectors from probe.features"),
        (is_cpc and config.data.run_sentences <= config.model.num_offsets,
         "data.run_sentences model.num_offsets",
         "offsets exceed a run; raise data.run_sentences, or lower model.num_offsets"),
    )  # fmt: skip
    length = config.data.run_sentences
    branches = (Branch("next", (1,)), Branch("previous", (1,)))
    if is_cpc:
        branches = (Branch("next", tuple(range(1, config.model.num_offsets + 1))),)
    sizes, key = (length, config.model.width, branches), "data.run_sentences"
    return Geometry(*sizes, window=key, apart=length, excludes_anchor=not is_cpc)


def make_problem(plan: Plan, text: TextData) -> Problem:
    """Combine a validated config (`plan`) with its model, batches and held-out data."""
    config, held_out, options = plan.config, None, plan.config.data
    sizes = subset(options, "run_sentences", "max_words", "batch_size")
    draw = functools.partial(make_runs, **sizes)
    mix = functools.partial(draw, document_fraction=options.document_fraction)
    if config.evaluate.num_runs > 0:
        seed, number = config.seed + 1, -(-config.evaluate.num_runs // options.batch_size)
        held_out = HeldOut(mix(text.test, seed=seed), draw(text.test, seed=seed), number)
    return Problem(
        plan=plan,
        model=build_model(config),
        preprocess=lambda batch, rng, train: batch,
        split_branches=functools.partial(split_branches, plan.geometry.branches),
        label=lambda batch: {"document": batch["utterance"][:, None]},
        draw=mix(text.train, seed=config.seed),
        held_out=held_out,
        per_step=(options.batch_size * options.run_sentences / 1e3, "k sentences"),
        record=lambda folder: record(config, folder, text),
    )


def split_branches(branches: Sequence[Branch], outputs: Any, batch: Batch) -> list[BranchOutputs]:
    """Return outputs, positions and mask for each branch, which predicts in one direction.

    The mask selects sentences with words. The branch "previous" reverses each run's sentences, so
    its positions are negative.
    """
    mask = (batch["x"] >= 0).any(-1)
    length, found = mask.shape[1], []
    time = jnp.arange(length)[None]
    for name, *_ in branches:
        begin = batch["sample"][:, None]
        if name == "previous":
            outputs = type(outputs)(*(array[:, ::-1] for array in outputs))
            begin, mask = -(begin + length - 1), mask[:, ::-1]
        place = positions(batch, batch["utterance"], begin, time, time + 1)
        found.append(BranchOutputs(outputs, place, mask))
    return found


def record(config: Config, workdir: pathlib.Path, text: TextData) -> None:
    """Write the vocabulary and, for source grammar, the exact mutual information."""
    path, vocabulary = workdir / VOCABULARY, text.train.vocabulary
    if path.exists() and data.read_vocabulary(path).words != vocabulary.words:
        raise UserError(f"the words of run {workdir} changed since its start: use a new --workdir")
    data.write_vocabulary(path, vocabulary)
    if config.data.source == "grammar":
        offsets = geometry(config).branches[0].offsets
        write_truth(workdir, {k: grammar_information(k, order=config.data.order) for k in offsets})


def describe_input(config: Config, workdir: pathlib.Path | None = None) -> dict[str, Any]:
    """Return the model input's shape, the format of its text, and words by id."""
    options = config.data
    shape = [options.run_sentences, options.max_words]
    found = {"kind": "text", "shape": shape, "lowercase": options.lowercase}
    if options.form != "prose":
        found["form"] = options.form
    if workdir is not None:
        found["words"] = " ".join(data.read_vocabulary(workdir / VOCABULARY).words)
    return found
