"""Small models, random inputs, and random variables without compiling an `init`."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from cpc.models import CPC, GRU, ConvEncoder, ImageCPC, LinearPredictor, RowGRU


def audio_module(context=GRU(6), **options):
    return CPC(ConvEncoder(8, **options), context, LinearPredictor(2, 8))


def image_module(encoder, make_context=functools.partial(RowGRU, 6)):
    predictor = functools.partial(LinearPredictor, 1, 8)
    return ImageCPC(encoder, make_context, predictor, directions=("down", "left"), channels=1)


def noise(*shape, seed=0):
    """Return normal float32 numbers."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def random_variables(module, *inputs, seed=0):
    """Return variables shaped as by `module.init`, all drawn at the scale of their inputs."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        values = rng.normal(size=leaf.shape).astype("f")
        if len(leaf.shape) > 1:
            values /= math.sqrt(math.prod(leaf.shape[:-1]))
        else:
            values = 0.1 * values + (path[-1].key in ("scale", "var"))
        return jnp.asarray(values)

    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    return jax.tree_util.tree_map_with_path(draw, shapes)
