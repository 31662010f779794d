"""Every key of a config's model section reaches the module: a shape, a dtype, an operation.

Nothing is computed: shapes and programs alone are looked at.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_voices_paper, image_fashion_mnist
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData, Phones
from experiments.kinds.image import kind as image
from experiments.kinds.image.prepare import prepare
from experiments.kinds.registry import CONTRASTIVE
from experiments.training.contrastive import interpret


class Look:
    """Shapes of a config's model, and the program of its gradient."""

    def __init__(self, kind, **keys):
        self.config = {"audio": audio_voices_paper, "image": image_fashion_mnist}[kind].get_config()
        self.config.model.width = self.config.model.context_width = 32
        self.config.model.update(keys)
        if kind == "audio":
            self.model = audio.build_model(self.config)
            shape = (2, self.config.data.window_samples)
        else:
            self.model = image.build_model(self.config)
            pixels = {"x": jax.ShapeDtypeStruct((2, 28, 28, 1), jnp.uint8)}
            prepared = functools.partial(prepare, self.config, train=False)
            shape = jax.eval_shape(prepared, pixels, jax.random.key(0))["x"].shape
        self.x = jax.ShapeDtypeStruct(shape, jnp.float32)
        self.module = self.model.module
        variables = jax.eval_shape(self.model.init, jax.random.key(0), {"x": self.x})
        self.variables, self.params = variables, variables["params"]
        self.outputs = jax.eval_shape(self._apply, variables, self.x)

    def _apply(self, variables, x):
        return self.model.apply(variables, {"x": x}, True, jax.random.key(0))[0]

    @functools.cached_property
    def gradient(self):
        """The program of a training step's gradient, as text."""

        def energy(params, x):
            outputs = self._apply({**self.variables_of_zeros, "params": params}, x)
            return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(outputs))

        return str(jax.make_jaxpr(jax.grad(energy))(self.params, self.x))

    @property
    def variables_of_zeros(self):
        return {
            name: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)
            for name, tree in self.variables.items()
            if name != "params"
        }

    @property
    def first(self):
        """Of the audio model's outputs, or of the first direction's."""
        return self.outputs if hasattr(self.outputs, "z") else self.outputs[0]

    @property
    def norms(self):
        """Shapes of the encoder's norms."""
        found = jax.tree_util.tree_leaves_with_path(self.params["encoder"])
        paths = ["/".join(str(part.key) for part in path) for path, _ in found]
        return [path for path in paths if "norm" in path]


def computes_in_bfloat16(look):
    """Outputs and the products; parameters do not."""
    assert {leaf.dtype for leaf in jax.tree.leaves(look.params)} == {jnp.dtype("float32")}
    if not look.first.z.dtype == look.first.c.dtype == jnp.bfloat16:
        return False
    lines = [line for line in look.gradient.splitlines() if "dot_gen" in line or "conv_gen" in line]
    assert lines
    return all("bf16" in line.split("=")[0] for line in lines)


CODES = {"num_codes": 32}
#: Key -> (value, what is so of the model with it, and is not without).
AUDIO = {
    "encoder": ("log_mel", lambda look: " fft[" in look.gradient),
    "width": (64, lambda look: look.first.z.shape[-1] == look.first.predictions.shape[-1] == 64),
    "norm": ("layer", lambda look: len(look.norms) == 10),
    "padding": ("valid", lambda look: look.first.z.shape[1] == 126),
    "num_codes": (
        32,
        lambda look: (
            look.variables.get("codebook", {}) != {}
            and look.variables["codebook"]["encoder"]["sums"].shape == (32, 64)
        ),
    ),
    "code_width": (16, lambda look: look.first.predictions.shape[-1] == 16, CODES),
    "code_decay": (0.5, lambda look: look.module.encoder.decay == 0.5, CODES),
    "commitment": (0.5, lambda look: look.module.encoder.commitment == 0.5, CODES),
    "restart_codes": (True, lambda look: look.module.encoder.restart, CODES),
    "context": ("transformer", lambda look: "attention0" in look.params["context"]),
    "context_width": (64, lambda look: look.first.c.shape[-1] == 64),
    "context_layers": (2, lambda look: "recurrent1" in look.params["context"]),
    "context_blocks": (4, lambda look: look.params["context"]["recurrent0"].shape == (4, 8, 24)),
    "predictor": ("hidden", lambda look: "hidden" in look.params["predictor"]),
    "directions": (("forward", "backward"), lambda look: "context_backward" in look.params),
    "modules": (3, lambda look: {"predictor_of_1", "predictor_of_2"} < {*look.params}),
    "num_offsets": (3, lambda look: look.first.predictions.shape[2] == 3),
    "horizon": (
        34,
        lambda look: audio.choose_offsets(look.config) == tuple(range(1, 35, 3)),
    ),
    "segment_threshold": (
        0.3,
        lambda look: len(look.outputs) == 2 and look.outputs[1].z.shape[1] == 65,
        {"num_offsets": 1},
    ),
    "segment_offsets": (
        2,
        lambda look: (
            [one.predictions.shape[2] for one in look.outputs] == [12, 2]
            and "frame_context" in look.params
        ),
        {"segment_threshold": 0.3},
    ),
    "remat": (True, lambda look: "checkpoint" in look.gradient or "remat" in look.gradient),
    "dtype": ("bfloat16", computes_in_bfloat16),
}
RESNET = {"encoder": "resnet18"}
IMAGE = {
    "patch": (6, lambda look: look.x.shape[3:5] == (6, 6)),
    "stride": (5, lambda look: look.x.shape[1:3] == (5, 5)),
    "encoder": ("resnet18", lambda look: "stage3_block1" in look.params["encoder"]),
    "stages": (2, lambda look: "stage3_block1" not in look.params["encoder"], RESNET),
    "pooled_stem": (True, lambda look: look.params["encoder"]["stem"]["kernel"].shape[0] == 7,
                    RESNET),
    "width": (64, lambda look: look.params["encoder"]["conv2"]["kernel"].shape[-1] == 64),
    "norm": ("layer", lambda look: len(look.norms) == 6),
    "context": ("gru", lambda look: "recurrent0" in look.params["contexts_down"]),
    "context_width": (64, lambda look: look.first.c.shape[-1] == 64),
    "context_layers": (2, lambda look: "enter2" not in look.params["contexts_down"]),
    "directions": (("right",), lambda look: {*look.params} == {
        "encoder", "contexts_right", "predictors_right"}),
    "modules": (2, lambda look: "predictor_of_1_up" in look.params),
    "first_offset": (1, lambda look: image.choose_offsets(look.config) == (1, 2, 3)),
    "num_offsets": (1, lambda look: look.first.predictions.shape[3] == 1),
    "target_width": (16, lambda look: look.first.z.shape[-1] == 16),
    "remat": (True, lambda look: "checkpoint" in look.gradient or "remat" in look.gradient,
              RESNET | {"stages": 1}),
    "dtype": ("bfloat16", computes_in_bfloat16),
}  # fmt: skip
TABLES = {"audio": AUDIO, "image": IMAGE}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "key"), [(k, key) for k, keys in TABLES.items() for key in keys])
def test_a_key_changes_what_it_names(kind, key):
    value, holds, *beside = TABLES[kind][key]
    assert holds(Look(kind, **dict(*beside), **{key: value}))
    assert not holds(Look(kind, **dict(*beside)))


@pytest.mark.parametrize(("key", "word", "holds"), [
    ("predictor", "affine", lambda p: "bias" in p["predictor"]["W"]),
    ("predictor", "transformers", lambda p: {
        leaf.shape[0] for leaf in jax.tree.leaves(p["predictor"])} == {12}),
    ("context", "conv_undilated", lambda p: "conv0" in p["context"]),
    ("context", "lstm", lambda p: p["context"]["recurrent0"].shape == (32, 128)),
])  # fmt: skip
def test_words_of_a_model(key, word, holds):
    assert holds(Look("audio", **{key: word}).params)
    assert not holds(Look("audio").params)


def test_convolutions_of_a_config_are_dilated_or_not():
    contexts = (Look("audio", context=word).model.module.context for word in (
        "conv", "conv_undilated"))  # fmt: skip
    assert [context.dilated for context in contexts] == [True, False]


@pytest.mark.parametrize(("kind", "config"), [
    ("audio", audio_voices_paper), ("image", image_fashion_mnist)
])  # fmt: skip
def test_every_key_is_in_the_table(kind, config):
    assert set(config.get_config().model) == set(TABLES[kind])


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layer", "channel", "batch", "group"])
@pytest.mark.parametrize("encoder", ["conv", "log_mel"])
def test_every_norm_of_audio_is_its_own(encoder, norm):
    look = Look("audio", encoder=encoder, norm=norm)
    assert len(look.norms) == 10
    assert ("batch_stats" in look.variables) == (norm == "batch")
    programs = {n: Look("audio", encoder=encoder, norm=n).gradient for n in ("layer", norm)}
    # 32 channels are one group: the same program as a layer norm.
    assert (programs[norm] == programs["layer"]) == (norm in ("layer", "group"))


@pytest.mark.parametrize("padding", ["causal", "same", "valid"])
@pytest.mark.parametrize("encoder", ["conv", "log_mel"])
def test_every_padding_of_audio_has_the_latents_that_the_loss_counts_with(encoder, padding):
    look = Look("audio", encoder=encoder, padding=padding)
    assert look.module.encoder.padding == padding
    assert look.first.z.shape[1] == audio.num_latents(look.config)


@pytest.mark.parametrize("padding", ["causal", "valid"])
def test_an_audit_has_a_label_for_each_latent(padding):
    look = Look("audio", padding=padding)
    labels = {"u": np.arange(300, dtype=np.int32)}
    sound = AudioData(SimpleNamespace(names=("u",)), None, {"toy": Phones(labels, ("a",) * 300)})
    batch = {"utterance": np.array([0, 0]), "start": np.array([160, 400]), "speaker": np.zeros(2)}
    found = audio.label_latents(look.config, sound, batch)["phone"]
    assert found.shape == look.first.z.shape[:2]
    assert found[:, 0].tolist() == [1, 3]  # 400 samples are 2.5 labels


@pytest.mark.parametrize(("keys", "words"), [
    ({"model.horizon": 11}, "below model.num_offsets"),
    ({"model.horizon": 12, "loss.align_to": 12}, "loss.align_to 12: both say"),
    ({"model.horizon": 2, "model.num_offsets": 1, "model.segment_threshold": 0.3}, "of frames"),
])  # fmt: skip
def test_a_horizon_that_cannot_be_is_one_sentence(keys, words):
    config = with_settings(audio_voices_paper.get_config(), keys)
    with pytest.raises(UserError, match=words):
        interpret(CONTRASTIVE["audio"], config)


@pytest.mark.parametrize(("keys", "words"), [
    ({"model.context_blocks": 3}, "3 blocks needs a width"),
    ({"model.context_blocks": 2, "model.context": "lstm"}, "only a gru has blocks"),
])  # fmt: skip
def test_blocks_that_cannot_be_are_one_sentence(keys, words):
    config = with_settings(audio_voices_paper.get_config(), keys)
    with pytest.raises(UserError, match=words):
        interpret(CONTRASTIVE["audio"], config)


def test_a_single_prediction_is_of_the_horizon():
    config = with_settings(audio_voices_paper.get_config(), {"model.num_offsets": 1})
    assert audio.choose_offsets(with_settings(config, {"model.horizon": 9})) == (9,)


@pytest.mark.parametrize(("key", "value"), [
    ("encoder", "mel"), ("context", "rnn"), ("dtype", "float16"), ("norm", "no"), ("padding", "no"),
    ("directions", ("down",)), ("directions", ("backward",)), ("modules", 7),
])  # fmt: skip
def test_a_word_that_means_nothing_is_refused(key, value):
    config = audio_voices_paper.get_config()
    config.model[key] = value
    with pytest.raises(UserError, match=str(value if isinstance(value, str | int) else value[0])):
        interpret(CONTRASTIVE["audio"], config)
