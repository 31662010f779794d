"""Layers whose biases are added, and their gradients summed, in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc.models import ConvEncoder, RowGRU
from cpc.models.layers import Conv, Dense

X = noise(64, 1024, 5)


@pytest.mark.parametrize(
    ("own", "flax", "options"),
    [(Dense, nn.Dense, {"features": 3}), (Conv, nn.Conv, {"features": 3, "kernel_size": (3,)})],
)
def test_layers_are_those_of_flax(own, flax, options):
    variables = random_variables(flax(**options), X)

    def total(variables):
        y = own(**options, dtype=jnp.bfloat16).apply(variables, X)
        assert y.dtype == jnp.bfloat16
        return y.astype(jnp.float32).sum()

    @jax.jit
    def run(variables):
        made = own(**options, dtype=jnp.float32).apply(variables, X)
        return made, flax(**options).apply(variables, X), jax.grad(total)(variables)

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
