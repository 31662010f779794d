"""Variables for tests of a module: random, of the right scale, without compiling an `init`."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def random_variables(module, x, seed=0):
    """What `module.init` gives for x in shape, every entry drawn; also where it starts at zero."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        noise = rng.normal(size=leaf.shape).astype("f")
        if len(leaf.shape) > 1:  # a matrix or kernel keeps the scale of its input
            noise /= math.sqrt(math.prod(leaf.shape[:-1]))
        else:
            noise = 0.1 * noise + (path[-1].key in ("scale", "var"))
        return jnp.asarray(noise)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(module.init, jax.random.key(0), x))
