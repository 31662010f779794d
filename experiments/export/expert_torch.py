"""An exported model of cpc as an upstream of s3prl: https://github.com/s3prl/s3prl.

    import torch
    upstream = torch.hub.load("exported", "cpc_jax", source="local", trust_repo=True)
    features = upstream([waveform])["hidden_states"]

Or copy this folder to s3prl/upstream/cpc_jax/ and import its entry in s3prl/hub.py. Beside torch it
needs jax and this project, which compute on the host's device; no gradient comes back through them,
so that upstreams are frozen.
"""

import pathlib

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from cpc.data.recordings import bring_to_loudness
from cpc.models import embed_with, load_cpc_audio, load_pretrained


class UpstreamExpert(torch.nn.Module):
    """Waveforms at 16 kHz -> latents z and contexts c, a frame each `get_downsample_rates`."""

    def __init__(self, ckpt=None, model_config=None, **kwargs):
        """Take the model of the folder, or checkpoint of CPC_audio, `ckpt`; else of this one."""
        super().__init__()
        path = pathlib.Path(ckpt or pathlib.Path(__file__).parent)
        self.pretrained = load_cpc_audio(path) if path.is_file() else load_pretrained(path)
        self.stride = self.pretrained.module.encoder.stride
        self.embed = embed_with(self.pretrained)

    def get_downsample_rates(self, key):
        """Return the samples from frame to frame, the same of z and c."""
        return self.stride

    def forward(self, wavs):
        """Return z and c (b, t, width) of waveforms (s,), where t is that of the longest.

        "hidden_states" has both, for a weighted sum, or c alone where their widths differ. Frames
        beyond the end of a waveform are zeros.
        """
        sounds = [self.at_loudness(wav.detach().cpu().numpy()) for wav in wavs]
        found = self.embed(sounds, normalize=False)
        features = {}
        for name, rows in zip("zc", found, strict=True):
            padded = np.zeros((len(rows), max(map(len, rows)), rows[0].shape[1]), np.float32)
            for row, own in zip(padded, rows, strict=True):
                row[: len(own)] = own
            features[name] = torch.from_numpy(padded).to(wavs[0].device)
        alike = features["z"].shape == features["c"].shape
        features["hidden_states"] = [features[name] for name in ("zc" if alike else "c")]
        return features

    def at_loudness(self, sound):
        """Return a waveform at the root mean square that the model was trained at."""
        rms = self.pretrained.input["rms"]
        return sound if rms is None or not len(sound) else bring_to_loudness(sound, rms)
