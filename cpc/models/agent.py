"""An agent with a memory: encoder, recurrent memory, actor and critic, and CPC on the same parts.

Arrays are (t, b, ...), time first. z_t = g_enc(x_t) and c_t, the memory of all z and actions of the
episode up to t, are the latents and contexts of van den Oord et al. (2018), section 3.4: only the
W_k are added for CPC.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.models.predictors import LinearPredictor
from cpc.types import UserError

MEMORIES = ("gru", "lstm", "none")


class Heard(NamedTuple):
    """What an agent gets of a step, before it acts."""

    observation: Float[Array, "t b *o"]
    previous: Int[Array, "t b"]
    """The action that led here; of no account where `is_first`."""
    is_first: Bool[Array, "t b"]
    """Whether an episode begins."""


class AgentOutputs(NamedTuple):
    """Policy, values, latents and contexts of steps, and the memory for the next one."""

    logits: Float[Array, "t b actions"]
    values: Float[Array, "t b"]
    z: Float[Array, "t b d"]
    c: Float[Array, "t b h"]
    memory: Any


class DenseEncoder(nn.Module):
    """Layers of ReLUs on whatever shape an observation has."""

    widths: Sequence[int] = (128, 64)

    @property
    def width(self) -> int:
        """Width of the latents."""
        return self.widths[-1]

    @nn.compact
    def __call__(self, x: Float[Array, "t b *o"]) -> Float[Array, "t b d"]:
        """Return the latents."""
        x = x.reshape(*x.shape[:2], -1)
        for i, width in enumerate(self.widths):
            x = nn.relu(nn.Dense(width, name=f"layer{i}")(x))
        return x


class PixelEncoder(nn.Module):
    """Convolutions of 3 by 3 pixels on pictures (y, x, channels), then a layer."""

    channels: Sequence[int] = (16, 32)
    strides: Sequence[int] = (1, 1)
    width: int = 64

    @nn.compact
    def __call__(self, x: Float[Array, "t b y x c"]) -> Float[Array, "t b d"]:
        """Return the latents."""
        t, b = x.shape[:2]
        x = x.reshape(t * b, *x.shape[2:])
        for i, (channels, stride) in enumerate(zip(self.channels, self.strides, strict=True)):
            x = nn.relu(nn.Conv(channels, (3, 3), (stride, stride), name=f"conv{i}")(x))
        return nn.relu(nn.Dense(self.width, name="layer")(x.reshape(t, b, -1)))


class Critic(nn.Module):
    """Layers of tanh, if there are any, and the value."""

    widths: Sequence[int] = ()

    @nn.compact
    def __call__(self, x: Float[Array, "t b *o"]) -> Float[Array, "t b"]:
        """Return the values."""
        x = x.reshape(*x.shape[:2], -1)
        for i, width in enumerate(self.widths):
            make = nn.initializers.orthogonal(2**0.5)
            x = nn.tanh(nn.Dense(width, kernel_init=make, name=f"layer{i}")(x))
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), name="value")(x)[..., 0]


class Agent(nn.Module):
    """Policy and values from a memory that begins anew with each episode, and W_k on it.

    With `given_actions` the predictions know what is done meanwhile (CPC|Action, Guo et al. 2018):
    h_0 = c_t, h_k = GRU(a_(t+k-1), h_(k-1)), and W h_k predicts z_(t+k).

    With `critic_widths` the values have layers of their own and no memory: where returns are large,
    the gradients of shared ones are all for the values.
    """

    num_actions: int
    encoder: nn.Module
    memory: str = "gru"
    width: int = 64
    num_offsets: int = 8
    given_actions: bool = False
    critic_widths: Sequence[int] = ()

    def setup(self):
        """Make the parts."""
        if self.memory not in MEMORIES:
            raise UserError(
                f"there is no memory {self.memory!r}: choose one of {', '.join(MEMORIES)}"
            )
        self.cell = {"gru": GRUCell, "lstm": LSTMCell, "none": NoMemory}[self.memory](self.width)
        self.actor = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))
        self.critic = Critic(self.critic_widths)
        if self.given_actions:
            self.open_loop = GRUCell(self.width)
            self.predictor = nn.Dense(self.encoder.width, use_bias=False)
        else:
            self.predictor = LinearPredictor(self.num_offsets, self.encoder.width)

    @nn.nowrap
    def begin(self, b: int) -> Any:
        """Return the empty memory of b environments."""
        zero = jnp.zeros((b, self.width))
        return (zero, zero) if self.memory == "lstm" else zero

    def __call__(self, heard: Heard, memory: Any) -> AgentOutputs:
        """Return what the agent makes of steps that follow those which left this memory."""
        z = self.encoder(heard.observation)
        previous = jax.nn.one_hot(heard.previous, self.num_actions)
        previous = jnp.where(heard.is_first[..., None], 0.0, previous)
        memory, c = self.cell(jnp.concatenate([z, previous], -1), heard.is_first, memory)
        values = self.critic(heard.observation if self.critic_widths else c)
        if self.is_initializing():
            self.predict(c, heard.previous)
        return AgentOutputs(self.actor(c), values, z, c, memory)

    def predict(
        self, c: Float[Array, "t b h"], actions: Int[Array, "t b"]
    ) -> Float[Array, "t b k d"]:
        """Return predictions of the z that lie 1 to k steps ahead, if so `given_actions`."""
        return self.predictor(self._imagine(c, actions) if self.given_actions else c)

    def _imagine(self, c, actions):
        """h_1 .. h_k from each context, (t, b, k, h), by the actions that were done."""
        (t, b, width), k = c.shape, self.num_offsets
        done = jax.nn.one_hot(jnp.pad(actions, ((0, k), (0, 0))), self.num_actions)
        ahead = jnp.stack([done[i : i + t].reshape(t * b, -1) for i in range(k)])
        goes_on = jnp.zeros(ahead.shape[:2], bool)
        _, h = self.open_loop(ahead, goes_on, c.reshape(t * b, width))
        return jnp.moveaxis(h, 0, 1).reshape(t, b, k, width)


class GRUCell(nn.Module):
    """Gated recurrent units over (t, b, d) that forget where an episode begins."""

    width: int

    @nn.compact
    def __call__(self, x, is_first, h):
        """Return the last state and all states."""
        gates = nn.Dense(3 * self.width, name="input")(x)
        make = nn.initializers.orthogonal(column_axis=-1)
        w = self.param("recurrent", make, (self.width, 3 * self.width))
        bias = self.param("bias", nn.initializers.zeros, (self.width,))

        def step(h, now):
            x, is_first = now
            h = jnp.where(is_first[:, None], 0.0, h)
            r, u, n = jnp.split(h @ w, 3, -1)
            xr, xu, xn = jnp.split(x, 3, -1)
            u = jax.nn.sigmoid(xu + u)
            n = jnp.tanh(xn + jax.nn.sigmoid(xr + r) * (n + bias))
            h = (1 - u) * n + u * h
            return h, h

        return jax.lax.scan(step, h, (gates, is_first))


class LSTMCell(nn.Module):
    """Long short-term memory that forgets where an episode begins."""

    width: int

    @nn.compact
    def __call__(self, x, is_first, state):
        """Return the last state and all outputs."""
        gates = nn.Dense(4 * self.width, name="input")(x)
        make = nn.initializers.orthogonal(column_axis=-1)
        w = self.param("recurrent", make, (self.width, 4 * self.width))

        def step(state, now):
            x, is_first = now
            cell, hidden = (jnp.where(is_first[:, None], 0.0, part) for part in state)
            i, f, g, o = jnp.split(x + hidden @ w, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (cell, hidden), hidden

        return jax.lax.scan(step, state, (gates, is_first))


class NoMemory(nn.Module):
    """A layer of the step alone, for tasks that show their state."""

    width: int

    @nn.compact
    def __call__(self, x, is_first, state):
        """Return the state as it was, and the layer's outputs."""
        return state, nn.tanh(nn.Dense(self.width, name="input")(x))
