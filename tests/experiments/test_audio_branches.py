"""Where the latents of each direction and module of sound come from, and what it learns by them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_voices_paper
from cpc.negatives import outside_overlap
from cpc.types import Batch
from experiments.kinds.audio import model as audio
from experiments.training.problem import Problem
from experiments.training.step import make_loss
from tests.plans import plan_of

BOTH = ("forward", "backward")


def small(**keys):
    config = audio_voices_paper.get_config()
    config.model.width = config.model.context_width = 8
    config.model.num_offsets, config.data.window_samples, config.data.batch_size = 2, 1600, 4
    config.model.update(keys)
    return config


def batch_of(lengths=None) -> Batch:
    """Four windows: the first two overlap in a recording by half, the others are apart."""
    x = np.random.default_rng(0).normal(size=(4, 1600)).astype("f")
    batch = {
        "x": jnp.asarray(x),
        "sequence": jnp.arange(4),
        "speaker": jnp.array([0, 0, 0, 1]),
        "sample": jnp.array([160_000, 160_800, 320_000, 480_000]),
    }
    return batch if lengths is None else batch | {"num_samples": jnp.array(lengths)}


def located(config, batch):
    model = audio.build_model(config)
    variables = model.init(jax.random.key(0), batch)
    outputs, _ = model.apply(variables, batch, True, None)
    return model.module, audio.split_branches(model.module, outputs, batch)


def test_names_of_branches():
    def names(**keys):
        return tuple(branch.name for branch in audio.geometry(small(**keys)).branches)

    assert names() == ("forward",)
    assert names(directions=BOTH) == BOTH
    assert names(modules=3) == ("module 3", "module 2", "module 1")
    assert names(modules=2, directions=BOTH) == (
        "module 2 forward", "module 2 backward", "module 1 forward", "module 1 backward",
    )  # fmt: skip
    found = audio.geometry(small(modules=3, directions=BOTH))
    assert (found.num_latents, found.width, found.num_offsets) == (10, 8, 12)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [None, [1600, 1600, 700, 1]])
@pytest.mark.parametrize("keys", [{"directions": BOTH}, {"modules": 3}, {"modules": 6},
                                  {"directions": BOTH, "modules": 2}])  # fmt: skip
def test_positions_are_of_the_sound_that_the_latents_are_of(keys, lengths):
    """What overlaps another window by samples is no negative, in any frame and at any stride."""
    config, batch = small(**keys), batch_of(lengths)
    module, directions = located(config, batch)
    apart = outside_overlap(audio.geometry(config).apart)
    for (number, direction), (outputs, where, exists) in zip(
        module.branches, directions, strict=True
    ):
        length = outputs.z.shape[1]
        assert length == 10
        encoder = module.encoder
        if number <= len(module.cuts):
            encoder = encoder.upto(module.cuts[number - 1], {})[0]
        stride, real = encoder.stride, np.full(4, length)
        if lengths is not None:
            real = np.minimum(encoder.num_existing(np.array(lengths)), length)
        assert (exists is None) == (lengths is None)
        # The frame of each latent in samples, by hand.
        time = np.tile(np.arange(length), (4, 1))
        place = time if direction == "forward" else real[:, None] - 1 - time
        begin = np.asarray(batch["sample"])[:, None] + stride * place
        if exists is not None:
            np.testing.assert_array_equal(exists, time < real[:, None])
        flat = jax.tree.map(lambda p: jnp.broadcast_to(p, (4, 10)).ravel(), where)
        anchors = jax.tree.map(lambda p: p[:, None], flat)
        found = np.asarray(apart(anchors, flat, 1)).reshape(4, length, 4, length)
        for one in range(2):  # the two windows that overlap
            other = 1 - one
            first = int(batch["sample"][one])
            lag = begin[other] - first
            shared = (lag > -stride) & (lag < stride * length)
            if direction == "backward":
                lag = first + stride * real[one] - stride - begin[other]
                shared = (lag > -stride) & (lag < stride * length)
            here = slice(0, real[one]), slice(0, real[other])
            wanted = np.broadcast_to(~shared, (length, length))
            np.testing.assert_array_equal(found[one, :, other][here], wanted[here])
        assert found[:2, :, 2:].all()


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{"directions": BOTH}, {"modules": 3}])
def test_padding_has_no_part_in_the_loss_and_gradients_are_finite(keys):
    config, lengths = small(**keys), [1600, 900, 1600, 700]
    model = audio.build_model(config)
    problem = Problem(
        plan=plan_of(config),
        model=model,
        prepare=lambda batch, rng, train: batch,
        split_branches=lambda outputs, batch: audio.split_branches(
            model.module, outputs, batch
        ),
        label=None, draw=None, held_out=None, per_step=(1, ""),
    )  # fmt: skip
    batch = batch_of(lengths)
    params = {"model": model.init(jax.random.key(0), batch)["params"], "objective": {}}
    extra = {"model": {}, "objective": {}}

    def loss(params, x):
        given = batch | {"x": x}
        value, (_, metrics) = make_loss(problem)(params, extra, given, jax.random.key(0))
        return value, metrics["offsets"]

    (value, sums), (gradient, of_x) = jax.value_and_grad(loss, (0, 1), has_aux=True)(
        params, batch["x"]
    )
    assert sums.loss.shape == (2 * len(model.module.branches),)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    real = np.arange(1600) < np.array(lengths)[:, None]
    assert (np.abs(of_x)[~real] == 0).all()
    noisy = jnp.where(real, batch["x"], jnp.nan)
    np.testing.assert_array_equal(loss(params, noisy)[0], value)
