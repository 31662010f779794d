r"""What the advice on negatives is worth for a run: its labels, its scores and its gradient.

    cpc studies.negatives --workdir runs/voices

Three questions that are answered before a sweep, from the data and the newest checkpoint of a run:
how likely a latent d steps from the positive has its label, and the window that follows; how many
negatives are hard, and the K that follows; how noisy K sampled negatives make the gradient. The run
directory gets negatives.json and negatives.html. What a sweep then found: docs/negatives.md.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc import negatives
from cpc.files import plain, write_sealed
from cpc.losses import OffsetSums
from cpc.report.draw import BLUE, GRAY, ORANGE, add_legend, label, make_figure
from cpc.report.engine import Figure, Section, Table, write_page
from cpc.train import gather_rows, restore_params
from cpc.types import PyTree, UserError
from experiments.command import cli, cluster
from experiments.command.config import Config, with_settings
from experiments.kinds.registry import read_contrastive
from experiments.training import step as training
from experiments.training.contrastive import interpret
from experiments.training.objective import scored, temperature, watched_scores
from experiments.training.problem import Contrastive, Problem, model_variables

#: Batches that labels are counted in, that scores are made of, and that the gradient is taken of.
LABEL_BATCHES, SCORE_BATCHES, GRADIENT_BATCHES = 400, 16, 8
#: False negatives that a window may leave among the negatives of the own sequence.
BUDGETS = (0.2, 0.1, 0.07, 0.05)
#: Negatives for which the budget is worked out.
DRAWN = 16
#: Negatives of an anchor whose gradients are compared, and how often they are drawn.
SIZES, DRAWS = (16, 32, 64, 128, 256, 512, 1024), 8
RATES = (0.5, 0.8, 0.95)


def measure_labels(config: Config, problem: Problem) -> dict[str, Any]:
    """Return, by the name of a label, p(same | lag) and the window of each budget."""
    counts: dict[str, list[negatives.LagCounts]] = {}
    for step in range(LABEL_BATCHES):
        batch = gather_rows(problem.draw(step))
        for name, labels in problem.label(batch).items():
            if labels.ndim == 2 and labels.shape[1] > 1:  # one of each latent, not of the sequence
                counts.setdefault(name, []).append(negatives.count_same(labels))
    found = {}
    for name, each in counts.items():
        pairs, same = (np.sum(part, axis=0) for part in zip(*each, strict=True))
        if pairs.min() == 0:
            continue
        chance = same / pairs
        windows = []
        for budget in BUDGETS:
            try:
                window = negatives.exclusion_window(chance, len(chance) // 2, DRAWN, budget * DRAWN)
                windows.append({"budget": budget, **window._asdict()})
            except UserError:  # more than that is attainable nowhere
                windows.append({"budget": budget, "width": None, "rate": None, "candidates": 0})
        found[name] = {"pairs": pairs, "chance": chance, "windows": windows}
    return found


def measure_hardness(problem: Problem, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the fractions of hard negatives of held-out anchors, and the K for a hit rate.

    Hard are negatives that beat the positive, or that have at least 1 / e of its weight.
    """
    plan, rng = problem.plan, jax.random.key(0)
    variables = model_variables(**arrays)
    tau = temperature(plan, arrays["params"]["objective"], arrays["extra"]["objective"])

    @jax.jit
    def score(batch):
        batch = problem.prepare(batch, rng, False)
        outputs = problem.model.apply(variables, batch, False)[0]
        branch = problem.split_branches(outputs, batch)[0]
        branch = branch._replace(outputs=scored(plan, branch.outputs))
        offsets = plan.geometry.branches[0].offsets
        return watched_scores(branch, plan.rule, None, offsets, tau, rng)

    draw = problem.held_out.draw if problem.held_out else problem.draw
    scores = [jax.device_get(score(gather_rows(draw(i)))) for i in range(SCORE_BATCHES)]
    found = {}
    for name, margin in (("beat the positive", 0.0), ("have 1 / e of its weight", 1.0)):
        each = np.concatenate([negatives.hard_fractions(*one, margin=margin) for one in scores])
        each = each[np.isfinite(each)]
        mean = float(each.mean())
        rows = []
        for rate in RATES:
            by_mean = negatives.min_negatives(mean, rate) if mean > 0 else None
            try:
                needed = negatives.min_negatives_for(each, rate)
            except UserError:
                needed = None
            held = negatives.mean_hit_rate(each, by_mean) if by_mean else None
            rows.append({"rate": rate, "by_mean": by_mean, "held": held, "needed": needed})
        none = float((each == 0).mean())
        found[name] = {"mean": mean, "none": none, "anchors": len(each), "rows": rows}
    return found


def measure_gradient(
    kind: Contrastive, config: Config, data: Any, arrays: dict[str, Any]
) -> dict[str, Any]:
    """Return the variance of the gradient by K sampled negatives.

    E |g - mean g|^2 over draws for one batch, as a fraction of |mean g|^2, and of the variance over
    batches with all negatives, which is what the noise of the draws adds to.
    """

    def make_gradient(num_sampled):
        changed = {"negatives.num_sampled": num_sampled, "negatives.choose": "uniform"}
        plan = interpret(kind, with_settings(config, changed))
        problem = kind.make_problem(plan, data)
        loss = training.make_loss(problem)

        @jax.jit
        def gradient(batch, rng):
            return jax.grad(loss, has_aux=True)(arrays["params"], arrays["extra"], batch, rng)[0]

        return gradient, problem

    whole, problem = make_gradient(0)
    rng, batches = jax.random.key(0), [problem.draw(i) for i in range(GRADIENT_BATCHES)]
    _, of_batches, _ = spread([whole(batch, rng) for batch in batches])
    all_of_first = whole(batches[0], rng)
    rows, fewest = [], fewest_candidates(problem, arrays, batches[0])
    for size in (size for size in SIZES if size < fewest):
        gradient, _ = make_gradient(size)
        drawn = [gradient(batches[0], jax.random.key(seed)) for seed in range(DRAWS)]
        center, of_draws, squared_norm = spread(drawn)
        alike = cosine(center, all_of_first)
        row = {"of_mean": of_draws / squared_norm, "of_batches": of_draws / of_batches}
        rows.append({"k": size, **row, "cosine": alike})
    return {"rows": rows}


def fewest_candidates(problem: Problem, arrays: dict[str, Any], batch: Any) -> float:
    """Return the mean N of a batch's anchors, at the offset where it is least."""
    loss = jax.jit(training.make_loss(problem))
    _, (_, metrics) = loss(arrays["params"], arrays["extra"], batch, jax.random.key(0))
    leaves = jax.tree.leaves(metrics, is_leaf=lambda leaf: isinstance(leaf, OffsetSums))
    return min(
        float((sums.n / jnp.maximum(sums.anchors, 1)).min())
        for sums in leaves
        if isinstance(sums, OffsetSums)
    )


def spread(gradients: Sequence[PyTree]) -> tuple[np.ndarray, float, float]:
    """Return the mean gradient, flat, the variance about it, and the squared norm of the mean.

    The last two without bias: the mean of n has a part of the noise in its norm.
    """
    flat = np.stack([flatten(one) for one in gradients]).astype(np.float64)
    mean, n = flat.mean(0), len(flat)
    variance = np.square(flat - mean).sum() / (n - 1)
    return mean, float(variance), float(np.square(mean).sum() - variance / n)


def flatten(tree: PyTree) -> np.ndarray:
    """Return the leaves of a tree as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.device_get(jax.tree.leaves(tree))])


def cosine(center: np.ndarray, tree: PyTree) -> float:
    """Return the cosine of a mean gradient and another."""
    other = flatten(tree).astype(np.float64)
    return float(center @ other / np.linalg.norm(center) / np.linalg.norm(other))


def main() -> None:
    """Measure a run's negatives and write the page."""
    if not cli.WORKDIR.value:
        raise UserError("--workdir is required, e.g. --workdir runs/voices")
    workdir = pathlib.Path(cli.WORKDIR.value).expanduser()
    kind, config = read_contrastive(workdir)
    cluster.start(cli.DEVICE.value)
    arrays, _, step = restore_params(workdir / "checkpoints")
    # A checkpoint read without its state has no entry for what is empty.
    params, extra = ({"objective": {}, **arrays[part]} for part in ("params", "extra"))
    arrays = {**arrays, "params": params, "extra": {"model": {}, **extra}}
    arrays = jax.tree.map(jnp.asarray, arrays)
    data = kind.load_data(config, print)
    problem = kind.make_problem(interpret(kind, config), data)
    found: dict[str, Any] = {"step": step, "rule": problem.plan.negatives}
    for name, measure in (
        ("labels", lambda: measure_labels(config, problem)),
        ("hardness", lambda: measure_hardness(problem, arrays)),
        ("gradient", lambda: measure_gradient(kind, config, data, arrays)),
    ):
        print(f"measuring: {name}")
        found[name] = plain(measure())
    write_sealed(workdir / "negatives.json", found, is_durable=True)
    print(f"report: {write_study(workdir, found)}")


def write_study(workdir: pathlib.Path, found: dict[str, Any]) -> pathlib.Path:
    """Write negatives.html of what was found."""
    lead = f"{workdir.resolve()}, step {found['step']:,}, {found['rule']}"
    sections = [labels_section(found), hardness_section(found), gradient_section(found)]
    title = "What the advice on negatives is worth"
    return write_page(workdir, "negatives", title, lead, sections=sections, also=["md"])


def labels_section(found: dict[str, Any]) -> Section:
    """Return p(same | lag) and the windows that budgets ask for."""
    import pandas as pd

    if not found["labels"]:
        return Section("How far from the positive a negative is false", ["No labels by latent."])
    figure, (axes,) = make_figure(1, row_height=3.4)
    tables = []
    for color, (name, one) in zip((BLUE, ORANGE, GRAY), found["labels"].items(), strict=False):
        axes.plot(one["chance"], color=color, label=name)
        frame = pd.DataFrame(one["windows"])
        shown = frame[["budget", "width", "candidates", "rate"]].astype(float)
        note = "The narrowest window that leaves no more than the budget of false negatives."
        formats = {"rate": ".1%", "budget": ".0%"}
        tables.append(Table(f"Windows by {name}", shown, note, formats=formats))
    label(axes, "steps from the positive", "p(same label)", "")
    axes.set_ylim(0)
    add_legend(axes)
    drawn = Figure(
        "same_by_lag",
        figure,
        "Chance of the same label",
        "Where the curve is flat, negatives of the own sequence are as clean as those of others.",
    )
    return Section("How far from the positive a negative is false", [], [drawn], tables)


def hardness_section(found: dict[str, Any]) -> Section:
    """Return how many negatives are hard, and the K that hit rates ask for."""
    import pandas as pd

    tables = []
    for name, one in found["hardness"].items():
        frame = pd.DataFrame(one["rows"]).astype(float)
        frame.columns = ["hit rate", "K by the mean", "what that K holds", "K needed"]
        note = (
            f"{one['mean']:.2%} of the negatives of {one['anchors']:,} held-out anchors {name}; of "
            f"{one['none']:.0%} of the anchors none does."
        )
        formats = {"hit rate": ".0%", "what that K holds": ".0%"}
        tables.append(Table(f"Negatives that {name}", frame, note, formats=formats))
    told = (
        "K by the mean is log(1 - h) / log(1 - rho) with the mean rho of all anchors. Anchors "
        "differ, so that this K holds a hard negative less often than was asked for."
    )
    return Section("How many negatives hold a hard one", [told], tables=tables)


def gradient_section(found: dict[str, Any]) -> Section:
    """Return the noise of the gradient by K, beside that of the batch."""
    import pandas as pd

    frame = pd.DataFrame(found["gradient"]["rows"]).astype(float)
    frame.columns = ["K", "variance over |mean|^2", "variance over that of batches", "cosine"]
    told = (
        "Variance is that of the gradient over draws of K negatives for one batch, beside the "
        "squared norm of its mean and beside the variance over batches, each with all its "
        "negatives. The cosine is that of the mean over draws with the gradient of all negatives."
    )
    return Section("How noisy K negatives make the gradient", [told], tables=[Table("", frame)])


if __name__ == "__main__":
    cli.run(main)
