"""VQ-CPC (van Niekerk et al. 2020) on the demo's voices: each latent is one of 512 codes.

cpc train --config audio_voices_vq --workdir runs/voices_vq

The paper reports an ABX error of 13.4 % for the codes at 421 bits per second on ZeroSpeech 2019
English. As in the paper, there are 512 codes of 64 dimensions, 17 negatives from other windows of
the speaker, 12 offsets (the paper's code trains 6 of them), commitment 0.25 and learning rate 4e-4.

Differences from the paper: the encoder is the demo's, with a latent every 10 ms instead of 20; a
batch has 8 windows of one speaker instead of 8 speakers; scores are cosines over a temperature
instead of dot products; codes average over some 100 batches instead of 1,000; unused codes restart,
since a few codes would otherwise take all latents; and training takes 3,000 steps with a warm-up of
100 instead of 22,000 epochs.
"""

from configs import audio_voices


def get_config():
    """Return the demo with quantized latents, and negatives from the same speaker."""
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
