"""Every key of a config's model section reaches the module: the fields that it changes, exactly.

Nothing is computed or traced: what modules make of their fields is tested where they are.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_voices_paper, image_fashion_mnist, series, text
from cpc.models import resnet_stages
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData, Phones
from experiments.kinds.registry import CONTRASTIVE
from experiments.training.contrastive import interpret
from tests.plans import fields, plan_of

CONFIGS = {
    "audio": audio_voices_paper,
    "image": image_fashion_mnist,
    "series": series,
    "text": text,
}
HALF = {f"{part}.dtype": jnp.dtype("bfloat16") for part in ("encoder", "context", "predictor")}
CODES, RESNET, SEGMENTS = {"num_codes": 32}, {"encoder": "resnet18"}, {"segment_threshold": 0.3}
#: Of sequences: key -> (value, the fields that it changes, other keys that are set).
SEQUENCES = {
    "width": (8, {"encoder.width": 8, "predictor.width": 8}),
    "context_width": (8, {"context.width": 8}),
    "context_layers": (2, {"context.num_layers": 2}),
    "num_offsets": (1, {"predictor.num_offsets": 1}),
    "dtype": ("bfloat16", HALF),
    "context": ("lstm", {"context": "LSTM"}),
}
SIGNALS = SEQUENCES | {
    "norm": ("layer", {"encoder.norm": "layer"}),
    "padding": ("valid", {"encoder.padding": "valid"}),
    "remat": (True, {"encoder.remat": True}),
}
TABLES = {
    "audio": SIGNALS | {
        "encoder": ("log_mel", {"encoder": "LogMelEncoder"}),
        "num_codes": (32, {"encoder": "QuantizedEncoder", "encoder.num_codes": 32}),
        "code_width": (16, {"encoder.width": 16, "predictor.width": 16}, CODES),
        "code_decay": (0.5, {"encoder.decay": 0.5}, CODES),
        "commitment": (0.5, {"encoder.commitment": 0.5}, CODES),
        "restart_codes": (True, {"encoder.restart": True}, CODES),
        "context_blocks": (4, {"context.blocks": 4}),
        "predictor": ("hidden", {"predictor": "HiddenPredictor"}),
        "directions": (("forward", "backward"), {"directions": ("forward", "backward")}),
        "modules": (3, {"cuts": (2, 4)}),
        "segment_threshold": (0.3, {"": "SegmentalCPC", "threshold": 0.3}, {"num_offsets": 1}),
        "segment_offsets": (2, {"predictor.num_offsets": 2, "frame_predictor": "LinearPredictor",
                                "frame_predictor.num_offsets": 12, "frame_context": "GRU"},
                            SEGMENTS),
    },
    "image": {
        "encoder": ("resnet18", {"encoder": "ResNet", "make_predictor.1": 512}),
        "stages": (2, {"encoder.stages": resnet_stages(18, 2), "make_predictor.1": 128}, RESNET),
        "pooled_stem": (True, {"encoder.pooled_stem": True}, RESNET),
        "width": (64, {"encoder.widths": (16, 32, 64), "make_predictor.1": 64}),
        "norm": ("layer", {"encoder.norm": "layer"}),
        "context": ("gru", {"make_context": "RowGRU"}),
        "context_width": (64, {"make_context.0": 64}),
        "context_layers": (2, {"make_context.1": 2}),
        "directions": (("right",), {"directions": ("right",)}),
        "modules": (2, {"cuts": (2,)}),
        "num_offsets": (1, {"make_predictor.0": 1}),
        "target_width": (16, {"make_predictor.1": 16, "target_width": 16}),
        "remat": (True, {"encoder.remat": True}, RESNET),
        "dtype": ("bfloat16", {name: jnp.dtype("bfloat16") for name in (
            "encoder.dtype", "make_context.dtype", "make_predictor.dtype", "dtype")}),
    },
    "series": SIGNALS | {
        "kernels": ((2,), {"encoder.kernels": (2,)}),
        "strides": ((2,), {"encoder.strides": (2,)}, {"kernels": (2,)}),
    },
    "text": SEQUENCES | {
        "name": ("quick_thoughts", {"": "QuickThoughts", "context": "SentenceEncoder"}),
        "embedding_width": (3, {"encoder.embedding_width": 3}),
        "kernel": (2, {"encoder.kernel": 2}),
    },
}  # fmt: skip
#: Keys that say what of the input is seen or predicted: (value, what describes it, with the value).
OTHERS = {
    ("audio", "horizon"): (34, tuple(range(1, 35, 3))),
    ("image", "first_offset"): (1, (1, 2, 3)),
    ("image", "patch"): (6, [6, 6, 6, 6, 1]),
    ("image", "stride"): (5, [5, 5, 8, 8, 1]),
}


def config_of(kind, keys):
    settings = {f"model.{name}": value for name, value in keys.items()}
    return with_settings(CONFIGS[kind].get_config(), settings)


def fields_of(kind, keys):
    return fields(CONTRASTIVE[kind].build_model(config_of(kind, keys)).module)


@pytest.mark.parametrize(("kind", "key"), [(k, key) for k, keys in TABLES.items() for key in keys])
def test_a_key_changes_the_fields_that_it_names(kind, key):
    value, expected, *beside = TABLES[kind][key]
    before, after = fields_of(kind, dict(*beside)), fields_of(kind, {**dict(*beside), key: value})
    assert all(before.get(name) != value and after[name] == value
               for name, value in expected.items())  # fmt: skip
    is_same_class = not any(isinstance(after[name], str) and after[name][:1].isupper()
                            for name in expected)  # fmt: skip
    if is_same_class:
        assert {name for name in before if before[name] != after.get(name)} == {*expected}


@pytest.mark.parametrize(("kind", "key"), OTHERS)
def test_a_key_changes_what_is_seen_or_predicted(kind, key):
    def look(keys):
        config = config_of(kind, keys)
        if key in ("patch", "stride"):
            return CONTRASTIVE[kind].describe_input(config)["shape"]
        return plan_of(config).geometry.branches[0].offsets

    value, expected = OTHERS[kind, key]
    assert look({}) != expected
    assert look({key: value}) == expected


@pytest.mark.parametrize(("key", "word", "changed"), [
    ("predictor", "affine", {"predictor.use_bias": True}),
    ("predictor", "transformers", {"predictor": "TransformersPredictor"}),
    ("context", "conv", {"context": "CausalConv", "context.dilated": True}),
    ("context", "conv_undilated", {"context": "CausalConv", "context.dilated": False}),
    ("context", "transformer", {"context": "CausalTransformer"}),
])  # fmt: skip
def test_words_of_a_model(key, word, changed):
    assert changed.items() <= fields_of("audio", {key: word}).items()


@pytest.mark.parametrize("padding", ["causal", "same", "valid"])
@pytest.mark.parametrize("encoder", ["conv", "log_mel"])
def test_every_padding_of_audio_has_the_latents_that_the_loss_counts_with(encoder, padding):
    config = config_of("audio", {"encoder": encoder, "padding": padding, "width": 32})
    model = audio.build_model(config)
    x = jax.ShapeDtypeStruct((2, config.data.window_samples), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), {"x": x})
    z, _ = jax.eval_shape(model.embed, variables, x)
    assert z.shape[1] == audio.num_latents(config)


@pytest.mark.parametrize("padding", ["causal", "valid"])
def test_an_audit_has_a_label_for_each_latent(padding):
    config = config_of("audio", {"padding": padding})
    labels = {"u": np.arange(300, dtype=np.int32)}
    sound = AudioData(SimpleNamespace(names=("u",)), None, {"toy": Phones(labels, ("a",) * 300)})
    batch = {"utterance": np.array([0, 0]), "start": np.array([160, 400]), "speaker": np.zeros(2)}
    found = audio.label_latents(config, sound, batch)["phone"]
    assert found.shape == (2, audio.num_latents(config))
    assert found[:, 0].tolist() == [1, 3]  # 400 samples are 2.5 labels


@pytest.mark.parametrize(("keys", "words"), [
    ({"model.horizon": 11}, "model.horizon is 11 and model.num_offsets is 12"),
    ({"model.horizon": 12, "loss.align_to": 12}, "loss.align_to is 12: both say"),
    ({"model.horizon": 2, "model.num_offsets": 1, "model.segment_threshold": 0.3}, "of frames"),
    ({"model.context_blocks": 3}, "3 blocks needs a width"),
    ({"model.context_blocks": 2, "model.context": "lstm"}, "only a gru has blocks"),
    *(({f"model.{key}": value}, str(value if isinstance(value, str | int) else value[0]))
      for key, value in (
        ("encoder", "mel"), ("context", "rnn"), ("dtype", "float16"), ("norm", "no"),
        ("padding", "no"), ("directions", ("down",)), ("directions", ("backward",)),
        ("modules", 7),
    )),
])  # fmt: skip
def test_a_model_that_cannot_be_is_one_sentence(keys, words):
    with pytest.raises(UserError, match=words):
        interpret(CONTRASTIVE["audio"], with_settings(audio_voices_paper.get_config(), keys))


def test_a_single_prediction_is_of_the_horizon():
    assert audio.choose_offsets(config_of("audio", {"num_offsets": 1, "horizon": 9})) == (9,)
