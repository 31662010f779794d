"""What an estimate of mutual information is made of: an estimator, and networks that it trains."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from cpc.estimators import (
    Estimate,
    club,
    donsker_varadhan,
    flo,
    info_nce,
    interpolated,
    js,
    js_objective,
    mine,
    ml_cpc,
    nwj,
    smile,
    tuba,
)
from cpc.models import Baseline, GaussianConditional, JointCritic, SeparableCritic
from cpc.types import UserError
from experiments.command.config import Config

Readings: TypeAlias = dict[str, Estimate]

#: What else must be said of an estimate that is no bound.
CAUTIONS = {
    "donsker_varadhan": "no bound, biased upwards on a batch",
    "mine": "no bound, biased upwards on a batch",
    "smile": "no bound, on either side",
    "club": "upper bound only if its model holds",
}
#: Readings that are no lower bounds: the step is chosen where this method's objective is best.
BY_OBJECTIVE = {"smile": "js", "club": "club"}


class Estimator(NamedTuple):
    """How an estimator trains and what it reads, from the scores of a batch."""

    apply: Callable[[Any, Any, Any], tuple[Any, Readings, Any]]
    """apply(scores, second, log_average) -> (to maximize, readings, log_average): `second` is what
    the second network says, `log_average` is MINE's."""
    second_sees: str = ""
    """What the second network sees: "" for none, "x", or "pair"."""
    exact: Callable[[Any], tuple[Any, Any]] = lambda log_ratio: (log_ratio, 0.0)
    """The exact log ratio -> the best scores and the best second output."""


def make_estimators(config: Config) -> dict[str, Estimator]:
    """Return every estimator by name; `js` also reads SMILE, which shares its training."""

    def plain(name, estimate):
        def apply(scores, second, log_average):
            found = estimate(scores, second)
            return found.value, {name: found}, log_average

        return apply

    def with_mine(scores, second, log_average):
        found, log_average = mine(scores, log_average)
        return found.value, {"mine": found}, log_average

    def with_js(scores, second, log_average):
        readings = {"js": js(scores), "smile": smile(scores, float(config.smile_clip))}
        return js_objective(scores), readings, log_average

    def with_club(scores, second, log_average):  # trained by maximum likelihood
        return jnp.diagonal(scores).mean(), {"club": club(scores)}, log_average

    def weighted(scores, second):
        return interpolated(scores, second, float(config.interpolation_weight))

    return {
        "info_nce": Estimator(plain("info_nce", lambda scores, _: info_nce(scores))),
        "interpolated": Estimator(plain("interpolated", weighted), "x"),
        "ml_cpc": Estimator(plain("ml_cpc", lambda scores, _: ml_cpc(scores))),
        "tuba": Estimator(plain("tuba", tuba), "x"),
        "nwj": Estimator(
            plain("nwj", lambda scores, _: nwj(scores)),
            exact=lambda log_ratio: (1.0 + log_ratio, 0.0),
        ),
        "flo": Estimator(
            plain("flo", flo),
            "pair",
            exact=lambda log_ratio: (log_ratio, -jnp.diagonal(log_ratio)),
        ),
        "js": Estimator(with_js),
        "donsker_varadhan": Estimator(
            plain("donsker_varadhan", lambda scores, _: donsker_varadhan(scores))
        ),
        "mine": Estimator(with_mine),
        "club": Estimator(with_club),
    }


class Method(NamedTuple):
    """An estimator with its networks."""

    init: Callable[[Any, Any, Any], Any]
    """init(rng, x, y) -> the parameters."""
    apply: Callable[[Any, Any, Any, Any], tuple[Any, Readings, Any]]
    """apply(params, log_average, x, y) -> (to maximize, readings, log_average)."""


def make_methods(config: Config) -> dict[str, Method]:
    """Return each critic with each estimator, as "critic/estimator"; CLUB has its own network."""
    estimators, chosen = make_estimators(config), {}
    widths = tuple(config.widths)
    critics = {
        "separable": SeparableCritic(widths, config.embedding),
        "joint": JointCritic(tuple(config.joint_widths)),
    }
    if "club" in config.estimators:
        model = GaussianConditional(widths)
        chosen["conditional/club"] = make_method(estimators["club"], model, Baseline(widths))
    for critic in config.critics:
        for name in config.estimators:
            if name != "club":
                chosen[f"{critic}/{name}"] = make_method(
                    estimators[name], critics[critic], Baseline(widths)
                )
    return chosen


def make_method(estimator: Estimator, critic: Any, baseline: Baseline) -> Method:
    """Return an estimator with its critic, and with the baseline if it wants one."""

    def seen(x, y):
        return x if estimator.second_sees == "x" else jnp.concatenate([x, y], axis=1)

    def init(rng, x, y):
        params = {"critic": critic.init(jax.random.fold_in(rng, 0), x, y)}
        if estimator.second_sees:
            params["second"] = baseline.init(jax.random.fold_in(rng, 1), seen(x, y))
        return params

    def apply(params, log_average, x, y):
        scores, second = rein(critic.apply(params["critic"], x, y)), 0.0
        if estimator.second_sees:
            second = rein(baseline.apply(params["second"], seen(x, y)))
        return estimator.apply(scores, second, log_average)

    return Method(init, apply)


@jax.custom_vjp
def rein(values: jax.Array) -> jax.Array:
    """Return values within 1e6; backwards no entry pulls with a weight above 1.

    # Differs from Poole et al. (2019): the mean of e^f can pull on one pair of a batch with more
    # than float32 holds, which would end all estimators that train beside it.
    """
    return jnp.clip(jnp.nan_to_num(values), -1e6, 1e6)


rein.defvjp(
    lambda values: (rein(values), None),
    lambda _, pull: (jnp.clip(jnp.nan_to_num(pull), -1.0, 1.0),),
)


def total_loss(
    methods: Mapping[str, Method], params: Any, log_averages: Any, data: Mapping[str, Any]
) -> tuple[Any, tuple[dict[str, Readings], Any]]:
    """Return one loss for all methods, which share no parameters: each trains as if alone.

    `data` holds (x, y) for every method by its name.
    """
    loss, readings, averages = 0.0, {}, {}
    for name, method in methods.items():
        objective, readings[name], averages[name] = method.apply(
            params[name], log_averages[name], *data[name]
        )
        loss -= rein(objective)
    return loss, (readings, averages)


def init_methods(methods: Mapping[str, Method], rng: Any, data: Mapping[str, Any]) -> Any:
    """Return the parameters of all methods, and the logarithm of MINE's averages."""
    keys = dict(zip(methods, jax.random.split(rng, len(methods)), strict=True))
    params = {name: method.init(keys[name], *data[name]) for name, method in methods.items()}
    return params, {name: jnp.zeros(()) for name in methods}


def values_of(readings: Mapping[str, Readings]) -> dict[str, Any]:
    """Return nats by "critic/estimator", JS and SMILE apart."""
    return {
        f"{name.rsplit('/', 1)[0]}/{reading}": estimate.value
        for name, group in readings.items()
        for reading, estimate in group.items()
    }


def check_readings(config: Config) -> None:
    """Check that networks are read at their last step."""
    if config.num_steps % config.read_every:
        raise UserError(
            f"the config's read_every is {config.read_every}: it must divide num_steps, "
            f"{config.num_steps}; set --config.read_every={config.num_steps}"
        )


def claims(config: Config) -> dict[str, dict[str, Any]]:
    """Return ceiling and label of each reading on a batch."""
    flat = jnp.zeros((config.batch_size, config.batch_size))
    found = {}
    for name, estimator in make_estimators(config).items():
        if name in config.estimators:
            second = flat[0] if estimator.second_sees else 0.0
            _, readings, _ = estimator.apply(flat, second, 0.0)
            found |= {key: describe(estimate, key) for key, estimate in readings.items()}
    return found


def describe(estimate: Estimate, name: str) -> dict[str, Any]:
    """Return what may be claimed of a reading: its label, and its ceiling or None."""
    ceiling = float(estimate.ceiling)
    label = f"{estimate.side} bound" if estimate.is_bound else CAUTIONS.get(name, "no bound")
    return {"ceiling": ceiling if ceiling < float("inf") else None, "label": label}


def fit_and_read(
    methods: Mapping[str, Method],
    draw: Callable[[Any], tuple[Any, Any]],
    held_out: Sequence[tuple[Any, Any]],
    **options: Any,
) -> dict[str, Any]:
    """Train all methods on draw(rng) -> (x, y); read them on held-out pairs as they go.

    Of two held-out parts the first chooses the step for each reading, the second is read there:
    a bound that was chosen on its own data is none, and what is no lower bound says nothing by
    being large.

    Returns:
        Readings by name, nats: means over batches of `batch_size` held-out pairs.
    """
    chooses, (_, reads) = fit_and_watch(methods, draw, held_out, **options)
    return {name: reads[name].mean(1)[judge(name, *chooses).mean(1).argmax()] for name in reads}


def judge(name: str, objectives: Mapping[str, Any], readings: Mapping[str, Any]) -> Any:
    """Return what says how good the networks behind a reading are, by step and batch."""
    critic, estimator = name.split("/")
    return objectives.get(f"{critic}/{BY_OBJECTIVE.get(estimator)}", readings[name])


def fit_and_watch(
    methods: Mapping[str, Method],
    draw: Callable[[Any], tuple[Any, Any]],
    held_out: Sequence[tuple[Any, Any]],
    *,
    batch_size: int,
    learning_rate: float,
    num_steps: int,
    read_every: int,
    rng: Any,
) -> tuple[tuple[dict[str, Any], dict[str, Any]], ...]:
    """Train all methods on draw(rng) -> (x, y); read each held-out part every `read_every` steps.

    Returns:
        Of each part what was maximized, by method, and the readings in nats, by
        "critic/estimator": (readings, batches) each, a batch being `batch_size` of its pairs.
    """
    tx = optax.adam(learning_rate)
    first = draw(rng)
    params, averages = init_methods(methods, rng, dict.fromkeys(methods, first))

    def step(carry, rng):
        params, averages, state = carry
        data = dict.fromkeys(methods, draw(rng))
        gradient, (_, averages) = jax.grad(
            lambda params: total_loss(methods, params, averages, data), has_aux=True
        )(params)
        updates, state = tx.update(gradient, state)
        return (optax.apply_updates(params, updates), averages, state), None

    def read(params, averages, x, y):
        def one(batch):
            found = {
                name: method.apply(params[name], averages[name], *batch)
                for name, method in methods.items()
            }
            objectives = {name: rein(objective) for name, (objective, _, _) in found.items()}
            return objectives, values_of(
                {name: readings for name, (_, readings, _) in found.items()}
            )

        count = len(x) // batch_size
        parts = (z[: count * batch_size].reshape(count, batch_size, -1) for z in (x, y))
        return jax.lax.map(one, tuple(parts))

    def stretch(carry, rng):
        carry, _ = jax.lax.scan(step, carry, jax.random.split(rng, read_every))
        return carry, tuple(read(*carry[:2], x, y) for x, y in held_out)

    rngs = jax.random.split(jax.random.fold_in(rng, 1), num_steps // read_every)
    _, watched = jax.lax.scan(stretch, (params, averages, tx.init(params)), rngs)
    return watched
