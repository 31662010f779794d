"""Aligned CPC (Chorowski et al. 2021) on the demo's voices: 6 predictions of the next 12 frames.

python -m experiments.audio --config configs/audio_voices_acpc.py --workdir runs/voices_acpc

The paper, on LibriSpeech-100: phones by frame 68.6 %, ABX within speakers 5.37 %. Differs from it:
the demo's network, and not convolutions over the waveform under LSTM and Transformer; negatives of
two windows; six hours of nine voices. A step takes 1.15 times the CPU time of the demo's.
"""

from typing import Any

from configs import audio_voices


def get_config() -> Any:
    """The demo, whose predictions say what comes next and not when."""
    c = audio_voices.get_config()
    c.model.num_offsets = 6  # predictions
    c.loss.align_to = 12  # frames, 120 ms
    return c
