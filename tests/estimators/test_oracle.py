"""Estimates with the exact critic: the oracle table, and InfoNCE by enumeration."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses
from cpc.estimators import (
    donsker_varadhan,
    info_nce,
    interpolated,
    js,
    js_objective,
    ml_cpc,
    nwj,
    smile,
)
from cpc.estimators.tasks import correlated_gaussians, gaussian_log_ratio
from tests.goldens.goldens import load_golden

DIM = 20
META, CASES = load_golden("oracle_mi.json")
IDENTITY_META, IDENTITY = load_golden("infonce_identity.json")
BATCHES = {64: 100, 128: 60}


def estimates(scores):
    return {
        "infonce": info_nce(scores).value,
        "dv": donsker_varadhan(scores).value,
        "nwj": js(scores).value,  # NWJ at 1 + f
        "js_readout_nwj_of_log_ratio": nwj(scores).value,
        "js_objective": js_objective(scores),
        "smile_1": smile(scores, 1.0).value,
        "smile_5": smile(scores, 5.0).value,
        "interpolated_0.01": interpolated(scores, 0.0, 0.01).value,
        "interpolated_0.1": interpolated(scores, 0.0, 0.1).value,
        "interpolated_0.5": interpolated(scores, 0.0, 0.5).value,
        "interpolated_1": interpolated(scores, 0.0, 1.0).value,
        "ml_cpc": ml_cpc(scores).value,
    }


@functools.partial(jax.jit, static_argnums=(1, 2))
def simulate(nats, n, batches):
    def batch(rng):
        return estimates(gaussian_log_ratio(*correlated_gaussians(rng, n, DIM, nats), nats))

    rngs = jax.random.split(jax.random.fold_in(jax.random.key(0), nats.astype(int)), batches)
    return jax.vmap(batch)(rngs)


@functools.cache
def simulated(nats, n):
    return {k: np.asarray(v) for k, v in simulate(jnp.float32(nats), n, BATCHES[n]).items()}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (params["N"] != 64))
        for name, (params, _, _) in CASES.items()
        if params["N"] in BATCHES
    ],
)
def test_oracle_table(name):
    params, _, rows = CASES[name]
    n = params["N"]
    values = simulated(params["I"], n)
    for estimator, row in rows.items():
        if estimator in ("top1_accuracy", "pairwise_win"):
            continue
        value = values[estimator]
        if estimator in params["heavy_tail"]:  # the mean has not converged, the median has
            spread = (row["q95"] - row["q05"]) / 3.29
            error = 1.2533 * spread / math.sqrt(BATCHES[n])
            assert abs(np.median(value) - row["median"]) < 4 * error, estimator
        else:
            error = math.hypot(row["std"] / math.sqrt(BATCHES[n]), row["stderr"])
            assert abs(value.mean() - row["mean"]) < 4 * error, estimator
    assert values["infonce"].max() <= math.log(n)


info_nce_values = jax.jit(jax.vmap(lambda scores: info_nce(scores).value))


def expected_info_nce(law, tables, n):
    """Mean over every batch of n pairs of the law (x, y), for each critic of `tables`."""
    cells = np.argwhere(law > 0)
    batches = cells[np.array(list(itertools.product(range(len(cells)), repeat=n)))]
    x, y = batches[..., 0], batches[..., 1]  # (batches, n)
    scores = np.stack(tables)[:, x[:, :, None], y[:, None, :]]
    value = info_nce_values(jnp.asarray(scores.reshape(-1, n, n), jnp.float32))
    return np.asarray(value, np.float64).reshape(len(tables), -1) @ law[x, y].prod(1)


def log_ratio_of(law):
    ratio = law / np.outer(law.sum(1), law.sum(0))
    return np.log(np.where(ratio > 0, ratio, 1e-30))


@pytest.mark.parametrize("name", IDENTITY)
def test_identity_by_enumeration(name):
    """The mean of log N - L over all batches is I - KL(mixture, product), for any h(x)."""
    _, inputs, expected = IDENTITY[name]
    law, noise = np.array(inputs["P"]).T, np.array(inputs["noise_table"]).T  # rows: contexts
    log_ratio = log_ratio_of(law)
    h = 3.0 * np.arange(len(law))[:, None]
    for i, n in enumerate(inputs["N"]):
        if np.count_nonzero(law) ** n > 5000:
            break
        tables = (log_ratio, log_ratio + h, log_ratio + noise)
        exact, with_h, worse = expected_info_nce(law, tables, n)
        assert exact == pytest.approx(expected["bound"][i], abs=2e-6)
        assert exact == pytest.approx(expected["I_minus_KL"][i], abs=2e-6)
        assert with_h == pytest.approx(exact, abs=5e-6)
        assert worse == pytest.approx(expected["worse_critic_bound"][i], abs=2e-6)
        assert expected["paper_bound"][i] - 2e-6 <= exact <= expected["I"] + 2e-6


loss_of_rows = jax.jit(losses.info_nce)


def binary_symmetric_bound(p, b, groups, copies=1):
    """Mean log N - L of each critic b [x = c], `groups` fair negatives repeated `copies` times."""
    matching = np.arange(groups + 1)
    weight = np.array([math.comb(groups, m) for m in matching]) / 2.0**groups
    hits = np.repeat(np.arange(groups) < matching[:, None], copies, axis=1)  # (m, negatives)
    positive = np.broadcast_to(np.array([1.0, 0.0])[:, None], (len(b), 2, groups + 1))
    negatives = np.broadcast_to(hits, (len(b), 2, *hits.shape))
    loss = loss_of_rows(
        jnp.asarray((positive * b[:, None, None]).ravel(), jnp.float32),
        jnp.asarray((negatives * b[:, None, None, None]).reshape(-1, hits.shape[1]), jnp.float32),
    )
    loss = np.asarray(loss, np.float64).reshape(positive.shape) @ weight
    return math.log(groups * copies + 1) - loss @ [p, 1 - p]


@pytest.mark.parametrize(
    ("p", "groups", "copies", "best"),
    [(0.6, 1, 999, 0.500), (0.95, 7, 128, 0.571), (0.95, 5, 2, 0.4975)],
)
def test_dependent_negatives_pass_the_truth(p, groups, copies, best):
    """One negative repeated is no bound any more; the same ones without their copies are."""
    information = math.log(2) + p * math.log(p) + (1 - p) * math.log(1 - p)
    critics = np.linspace(0.1, 16.0, 160)
    value = binary_symmetric_bound(p, critics, groups, copies).max()
    assert value == pytest.approx(best, abs=6e-4)
    assert value > information > binary_symmetric_bound(p, critics, groups).max()
