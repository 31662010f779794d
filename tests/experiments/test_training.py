"""The training step: options, devices, accumulation, services and probes of the run."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import series
from cpc.estimators import Tracker, bound_over_sequences
from cpc.files import write_json
from cpc.results import Score, write_scores
from cpc.train import ProgressWriter, make_mesh, open_checkpoints, put_batch, replicate
from cpc.types import UserError
from experiments import status
from experiments.command.config import with_settings
from experiments.train import run
from experiments.training import loop
from experiments.training import step as training
from experiments.training.contrastive import probe_once, probe_with_config
from experiments.training.objective import scored
from experiments.training.records import make_evaluation, make_summary
from tests import services
from tests.experiments import test_clips
from tests.plans import problem_of, speech


@pytest.fixture(scope="module")
def made():
    return speech(2, 20, 0.16)


def make_config(**options):
    sizes = {"data__window_samples": 2560, "model__num_offsets": 3}
    return test_clips.make_config(**sizes | options)


def train(config, made, num_devices=1, steps=1):
    problem, mesh = problem_of(config, made), make_mesh(num_devices)
    state, step, _ = training.make_step(problem, mesh)
    start = jax.device_get(state)
    for i in range(steps):
        state = step(state, put_batch(problem.draw(i), mesh))
    return jax.device_get(state), problem, mesh, start


BOUND = ("bound", "bound_low", "bound_high", "log_n", "nats", "state")


def test_bound_is_recorded_and_evaluated(made):
    config = make_config(
        data__one_speaker=True, model__context="lstm", model__norm="group", model__num_offsets=2,
        negatives__rule="one_per_sequence", negatives__temperature_rule="learned",
        optim__ema_decay=0.9, optim__clip_norm=1.0, optim__weight_decay=0.01,
    )  # fmt: skip
    state, problem, mesh, _ = train(config, made, steps=2)
    assert state.failure.tolist() == [-1, -1]
    record = make_summary(problem, lambda step: 0.0, print)(state.metrics, 1)
    draw = problem.held_out.draw_independent
    for of_one, drawn in ((True, problem.draw), (False, draw)):
        assert all(len({*drawn(i)["speaker"].tolist()}) == 1 for i in range(5)) == of_one
    mixed = problem_of(make_config(), made).held_out
    assert mixed.draw_independent is mixed.draw  # so that outputs are computed once
    assert record["has_bound"] is True
    assert set(BOUND) < set(record)
    assert "strict" not in state.metrics
    assert not any(key.startswith("strict") for key in record)
    # Each configured offset has its own map.
    gradient = optax.tree.get(state.opt_state, "mu")["model"]["predictor"]["W"]["kernel"]
    assert (np.abs(gradient).sum((0, 2)) > 0).tolist() == [True] * 2

    evaluate = make_evaluation(problem, lambda *_: [], mesh)
    own, strict = evaluate(state)
    for found in (own, strict):
        top1, pairwise = np.array(found["acc_top1"]), np.array(found["acc_pairwise"])
        assert ((top1 >= 0) & (top1 <= pairwise + 1e-6) & (pairwise <= 1)).all()
        assert len(found["bound"]) == 2
        assert (np.array(found["bound"]) <= np.array(found["log_n"]) + 1e-5).all()
    assert strict["is_bound"]
    np.testing.assert_equal(evaluate(state._replace(params=state.ema, ema=None)), [own, strict])
    # An evaluation that is not finite cannot be the best.
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, state.ema)
    assert np.isnan(evaluate(state._replace(ema=broken))[0]["loss"])

    others = problem.held_out._replace(draw_independent=lambda step: draw(100 + step))
    changed = make_evaluation(problem._replace(held_out=others), lambda *_: [], mesh)(state)
    assert changed[0]["bound"].tolist() == own["bound"].tolist()
    assert changed[1]["bound"].tolist() != strict["bound"].tolist()


def compare_devices(one, eight):
    np.testing.assert_array_equal(one.metrics["offsets"].n, eight.metrics["offsets"].n)
    for name in ("loss", "gradient_norm"):
        assert eight.metrics[name] == pytest.approx(one.metrics[name], rel=1e-5)
    # Adam's first moment is 0.1 times the gradient.
    moments = [optax.tree.get(state.opt_state, "mu") for state in (one, eight)]
    for found, rtol, atol in ((moments, 1e-3, 1e-7), ((one.extra, eight.extra), 1e-4, 1e-6)):
        for a, b in zip(*map(jax.tree.leaves, found), strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def test_loss_without_log_n_records_only_the_strict_bound(made):
    """Negatives in 8 shards: each anchor sees only its own window."""
    config = make_config(
        loss__name="sigmoid", loss__cosine=True, negatives__temperature=0.5, negatives__shards=8,
        model__context="conv", model__norm="layer", model__encoder="log_mel", model__num_offsets=2,
    )  # fmt: skip
    state, problem, mesh, start = train(config, made)
    compare_devices(state, train(config, made, 8)[0])
    sums = state.metrics["offsets"]
    np.testing.assert_array_equal(sums.n / sums.anchors, 16.0)
    said = []
    record = make_summary(problem, lambda step: 0.0, said.append)(state.metrics, 1)
    own, strict = make_evaluation(problem, lambda *_: [], mesh)(state)
    for one in (record, own):
        assert one["has_bound"] is False
        assert not set(BOUND) & set(one)
    assert record["is_bound"] is False
    assert record["top1"] == pytest.approx(np.mean(record["acc_top1"]))
    assert record["chance"] == pytest.approx(np.mean(record["chance_top1"]))
    for key in ("optimum", "posterior"):
        assert record.get(key) == getattr(problem.plan.description, key)
    assert all("bound" in sentence for sentence in said)  # only the strict bound is at chance
    assert strict["series"] == "strict"
    assert strict["is_bound"]
    assert strict["has_bound"]
    assert set(BOUND) < set(strict)

    @jax.jit
    def strict_sums(params, raw):
        batch = problem.preprocess(raw, jax.random.key(0), True)
        out = problem.model.apply({"params": params}, batch, True)[0]
        unit = scored(problem.plan, out)
        return bound_over_sequences(unit.z, unit.predictions / 0.5)

    raw = jax.tree.map(jnp.asarray, problem.draw(0))
    expected = Tracker(True)(strict_sums(start.params["model"], raw))
    np.testing.assert_allclose(record["strict_bound"], expected.value, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(record["strict_log_n"], np.log(8), rtol=1e-6)
    assert {f"strict_{key}" for key in BOUND} < set(record)


ALIGNED = {"loss__align_to": 6}
QUANTIZED = {
    "model__num_codes": 8, "model__code_width": 6, "model__restart_codes": True,
    "model__code_decay": 0.5,
}  # fmt: skip


def test_aligned_predictions_of_codes_are_recorded_and_resume(made, tmp_path):
    config = make_config(
        **ALIGNED, **QUANTIZED, loss__align_by="best", negatives__num_sampled=5,
        model__norm="batch", model__context="conv", model__encoder="log_mel",
    )  # fmt: skip
    problem, mesh = problem_of(config, made), make_mesh(1)
    start, step, _ = training.make_step(problem, mesh)
    states, state = [], start
    for i in range(4):
        state = step(state, put_batch(problem.draw(i), mesh))
        states.append(jax.device_get(state))
    first, second, _, whole = states

    # The training loss includes the commitment penalty, the test loss does not.
    record = make_summary(problem, lambda step: 0.0, str)(first.metrics, 1)
    assert record["commitment"] > 0
    assert 1 < record["perplexity"] <= 8
    own = sum(record["offset_loss"]) + record["commitment"]
    assert record["loss"] == pytest.approx(own, rel=1e-5)
    before = jax.tree.map(np.array, first.extra)
    test, strict = make_evaluation(problem, lambda *_: [], mesh)(first)
    assert test["loss"] == pytest.approx(sum(test["offset_loss"]))
    for one in (record, test):
        assert one["offsets"] == [2, 4, 6]
        assert one["has_bound"] is False
        assert sum(one["frames_per_prediction"]) == pytest.approx(6, rel=1e-5)
        np.testing.assert_allclose(one["n"], 6, rtol=1e-6)
    assert strict["is_bound"]
    assert np.isfinite(strict["nats"])
    assert len(record["strict_bound"]) == 3
    jax.tree.map(np.testing.assert_array_equal, first.extra, before)

    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, replicate(second, mesh), {})
        checkpoints.wait()
    with open_checkpoints(tmp_path) as checkpoints:
        state, _ = checkpoints.restore(replicate(first, mesh))
    for i in (2, 3):
        state = step(state, put_batch(problem.draw(i), mesh))
    state = jax.device_get(state)
    for a, b in ((state.params, whole.params), (state.extra, whole.extra)):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [
    {**QUANTIZED, "model__norm": "batch"},
    {"negatives__temperature_rule": "learned", "negatives__momentum": 0.9, "loss__cosine": True,
     "model__context": "conv", "model__norm": "channel", "model__padding": "same"},
])  # fmt: skip
def test_aligned_predictions_do_not_depend_on_devices(made, options):
    """Compiles for minutes; the sigmoid test above covers the same code by day."""
    config = make_config(**ALIGNED, **options)
    one, eight = (train(config, made, number)[0] for number in (1, 8))
    assert one.failure.tolist() == [-1, -1]
    compare_devices(one, eight)


def test_accumulation_keeps_the_negatives_of_the_whole_batch(made):
    """The rule depends on the speaker of each row, so reordered rows would be noticed."""
    config, mesh = make_config(model__width=64, negatives__rule="same_group"), make_mesh(2)
    results = []
    for number in (1, 4):
        problem = problem_of(with_settings(config, {"optim.accumulate": number}), made)
        state, _, _ = training.make_step(problem, mesh)
        given = state.params, state.extra, put_batch(problem.draw(0), mesh), jax.random.key(0)
        differentiate = jax.value_and_grad(training.make_loss(problem), has_aux=True)
        compiled = jax.jit(differentiate).lower(*given).compile()
        results.append((compiled(*given), compiled.memory_analysis().temp_size_in_bytes))
    (whole, memory), (parts, less) = results
    np.testing.assert_array_equal(whole[0][1][1]["offsets"].n, parts[0][1][1]["offsets"].n)
    np.testing.assert_allclose(whole[0][0], parts[0][0], rtol=1e-6)
    for a, b in zip(jax.tree.leaves(whole[1]), jax.tree.leaves(parts[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(a).max())
    assert less < 0.7 * memory


def test_launch_takes_several_batches(made):
    config = make_config()
    config.steps_per_launch = config.log_every = 2
    problem, mesh = problem_of(config, made), make_mesh(1)
    state, launch, _ = training.make_step(problem, mesh)
    jaxpr = jax.make_jaxpr(launch)(state, tuple(map(problem.draw, (0, 1))))
    assert jaxpr.out_avals[0].shape == state.step.shape


def test_services_are_started_and_finished_on_failure(tmp_path):
    config, state = make_config(), types.SimpleNamespace(step=0, metrics={})
    write_json(tmp_path / "environment.json", {"id": "abc"})
    config.logger = "wandb"
    with (
        services.installed(services.fake_service("wandb")) as module,
        pytest.raises(UserError, match="not finite"),
        loop.open_training(tmp_path, state, ProgressWriter(1), config),
    ):
        raise UserError("a number was not finite")
    assert [called for called, *_ in module.calls] == ["init", "finish"]
    given = module.calls[0][2]
    assert (given["name"], given["id"]) == (tmp_path.name, "abc")
    assert given["config"]["model"]["width"] == 8


def test_lost_or_replaced_scores_are_probed_again(tmp_path):
    config = make_config(probe__tasks=("phones", "speakers"), probe__features=("c", "z"))
    fitted = []

    def make_probe(own, data="synthetic"):
        def probe(variables, step):
            pairs = [*itertools.product(own.probe.tasks, own.probe.features)]
            fitted.extend(pairs)
            how = ("linear", "accuracy", 0.5)
            scores = [Score(task, data, "frame", one, *how, step=step) for task, one in pairs]
            write_scores(tmp_path, scores)
            return scores

        return probe

    def probe_again(**changed):
        fitted.clear()
        probe_once(with_settings(config, changed), tmp_path, make_probe, None)
        assert status.was_probed(tmp_path, config.num_steps), "the run is still done"
        return fitted.copy()

    everything = [*itertools.product(config.probe.tasks, config.probe.features)]
    assert [probe_again(), probe_again()] == [everything, []]
    (tmp_path / "scores.json").unlink()
    assert probe_again() == everything
    less = {"probe.hours": 0.1, "probe.tasks": ("phones",), "probe.features": ("z",)}
    for settings, step, name, replaced in (
        (less, 4, "synthetic", [("phones", "z")]), (less, 2, "synthetic", []),
        ({**less, "probe.features": ("mfcc",)}, 4, "synthetic", []),
        ({"probe.features": ("z",)}, 4, "synthetic", []),
        ({"probe.tasks": ("ctc",), "probe.hours": 0.1}, 4, "x", []),
        ({"data.source": "folder"}, 4, "mine", []),
    ):  # fmt: skip
        other = with_settings(config, settings)
        probe_with_config(other, config, tmp_path, make_probe(other, name), None, step)
        assert probe_again() == replaced
    # Two probes with other settings, one per feature.
    for features in ("c", "z"):
        other = with_settings(config, {**less, "probe.features": (features,)})
        probe_with_config(other, config, tmp_path, make_probe(other), None, 4)
    assert probe_again() == [("phones", "c"), ("phones", "z")]
    # Changed settings of the run: fewer features, another feature, another option.
    assert probe_again(**{"probe.features": ("c",)}) == []
    new = probe_again(**{"probe.features": ("c", "mfcc")})
    assert new == [("phones", "mfcc"), ("speakers", "mfcc")]
    assert probe_again(**{"probe.hours": 0.2}) == everything


def test_missing_service_package_is_reported(tmp_path, monkeypatch):
    config = series.get_config()
    monkeypatch.setattr(loop.importlib.util, "find_spec", lambda name: None)
    config.logger = "trackio"
    with pytest.raises(UserError, match="trackio, which is not installed: run pip install trackio"):
        run(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
