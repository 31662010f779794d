"""Linen modules: encoders (g_enc), contexts (g_ar), predictors (W_k), and CPC of the three."""

from cpc.models.contexts import GRU, LSTM, CausalConv, CausalTransformer
from cpc.models.cpc import CPC, Model, make_model
from cpc.models.critics import Baseline, GaussianConditional, JointCritic, SeparableCritic
from cpc.models.encoders import ConvEncoder
from cpc.models.image_cpc import DIRECTIONS, ImageCPC, frame_positions, from_frame, to_frame
from cpc.models.image_encoders import SmallConvEncoder
from cpc.models.patch_grid import check_offsets, first_clean_offset, patch_grid
from cpc.models.predictors import LinearPredictor
from cpc.models.resnet import ResNet, Stage, resnet_stages
from cpc.models.row_contexts import MaskedRowConv, RowGRU

__all__ = [
    "CPC",
    "DIRECTIONS",
    "GRU",
    "LSTM",
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
    "ResNet",
    "RowGRU",
    "SeparableCritic",
    "SmallConvEncoder",
    "Stage",
    "check_offsets",
    "first_clean_offset",
    "frame_positions",
    "from_frame",
    "make_model",
    "patch_grid",
    "resnet_stages",
    "to_frame",
]
