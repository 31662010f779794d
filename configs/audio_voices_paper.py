"""The demo's recordings by the paper's own recipe: a strided encoder of the waveform, causal.

python -m experiments.audio --config configs/audio_voices_paper.py --workdir runs/voices_paper

The network of section 3.1 of van den Oord et al. (2018) with 128 channels for 512, contrasted with
all latents of the batch. Its one departure: scores are cosines at temperature 0.1 (the paper: dot
products), which `python -m experiments.reproduce --table open` found to be worth most. Not run yet
with them; with dot products: phones of festvox-ru 55.8 %, of asterisk-en 48.4 %, speakers 91.1 %.
"""

from typing import Any

from configs import audio_voices


def get_config() -> Any:
    """The paper's network, a quarter as wide, and its negatives."""
    c = audio_voices.get_config()
    c.num_steps, c.log_every = 1200, 50
    c.eval_every = c.save_every = 400
    c.model.encoder, c.model.padding = "conv", "causal"
    c.model.context_width = 256
    c.negatives.shards = 1
    c.optim.learning_rate = 2e-3
    return c
