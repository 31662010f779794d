"""The demo's data for 8,000 steps, with a GRU in one block and wider probes.

cpc train --config audio_voices_long --workdir runs/voices_long

Measured on 2 CPU cores, seed 0 (docs/results/audio.md): frame-wise probe accuracy of c, linear and
with one hidden layer: festvox-ru phones 75.1 and 78.1 % (MFCC 60.6 and 75.0 %, MFCC with context
69.3 and 82.2 %), asterisk-en phones 70.4 and 74.2 % (56.8 and 69.9, 65.8 and 78.5).
"""

from configs import audio_voices


def get_config():
    """Return longer training with Adam, and negatives from two windows."""
    c = audio_voices.every_offset()
    c.num_steps = 8_000
    c.model.num_offsets, c.model.horizon = 6, 12
    c.optim.warmup_steps = 200
    c.evaluate.num_windows = 256
    c.probe.features = ("c", "z", "mfcc", "mfcc context", "random c")
    c.probe.hidden_width = 128
    c.probe.num_epochs = 5
    c.probe.minutes_per_speaker = 15.0
    return c
