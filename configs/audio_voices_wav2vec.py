"""wav2vec on the nine voices (Schneider et al. 2019): all convolutions, a binary choice per pair.

cpc train --config audio_voices_wav2vec --workdir runs/wav2vec

The paper trains on 960 hours (from memory) and reports word error rates of a recogniser, which this
project lacks. Differences: width 128 (512); norms over one frame, not a whole sequence, so that c
does not depend on the future; a residual around every context layer. With 10 negatives, the paper's
lambda of 10 makes its loss the sum over them. Scores are cosines over 0.1 plus a learned bias,
initially the log odds of a pair: with the paper's dot products (loss.cosine=False,
negatives.temperature=1, no bias) the first gradients all lower the scores, and latents collapse.
Measured for 600 steps, one seed (docs/results/family.md): strict bound 0.96 nats, phones of
festvox-ru 48.4 %, of asterisk-en 37.6 %, speakers by frame 35.0 %.
"""

from configs import audio_voices


def get_config():
    """Return the demo with the paper's encoder, context, predictors, loss and negatives."""
    c = audio_voices.every_offset()
    c.model.encoder = "conv"
    c.model.norm = "layer"
    c.model.context = "conv_undilated"
    c.model.context_layers = 9
    c.model.predictor = "affine"
    c.loss.name = "sigmoid"
    c.loss.bias = -2.3  # log 1 / 10: one pair in eleven is a positive
    c.loss.learn_bias = True
    c.negatives.temperature = 0.1
    c.negatives.rule = "own_sequence"
    c.negatives.shards = 1
    c.negatives.num_sampled = 10
    return c
