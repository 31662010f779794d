"""Layers with float32 biases, and models that end at a layer."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import audio_module, image_module, noise, random_variables

from cpc.models import (
    CPC,
    GRU,
    LSTM,
    CausalConv,
    CausalTransformer,
    ConvEncoder,
    LogMelEncoder,
    MaskedRowConv,
    ResNet,
    RowGRU,
    SmallConvEncoder,
    Stage,
    end_at,
    layer_depths,
)
from cpc.models.layers import Conv, Dense
from cpc.types import UserError


def draw(module, *shape):
    """Return input and variables."""
    x = noise(*shape)
    return x, random_variables(module, x)


@pytest.mark.parametrize("module", [
    audio_module(LSTM(6, 2), norm="batch", padding=(3, 2, 1, 1, 1)),
    image_module(ResNet((Stage(1, 4), Stage(1, 8)), norm="batch", pooled_stem=False)),
], ids=["audio", "images"])  # fmt: skip
def test_the_last_layers_are_z_and_c(module):
    def parts(module):
        is_audio = isinstance(module, CPC)
        return module.encoder, module.context if is_audio else module.make_context()

    shape = (2, 1600) if isinstance(module, CPC) else (1, 3, 3, 8, 8, 1)
    names, (_, variables) = [*layer_depths(module)], draw(module, *shape)
    for part in "zc":
        for layer in (part, names[names.index(part) - 1]):
            same, own = end_at(module, variables, layer)
            assert parts(same) == parts(module)
            jax.tree.map(np.testing.assert_array_equal, own, variables)


@pytest.mark.parametrize(("part", "shape", "number"), [
    (ConvEncoder(8, norm="batch", padding=(3, 2, 1, 1, 1)), (2, 1600), 3),
    (LogMelEncoder(8, (3, 1, 1)), (2, 1600), 2),
    (SmallConvEncoder((4, 8), norm="layer"), (2, 8, 8, 1), 1),
    (ResNet((Stage(1, 4), Stage(2, 8)), norm="batch", pooled_stem=False), (2, 8, 8, 1), 1),
    (ResNet((Stage(1, 4), Stage(2, 8)), pooled_stem=False), (2, 8, 8, 1), 1),
    (GRU(6, 3), (2, 5, 4), 2), (LSTM(6, 2), (2, 5, 4), 1), (CausalConv(6, 3), (2, 5, 4), 2),
    (CausalTransformer(8, 3, num_heads=2), (2, 5, 4), 2),
    (MaskedRowConv(6, 2), (2, 3, 3, 4), 1), (RowGRU(6, 2), (2, 3, 3, 4), 1),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_a_shorter_part_has_the_variables_that_it_needs_and_no_more(part, shape, number):
    _, variables = draw(part, *shape)
    shorter, own = part.upto(number, variables)
    assert shorter.num_layers == number < part.num_layers
    wanted = jax.eval_shape(shorter.init, jax.random.key(0), jnp.zeros(shape))
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, wanted)
    given = dict(jax.tree_util.tree_leaves_with_path(variables))
    for path, leaf in jax.tree_util.tree_leaves_with_path(own):
        if not (isinstance(part, ResNet) and path[1].key == "norm"):  # learned for the last stage
            np.testing.assert_array_equal(leaf, given[path])


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_a_layer_of_a_resnet_is_what_leaves_its_stage(norm):
    encoder = ResNet((Stage(1, 4), Stage(1, 8)), norm=norm, pooled_stem=False, stem_width=4)
    module = image_module(encoder)
    x, variables = draw(module, 1, 2, 2, 8, 8, 1)
    own = {kind: tree["encoder"] for kind, tree in variables.items() if "encoder" in tree}
    capture = functools.partial(encoder.apply, capture_intermediates=True)
    y = jax.jit(capture)(own, x.reshape(-1, 8, 8, 1))[1]["intermediates"]["stage0_block0"]
    (y,) = y["__call__"]
    if norm == "layer":
        mean, var = y.mean((1, 2, 3), keepdims=True), y.var((1, 2, 3), keepdims=True)
        y = (y - mean) / jnp.sqrt(var + 1e-6)
    wanted = jax.nn.relu(y).mean((1, 2)).reshape(1, 2, 2, 4)
    shorter, variables = end_at(module, variables, "z1")
    found = jax.jit(functools.partial(shorter.apply, method="encode"))(variables, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_contexts_of_each_direction_end_at_the_layer():
    module = image_module(SmallConvEncoder((4, 8)), functools.partial(RowGRU, 6, 2))
    _, variables = draw(module, 1, 3, 3, 8, 8, 1)
    shorter, own = end_at(module, variables, "c1")
    assert shorter.make_context() == RowGRU(6, 1)
    for name in ("contexts_down", "contexts_left"):
        kept = {n: a for n, a in variables["params"][name].items() if n.endswith("0")}
        jax.tree.map(np.testing.assert_array_equal, own["params"][name], kept)
    assert [*layer_depths(module)] == ["z1", "z2", "z", "c1", "c2", "c"]


def test_an_unknown_layer_names_those_that_there_are():
    for layer in ("z0", "z6", "d"):
        with pytest.raises(UserError, match="z1, z2, z3, z4, z5, z, c1, c"):
            end_at(audio_module(), {}, layer)


PLACES = noise(64, 1024, 5)


@pytest.mark.parametrize(
    ("own", "flax", "options"),
    [(Dense, nn.Dense, {"features": 3}), (Conv, nn.Conv, {"features": 3, "kernel_size": (3,)})],
)
def test_layers_are_those_of_flax(own, flax, options):
    variables = random_variables(flax(**options), PLACES)

    def total(variables):
        y = own(**options, dtype=jnp.bfloat16).apply(variables, PLACES)
        assert y.dtype == jnp.bfloat16
        return y.astype(jnp.float32).sum()

    @jax.jit
    def run(variables):
        made = own(**options, dtype=jnp.float32).apply(variables, PLACES)
        return made, flax(**options).apply(variables, PLACES), jax.grad(total)(variables)

    made, wanted, gradient = run(variables)
    np.testing.assert_array_equal(made, wanted)
    # Each of 65,536 places adds 1. In bfloat16 the sum would stop at 16,384.
    np.testing.assert_array_equal(gradient["params"]["bias"], np.full(3, 65536.0))


def test_biases_of_encoders_and_row_contexts_too():
    encoder = ConvEncoder(4, (4, 4), (2, 2), dtype=jnp.bfloat16)
    context, z = RowGRU(4, dtype=jnp.bfloat16), jnp.zeros((64, 1, 1024, 3))
    variables = random_variables(encoder, x := jnp.zeros((16, 4 * 1024)))
    variables["params"]["bias0"] = -jnp.ones(4)
    variables["params"]["bias1"] = jnp.ones(4)  # of silence the last layer is its bias
    of_context = jax.tree.map(lambda leaf: 0 * leaf, random_variables(context, z))

    def total(variables, of_context):
        outputs = encoder.apply(variables, x), context.apply(of_context, z)
        return sum(one.astype(jnp.float32).sum() for one in outputs)

    first, second = jax.jit(jax.grad(total, (0, 1)))(variables, of_context)
    np.testing.assert_array_equal(first["params"]["bias1"], np.full(4, 16384.0))
    # tanh(x + sigmoid(0) b) (1 - sigmoid(0)) at 0, from each of 65,536 places.
    np.testing.assert_array_equal(second["params"]["bias0"], np.full(4, 0.25 * 65536))
