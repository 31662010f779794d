"""The demo's recordings with the paper's network, which has a strided encoder of the waveform.

cpc train --config audio_voices_paper --workdir runs/voices_paper

This is the network of section 3.1 in van den Oord et al. (2018), with 128 channels instead of 512
and negatives from shards of the batch, as on the paper's eight GPUs. Here, scores are cosines at
temperature 0.05 instead of dot products, and padding, which the paper leaves open, is symmetric.
Frame-wise linear probe accuracy of c, measured on 2 CPU cores, mean of seeds 0 to 2: festvox-ru
phones 67.7 % (untrained 37.8 %), asterisk-en phones 58.0 % (29.8 %), speakers 84.5 % (30.5 %).
"""

from configs import audio_voices


def get_config():
    """Return the paper's network and negatives, with a quarter of the width."""
    c = audio_voices.every_offset()
    c.num_steps = 5500
    c.model.encoder = "conv"
    c.model.context_width = 256
    return c
