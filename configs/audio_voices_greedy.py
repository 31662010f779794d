"""Greedy InfoMax on the nine voices (Loewe et al. 2019): each layer has a loss of its own.

python -m experiments.audio --config configs/audio_voices_greedy.py --workdir runs/greedy

The same network as a whole: the same command with --config.model.modules=1.

The paper, on 100 hours of LibriSpeech: phones 62.5 % and speakers 99.4 %, against 64.9 and 99.6 of
its own CPC (as remembered and second-hand). Differs from it: negatives are all latents of two
windows, not 10; cosines; width 128; each module learns from the first 128 latents of a window, at
its own stride. A first look: docs/family.md.
"""

from typing import Any

from configs import audio_voices


def get_config() -> Any:
    """The demo with the paper's encoder: five convolutions and the context are modules."""
    c = audio_voices.get_config()
    c.model.encoder = "conv"
    c.model.norm = "layer"
    c.model.modules = 6
    return c
