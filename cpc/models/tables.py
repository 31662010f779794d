"""Which modules a config may name, and which the description of an exported model."""

import functools

from cpc.models.contexts import GRU, LSTM, CausalConv, CausalTransformer
from cpc.models.cpc import CPC
from cpc.models.encoders import ConvEncoder
from cpc.models.image_cpc import ImageCPC
from cpc.models.image_encoders import SmallConvEncoder
from cpc.models.log_mel import LogMelEncoder
from cpc.models.predictors import (
    HiddenPredictor,
    LinearPredictor,
    TransformerPredictor,
    TransformersPredictor,
)
from cpc.models.quantized import QuantizedEncoder
from cpc.models.resnet import ResNet, Stage
from cpc.models.row_contexts import MaskedRowConv, RowGRU
from cpc.models.segmental import SegmentalCPC
from cpc.models.sentence_encoder import QuickThoughts, SentenceEncoder

#: Encoders of waveforms by the word that a config has for them. All take a width, and norm,
#: padding, dtype and remat by name.
AUDIO_ENCODERS = {"conv": ConvEncoder, "log_mel": LogMelEncoder}

#: Predictors by the word that a config has for them. All take the number of offsets and a width.
PREDICTORS = {
    "linear": LinearPredictor,
    "affine": functools.partial(LinearPredictor, use_bias=True),
    "hidden": HiddenPredictor,
    "transformer": TransformerPredictor,
    "transformers": TransformersPredictor,
}

#: All that the description of an exported model may name: it can call nothing else.
DESCRIBED = (
    *(CPC, *AUDIO_ENCODERS.values(), QuantizedEncoder, GRU, LSTM, CausalConv, CausalTransformer),
    *(LinearPredictor, HiddenPredictor, TransformerPredictor, TransformersPredictor),
    *(ImageCPC, SmallConvEncoder, ResNet, Stage, MaskedRowConv, RowGRU),
    *(QuickThoughts, SentenceEncoder, SegmentalCPC),
)
