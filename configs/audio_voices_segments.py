"""Segmental CPC on the demo's voices, with predictions of frames and of segments.

cpc train --config audio_voices_segments --workdir runs/segments

Frames predict the next frame, and segments the next segment. Bhati et al. (2021) find the phone
boundaries of TIMIT with F1 of about 85.3 % and R-value 87.4 %. Here, the encoder takes log-mel
energies instead of the waveform, negatives come from two windows instead of only the same
utterance, and segment ends receive no gradient.
Measured on 2 CPU cores, seed 0: R-values of boundaries from z are 59.5 % on festvox-ru (MFCC 61.8,
untrained 49.9, equal distances 44) and 66.8 % on asterisk-en (66.7, 62.7, 47).
"""

from configs import audio_voices


def get_config():
    """Return the demo with losses on frames and segments, and a probe for boundaries."""
    c = audio_voices.every_offset()
    c.num_steps = 1000
    c.eval_every = c.save_every = 500
    c.negatives.temperature = 0.5  # at 0.05 boundaries get worse in the course of training
    c.model.segment_threshold = 0.05
    c.model.num_offsets = 1
    c.model.context_width = 256
    c.probe.tasks = ("boundaries", "phones")
    c.probe.features = ("z", "c", "random z", "mfcc")
    return c
