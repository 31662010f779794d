"""wav2vec on the nine voices (Schneider et al. 2019): all convolutions, a binary choice per pair.

python -m experiments.audio --config configs/audio_voices_wav2vec.py --workdir runs/wav2vec

The paper trains on 960 hours (from memory) and reports word error rates of a recogniser, which this
project lacks. Differences: width 128 (512); norms see one frame, not a whole sequence, so that c
knows nothing of what follows; a residual around every context layer. With 10 negatives, the paper's
lambda of 10 makes its loss the sum over them. Not measured here.
"""

from typing import Any

from configs import audio_voices


def get_config() -> Any:
    """The demo's data, with the paper's encoder, context, predictors, loss and negatives."""
    c = audio_voices.get_config()
    c.model.encoder = "conv"
    c.model.norm = "layer"
    c.model.context = "conv_undilated"
    c.model.context_layers = 9
    c.model.predictor = "affine"
    c.loss.name = "sigmoid"
    c.loss.cosine = False
    c.negatives.temperature = 1.0
    c.negatives.rule = "own_sequence"
    c.negatives.shards = 1
    c.negatives.num_sampled = 10
    return c
