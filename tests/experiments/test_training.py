"""The step of an experiment: every option trains, on any number of devices, to the same numbers."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import series
from cpc import data
from cpc.estimators import Tracker, bound_over_sequences
from cpc.negatives import RULES
from cpc.results import Score, write_scores
from cpc.train import (
    ProgressWriter,
    init_state,
    make_mesh,
    open_checkpoints,
    put_batch,
    replicate,
)
from cpc.types import UserError
from experiments import status
from experiments.command.config import with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.kinds.audio.model import check_model
from experiments.train import run
from experiments.training import loop
from experiments.training import step as training
from experiments.training.contrastive import probe_aside, probe_once
from experiments.training.objective import scored
from experiments.training.records import make_evaluation, make_summary
from tests import plans, services


@pytest.fixture(scope="module")
def made():
    """Sound for a few windows of 16 latents."""
    return data.make_synthetic(
        num_speakers=2, utterances_per_speaker=20, seconds=0.16, chain=data.phone_chain(4), seed=0
    )


def make_config(**options):
    from configs import audio_synthetic

    config = audio_synthetic.get_config()
    config.num_steps, config.optim.warmup_steps = 4, 1
    config.data.window_samples, config.data.batch_size = 2560, 8
    config.model.width, config.model.context_width, config.model.num_offsets = 16, 16, 3
    config.evaluate.num_windows = 16
    for key, value in options.items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def problem_of(config, made):
    return plans.problem_of(config, AudioData(made.recordings, made.recordings, {}))


def no_probe(variables, step):
    return []


def train(config, made, num_devices=1, steps=2):
    problem, mesh = problem_of(config, made), make_mesh(num_devices)
    state, step, _ = training.make_step(problem, mesh)
    for i in range(steps):
        state = step(state, put_batch(problem.draw(i), mesh))
    return jax.device_get(state), problem, mesh


#: What goes with any context, norm and rule.
OTHERS = (
    {"model__dtype": "bfloat16", "model__padding": "same"},
    {"model__context_layers": 2, "negatives__num_sampled": 5},
    {"optim__accumulate": 2, "negatives__momentum": 0.9},
    {"negatives__shards": 4, "negatives__window": 2, "negatives__temperature": 0.5},
    {"data__one_speaker": True, "optim__ema_decay": 0.9, "optim__clip_norm": 1.0,
     "optim__weight_decay": 0.01},
)  # fmt: skip
CONTEXTS = ("gru", "lstm", "conv", "transformer")
NORMS = ("none", "layer", "channel", "batch", "group")
#: Each occurs; that any two occur together would take ten times as long.
OPTIONS = [
    {
        "model__context": CONTEXTS[i % len(CONTEXTS)],
        "model__norm": NORMS[i % len(NORMS)],
        "negatives__rule": list(RULES)[i % len(RULES)],
        **others,
    }
    for i, others in enumerate(OTHERS)
]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(sorted(options.items())))
def test_every_option_trains_and_is_evaluated(made, options):
    config = make_config(**options)
    state, problem, mesh = train(config, made)
    assert state.failure.tolist() == [-1, -1]
    assert np.isfinite(state.metrics["loss"])
    records = make_evaluation(problem, no_probe, mesh)(state)
    for record in records:
        top1, pairwise = np.array(record["acc_top1"]), np.array(record["acc_pairwise"])
        assert ((top1 >= 0) & (top1 <= pairwise + 1e-6) & (pairwise <= 1)).all()
        assert len(record["bound"]) == 3
        assert (np.array(record["bound"]) <= np.array(record["log_n"]) + 1e-5).all()
    assert [record["is_bound"] for record in records][-1]


@pytest.mark.slow
def test_an_average_is_evaluated_with_that_of_the_temperature(made):
    config = make_config(negatives__temperature_rule="learned", optim__ema_decay=0.9)
    state, problem, mesh = train(config, made)
    evaluate = make_evaluation(problem, no_probe, mesh)
    average = evaluate(state._replace(params=state.ema, ema=None))
    np.testing.assert_equal(evaluate(state), average)


BOUND = ("bound", "bound_low", "bound_high", "log_n", "nats", "state")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sigmoid", "triplet_all"])
def test_a_loss_without_log_n_has_no_bound_and_the_strict_one_beside_it(made, name):
    """In the record of the training, where it is that of its batch, and of the evaluation."""
    config = make_config(loss__name=name, loss__cosine=True, negatives__temperature=0.5)
    state, problem, mesh = train(config, made, steps=1)
    said = []
    summarize = make_summary(problem, lambda step: 0.0, said.append)
    record = summarize(state.metrics, 1)
    assert record["has_bound"] is False
    assert record["is_bound"] is False
    assert not set(BOUND) & set(record)
    assert record["top1"] == pytest.approx(np.mean(record["acc_top1"]))
    assert record["chance"] == pytest.approx(np.mean(record["chance_top1"]))
    for key in ("optimum", "posterior"):
        assert record.get(key) == getattr(problem.plan.description, key)
    assert all("bound" in sentence for sentence in said)  # what is at chance is the strict bound

    start, _, _ = training.make_step(problem, mesh)
    batch = jax.tree.map(jnp.asarray, problem.draw(0))
    batch = problem.prepare(batch, jax.random.key(0), True)
    outputs, _ = problem.model.apply({"params": start.params["model"]}, batch, True)
    unit = scored(problem.plan, outputs)
    expected = Tracker(True)(bound_over_sequences(unit.z, unit.predictions / 0.5))
    np.testing.assert_allclose(record["strict_bound"], expected.value, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(record["strict_log_n"], np.log(8), rtol=1e-6)
    assert {f"strict_{key}" for key in BOUND} < set(record)

    own, strict = make_evaluation(problem, no_probe, mesh)(state)
    assert own["has_bound"] is False
    assert not set(BOUND) & set(own)
    assert strict["series"] == "strict"
    assert strict["is_bound"]
    assert strict["has_bound"]
    assert set(BOUND) < set(strict)


@pytest.mark.slow
def test_a_loss_with_log_n_has_it_and_no_strict_sums(made):
    state, problem, _ = train(make_config(), made, steps=1)
    record = make_summary(problem, lambda step: 0.0, print)(state.metrics, 1)
    assert record["has_bound"] is True
    assert set(BOUND) < set(record)
    assert "strict" not in state.metrics
    assert not any(key.startswith("strict") for key in record)


@pytest.mark.slow
def test_the_strict_bound_is_of_independently_drawn_batches(made):
    """Not of those that the training's rule is evaluated on."""
    config = make_config(data__one_speaker=True)
    state, problem, mesh = train(config, made, steps=1)

    def evaluate(**changes):
        changed = problem._replace(held_out=problem.held_out._replace(**changes))
        return make_evaluation(changed, no_probe, mesh)(state)

    def other(step):
        return problem.held_out.draw_independent(100 + step)

    before = evaluate()
    changed_test, changed_any = evaluate(draw=other), evaluate(draw_independent=other)
    assert changed_test[0]["bound"].tolist() != before[0]["bound"].tolist()
    assert changed_test[1]["bound"].tolist() == before[1]["bound"].tolist()
    assert changed_any[0]["bound"].tolist() == before[0]["bound"].tolist()
    assert changed_any[1]["bound"].tolist() != before[1]["bound"].tolist()


def test_what_cannot_be_restored_is_told_of_the_state_as_it_is(tmp_path):
    def state(width):
        params, metrics = {"w": jnp.ones(width)}, {"strict": jnp.zeros(2)}
        return init_state(params, {}, optax.sgd(0.1), jax.random.key(0), metrics)

    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state(3), {})
        checkpoints.wait()
        with pytest.raises(UserError, match=r"params/w is \[\[3\].* and \[\[4\]"):
            checkpoints.restore(state(4))


def test_a_service_is_told_that_a_training_failed(tmp_path):
    config = make_config()
    config.logger = "trackio"
    state = types.SimpleNamespace(step=0, metrics={})
    with (
        services.installed(services.fake_service()) as module,
        pytest.raises(UserError, match="not finite"),
        loop.open_training(tmp_path, state, ProgressWriter(1), config),
    ):
        raise UserError("a number was not finite")
    assert [name for name, *_ in module.calls] == ["init", "finish"]


@pytest.mark.slow
def test_an_evaluation_that_is_not_finite_has_no_loss_to_be_the_best_by(made):
    config = make_config()
    state, problem, mesh = train(config, made, steps=1)
    broken = state._replace(params=jax.tree.map(lambda leaf: leaf * jnp.nan, state.params))
    record, *_ = make_evaluation(problem, no_probe, mesh)(broken)
    assert np.isnan(record["loss"])


@pytest.mark.slow
def test_every_predictor_gets_gradient(made):
    """As many offsets in the loss as configured, each with its own map."""
    problem = problem_of(make_config(), made)
    state, _, _ = training.make_step(problem, make_mesh(1))
    batch = jax.tree.map(jnp.asarray, problem.draw(0))
    differentiate = jax.jit(jax.grad(training.make_loss(problem), has_aux=True))
    gradient, _ = differentiate(state.params, state.extra, batch, jax.random.key(0))
    by_offset = np.abs(gradient["model"]["predictor"]["W"]["kernel"]).sum((0, 2))
    assert by_offset.shape == (3,)
    assert (by_offset > 0).all()
    assert state.metrics["offsets"].loss.shape == (3,)


ALIGNED = {"loss__align_to": 6}


@pytest.mark.slow
def test_aligned_predictions_are_recorded_with_their_frames_and_the_strict_bound(made):
    """The loss of the evaluation adds up over predictions, which share 6 frames."""
    config = make_config(**ALIGNED, loss__align_by="best", negatives__num_sampled=5)
    state, problem, mesh = train(config, made)
    record = make_summary(problem, lambda step: 0.0, str)(state.metrics, 1)
    test, strict = make_evaluation(problem, no_probe, mesh)(state)
    for one in (record, test):
        assert one["offsets"] == [2, 4, 6]
        assert one["has_bound"] is False
        assert sum(one["frames_per_prediction"]) == pytest.approx(6, rel=1e-5)
        assert sum(one["offset_loss"]) == pytest.approx(one["loss"], rel=1e-5)
        np.testing.assert_allclose(one["n"], 6, rtol=1e-6)
    assert strict["is_bound"]
    assert len(record["strict_bound"]) == 3


@pytest.mark.slow
def test_aligned_predictions_go_with_other_options(made):
    options = {
        "negatives__temperature_rule": "learned", "negatives__momentum": 0.9,
        "optim__accumulate": 2, "model__dtype": "bfloat16", "loss__cosine": True,
    }  # fmt: skip
    state, problem, mesh = train(make_config(**ALIGNED, **options), made)
    assert state.failure.tolist() == [-1, -1]
    assert np.isfinite(state.metrics["loss"])
    start = training.make_step(problem, mesh)[0].params["objective"]
    assert all(state.params["objective"][name] != value for name, value in start.items())


@pytest.mark.parametrize(("options", "words"), [
    ({"loss__align_to": 2}, "loss.align_to is 2 and model.num_offsets is 3"),
    ({**ALIGNED, "loss__name": "sigmoid"}, "adds up log-probabilities"),
    ({**ALIGNED, "negatives__queue": 8}, "set negatives.queue=0"),
])  # fmt: skip
def test_an_alignment_that_cannot_be_is_one_sentence(options, words):
    with pytest.raises(UserError, match=words):
        plans.plan_of(make_config(**options))


def test_an_alignment_to_more_than_a_window_has_is_one_sentence(made):
    with pytest.raises(UserError, match="sequences of 16 latents"):
        train(make_config(loss__align_to=16), made, steps=0)


QUANTIZED = {
    "model__num_codes": 8, "model__code_width": 6, "model__restart_codes": True,
    "model__code_decay": 0.5,
}  # fmt: skip


@pytest.mark.slow
def test_penalties_are_added_to_the_loss_and_recorded(made):
    """Beside the loss of the objective, which an evaluation has alone; so is the perplexity."""
    config = make_config(**QUANTIZED, model__norm="batch")
    state, problem, mesh = train(config, made, steps=1)
    record = make_summary(problem, lambda step: 0.0, str)(state.metrics, 1)
    assert record["commitment"] > 0
    assert 1 < record["perplexity"] <= 8
    own = sum(record["offset_loss"]) + record["commitment"]
    assert record["loss"] == pytest.approx(own, rel=1e-5)
    before = jax.tree.map(np.array, state.extra)
    test, strict = make_evaluation(problem, no_probe, mesh)(state)
    assert test["loss"] == pytest.approx(sum(test["offset_loss"]))
    assert np.isfinite(strict["nats"])
    jax.tree.map(np.testing.assert_array_equal, state.extra, before)


@pytest.mark.slow
def test_the_penalty_reaches_the_parameters(made):
    """Its gradient is the whole difference between two weights of it."""
    found = []
    for weight in (0.0, 1.0):
        config = make_config(**QUANTIZED, model__commitment=weight)
        problem = problem_of(config, made)
        state, _, _ = training.make_step(problem, make_mesh(1))
        batch = jax.tree.map(jnp.asarray, problem.draw(0))
        differentiate = jax.jit(jax.grad(training.make_loss(problem), has_aux=True))
        found.append(differentiate(state.params, state.extra, batch, jax.random.key(0))[0])

    def penalty(params):
        variables = {"params": params, **state.extra["model"]}
        made_of = problem.prepare(batch, jax.random.key(0), True)
        after = problem.model.apply(variables, made_of, True, jax.random.key(0))[1]
        return after["penalties"]["encoder"]["commitment"]

    want = jax.jit(jax.grad(penalty))(state.params["model"])
    for a, b, c in zip(*map(jax.tree.leaves, (found[0]["model"], found[1]["model"], want)),
                       strict=True):  # fmt: skip
        np.testing.assert_allclose(b - a, c, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"optim__accumulate": 2}, "leave the codes where they are"),
        ({"augment__side": "past"}, "would follow the second alone"),
    ],
)
def test_codes_of_a_part_or_a_copy_are_one_sentence(keys, said):
    check_model(make_config(**QUANTIZED))
    with pytest.raises(UserError, match=said):
        check_model(make_config(**QUANTIZED, **keys))


@pytest.mark.slow
def test_a_run_with_codes_stops_and_resumes_to_the_bit(made, tmp_path):
    config = make_config(**QUANTIZED)
    whole, problem, mesh = train(config, made, steps=4)
    half, *_ = train(config, made, steps=2)
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, replicate(half, mesh), {})
        checkpoints.wait()
    state, step, _ = training.make_step(problem, mesh)
    with open_checkpoints(tmp_path) as checkpoints:
        state, _ = checkpoints.restore(state)
    for i in (2, 3):
        state = step(state, put_batch(problem.draw(i), mesh))
    state = jax.device_get(state)
    for a, b in ((state.params, whole.params), (state.extra, whole.extra)):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {}, {"negatives__shards": 8}, {"model__norm": "batch"}, ALIGNED, QUANTIZED
])  # fmt: skip
def test_devices_change_neither_losses_nor_gradients(made, options):
    """N, loss and the first update's size, on 1 and on 8 devices."""
    config = make_config(**options)
    one, eight = (train(config, made, devices, steps=1)[0] for devices in (1, 8))
    np.testing.assert_array_equal(
        one.metrics["offsets"].n, eight.metrics["offsets"].n, "N depends on the devices"
    )
    for name in ("loss", "gradient_norm"):
        assert eight.metrics[name] == pytest.approx(one.metrics[name], rel=1e-5)
    # Adam's first moment is 0.1 times the gradient.
    moments = [state.opt_state[0].mu for state in (one, eight)]
    pairs = zip(*map(jax.tree.leaves, moments), strict=True)
    assert all(np.allclose(a, b, rtol=1e-3, atol=1e-7) for a, b in pairs)
    kept = zip(*(jax.tree.leaves(state.extra) for state in (one, eight)), strict=True)
    assert all(np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in kept)


@pytest.mark.slow
def test_groups_are_devices_of_the_paper(made):
    """With 8 groups each anchor meets the latents of its own window alone, of 8."""
    state, *_ = train(make_config(negatives__shards=8), made, steps=1)
    sums = state.metrics["offsets"]
    np.testing.assert_array_equal(sums.n / sums.anchors, 16.0)


def test_one_speaker_batches_keep_the_strict_bound_strict(made):
    problem = problem_of(make_config(data__one_speaker=True), made)
    assert all(len(set(problem.draw(i)["speaker"].tolist())) == 1 for i in range(5))
    draw = problem.held_out.draw_independent
    assert any(len(set(draw(i)["speaker"].tolist())) > 1 for i in range(5))
    mixed = problem_of(make_config(), made).held_out
    assert mixed.draw_independent is mixed.draw  # so that they are predicted once


def test_all_pairs_of_rules_and_windows_leave_negatives_or_say_so():
    for rule, window in itertools.product(RULES, (0, 3, 99)):
        config = make_config(negatives__rule=rule, negatives__window=window)
        if rule == "own_sequence" and window == 99:
            with pytest.raises(UserError, match="no negatives at offset 1"):
                plans.plan_of(config)
        else:
            plans.plan_of(config)


def gradient_of(config, made, num_parts, num_devices=1):
    config = with_settings(config, {"optim.accumulate": num_parts})
    problem, mesh = problem_of(config, made), make_mesh(num_devices)
    state, _, _ = training.make_step(problem, mesh)
    batch = put_batch(problem.draw(0), mesh)
    differentiate = jax.jit(jax.value_and_grad(training.make_loss(problem), has_aux=True))
    compiled = differentiate.lower(state.params, state.extra, batch, jax.random.key(0)).compile()
    found = compiled(state.params, state.extra, batch, jax.random.key(0))
    return jax.device_get(found), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_parts_of_a_batch_keep_the_negatives_of_the_whole(made, num_devices):
    """Value, metrics and gradients to float32 rounding, in less memory."""
    # Whose rows share a speaker matters to this rule, so that rows out of order are seen.
    config = make_config(model__width=64, negatives__rule="same_group")
    (whole, memory), (parts, less) = (
        gradient_of(config, made, num_parts, num_devices) for num_parts in (1, 4)
    )
    np.testing.assert_array_equal(whole[0][1][1]["offsets"].n, parts[0][1][1]["offsets"].n)
    np.testing.assert_allclose(whole[0][0], parts[0][0], rtol=1e-6)
    for a, b in zip(jax.tree.leaves(whole[1]), jax.tree.leaves(parts[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(a).max())
    assert less < 0.7 * memory


def test_parts_that_cannot_be_are_one_sentence():
    for options, message in (
        ({"optim__accumulate": 3}, "accumulate is 3 and data.batch_size is 8"),
        ({"optim__accumulate": 0}, "accumulate is 0"),
        ({"optim__accumulate": 2, "model__norm": "batch"}, "a part of the batch at a time"),
        (
            {"optim__name": "schedule_free", "optim__schedule": "constant", "model__norm": "batch"},
            r"choose another model\.norm, or another optimizer",
        ),
    ):
        config = make_config(**options)
        with pytest.raises(UserError, match=message):
            audio.interpret(audio, config)


@pytest.mark.slow
def test_a_launch_of_the_experiment_is_its_steps(made):
    one = train(make_config(), made, steps=2)[0]
    config = make_config()
    config.steps_per_launch = config.log_every = 2
    problem, mesh = problem_of(config, made), make_mesh(1)
    state, launch, _ = training.make_step(problem, mesh)
    state = jax.device_get(launch(state, tuple(put_batch(problem.draw(i), mesh) for i in (0, 1))))
    assert int(state.step) == 2
    np.testing.assert_allclose(state.metrics["loss"], one.metrics["loss"], rtol=1e-5)
    np.testing.assert_array_equal(state.metrics["offsets"].n, one.metrics["offsets"].n)


def test_the_runs_own_probes_are_fitted_anew_where_their_scores_are_lost_or_replaced(tmp_path):
    """Only these: the others stay, and so does the state of the run."""
    config = make_config(probe__tasks=("phones", "speakers"), probe__features=("c", "z"))
    fitted = []

    def make_probe(own, data="synthetic"):
        def probe(variables, step):
            pairs = [(t, f) for t in own.probe.tasks for f in own.probe.features]
            fitted.extend(pairs)
            words = ("linear", "accuracy", 0.5)
            scores = [Score(t, data, "frame", f, *words, step=step) for t, f in pairs]
            write_scores(tmp_path, scores)
            return scores

        return probe

    def fitted_anew(config=config):
        fitted.clear()
        probe_once(config, tmp_path, make_probe, None)
        assert status.was_probed(tmp_path, config.num_steps)
        return fitted.copy()

    everything = [("phones", "c"), ("phones", "z"), ("speakers", "c"), ("speakers", "z")]
    assert [fitted_anew(), fitted_anew()] == [everything, []]
    (tmp_path / "scores.json").unlink()
    assert fitted_anew() == everything
    less = {"probe.hours": 0.1, "probe.tasks": ("phones",), "probe.features": ("z",)}
    for settings, step, name, replaced in (
        (less, 4, "synthetic", [("phones", "z")]),
        (less, 2, "synthetic", []),
        ({**less, "probe.features": ("mfcc",)}, 4, "synthetic", []),
        ({"probe.features": ("z",)}, 4, "synthetic", []),
        ({"probe.tasks": ("ctc",), "probe.hours": 0.1}, 4, "x", []),
        ({"data.source": "folder"}, 4, "mine", []),
        ({"data.source": "folder"}, 4, "mine", []),
    ):
        other = with_settings(config, settings)
        probe_aside(other, config, tmp_path, make_probe(other, name), None, step)
        assert status.was_probed(tmp_path, 4), "the run is still done"
        assert fitted_anew() == replaced
    # Two of them, of different features, before the run's own command comes.
    for features in ("c", "z"):
        other = with_settings(config, {**less, "probe.features": (features,)})
        probe_aside(other, config, tmp_path, make_probe(other), None, 4)
    assert fitted_anew() == [("phones", "c"), ("phones", "z")]
    # By the run's own command: fewer features, then another one, then other options.
    assert fitted_anew(with_settings(config, {"probe.features": ("c",)})) == []
    assert fitted_anew(with_settings(config, {"probe.features": ("c", "mfcc")})) == [
        ("phones", "mfcc"), ("speakers", "mfcc")
    ]  # fmt: skip
    assert fitted_anew(with_settings(config, {"probe.hours": 0.2})) == everything


def test_a_service_that_is_not_installed_is_a_sentence(tmp_path, monkeypatch):
    """Before anything is made, and only if it is asked for."""
    config = series.get_config()
    monkeypatch.setattr(loop.importlib.util, "find_spec", lambda name: None)
    config.logger = "trackio"
    with pytest.raises(UserError, match="trackio, which is not installed: pip install trackio"):
        run(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_goes_on_with_another_service(tmp_path):
    """It gets the records of the steps that are left, under the name of the directory."""
    config = series.get_config()
    settings = {
        "data.num_files": 60, "data.window_steps": 16, "data.batch_size": 8, "num_steps": 4,
        "log_every": 2, "eval_every": 0, "save_every": 2, "probe.tasks": (), "model.width": 4,
        "model.context_width": 4, "model.num_offsets": 2, "optim.warmup_steps": 1,
    }  # fmt: skip
    config = with_settings(config, settings)
    with services.installed(services.fake_service("wandb", fails=["log"])) as module:
        run(with_settings(config, {"logger": "wandb"}), str(tmp_path / "run"))
    assert [name for name, _, _ in module.calls] == ["init", "log"]
    assert module.calls[0][2]["name"] == "run"
    own = module.calls[0][2]["id"]
    assert module.calls[0][2]["config"]["model"]["width"] == 4
    assert (tmp_path / "run" / "report.html").exists()
    with services.installed(services.fake_service()) as module:
        run(with_settings(config, {"logger": "trackio"}), str(tmp_path / "run"))
    assert [name for name, _, _ in module.calls] == ["init", "finish"]
    assert module.calls[0][2]["id"] == own, "the same run of the service goes on"
    assert len(own) == 16
