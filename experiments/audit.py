"""What a config's negatives are, before a single step is trained: a table, and audit.json."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from cpc import negatives
from cpc.negatives import Audit, AuditRow
from cpc.train import gather_rows, wait_for_all
from experiments import launch
from experiments.launch import Config
from experiments.training import Problem

AUDIT = flags.DEFINE_bool("audit", False, "Only audit the negatives of the config: do not train.")
#: Batches that are looked at, and anchors of each at each offset.
NUM_BATCHES, NUM_ANCHORS = 2, 512


def audit_run(config: Config, workdir: pathlib.Path, problem: Problem) -> None:
    """Audit the negatives of a run once, print the table, leave it in the run directory."""
    path = workdir / "audit.json"
    has_begun = path.exists() and (workdir / "metrics.jsonl").exists()
    wait_for_all("audit")  # all have looked before one writes
    if has_begun:
        return
    rows = audit_problem(config, problem)
    title = f"{problem.objective.name}, {NUM_BATCHES} batches"
    print(f"audit of the negatives: {title}\n{negatives.format_audit(rows)}")
    described = [row._asdict() for row in rows]
    launch.write_json(path, {"rule": problem.objective.name, "title": title, "rows": described})


def audit_problem(config: Config, problem: Problem) -> Audit:
    """Rows over some training batches; with several directions, of the first."""
    batches = [gather_rows(problem.draw(step)) for step in range(NUM_BATCHES)]
    root = jax.random.key(config.seed)

    def place(batch):
        prepared = problem.prepare(batch, root, True)
        outputs, _ = problem.model.apply(variables, prepared, False)
        return problem.look(outputs, prepared)[0][1]

    prepared = jax.eval_shape(lambda batch: problem.prepare(batch, root, True), batches[0])
    variables = _zeros(jax.eval_shape(problem.model.init, root, _zeros(prepared)))
    positions = [jax.device_get(jax.jit(place)(batch)) for batch in batches]
    labels = [problem.label(batch) for batch in batches]
    utterances = [_utterances(batch, p) for batch, p in zip(batches, positions, strict=True)]

    def audit(name):
        return negatives.audit_rule(
            problem.objective.rule,
            positions,
            problem.offsets,
            labels=[label[name] for label in labels],
            utterances=utterances,
            choose=problem.objective.choose,
            rng=root,
            num_anchors=NUM_ANCHORS,
        )

    names = [name for name in labels[0] if all(name in label for label in labels)]
    first, *others = [(name, audit(name)) for name in names]
    rows = [*_named(*first, only_false=False)]
    for other in others:
        rows += _named(*other, only_false=True)
    return tuple(rows) + _predictions(config, positions[0].sequence.size)


def _zeros(shapes):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _utterances(batch, positions):
    """The recording of each latent; a picture is its own."""
    which = batch.get("utterance", batch["sequence"])
    return which.reshape(-1, *(1,) * (np.ndim(positions.time) - 1))


def _named(name, rows, only_false):
    """False negatives by the label that makes them false."""
    for row in rows:
        if row.name.startswith("false_negatives"):
            yield row._replace(name=row.name.replace("negatives", f"negatives_by_{name}"))
        elif not only_false:
            yield row


def _predictions(config, num_latents):
    """What can be said in closed form."""
    rows = []
    if config.negatives.queue:
        oldest = -(-config.negatives.queue // num_latents)
        meaning = "steps that the oldest of a full queue has waited"
        rows.append(AuditRow("queue_age_max_predicted", oldest, "steps", meaning))
    return tuple(rows)
