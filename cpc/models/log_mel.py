"""Log-mel encoder g_enc: fixed spectral features of a waveform, and convolutions over them."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.mel import log_mel, mel_filters
from cpc.models.encoders import ConvEncoder
from cpc.models.geometry import ConvGeometry, NumSamples, Signals, output_lengths
from cpc.models.layers import first_layers
from cpc.types import PyTree, UserError

#: Mean and standard deviation of log energies of voices at a root mean square of 0.05.
MEAN, SCALE = -13.0, 5.0
#: Samples of the Fourier transform: narrow enough bins for each of 80 mel filters to have some.
FFT_LENGTH = 2048


class LogMelEncoder(ConvGeometry, nn.Module):
    """Convolutions over log-mel energies (after van Niekerk et al. 2020, "VQ-CPC").

    Waveform (b, s) in, latents (b, t, width) out, one each `stride` samples (160 is 10 ms at
    16 kHz). The energies of 80 mel filters in Hamming windows of 25 ms, scaled to a mean near 0 and
    a variance near 1, go through a `ConvEncoder` of stride 1: a kernel of 3 frames and four of one.

    Differs from the paper: a latent each 10 ms and not each 20 ms; causal by default; no
    pre-emphasis, which adds about a constant to each log energy, as the first bias can.
    """

    width: int = 512
    kernels: Sequence[int] = (3, 1, 1, 1, 1)
    norm: str = "none"
    padding: str = "causal"
    dtype: DTypeLike = jnp.float32
    remat: bool = False
    """Compute the convolutions again for the gradient."""
    window_samples: int = 400
    hop_samples: int = 160
    num_mels: int = 80
    sample_rate_hz: int = 16000

    def __post_init__(self):
        """Reject what no waveform could be encoded with."""
        super().__post_init__()
        if self.window_samples > FFT_LENGTH:
            raise UserError(
                f"a window of {self.window_samples} samples is longer than the Fourier transform's "
                f"{FFT_LENGTH}: choose a shorter one"
            )
        self.make_convolutions()

    @nn.nowrap
    def make_convolutions(self) -> ConvEncoder:
        """Return the convolutions that follow the energies."""
        return ConvEncoder(
            self.width,
            self.kernels,
            (1,) * len(self.kernels),
            norm=self.norm,
            padding=self.padding,
            dtype=self.dtype,
            remat=self.remat,
            channels=self.num_mels,
            parent=None,
        )

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Window and hop of the energies, then kernel and stride of each convolution."""
        return [(self.window_samples, self.hop_samples), *((kernel, 1) for kernel in self.kernels)]

    @property
    def num_layers(self) -> int:
        """Number of convolutions."""
        return len(self.kernels)

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["LogMelEncoder", PyTree]:
        """Return the encoder that ends after its first `number` layers, and its variables."""
        return self.clone(kernels=self.kernels[:number]), first_layers(variables, number)

    def __call__(
        self, x: Signals, train: bool = False, num_samples: NumSamples = None
    ) -> Float[Array, "b t d"]:
        """Return the latents of waveforms."""
        return self.through(x, train, num_samples)[-1]

    @nn.compact
    def through(
        self,
        x: Signals,
        train: bool = False,
        num_samples: NumSamples = None,
        cuts: tuple[int, ...] = (),
    ) -> list[Float[Array, "b t d"]]:
        """Return the latents after each of `cuts` convolutions, and the last, as `ConvEncoder`."""
        filled = max(0, self.shortest - x.shape[1])
        left, right = self.pads[0]
        x = jnp.pad(x, ((0, 0), (left, right + filled)))
        filters = mel_filters(self.sample_rate_hz, FFT_LENGTH, self.num_mels)
        energies = log_mel(x, np.hamming(self.window_samples), self.hop_samples, filters)
        convolutions = self.make_convolutions().clone(parent=self, name="convolutions")
        energies = (energies - MEAN) / SCALE
        if num_samples is not None:  # from here on, of energies; beyond the end they are zeros
            filled_up = jnp.maximum(num_samples, self.shortest)  # with silence, which has energies
            (number,) = output_lengths(self.layers[:1], self.pads[:1], filled_up)
            exist = jnp.arange(energies.shape[1]) < number[:, None]
            energies, num_samples = jnp.where(exist[..., None], energies, 0.0), number
        return convolutions.through(energies, train, num_samples, cuts)
