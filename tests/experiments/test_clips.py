"""Clips shorter than a window, and overlapping windows: the loss and its metrics."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import logsumexp

from configs import audio_synthetic
from cpc.data.recordings import root_mean_square
from cpc.estimators import Tracker
from cpc.train import make_mesh
from cpc.types import CPCOutputs, UserError
from experiments.kinds.audio.data import AudioData
from experiments.training import audit
from experiments.training import step as training
from experiments.training.objective import objective_loss
from experiments.training.records import make_evaluation, make_summary, strict_sums
from tests import plans
from tests.data.packages import recordings_of

WINDOW, STRIDE, OFFSETS = 1600, 160, (1, 2)
#: Most are shorter than a window of 10 latents, one is shorter than a latent, one has one.
LENGTHS = (700, 1000, 90, 2400, 480, 200, 1300, 1700)


def noise(lengths):
    rng = np.random.default_rng(0)
    waves = [(2000 * rng.standard_normal(n)).astype(np.int16) for n in lengths]
    rms = np.array([root_mean_square(wave) for wave in waves], np.float32)
    return recordings_of(waves, ("ab" * len(waves))[: len(waves)], rms=rms)


def make_config(**options):
    config = audio_synthetic.get_config()
    config.num_steps, config.optim.warmup_steps = 4, 1
    config.data.window_samples, config.data.batch_size = WINDOW, 8
    config.model.width, config.model.context_width, config.model.num_offsets = 8, 8, len(OFFSETS)
    config.evaluate.num_windows = 16
    for key, value in options.items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def problem_of(config, lengths=LENGTHS):
    recordings = noise(lengths)
    return plans.problem_of(config, AudioData(recordings, recordings, {}))


def naive(z, predictions, batch, rule):
    """Return loss, gradients and per-offset sums of log N - L, N and anchors, pair by pair."""
    z, predictions = np.float64(z), np.float64(predictions)
    number = [max(1, n // STRIDE) for n in batch.get("num_samples", [WINDOW] * len(z))]
    latents = [(row, t) for row in range(len(z)) for t in range(number[row])]
    loss, dz, dq, found = 0.0, np.zeros_like(z), np.zeros_like(predictions), []
    for i, k in enumerate(OFFSETS):
        terms, sums = [], np.zeros(3)
        for row, t in latents:
            if t + k >= number[row]:
                continue
            others = [
                (other, u)
                for other, u in latents
                if (other, u) != (row, t + k)
                and not (rule == "excluding_sequence" and other == row)
                and not (rule == "one_per_sequence" and (other == row or u != t + k))
                and not (
                    other != row
                    and batch["utterance"][other] == batch["utterance"][row]
                    and -STRIDE < batch["start"][other] + STRIDE * u - batch["start"][row] < WINDOW
                )
            ]
            if others:
                terms.append(((row, t), [(row, t + k), *others]))
        for (row, t), candidates in terms:
            q = predictions[row, t, i]
            scores = np.array([q @ z[at] for at in candidates])
            total = logsumexp(scores)
            loss += (total - scores[0]) / len(terms)
            sums += np.log(len(scores)) - total + scores[0], len(scores), 1
            weights = np.exp(scores - total)
            weights[0] -= 1
            for at, weight in zip(candidates, weights / len(terms), strict=True):
                dz[at] += weight * q
                dq[row, t, i] += weight * z[at]
        found.append(sums)
    return loss, dz, dq, np.array(found).T


def random_outputs(seed, batch, length=WINDOW // STRIDE):
    rng = np.random.default_rng(seed)
    b = len(batch["x"])
    z, q = rng.normal(size=(b, length, 8)), rng.normal(size=(b, length, len(OFFSETS), 8))
    outputs = CPCOutputs(*(np.float32(x) for x in (z, z, q)))
    if "num_samples" in batch:
        gone = np.arange(length) >= np.maximum(1, batch["num_samples"] // STRIDE)[:, None]
        for leaf in outputs:
            leaf[gone] = np.nan
    return jax.tree.map(jnp.asarray, outputs)


def step_with_overlap(problem, num_short):
    """Return a batch with overlapping windows and at least `num_short` short rows."""
    for batch in map(problem.draw, range(100)):
        apart = np.abs(np.subtract.outer(batch["start"], batch["start"])) >= WINDOW
        same = np.equal.outer(batch["utterance"], batch["utterance"]) & ~apart
        short = (batch.get("num_samples", np.array([WINDOW])) < WINDOW).sum()
        if same.sum() > len(same) + 2 and short >= num_short:
            return batch
    raise AssertionError("no batch with an overlap")


LONG = (1700, 2400, 9000)


@pytest.mark.parametrize(("rule", "lengths"), [
    ("batch", LONG), ("excluding_sequence", LENGTHS), ("one_per_sequence", LENGTHS),
])  # fmt: skip
def test_loss_excludes_padding_and_shared_samples(rule, lengths):
    problem = problem_of(make_config(negatives__rule=rule), lengths)
    batch = step_with_overlap(problem, num_short=2 if lengths is LENGTHS else 0)
    assert ("num_samples" in batch) == (lengths is LENGTHS)
    outputs = random_outputs(0, batch)

    def loss(z, predictions):
        given = problem.split_branches(CPCOutputs(z, z, predictions), batch)
        return objective_loss(problem.plan, {}, {}, given, jax.random.key(0))[:2]

    found = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    (value, sums), gradients = found(outputs.z, outputs.predictions)
    clean = [np.nan_to_num(np.asarray(x)) for x in (outputs.z, outputs.predictions)]
    expected, dz, dq, (bound, n, anchors) = naive(*clean, batch, rule)
    np.testing.assert_array_equal(sums.anchors, anchors)
    np.testing.assert_array_equal(sums.n, n)
    np.testing.assert_allclose(sums.log_n - sums.loss, bound, rtol=1e-4)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    for gradient, want in zip(gradients, (dz, dq), strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-6)


def test_strict_bound_joins_batches_without_padding():
    problem = problem_of(make_config())
    batches = [problem.draw(step) for step in (0, 1)]
    outputs = [random_outputs(seed, batch) for seed, batch in enumerate(batches)]
    given = [problem.split_branches(*pair) for pair in zip(outputs, batches, strict=True)]
    sums = jax.jit(lambda given: strict_sums(problem.plan, {}, {}, given)[0])(given)
    joined = {name: np.concatenate([batch[name] for batch in batches])
              for name in ("utterance", "start", "num_samples")}  # fmt: skip
    places = list(zip(joined["utterance"], joined["start"], strict=True))
    new = [  # windows that share no samples with an earlier one
        i
        for i, (utterance, start) in enumerate(places)
        if all(u != utterance or abs(s - start) >= WINDOW for u, s in places[:i])
    ]
    assert 2 < len(new) < 16
    joined = {name: values[new] for name, values in joined.items()}
    z, q = (
        np.nan_to_num(np.concatenate([getattr(o, name) for o in outputs]))[new]
        for name in ("z", "predictions")
    )
    _, _, _, (bound, n, anchors) = naive(z, q, joined, "one_per_sequence")
    np.testing.assert_array_equal(sums.anchors, anchors)
    np.testing.assert_array_equal(sums.n, n)
    np.testing.assert_allclose(sums.log_n - sums.loss, bound, rtol=1e-4)


def num_latents(batch):
    return np.maximum(1, batch["num_samples"] // STRIDE)


def garbled(batch):
    x = batch["x"].copy()
    x[np.arange(WINDOW) >= batch["num_samples"][:, None]] = 12345
    return {**batch, "x": x}


@pytest.mark.parametrize("options", [
    {"model__norm": "batch", "loss__name": "sigmoid", "negatives__queue": 80},
    {"model__norm": "group", "model__padding": "same", "negatives__num_sampled": 3,
     "negatives__temperature_rule": "entropy", "negatives__momentum": 0.5, "optim__accumulate": 2},
    {"model__directions": ("forward", "backward"), "model__modules": 2},
], ids=["batch", "group", "branches"])  # fmt: skip
def test_padding_content_changes_nothing(options):
    """Loss, gradients, batch norm, strict sums, queue and temperature are bit-identical."""
    problem = problem_of(make_config(**options))
    loss, batch = training.make_loss(problem), problem.draw(0)
    state = training.make_state(problem, loss, optax.identity())
    assert (batch["num_samples"] < WINDOW).any()
    assert not batch["x"][np.arange(WINDOW) >= batch["num_samples"][:, None]].any()
    differentiate = jax.jit(jax.value_and_grad(loss, has_aux=True))
    found = [
        jax.device_get(differentiate(state.params, state.extra, given, jax.random.key(0)))
        for given in (batch, garbled(batch))
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found[0]))
    extra = found[0][0][1][0]
    if "negatives__queue" in options:
        assert extra["objective"]["queues"][0].mask.sum() == num_latents(batch).sum()
        check_batch_norm(state.params["model"], batch, extra["model"]["batch_stats"])
    if "negatives__temperature_rule" in options:
        assert extra["objective"]["temperature"] != 1.0


def check_batch_norm(params, batch, found):
    """Compare the first layer's running statistics with those of each clip alone."""
    kernel = np.float64(params["encoder"]["kernel0"])[:, 0]
    frames = []
    numbers = np.maximum(batch["num_samples"], STRIDE)  # a shorter clip has one latent
    for x, gain, number in zip(batch["x"], batch["gain"], numbers, strict=True):
        clip = np.pad(np.float64(x[:number]) * gain, (5, 0))
        frames += [clip[5 * t : 5 * t + 10] @ kernel for t in range(number // 5)]
    mean, var = (found["encoder"]["norm0"][name] for name in ("mean", "var"))
    np.testing.assert_allclose(mean, 0.1 * np.mean(frames, 0), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(var, 0.9 + 0.1 * np.var(frames, 0), rtol=1e-4, atol=1e-6)


def test_audit_excludes_padding():
    problem = problem_of(make_config(negatives__rule="own_sequence"))
    rows = {row.name: row.value for row in audit.audit_problem(problem)}
    number = np.concatenate([num_latents(problem.draw(step)) for step in (0, 1)])
    anchors = sum(np.maximum(0, number - k) for k in OFFSETS)
    assert rows["anchors"] == anchors.sum()
    assert rows["negatives_mean"] == pytest.approx((anchors * (number - 1)).sum() / anchors.sum())


def test_evaluation_traces_the_network_once():
    """Tracing one network per batch took 43 s of compilation on a GPU."""
    problem, mesh = problem_of(make_config(evaluate__num_windows=32)), make_mesh(1)
    state = training.make_state(problem, training.make_loss(problem), optax.identity())
    apply, preprocess = (mock.Mock(wraps=one) for one in (problem.model.apply, problem.preprocess))
    assert problem.held_out.number == 4
    counted = problem._replace(model=problem.model._replace(apply=apply), preprocess=preprocess)
    own, strict = make_evaluation(counted, lambda *_: [], mesh)(state)
    for traced in (apply, preprocess):  # with train=False
        assert [call.args[2] for call in traced.call_args_list] == [False]
    assert all(np.isfinite(own[name]) for name in ("loss", "std_z", "rank_z", "std_c", "rank_c"))
    assert np.isfinite(strict["nats"])
    assert (strict["n"] < 32).all()  # some windows are shorter


def test_offsets_without_anchors_are_excluded_from_the_mean():
    problem = problem_of(make_config(), (400,) * 50 + (480,))
    batch = next(b for b in map(problem.draw, range(99)) if b["num_samples"].max() < 480)
    given = problem.split_branches(random_outputs(0, batch), batch)
    loss = jax.jit(lambda given: objective_loss(problem.plan, {}, {}, given, jax.random.key(0))[:2])
    value, sums = jax.device_get(loss(given))
    track = Tracker(False)(sums)
    assert np.isfinite(track.value[0])
    assert np.isnan(track.value[1])
    metrics = {"offsets": sums, "steps": 1, "loss": value, "gradient_norm": 1.0}
    record = make_summary(problem, lambda step: 0.1, print)(metrics, 1)
    assert record["nats"] == pytest.approx(track.value[0])


def test_clips_too_short_for_the_offsets_are_rejected():
    problem_of(make_config(), (480, 100))
    with pytest.raises(UserError, match=r"longest of 2 recordings has 479 samples .* 2 latents"):
        problem_of(make_config(), (479, 100))
