"""CPC composes an encoder, a context and a predictor, and hides flax from everything else."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from cpc.models.layers import part_of, with_part
from cpc.types import ArrayLike, Batch, CPCOutputs, PyTree


class CPC(nn.Module):
    """z = g_enc(x), c = g_ar(z), predictions = W_k c (van den Oord et al. 2018, Figure 1).

    The input is a waveform (b, s), a signal of several channels (b, s, channels), or the words of
    sentences (b, t, w). Where rows of a signal have `num_samples` real samples each, what follows
    is taken for zeros, whatever it is.
    """

    encoder: nn.Module
    context: nn.Module
    predictor: nn.Module

    def __call__(
        self,
        x: Num[Array, "b s *channels"],
        train: bool = False,
        num_samples: Int[ArrayLike, " b"] | None = None,
        target: Num[Array, "b s *channels"] | None = None,
    ) -> CPCOutputs:
        """Return the latents, contexts and predictions of a batch.

        With another copy of the input as `target` the latents are those of it, and contexts and
        predictions those of x (Kharitonov et al. 2020). Each copy passes the encoder by itself:
        under batch norm by its own statistics, the target's the last that the averages take in.
        """
        z, c = self.embed(x, train, num_samples)
        if target is not None:
            z = self.encode(target, train, num_samples)
        return CPCOutputs(z, c, self.predictor(c))

    def embed(
        self,
        x: Num[Array, "b s *channels"],
        train: bool = False,
        num_samples: Int[ArrayLike, " b"] | None = None,
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b t h"]]:
        """Return latents and contexts, without predictions."""
        z = self.encode(x, train, num_samples)
        return z, self.context(z)

    def encode(
        self,
        x: Num[Array, "b s *channels"],
        train: bool = False,
        num_samples: Int[ArrayLike, " b"] | None = None,
    ) -> Float[Array, "b t d"]:
        """Return latents alone."""
        if num_samples is None:
            return self.encoder(x, train)
        is_real = jnp.arange(x.shape[1]) < num_samples[:, None]
        x = jnp.where(is_real.reshape(*is_real.shape, *(1,) * (x.ndim - 2)), x, 0)
        return self.encoder(x, train, num_samples)

    @property
    def num_layers(self) -> dict[str, int]:
        """Number of layers of the encoder, under "z", and of the context, under "c"."""
        return {"z": self.encoder.num_layers, "c": self.context.num_layers}

    @nn.nowrap
    def upto(self, part: str, number: int, variables: PyTree) -> tuple["CPC", PyTree]:
        """Return the model whose "z" or "c" ends after `number` layers, and its variables."""
        name = {"z": "encoder", "c": "context"}[part]
        shorter, own = getattr(self, name).upto(number, part_of(variables, name))
        return self.clone(**{name: shorter}), with_part(variables, name, own)

    @nn.nowrap
    def linear_maps(self, params: PyTree) -> Float[Array, "k h d"] | None:
        """Return the W_k among the model's parameters; None if predictions are not linear in c."""
        return self.predictor.linear_maps(params["predictor"])


class Model(NamedTuple):
    """A module as pure functions, so that nothing else needs to know flax."""

    init: Callable[[Array, Batch], PyTree]
    """init(rng, batch) -> variables: {"params": ..., and what else the modules keep}."""
    apply: Callable[..., tuple[Any, PyTree]]
    """apply(variables, batch, train, rng) -> (outputs, new_state), new_state without params.

    The outputs are CPCOutputs, for images a tuple of them, one for each direction."""
    embed: Callable[[PyTree, Array], tuple[Array, Array]]
    """embed(variables, x) -> (z, c), as in evaluation."""
    linear_maps: Callable[[PyTree], Array | None]
    """linear_maps(params) -> the W_k (k, h, d); None if there are several predictors, or none
    that is linear."""
    module: Any
    """The module itself: its geometry, and what an export describes."""


def make_model(module: Any) -> Model:
    """Return the functions of a CPC or ImageCPC; batches are dictionaries, the input under "x".

    A batch with "num_samples" is of signals that are filled up; one with "target" has a second copy
    of them, of which the latents are.
    """

    def init(rng, batch):
        return module.init(rng, batch["x"])

    def apply(variables, batch, train=False, rng=None):
        rngs = None if rng is None else {"dropout": rng}
        state = {name: value for name, value in variables.items() if name != "params"}
        more = {name: batch[name] for name in ("num_samples", "target") if name in batch}
        if not train:
            return module.apply(variables, batch["x"], train, **more), state
        return module.apply(variables, batch["x"], train, **more, mutable=list(state), rngs=rngs)

    def embed(variables, x):
        latents_and_contexts: Any = module.apply(variables, x, method="embed")
        return latents_and_contexts

    return Model(jax.jit(init), apply, embed, module.linear_maps, module)
