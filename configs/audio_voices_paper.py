"""The demo's recordings with the paper's network: a strided encoder of the waveform.

python -m experiments.audio --config configs/audio_voices_paper.py --workdir runs/voices_paper

The network of section 3.1 of van den Oord et al. (2018) with 128 channels instead of 512,
contrasted within parts of the batch, as on the paper's eight GPUs. Differences: scores are cosines
at temperature 0.1 (the paper: dot products), and padding, which the paper leaves open, looks ahead
as far as back. Measured on 2 CPU cores, seed 0: strict bound 2.36 nats; frame-wise linear probe
accuracy of c: festvox-ru phones 65.4 % (untrained 37.6 %), asterisk-en phones 54.1 % (29.5 %),
speakers 75.3 % (31.3 %).
"""

from typing import Any

from configs import audio_voices


def get_config() -> Any:
    """The paper's network, a quarter as wide, and its negatives."""
    c = audio_voices.every_offset()
    c.num_steps = 2500
    c.eval_every = c.save_every = 500
    c.model.encoder = "conv"
    c.model.context_width = 256
    c.negatives.temperature = 0.1  # at 0.05 (seed 0): 2.50 nats, phones 64.6 and 55.4 %
    return c
