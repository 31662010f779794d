"""VQ-CPC (van Niekerk et al. 2020) on the demo's voices: each latent is one of 512 codes.

cpc train --config audio_voices_vq --workdir runs/voices_vq

The paper, on ZeroSpeech 2019 English: ABX of the codes 13.4 % at 421 bits per second. As in the
paper: 512 codes of 64 dimensions, 17 negatives from other windows of the speaker, 12 offsets (its
code trains 6 of them), commitment 0.25, learning rate 4e-4. Differences: the demo's encoder; a
latent every 10 ms, not 20; batches of one speaker with 8 windows, not 8 speakers with 8; cosines
over a temperature, not dot products; codes average over some 100 batches, not 1,000, and unused
codes restart, without which a few codes take everything; 3,000 steps with a warm-up of 100, not
22,000 epochs.
"""

from configs import audio_voices


def get_config():
    """Return the demo with codes for latents and negatives of the same speaker."""
    c = audio_voices.every_offset()
    c.data.one_speaker = True
    c.model.num_codes, c.model.code_width = 512, 64
    c.model.restart_codes = True
    c.model.context, c.model.context_width = "lstm", 256
    c.negatives.rule, c.negatives.num_sampled = "excluding_sequence", 17
    c.negatives.shards = 1
    c.optim.learning_rate = 4e-4  # as in the paper
    c.probe.tasks = ("phones", "speakers", "abx", "codes")
    c.probe.features = ("z", "c", "mfcc", "mfcc context", "random z", "random c")
    return c
