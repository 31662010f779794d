"""Greedy InfoMax on the nine voices (Loewe et al. 2019): each layer has its own loss.

cpc train --config audio_voices_greedy --workdir runs/greedy

To train the network as a whole, add --config.model.modules=1.

The paper reports 62.5 % for phones and 99.4 % for speakers on 100 hours of LibriSpeech, against
64.9 and 99.6 % for its own CPC (from memory, second-hand). Here, all latents of two windows are
negatives instead of 10, scores are cosines, the width is 128, and each module trains on the first
128 latents of a window at its own stride. For a first look, see docs/results/family.md.
"""

from configs import audio_voices


def get_config():
    """Return the demo with the paper's encoder, and five convolutions and a context as modules."""
    c = audio_voices.every_offset()
    c.model.encoder = "conv"
    c.model.norm = "layer"
    c.model.modules = 6
    return c
