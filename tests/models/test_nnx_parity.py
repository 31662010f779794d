"""An exported CPC trains in flax NNX with the loss and the gradients of linen."""

import jax
import numpy as np
from flax import nnx
from random_variables import noise, random_variables

from cpc import losses, models, negatives
from cpc.types import Position

X, GRID = noise(3, 41), Position.grid(3, 10)


def loss_of(outputs):
    return losses.cpc_loss(outputs, GRID, negatives.batch)[0], outputs


def test_an_exported_model_trains_in_nnx(tmp_path):
    encoder = models.ConvEncoder(6, (5, 4), (2, 2), norm="layer")
    module = models.CPC(encoder, models.GRU(5, 2), models.LinearPredictor(3, width=6))
    given = {"kind": "audio", "shape": [41]}
    models.save(tmp_path, models.Pretrained(module, random_variables(module, X), given))
    loaded = models.load_pretrained(tmp_path)
    network = nnx.bridge.ToNNX(loaded.module, nnx.Rngs(0)).lazy_init(X)
    nnx.update(network, loaded.variables["params"])

    @nnx.jit
    def differentiate(network):
        return nnx.value_and_grad(lambda network: loss_of(network(X)), has_aux=True)(network)

    def loss_by_linen(params):
        return loss_of(loaded.module.apply({"params": params}, X))

    found, slopes = differentiate(network)
    by_linen = jax.jit(jax.value_and_grad(loss_by_linen, has_aux=True))
    wanted = by_linen(loaded.variables["params"])
    pairs = zip(*map(jax.tree.leaves, ((found, slopes), wanted)), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())
