"""Aligned CPC (Chorowski et al. 2021) on the demo's voices: 6 predictions of the next 12 frames.

cpc train --config audio_voices_acpc --workdir runs/voices_acpc

The paper, on LibriSpeech-100: frame-wise phones 68.6 %, within-speaker ABX 5.37 %. Differences: the
demo's network instead of waveform convolutions below LSTM and Transformer; negatives from two
windows; six hours of nine voices. A step takes 1.15 times that of 12 offsets.
"""

from configs import audio_voices


def get_config():
    """Return the demo with predictions aligned to the frames ahead."""
    c = audio_voices.every_offset()
    c.model.num_offsets = 6  # predictions
    c.loss.align_to = 12  # frames, 120 ms
    return c
