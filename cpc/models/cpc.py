"""CPC models with an encoder, a context and a predictor, also as pure functions without flax."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from cpc.models.geometry import Latents, NumSamples, Signals
from cpc.models.layers import TIME_DIRECTIONS, check_cuts, part_of, reverse_time, with_part
from cpc.types import Batch, CPCOutputs, PyTree, UserError


class CPC(nn.Module):
    """A CPC model with z = g_enc(x), c = g_ar(z) and predictions W_k c.

    This is the model of van den Oord et al. (2018, Figure 1).
    The input is a waveform (b, s), a multi-channel signal (b, s, channels), or the word ids of
    sentences (b, t, w). `num_samples` masks padding; see `cpc.models.geometry.NumSamples`.

    Two directions (Kawakami et al. 2020) share the encoder, and each has its own context and
    predictor. The backward context gets latents reversed in time, with padding last.

    `cuts` split the encoder into gradient-isolated modules (Loewe et al. 2019, "Greedy InfoMax").
    No gradient passes a cut. A module that ends at a cut has no context: its latents predict its
    own later latents at its stride. Each module uses its first latents, as many as the last has.
    """

    encoder: nn.Module
    context: nn.Module
    predictor: nn.Module
    directions: Sequence[str] = ("forward",)
    cuts: Sequence[int] = ()
    """Numbers of encoder layers after which a module ends."""

    def __post_init__(self):
        super().__post_init__()
        if tuple(self.directions) not in (TIME_DIRECTIONS[:1], TIME_DIRECTIONS):
            raise UserError(f"directions are {[*self.directions]}: use forward or forward,backward")
        if self.cuts:
            check_cuts(self.cuts, self.encoder)

    def setup(self):
        """Create the predictors of all branches and the backward context."""
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
        """Return the (module, direction) pairs that have a loss term, last module first.

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
        """Return the latents, contexts and predictions for a batch.

        With several `branches`, the result has one output for each. Backward branches'
        outputs are reversed in time. If `target` is given, it is another copy of the input: latents
        come from it, and contexts and predictions from x (Kharitonov et al. 2020). Batch norm
        normalizes each copy by its own statistics, and updates its averages with both.
        """
        encode = functools.partial(self._encode_modules, train=train, num_samples=num_samples)
        context_latents = encode(x)
        latents = context_latents if target is None else encode(target)
        outputs, predictors = [], [self.predictor, *self.further]
        for (module, direction), predictor in zip(self.branches, predictors, strict=True):
            cut = self.cuts[module - 1] if module <= len(self.cuts) else None
            z, c = (
                self._reverse(ends[module - 1][:, : ends[-1].shape[1]], direction, num_samples, cut)
                for ends in (latents, context_latents)
            )
            c = self._get_context(direction)(c) if cut is None else c
            outputs.append(CPCOutputs(z, c, predictor(c)))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _encode_modules(self, x, train, num_samples):
        """Return the latents at each cut and at the end of the encoder."""
        if not self.cuts:
            return [self.encode(x, train, num_samples)]
        x = _mask_padding(x, num_samples)
        return self.encoder.through(x, train, num_samples, tuple(self.cuts))

    def _get_context(self, direction):
        return self.context if direction == "forward" else self.context_backward

    def _reverse(self, x, direction, num_samples, num_layers):
        """Reverse latents in time for the backward direction; applying this twice is the identity.

        x are the latents after `num_layers` encoder layers, or after all layers if it is None.
        """
        if direction == "forward":
            return x
        if num_samples is None:
            return x[:, ::-1]
        encoder = self.encoder.clone(parent=None)
        if num_layers is not None:
            encoder = encoder.upto(num_layers, {})[0]
        return reverse_time(x, jnp.minimum(encoder.num_existing(num_samples), x.shape[1]))

    def embed(
        self, x: Signals, train: bool = False, num_samples: NumSamples = None
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b t h"]]:
        """Return latents and contexts, where the contexts of two directions are concatenated."""
        z = self.encode(x, train, num_samples)
        if not self.is_bidirectional:
            return z, self.context(z)
        reverse = functools.partial(self._reverse, num_samples=num_samples, num_layers=None)
        contexts = [reverse(self._get_context(d)(reverse(z, d)), d) for d in self.directions]
        return z, jnp.concatenate(contexts, axis=-1)

    def encode(self, x: Signals, train: bool = False, num_samples: NumSamples = None) -> Latents:
        """Return latents without computing contexts."""
        return encode_real(self.encoder, x, train, num_samples)

    @property
    def num_layers(self) -> dict[str, int]:
        """Number of layers of the encoder, "z", and of the context, "c"."""
        return {"z": self.encoder.num_layers, "c": self.context.num_layers}

    @nn.nowrap
    def upto(self, part: str, number: int, variables: PyTree) -> tuple["CPC", PyTree]:
        """Truncate the encoder, "z", or context, "c", and its variables after `number` layers."""
        name = {"z": "encoder", "c": "context"}[part]
        full = getattr(self, name)
        names = [name, "context_backward"] if part == "c" and self.is_bidirectional else [name]
        for one in names:
            _, own = full.upto(number, part_of(variables, one))
            variables = with_part(variables, one, own)
        cuts = tuple(cut for cut in self.cuts if part == "c" or cut < number)
        return self.clone(**{name: full.upto(number, {})[0]}, cuts=cuts), variables

    @property
    def is_bidirectional(self) -> bool:
        """Whether contexts also depend on later latents."""
        return len(self.directions) > 1

    @nn.nowrap
    def linear_maps(self, params: PyTree) -> Float[Array, "k h d"] | None:
        """Return the matrices W_k if the only branch predicts linearly from c, otherwise None."""
        if len(self.branches) > 1 or not hasattr(self.predictor, "linear_maps"):
            return None
        return self.predictor.linear_maps(params["predictor"])


def encode_real(encoder: Any, x: Signals, train: bool, num_samples: Any) -> Float[Array, "b t d"]:
    """Return the latents of x with zeros in place of samples past each row's `num_samples`."""
    if num_samples is None:
        return encoder(x, train)
    return encoder(_mask_padding(x, num_samples), train, num_samples)


def _mask_padding(x, num_samples):
    if num_samples is None:
        return x
    mask = jnp.arange(x.shape[1]) < num_samples[:, None]
    return jnp.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, 0)


class Model(NamedTuple):
    """A CPC module as pure functions, usable without flax."""

    init: Callable[[Array, Batch], PyTree]
    """init(rng, batch) returns variables {"params": ...} and further collections of the module."""
    apply: Callable[..., tuple[Any, PyTree]]
    """apply(variables, batch, train, rng) returns (outputs, new_state), where new_state has no
    params. For images and for several branches, outputs are a tuple of CPCOutputs."""
    embed: Callable[[PyTree, Array], tuple[Array, Array]]
    """embed(variables, x) returns (z, c) in evaluation mode."""
    linear_maps: Callable[[PyTree], Array | None]
    """linear_maps(params) returns the matrices W_k (k, h, d) of a single linear predictor, and
    None for other predictors."""
    module: Any
    """The linen module, which describes the geometry and is exported."""


def make_model(module: Any) -> Model:
    """Return a CPC or ImageCPC module as pure functions.

    A batch contains the input "x" and, optionally, "num_samples" and "target" as in `CPC`.
    """

    def init(rng, batch):
        return module.init(rng, batch["x"])

    def apply(variables, batch, train=False, rng=None):
        rngs = None if rng is None else {"dropout": rng}
        state = {name: value for name, value in variables.items() if name != "params"}
        inputs = {name: batch[name] for name in ("num_samples", "target") if name in batch}
        if not train:
            return module.apply(variables, batch["x"], train, **inputs), state
        return module.apply(variables, batch["x"], train, **inputs, mutable=list(state), rngs=rngs)

    embed = functools.partial(module.apply, method="embed")
    linear_maps = getattr(module, "linear_maps", lambda params: None)
    return Model(jax.jit(init), apply, embed, linear_maps, module)
