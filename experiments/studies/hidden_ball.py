"""Does a memory that must predict help an agent, where memory is needed and only there?

    cpc studies.hidden_ball --workdir runs/hidden-ball
    cpc studies.hidden_ball --workdir runs/quick --quick

Figure 6 of van den Oord et al. (2018), as tasks that can be refuted: Catch whose ball hides, and is
seen again as it lands (the memory of it predicts a picture: CPC can help), is never seen again (it
predicts none: CPC should not help) or is always visible (no memory is needed). A2C alone, with CPC,
with CPC that is given the actions between, and with CPC whose targets are of another environment,
which has as much to compute and nothing to know of the own ball. Ten seeds at once, in one program;
the same command again goes on with the cells that are not there. The page says what held and what
did not.
"""

import functools
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from configs import rl_hidden_ball
from cpc.evaluate import (
    area_under_curve,
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)
from cpc.files import read_arrays, write_arrays
from cpc.report.draw import BLUE, GRAY, GREEN, ORANGE, RED, add_shared_legend, label, make_figure
from cpc.report.engine import Figure, Section, Table, show_interval, write_page
from cpc.rl.hidden_ball import VARIANTS, ball_information
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import Config, with_settings
from experiments.kinds.rl import evaluate, step

ARMS: dict[str, dict[str, Any]] = {
    "none": {"cpc.weight": 0.0},
    "CPC": {},
    "CPC, other targets": {"cpc.targets": "other"},
    "CPC, given actions": {"cpc.given_actions": True},
}
COLORS = dict(zip(ARMS, (GRAY, BLUE, ORANGE, GREEN), strict=True))
#: What is expected of CPC in each variant, against none.
EXPECTED = {"seen_again": "helps", "never_seen": "does not help", "always_visible": "does not help"}
#: Rollouts from one point of a curve to the next.
POINT = 20
#: The last fraction of a curve, which is called its end.
END = 0.1
SEEDS, QUICK_SEEDS = tuple(range(10)), (0, 1)


def configure(variant: str, arm: str, quick: bool) -> Config:
    """Return the config of a cell."""
    settings = {
        "environment.name": f"hidden_ball:{variant}",
        "evaluate.num_steps": 40,
        "num_env_steps": 20_000 if quick else 400_000,
        **ARMS[arm],
    }
    return with_settings(rl_hidden_ball.get_config(), settings)


def measure(config: Config, seeds: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Train an agent for each seed, all at once; returns curves, bounds and what memories keep."""
    task = step.make_task(config)
    states = jax.jit(jax.vmap(task.init))(jnp.array(seeds, jnp.uint32))

    @functools.partial(jax.jit, donate_argnums=0)
    def advance(states):
        """The states some rollouts later, and the sums since."""
        states = states._replace(metrics=jax.tree.map(jnp.zeros_like, states.metrics))
        states, _ = jax.lax.scan(
            lambda s, _: (jax.vmap(task.launch)(s), None), states, length=POINT
        )
        return states, states.metrics

    sums = []
    for _ in range(task.num_launches // POINT):
        states, found = advance(states)
        sums.append(found)
    sums = jax.device_get(sums)
    failed = np.asarray(states.failure)[:, 0] >= 0
    if failed.any():
        raise UserError(f"of the seeds {seeds}, {failed.sum()} came to a loss that is not finite")
    per_point = POINT * config.environment.num * config.policy.unroll
    arrays = {
        "frames": per_point * np.arange(1, len(sums) + 1),
        "returns": np.stack([s["episode_return"] / s["episodes"] for s in sums], axis=1),
    }
    watch = jax.jit(evaluate.watcher(config, task))
    for i, seed in enumerate(seeds):
        params = jax.tree.map(lambda x, i=i: x[i], states.params)
        watched = jax.device_get(watch(params, seed))
        if config.cpc.weight:
            track = evaluate.TRACKER(watched.sums)
            arrays.setdefault("strict", []).append(track.value)
            arrays.setdefault("ceiling", []).append(track.log_n)
        for score, _ in evaluate.probe_memory(config, watched):
            arrays.setdefault(f"{score.task} from {score.features}", []).append(score.value)
            arrays[f"{score.task} from chance"] = score.chance
    return {name: np.asarray(values) for name, values in arrays.items()}


def run(folder: pathlib.Path, quick: bool) -> None:
    """Measure the cells that are not there, and write the page after each."""
    seeds, begin, page = QUICK_SEEDS if quick else SEEDS, time.perf_counter(), None
    cells = [(variant, arm) for arm in ARMS for variant in VARIANTS]
    for number, (variant, arm) in enumerate(cells, 1):
        path = cell_path(folder, variant, arm)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_arrays(path, **measure(configure(variant, arm, quick), seeds))
        seconds = time.perf_counter() - begin
        area = area_of(read_arrays(path))
        print(
            f"{number}/{len(cells)}  {variant:15} {arm:20} area {interquartile(area):+.2f}  "
            f"{seconds:.0f} s"
        )
        page = write_study(folder)
    print(*verdicts(read_cells(folder)), sep="\n")
    print(f"report: {page}")


def cell_path(folder: pathlib.Path, variant: str, arm: str) -> pathlib.Path:
    """Return the file of a cell."""
    return folder / "cells" / f"{variant}-{arm.replace(', ', '-').replace(' ', '-')}.npz"


def read_cells(folder: pathlib.Path) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """Return the cells that are there."""
    paths = {(v, arm): cell_path(folder, v, arm) for v in VARIANTS for arm in ARMS}
    return {key: read_arrays(path) for key, path in paths.items() if path.exists()}


def area_of(cell: dict[str, np.ndarray]) -> np.ndarray:
    """Return the area under the curve of each seed."""
    return np.asarray(area_under_curve(cell["frames"].astype(float), cell["returns"]))


def end_of(cell: dict[str, np.ndarray]) -> np.ndarray:
    """Return the mean of the end of each seed's curve."""
    last = max(1, round(END * cell["returns"].shape[1]))
    return cell["returns"][:, -last:].mean(1)


def interquartile(values: np.ndarray) -> float:
    """Return the interquartile mean over seeds."""
    return float(interquartile_mean(values[:, None]))


def paired(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Return the interquartile mean of the differences by seed, and its interval."""
    differences = (ours - theirs)[:, None]
    low, high = stratified_interval(interquartile_mean, differences)
    return interquartile(ours - theirs), float(low), float(high)


def verdicts(cells: dict[tuple[str, str], dict[str, np.ndarray]]) -> list[str]:
    """Return what was expected and what came out, a sentence for each variant."""
    said = []
    for variant, expected in EXPECTED.items():
        if (variant, "none") not in cells:
            continue
        for arm in ARMS:
            if arm == "none" or (variant, arm) not in cells:
                continue
            value, low, high = paired(area_of(cells[variant, arm]), area_of(cells[variant, "none"]))
            found = "helps" if low > 0 else "harms" if high < 0 else "makes no difference told"
            hoped = "does not help" if arm == "CPC, other targets" else expected
            agrees = (found == "helps") == (hoped == "helps")
            said.append(
                f"{variant}: {arm} {found}, by {value:+.2f} in area ({low:+.2f} to {high:+.2f}); "
                f"expected that it {hoped}: {'held' if agrees else 'refuted'}."
            )
    return said


def write_study(folder: pathlib.Path) -> pathlib.Path:
    """Write hidden_ball.html, .md and .json of the cells that are there."""
    cells = read_cells(folder)
    seeds = len(next(iter(cells.values()))["returns"])
    frames = int(next(iter(cells.values()))["frames"][-1])
    figures = [
        Figure("curves", curves_figure(cells), "Learning", CURVES),
        Figure("information", information_figure(cells), "What memories tell of pictures", NATS),
    ]
    return write_page(
        folder,
        "hidden_ball",
        "The hidden ball: does a memory that predicts help an agent?",
        f"{seeds} seeds of {frames:,} frames; intervals are 95 %, by bootstrap over seeds.",
        (),
        [
            Section("", verdicts(cells)),
            Section("Learning", figures=figures[:1], tables=[return_table(cells)]),
            Section("Information", figures=[one for one in figures[1:] if one.figure]),
            Section("What the memory keeps", tables=[memory_table(cells)]),
        ],
        ["md", "json"],
    )


CURVES = (
    "Interquartile mean of the return over seeds, with its interval shaded; thin lines: each seed. "
    "Chance is -0.78; a policy that always catches the ball has 1."
)
NATS = (
    "log N - L in a strict evaluation against 255 other environments, mean of seeds, beside what "
    "the past says about the ball, by enumeration. The paddle, which the agent moves, adds to it."
)


def curves_figure(cells: Any) -> Any:
    """Draw learning curves, a panel a variant."""
    variants = [v for v in VARIANTS if any(key[0] == v for key in cells)]
    figure, panels = make_figure(len(variants), row_height=3.6)
    for axes, variant in zip(panels, variants, strict=True):
        for arm, color in COLORS.items():
            if (variant, arm) not in cells:
                continue
            cell = cells[variant, arm]
            x, curves = cell["frames"] / 1e3, smooth(cell["returns"])
            middle = interquartile_mean(curves.T[..., None])
            low, high = stratified_interval(interquartile_mean, curves.T[..., None])
            axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
            axes.plot(x, curves.T, color=color, linewidth=0.3, alpha=0.5)
            axes.plot(x, middle, color=color, linewidth=1.8, label=arm)
        axes.set_ylim(-1, 1)
        label(axes, "thousands of frames", "return", variant.replace("_", " "))
    add_shared_legend(figure, panels)
    return figure


def smooth(returns: np.ndarray, width: int = 5) -> np.ndarray:
    """Return the running mean over so many points of each curve, fewer at its begin.

    >>> smooth(np.array([[1.0, 3.0, 5.0]]), 2).tolist()
    [[1.0, 2.0, 4.0]]
    """
    total = np.cumsum(np.pad(returns, ((0, 0), (1, 0))), axis=1)
    last = np.arange(1, total.shape[1])
    first = np.maximum(last - width, 0)
    return (total[:, last] - total[:, first]) / (last - first)


def information_figure(cells: Any) -> Any:
    """Draw the strict bound by offset, a panel a variant; None before there is one."""
    variants = [v for v in VARIANTS if any(k[0] == v and "strict" in c for k, c in cells.items())]
    if not variants:
        return None
    figure, panels = make_figure(len(variants), row_height=3.2)
    for axes, variant in zip(panels, variants, strict=True):
        arms = {
            arm: cells[variant, arm] for arm in ARMS if "strict" in cells.get((variant, arm), ())
        }
        for arm, cell in arms.items():
            axes.plot(
                1 + np.arange(cell["strict"].shape[1]),
                cell["strict"].mean(0),
                marker="o",
                markersize=4,
                color=COLORS[arm],
                label=arm,
            )
        ceiling = next(iter(arms.values()))["ceiling"].mean(0)
        offsets = 1 + np.arange(len(ceiling))
        axes.plot(offsets, ceiling, "--", color=RED, linewidth=1, label="log N")
        known = [ball_information(variant, int(k)) for k in offsets]
        axes.plot(offsets, known, "-.", color="black", linewidth=1, label="exact, the ball")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        label(axes, "offset k (steps ahead)", "nats", variant.replace("_", " "))
    add_shared_legend(figure, panels)
    return figure


def return_table(cells: Any) -> Table:
    """Return area under the curve and end of it, and the differences from none, paired by seed."""
    import pandas as pd

    rows = []
    for (variant, arm), cell in cells.items():
        row = {"variant": variant, "arm": arm}
        base = cells.get((variant, "none"))
        for name, of in (("area", area_of), ("last tenth", end_of)):
            values = of(cell)
            low, high = stratified_interval(interquartile_mean, values[:, None])
            row[name] = f"{interquartile(values):+.2f} ({show_interval(float(low), float(high))})"
            if base is not None and arm != "none":
                value, low, high = paired(values, of(base))
                row[f"{name}, over none"] = f"{value:+.2f} ({show_interval(low, high)})"
        if base is not None and arm != "none":
            chance = probability_of_improvement(area_of(cell)[:, None], area_of(base)[:, None])
            row["P(area above none's)"] = f"{float(chance):.2f}"
        rows.append(row)
    return Table("Returns, interquartile means over seeds", pd.DataFrame(rows).fillna(""))


def memory_table(cells: Any) -> Table:
    """Return what linear probes read off the memory, where it cannot be seen, in percent."""
    import pandas as pd

    rows = []
    for (variant, arm), cell in cells.items():
        for name in sorted(cell):
            fact, from_, features = name.partition(" from ")
            if not from_ or features != "c":
                continue
            mean = {
                other: 100 * float(np.mean(cell[f"{fact} from {other}"]))
                for other in ("c", "random c", "z", "chance")
            }
            rows.append({"variant": variant, "arm": arm, "of": fact} | {
                {"c": "memory, c", "random c": "untrained", "z": "z", "chance": "chance"}[key]:
                f"{value:.1f}" for key, value in mean.items()
            })  # fmt: skip
    return Table("Linear probes where the fact is hidden, accuracy in %, mean of seeds",
                 pd.DataFrame(rows))  # fmt: skip


def main() -> None:
    """Check the command and run it."""
    if not cli.WORKDIR.value:
        raise UserError("--workdir is required, e.g. --workdir runs/ball")
    cluster.start(cli.DEVICE.value)
    folder = pathlib.Path(cli.WORKDIR.value).expanduser()
    run(folder, QUICK.value)


if __name__ == "__main__":
    QUICK = flags.DEFINE_bool("quick", False, "Two seeds and few frames: to see that it works.")
    cli.run(main)
