"""An s3prl upstream (https://github.com/s3prl/s3prl) for a model exported by cpc.

    import torch
    upstream = torch.hub.load("exported", "cpc_jax", source="local", trust_repo=True)
    features = upstream([waveform])["hidden_states"]

Alternatively, copy this folder to s3prl/upstream/cpc_jax/ and import its entry in s3prl/hub.py. The
upstream requires torch, jax and cpc. PyTorch gets no gradients from JAX, so the upstream is frozen.
"""

import pathlib

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from cpc.data.recordings import bring_to_loudness
from cpc.models import embed_with, load_cpc_audio, load_pretrained


class UpstreamExpert(torch.nn.Module):
    """A frozen model that maps waveforms at 16 kHz to latents z and contexts c."""

    def __init__(self, ckpt=None, model_config=None, **kwargs):
        """Load `ckpt`, an exported folder or a CPC_audio checkpoint (default: this folder)."""
        super().__init__()
        path = pathlib.Path(ckpt or pathlib.Path(__file__).parent)
        self.pretrained = load_cpc_audio(path) if path.is_file() else load_pretrained(path)
        self.stride = self.pretrained.module.encoder.stride
        self.embed = embed_with(self.pretrained)

    def get_downsample_rates(self, key):
        """Return the number of samples between frames. It is equal for z and c."""
        return self.stride

    def forward(self, wavs):
        """Return zero-padded features z and c (b, t, width) of waveforms (s,).

        "hidden_states" lists z and c for a weighted sum. If their widths differ, it lists only c.
        """
        sounds = [self.adjust_loudness(wav.detach().cpu().numpy()) for wav in wavs]
        features = {}
        for name, rows in zip("zc", self.embed(sounds, normalize=False), strict=True):
            padded = np.zeros((len(rows), max(map(len, rows)), rows[0].shape[1]), np.float32)
            for row, own in zip(padded, rows, strict=True):
                row[: len(own)] = own
            features[name] = torch.from_numpy(padded).to(wavs[0].device)
        is_same_shape = features["z"].shape == features["c"].shape
        features["hidden_states"] = [features[name] for name in ("zc" if is_same_shape else "c")]
        return features

    def adjust_loudness(self, sound):
        """Scale a waveform to the training data's root mean square."""
        rms = self.pretrained.input["rms"]
        return sound if rms is None or not len(sound) else bring_to_loudness(sound, rms)
