"""CPC composes an encoder, a context and a predictor, and hides flax from everything else."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from cpc.models.geometry import NumSamples, Signals
from cpc.models.layers import TIME_DIRECTIONS, check_cuts, part_of, reverse_time, with_part
from cpc.types import Batch, CPCOutputs, PyTree, UserError


class CPC(nn.Module):
    """z = g_enc(x), c = g_ar(z), predictions = W_k c (van den Oord et al. 2018, Figure 1).

    The input is a waveform (b, s), a signal of several channels (b, s, channels), or the words of
    sentences (b, t, w); see `cpc.models.geometry.NumSamples`.

    Two directions (Kawakami et al. 2020) have a context and a predictor each, over one encoder; the
    backward one sees latents in its own frame, reversed in time, what exists of a row first.

    `cuts` make gradient-isolated modules (Loewe et al. 2019, "Greedy InfoMax"): no gradient passes
    what follows so many layers of the encoder, and each module that ends there predicts its own
    latents, at its own stride, from these latents in place of contexts, the first as many of them
    as the last module has.
    """

    encoder: nn.Module
    context: nn.Module
    predictor: nn.Module
    directions: Sequence[str] = ("forward",)
    cuts: Sequence[int] = ()
    """Layers of the encoder after which a module ends."""

    def __post_init__(self):
        """Reject directions and cuts that there are not."""
        super().__post_init__()
        if tuple(self.directions) not in (TIME_DIRECTIONS[:1], TIME_DIRECTIONS):
            raise UserError(
                f"the directions are {list(self.directions)}: choose forward, or forward,backward"
            )
        if self.cuts:
            check_cuts(self.cuts, self.encoder)

    def setup(self):
        """Make what further directions and modules have of their own."""
        names = [
            "predictor"
            + f"_of_{module}" * (module <= len(self.cuts))
            + "_backward" * (direction == "backward")
            for module, direction in self.branches[1:]
        ]
        self.further = [self.predictor.copy(name=name) for name in names]
        if self.is_bidirectional:
            self.context_backward = self.context.copy(name="context_backward")

    @property
    def branches(self) -> list[tuple[int, str]]:
        """What has a loss, as (module, direction), from the last module down to the first, 1.

        >>> from cpc.models import GRU, ConvEncoder, LinearPredictor
        >>> CPC(ConvEncoder(), GRU(), LinearPredictor(12, 512), cuts=(3, 5)).branches
        [(3, 'forward'), (2, 'forward'), (1, 'forward')]
        """
        modules = range(len(self.cuts) + 1, 0, -1)
        return [(module, direction) for module in modules for direction in self.directions]

    def __call__(
        self,
        x: Signals,
        train: bool = False,
        num_samples: NumSamples = None,
        target: Num[Array, "b s *channels"] | None = None,
    ) -> CPCOutputs | tuple[CPCOutputs, ...]:
        """Return the latents, contexts and predictions of a batch.

        Of several `branches` a tuple, in their order, each in the frame of its direction.

        With another copy of the input as `target` the latents are those of it, and contexts and
        predictions those of x (Kharitonov et al. 2020). Each copy passes the encoder by itself:
        under batch norm by its own statistics, the target's the last that the averages take in.
        """
        seen = self._ends(x, train, num_samples)
        latents = seen if target is None else self._ends(target, train, num_samples)
        outputs, predictors = [], [self.predictor, *self.further]
        for (module, direction), predictor in zip(self.branches, predictors, strict=True):
            cut = self.cuts[module - 1] if module <= len(self.cuts) else None
            z, c = (
                self._to_frame(
                    ends[module - 1][:, : ends[-1].shape[1]], direction, num_samples, cut
                )
                for ends in (latents, seen)
            )
            c = self._contexts(direction)(c) if cut is None else c
            outputs.append(CPCOutputs(z, c, predictor(c)))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _ends(self, x, train, num_samples):
        """Latents at the end of each module of the encoder, the last its own."""
        if not self.cuts:
            return [self.encode(x, train, num_samples)]
        x = _without_padding(x, num_samples)
        return self.encoder.through(x, train, num_samples, tuple(self.cuts))

    def _contexts(self, direction):
        return self.context if direction == "forward" else self.context_backward

    def _to_frame(self, x, direction, num_samples, layers):
        """What is of latents after so many layers, in a direction's order; its own inverse."""
        if direction == "forward":
            return x
        if num_samples is None:
            return x[:, ::-1]
        whole = self.encoder.clone(parent=None)
        encoder = whole if layers is None else whole.upto(layers, {})[0]
        return reverse_time(x, jnp.minimum(encoder.num_existing(num_samples), x.shape[1]))

    def embed(
        self, x: Signals, train: bool = False, num_samples: NumSamples = None
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b t h"]]:
        """Return latents and contexts, without predictions; of both directions side by side."""
        z = self.encode(x, train, num_samples)
        if not self.is_bidirectional:
            return z, self.context(z)
        to_frame = functools.partial(self._to_frame, num_samples=num_samples, layers=None)
        contexts = [to_frame(self._contexts(one)(to_frame(z, one)), one) for one in self.directions]
        return z, jnp.concatenate(contexts, axis=-1)

    def encode(
        self, x: Signals, train: bool = False, num_samples: NumSamples = None
    ) -> Float[Array, "b t d"]:
        """Return latents alone."""
        return encode_real(self.encoder, x, train, num_samples)

    @property
    def num_layers(self) -> dict[str, int]:
        """Number of layers of the encoder, under "z", and of the context, under "c"."""
        return {"z": self.encoder.num_layers, "c": self.context.num_layers}

    @nn.nowrap
    def upto(self, part: str, number: int, variables: PyTree) -> tuple["CPC", PyTree]:
        """Return the model whose "z" or "c" ends after `number` layers, and its variables."""
        name = {"z": "encoder", "c": "context"}[part]
        whole = getattr(self, name)
        names = [name, "context_backward"] if part == "c" and self.is_bidirectional else [name]
        for one in names:
            _, own = whole.upto(number, part_of(variables, one))
            variables = with_part(variables, one, own)
        kept = tuple(cut for cut in self.cuts if part == "c" or cut < number)
        return self.clone(**{name: whole.upto(number, {})[0]}, cuts=kept), variables

    @property
    def is_bidirectional(self) -> bool:
        """Whether contexts also see the latents after them."""
        return len(self.directions) > 1

    @nn.nowrap
    def linear_maps(self, params: PyTree) -> Float[Array, "k h d"] | None:
        """Return the W_k; None for several predictors, or one that is not linear in c."""
        if len(self.branches) > 1 or not hasattr(self.predictor, "linear_maps"):
            return None
        return self.predictor.linear_maps(params["predictor"])


def encode_real(encoder: Any, x: Signals, train: bool, num_samples: Any) -> Float[Array, "b t d"]:
    """Return the latents of signals of so many real samples, None for all; the rest counts as 0."""
    if num_samples is None:
        return encoder(x, train)
    return encoder(_without_padding(x, num_samples), train, num_samples)


def _without_padding(x, num_samples):
    """The signal, with zeros in place of what is not real."""
    if num_samples is None:
        return x
    is_real = jnp.arange(x.shape[1]) < num_samples[:, None]
    return jnp.where(is_real.reshape(*is_real.shape, *(1,) * (x.ndim - 2)), x, 0)


class Model(NamedTuple):
    """A module as pure functions, so that nothing else needs to know flax."""

    init: Callable[[Array, Batch], PyTree]
    """init(rng, batch) -> variables: {"params": ..., and what else the modules keep}."""
    apply: Callable[..., tuple[Any, PyTree]]
    """apply(variables, batch, train, rng) -> (outputs, new_state), new_state without params.

    The outputs are CPCOutputs; of images, and of several directions or modules, a tuple of them."""
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

    linear_maps = getattr(module, "linear_maps", lambda params: None)
    return Model(jax.jit(init), apply, embed, linear_maps, module)
