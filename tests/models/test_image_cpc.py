"""CPC of images: grids, directions and their frames, causality and leaks."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc import models
from cpc.types import CPCOutputs, UserError

SMALL = models.SmallConvEncoder((4, 8))
DEEP = models.SmallConvEncoder((4, 6, 8))
RESNET = models.ResNet((models.Stage(1, 4), models.Stage(1, 6, 4)), pooled_stem=False, stem_width=4)
CONTEXTS = {
    "conv": functools.partial(models.MaskedRowConv, 12, 1),
    "gru": functools.partial(models.RowGRU, 12),
}


def build(directions=("down",), context="conv", encoder=SMALL, **options):
    encoder = encoder.clone(norm=options.pop("norm", "layer"))
    width = options.get("target_width") or encoder.widths[-1]
    predictor = functools.partial(models.LinearPredictor, 2, width)
    return models.ImageCPC(encoder, CONTEXTS[context], predictor, directions, channels=1, **options)


def patches(b=2, i=3, j=4, size=6, channels=1, seed=0):
    return noise(b, i, j, size, size, channels, seed=seed)


#: Patches (row, column) that a context at (i, j) may depend on, and the step to the next patch.
VISIBLE = {
    "down": lambda row, column, i, j: row <= i,
    "up": lambda row, column, i, j: row >= i,
    "right": lambda row, column, i, j: column <= j,
    "left": lambda row, column, i, j: column >= j,
}
STEPS = {"down": (1, 0), "up": (-1, 0), "right": (0, 1), "left": (0, -1)}


def test_contexts_are_causal_in_their_direction():
    """Row n of the batch differs from the last row in patch n."""
    module, x = build(models.DIRECTIONS, "gru"), jnp.tile(patches(1), (13, 1, 1, 1, 1, 1))
    x = x + jnp.pad(jnp.eye(12), ((0, 1), (0, 0))).reshape(13, 3, 4, 1, 1, 1) * patches(1, seed=1)
    variables = random_variables(module, x)
    c = jax.jit(models.make_model(module).embed)(variables, x)[1]
    differs = np.asarray(c[:12] != c[12]).reshape(3, 4, 3, 4, len(models.DIRECTIONS), -1).any(-1)
    rows, columns = np.mgrid[:3, :4]
    for n, direction in enumerate(models.DIRECTIONS):
        for i, j in np.ndindex(3, 4):
            seen, before = differs[:, :, i, j, n], np.subtract((i, j), STEPS[direction])
            assert not seen[~VISIBLE[direction](rows, columns, i, j)].any()
            assert seen[i, j]
            if (before >= 0).all() and (before < (3, 4)).all():
                assert seen[tuple(before)]


def test_each_direction_has_its_own_context_predictor_and_targets():
    sides, x = ("up", "right"), patches()
    module = build(sides, target_width=5)
    variables = random_variables(module, x)
    params = variables["params"]
    parts = [f"{part}_{d}" for part in ("contexts", "predictors", "targets") for d in sides]
    assert set(params) == {"encoder", *parts}

    @jax.jit
    def run(x):
        z = module.encoder.apply({"params": params["encoder"]}, x.reshape(-1, *x.shape[3:]))
        z = z.reshape(2, 3, 4, 8)
        wanted = []
        for d in sides:
            frame = models.to_frame(z, d)
            c = module.make_context().apply({"params": params[f"contexts_{d}"]}, frame)
            target, w = params[f"targets_{d}"], params[f"predictors_{d}"]["W"]["kernel"]
            predictions = jnp.einsum("btlh,hkd->btlkd", c, w)
            wanted.append((frame @ target["kernel"] + target["bias"], c, predictions))
        return module.apply(variables, x), wanted, models.make_model(module).embed(variables, x), z

    outputs, wanted, (z, c), latents = run(x)
    for a, b in zip(jax.tree.leaves(outputs), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(z, latents, rtol=1e-4, atol=1e-5)  # not their projections
    own = [models.from_frame(one.c, d) for one, d in zip(outputs, sides, strict=True)]
    np.testing.assert_allclose(c, np.concatenate(own, axis=-1), rtol=1e-5, atol=1e-6)


def test_patch_grids_and_their_first_clean_offset():
    """Patches share pixels below the first clean offset."""
    assert models.patch_grid((260, 260), 80, 36) == models.patch_grid((29, 31), 8, 4) == (6, 6)
    assert models.patch_grid((96, 64), 24, 12) == (7, 4)
    assert models.patch_grid((8, 8), 8, 4) == (1, 1)
    for (patch, stride), k in itertools.product([(6, 6), (6, 3), (8, 3), (5, 4)], range(1, 6)):
        is_shared = k * stride < patch
        assert is_shared == (k < models.first_clean_offset(patch, stride))


def test_positions_broadcast_to_the_frame():
    z = jnp.zeros((2, 4, 3, 5))
    places = models.frame_positions(z, jnp.array([7, 9]), jnp.array([1, 0]))
    whole = [np.broadcast_to(p, (2, 4, 3)) for p in places]
    assert [int(p[1, 2, 1]) for p in whole] == [9, 2, 1, 0]
    assert all(p.dtype == jnp.int32 for p in places)


def test_dtype_and_state_reach_all_parts():
    module, x = build(("up", "right"), norm="batch", target_width=5), patches()
    module = module.clone(
        encoder=module.encoder.clone(dtype=jnp.bfloat16),
        make_context=functools.partial(module.make_context, dtype=jnp.bfloat16),
        make_predictor=functools.partial(module.make_predictor, dtype=jnp.bfloat16),
        dtype=jnp.bfloat16,
    )
    variables, model = random_variables(module, x), models.make_model(module)
    outputs, state = jax.eval_shape(lambda v, x: model.apply(v, {"x": x}, True), variables, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("bfloat16")}
    assert [one.z.shape for one in outputs] == [(2, 3, 4, 5), (2, 4, 3, 5)]
    assert jax.tree.structure(state["batch_stats"]) == jax.tree.structure(variables["batch_stats"])


@pytest.mark.parametrize(("make", "words"), [
    (lambda: models.patch_grid((28, 28), 32, 4), "32"),
    (lambda: models.patch_grid((28, 28), 8, 0), "1 pixel"),
    (lambda: models.check_offsets([2, 7], (7, 9), ["down"]), "offset 7 .*7 patches"),
    (lambda: models.check_offsets([2, 3], (7, 3), ["down", "left"]), "3 patches left"),
    (lambda: models.check_offsets([0, 1], (7, 7), ["down"]), r"\[0, 1\].* from 1"),
    (lambda: build(("down", "sideways")), "sideways"), (lambda: build(()), "directions"),
    (lambda: run(build(), patches(channels=3)), "3 channels.* 1"),
    (lambda: run(build(), patches()[..., :4, :]), "6 by 4 pixels"),
    (lambda: run(build(), patches(i=1)), "down has only one patch"),
    (lambda: run(build().clone(target_width=5), patches()), "8 wide.* 5"),
])  # fmt: skip
def test_mistakes_are_reported(make, words):
    with pytest.raises(UserError, match=words):
        make()
    models.check_offsets([2, 6], (7, 7), models.DIRECTIONS)
    models.check_offsets([2, 3], (4, 3), ["down", "up"])


def run(module, x):
    return jax.eval_shape(module.init_with_output, jax.random.key(0), x)


def energy(outputs):
    return jnp.tanh(outputs.predictions[:, :-1, :, 0] * outputs.z[:, 1:]).sum()


def is_own(keys, number, bounds):
    """Whether module `number` of the encoder's layers, cut at `bounds`, has the parameter."""
    is_last = number == len(bounds) - 1
    if keys[0] != "encoder":
        names = ("contexts", "predictors", "targets") if is_last else ()
        return keys[0].startswith((f"predictor_of_{number}", f"target_of_{number}", *names))
    layers = range(*bounds[number - 1 : number + 1])
    digits = [int(digit) for digit in keys[1] if digit.isdigit()]
    layer = 0 if keys[1] == "stem" else digits[0] if digits else None
    # The last norm belongs to the module after the last cut, unless that has no stage.
    return bool(layers) and is_last if layer is None else layer in layers


@pytest.mark.parametrize(("encoder", "cuts", "target_width"), [
    (DEEP, (1, 3), 5), (RESNET, (1,), None)
])  # fmt: skip
def test_losses_train_their_own_module_alone(encoder, cuts, target_width):
    """The gradients are those without isolation, of the module's own parameters, and 0 else."""
    module = build(encoder=encoder, cuts=cuts, target_width=target_width)
    x, bounds = patches(2, 3, 3, 8), [0, *cuts, encoder.num_layers]
    params = random_variables(module, x)["params"]

    def losses(params):
        outputs = module.apply({"params": params}, x)[::-1]
        return jnp.stack([energy(one) for one in outputs])

    def first_without_isolation(params):
        layer, _ = module.encoder.upto(1, {})
        z = layer.apply({"params": params["encoder"]}, x.reshape(-1, 8, 8, 1)).reshape(2, 3, 3, -1)
        predictions = jnp.einsum("bijh,hkd->bijkd", z, params["predictor_of_1_down"]["W"]["kernel"])
        targets = z @ params["target_of_1_down"]["kernel"] + params["target_of_1_down"]["bias"]
        return energy(CPCOutputs(targets, z, predictions))

    @jax.jit
    def differentiate(params):
        _, pull = jax.vjp(losses, params)
        found = jax.lax.map(lambda row: pull(row)[0], jnp.eye(len(cuts) + 1))
        return found, jax.grad(first_without_isolation)(params) if encoder is DEEP else None

    found, wanted = differentiate(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        keys = [part.key for part in path]
        for number in range(1, len(bounds)):
            expected = is_own(keys, number, bounds)
            assert (np.abs(leaf[number - 1]).max() > 0) == expected, (number, keys)
    if wanted is not None:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a[0], b, rtol=1e-4, atol=1e-5), found, wanted
        )


def test_branches_and_shorter_parts_keep_the_cuts_within():
    module = build(("down", "left"), encoder=DEEP, cuts=(1, 3))
    variables = random_variables(module, patches(size=8))
    assert module.branches == [(n, side) for n in (3, 2, 1) for side in ("down", "left")]
    shorter, _ = models.end_at(module, variables, "z2")
    assert (shorter.cuts, shorter.encoder.widths) == ((1,), (4, 6))
    with pytest.raises(UserError, match="1 to 3"):
        build(encoder=DEEP, cuts=(4,))
