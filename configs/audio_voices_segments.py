"""Segmental CPC on the demo's voices: frames and the segments that they fall into.

python -m experiments.audio --config configs/audio_voices_segments.py --workdir runs/segments

Both predict the next one. Bhati et al. (2021) find the phone boundaries of TIMIT with F1 of about
85.3 % and R-value 87.4 %. It departs in the encoder, of log-mel energies for the waveform, and in
the negatives, from two windows for the own utterance alone.
"""

from typing import Any

from configs import audio_voices


def get_config() -> Any:
    """Two levels for one, and boundaries among the questions."""
    c = audio_voices.get_config()
    c.model.segment_threshold = 0.05
    c.model.num_offsets = 1
    c.model.context_width = 256
    c.probe.tasks = ("boundaries", "phones")
    c.probe.features = ("z", "c", "random z", "mfcc")
    return c
