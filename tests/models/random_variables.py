"""Random inputs and variables for tests of a module, without compiling an `init`."""

import math

import jax
import jax.numpy as jnp
import numpy as np


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
