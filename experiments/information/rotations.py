"""Estimates on held-out rows of two arrays, including shuffled y and fewer training rows."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import FrozenConfigDict
from scipy.special import stdtrit

from cpc.estimators import Estimate, cca, ksg
from cpc.types import UserError
from experiments.command.config import Config
from experiments.information.arrays import ROTATIONS, TRANSFORMS, Pairs, rotate
from experiments.information.estimators import TITLES, claims, describe, fit_and_watch, judge

#: Fractions of the training rows at which the line over 1 / n is fitted.
FRACTIONS = (1.0, 0.5, 0.25)
#: Number of disjoint parts whose spread gives the intervals of KSG and CCA, and the rows per column
#: that each part needs for canonical correlations.
MAX_PARTS, MIN_PARTS, ROWS_PER_COLUMN = 10, 3, 2


class Interval(NamedTuple):
    """A mean with its 95 % interval in nats."""

    value: float
    low: float
    high: float


class Reading(NamedTuple):
    """The result of one estimator with one critic.

    `null` is the mean over shuffled y, with the 95 % range of another shuffled value. `line`
    contains means over rotations at 1 / n, 2 / n and 4 / n, for n training rows. `limit` is the
    extrapolation of the line to 1 / n = 0, and `gain` is its difference from the value with all
    rows. `bend` is the difference of the middle point from the line through the other two points.
    """

    estimator: str
    critic: str
    label: str
    ceiling: float | None
    found: Interval
    null: Interval | None = None
    line: tuple[float, ...] = ()
    limit: Interval | None = None
    gain: Interval | None = None
    bend: Interval | None = None


def student(values: np.ndarray, prediction: bool = False) -> Interval:
    """Return the mean of values with a Student interval, for a new value if `prediction`."""
    n, mean = len(values), float(values.mean())
    reach = stdtrit(n - 1, 0.975) * values.std(ddof=1) * math.sqrt(1 / n + prediction)
    return Interval(mean, mean - float(reach), mean + float(reach))


def measure(pairs: Pairs, config: Config, say: Callable[[str], None]) -> list[Reading]:
    """Return the readings of all estimators, with a null and a line for the best critic."""
    conditional, full = ["conditional"] if "club" in config.estimators else [], {}
    for critic in [*config.critics, *conditional]:
        say(f"training: {critic}, {ROTATIONS} rotations")
        full |= fit(pairs, config, critic)
    best = max(config.critics, key=lambda critic: float(full[f"{critic}/info_nce"][0].mean()))
    again = [best, *conditional]

    def fit_again(**options: Any) -> dict[str, np.ndarray]:
        found = [fit(pairs, config, critic, **options) for critic in again]
        return {name: batches.mean(1) for one in found for name, (_, batches) in one.items()}

    nulls, fewer = [], [{name: batches.mean(1) for name, (_, batches) in full.items()}]
    for number in range(1, 1 + config.shuffles):
        say(f"shuffled: {number} of {config.shuffles}")
        nulls.append(fit_again(shuffle=number))
    for fraction in FRACTIONS[1:]:
        say(f"training: {fraction:.0%} of the rows")
        fewer.append(fit_again(fraction=fraction))
    read_size = plan(len(pairs.x), config).read
    claimed, readings = claims(FrozenConfigDict({**config, "batch_size": read_size})), []
    for name, (_, batches) in full.items():
        critic, estimator = name.split("/")
        reading = Reading(estimator, critic, **claimed[estimator], found=student(batches.ravel()))
        if critic in again:
            null = student(np.concatenate([one[name] for one in nulls]), prediction=True)
            points = np.stack([one[name] for one in fewer])  # (fractions, rotations)
            reading = with_line(reading._replace(null=null), points)
        readings.append(reading)
    readings.sort(key=lambda one: (one.null is None, [*TITLES].index(one.estimator)))
    say("nearest neighbours and canonical correlations")
    return [*readings, *read_samples(pairs, config, say)]


class Sizes(NamedTuple):
    """Number of rows in a quarter, a training batch and an evaluation batch."""

    quarter: int
    train: int
    read: int


def plan(num_rows: int, config: Config) -> Sizes:
    """Return sizes with four evaluation batches, and two training batches in each fraction."""
    quarter = num_rows // ROTATIONS
    return Sizes(quarter, *(min(n, quarter // 4) for n in (config.batch_size, config.read_size)))


def fit(
    pairs: Pairs, config: Config, critic: str, *, fraction: float = 1.0, shuffle: int = 0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the objective (4,) at the best step and the nats (4, batches), for each estimate."""
    sizes = plan(len(pairs.x), config)
    num_train = int(2 * sizes.quarter * fraction)
    rng = np.random.default_rng((config.seed, shuffle)) if shuffle else None
    x, y = rotate(pairs.x, pairs.y, num_train, config.transform, rng)
    names = [name for name in config.estimators if (name == "club") == (critic == "conditional")]
    own = {"estimators": tuple(names), "critics": (critic,), "batch_size": sizes.read}
    shared = {"seed": 0, "max_rows": 0}  # constant, so that one compiled program serves all values
    num_choosing = math.ceil(fraction * (sizes.quarter // sizes.read))
    rngs = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), shuffle), ROTATIONS)
    own = FrozenConfigDict({**config, **own, **shared})
    return jax.device_get(_fit(x, y, num_train, num_choosing, rngs, config=own, sizes=sizes))


@functools.partial(jax.jit, static_argnames=("config", "sizes"))
def _fit(x, y, num_train, num_choosing, rngs, *, config, sizes):
    quarter, stretches = sizes.quarter, jnp.arange(sizes.train)
    chooses_step = jnp.arange(quarter // sizes.read) < num_choosing

    def one(x, y, rng):
        def draw(rng):  # one row from each stretch, so rows are distinct
            shift, within = jax.random.split(rng)
            drawn = stretches + jax.random.uniform(within, (sizes.train,))
            rows = jnp.floor(drawn * (num_train / sizes.train)).astype(int)
            rows = (rows + jax.random.randint(shift, (), 0, num_train)) % num_train
            return x[rows], y[rows]

        held_out = [(z[2 * quarter : 3 * quarter], z[3 * quarter :]) for z in (x, y)]
        held_out = [*zip(*held_out, strict=True)]
        chooses, (_, reads) = fit_and_watch(config, draw, held_out, rng)
        found = {}
        for name in reads:
            judged = judge(name, *chooses).mean(1, where=chooses_step)
            found[name] = judged.max(), reads[name][jnp.argmax(judged)]
        return found

    return jax.vmap(one)(x, y, rngs)


def with_line(reading: Reading, points: np.ndarray) -> Reading:
    """Fit a line over 1 / n to the points (fractions, rotations), separately for each rotation."""
    at = 1 / np.array(FRACTIONS)  # in units of 1 / n
    limit, _ = np.polynomial.polynomial.polyfit(at, points, 1)
    bend = student(points[1] - (2 * points[0] + points[2]) / 3)  # 2 is a third of the way to 4
    line, gain = tuple(points.mean(1).tolist()), student(limit - points[0])
    return reading._replace(line=line, limit=student(limit), gain=gain, bend=bend)


def read_samples(pairs: Pairs, config: Config, say: Callable[[str], None]) -> list[Reading]:
    """Return the readings of KSG and CCA, and report the reason if one of them fails."""
    readings, width = [], pairs.x.shape[1] + pairs.y.shape[1]
    filled = np.clip(len(pairs.x) // (ROWS_PER_COLUMN * width), MIN_PARTS, MAX_PARTS)
    for name, estimate, num_parts in (
        ("ksg", functools.partial(ksg, k=config.num_neighbours), MAX_PARTS),
        ("cca", less_bias, int(filled)),
    ):
        try:
            readings.append(read_sample(name, estimate, num_parts, pairs, config))
        except UserError as error:
            say(f"{name} is skipped: {error}")
    return readings


def less_bias(x: np.ndarray, y: np.ndarray) -> Estimate:
    """Return `cca` minus dx dy / 2n, its bias on n independent rows of widths dx and dy."""
    found = cca(x, y)
    value = found.value - x.shape[1] * y.shape[1] / (2 * len(x))
    return dataclasses.replace(found, value=value)


def read_sample(
    name: str, estimate: Callable[..., Estimate], num_parts: int, pairs: Pairs, config: Config
) -> Reading:
    """Return an estimate on all rows, with a line from estimates on halves and quarters.

    The interval of the mean over disjoint parts is shifted to the value on all rows, since the
    variance falls as 1 / n (Holmes & Nemenman 2019). The null shuffles y within each quarter.
    """
    scale, quarter = TRANSFORMS[config.transform], len(pairs.x) // ROTATIONS
    orders = [np.roll(np.arange(len(pairs.x)), -r * quarter) for r in range(ROTATIONS)]

    def read(rows, rows_of_y):
        x, y = pairs.x[rows], pairs.y[rows_of_y]
        found = estimate(scale(x, x), scale(y, y))
        if not math.isfinite(found.value):
            raise UserError("a linear combination of the columns of y is a linear function of x")
        return found

    whole = read(orders[0], orders[0])
    value, disjoint = whole.value, np.array_split(orders[0], num_parts)
    parts = student(np.array([read(rows, rows).value for rows in disjoint]))
    found = Interval(value, value - (parts.value - parts.low), value + (parts.high - parts.value))
    fewer = [[read(order[:n], order[:n]).value for order in orders] for n in (2 * quarter, quarter)]
    rng = np.random.default_rng((config.seed, 0))
    firsts = [order[:quarter] for order in orders] * config.shuffles
    nulls = np.array([read(rows, rng.permutation(rows)).value for rows in firsts])
    null = student(nulls, prediction=True)
    reading = Reading(name, "none", **describe(whole, name), found=found, null=null)
    reading = with_line(reading, np.array([[value] * ROTATIONS, *fewer]))
    limit = reading.limit or found
    # The uncertainty of the limit combines its points and the value on all rows.
    reach = math.hypot(limit.high - limit.value, found.high - found.value)
    return reading._replace(limit=Interval(limit.value, limit.value - reach, limit.value + reach))
