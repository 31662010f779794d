"""Aligned CPC (Chorowski et al. 2021) on the demo's voices: 6 predictions of the next 12 frames.

cpc train --config audio_voices_acpc --workdir runs/voices_acpc

The paper reports 68.6 % accuracy for frame-wise phones and a within-speaker ABX error of 5.37 % on
LibriSpeech-100. Here, the network is the demo's instead of waveform convolutions below LSTM and
Transformer, negatives come from two windows, and the data are six hours of nine voices. A step
takes 1.15 times as long as with 12 offsets.
"""

from configs import audio_voices


def get_config():
    """Return the demo with predictions aligned to the frames ahead."""
    c = audio_voices.every_offset()
    c.model.num_offsets = 6  # predictions
    c.loss.align_to = 12  # frames, 120 ms
    return c
