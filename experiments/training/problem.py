"""The contracts: what a command needs of a kind of data, and a training of a problem."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

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
    record: Callable[[Path], object] = lambda folder: None
    """record(folder) writes what the page shows of the data themselves."""


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


class Work(NamedTuple):
    """What a run does between its data and its page."""

    train: Callable[[], tuple[str, Any]]
    """train() -> why it stopped, "" at the last step; and what `finish` takes."""
    finish: Callable[[Any], None]
    """finish(trained) measures and exports what was trained."""
    write_page: Callable[[Path], Path]
    """write_page(folder) -> the page of the run."""
    closing_lines: Callable[[Path], Sequence[str]] = lambda folder: ()
    """closing_lines(folder) -> what the run has found, for the console."""
    audit: Callable[[], None] | None = None
    """audit() shows the negatives and trains nothing; None where there are none to show."""


class Dataset(Protocol):
    """What a run asks of its data, whatever they are."""

    @property
    def name(self) -> str:
        """What scores call the data: their folder, set or source."""
        ...

    @property
    def skipped(self) -> Sequence[tuple[str, str]]:
        """What was left out, and why."""
        ...

    def fingerprint(self) -> Mapping[str, Fingerprint]:
        """Return what tells each part from those of other data."""
        ...


class Kind(Protocol):
    """A kind of config: a module; `experiments.kinds.registry` lists them."""

    @property
    def KEYS(self) -> Keys:
        """Every key of a config, as `configs` describes it."""
        ...

    def load_data(self, config: Config, log: Callable[[str], object], /) -> Any:
        """Return the `Dataset` that a config names; None if the kind makes its own data."""
        ...


class Pipeline(Protocol):
    """How configs are checked, trained and finished: a module, for one kind or several."""

    @property
    def ON_ONE_DEVICE(self) -> bool:
        """Whether steps are too small to be shared by devices or processes."""
        ...

    def interpret(self, kind: Any, config: Config, mesh: Any = None, /) -> Any:
        """Return the plan of a config; with a mesh, check that it fits there, too."""
        ...

    def make_work(self, kind: Any, plan: Any, data: Any, folder: Path, mesh: Any, /) -> Work:
        """Return what trains and finishes a run."""
        ...


class Page(NamedTuple):
    """What a kind of data shows of its runs, on their page and on the model card."""

    words: Words
    """The nouns of the sentences of a page."""
    use: str
    """Python that makes features with an exported model; {folder} and keys of its input are
    filled in, such as {shape[0]}."""
    sections: tuple[Callable[[Run], Section | None], ...] = ()
    """What only runs on this kind of data show."""


class Contrastive(Kind, Protocol):
    """A kind of data that `experiments.training.contrastive` learns from."""

    PROBES: Probes
    """What is asked of features."""
    PAGE: Page
    """What is shown of a run."""

    def geometry(self, config: Config, /) -> Geometry:
        """Return the latents and predictions of one sequence or image.

        Raise a UserError if values of the config do not go together, whatever the data.
        """
        ...

    def build_model(self, config: Config, /) -> Model:
        """Return encoder, context and predictor by the config's words."""
        ...

    def make_problem(self, plan: Plan, data: Any, /) -> Problem:
        """Return what is trained."""
        ...

    def describe_input(self, config: Config, workdir: Path | None = None, /) -> dict[str, Any]:
        """Return what an exported model says of its input: its shape, and what its run found."""
        ...

    def embed_files(
        self, pretrained: Pretrained, path: Path, layers: Sequence[str],
        skipped: list[tuple[str, str]], /,
    ) -> Embedding:  # fmt: skip
        """Return features of a file or of a folder's."""
        ...


def model_variables(params: Any, ema: Any, extra: Any) -> Any:
    """The model's variables as they are evaluated: the running average, if there is one."""
    # A checkpoint read without its state has no entry for what is empty.
    return {"params": (ema or params)["model"], **extra.get("model", {})}
