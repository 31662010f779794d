"""CPC of images: grids, directions and their frames, causality, leaks, and the shared loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc import negatives
from cpc.losses import cpc_loss
from cpc.models import (
    DIRECTIONS,
    ImageCPC,
    LinearPredictor,
    MaskedRowConv,
    RowGRU,
    SmallConvEncoder,
    check_offsets,
    first_clean_offset,
    frame_positions,
    from_frame,
    make_model,
    patch_grid,
    to_frame,
)
from cpc.types import UserError

CONTEXTS = {
    "conv": functools.partial(MaskedRowConv, 12, 3),
    "gru": functools.partial(RowGRU, 12),
}


def build(directions=("down",), context="conv", **options):
    width = options.get("target_width") or 8
    return ImageCPC(
        SmallConvEncoder((4, 8), options.pop("norm", "layer")),
        CONTEXTS[context],
        functools.partial(LinearPredictor, 2, width),
        directions,
        channels=options.pop("channels", 1),
        **options,
    )


def patches(b=2, i=3, j=4, size=6, channels=1, seed=0):
    shape = (b, i, j, size, size, channels)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def start(module, x):
    """Outputs and variables."""
    variables = random_variables(module, x)
    return jax.jit(module.apply)(variables, x), variables


#: What a context at (i, j) may depend on, and the step to the next place, in the image's grid.
VISIBLE = {
    "down": lambda row, column, i, j: row <= i,
    "up": lambda row, column, i, j: row >= i,
    "right": lambda row, column, i, j: column <= j,
    "left": lambda row, column, i, j: column >= j,
}
STEPS = {"down": (1, 0), "up": (-1, 0), "right": (0, 1), "left": (0, -1)}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_frames_go_through_the_picture_in_their_direction(direction):
    grid = np.arange(24).reshape(2, 3, 4)
    frame = to_frame(grid, direction)
    np.testing.assert_array_equal(from_frame(frame, direction), grid)
    step = {"down": 4, "up": -4, "right": 1, "left": -1}[direction]
    np.testing.assert_array_equal(np.diff(frame, axis=1), step)
    assert frame.shape == ((2, 3, 4) if direction in ("down", "up") else (2, 4, 3))


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_no_context_depends_on_a_patch_further_on(context):
    """The gradient by every patch that lies ahead is exactly zero; by the own and the last, not."""
    module, x = build(DIRECTIONS, context), patches(1, 3, 4)
    variables = random_variables(module, x)

    def values(x):
        c = module.apply(variables, x, method="embed")[1][0]
        return jnp.sin(c).reshape(3, 4, len(DIRECTIONS), -1).sum(-1)

    jacobian = jax.jit(jax.jacrev(values))(x)[:, :, :, 0]  # (i, j, direction, i, j, y, x, ch)
    seen = np.asarray(jacobian != 0).any((-3, -2, -1))
    rows, columns = np.mgrid[:3, :4]
    for n, direction in enumerate(DIRECTIONS):
        for i, j in np.ndindex(3, 4):
            may = VISIBLE[direction](rows, columns, i, j)
            assert not seen[i, j, n][~may].any()
            assert seen[i, j, n, i, j]
            before = np.subtract((i, j), STEPS[direction])
            if (before >= 0).all() and (before < (3, 4)).all():
                assert seen[(i, j, n, *before)]


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_direction_is_top_down_on_the_picture_turned(context):
    """Heads of equal weights give equal outputs for images turned to their directions."""
    x, module = patches(2, 3, 3), build(DIRECTIONS, context, target_width=5)
    turned = jnp.concatenate([from_frame(x, direction) for direction in DIRECTIONS])
    variables = random_variables(module, turned)["params"]
    for part in ("contexts", "predictors", "targets"):
        for direction in DIRECTIONS:
            variables[f"{part}_{direction}"] = variables[f"{part}_down"]
    outputs = jax.jit(module.apply)({"params": variables}, turned)
    expected = [a[:2] for a in outputs[0]]
    for n, own in enumerate(outputs):
        for a, b in zip(own, expected, strict=True):
            np.testing.assert_allclose(a[2 * n : 2 * n + 2], b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_each_direction_has_its_own_context_predictor_and_targets():
    module, x = build(DIRECTIONS, target_width=5), patches()
    outputs, variables = start(module, x)
    assert [o.z.shape for o in outputs] == [(2, 3, 4, 5)] * 2 + [(2, 4, 3, 5)] * 2
    assert [o.c.shape[-1] for o in outputs] == [12] * 4
    assert [o.predictions.shape for o in outputs] == [(2, 3, 4, 2, 5)] * 2 + [(2, 4, 3, 2, 5)] * 2
    parts = [f"{part}_{d}" for part in ("contexts", "predictors", "targets") for d in DIRECTIONS]
    assert set(variables["params"]) == {"encoder", *parts}

    def loss(variables):
        return jnp.sin(module.apply(variables, x)[1].predictions).sum()

    gradient = jax.jit(jax.grad(loss))(variables)["params"]
    touched = {
        name for name, part in gradient.items() if any(jnp.any(g) for g in jax.tree.leaves(part))
    }
    assert touched == {"encoder", "contexts_up", "predictors_up"}


@pytest.mark.slow
def test_features_are_latents_and_contexts_in_the_pictures_own_grid():
    module, x = build(("down", "left"), target_width=5), patches()
    outputs, variables = start(module, x)
    z, c = jax.jit(make_model(module).embed)(variables, x)
    assert z.shape == (2, 3, 4, 8)  # the latents, not their projections
    for n, (direction, output) in enumerate(zip(module.directions, outputs, strict=True)):
        own = c[..., 12 * n : 12 * (n + 1)]
        np.testing.assert_allclose(own, from_frame(output.c, direction), rtol=1e-5, atol=1e-6)
        w = variables["params"][f"targets_{direction}"]
        projected = from_frame(output.z, direction)
        np.testing.assert_allclose(projected, z @ w["kernel"] + w["bias"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_latents_are_those_of_patches_encoded_one_by_one():
    module, x = build(), patches()
    variables = random_variables(module, x)
    z, _ = jax.jit(make_model(module).embed)(variables, x)
    encode = jax.jit(module.encoder.apply)
    encoder = {"params": variables["params"]["encoder"]}
    for b, i, j in [(0, 0, 0), (1, 2, 1), (0, 1, 3)]:
        one = encode(encoder, x[b, i, j][None])
        np.testing.assert_allclose(z[b, i, j], one[0], rtol=1e-5, atol=1e-6)


RULES = {
    "batch": (negatives.batch, lambda same, far: True),
    "others": (negatives.excluding_sequence, lambda same, far: not same),
    "window": (negatives.outside_window(1), lambda same, far: not same or far > 1),
}


@functools.cache
def outputs_of_every_direction():
    return dict(zip(DIRECTIONS, start(build(DIRECTIONS), patches())[0], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_loss_equals_loops_over_the_picture(direction, rule):
    """Predictions at a patch against the patch k further on and what the rule leaves."""
    outputs = outputs_of_every_direction()[direction]
    positions = frame_positions(outputs.z, jnp.arange(2))
    loss, sums = jax.jit(lambda outputs: cpc_loss(outputs, positions, RULES[rule][0]))(outputs)

    z, w = (np.asarray(from_frame(a, direction), np.float64) for a in (outputs.z, outputs[2]))
    step, allows, expected = STEPS[direction], RULES[rule][1], 0.0
    places = list(np.ndindex(2, 3, 4))
    for k in (1, 2):
        losses = []
        for b, i, j in places:
            target = (b, i + k * step[0], j + k * step[1])
            if target not in places:
                continue
            scores = [z[target] @ w[b, i, j, k - 1]]
            for other in places:
                far = abs(np.dot(np.subtract(other[1:], target[1:]), step))
                if other != target and allows(other[0] == b, far):
                    scores.append(z[other] @ w[b, i, j, k - 1])
            losses.append(np.logaddexp.reduce(scores) - scores[0])
        expected += np.mean(losses)
        assert sums.anchors[k - 1] == len(losses)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.slow
def test_all_parameters_learn_from_the_loss():
    directions, x = ("up", "right"), patches()
    module = build(directions, target_width=5)
    variables = random_variables(module, x)

    def loss(params):
        outputs, _ = make_model(module).apply({"params": params}, {"x": x}, True)
        return sum(
            cpc_loss(o, frame_positions(o.z, jnp.arange(2)), negatives.batch)[0] for o in outputs
        )

    gradient = jax.jit(jax.grad(loss))(variables["params"])
    # A shift of all targets moves all scores of an anchor alike.
    silent = [f"targets_{direction}" for direction in directions]
    for name, part in gradient.items():
        for leaf_name, leaf in jax.tree_util.tree_leaves_with_path(part):
            assert jnp.isfinite(leaf).all()
            if not (name in silent and "bias" in str(leaf_name)):
                assert jnp.abs(leaf).max() > 1e-7, f"{name} {leaf_name}"


@pytest.mark.slow
@pytest.mark.parametrize(("patch", "stride"), [(6, 6), (6, 3), (8, 3), (5, 4)])
def test_offsets_leak_exactly_below_the_first_clean_one(patch, stride):
    """Pixels that both the context at row 0 and the target at row k depend on, by gradients."""
    size = (30, patch + stride)
    rows, columns = patch_grid(size, patch, stride)
    module = build()

    def cut(image):
        starts = np.arange(rows) * stride, np.arange(columns) * stride
        y, x = (start[:, None] + np.arange(patch) for start in starts)
        return image[y[:, None, :, None], x[None, :, None, :]][None, ..., None]

    image = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)
    variables = random_variables(module, cut(image))

    def values(image):
        z, c = (
            jnp.sin(a[0]).sum((1, 2)) for a in module.apply(variables, cut(image), method="embed")
        )
        return jnp.stack([c[0], *z[1:]])

    context, *targets = np.asarray(jax.jit(jax.jacrev(values))(image) != 0)
    leaks = [bool((context & target).any()) for target in targets]
    clean = first_clean_offset(patch, stride)
    assert leaks == [k < clean for k in range(1, rows)]


@pytest.mark.parametrize(("size", "patch", "stride", "grid"), [
    ((256, 256), 64, 32, (7, 7)),
    ((260, 260), 80, 36, (6, 6)),
    ((28, 28), 8, 4, (6, 6)),
    ((96, 64), 24, 12, (7, 4)),
    ((29, 31), 8, 4, (6, 6)),
    ((8, 8), 8, 4, (1, 1)),
])  # fmt: skip
def test_patch_grids(size, patch, stride, grid):
    assert patch_grid(size, patch, stride) == grid


def test_positions_broadcast_to_the_frame():
    z = jnp.zeros((2, 4, 3, 5))
    places = frame_positions(z, jnp.array([7, 9]), jnp.array([1, 0]))
    whole = [np.broadcast_to(p, (2, 4, 3)) for p in places]
    assert [int(p[1, 2, 1]) for p in whole] == [9, 2, 1, 0]
    assert all(p.dtype == jnp.int32 for p in places)


@pytest.mark.slow
def test_batch_norm_moves_its_state_in_training():
    model, x = make_model(build(context="gru", norm="batch")), patches()
    variables = model.init(jax.random.key(0), {"x": x})
    apply = jax.jit(model.apply, static_argnums=2)
    before, after = (apply(variables, {"x": x}, train)[1]["batch_stats"] for train in (False, True))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), before, after)
    assert not any(jax.tree.leaves(same))


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_bfloat16_computes_what_float32_does(context):
    def at(dtype):
        return ImageCPC(
            SmallConvEncoder((4, 8), dtype=dtype),
            functools.partial(CONTEXTS[context], dtype=dtype),
            functools.partial(LinearPredictor, 2, 5, dtype=dtype),
            ("up", "right"),
            target_width=5,
            channels=1,
            dtype=dtype,
        )

    x = patches()
    outputs, variables = start(at(jnp.float32), x)
    half = jax.jit(at(jnp.bfloat16).apply)(variables, x)
    for a, b in zip(jax.tree.leaves(half), jax.tree.leaves(outputs), strict=True):
        assert a.dtype == jnp.bfloat16
        assert float(jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b)) < 0.03


@pytest.mark.parametrize(("make", "words"), [
    (lambda: patch_grid((28, 28), 32, 4), "32 pixels is larger than the image of 28 by 28"),
    (lambda: patch_grid((64, 20), 32, 4), "larger than the image of 64 by 20"),
    (lambda: patch_grid((28, 28), 8, 0), "at least 1 pixel"),
    (lambda: check_offsets([2, 7], (7, 9), ["down"]), "offset 7 needs more than 7 .* has 7"),
    (lambda: check_offsets([2, 3], (7, 3), ["down", "left"]), "going left, but the grid has 3"),
    (lambda: check_offsets([0, 1], (7, 7), ["down"]), "from 1 upwards"),
    (lambda: check_offsets([2, 2], (7, 7), ["down"]), "give different ones"),
    (lambda: check_offsets([], (7, 7), ["down"]), "give different ones"),
    (lambda: build(("down", "sideways")), "choose different ones of down, up, right, left"),
    (lambda: build(("up", "up")), "directions are"),
    (lambda: build(()), "directions are"),
    (lambda: run(build(), patches(channels=3)), "have 3 channels, but the model is made for 1"),
    (lambda: run(build(), patches()[..., :4, :]), "square, not 6 by 4"),
    (lambda: run(build(), patches(i=1)), "one patch going down"),
    (lambda: run(build(("left",)), patches(j=1)), "one patch going left"),
    (lambda: run(build().clone(target_width=5), patches()), "are 8 wide, but their targets 5"),
])  # fmt: skip
def test_mistakes_are_sentences(make, words):
    with pytest.raises(UserError, match=words):
        make()


def run(module, x):
    return jax.eval_shape(module.init_with_output, jax.random.key(0), x)


def test_a_grid_may_be_as_long_as_the_offsets_need():
    check_offsets([2, 6], (7, 7), DIRECTIONS)
    check_offsets([2, 3], (4, 3), ["down", "up"])
