"""What augmentation costs: a step with it over one without, and what of that are its two parts."""

import functools
import statistics
from collections.abc import Callable
from typing import Any

import jax

from cpc.data import unpack
from cpc.data.augment_sound import EFFECTS
from cpc.train import put_batch
from cpc.types import Batch
from experiments.bench.step import measure_rounds
from experiments.bench.table import Row
from experiments.command.config import Config, with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.kinds.audio.prepare import augment
from experiments.training import step as training
from experiments.training.contrastive import interpret
from experiments.training.problem import Problem

#: By what the ablation augments sides.
TOGETHER = ("pitch", "noise", "reverb")
WITHOUT, TWICE, PAST = "no augmentation", "two encoder passes alone", "past augmented"


def two_passes(batch: Batch, rng: Any, train: bool) -> Batch:
    """Return a batch whose target is another sound without any effect, lest two passes be one."""
    batch = unpack(batch)
    return {**batch, "target": batch["x"][::-1]}


def augmentation_rows(
    config: Config, data: AudioData, mesh: jax.sharding.Mesh, num_rounds: int
) -> list[Row]:
    """Return times of a step without, with a second pass, with both; and of each effect alone."""
    settings = {"augment.side": "none", "augment.effects": TOGETHER}
    without = with_settings(config, settings)
    past = with_settings(config, settings | {"augment.side": "past"})
    problems = {
        name: audio.make_problem(interpret(audio, one), data)
        for name, one in ((WITHOUT, without), (PAST, past))
    }
    problems[TWICE] = problems[WITHOUT]._replace(prepare=two_passes)
    batch = put_batch(problems[WITHOUT].draw(0), mesh)
    cases = {name: make_advance(problems[name], mesh, batch) for name in (WITHOUT, TWICE, PAST)}
    for names in (*((name,) for name in EFFECTS), TOGETHER):
        apply = jax.jit(functools.partial(apply_effects, past, effects=names))
        cases[" + ".join(names)] = functools.partial(apply, batch, jax.random.key(0))
    timings = measure_rounds(cases, num_rounds, 3)
    rows = []
    for name, timing in timings.items():
        pairs = zip(timing.seconds, timings[WITHOUT].seconds, strict=True)
        ratio = statistics.median(own / base for own, base in pairs)
        figures = {
            "milliseconds": 1e3 * statistics.median(timing.seconds),
            "over_a_step_without": ratio,
        }
        title = f"step, {name}" if name in problems else f"effects alone: {name}"
        text = "{:.1f} ms, {:.3f} of a step without".format(*figures.values())
        rows.append(Row(title, figures, text))
    return rows


def apply_effects(config: Config, batch: Batch, rng: Any, effects: tuple[str, ...]) -> Any:
    """Return the waveforms of a packed batch after some effects."""
    return augment(config, unpack(batch), rng, effects)


def make_advance(problem: Problem, mesh: jax.sharding.Mesh, batch: Batch) -> Callable[[], Any]:
    """Return a function that does a step on one batch."""
    state, step, _ = training.make_step(problem, mesh)

    def advance() -> Any:
        nonlocal state
        state = step(state, batch)
        return state.step

    return advance
