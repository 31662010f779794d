"""Interfaces between the commands, the training pipeline and the kinds of data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from configs.defaults import PARTS
from configs.keys import Keys
from cpc.models import Model, Pretrained
from cpc.report.engine import Section
from cpc.report.words import Words
from cpc.results import Run, Score
from cpc.types import Batch
from experiments.command.config import Config
from experiments.command.run_dir import Fingerprint
from experiments.training.objective import BranchOutputs
from experiments.training.plan import Geometry, Plan
from experiments.training.probes import Probes

#: probe(variables, step) fits and records the probes, and returns their scores.
Probe: TypeAlias = Callable[[Any, int], list[Score]]


class HeldOut(NamedTuple):
    """Batches for evaluation, by index."""

    draw: Callable[[int], Batch]
    """Draws a batch by the sampling scheme of training."""
    draw_independent: Callable[[int], Batch]
    """Draws a batch of independent sequences, as the strict bound requires."""
    number: int


class Problem(NamedTuple):
    """A contrastive learning problem: a plan with its model and data."""

    plan: Plan
    model: Model
    preprocess: Callable[[Batch, Any, bool], Batch]
    """preprocess(batch, rng, train) -> input of the model, augmented if `train`. Runs under jit."""
    split_branches: Callable[[Any, Batch], Sequence[BranchOutputs]]
    """split_branches(outputs, batch) -> outputs of each branch of the plan."""
    label: Callable[[Batch], dict[str, np.ndarray]]
    """label(batch) -> labels of latents by name, for audits. They broadcast like positions."""
    draw: Callable[[int], Batch]
    """draw(step) -> training batch of a step."""
    held_out: HeldOut | None
    """Evaluation batches, or None to disable evaluation."""
    per_step: tuple[float, str]
    """Amount of data per batch and its unit, such as (0.003, "h audio")."""
    record: Callable[[Path], object] = lambda folder: None
    """record(folder) writes data examples for the page."""
    start: Callable[[Any], Any] = lambda variables: variables
    """start(initial variables) -> variables of the model before the first step."""


class Embedding(NamedTuple):
    """Features of files, computed one file at a time."""

    features: Iterator[tuple[str, dict[str, np.ndarray], float]]
    """Yields each readable file's name, features by layer and amount of input."""
    total: float
    """Total amount of input."""
    unit: str
    """Unit of the amounts, such as "h audio"."""
    frame_seconds: dict[str, float] | None
    """Seconds between each layer's frames, or None if rows are not frames in time."""


class Work(NamedTuple):
    """Functions for the steps of a run after its data are loaded."""

    train: Callable[[], tuple[str, Any]]
    """train() -> (reason, trained variables). The reason is "" unless training stopped early."""
    finish: Callable[[Any], None]
    """finish(trained) probes and exports the trained model."""
    write_page: Callable[[Path], Path]
    """write_page(folder) writes the page of the run and returns its path."""
    closing_lines: Callable[[Path], Sequence[str]] = lambda folder: ()
    """closing_lines(folder) -> results for the console."""
    audit: Callable[[], None] | None = None
    """audit() audits the negatives without training. None for runs without negatives."""


class Dataset(Protocol):
    """The data of a run, of any kind."""

    @property
    def name(self) -> str:
        """The data's name in score records: a folder, a data set or a source."""
        ...

    @property
    def skipped(self) -> Sequence[tuple[str, str]]:
        """Skipped files, each with the reason."""
        ...

    def fingerprint(self) -> Mapping[str, Fingerprint]:
        """Return fingerprints of the parts of the data, such as the training files, by name."""
        ...


class Kind(Protocol):
    """A kind of data, implemented as a module registered in `experiments.kinds.registry`."""

    @property
    def KEYS(self) -> Keys:
        """All config keys of the kind."""
        ...

    def load_data(self, config: Config, log: Callable[[str], object], /) -> Any:
        """Return the `Dataset` of a config, or None if the kind generates its data."""
        ...


class Pipeline(Protocol):
    """A module that validates configs of one or several kinds and carries out their runs."""

    @property
    def ON_ONE_DEVICE(self) -> bool:
        """Whether steps are too small to distribute over devices or processes."""
        ...

    def interpret(
        self, kind: Any, config: Config, mesh: Any = None, workdir: str | None = None, /
    ) -> Any:
        """Return the plan of a config, and validate it for a mesh or a folder if one is given."""
        ...

    def make_work(self, kind: Any, plan: Any, data: Any, folder: Path, mesh: Any, /) -> Work:
        """Return functions for the steps of a run."""
        ...


class Page(NamedTuple):
    """The parts of a run's page and model card that are specific to a kind of data."""

    words: Words
    """Nouns for the sentences of a page."""
    use: str
    """Template of a Python example that computes features with an exported model, with {folder} and
    keys of the model's input, such as {shape[0]}."""
    sections: tuple[Callable[[Run], Section | None], ...] = ()
    """Additional sections of the page."""


class Contrastive(Kind, Protocol):
    """A kind of data for `experiments.training.contrastive`."""

    PROBES: Probes
    """Probes of the features."""
    PAGE: Page
    """Contents of the page that are specific to the kind."""

    def geometry(self, config: Config, /) -> Geometry:
        """Return the numbers of latents and predictions for one sequence or image.

        Raises UserError if the config is invalid for any data.
        """
        ...

    def build_model(self, config: Config, /) -> Model:
        """Return a config's model: encoder, context network and predictor."""
        ...

    def make_problem(self, plan: Plan, data: Any, /) -> Problem:
        """Return the learning problem of a plan and its data."""
        ...

    def describe_input(self, config: Config, workdir: Path | None = None, /) -> dict[str, Any]:
        """Return the shape and measured properties of an exported model's input."""
        ...

    def embed_files(
        self, pretrained: Pretrained, path: Path, layers: Sequence[str],
        skipped: list[tuple[str, str]], /,
    ) -> Embedding:  # fmt: skip
        """Return the features of a file, or of all files in a folder."""
        ...


def find_part(submodule: str) -> str:
    """Return the part of a model, one of `PARTS`, that a submodule belongs to.

    >>> find_part("context_backward"), find_part("predictor_of_1")
    ('context', 'predictor')
    """
    return next((part for part in PARTS if part in submodule), "predictor")


def model_variables(params: Any, ema: Any, extra: Any) -> Any:
    """Return the model variables for evaluation, with averaged parameters if the run has them."""
    # A checkpoint omits empty subtrees.
    model = {**(ema or params).get("model", {}), **extra.get("frozen", {})}
    return {"params": model, **extra.get("model", {})}
