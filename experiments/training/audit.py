"""Audit of a run's negatives before training, printed as a table and written to audit.json."""

import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from cpc import negatives
from cpc.files import read_object, write_sealed
from cpc.models import to_frame
from cpc.negatives import Audit, AuditRow
from cpc.train import gather_rows, is_first, wait_for_all
from cpc.types import UserError
from experiments.training.plan import Plan
from experiments.training.problem import Problem

#: Number of audited batches, and of anchors per batch and offset.
NUM_BATCHES, NUM_ANCHORS = 2, 512


def audit_run(workdir: pathlib.Path, problem: Problem, is_all: bool) -> None:
    """Audit the negatives of a run that has not begun, and print and write the result.

    If `is_all` is true, the command only audits. Otherwise raises UserError if training cannot work
    with the negatives.
    """
    path = workdir / "audit.json"
    has_begun = read_object(path, []) is not None and (workdir / "metrics.jsonl").exists()
    wait_for_all("audit")  # every process checks the file before the first one writes it
    if has_begun:
        return
    rows = audit_problem(problem)
    title = f"{problem.plan.negatives}, {NUM_BATCHES} batches"
    print(f"audit of the negatives: {title}\n{negatives.format_audit(rows)}")
    described = [row._asdict() for row in rows]
    if is_first():
        audit = {"rule": problem.plan.negatives, "title": title, "rows": described}
        write_sealed(path, {**audit, "is_all": True} if is_all else audit)
    if not is_all:
        check_negatives(problem.plan, rows)


def check_negatives(plan: Plan, rows: Audit) -> None:
    """Raise UserError if no anchor has a negative, or if sup_con would train on a single label."""
    config, values = plan.config, {row.name: row.value for row in rows}
    if values["anchors_without_negative"] == 1 and not config.negatives.queue:
        problem = f"negatives {plan.negatives} give no anchor in {NUM_BATCHES} batches a negative"
        advice = "choose another negatives.rule, raise data.batch_size or add data"
        raise UserError(f"{problem}: {advice}")
    same = [name for name, value in values.items()
            if name.startswith("false_negatives_by") and value == 1]  # fmt: skip
    if config.loss.name == "sup_con" and same:
        got = f"{same[0].split('_by_')[1]} (got one in {NUM_BATCHES} batches)"
        advice = "add data, or set loss.name=info_nce"
        raise UserError(f"loss.name=sup_con needs several values of {got}: {advice}")


def audit_problem(problem: Problem) -> Audit:
    """Audit the first branch's negatives in `NUM_BATCHES` training batches."""
    plan, branch = problem.plan, problem.plan.geometry.branches[0]
    batches = [gather_rows(problem.draw(step)) for step in range(NUM_BATCHES)]
    root = jax.random.key(plan.config.seed)

    @jax.jit
    def locate(batch):
        prepared = problem.preprocess(batch, root, True)
        shapes = jax.eval_shape(problem.model.init, root, prepared)
        variables = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        outputs, _ = problem.model.apply(variables, prepared, False)
        _, positions, mask = problem.split_branches(outputs, prepared)[0]
        return positions, mask, problem.preprocess(batch, root, False)["x"]  # not augmented

    located = []
    for batch in batches:
        positions, mask, x = jax.device_get(locate(batch))
        shape = np.broadcast_shapes(*map(np.shape, positions))
        label = {**problem.label(batch), "content": content_ids(x, shape, branch.name)}
        utterance = batch.get("utterance", batch["sequence"])  # windows may share an utterance
        utterance = utterance.reshape(-1, *(1,) * (np.ndim(positions.time) - 1))
        given = positions, label, utterance
        if mask is not None:  # skip padding
            given = jax.tree.map(lambda x, mask=mask: np.broadcast_to(x, mask.shape)[mask], given)
        located.append(given)

    positions, labels, utterances = map(list, zip(*located, strict=True))
    rows = []
    for name in [name for name in labels[0] if all(name in label for label in labels)]:
        found = negatives.audit_rule(
            plan.rule,
            positions,
            branch.offsets,
            labels=[label[name] for label in labels],
            utterances=utterances,
            sampler=plan.sampler,
            rng=root,
            num_anchors=NUM_ANCHORS,
        )
        rows += _named(name, found, only_false=bool(rows))
    if queue := plan.config.negatives.queue:
        oldest = -(-queue // np.broadcast(*positions[0]).size)
        meaning = "age of the oldest latent in a full queue, in steps"
        rows.append(AuditRow("queue_age_max_predicted", oldest, "steps", meaning))
    return tuple(rows)


def content_ids(x: np.ndarray, shape: tuple[int, ...], direction: str) -> np.ndarray:
    """Return an id per latent, equal for latents with equal inputs.

    Latents have the `shape` (b, t) or, in an image that is read in `direction`, (b, i, j). Inputs
    `x` have the same leading axes or are samples (b, s, ...), which are divided evenly among the
    latents. All ids are -1 for other inputs.

    >>> content_ids(np.array([[7, 7, 0, 0], [0, 0, 7, 1]]), (2, 2), "forward")
    array([[0, 1],
           [1, 2]], dtype=int32)
    """
    if len(shape) == 3:
        grid = to_frame(np.zeros(shape, np.int8), direction).shape
        x = to_frame(x, direction) if x.shape[:3] == grid else x
    length = x.shape[1] // shape[1]
    if x.shape[: len(shape)] != shape and (len(shape) != 2 or not length or len(x) != shape[0]):
        return np.full(shape, -1, np.int32)
    rows = x[:, : shape[1] * length].reshape(math.prod(shape), -1) + 0  # turns -0.0 into 0.0
    seen: dict[bytes, int] = {}
    ids = [seen.setdefault(row.tobytes(), len(seen)) for row in rows]
    return np.array(ids, np.int32).reshape(shape)


def _named(name, rows, only_false):
    """Yield audit rows, adding the label `name` to the names of rows on false negatives."""
    for row in rows:
        if "false_negatives" in row.name:
            meaning = row.meaning.replace("label", "content") if name == "content" else row.meaning
            renamed = row.name.replace("negatives", f"negatives_by_{name}")
            yield row._replace(name=renamed, meaning=meaning)
        elif not only_false:
            yield row
