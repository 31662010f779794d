"""wav2vec on the nine voices (Schneider et al. 2019): only convolutions, and a logistic loss.

cpc train --config audio_voices_wav2vec --workdir runs/wav2vec

The paper trains on 960 hours (from memory) and reports word error rates of a recogniser, which is
not part of this project. Here, the width is 128 instead of 512, norms are over one frame instead of
a whole sequence, so that c does not depend on the future, and each context layer has a residual
connection. With 10 negatives, the paper's lambda of 10 makes its loss the sum over them. Scores are
cosines over 0.1 plus a learned bias, initially the log odds of a pair. With the paper's dot
products (loss.cosine=False, negatives.temperature=1, no bias), the first gradients all lower the
scores, and latents collapse. Measured after 600 steps, one seed (docs/results/family.md): strict
bound 0.96 nats, festvox-ru phones 48.4 %, asterisk-en phones 37.6 %, speakers by frame 35.0 %.
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
    c.loss.bias = -2.3  # log(1 / 10), since one pair in eleven is positive
    c.loss.learn_bias = True
    c.negatives.temperature = 0.1
    c.negatives.rule = "own_sequence"
    c.negatives.shards = 1
    c.negatives.num_sampled = 10
    return c
