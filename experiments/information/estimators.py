"""Every estimator of mutual information: what it trains, what it reads, what may be claimed."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from configs.keys import Keys
from cpc import estimators as bounds
from cpc.estimators import Estimate
from cpc.models import Baseline, GaussianConditional, JointCritic, SeparableCritic
from cpc.types import UserError
from experiments.command.config import Config, check_config

#: Titles of all estimators, in the order of figures and tables; KSG and CCA train nothing.
TITLES = {
    "info_nce": "InfoNCE", "interpolated": "interpolated", "ml_cpc": "ML-CPC", "tuba": "TUBA",
    "nwj": "NWJ", "flo": "FLO", "js": "JS", "smile": "SMILE",
    "donsker_varadhan": "Donsker–Varadhan", "mine": "MINE", "club": "CLUB", "ksg": "KSG",
    "cca": "CCA",
}  # fmt: skip
#: Labels of estimates that are not bounds.
LABELS = {
    "donsker_varadhan": "no bound, biased upwards on a batch",
    "mine": "no bound, biased upwards on a batch",
    "smile": "no bound, on either side",
    "club": "upper bound only if its model holds",
    "ksg": "no bound, no critic",
    "cca": "no bound, no critic",
}
#: Beyond this many nats a value comes from a network that ran away.
DIVERGED = 100.0
#: Estimators of the scores alone, and the input of the second network of others.
SCORES_ONLY = {
    "info_nce": bounds.info_nce,
    "ml_cpc": bounds.ml_cpc,
    "nwj": bounds.nwj,
    "donsker_varadhan": bounds.donsker_varadhan,
}
SECOND = {"interpolated": "x", "tuba": "x", "flo": "pair"}
#: Readings that are not lower bounds: their step is chosen by the objective of this estimator.
BY_OBJECTIVE = {"smile": "js", "club": "club"}


class Method(NamedTuple):
    """An estimator with its networks: init(rng, x, y) and apply(params, log_average, x, y)."""

    init: Callable[[Any, Any, Any], Any]
    apply: Callable[[Any, Any, Any, Any], tuple[Any, dict[str, Estimate], Any]]


def make_methods(config: Config) -> dict[str, Method]:
    """Return each critic with each estimator, as "critic/estimator"; CLUB has its own network."""
    widths, methods = tuple(config.widths), {}
    critics = {
        "separable": SeparableCritic(widths, config.embedding),
        "joint": JointCritic(tuple(config.joint_widths)),
    }
    others = [name for name in config.estimators if name != "club"]
    if "club" in config.estimators:
        methods["conditional/club"] = make_method("club", GaussianConditional(widths), config)
    for critic in config.critics:
        for name in others:
            methods[f"{critic}/{name}"] = make_method(name, critics[critic], config)
    return methods


def make_method(name: str, critic: Any, config: Config) -> Method:
    """Return an estimator with its critic, and with a second network if it needs one."""
    second, sees = Baseline(tuple(config.widths)), SECOND.get(name)

    def seen(x, y):
        return x if sees == "x" else jnp.concatenate([x, y], axis=1)

    def init(rng, x, y):
        params = {"critic": critic.init(jax.random.fold_in(rng, 0), x, y)}
        if sees:
            params["second"] = second.init(jax.random.fold_in(rng, 1), seen(x, y))
        return params

    def apply(params, log_average, x, y):
        scores, output = clip_pull(critic.apply(params["critic"], x, y)), 0.0
        if sees:
            output = clip_pull(second.apply(params["second"], seen(x, y)))
        return estimate(name, config, scores, output, log_average)

    return Method(init, apply)


def estimate(
    name: str, config: Config, scores: Any, second: Any, log_average: Any = 0.0
) -> tuple[Any, dict[str, Estimate], Any]:
    """Return the objective of an estimator, its readings by name, and MINE's running average.

    `second` is the output of the second network. JS also reads SMILE, which shares its training.
    """
    if name == "mine":
        found, log_average = bounds.mine(scores, log_average)
    elif name == "js":
        smile = bounds.smile(scores, float(config.smile_clip))
        return bounds.js_objective(scores), {"js": bounds.js(scores), "smile": smile}, log_average
    elif name == "club":  # trained by maximum likelihood
        return jnp.diagonal(scores).mean(), {"club": bounds.club(scores)}, log_average
    elif name == "interpolated":
        found = bounds.interpolated(scores, second, float(config.interpolation_weight))
    elif name in SECOND:
        found = {"tuba": bounds.tuba, "flo": bounds.flo}[name](scores, second)
    else:
        found = SCORES_ONLY[name](scores)
    return found.value, {name: found}, log_average


def exact_outputs(name: str, log_ratio: Any) -> tuple[Any, Any]:
    """Return the scores and the second output at which an estimator is exact."""
    if name == "nwj":
        return 1.0 + log_ratio, 0.0
    return log_ratio, -jnp.diagonal(log_ratio) if name == "flo" else 0.0


@jax.custom_vjp
def clip_pull(values: jax.Array) -> jax.Array:
    """Return values within 1e6; backwards no entry pulls with a weight above 1.

    # Differs from Poole et al. (2019): the mean of e^f can pull on one pair of a batch with more
    # than float32 holds, which would end all estimators that train in the same program.
    """
    return jnp.clip(jnp.nan_to_num(values), -1e6, 1e6)


clip_pull.defvjp(
    lambda values: (clip_pull(values), None),
    lambda _, pull: (jnp.clip(jnp.nan_to_num(pull), -1.0, 1.0),),
)


def apply_methods(
    methods: Mapping[str, Method], params: Any, log_averages: Any, data: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return objectives, nats by "critic/estimator", and MINE's averages of (x, y) by method."""
    objectives, nats, averages = {}, {}, {}
    for name, method in methods.items():
        found, readings, averages[name] = method.apply(
            params[name], log_averages[name], *data[name]
        )
        objectives[name], critic = clip_pull(found), name.rpartition("/")[0]
        nats |= {f"{critic}/{key}": reading.value for key, reading in readings.items()}
    return objectives, nats, averages


def total_loss(
    methods: Mapping[str, Method], params: Any, log_averages: Any, data: Mapping[str, Any]
) -> tuple[Any, tuple[dict[str, Any], Any]]:
    """Return one loss for all methods, which share no parameters, their nats and averages."""
    objectives, nats, averages = apply_methods(methods, params, log_averages, data)
    return -sum(objectives.values()), (nats, averages)


def init_methods(methods: Mapping[str, Method], rng: Any, data: Mapping[str, Any]) -> Any:
    """Return the parameters of all methods, and the logarithm of MINE's averages."""
    keys = dict(zip(methods, jax.random.split(rng, len(methods)), strict=True))
    params = {name: method.init(keys[name], *data[name]) for name, method in methods.items()}
    return params, {name: jnp.zeros(()) for name in methods}


def check_estimation(config: Config, keys: Keys) -> None:
    """Validate a config of an experiment on estimators, except the keys of its own."""
    check_config(config, keys)
    for key in ("critics", "widths", "joint_widths"):
        if not config[key]:
            raise UserError(f"the config's {key} is empty: name one or more")
    if "read_every" in config and config.num_steps % config.read_every:
        raise UserError(
            f"the config's read_every is {config.read_every}: it must divide num_steps, "
            f"{config.num_steps}; set --config.read_every={config.num_steps}"
        )


def claims(config: Config) -> dict[str, dict[str, Any]]:
    """Return ceiling and label of each estimator's readings on a batch."""
    flat = jnp.zeros((config.batch_size, config.batch_size))
    found = {name: {"ceiling": None, "label": LABELS[name]} for name in ("ksg", "cca")}
    for name in config.estimators:
        _, readings, _ = estimate(name, config, flat, flat[0])
        found |= {key: describe(reading, key) for key, reading in readings.items()}
    return found


def describe(reading: Estimate, name: str) -> dict[str, Any]:
    """Return what may be claimed of a reading: its label, and its ceiling or None."""
    ceiling = float(reading.ceiling)
    label = f"{reading.side} bound" if reading.is_bound else LABELS.get(name, "no bound")
    return {"ceiling": ceiling if ceiling < float("inf") else None, "label": label}


def show_ceiling(nats: float | None) -> str:
    """Return a ceiling in nats, or "none"."""
    return "none" if nats is None or not math.isfinite(nats) else f"{nats:.2f}"


def make_row(name: str, claimed: Mapping[str, Any], **numbers: Any) -> dict[str, Any]:
    """Return a row of a run's table: the "critic/estimator", its numbers, and its claim."""
    critic, estimator = name.split("/")
    return {**numbers, "critic": critic, "estimator": estimator, **claimed[estimator]}


def fit_and_read(
    config: Config,
    draw: Callable[[Any], tuple[Any, Any]],
    held_out: Sequence[tuple[Any, Any]],
    rng: Any,
) -> dict[str, Any]:
    """Train all methods on draw(rng) -> (x, y); return the mean reading of held-out batches, nats.

    The first of two held-out parts chooses the step of each reading, which the second is read at:
    a bound chosen on its own data is not a bound, and other readings say nothing by being large.
    """
    chooses, (_, reads) = fit_and_watch(config, draw, held_out, rng)
    return {name: reads[name].mean(1)[judge(name, *chooses).mean(1).argmax()] for name in reads}


def judge(name: str, objectives: Mapping[str, Any], readings: Mapping[str, Any]) -> Any:
    """Return what measures the fit of the networks behind a reading, by step and batch."""
    critic, estimator = name.split("/")
    return objectives.get(f"{critic}/{BY_OBJECTIVE.get(estimator)}", readings[name])


def fit_and_watch(
    config: Config,
    draw: Callable[[Any], tuple[Any, Any]],
    held_out: Sequence[tuple[Any, Any]],
    rng: Any,
) -> tuple[tuple[dict[str, Any], dict[str, Any]], ...]:
    """Train all methods on draw(rng) -> (x, y); read held-out parts every `read_every` steps."""
    methods, batch_size = make_methods(config), config.batch_size
    tx = optax.adam(config.learning_rate)
    params, averages = init_methods(methods, rng, dict.fromkeys(methods, draw(rng)))

    def step(carry, rng):
        params, averages, state = carry
        data = dict.fromkeys(methods, draw(rng))
        gradient, (_, averages) = jax.grad(
            lambda params: total_loss(methods, params, averages, data), has_aux=True
        )(params)
        updates, state = tx.update(gradient, state)
        return (optax.apply_updates(params, updates), averages, state), None

    def read(params, averages, x, y):
        count = len(x) // batch_size
        batches = [z[: count * batch_size].reshape(count, batch_size, -1) for z in (x, y)]
        return jax.lax.map(
            lambda xy: apply_methods(methods, params, averages, dict.fromkeys(methods, xy))[:2],
            tuple(batches),
        )

    def stretch(carry, rng):
        carry, _ = jax.lax.scan(step, carry, jax.random.split(rng, config.read_every))
        return carry, tuple(read(*carry[:2], x, y) for x, y in held_out)

    num_readings = config.num_steps // config.read_every
    rngs = jax.random.split(jax.random.fold_in(rng, 1), num_readings)
    _, watched = jax.lax.scan(stretch, (params, averages, tx.init(params)), rngs)
    return watched
