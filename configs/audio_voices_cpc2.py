"""Modified CPC on the nine voices (Riviere et al. 2020): one Transformer layer per offset.

cpc train --config audio_voices_cpc2 --workdir runs/cpc2

SUPERB reports phone error rates of 41.7 to 42.5 % for the paper's model, trained on 60,000 hours.
Here, the encoder takes log-mel energies and has width 128 instead of 256, scores are cosines
instead of dot products divided by the width, and the positive is never a negative. The context has
width 256, as in the paper. CPC2 adds a second LSTM layer (model.context_layers=2) and augments the
past. Measured after 600 steps with one seed (docs/results/family.md): festvox-ru phones 64.6 %,
asterisk-en phones 60.1 %, strict bound 2.55 nats.
"""

from configs import audio_voices


def get_config():
    """Return channel norm, an LSTM, one predictor per offset, and 128 same-speaker negatives."""
    c = audio_voices.every_offset()
    c.data.one_speaker = True
    c.model.norm = "channel"
    c.model.context = "lstm"
    c.model.context_width = 256
    c.model.predictor = "transformers"
    c.negatives.shards = 1
    c.negatives.num_sampled = 128
    return c
