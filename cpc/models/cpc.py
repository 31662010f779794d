"""CPC composes an encoder, a context and a predictor, and hides flax from everything else."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from cpc.types import Batch, CPCOutputs, PyTree


class CPC(nn.Module):
    """z = g_enc(x), c = g_ar(z), predictions = W_k c (van den Oord et al. 2018, Figure 1)."""

    encoder: nn.Module
    context: nn.Module
    predictor: nn.Module

    def __call__(self, x: Float[Array, "b s"], train: bool = False) -> CPCOutputs:
        """Latents, contexts and predictions of a batch."""
        z, c = self.embed(x, train)
        return CPCOutputs(z, c, self.predictor(c))

    def embed(
        self, x: Float[Array, "b s"], train: bool = False
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b t h"]]:
        """Latents and contexts alone."""
        z = self.encode(x, train)
        return z, self.context(z)

    def encode(self, x: Float[Array, "b s"], train: bool = False) -> Float[Array, "b t d"]:
        """Latents alone."""
        return self.encoder(x, train)


class Model(NamedTuple):
    """A model as three pure functions."""

    init: Callable[[Array, Batch], PyTree]
    """init(rng, batch) -> variables: {"params": ..., and what else the modules keep}."""
    apply: Callable[..., tuple[Any, PyTree]]
    """apply(variables, batch, train, rng) -> (outputs, new_state), new_state without params.

    The outputs are CPCOutputs, for pictures a tuple of them, one for each direction."""
    embed: Callable[[PyTree, Array], tuple[Array, Array]]
    """embed(variables, x) -> (z, c), as in evaluation."""


def make_model(module: nn.Module) -> Model:
    """The three functions of a CPC or ImageCPC; batches are dictionaries, the input under "x"."""

    def init(rng, batch):
        return module.init(rng, batch["x"])

    def apply(variables, batch, train=False, rng=None):
        rngs = None if rng is None else {"dropout": rng}
        state = {name: value for name, value in variables.items() if name != "params"}
        if not train:
            return module.apply(variables, batch["x"], False), state
        return module.apply(variables, batch["x"], True, mutable=list(state), rngs=rngs)

    def embed(variables, x):
        latents_and_contexts: Any = module.apply(variables, x, method="embed")
        return latents_and_contexts

    return Model(jax.jit(init), apply, embed)
