"""Actor-critic agents with a recurrent memory, whose encoder and memory are also trained by CPC.

Arrays are time-major, (t, b, ...). As in van den Oord et al. (2018), section 3.4, the latents are
z_t = g_enc(x_t), and the contexts c_t are the agent's memory of all latents and actions of the
episode up to t. CPC only adds the predictors W_k.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.models.contexts import compute_gates, lstm_step
from cpc.models.predictors import LinearPredictor
from cpc.types import UserError

MEMORIES = ("gru", "lstm", "none")


class AgentInput(NamedTuple):
    """The input of an agent at each step, before it acts."""

    observation: Float[Array, "t b *o"]
    previous: Int[Array, "t b"]
    """The previous action, which is ignored if `is_first`."""
    is_first: Bool[Array, "t b"]
    """Whether an episode begins at this step."""


class AgentOutputs(NamedTuple):
    """Each step's policy logits, value, latent and context, and the memory after the last step."""

    logits: Float[Array, "t b actions"]
    values: Float[Array, "t b"]
    z: Float[Array, "t b d"]
    c: Float[Array, "t b h"]
    memory: Any


class DenseEncoder(nn.Module):
    """Dense layers with ReLU on flattened observations of any shape."""

    widths: Sequence[int] = (128, 64)

    @property
    def width(self) -> int:
        """Width of the latents."""
        return self.widths[-1]

    @nn.compact
    def __call__(self, x: Float[Array, "t b *o"]) -> Float[Array, "t b d"]:
        """Return the latents of observations."""
        x = x.reshape(*x.shape[:2], -1)
        for i, width in enumerate(self.widths):
            x = nn.relu(nn.Dense(width, name=f"layer{i}")(x))
        return x


class PixelEncoder(nn.Module):
    """3x3 convolutions with ReLU on images (y, x, channels), followed by a dense layer."""

    channels: Sequence[int] = (16, 32)
    strides: Sequence[int] = (1, 1)
    width: int = 64

    @nn.compact
    def __call__(self, x: Float[Array, "t b y x c"]) -> Float[Array, "t b d"]:
        """Return the latents of images."""
        t, b = x.shape[:2]
        x = x.reshape(t * b, *x.shape[2:])
        for i, (channels, stride) in enumerate(zip(self.channels, self.strides, strict=True)):
            x = nn.relu(nn.Conv(channels, (3, 3), (stride, stride), name=f"conv{i}")(x))
        return nn.relu(nn.Dense(self.width, name="layer")(x.reshape(t, b, -1)))


class Critic(nn.Module):
    """Optional dense layers with tanh, followed by a linear layer that returns the value."""

    widths: Sequence[int] = ()

    @nn.compact
    def __call__(self, x: Float[Array, "t b *o"]) -> Float[Array, "t b"]:
        """Return one value per step."""
        x = x.reshape(*x.shape[:2], -1)
        for i, width in enumerate(self.widths):
            make = nn.initializers.orthogonal(2**0.5)
            x = nn.tanh(nn.Dense(width, kernel_init=make, name=f"layer{i}")(x))
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), name="value")(x)[..., 0]


class Agent(nn.Module):
    """A recurrent actor-critic with CPC predictors on its memory, which resets at each episode.

    If `given_actions` is true, predictions depend on the actions up to their target (CPC|Action,
    Guo et al. 2018): h_0 = c_t, h_k = GRU(a_(t+k-1), h_(k-1)), and W h_k predicts z_(t+k). If
    `critic_widths` are given, the critic has its own layers on the observation instead of the
    memory, because large returns would dominate the gradients of shared layers.
    """

    num_actions: int
    encoder: nn.Module
    memory: str = "gru"
    width: int = 64
    num_offsets: int = 8
    given_actions: bool = False
    critic_widths: Sequence[int] = ()

    def setup(self):
        """Create the submodules."""
        if self.memory not in MEMORIES:
            raise UserError(f"memory {self.memory!r} is unknown: use one of {', '.join(MEMORIES)}")
        self.cell = Memory(self.memory, self.width)
        self.actor = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))
        self.critic = Critic(self.critic_widths)
        if self.given_actions:
            self.open_loop = Memory("gru", self.width)
            self.predictor = nn.Dense(self.encoder.width, use_bias=False)
        else:
            self.predictor = LinearPredictor(self.num_offsets, self.encoder.width)

    @nn.nowrap
    def begin(self, b: int) -> Any:
        """Return the initial memory of `b` environments."""
        zero = jnp.zeros((b, self.width))
        return (zero, zero) if self.memory == "lstm" else zero

    def __call__(self, inputs: AgentInput, memory: Any) -> AgentOutputs:
        """Return the outputs for consecutive steps, starting from `memory`."""
        z = self.encoder(inputs.observation)
        previous = jax.nn.one_hot(inputs.previous, self.num_actions)
        previous = jnp.where(inputs.is_first[..., None], 0.0, previous)
        memory, c = self.cell(jnp.concatenate([z, previous], -1), inputs.is_first, memory)
        values = self.critic(inputs.observation if self.critic_widths else c)
        if self.is_initializing():
            self.predict(c, inputs.previous)
        return AgentOutputs(self.actor(c), values, z, c, memory)

    def predict(
        self, c: Float[Array, "t b h"], actions: Int[Array, "t b"]
    ) -> Float[Array, "t b k d"]:
        """Predict latents 1 to k steps ahead, also from `actions` if `given_actions` is true."""
        return self.predictor(self._imagine(c, actions) if self.given_actions else c)

    def _imagine(self, c, actions):
        """Unroll the open-loop GRU from each context over the next k actions: (t, b, k, h)."""
        (t, b, width), k = c.shape, self.num_offsets
        actions = jax.nn.one_hot(jnp.pad(actions, ((0, k), (0, 0))), self.num_actions)
        ahead = jnp.stack([actions[i : i + t].reshape(t * b, -1) for i in range(k)])
        never_first = jnp.zeros(ahead.shape[:2], bool)
        _, h = self.open_loop(ahead, never_first, c.reshape(t * b, width))
        return jnp.moveaxis(h, 0, 1).reshape(t, b, k, width)


class Memory(nn.Module):
    """A recurrent layer over (t, b, d), "gru" or "lstm", whose state resets at each episode.

    The kind "none" is a dense layer on single steps, for fully observed tasks.
    """

    kind: str
    width: int

    @nn.compact
    def __call__(self, x, is_first, state):
        """Return the last state and the outputs of all steps."""
        num_gates = {"gru": 3, "lstm": 4, "none": 1}[self.kind]
        gates = nn.Dense(num_gates * self.width, name="input")(x)
        if self.kind == "none":
            return state, nn.tanh(gates)
        make = nn.initializers.orthogonal(column_axis=-1)
        w = self.param("recurrent", make, (self.width, num_gates * self.width))
        advance = functools.partial(lstm_step, w=w)
        if self.kind == "gru":
            bias = self.param("bias", nn.initializers.zeros, (self.width,))
            advance = functools.partial(_gru_step, w=w, bias=bias)

        def step(state, now):
            x, is_first = now
            state = jax.tree.map(lambda part: jnp.where(is_first[:, None], 0.0, part), state)
            return advance(state, x)

        return jax.lax.scan(step, state, (gates, is_first))


def _gru_step(h, x, w, bias):
    _, u, n, _ = compute_gates(jnp.split(x, 3, axis=-1), h @ w, bias)
    h = (1 - u) * n + u * h
    return h, h
