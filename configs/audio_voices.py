"""The demo: CPC on cepstra of nine real voices, 6.3 hours, from Debian packages.

cpc train --config audio_voices --workdir runs/voices

Settings were chosen on training utterances (docs/results/audio.md). Measured on 2 CPU cores, mean
of seeds 0 to 2: strict bound 3.06 nats, averaged over offsets 5, 8, 10 and 12; frame-wise linear
probe accuracy of c: festvox-ru phones 75.5 % (MFCC with context 69.6 %, untrained 73.3 %),
asterisk-en phones 71.0 % (65.9, 69.6), speakers 95.2 % (83.8, 87.6); ABX errors of W_1 c within
speaker: festvox-ru 6.0 % (MFCC 6.0), asterisk-en 9.9 % (7.6).
"""

from configs import audio


def get_config():
    """Return the demo, which trains on cepstra of freely available recordings."""
    c = every_offset()
    c.num_steps = 1200
    c.eval_every = c.save_every = 600
    # Log-mel energies resolve the pitch, which hides phones from distances (docs/results/audio.md).
    c.model.encoder = "cepstra"
    # As good as all 12 (docs/results/audio.md), in three quarters of the time.
    c.model.num_offsets, c.model.horizon = 6, 12
    c.model.context_blocks = 4  # a quarter of the recurrent products (docs/results/audio.md)
    c.negatives.shards = 1  # negatives from only two windows make c worse for speakers
    c.optim.name = "muon"  # as good after 800 steps as Adam after 2,400 (docs/results/audio.md)
    c.optim.learning_rate = 2e-3
    c.probe.features = ("c", "W_1 c", "mfcc", "mfcc context", "random c")
    return c


def every_offset():
    """Return the base of related configs, which predicts each of the next 12 latents."""
    c = audio.get_config()
    c.num_steps = 3000
    c.log_every = 100
    c.eval_every = c.save_every = 1000
    c.data.window_samples = 20480  # 1.28 s: 128 latents
    c.model.encoder = "log_mel"  # the paper: convolutions over the waveform
    c.model.padding = "same"  # latents see 20 ms ahead; the paper leaves it open
    c.model.width = 128  # the paper: 512
    c.model.context_width = 512  # the paper: 256
    c.loss.cosine = True  # the paper: dot products
    c.negatives.temperature = 0.05
    c.negatives.shards = 4  # negatives from two windows, so steps take 0.6 to 0.75 of the time
    c.optim.learning_rate = 1e-3  # the paper: 2e-4, for 300,000 steps
    c.probe.tasks = ("phones", "speakers", "abx")
    c.probe.features = ("c", "mfcc", "mfcc context", "random c")
    return c
