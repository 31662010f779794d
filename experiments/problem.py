"""The contracts: what a command needs of a kind of data, and a training of a problem."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from configs.keys import Keys
from cpc.models import Model, Pretrained
from cpc.report.engine import Section
from cpc.report.words import Words
from cpc.results import Run, Score
from cpc.types import Batch
from experiments.command.config import Config
from experiments.objective import BranchOutputs
from experiments.plan import Geometry, Plan

#: probe(variables, step) fits and records the probes, and returns their scores.
Probe: TypeAlias = Callable[[Any, int], list[Score]]


class HeldOut(NamedTuple):
    """Batches of an evaluation, by their index."""

    draw: Callable[[int], Batch]
    """Drawn as those of the training."""
    draw_independent: Callable[[int], Batch]
    """Of independently drawn sequences, which the strict bound needs."""
    number: int


class Problem(NamedTuple):
    """What makes one problem differ from another."""

    plan: Plan
    model: Model
    prepare: Callable[[Batch, Any, bool], Batch]
    """prepare(batch, rng, train) -> the batch as the model takes it, augmented, on the device."""
    split_branches: Callable[[Any, Batch], Sequence[BranchOutputs]]
    """split_branches(outputs, batch) -> what each of the plan's branches is scored on."""
    label: Callable[[Batch], dict[str, np.ndarray]]
    """label(batch) -> what latents are of, by name, as the positions broadcast; for audits."""
    draw: Callable[[int], Batch]
    """Index of a step -> its batch."""
    held_out: HeldOut | None
    """Batches of the evaluations; None for no evaluation."""
    per_step: tuple[float, str]
    """What a batch holds, and its unit, such as (0.003, "h audio")."""


class Embedding(NamedTuple):
    """Files on their way to features."""

    features: Iterator[tuple[str, dict[str, np.ndarray], float]]
    """Name, features by layer, and the amount read for them, of each file that can be read."""
    total: float
    """How much there is to read in all."""
    unit: str
    """The unit of both, such as "h audio"."""
    frame_seconds: dict[str, float] | None
    """Time between the frames of each layer; None if rows are not times."""


class Modality(NamedTuple):
    """All that a command needs of a kind of data; `experiments.modality` lists the kinds."""

    name: str
    """The value of `config.kind`, the module of the command, and the word in sentences."""
    keys: Keys
    """Every key of a config, as `configs` describes it."""
    words: Words
    """The nouns of the sentences of a page."""
    sections: tuple[Callable[[Run], Section | None], ...]
    """What only runs on this kind of data show on their page."""
    check: Callable[[Config], object]
    """check(config) raises a UserError if its values do not go together, whatever the data."""
    load_data: Callable[[Config, Callable[[str], object]], Any]
    """load_data(config, log) -> the data of `config.data`, as the other functions take them."""
    skipped: Callable[[Any], Sequence[tuple[str, str]]]
    """skipped(data) -> what was left out of them, and why."""
    identify: Callable[[Any], tuple[int, *tuple[bytes, ...]]]
    """identify(part) -> how many there are in data.train, or data.test, and what says which: names,
    labels or lengths, some of the content where these may be others' as well, and content that only
    processes of one launch compare, as another version may decode it otherwise."""
    places: Callable[[Config], dict[str, tuple[str, ...]]]
    """places(config) -> what scores call its data, and the paths in it by which these are told from
    others of the name; none of what the name alone tells."""
    build_model: Callable[[Config], Model]
    geometry: Callable[[Config], Geometry]
    make_problem: Callable[[Plan, Any], Problem]
    """make_problem(plan, data) -> what is trained."""
    make_probe: Callable[[Config, Path, Any, Model], Probe]
    """make_probe(config, workdir, data, model) -> probe(variables, step), which fits the probes of
    `config.probe` and records them; raises a UserError if the data cannot feed them."""
    record: Callable[[Config, Path, Any], None]
    """record(config, workdir, data) writes what the page shows of the data themselves."""
    describe_input: Callable[[Config], dict[str, Any]]
    """describe_input(config) -> what an exported model says of its input: shape, and more."""
    show_use: Callable[[Config, str], str]
    """show_use(config, folder) -> Python that makes features with an exported model."""
    embed_files: Callable[[Pretrained, Path, Sequence[str], list[tuple[str, str]]], Embedding]
    """embed_files(pretrained, path, layers, skipped) -> features of a file or of a folder's."""
    describe_run: Callable[[Path], dict[str, Any]] = lambda workdir: {}
    """describe_run(workdir) -> what an exported model says of its input that the run found out."""


def model_variables(params: Any, ema: Any, extra: Any) -> Any:
    """The model's variables as they are evaluated: the running average, if there is one."""
    # A checkpoint read without its state has no entry for what is empty.
    return {"params": (ema or params)["model"], **extra.get("model", {})}
