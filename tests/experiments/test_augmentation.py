"""Augmented contexts, clean latents: what a training step sees of either, and what nothing else."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic
from cpc import data
from cpc.data import unpack
from cpc.files import plain, write_json
from cpc.report.engine import write_page
from cpc.results import read_run
from cpc.train import make_mesh, open_checkpoints, put_batch
from cpc.types import UserError
from experiments.kinds.audio import heard
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.training import step as training
from experiments.training.objective import objective_loss
from experiments.training.problem import model_variables
from experiments.training.records import make_evaluation
from tests.experiments.test_clips import LENGTHS
from tests.experiments.test_clips import problem_of as problem_of_clips
from tests.experiments.test_training import gradient_of, make_config, no_probe, problem_of
from tests.plans import plan_of

CHEAP = ("dropout", "noise")


@pytest.fixture(scope="module")
def made():
    return data.make_synthetic(
        num_speakers=2, utterances_per_speaker=20, seconds=0.16, chain=data.phone_chain(4), seed=0
    )


def configured(side, effects=CHEAP, **options):
    return make_config(augment__side=side, augment__effects=effects, **options)


def draw(problem):
    return jax.tree.map(jnp.asarray, problem.draw(0))


def prepare(problem, raw, key, train=True):
    return jax.jit(problem.prepare, static_argnums=2)(raw, key, train)


def variables_of(problem):
    state, _, _ = training.make_step(problem, make_mesh(1))
    return model_variables(state.params, state.ema, state.extra)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["none", "past", "future", "both"])
def test_contexts_are_of_x_and_latents_of_the_target(made, side):
    problem = problem_of(configured(side), made)
    raw, key = draw(problem), jax.random.key(4)
    clean = unpack(raw)["x"]
    batch = prepare(problem, raw, key)
    assert np.array_equal(batch["x"], clean) == (side in ("none", "future"))
    assert ("target" in batch) == (side != "none")
    target = batch.get("target", clean)
    assert np.array_equal(target, clean) == (side in ("none", "past"))
    assert np.array_equal(target, batch["x"]) == (side == "none")  # both: draws of their own
    variables = variables_of(problem)
    outputs, _ = problem.model.apply(variables, batch, True, key)
    np.testing.assert_array_equal(outputs.z, problem.model.embed(variables, target)[0])
    np.testing.assert_array_equal(outputs.c, problem.model.embed(variables, batch["x"])[1])


@pytest.mark.slow
def test_what_each_copy_can_reach(made):
    """c_t sees no later sample of x and none of the target, z none of x."""
    problem = problem_of(configured("past"), made)
    variables = variables_of(problem)
    batch = prepare(problem, draw(problem), jax.random.key(0))

    def reached(name, of, part):
        def total(x):
            return part(getattr(problem.model.apply(variables, {**batch, of: x}, True)[0], name))

        return np.asarray(jax.grad(lambda x: jnp.square(total(x)).sum())(batch[of]))

    at = 7
    from_x = reached("c", "x", lambda c: c[:, at])
    assert (from_x[:, (at + 1) * 160 :] == 0).all()
    assert (from_x[:, : (at + 1) * 160] != 0).any()
    assert not reached("c", "target", lambda c: c).any()
    assert not reached("z", "x", lambda z: z).any()
    assert reached("z", "target", lambda z: z).any()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["past", "future", "both"])
def test_evaluation_hears_the_recordings(made, side):
    problem, plain_one = (problem_of(configured(one), made) for one in (side, "none"))
    raw, key = draw(problem), jax.random.key(0)
    batch = prepare(problem, raw, key, False)
    assert "target" not in batch
    np.testing.assert_array_equal(batch["x"], unpack(raw)["x"])
    state, _, _ = training.make_step(problem, make_mesh(1))
    records = [make_evaluation(one, no_probe, make_mesh(1))(state) for one in (problem, plain_one)]
    np.testing.assert_equal(plain(records[0]), plain(records[1]))


@pytest.mark.slow
def test_short_clips_stay_filled_with_zeros():
    config = configured("both", (*CHEAP, "pitch", "reverb", "band_reject"))
    config.data.window_samples, config.augment.dropout_ms = 1600, 20.0
    problem = problem_of_clips(config, LENGTHS)
    batch = prepare(problem, draw(problem), jax.random.key(0))
    gone = np.arange(1600) >= np.asarray(batch["num_samples"])[:, None]
    assert gone.any()
    for name in ("x", "target"):
        assert (np.asarray(batch[name])[gone] == 0).all()


@pytest.mark.slow
def test_a_slow_encoder_makes_keys_of_the_target(made, monkeypatch):
    problem, found = problem_of(configured("past", negatives__momentum=0.9), made), []

    def loss(plan, params, state, branches, *others, **options):
        found.extend(branches)
        return objective_loss(plan, params, state, branches, *others, **options)

    monkeypatch.setattr(training, "objective_loss", loss)
    state, _, _ = training.make_step(problem, make_mesh(1))
    raw, key = draw(problem), jax.random.key(0)
    slow = jax.tree.map(lambda leaf: 1.1 * leaf + 0.1, state.params["model"])
    extra = {**state.extra, "objective": {**state.extra["objective"], "slow": slow}}
    found.clear()
    training.make_loss(problem)(state.params, extra, raw, key)
    mixed = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, slow, state.params["model"])
    variables = {"params": mixed, **state.extra["model"]}
    wanted = problem.model.embed(variables, unpack(raw)["x"])[0]
    np.testing.assert_allclose(found[0].outputs.z, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_queue_keeps_latents_of_the_target(made):
    problem = problem_of(configured("past", negatives__queue=128), made)
    state, _, _ = training.make_step(problem, make_mesh(1))
    raw = draw(problem)
    variables = model_variables(state.params, state.ema, state.extra)
    loss = training.make_loss(problem)
    _, (extra, _) = loss(state.params, state.extra, raw, jax.random.key(0))
    (queue,) = extra["objective"]["queues"]
    wanted = np.asarray(problem.model.embed(variables, unpack(raw)["x"])[0]).reshape(-1, 16)
    np.testing.assert_allclose(queue.keys, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_parts_of_a_batch_are_augmented_as_the_whole(made):
    config = configured("past", ("noise", "dropout"))
    (whole, _), (parts, _) = (gradient_of(config, made, number) for number in (1, 4))
    np.testing.assert_allclose(whole[0][0], parts[0][0], rtol=1e-6)
    for a, b in zip(jax.tree.leaves(whole[1]), jax.tree.leaves(parts[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(a).max())


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "channel"])
def test_devices_change_nothing(made, norm):
    config = configured("past", model__norm=norm)
    one, two = (gradient_of(config, made, 1, number)[0] for number in (1, 2))
    np.testing.assert_allclose(one[0][0], two[0][0], rtol=1e-5)


@pytest.mark.slow
def test_batch_norm_takes_in_both_copies(made):
    """The averages move twice a step: by x, then by the target."""
    problem = problem_of(configured("past", model__norm="batch"), made)
    variables = variables_of(problem)
    batch = prepare(problem, draw(problem), jax.random.key(0))
    _, state = problem.model.apply(variables, batch, True, jax.random.key(1))
    params = {"params": variables["params"]}
    for name in ("x", "target"):
        one = {**batch, "x": batch[name]}
        del one["target"]
        _, variables = problem.model.apply({**params, **variables}, one, True, jax.random.key(1))
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(variables), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_one_program_for_all_steps_and_a_resumed_run_is_the_same_bit_for_bit(made, tmp_path):
    problem, mesh = problem_of(configured("both"), made), make_mesh(1)
    state, step, _ = training.make_step(problem, mesh)
    with open_checkpoints(tmp_path) as checkpoints:
        for i in range(4):
            state = step(state, put_batch(problem.draw(i), mesh))
            if i == 1:
                checkpoints.save(2, state, {})
                checkpoints.wait()
        assert step._cache_size() == 1
        fresh, again, _ = training.make_step(problem, mesh)
        resumed, _ = checkpoints.restore(fresh)
    for i in (2, 3):
        resumed = again(resumed, put_batch(problem.draw(i), mesh))
    jax.tree.map(np.testing.assert_array_equal, *jax.device_get((resumed.params, state.params)))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"side": "sideways"}, "augment.side is 'sideways': choose one of none, past"),
        ({"side": "past", "effects": ("echo",)}, "augment.effects has 'echo': choose one of pitch"),
        ({"side": "past", "effects": ()}, "augment.side is past, and the effects are none"),
        ({"side": "past", "effects": ("noise", "noise")}, "noise, noise: name each once"),
        ({"side": "both", "snr_low_db": 30.0}, "30 to 20 dB below the signal: these must ascend"),
        ({"side": "past", "dropout_ms": 2000.0}, "dropout_ms is 2000"),
    ],
)
def test_keys_that_cannot_be_are_one_sentence(settings, sentence):
    config = audio_synthetic.get_config()
    config.augment.update(settings)
    with pytest.raises(UserError, match=sentence):
        plan_of(config)


def test_a_batch_of_one_has_no_noise_and_a_short_window_no_pitch():
    config = audio_synthetic.get_config()
    config.negatives.rule, config.augment.side = "own_sequence", "past"
    config.data.batch_size = 1
    with pytest.raises(UserError, match="a batch of 1 has no other"):
        plan_of(config)
    config.augment.effects = ("pitch",)
    plan_of(config)
    config.data.window_samples, config.augment.dropout_ms = 480, 10.0
    config.model.num_offsets = 1
    with pytest.raises(UserError, match="heard over 512"):
        plan_of(config)


@pytest.mark.slow
def test_a_run_is_heard_and_drawn_on_its_page(made, tmp_path):
    config = configured("past", ("pitch", "reverb"))
    heard.record_augmentation(config, tmp_path, problem_of(config, made).draw)
    names = ["0_clean.wav", "1_pitch.wav", "2_reverb.wav", "3_pitch+reverb.wav"]
    folder = tmp_path / heard.FOLDER
    assert sorted(path.name for path in folder.iterdir()) == names
    clean, *others = (heard.from_wav((folder / name).read_bytes()) for name in names)
    assert len(clean) == config.data.window_samples
    assert all(np.abs(clean - other).max() > 0.05 for other in others)

    def page():
        write_json(tmp_path / "config.json", plain(config))
        sections = [heard.augmentation_section(read_run(tmp_path))]
        return write_page(tmp_path, "report", "", "", (), sections, ["md"]).read_text()

    assert page().count("<audio") == 4
    assert "Contexts of augmented sound predict latents of the original" in page()
    text = (tmp_path / "report.md").read_text()
    assert "(augmentation/1_pitch.wav)" in text
    (folder / names[1]).write_bytes(b"RIFF")
    assert page().count("<audio") == 3
    assert "1_pitch.wav is left out" in page()
    shutil.rmtree(folder)
    assert heard.augmentation_section(read_run(tmp_path)) is None
    assert heard.augmentation_section in audio.SECTIONS


def test_what_is_heard_is_written_by_a_run_with_augmentation_alone(made, tmp_path):
    audio_data = AudioData(made.recordings, made.recordings, {})
    for side in ("none", "future"):
        config = configured(side, ("dropout",))
        config.data.source = "folder"
        audio.record(config, tmp_path / side, audio_data)
        found = [path.name for path in (tmp_path / side).glob("augmentation/*")]
        assert sorted(found) == ([] if side == "none" else ["0_clean.wav", "1_dropout.wav"])
