"""The demo's data and network for nearly three times as many steps, with wider probes.

python -m experiments.audio --config configs/audio_voices_long.py --workdir runs/voices_long

Not run since the demo switched to log-mel energies. With the demo's earlier waveform encoder and
dot products, training took 46 minutes on 2 busy CPU cores and gave a strict bound of 3.80 nats (N =
256) and festvox-ru phones of 66.6 % (linear on c; MFCC 60.6 %), 71.0 % with one hidden layer (MFCC
75.1 %).
"""

from typing import Any

from configs import audio_voices


def get_config() -> Any:
    """The demo, longer."""
    c = audio_voices.get_config()
    c.num_steps = 8_000
    c.optim.warmup_steps = 200
    c.evaluate.num_windows = 256
    c.probe.features = ("c", "z", "mfcc", "mfcc context", "random c")
    c.probe.hidden_width = 128
    c.probe.num_epochs = 5
    c.probe.minutes_per_speaker = 15.0
    return c
