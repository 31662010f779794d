"""Linen modules: encoders (g_enc), contexts (g_ar), predictors (W_k), and CPC of the three."""

from cpc.models.contexts import GRU, LSTM, CausalConv, CausalTransformer
from cpc.models.cpc import CPC, Model, make_model
from cpc.models.cpc_audio import load_cpc_audio
from cpc.models.critics import Baseline, GaussianConditional, JointCritic, SeparableCritic
from cpc.models.embedder import Embedder, embed_with, load
from cpc.models.encoders import ConvEncoder
from cpc.models.features import Layers, group_signals, pad_rows
from cpc.models.image_cpc import DIRECTIONS, ImageCPC, frame_positions, from_frame, to_frame
from cpc.models.image_encoders import SmallConvEncoder
from cpc.models.layers import end_at, layer_depths, part_of
from cpc.models.load import EXPORTED, WEIGHTS, Pretrained, load_pretrained, save
from cpc.models.log_mel import LogMelEncoder
from cpc.models.patch_grid import check_offsets, first_clean_offset, patch_grid
from cpc.models.predictors import (
    HiddenPredictor,
    LinearPredictor,
    TransformerPredictor,
    TransformersPredictor,
)
from cpc.models.quantized import QuantizedEncoder
from cpc.models.resnet import ResNet, Stage, resnet_stages
from cpc.models.row_contexts import MaskedRowConv, RowGRU
from cpc.models.segmental import SegmentalCPC, boundaries, segment_bounds, segment_means
from cpc.models.sentence_encoder import QuickThoughts, SentenceEncoder
from cpc.models.stream import stream_contexts, stream_latents
from cpc.models.tables import AUDIO_ENCODERS, DESCRIBED, PREDICTORS
from cpc.models.time_frames import TIME_DIRECTIONS, module_ends, reverse_time

__all__ = [
    "AUDIO_ENCODERS",
    "CPC",
    "DESCRIBED",
    "DIRECTIONS",
    "EXPORTED",
    "GRU",
    "LSTM",
    "PREDICTORS",
    "TIME_DIRECTIONS",
    "WEIGHTS",
    "Baseline",
    "CausalConv",
    "CausalTransformer",
    "ConvEncoder",
    "Embedder",
    "GaussianConditional",
    "HiddenPredictor",
    "ImageCPC",
    "JointCritic",
    "Layers",
    "LinearPredictor",
    "LogMelEncoder",
    "MaskedRowConv",
    "Model",
    "Pretrained",
    "QuantizedEncoder",
    "QuickThoughts",
    "ResNet",
    "RowGRU",
    "SegmentalCPC",
    "SentenceEncoder",
    "SeparableCritic",
    "SmallConvEncoder",
    "Stage",
    "TransformerPredictor",
    "TransformersPredictor",
    "boundaries",
    "check_offsets",
    "embed_with",
    "end_at",
    "first_clean_offset",
    "frame_positions",
    "from_frame",
    "group_signals",
    "layer_depths",
    "load",
    "load_cpc_audio",
    "load_pretrained",
    "make_model",
    "module_ends",
    "pad_rows",
    "part_of",
    "patch_grid",
    "resnet_stages",
    "reverse_time",
    "save",
    "segment_bounds",
    "segment_means",
    "stream_contexts",
    "stream_latents",
    "to_frame",
]
