"""Linen modules: encoders (g_enc), contexts (g_ar), predictors (W_k), and CPC of the three."""

from cpc.models.contexts import GRU, LSTM, CausalConv, CausalTransformer
from cpc.models.cpc import CPC, Model, make_model
from cpc.models.encoders import ConvEncoder
from cpc.models.predictors import LinearPredictor

__all__ = [
    "CPC",
    "GRU",
    "LSTM",
    "CausalConv",
    "CausalTransformer",
    "ConvEncoder",
    "LinearPredictor",
    "Model",
    "make_model",
]
