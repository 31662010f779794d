"""Synthetic speech with known information: phones from a Markov chain, with a static speaker.

    cpc train --config audio_synthetic --workdir runs/synthetic

Used for tests and to check the tracker. The report shows the exact information next to the bound,
which should be just below it at every offset. A run takes 102 s on 2 shared CPU cores.
"""

from configs import audio


def get_config():
    """Return a small network on the synthetic waveform."""
    c = audio.get_config()
    c.num_steps = 300
    c.log_every = 25
    c.eval_every = c.save_every = 100
    c.data.source = "synthetic"
    c.data.window_samples = 5120
    c.data.batch_size = 16
    c.model.width = c.model.context_width = 64
    c.model.num_offsets = 8
    c.optim.learning_rate = 4e-3
    c.optim.warmup_steps = 20
    c.probe.hidden_width = 32
    return c
