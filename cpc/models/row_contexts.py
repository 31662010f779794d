"""Context networks g_ar of images: latents z (b, i, j, d) to contexts c (b, i, j, h).

c_ij sees rows 1 .. i of the grid and nothing below; of these rows it sees all columns that the
network reaches. Each runs on grids of any size.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.image_encoders import convolve_images
from cpc.models.layers import Conv, Dense, LayerStack


class MaskedRowConv(LayerStack):
    """Residual masked convolutions over rows, as PixelCNN's (Henaff et al. 2019, appendix).

    A layer adds 1x1, 1x3, 2x1 (its row and the one above), 1x1 convolutions: c_ij reaches
    `num_layers` rows up and as many columns to each side.
    """

    width: int = 256
    num_layers: int = 5
    dtype: DTypeLike = jnp.float32

    @property
    def reach(self) -> int:
        """Number of rows above its own that a context depends on."""
        return self.num_layers

    @nn.compact
    def __call__(self, z: Float[Array, "b i j d"]) -> Float[Array, "b i j h"]:
        """Return the contexts; beyond the grid's edges are zeros."""
        h = Dense(self.width, dtype=self.dtype, name="input")(z)
        for n in range(self.num_layers):
            # Differs from Henaff et al.: a norm over the channels of each place comes first.
            y = nn.LayerNorm(dtype=self.dtype, name=f"norm{n}")(h)
            y = nn.relu(self._convolve(y, (1, 1), f"enter{n}"))
            y = self._convolve(y, (1, 3), f"across{n}")
            y = nn.relu(self._convolve(y, (2, 1), f"above{n}"))
            h = h + self._convolve(y, (1, 1), f"leave{n}")
        return nn.relu(h)

    def _convolve(self, y, kernel, name):
        """Convolve with zeros above alone, so that no row sees the one below, and on both sides."""
        rows, columns = kernel
        padding = ((rows - 1, 0), (columns // 2, columns // 2))
        return Conv(
            self.width,
            kernel,
            padding=padding,
            dtype=self.dtype,
            conv_general_dilated=convolve_images,
            name=name,
        )(y)


class RowGRU(LayerStack):
    """Gated recurrent units from row to row (after the Row LSTM of PixelRNN, van den Oord 2016).

        p = [h_{i-1,j-1}, h_{i-1,j}, h_{i-1,j+1}] W          x_i = 1x3 convolution of row i
        r, u = sigmoid(x + p)    n = tanh(x + r (p + b))     h_ij = n + u (h_{i-1,j} - n)

    A whole row takes one step, from a zero state. c_ij sees the triangle above it: in row i one
    column to each side, one more with every row up and every further layer.
    """

    width: int = 256
    num_layers: int = 1
    dtype: DTypeLike = jnp.float32

    #: Number of rows above its own that a context depends on: None for all.
    reach = None

    @nn.compact
    def __call__(self, z: Float[Array, "b i j d"]) -> Float[Array, "b i j h"]:
        """Return the contexts; beyond the grid's edges are zeros."""
        b, _, num_columns, _ = z.shape
        h, gates = z.astype(self.dtype), 3 * self.width
        for n in range(self.num_layers):
            x = Conv(gates, (1, 3), dtype=self.dtype, name=f"input{n}")(h)
            make = nn.initializers.lecun_normal()
            w = self.param(f"recurrent{n}", make, (gates, gates)).astype(self.dtype)
            bias = self.param(f"bias{n}", nn.initializers.zeros, (self.width,))

            def step(h, x, w=w, bias=bias):
                left = jnp.pad(h, ((0, 0), (1, 0), (0, 0)))[:, :-1]
                right = jnp.pad(h, ((0, 0), (0, 1), (0, 0)))[:, 1:]
                p_r, p_u, p_n = jnp.split(jnp.concatenate([left, h, right], -1) @ w, 3, axis=-1)
                x_r, x_u, x_n = jnp.split(x, 3, axis=-1)
                p_n = (p_n + bias).astype(p_n.dtype)  # as in `cpc.models.layers`
                new = jnp.tanh(x_n + jax.nn.sigmoid(x_r + p_r) * p_n)
                h = new + jax.nn.sigmoid(x_u + p_u) * (h - new)
                return h, h

            start = jnp.zeros((b, num_columns, self.width), self.dtype)
            h = jax.lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)
        return h
