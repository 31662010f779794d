"""Layers of a model against what its own layers give, one after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import (
    CPC,
    GRU,
    LSTM,
    CausalConv,
    CausalTransformer,
    ConvEncoder,
    ImageCPC,
    LinearPredictor,
    MaskedRowConv,
    ResNet,
    RowGRU,
    SmallConvEncoder,
    Stage,
    end_at,
    layer_depths,
)
from cpc.types import UserError


def audio_module(context, **options):
    return CPC(ConvEncoder(8, **options), context, LinearPredictor(2, 8))


def image_module(encoder, context=functools.partial(RowGRU, 6)):
    predictor = functools.partial(LinearPredictor, 1, 8)
    return ImageCPC(encoder, context, predictor, directions=("down", "left"), channels=1)


def draw(module, *shape):
    """Input and variables."""
    x = np.random.default_rng(0).normal(size=shape).astype("f")
    return jnp.asarray(x), random_variables(module, x)


def features(module, variables, layer, x):
    module, variables = end_at(module, variables, layer)
    return jax.jit(functools.partial(module.apply, method="encode"))(variables, x)


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
    np.testing.assert_allclose(features(module, variables, "z1", x), wanted, rtol=1e-4, atol=1e-5)


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
            end_at(audio_module(GRU(6)), {}, layer)
