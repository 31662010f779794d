"""Linen modules: encoders (g_enc), contexts (g_ar), predictors (W_k), and CPC of the three."""

from cpc.models.contexts import GRU, LSTM, CausalConv, CausalTransformer
from cpc.models.cpc import CPC, Model, make_model
from cpc.models.cpc_audio import load_cpc_audio
from cpc.models.critics import Baseline, GaussianConditional, JointCritic, SeparableCritic
from cpc.models.encoders import ConvEncoder
from cpc.models.image_cpc import DIRECTIONS, ImageCPC, frame_positions, from_frame, to_frame
from cpc.models.image_encoders import SmallConvEncoder
from cpc.models.layers import end_at, layer_depths
from cpc.models.load import (
    EXPORTED,
    WEIGHTS,
    Pretrained,
    embed_with,
    load,
    load_pretrained,
    module_of,
    save,
)
from cpc.models.patch_grid import check_offsets, first_clean_offset, patch_grid
from cpc.models.predictors import LinearPredictor, linear_maps
from cpc.models.resnet import ResNet, Stage, resnet_stages
from cpc.models.row_contexts import MaskedRowConv, RowGRU
from cpc.models.stream import frames_around, stream_contexts, stream_latents

__all__ = [
    "CPC",
    "DIRECTIONS",
    "EXPORTED",
    "GRU",
    "LSTM",
    "WEIGHTS",
    "Baseline",
    "CausalConv",
    "CausalTransformer",
    "ConvEncoder",
    "GaussianConditional",
    "ImageCPC",
    "JointCritic",
    "LinearPredictor",
    "MaskedRowConv",
    "Model",
    "Pretrained",
    "ResNet",
    "RowGRU",
    "SeparableCritic",
    "SmallConvEncoder",
    "Stage",
    "check_offsets",
    "embed_with",
    "end_at",
    "first_clean_offset",
    "frame_positions",
    "frames_around",
    "from_frame",
    "layer_depths",
    "linear_maps",
    "load",
    "load_cpc_audio",
    "load_pretrained",
    "make_model",
    "module_of",
    "patch_grid",
    "resnet_stages",
    "save",
    "stream_contexts",
    "stream_latents",
    "to_frame",
]
