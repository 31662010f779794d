"""CPC in flax NNX: own layers with the weights of an exported model, and the model as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict
from random_variables import noise, random_variables
from safetensors.numpy import load_file

from cpc import losses, models, negatives
from cpc.models.load import WEIGHTS
from cpc.types import CPCOutputs, Position

X, GRID = noise(3, 41), Position.grid(3, 10)
LAYERS = ((1, 5, 2), (6, 4, 2))  # channels of the input, kernel, stride


class Cell(nnx.GRUCell):
    """NNX's cell with a bias within the reset gate, which it lacks."""

    def __init__(self, width, rngs):
        super().__init__(width, 5, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(5))

    def __call__(self, h, x):
        x_r, x_u, x_n = jnp.split(self.dense_i(x), 3, axis=-1)
        h_r, h_u, h_n = jnp.split(self.dense_h(h), 3, axis=-1)
        r, u = nnx.sigmoid(x_r + h_r), nnx.sigmoid(x_u + h_u)
        h = (1 - u) * nnx.tanh(x_n + r * (h_n + self.bias)) + u * h
        return h, h


class Network(nnx.Module):
    """Causal strided convolutions with norm and ReLU, two layers of GRU, a matrix per offset."""

    def __init__(self, rngs):
        self.convolutions = nnx.List(
            nnx.Conv(channels, 6, (kernel,), stride, padding=[(kernel - stride, 0)], rngs=rngs)
            for channels, kernel, stride in LAYERS
        )
        self.norms = nnx.List(nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs) for _ in LAYERS)
        self.cells = nnx.List(Cell(width, rngs) for width in (6, 5))
        self.predictor = nnx.LinearGeneral(5, (3, 6), use_bias=False, rngs=rngs)

    def __call__(self, x):
        z = x[..., None]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            z = nnx.relu(norm(convolution(z)))
        c = z
        for cell in self.cells:
            c = nnx.RNN(cell)(c)
        return CPCOutputs(z, c, self.predictor(c))


def by_name(tree):
    """Return the parameters of a `Network`, or their gradients, by their names in linen."""
    found = {"predictor/W/kernel": tree["predictor"]["kernel"]}
    for i in range(2):
        convolution, norm, cell = (tree[part][i] for part in ("convolutions", "norms", "cells"))
        found |= {
            f"encoder/kernel{i}": convolution["kernel"],
            f"encoder/bias{i}": convolution["bias"],
            f"encoder/norm{i}/scale": norm["scale"],
            f"encoder/norm{i}/bias": norm["bias"],
            f"context/input{i}/kernel": cell["dense_i"]["kernel"],
            f"context/input{i}/bias": cell["dense_i"]["bias"],
            f"context/recurrent{i}": cell["dense_h"]["kernel"],
            f"context/bias{i}": cell["bias"],
        }
    return {f"params/{name}": value for name, value in found.items()}


def loss_of(outputs):
    return losses.cpc_loss(outputs, GRID, negatives.batch)[0], outputs


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a folder with a model, and the outputs, the loss and the gradients by linen."""
    module = models.CPC(
        models.ConvEncoder(6, *zip(*(layer[1:] for layer in LAYERS), strict=True), norm="layer"),
        models.GRU(5, num_layers=2),
        models.LinearPredictor(3, width=6),
    )
    saved = models.Pretrained(module, random_variables(module, X), {"kind": "audio", "shape": [41]})
    folder = models.save(tmp_path_factory.mktemp("exported"), saved)
    loaded = models.load_pretrained(folder)
    apply = models.make_model(loaded.module).apply

    def loss_fn(variables):
        return loss_of(apply(variables, {"x": X})[0])

    return folder, jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(loaded.variables)


def assert_close(found, expected):
    """Compare arrays to 1e-5 of the largest entry of each."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_own_layers_give_the_same_numbers(exported):
    folder, (values, gradients) = exported
    network, arrays = Network(nnx.Rngs(0)), load_file(folder / WEIGHTS)
    state = nnx.state(network, nnx.Param)
    own = by_name(state)
    assert own.keys() == arrays.keys()
    for name, parameter in own.items():
        parameter[...] = jnp.asarray(arrays[name])
    nnx.update(network, state)

    @nnx.jit
    def differentiate(network):
        return nnx.value_and_grad(lambda network: loss_of(network(X)), has_aux=True)(network)

    found, slopes = differentiate(network)
    assert_close(found, values)
    assert_close(by_name(slopes), flatten_dict(gradients, sep="/"))


def test_exported_model_runs_in_nnx(exported):
    folder, ((_, outputs), _) = exported
    loaded = models.load_pretrained(folder)
    network = nnx.bridge.ToNNX(loaded.module, nnx.Rngs(0)).lazy_init(X)
    nnx.update(network, loaded.variables["params"])
    assert_close(nnx.jit(lambda network: network(X))(network), outputs)
