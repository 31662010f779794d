"""Estimators of mutual information, with networks, training, values, labels and ceilings."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

from configs.keys import Keys
from cpc import estimators as bounds
from cpc.estimators import Estimate
from cpc.models import Baseline, GaussianConditional, JointCritic, SeparableCritic
from cpc.types import UserError
from experiments.command.config import Config, check_config

#: Titles of all estimators, in the order of figures and tables. KSG and CCA are not trained.
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
#: Value in nats above which networks have diverged.
DIVERGED = 100.0
#: Estimators that only need scores and possibly a second network, and those with a second network.
PLAIN = {
    "info_nce": bounds.info_nce, "ml_cpc": bounds.ml_cpc, "nwj": bounds.nwj, "flo": bounds.flo,
    "donsker_varadhan": bounds.donsker_varadhan, "tuba": bounds.tuba,
}  # fmt: skip
SECOND = ("interpolated", "tuba", "flo")
#: Readings that are not lower bounds -> the estimator whose objective chooses their step.
BY_OBJECTIVE = {"smile": "js", "club": "club"}


#: Critic and second network, or None, by "critic/estimator", possibly with a prefix.
Networks: TypeAlias = Mapping[str, tuple[Any, Any]]


def make_networks(config: Config) -> dict[str, tuple[Any, Any]]:
    """Return the networks of all pairs of critic and estimator. CLUB has its own critic."""
    widths = tuple(config.widths)
    critics = {
        "separable": SeparableCritic(widths, config.embedding),
        "joint": JointCritic(tuple(config.joint_widths)),
        "conditional": GaussianConditional(widths),
    }
    others = [name for name in config.estimators if name != "club"]
    pairs = [("conditional", "club")] if "club" in config.estimators else []
    pairs += itertools.product(config.critics, others)
    second = Baseline(widths)
    return {f"{c}/{name}": (critics[c], second if name in SECOND else None) for c, name in pairs}


def second_input(name: str, x: Any, y: Any) -> Any:
    """Return the input of an estimator's second network: pairs for FLO, otherwise x."""
    return jnp.concatenate([x, y], axis=1) if name.endswith("flo") else x


def estimate(
    name: str, config: Config, scores: Any, second: Any, log_average: Any = 0.0
) -> tuple[Any, dict[str, Estimate], Any]:
    """Return an estimator's objective, its estimates by name, and MINE's running average.

    `second` is the output of the second network. JS also returns SMILE, which uses its networks.
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
    else:
        found = PLAIN[name](scores, *([second] if name in SECOND else []))
    return found.value, {name: found}, log_average


def exact_outputs(name: str, log_ratio: Any) -> tuple[Any, Any]:
    """Return the scores and the second output at which an estimator is exact."""
    if name == "nwj":
        return 1.0 + log_ratio, 0.0
    return log_ratio, -jnp.diagonal(log_ratio) if name == "flo" else 0.0


@jax.custom_vjp
def clip_pull(values: jax.Array) -> jax.Array:
    """Clip values to 1e6, and their gradients to 1.

    Poole et al. (2019) do not clip. The gradient of the mean of e^f with respect to the score f of
    a pair may exceed float32, which would stop all estimators that train in the same program.
    """
    return jnp.clip(jnp.nan_to_num(values), -1e6, 1e6)


clip_pull.defvjp(
    lambda values: (clip_pull(values), None),
    lambda _, pull: (jnp.clip(jnp.nan_to_num(pull), -1.0, 1.0),),
)


def apply_networks(
    config: Config, networks: Networks, params: Any, log_averages: Any, data: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return objectives, estimates in nats and MINE averages, for networks and data by name."""
    objectives, nats, averages = {}, {}, {}
    for name, (critic, second) in networks.items():
        prefix, _, estimator = name.rpartition("/")
        own, (x, y), output = params[name], data[name], 0.0
        scores = clip_pull(critic.apply(own["critic"], x, y))
        if second is not None:
            output = clip_pull(second.apply(own["second"], second_input(estimator, x, y)))
        found, readings, averages[name] = estimate(
            estimator, config, scores, output, log_averages[name]
        )
        objectives[name] = clip_pull(found)
        nats |= {f"{prefix}/{key}": reading.value for key, reading in readings.items()}
    return objectives, nats, averages


def total_loss(
    config: Config, networks: Networks, params: Any, log_averages: Any, data: Mapping[str, Any]
) -> tuple[Any, tuple[dict[str, Any], Any]]:
    """Return the summed loss of networks with separate parameters, and (nats, averages)."""
    objectives, nats, averages = apply_networks(config, networks, params, log_averages, data)
    return -sum(objectives.values()), (nats, averages)


def init_networks(networks: Networks, rng: Any, data: Mapping[str, Any]) -> Any:
    """Return the initial parameters and log averages (for MINE) of all networks."""
    params = {}
    keys = jax.random.split(rng, len(networks))
    for key, (name, (critic, second)) in zip(keys, networks.items(), strict=True):
        x, y = data[name]
        params[name] = {"critic": critic.init(jax.random.fold_in(key, 0), x, y)}
        if second is not None:
            own_key = jax.random.fold_in(key, 1)
            params[name]["second"] = second.init(own_key, second_input(name, x, y))
    return params, {name: jnp.zeros(()) for name in networks}


def check_estimation(config: Config, keys: Keys) -> None:
    """Validate the keys that all experiments on estimators share."""
    check_config(config, keys)
    for key in ("critics", "widths", "joint_widths"):
        if not config[key]:
            raise UserError(f"{key} must not be empty: set at least one entry")
    if "read_every" in config and config.num_steps % config.read_every:
        raise UserError(
            f"read_every must divide num_steps {config.num_steps} (got {config.read_every}): set "
            f"--config.read_every={config.num_steps}"
        )


def claims(config: Config) -> dict[str, dict[str, Any]]:
    """Return the ceiling and the label of each estimate on a batch."""
    flat = jnp.zeros((config.batch_size, config.batch_size))
    found = {name: {"ceiling": None, "label": LABELS[name]} for name in ("ksg", "cca")}
    for name in config.estimators:
        _, readings, _ = estimate(name, config, flat, flat[0])
        found |= {key: describe(reading, key) for key, reading in readings.items()}
    return found


def describe(reading: Estimate, name: str) -> dict[str, Any]:
    """Return an estimate's label, such as "lower bound", and its ceiling, or None if unbounded."""
    ceiling = float(reading.ceiling)
    label = f"{reading.side} bound" if reading.is_bound else LABELS.get(name, "no bound")
    return {"ceiling": ceiling if ceiling < float("inf") else None, "label": label}


def show_ceiling(nats: float | None) -> str:
    """Format a ceiling in nats, or "none"."""
    return "none" if nats is None or not math.isfinite(nats) else f"{nats:.2f}"


def make_row(name: str, claimed: Mapping[str, Any], **numbers: Any) -> dict[str, Any]:
    """Return a table row for a "critic/estimator", with its label, ceiling and numbers."""
    critic, estimator = name.split("/")
    return {**numbers, "critic": critic, "estimator": estimator, **claimed[estimator]}


def fit_and_read(
    config: Config,
    draw: Callable[[Any], tuple[Any, Any]],
    held_out: Sequence[tuple[Any, Any]],
    rng: Any,
) -> dict[str, Any]:
    """Train all methods on draw(rng) -> (x, y), and return mean held-out estimates in nats.

    The first of two held-out parts selects the step at which each method is evaluated on the second
    part. A bound selected on its own data is not a bound, and larger values of other estimates are
    not better.
    """
    chooses, (_, reads) = fit_and_watch(config, draw, held_out, rng)
    return {name: reads[name].mean(1)[judge(name, *chooses).mean(1).argmax()] for name in reads}


def judge(name: str, objectives: Mapping[str, Any], readings: Mapping[str, Any]) -> Any:
    """Return the objective, by step and batch, that selects an estimate's step."""
    critic, estimator = name.split("/")
    return objectives.get(f"{critic}/{BY_OBJECTIVE.get(estimator)}", readings[name])


def fit_and_watch(
    config: Config,
    draw: Callable[[Any], tuple[Any, Any]],
    held_out: Sequence[tuple[Any, Any]],
    rng: Any,
) -> tuple[tuple[dict[str, Any], dict[str, Any]], ...]:
    """Train all methods on draw(rng) -> (x, y), and evaluate them every `read_every` steps."""
    networks, batch_size = make_networks(config), config.batch_size
    tx = optax.adam(config.learning_rate)
    params, averages = init_networks(networks, rng, dict.fromkeys(networks, draw(rng)))
    differentiate = jax.grad(functools.partial(total_loss, config, networks), has_aux=True)

    def step(carry, rng):
        params, averages, state = carry
        data = dict.fromkeys(networks, draw(rng))
        gradient, (_, averages) = differentiate(params, averages, data)
        updates, state = tx.update(gradient, state)
        return (optax.apply_updates(params, updates), averages, state), None

    def read(params, averages, xy):
        count = len(xy[0]) // batch_size
        batches = [z[: count * batch_size].reshape(count, batch_size, -1) for z in xy]

        def read_batch(xy):
            data = dict.fromkeys(networks, xy)
            return apply_networks(config, networks, params, averages, data)[:2]

        return jax.lax.map(read_batch, tuple(batches))

    def stretch(carry, rng):
        carry, _ = jax.lax.scan(step, carry, jax.random.split(rng, config.read_every))
        return carry, tuple(read(*carry[:2], xy) for xy in held_out)

    num_readings = config.num_steps // config.read_every
    rngs = jax.random.split(jax.random.fold_in(rng, 1), num_readings)
    _, watched = jax.lax.scan(stretch, (params, averages, tx.init(params)), rngs)
    return watched
