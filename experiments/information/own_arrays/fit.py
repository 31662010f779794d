"""What is measured of two arrays: every estimator on held-out rows, shuffled, and with fewer rows.

Four rotations share the work: in each one half of the rows trains, a quarter chooses the step, the
last quarter is read, so that each row is read once, by networks that never saw it. The same with a
half and a quarter of the rows for training and choosing, read on the same rows, gives each rotation
its own line over 1 / n.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import FrozenConfigDict

from cpc.estimators import Estimate, cca, ksg
from cpc.types import UserError
from experiments.command.config import Config
from experiments.information.methods import (
    claims,
    describe,
    fit_and_watch,
    judge,
    make_methods,
)
from experiments.information.own_arrays.arrays import (
    ROTATIONS,
    TRANSFORMS,
    Pairs,
    rotate,
)

#: Of the rows that train and choose, in the points of the line over 1 / n.
FRACTIONS = (1.0, 0.5, 0.25)
#: Disjoint parts of the rows whose spread gives KSG and CCA their intervals.
PARTS = 10
#: What the critic of an estimate is called that trained no networks.
NO_CRITIC = "none"


class Interval(NamedTuple):
    """A mean with its 95 % interval, nats."""

    value: float
    low: float
    high: float


class Reading(NamedTuple):
    """What was found by one estimator with one critic."""

    estimator: str
    critic: str
    label: str
    """What may be claimed of it."""
    ceiling: float | None
    """Nats above which no batch can read; None: there is none."""
    found: Interval
    null: Interval | None = None
    """The mean over shuffled y, and the range in which one more shuffled value lies."""
    line: tuple[float, ...] = ()
    """Means over rotations at 1 / n, 2 / n and 4 / n."""
    limit: Interval | None = None
    """The line at 1 / n = 0."""
    gain: Interval | None = None
    """How far that is above the value of all rows."""
    bend: Interval | None = None
    """How far the middle point lies above the straight line through the other two."""


def student(values: np.ndarray, prediction: bool = False) -> Interval:
    """Return the mean of independent values with Student's interval, or the range of one more.

    >>> [round(one, 2) for one in student(np.array([1.0, 2.0, 3.0]))]
    [2.0, -0.48, 4.48]
    """
    from scipy.special import stdtrit  # half a second, which no start of training needs

    n, mean = len(values), float(values.mean())
    reach = stdtrit(n - 1, 0.975) * values.std(ddof=1) * math.sqrt(1 / n + prediction)
    return Interval(mean, mean - float(reach), mean + float(reach))


def measure(pairs: Pairs, config: Config, say: Callable[[str], None]) -> list[Reading]:
    """Return the readings of all estimators, the chosen critic's with null and line.

    The critic is chosen by what InfoNCE reads on the rows that choose the step.
    """
    sizes = plan(len(pairs.x), config)
    full, kept = {}, {}
    for program in (*config.critics, *(["conditional"] if "club" in config.estimators else [])):
        say(f"training: {program}, {ROTATIONS} rotations")
        found = fit(pairs, config, program, sizes)
        full |= {name: batches for name, (_, batches) in found.items()}
        chosen, _ = found.get(f"{program}/info_nce", (np.zeros(1), None))
        kept[program] = float(chosen.mean())
    best = max(config.critics, key=lambda critic: kept[critic])
    again = [name for name in kept if name in (best, "conditional")]
    nulls, fewer = [], [full]
    for number in range(config.shuffles):
        say(f"shuffled: {number + 1} of {config.shuffles}")
        nulls.append(fit_all(pairs, config, again, sizes, shuffle=1 + number))
    for fraction in FRACTIONS[1:]:
        say(f"training: {fraction:.0%} of the rows")
        fewer.append(fit_all(pairs, config, again, sizes, fraction=fraction))
    claimed = claims(FrozenConfigDict({**config, "batch_size": sizes.read}))
    readings = []
    for name, batches in full.items():
        critic, estimator = name.split("/")
        reading = Reading(estimator, critic, **claimed[estimator], found=student(batches.ravel()))
        if critic in again:
            null = np.concatenate([one[name].mean(1) for one in nulls])
            points = np.stack([one[name].mean(1) for one in fewer])  # (fractions, rotations)
            reading = with_line(reading._replace(null=student(null, prediction=True)), points)
        readings.append(reading)
    order = make_names(config)
    readings.sort(key=lambda one: (one.null is None, order.index(one.estimator)))
    say("nearest neighbours and canonical correlations")
    return [*readings, *without_critic(pairs, config, say)]


def make_names(config: Config) -> list[str]:
    """Return what is read of the config's estimators, in their order.

    >>> from configs import arrays
    >>> make_names(arrays.get_config())[-5:]
    ['js', 'smile', 'donsker_varadhan', 'mine', 'club']
    """
    read = {"js": ["js", "smile"]}
    return [name for one in config.estimators for name in read.get(one, [one])]


class Sizes(NamedTuple):
    """Rows of each kind."""

    quarter: int
    train: int
    """Pairs of a training batch."""
    read: int
    """Pairs of a batch that is read."""


def plan(num_rows: int, config: Config) -> Sizes:
    """Return batches so small that a quarter has four to read, and the least training set two.

    >>> from configs import arrays
    >>> plan(10_000, arrays.get_config()), plan(400, arrays.get_config())
    (Sizes(quarter=2500, train=64, read=256), Sizes(quarter=100, train=25, read=25))
    """
    quarter = num_rows // ROTATIONS
    read = min(config.read_size, quarter // 4)
    return Sizes(quarter, min(config.batch_size, quarter // 4), read)


def fit_all(
    pairs: Pairs, config: Config, programs: list[str], sizes: Sizes, **options: Any
) -> dict[str, np.ndarray]:
    """Return what `fit` reads with several critics."""
    found = {}
    for program in programs:
        found |= fit(pairs, config, program, sizes, **options)
    return {name: batches for name, (_, batches) in found.items()}


def fit(
    pairs: Pairs,
    config: Config,
    program: str,
    sizes: Sizes,
    *,
    fraction: float = 1.0,
    shuffle: int = 0,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Train and read all estimators of a critic in four rotations.

    Returns:
        Of each reading what chose its step, (4,), and the nats of the batches of the last quarter,
        (4, batches).
    """
    num_train = int(2 * sizes.quarter * fraction)
    rng = np.random.default_rng((config.seed, shuffle)) if shuffle else None
    x, y = rotate(pairs.x, pairs.y, num_train, config.transform, rng)
    estimators = [
        name for name in config.estimators if (name == "club") == (program == "conditional")
    ]
    own = FrozenConfigDict(
        {**config, "estimators": tuple(estimators), "critics": (program,), "seed": 0, "max_rows": 0}
    )
    num_choosing = math.ceil(fraction * (sizes.quarter // sizes.read))
    rngs = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), shuffle), ROTATIONS)
    return jax.device_get(_fit(x, y, num_train, num_choosing, rngs, config=own, sizes=sizes))


@functools.partial(jax.jit, static_argnames=("config", "sizes"))
def _fit(x, y, num_train, num_choosing, rngs, *, config, sizes):
    methods, quarter, stretches = make_methods(config), sizes.quarter, jnp.arange(sizes.train)

    def one(x, y, rng):
        def draw(rng):  # a row from each of as many stretches: none comes twice
            shift, within = jax.random.split(rng)
            place = stretches + jax.random.uniform(within, (sizes.train,))
            rows = jnp.floor(place * (num_train / sizes.train)).astype(int)
            rows = (rows + jax.random.randint(shift, (), 0, num_train)) % num_train
            return x[rows], y[rows]

        held_out = [(z[0], z[1]) for z in zip(*map(cut, (x, y)), strict=True)]
        chooses, (_, reads) = fit_and_watch(
            methods,
            draw,
            held_out,
            batch_size=sizes.read,
            learning_rate=config.learning_rate,
            num_steps=config.num_steps,
            read_every=config.read_every,
            rng=rng,
        )
        found = {}
        for name in reads:
            judged = judge(name, *chooses).mean(1, where=few)
            found[name] = judged.max(), reads[name][jnp.argmax(judged)]
        return found

    def cut(side):
        return side[2 * quarter : 3 * quarter], side[3 * quarter :]

    few = jnp.arange(quarter // sizes.read) < num_choosing
    return jax.vmap(one)(x, y, rngs)


def with_line(reading: Reading, points: np.ndarray) -> Reading:
    """Add a straight line over 1 / n through the points (fractions, rotations) of each rotation.

    The read rows are the same along a line, so that their luck cancels in its slope.
    """
    at = 1 / np.array(FRACTIONS)  # in units of 1 / n
    limit, _ = np.polynomial.polynomial.polyfit(at, points, 1)
    first, last = (at[2] - at[1]) / (at[2] - at[0]), (at[1] - at[0]) / (at[2] - at[0])
    return reading._replace(
        line=tuple(points.mean(1).tolist()),
        limit=student(limit),
        gain=student(limit - points[0]),
        bend=student(points[1] - first * points[0] - last * points[2]),
    )


def without_critic(pairs: Pairs, config: Config, say: Callable[[str], None]) -> list[Reading]:
    """Return KSG and CCA, which train nothing: of all rows, with quarters and halves for the line.

    The interval is that of the mean over ten disjoint parts, about the value of all rows (after
    Holmes & Nemenman 2019: the variance falls as 1 / n). Shuffled are the four quarters.
    """
    scale = TRANSFORMS[config.transform]
    quarter = len(pairs.x) // ROTATIONS
    orders = [np.roll(np.arange(len(pairs.x)), -r * quarter) for r in range(ROTATIONS)]
    estimates: dict[str, Callable[..., Estimate]] = {
        "ksg": functools.partial(ksg, k=config.num_neighbours),
        "cca": cca,
    }
    readings = []
    for name, estimate in estimates.items():

        def value(rows, shuffled=None, estimate=estimate):
            x, y = pairs.x[rows], pairs.y[rows if shuffled is None else shuffled]
            found = estimate(scale(x, x), scale(y, y))
            if not math.isfinite(found.value):
                raise UserError("a direction of y is a linear map of x")
            return found

        try:
            whole = value(orders[0])
            tenths = np.array([value(rows).value for rows in np.array_split(orders[0], PARTS)])
            reach = student(tenths)
            found = Interval(
                whole.value,
                whole.value - (reach.value - reach.low),
                whole.value + (reach.high - reach.value),
            )
            points = np.array(
                [np.repeat(whole.value, ROTATIONS)]
                + [[value(rows[: m * quarter]).value for rows in orders] for m in (2, 1)]
            )
            rng = np.random.default_rng((config.seed, 0))
            nulls = [
                value(rows[:quarter], rng.permutation(rows[:quarter])).value
                for _ in range(config.shuffles)
                for rows in orders
            ]
        except UserError as error:
            say(f"{name} is left out: {error}")
            continue
        claim = {**describe(whole, name), "label": "no bound, no critic"}
        reading = Reading(name, NO_CRITIC, **claim, found=found)
        null = student(np.array(nulls), prediction=True)
        reading = with_line(reading._replace(null=null), points)
        readings.append(reading._replace(limit=widen(reading.limit, found)))
    return readings


def widen(limit: Interval | None, by: Interval) -> Interval | None:
    """Return a limit with the uncertainty of another interval beside its own.

    >>> widen(Interval(1.0, 0.25, 1.75), Interval(9.0, 8.0, 10.0))
    Interval(value=1.0, low=-0.25, high=2.25)
    """
    if limit is None:
        return None
    reach = math.hypot(limit.high - limit.value, by.high - by.value)
    return Interval(limit.value, limit.value - reach, limit.value + reach)
