"""Augmented contexts and clean latents: batches, network, queue and page."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cpc.data import unpack
from cpc.files import plain, write_json
from cpc.report.engine import write_page
from cpc.results import read_run
from experiments.kinds.audio import augmentation
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.training import step as training
from tests.experiments.test_clips import LENGTHS, make_config, noise, problem_of
from tests.fake_run import draw_nothing

LONG = (2000,) * 12


def configure(side, effects=("dropout", "noise"), **options):
    return make_config(
        augment__side=side, augment__effects=effects, augment__dropout_ms=20.0, **options
    )


@pytest.mark.parametrize("side", ["none", "past", "future", "both"])
def test_augmented_side_is_drawn_only_in_training(side, monkeypatch):
    given = []

    def augment_sound(rng, x, effects, ranges, **about):
        given.append((effects, about))
        return x + jax.random.uniform(rng)

    monkeypatch.setattr(augmentation, "augment_sound", augment_sound)
    problem = problem_of(configure(side))
    raw, key = jax.tree.map(jnp.asarray, problem.draw(0)), jax.random.key(4)
    clean = unpack(raw)["x"]
    batch = problem.preprocess(raw, key, False)
    assert not given
    assert "target" not in batch
    np.testing.assert_array_equal(batch["x"], clean)
    batch = problem.preprocess(raw, key, True)
    assert np.array_equal(batch["x"], clean) == (side in ("none", "future"))
    assert ("target" in batch) == (side != "none")
    target = batch.get("target", clean)
    assert np.array_equal(target, clean) == (side in ("none", "past"))
    assert np.array_equal(target, batch["x"]) == (side == "none")  # independent draws
    assert len(given) == ("none", "past", "both").index(side.replace("future", "past"))
    for effects, about in given:
        assert tuple(effects) == ("dropout", "noise")
        np.testing.assert_array_equal(about["speaker"], raw["speaker"])
        np.testing.assert_array_equal(about["num_samples"], raw["num_samples"])


def test_contexts_come_from_x_and_latents_from_target():
    """Batch norm averages are updated with both inputs."""
    problem = problem_of(configure("past", model__norm="batch"), LONG)
    raw = jax.tree.map(jnp.asarray, problem.draw(0))

    @jax.jit
    def found(raw, key):
        batch = problem.preprocess(raw, key, True)
        variables = problem.model.init(key, batch)
        _, state = problem.model.apply(variables, batch, True, key)
        outputs, _ = problem.model.apply(variables, batch, False, key)
        params, stats, own = {"params": variables["params"]}, variables, []
        for name in ("x", "target"):
            alone = {**batch, "x": batch[name]}
            del alone["target"]
            _, stats = problem.model.apply({**stats, **params}, alone, True, key)
            own.append(problem.model.embed(variables, batch[name]))
        return batch, outputs, own, state, stats

    batch, outputs, own, state, stats = found(raw, jax.random.key(0))
    assert np.abs(batch["x"] - batch["target"]).max() > 0.01
    np.testing.assert_allclose(outputs.c, own[0][1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs.z, own[1][0], rtol=1e-5, atol=1e-6)
    assert {*state} == {"batch_stats"}
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(stats), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_queue_stores_momentum_latents_of_the_target():
    problem = problem_of(configure("past", negatives__momentum=0.9, negatives__queue=128), LONG)
    loss = training.make_loss(problem)
    state = training.make_state(problem, loss, optax.identity())
    raw = jax.tree.map(jnp.asarray, problem.draw(0))
    slow = jax.tree.map(lambda leaf: 1.1 * leaf + 0.1, state.params["model"])
    extra = {**state.extra, "objective": {**state.extra["objective"], "slow": slow}}
    _, (extra, _) = jax.jit(loss)(state.params, extra, raw, jax.random.key(0))
    mixed = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, slow, state.params["model"])
    z, _ = jax.jit(problem.model.embed)({"params": mixed}, unpack(raw)["x"])
    (queue,) = extra["objective"]["queues"]
    np.testing.assert_allclose(queue.keys[: z[..., 0].size], z.reshape(-1, 8), rtol=1e-5, atol=1e-6)


def test_page_has_augmented_examples(tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    config, read = configure("past"), AudioData(noise(LENGTHS), noise(LENGTHS), {})
    config.data.source, folder = "folder", tmp_path / augmentation.FOLDER
    none = configure("none")
    none.data.source = "folder"
    audio.record(none, tmp_path, read)
    assert not folder.exists()
    audio.record(config, tmp_path, read)
    names = ["0_clean.wav", "1_dropout.wav", "2_noise.wav", "3_dropout+noise.wav"]
    assert sorted(path.name for path in folder.iterdir()) == names
    clean, *others = (augmentation.from_wav((folder / name).read_bytes()) for name in names)
    assert len(clean) == config.data.window_samples
    assert all(np.abs(clean - other).max() > 0.05 for other in others)
    write_json(tmp_path / "config.json", plain(config))
    section = augmentation.augmentation_section(read_run(tmp_path))
    text = write_page(tmp_path, "report", "", "", [section], ["md"]).read_text()
    assert text.count("<audio") == 4
    assert "Contexts of augmented sound predict latents of the original" in text
    assert "(augmentation/1_dropout.wav)" in (tmp_path / "report.md").read_text()
    (folder / names[1]).write_bytes(b"RIFF")
    section = augmentation.augmentation_section(read_run(tmp_path))
    assert len(section.sounds) == 3
    assert "1_dropout.wav" in " ".join(section.sentences)
    shutil.rmtree(folder)
    assert augmentation.augmentation_section(read_run(tmp_path)) is None
    assert augmentation.augmentation_section in audio.PAGE.sections
