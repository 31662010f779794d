"""Every key of a config changes the plan, module, value or call that it names.

Nothing is trained or compiled. A key fails that has no case, or whose case shows no change. Keys of
data without a case are set in the tests of their kind.
"""

import contextlib
import functools
import importlib
import importlib.util
import json
import operator
import pathlib
import types
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs
from configs import audio_synthetic, audio_voices_paper, image_fashion_mnist
from cpc import data, losses, negatives, rl
from cpc.data import augment
from cpc.files import flatten
from cpc.losses import OffsetSums
from cpc.models import resnet_stages
from cpc.models.description import build, describe
from cpc.rl.outside import OUTSIDE
from cpc.train import make_mesh
from cpc.types import CPCOutputs, Position, UserError
from experiments.command.config import with_settings
from experiments.kinds import audio, image, series, text
from experiments.kinds.audio.data import AudioData, Phones
from experiments.kinds.registry import CONTRASTIVE
from experiments.kinds.rl import run as rl_run
from experiments.kinds.rl import step as rl_step
from experiments.sweep.cells import Cell
from experiments.sweep.jobs import check_cell
from experiments.train import run as run_config
from experiments.training import objective, weights
from experiments.training import probes as training_probes
from experiments.training import step as training
from experiments.training.contrastive import interpret, make_probe
from experiments.training.objective import BranchOutputs, init_objective, objective_loss
from experiments.training.records import probes_due
from tests import services
from tests.experiments import test_text
from tests.experiments.test_clips import noise
from tests.plans import meaning, plan_of, plan_of_offsets, problem_of, speech

CONFIGS = {kind: importlib.import_module(f"configs.{kind}") for kind in (*CONTRASTIVE, "rl")}
#: Settings of small configs.
SMALL = {
    "series": {
        "data.num_files": 10, "data.window_steps": 8, "data.batch_size": 4, "model.width": 4,
        "model.context_width": 4, "model.num_offsets": 2, "num_steps": 100,
        "optim.warmup_steps": 10, "eval_every": 10, "save_every": 10},
    "text": test_text.TINY | {
        "data.num_documents": 20, "model.num_offsets": 2, "probe.features": ("z",)},
    "audio": {
        "data.source": "folder", "data.path": "clips", "data.window_samples": 1600,
        "data.batch_size": 4, "evaluate.num_windows": 0},
    "image": {
        "data.source": "folder", "data.path": "images", "data.size": 20, "data.channels": 3,
        "data.batch_size": 4, "augment.crop": 16, "model.patch": 8, "model.stride": 8,
        "model.num_offsets": 1, "probe.fractions": (0.5, 1.0), "probe.num_neighbours": 2,
        "probe.regions": 2},
    "rl": {
        "num_env_steps": 960, "environment.num": 4, "environment.stagger": 3,
        "model.widths": (6, 5), "model.channels": (2,), "model.strides": (1,),
        "model.memory_width": 4, "model.width": 5, "policy.unroll": 12, "cpc.num_offsets": 3},
}  # fmt: skip
CHANGES = object()
#: A folder that is never written.
FOLDER = pathlib.Path("nowhere")


class Case(NamedTuple):
    value: Any
    effect: Any
    """effect(config) -> the value that the key changes."""
    want: Any = CHANGES
    """The effect with the value; by default any change."""
    others: Any = types.MappingProxyType({})
    """Keys that are set in both configs."""


def same(a, b):
    (a, form), (b, other) = jax.tree.flatten(a), jax.tree.flatten(b)
    return form == other and all(map(np.array_equal, a, b))


@contextlib.contextmanager
def calls(module, **answers):
    """Replace functions of a module by mocks with these results or side effects."""
    mocks = {
        name: mock.Mock(side_effect=answer) if callable(answer) else mock.Mock(return_value=answer)
        for name, answer in answers.items()
    }
    with mock.patch.multiple(module, **mocks):
        yield mocks


def wrapped(module, *names):
    """Replace functions of a module by mocks that call them."""
    return calls(module, **{name: getattr(module, name) for name in names})


def load(config):
    """Load data; sounds, images and snippets are made in memory."""
    read = {"read_image_folder": lambda _, split, **how: images_of(split)}
    rated = dict.fromkeys(("movies", "products", "newspaper"), [("a b", 1.0), ("b c", -1.0)] * 20)
    snippets = calls(text.data, read_snippets=rated)
    with snippets, calls(data, pack_folder=noise((4800,) * 12), **read):
        return CONTRASTIVE[config.kind].load_data(config, str)


@functools.cache
def images_of(split):
    number, rng = {"train": 12, "test": 8, "other": 6}[split], np.random.default_rng(len(split))
    pixels = rng.integers(0, 256, (number, 20, 20, 3), np.uint8)
    return data.Images(pixels, np.arange(number, dtype=np.int32) % 2, ("a", "b"))


def problem(config):
    return problem_of(config, load(config))


def drawn(config):
    return problem(config).draw(0)["x"]


def shape(config):
    return drawn(config).shape


def num_held_out(config):
    return problem(config).held_out.number


def of(effect, *path):
    """Return an entry of an effect."""
    return lambda config: functools.reduce(operator.getitem, path, effect(config))


def cases_of(section, effect, others=types.MappingProxyType({}), **values):
    """Return cases of a section's keys, whose effects are entries of those names."""
    return {f"{section}{name}": Case(value, of(effect, name), value, others)
            for name, value in values.items()}  # fmt: skip


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CPC_DATA", "cache")


# Loss and negatives: arguments of `cpc_loss`.


def outputs_of(scale=1.0):
    keys = jax.random.split(jax.random.key(0), 2)
    z = scale * jax.random.normal(keys[0], (3, 6, 4))
    predictions = scale * jax.random.normal(keys[1], (3, 6, 2, 4))
    positions = Position.grid(3, 6, group=np.arange(3) // 2)
    return BranchOutputs(CPCOutputs(z, z, predictions), positions)


#: Arguments for `audio_synthetic` with offsets 1 and 2.
USUAL = {
    "rule": "batch", "sampler": None, "loss": ("info_nce", {}), "temperature": 1.0, "bias": 0.0,
    "is_cosine": False, "queue": None, "offsets": (1, 2),
}  # fmt: skip
HARDEST, SEMI = negatives.hardest(3), negatives.semi_hard(0.3)
NO_NOISE = {"log_noise_positive": 0.0, "log_noise_negatives": 0.0}
COSINE, THREE = {"loss.cosine": True}, {"negatives.num_sampled": 3}
HARD = {"prior": 0.3, "concentration": 2.0}
#: Config keys and the only arguments of `cpc_loss` that they change.
MEANINGS = [
    *(({"negatives.rule": word}, {"rule": word}) for word in negatives.RULES if word != "batch"),
    ({"negatives.window": 1}, {"rule": "batch & outside_window(1)"}),
    ({"negatives.shards": 4}, {"rule": "batch & within_shards(4)"}),
    (THREE, {"sampler": negatives.uniform_subset(3)}),
    ({"negatives.choose": "hardest", **THREE}, {"sampler": HARDEST}),
    ({"negatives.choose": "semi_hard", "negatives.margin": 0.3}, {"sampler": SEMI}),
    ({"negatives.choose": "ring", "negatives.ring_low": 20, "negatives.ring_high": 60},
     {"sampler": negatives.percentile_ring(20, 60)}),
    ({"negatives.choose": "mixed", **THREE}, {"sampler": negatives.mixed(3, 3)}),
    ({"negatives.choose": "proposed", "negatives.proposal": "through", **THREE},
     {"sampler": negatives.proposed(3, "through")}),
    ({"negatives.choose": "with_zero"}, {"sampler": negatives.with_zero()}),
    ({"negatives.queue": 9}, {"queue": 9}),
    ({"negatives.temperature": 0.5}, {"temperature": 0.5}),
    ({"negatives.temperature": 0.5, "negatives.temperature_rule": "learned"}, {"temperature": 0.5}),
    (COSINE, {"is_cosine": True}),
    ({"loss.name": "sigmoid", "loss.bias": -1.0}, {"loss": (losses.sigmoid, {}), "bias": -1.0}),
    ({"loss.name": "nce", "loss.bias": 0.5, "loss.learn_bias": True},
     {"loss": (losses.nce, NO_NOISE), "bias": 0.5}),
    ({"loss.name": "decoupled"}, {"loss": (losses.decoupled, {})}),
    ({"loss.name": "sup_con", **COSINE}, {"loss": (losses.sup_con, {}), "is_cosine": True}),
    ({"loss.name": "debiased", "loss.prior": 0.3, **COSINE},
     {"loss": (losses.debiased, {"prior": 0.3}), "is_cosine": True}),
    ({"loss.name": "hard_weighted", "loss.prior": 0.3, "loss.concentration": 2.0, **COSINE},
     {"loss": (losses.hard_weighted, HARD), "is_cosine": True}),
    *(({"loss.name": f"triplet_{mining}", "loss.margin": 0.2, **COSINE},
       {"loss": (losses.triplet, {"margin": 0.2, "mining": mining}), "is_cosine": True})
      for mining in ("hard", "semi_hard", "all")),
]  # fmt: skip


def call_of_loss(settings):
    plan = plan_of_offsets(with_settings(audio_synthetic.get_config(), settings), (1, 2))
    zeros = OffsetSums(*(jnp.zeros(2) for _ in OffsetSums._fields))
    branch = outputs_of()
    with calls(objective, cpc_loss=(jnp.zeros(()), zeros)) as found:
        objective_loss(plan, *init_objective(plan, [branch]), [branch], jax.random.key(0))
    (outputs, _, rule), call = found["cpc_loss"].call_args
    lengths = np.linalg.norm(outputs.z, axis=-1)
    return {
        "rule": rule.name,
        "sampler": meaning(call["sampler"]),
        "loss": meaning(call["loss"]),
        "temperature": round(float(call["temperature"]), 6),
        "bias": float(call["bias"]),
        "is_cosine": bool(np.allclose(lengths, 1, atol=1e-3)),
        "queue": None if call["memory"] is None else len(call["memory"][0]),
        "offsets": call["offsets"],
    }


@pytest.mark.parametrize(("settings", "changed"), MEANINGS, ids=[",".join(s) for s, _ in MEANINGS])
def test_objective_keys_change_arguments_of_the_loss(settings, changed):
    changed = {name: meaning(value) for name, value in changed.items()}
    assert call_of_loss(settings) == USUAL | changed


# Models: descriptions of their modules.

HALF = {f"{part}.dtype": "bfloat16" for part in ("encoder", "context", "predictor")}
CODES, RESNET, SEGMENTS = {"num_codes": 32}, {"encoder": "resnet18"}, {"segment_threshold": 0.3}
#: Key -> (value, changed fields, other keys that are set).
SEQUENCES = {
    "width": (8, {"encoder.width": 8, "predictor.width": 8}),
    "context_width": (8, {"context.width": 8}),
    "context_layers": (2, {"context.num_layers": 2}),
    "num_offsets": (1, {"predictor.num_offsets": 1}),
    "dtype": ("bfloat16", HALF),
    "context": ("lstm", {"context.type": "LSTM"}),
}
SIGNALS = SEQUENCES | {
    "norm": ("layer", {"encoder.norm": "layer"}),
    "padding": ("valid", {"encoder.padding": "valid"}),
    "remat": (True, {"encoder.remat": True}),
}
MODELS = {
    "audio": SIGNALS | {
        "encoder": ("log_mel", {"encoder.type": "LogMelEncoder"}),
        "num_cepstra": (20, {"encoder.num_cepstra": 20}, {"encoder": "cepstra"}),
        "num_codes": (32, {"encoder.type": "QuantizedEncoder", "encoder.num_codes": 32}),
        "code_width": (16, {"encoder.width": 16, "predictor.width": 16}, CODES),
        "code_decay": (0.5, {"encoder.decay": 0.5}, CODES),
        "commitment": (0.5, {"encoder.commitment": 0.5}, CODES),
        "restart_codes": (True, {"encoder.restart": True}, CODES),
        "context_blocks": (4, {"context.blocks": 4}),
        "predictor": ("hidden", {"predictor.type": "HiddenPredictor"}),
        "directions": (("forward", "backward"), {"directions": ["forward", "backward"]}),
        "modules": (3, {"cuts": [2, 4]}),
        "segment_threshold": (0.3, {"type": "SegmentalCPC", "threshold": 0.3}, {"num_offsets": 1}),
        "segment_offsets": (2, {
            "predictor.num_offsets": 2, "frame_predictor.type": "LinearPredictor",
            "frame_predictor.num_offsets": 12, "frame_context.type": "GRU"}, SEGMENTS),
    },
    "image": {
        "encoder": ("resnet18", {"encoder.type": "ResNet", "make_predictor.made.width": 512}),
        "stages": (2, {"encoder.stages": describe(resnet_stages(18, 2)),
                       "make_predictor.made.width": 128}, RESNET),
        "pooled_stem": (True, {"encoder.pooled_stem": True}, RESNET),
        "width": (64, {"encoder.widths": [16, 32, 64], "make_predictor.made.width": 64}),
        "norm": ("layer", {"encoder.norm": "layer"}),
        "context": ("gru", {"make_context.made.type": "RowGRU"}),
        "context_width": (64, {"make_context.made.width": 64}),
        "context_layers": (2, {"make_context.made.num_layers": 2}),
        "directions": (("right",), {"directions": ["right"]}),
        "modules": (2, {"cuts": [2]}),
        "num_offsets": (1, {"make_predictor.made.num_offsets": 1}),
        "target_width": (16, {"make_predictor.made.width": 16, "target_width": 16}),
        "remat": (True, {"encoder.remat": True}, RESNET),
        "dtype": ("bfloat16", {name: "bfloat16" for name in (
            "encoder.dtype", "make_context.made.dtype", "make_predictor.made.dtype", "dtype")}),
    },
    "series": SIGNALS | {
        "kernels": ((2,), {"encoder.kernels": [2]}),
        "strides": ((2,), {"encoder.strides": [2]}, {"kernels": (2,)}),
    },
    "text": SEQUENCES | {
        "name": ("quick_thoughts", {"type": "QuickThoughts", "context.type": "SentenceEncoder"}),
        "embedding_width": (3, {"encoder.embedding_width": 3}),
        "kernel": (2, {"encoder.kernel": 2}),
    },
}  # fmt: skip
CHOICES = [
    ("predictor", ("affine", {"predictor.use_bias": True})),
    ("predictor", ("transformers", {"predictor.type": "TransformersPredictor"})),
    ("context", ("conv", {"context.type": "CausalConv", "context.dilated": True})),
    ("context", ("conv_undilated", {"context.type": "CausalConv", "context.dilated": False})),
    ("context", ("transformer", {"context.type": "CausalTransformer"})),
    ("context", ("ssm", {"context.type": "StateSpace"})),
]


def config_of(kind, keys):
    paper = {"audio": audio_voices_paper, "image": image_fashion_mnist}.get(kind, CONFIGS[kind])
    return with_settings(paper.get_config(), {f"model.{key}": keys[key] for key in keys})


def fields_of(kind, keys):
    module = CONTRASTIVE[kind].build_model(config_of(kind, keys)).module
    if kind != "image":  # its parts are functions
        assert build(json.loads(json.dumps(describe(module)))) == module
    return flatten(describe(module))


@pytest.mark.parametrize(("kind", "key", "case"), [
    *((kind, key, case) for kind, cases in MODELS.items() for key, case in cases.items()),
    *(("audio", key, case) for key, case in CHOICES),
])  # fmt: skip
def test_model_keys_change_module_fields(kind, key, case):
    value, expected, *others = case
    before, after = fields_of(kind, dict(*others)), fields_of(kind, {**dict(*others), key: value})
    assert all(before.get(name) != value and after[name] == value
               for name, value in expected.items())  # fmt: skip
    if not any(name.endswith("type") for name in expected):
        assert {name for name in before if before[name] != after.get(name)} == {*expected}


@pytest.mark.parametrize("padding", ["causal", "same", "valid"])
@pytest.mark.parametrize("encoder", ["conv", "log_mel"])
def test_audio_padding_gives_the_planned_number_of_latents(encoder, padding):
    config = config_of("audio", {"encoder": encoder, "padding": padding, "width": 32})
    x = jax.ShapeDtypeStruct((2, config.data.window_samples), jnp.float32)
    module = audio.kind.build_model(config).module.encoder
    z = jax.eval_shape(lambda x: module.init_with_output(jax.random.key(0), x)[0], x)
    assert z.shape[1] == audio.kind.num_latents(config)
    phones = {"toy": Phones({"u": np.arange(300, dtype=np.int32)}, ("a",) * 300)}
    sound = AudioData(types.SimpleNamespace(names=("u",)), None, phones)
    batch = {"utterance": np.array([0, 0]), "start": np.array([160, 400]), "speaker": np.zeros(2)}
    found = audio.kind.label_latents(config, sound, batch)["phone"]
    assert found.shape == (2, z.shape[1])
    assert found[:, 0].tolist() == [1, 3]  # 400 samples are 2.5 labels


SUP_CON, SEGMENTED = {"loss.name": "sup_con", **COSINE}, {"model.segment_threshold": 0.3}


INCOMPATIBLE = {"audio_voices_paper": [
    ({"loss.name": "sup_con", "loss.cosine": False}, r"loss\.cosine=True"),
    *(({"loss.name": "debiased", **COSINE, **bias}, r"loss\.bias=0 and loss\.learn_bias=False")
      for bias in ({"loss.bias": -2.0}, {"loss.learn_bias": True})),
    *(({**SUP_CON, "negatives.rule": rule}, f"negatives.rule is '{rule}'")
      for rule in ("own_sequence", "same_group")),
    ({**SUP_CON, **THREE}, "negatives.num_sampled=0"),
    ({**SUP_CON, "negatives.choose": "ring"}, "negatives.choose=uniform"),
    ({**SUP_CON, "data.one_speaker": True}, "one_speaker=False"),
    ({"negatives.choose": "hardest"}, "set negatives.num_sampled"),
    ({"negatives.queue": 64, "negatives.rule": "own_sequence"}, "negatives.queue is 64"),
    ({"negatives.queue": 64, "negatives.shards": 2}, "negatives.shards is 2"),
    ({"negatives.temperature_low": 3.0, "negatives.temperature_high": 2.0},
     "temperature_low is 3.0"),
    ({"negatives.temperature_rule": "learned", "negatives.temperature": 1000.0},
     r"temperature is 1000\.0"),
    ({"optim.name": "schedule_free"}, "schedule_free"),
    ({"optim.name": "rmsprop", "optim.weight_decay": 0.1}, "weight_decay"),
    ({"optim.name": "schedule_free", "optim.schedule": "constant", "optim.ema_decay": 0.9},
     "optim.ema_decay is 0.9"),
    ({"optim.accumulate": 3, "data.batch_size": 8}, "accumulate is 3 and data.batch_size is 8"),
    *(({"model.norm": "batch", **averaged}, "model.norm is 'batch'") for averaged in (
        {"optim.accumulate": 2}, {"optim.name": "schedule_free", "optim.schedule": "constant"})),
    ({"steps_per_launch": 7}, "steps_per_launch 7"),
    ({"model.horizon": 11}, "model.horizon is 11 and model.num_offsets is 12"),
    ({"model.horizon": 12, "loss.align_to": 12}, "loss.align_to is 12"),
    ({"model.horizon": 2, "model.num_offsets": 1, "model.segment_threshold": 0.3},
     "model.segment_threshold is 0.3"),
    ({"model.context_blocks": 3}, "3 blocks"),
    ({"model.context_blocks": 2, "model.context": "lstm"}, "gru"),
    ({"model.directions": ("backward",)}, "backward"),
    ({"model.modules": 7}, "7"),
    ({"loss.align_to": 12, "loss.name": "sigmoid"}, "align_to is 12 and loss.name is 'sigmoid'"),
    ({"loss.align_to": 12, "negatives.queue": 8}, "align_to is 12 and negatives.queue is 8"),
    ({"model.segment_offsets": 4}, "set model.segment_threshold above 0"),
    ({**SEGMENTED, "model.segment_offsets": 13}, "segment_offsets is 13 and model.num_offsets"),
    (SEGMENTED, "model.num_offsets is 12: .*model.num_offsets to 1"),
    ({**SEGMENTED, "model.segment_offsets": 2, "negatives.momentum": 0.9},
     "set negatives.momentum to 0"),
    *(({"model.num_codes": 8, key: value}, f"num_codes is 8 and {key} is")
      for key, value in (("optim.accumulate", 2), ("augment.side", "past"))),
    ({"probe.tasks": ("codes",)}, "model.num_codes is 0"),
    ({"probe.tasks": ("codes",), "probe.features": ("c",), "model.num_codes": 8}, "add z to"),
    ({"augment.side": "past", "augment.effects": ()}, "side is past, and the effects are none"),
    ({"augment.side": "past", "data.batch_size": 1}, "a batch of 1"),
    ({"augment.side": "past", "data.window_samples": 480, "augment.dropout_ms": 10.0}, "512"),
], "image_fashion_mnist": [
    ({"model.patch": 30}, "patch is larger"), ({"model.patch": 28}, "offset 9"),
    ({"model.num_offsets": 5}, "offset 6"), ({"model.encoder": "vit"}, r"\(got 'vit'\)"),
    ({"model.encoder": "resnet20"}, "depth 20"),
    ({"probe.tasks": ("supervised",), "probe.every": 250}, "probe.every is 250"),
    ({"augment.crop": 40}, "augment.crop is 40 and data.size is 28"),
    ({"augment.jitter": 9}, "augment.jitter is 9 and model.patch is 8"),
], "series_ar1": [
    ({"model.kernels": (4, 2)}, "do not fit: pass one of each"),
    ({"data.file_label": "table"}, "data.file_labels"), ({"probe.features": ()}, "features is"),
    ({"data.source": "files", "data.path": "x", "data.train_list": "x"}, "data.test_list"),
], "text_sentences": [
    ({"data.run_sentences": 3}, "run_sentences is 3 and model.num_offsets is 3"),
    ({"probe.features": ("vectors",)}, "word_vectors"), ({"probe.features": ()}, "features is"),
]}  # fmt: skip


@pytest.mark.parametrize(
    ("card", "settings", "words"),
    [(card, *row) for card, rows in INCOMPATIBLE.items() for row in rows],
)
def test_incompatible_keys_are_rejected_before_reading_data(card, settings, words):
    config = importlib.import_module(f"configs.{card}").get_config()
    with pytest.raises(UserError, match=words):
        interpret(CONTRASTIVE[config.kind], with_settings(config, settings))


# Training, on series.


def fit(config):
    state = types.SimpleNamespace(params={"model": {}}, ema=None, extra={}, step=0)
    with calls(
        training, make_step=(state, None, None), make_evaluation=None, run_training=(state, "")
    ) as found:
        training.train(pathlib.Path(), problem(config), None, make_mesh(1))
    made = found["run_training"].call_args.args[2]
    with calls(training, prefetch=()) as found:
        made.batches(0)
    return {**made._asdict(), **made.cadence._asdict(), **found["prefetch"].call_args.kwargs}


def record_step(config):
    with calls(
        training, make_optimizer=(None, None), make_loss=None, make_state=jnp.zeros(()),
        make_train_step=None, make_launch=None, jit_step=None,
    ) as found:  # fmt: skip
        training.make_step(problem(config), make_mesh(1))
    return {name: one.call_args for name, one in found.items()}


def probed_steps(config):
    return [step for step in range(0, config.num_steps + 1, 10) if probes_due(config, step)]


def read_source(config):
    with calls(weights, read_model=None, fit_weights=None) as found:
        weights.read_start(series.kind, config, None)
    asked = found["read_model"]
    return asked.call_args.args[:2] if asked.called else ("", None)


TOLD = [("init", (), None), ("log", ({"test/bound/1": 1.5},), 2), ("finish", (), None)]
SHARED = {
    **cases_of("", fit, num_steps=70, steps_per_launch=5, log_every=7, eval_every=20,
               save_every=20),
    **cases_of("data.", fit, num_threads=5),
    **cases_of("optim.", of(record_step, "make_optimizer", 1), name="muon", learning_rate=0.5,
               warmup_steps=3, schedule="constant", clip_norm=0.5, weight_decay=0.5),
    **cases_of("optim.", of(record_step, "make_train_step", 1), ema_decay=0.5),
    "logger": Case("trackio", services.services_of, TOLD),
    "probe.every": Case(20, probed_steps, [0, 20, 40, 60, 80]),
    "start_from": Case("runs/a", read_source, ("runs/a", None)),
    "start_from_step": Case("best", read_source, ("runs/a", "best"), {"start_from": "runs/a"}),
}  # fmt: skip


#: Keys in tests of the objective, training, starts, augmentation, clips, data, units, CTC, images.
ELSEWHERE = {
    "shared": {
        "negatives.target_entropy", "negatives.temperature_low", "negatives.temperature_high",
        "negatives.momentum", "optim.accumulate", "freeze", "start_from_parts"},
    "audio": {
        "augment.side", "augment.effects", "data.one_speaker", "evaluate.num_windows",
        "data.train_list", "data.test_list", "data.phones", "data.item_file", "data.file_labels",
        "probe.num_units", "probe.ctc_beam", "probe.layer_decay"},
    "image": {"data.group_level", "data.test_fraction"},
}  # fmt: skip


@pytest.mark.parametrize("kind", [*CONTRASTIVE, "rl"])
def test_every_key_has_a_case(kind):
    keys, cases = set(flatten(CONFIGS[kind].KEYS)), {"kind", *TABLES[kind]}
    cases |= ELSEWHERE.get(kind, set())
    if kind != "rl":
        cases |= {*SHARED, *ELSEWHERE["shared"], *(f"model.{key}" for key in MODELS[kind])}
        cases |= {key for settings, _ in MEANINGS for key in settings}
        tasks = importlib.import_module(f"experiments.kinds.{kind}.probes").TASKS
        assert {*tasks} == {*CONTRASTIVE[kind].KEYS["probe"]["tasks"].words}
    own = pathlib.Path(__file__).with_name(f"test_{kind}.py").read_text()
    named = {key for key in keys if f'"{key}"' in own or key.replace(".", "__") in own}
    assert cases <= keys
    assert keys - cases <= (named if kind in ("series", "text", "rl") else set())


CARDS = pathlib.Path(configs.__file__).parent.glob("*_*.py")


@pytest.mark.parametrize("card", sorted(path.stem for path in CARDS if path.stem[0] != "_"))
def test_every_config_is_valid(card, monkeypatch):
    module = importlib.import_module(f"configs.{card}")
    config = module.get_config()
    library = config.environment.name.partition(":")[0] if config.kind == "rl" else ""
    if library in OUTSIDE and importlib.util.find_spec(library) is None:
        monkeypatch.setattr(rl, "make_environment", lambda name: rl.make_t_maze())
    assert f"cpc train --config {card}" in module.__doc__
    check_cell(config, Cell(card, {}))


# Probes, with a model that copies its input.


def probe(config, data):
    kind, stride = config.kind, 160 if config.kind == "audio" else 1

    def embed(variables, x):
        z = x.mean((3, 4)) if kind == "image" else x[:, ::stride]
        z = z.reshape(*x.shape[:2], -1) if kind == "series" else z
        z = z[..., None] if kind == "audio" else z
        return z, z + 1 if kind == "image" else 2 * z

    encoder = types.SimpleNamespace(stride=stride, frames_around=(0, 0))
    module = types.SimpleNamespace(encoder=encoder)
    variables: Any = {"params": {"encoder": {"embedding": np.ones((41, 4), np.float32)}}}
    model = types.SimpleNamespace(init=lambda *_: variables, embed=embed, module=module)
    quiet = calls(training_probes, write_scores=None, print_scores=None)
    with quiet, calls(audio.probes, write_latest=None), calls(audio.recognition, digest=""):
        return make_probe(CONTRASTIVE[kind], config, FOLDER, data, model)(variables, 0)


def probe_calls(load, module, name, get, answer=()):
    def effect(config):
        with calls(module, **{name: answer}) as found:
            probe(config, load(config))
        return [get(*call) for call in found[name].call_args_list]

    return effect


def option(name):
    return lambda args, options: options[name]


# Series


series_fits = functools.partial(probe_calls, load, series.probes, "probe_scores")
LEFT_OUT = probe_calls(load, series.probes, "leave_one_out_scores", lambda args, options: args[0])
TABLES: dict[str, dict[str, Case]] = {"series": {
    "seed": Case(1, drawn),
    "data.rate_hz": Case(250.0, lambda c: series.kind.describe_input(c)["rate_hz"] or 0, 250.0),
    "data.correlation": Case(0.1, drawn),
    "data.num_files": Case(12, lambda c: len(load(c).train.sequences.names), 12),
    "evaluate.num_windows": Case(9, num_held_out, 3),
    "probe.tasks": Case((), series_fits(option("task")), []),
    "probe.features": Case(("z", "raw"), series_fits(lambda args, _: [*args[0]]), [["z"], ["raw"]]),
    "probe.hidden_width": Case(5, series_fits(option("hidden_widths")), [(0, 5)] * 4),
    "probe.num_epochs": Case(7, series_fits(lambda _, how: how["updates"].num_epochs), [7] * 4),
    "probe.leave_one_out": Case(True, LEFT_OUT, ["c", "z", "raw", "random c"]),
}}  # fmt: skip


# Text


def reads(load, name, answer=None):
    """Return an effect: the arguments with which `load` reads a folder."""

    def effect(config):
        with calls(data, **{name: answer}) as found:
            load(config, str)
        (path, *_), options = found[name].call_args
        return {"path": str(path), **options}

    return effect


def parts_of_text(config):
    made = load(config)
    return [len(part.sentence_starts) - 1 for part in (made.train, made.test)]


OF_TEXTS = {"data.source": "files", "data.path": "texts"}
FOLDS = types.SimpleNamespace(
    items=np.arange(2), correct=np.ones(2), l2s=(1.0,), num_unconverged=0)  # fmt: skip
TABLES["text"] = {
    "seed": Case(1, drawn),
    **cases_of("data.", reads(text.data.read_corpus, "read_text_folder"), OF_TEXTS, path="two.txt",
               form="lines", lowercase=False, min_count=60, max_vocabulary=2,
               max_skipped_fraction=0.2),
    "data.run_sentences": Case(5, shape, (4, 5, 10)),
    "data.max_words": Case(5, shape, (4, 6, 5)),
    "data.batch_size": Case(6, shape, (6, 6, 10)),
    "data.test_fraction": Case(0.5, parts_of_text),
    "data.block_sentences": Case(25, parts_of_text),
    "data.num_documents": Case(30, lambda c: sum(parts_of_text(c)), 1500),
    "data.order": Case(0.1, drawn),
    "evaluate.num_runs": Case(9, num_held_out, 3),
    "probe.tasks": Case(("genre", "next"), lambda c: [
        one.name for one in text.probes.probe_tasks(c, load(c))], ["genre", "next"]),
    "probe.features": Case(("mean",), lambda c: {one.features for one in probe(c, load(c))},
                           {"mean"}, {"probe.features": ("bag",)}),
    "probe.num_folds": Case(4, probe_calls(
        load, text.probes.evaluate, "cross_validate", option("num_folds"), FOLDS), [4],
        {"probe.tasks": ("movies",), "probe.features": ("bag",)}),
    "probe.max_sentences": Case(5, lambda c: len(load(c).tasks["movies"][0]), 5,
                                {"probe.tasks": ("movies",)}),
}  # fmt: skip


# Audio


def from_tfds(config):
    with calls(data, read_librispeech_tfds=None, pack=synthetic(config).train) as found:
        audio.data.load_data(with_settings(config, {"data.source": "librispeech_tfds"}), str)
    return found["read_librispeech_tfds"].call_args.args[1]


made_speech = functools.cache(lambda: speech(3, 8, 3.0))


def synthetic(config):
    return made_speech()


EMPTY = lambda x: np.zeros((len(x), x.shape[1] // 4 or 1, 5), np.float32), ""
audio_fits = functools.partial(probe_calls, synthetic, audio.tasks.evaluate, "probe_scores")
ctc_heads = functools.partial(
    probe_calls, synthetic, audio.recognition, "train_on_labels", answer=EMPTY
)
LAST_FRAME = probe_calls(synthetic, audio.tasks, "abx_scores", lambda args, options: args[-1])


def of_task(task):
    return lambda args, options: len(args[2]) if options["task"] == task else None


def probe_delay(config):
    config = with_settings(config, {"probe.tasks": ("speakers",), "probe.features": ("z", "c")})
    z, c = (features[0] for (features,) in audio_fits(lambda args, _: args[0].values())(config))
    return [i for i in range(9) if np.array_equal(2 * z[i : i + 5], c[:5])]


def best_option(config):
    plan = plan_of(config)
    outputs = CPCOutputs(jnp.zeros((4, 8, 2)), jnp.zeros((4, 8, 2)), jnp.zeros((4, 8, 2, 2)))
    branch, sums = BranchOutputs(outputs, Position.grid(4, 8)), [jnp.zeros(2)]
    with calls(objective, acpc_loss=(jnp.zeros(()), sums, jnp.zeros(2))) as found:
        objective_loss(plan, {}, {}, [branch], jax.random.key(0))
    return found["acpc_loss"].call_args.kwargs["best"]


BY_CTC = {"probe.tasks": ("ctc",), "probe.features": ("mfcc",), "probe.ctc_minutes": (0.0,)}
TABLES["audio"] = {
    **cases_of("augment.", lambda c: audio.augmentation.ranges_of(c)._asdict(), pitch_cents=50.0,
               snr_low_db=-10.0, snr_high_db=60.0, reverb_seconds=0.1, band_hz=4000.0,
               dropout_ms=20.0),
    "seed": Case(1, drawn),
    "data.source": Case("synthetic", lambda c: sorted(load(c).train.names)),
    **cases_of("data.", reads(audio.data.load_data, "pack_folder", noise((4800,) * 12)),
               path="part0", speaker_level=2, max_skipped_fraction=0.2),
    "data.split": Case("test_clean", from_tfds, "test_clean"),
    "data.test_fraction": Case(0.6, lambda c: len(load(c).test)),
    "data.window_samples": Case(3200, shape, (4, 3200)),
    "model.horizon": Case(34, audio.kind.choose_offsets, tuple(range(1, 35, 3))),
    "model.num_offsets": Case(1, audio.kind.choose_offsets, (12,), {"model.horizon": 12}),
    "negatives.overlap": Case(True, lambda c: "outside_overlap" in plan_of(c).rule.name, False),
    "loss.align_to": Case(3, lambda c: plan_of(c).geometry.branches[0].offsets, (2, 3),
                          {"model.num_offsets": 2}),
    "loss.align_by": Case("best", best_option, True, {"loss.align_to": 4, "model.num_offsets": 2}),
    "data.batch_size": Case(6, shape, (6, 1600)),
    "probe.tasks": Case(("speakers",), audio_fits(option("task")), ["speakers"] * 3),
    "probe.features": Case(("z",), audio_fits(lambda args, _: [*args[0]]), [["z"]] * 2),
    "probe.delay": Case(2, probe_delay, [2]),
    "probe.hidden_width": Case(0, audio_fits(option("hidden_widths")), [(0,)] * 6),
    "probe.num_epochs": Case(7, audio_fits(lambda _, how: how["updates"].num_epochs), [7] * 6),
    "probe.hours": Case(0.005, audio_fits(of_task("phones")), [6, None] * 3),
    "probe.minutes_per_speaker": Case(0.1, audio_fits(of_task("speakers")), [None, 6] * 3),
    "probe.lose_last_frame": Case(True, LAST_FRAME, [True], {
        "probe.tasks": ("abx",), "probe.features": ("mfcc",)}),
    "probe.ctc_head": Case("lstm", ctc_heads(lambda args, options: [*args[2]["params"]]),
                           [["network", "lstm"]], BY_CTC),
    "probe.ctc_minutes": Case((0.1, 0.2), ctc_heads(lambda args, options: len(args[3](0)["x"])),
                              [8, 8], BY_CTC),
    "probe.ctc_steps": Case(7, ctc_heads(lambda args, options: args[4].num_steps), [7], BY_CTC),
}  # fmt: skip


# Images


def image_reads(config):
    names = ("read_image_folder", "read_images_tfds", "locate_images_tfds")
    with calls(data, **dict.fromkeys(names)) as found:
        for part in image.data.make_reader(config, str):
            part("some")
    given = {name: one.call_args for name, one in found.items() if one.called}
    return {name: (tuple(map(str, args)), options) for name, (args, options) in given.items()}


def prepare_calls(config):
    x = jnp.zeros((2, 20, 20, 3), jnp.uint8)
    names = ("cut_for_evaluation", "crop_and_flip", "augment_patches", "jitter_patches")
    found = []
    for train in (True, False):
        with calls(augment, **dict.fromkeys(names, x)) as called:
            image.data.preprocess(config, {"x": x}, jax.random.key(0), train)
        found.append({name: ([one for one in args if isinstance(one, int)], options)
                      for name, one in called.items()
                      for args, options in one.call_args_list})  # fmt: skip
    return found


def cropped(config):
    train, test = prepare_calls(config)
    assert len(test) == 1  # only a center crop
    return train["crop_and_flip"][0], test["cut_for_evaluation"][1]["crop"]


def classify(x):
    return np.zeros((len(x), 2), np.float32)


def image_fits(get, name="fit_linear"):
    return probe_calls(load, image.probes, name, get, (classify, ""))


def layer_decays(config):
    with calls(image.probes, train_on_labels=(classify, ""), make_own_optimizer=None) as found:
        probe(config, load(config))
    return [args[2:4] for args, _ in found["make_own_optimizer"].call_args_list]


FEW, LINEAR, KNN = (
    {"probe.tasks": (task,), "probe.features": ("z",)} for task in ("few_labels", "linear", "knn")
)
FINE_TUNED = {"probe.tasks": ("few_labels", "fine_tuned"), "probe.features": (),
              "probe.fractions": (1.0,)}  # fmt: skip
WIDTH = image_fits(lambda args, options: args[1].shape[1])
COUNT = image_fits(lambda args, options: len(args[1]))
TABLES["image"] = {
    "seed": Case(1, drawn),
    "data.source": Case("tfds", image_reads, others={"data.name": "mnist"}),
    "data.name": Case("cifar10", lambda c: [args[1:] for args, _ in image_reads(c).values()],
                      [("cifar10", "some")] * 2, {"data.source": "tfds", "data.name": "mnist"}),
    "data.path": Case("two", lambda c: image_reads(c)["read_image_folder"][0], ("two", "some")),
    **cases_of("data.", of(image_reads, "read_image_folder", 1), size=10, channels=1,
               max_skipped_fraction=0.2),
    "data.split": Case("other", lambda c: len(load(c).train), 6),
    "data.probe_split": Case("other", lambda c: len(load(c).probe), 6),
    "data.test_split": Case("other", lambda c: len(load(c).test), 6),
    "model.first_offset": Case(1, image.kind.choose_offsets, (1,), {"model.stride": 4}),
    "model.patch": Case(6, of(image.kind.describe_input, "shape"), [2, 2, 6, 6, 3]),
    "model.stride": Case(4, of(image.kind.describe_input, "shape"), [3, 3, 8, 8, 3]),
    "data.batch_size": Case(2, shape, (2, 20, 20, 3)),
    "augment.crop": Case(8, cropped, ([8], 8)),
    "augment.grey": Case(True, lambda c: [
        one["cut_for_evaluation"][1]["grey"] for one in prepare_calls(c)], [True, True]),
    "augment.jitter": Case(5, lambda c: prepare_calls(c)[0].get("jitter_patches", ([],))[0], [5]),
    **cases_of("augment.", lambda c: prepare_calls(c)[0]["augment_patches"][1], color_drop=1.0,
               rotation_degrees=30.0, shear=0.3, elastic_pixels=2.0, brightness=0.5, contrast=0.5),
    "evaluate.num_images": Case(3, num_held_out, 1),
    "probe.tasks": Case(("few_labels",), COUNT, others=LINEAR),
    "probe.features": Case(("pixels",), WIDTH, [20 * 20 * 3], {"probe.tasks": ("linear",)}),
    "probe.regions": Case(1, WIDTH, [3], LINEAR | {"probe.regions": 2}),
    "probe.solver": Case("lbfgs", image_fits(lambda args, options: args[0]), ["lbfgs"], LINEAR),
    "probe.num_images": Case(5, COUNT, [5], LINEAR),
    "probe.num_neighbours": Case(3, probe_calls(
        load, image.probes.evaluate, "knn_predict", option("k"),
        lambda train, labels, held, **_: classify(held)), [3], KNN),
    "probe.fractions": Case((1.0,), COUNT, [12], FEW),
    "probe.num_subsets": Case(1, COUNT, [6, 12], FEW),
    "probe.num_epochs": Case(
        100, image_fits(lambda args, options: args[4].num_steps, "train_on_labels"), [275],
        {"probe.tasks": ("supervised",)}),  # one of 12 images is held out
    "probe.layer_decay": Case(
        0.5, layer_decays, [(0.5, ("encoder",)), (1.0, ("encoder",))], FINE_TUNED),
}  # fmt: skip


# Agents


def agent(config):
    return describe(rl_step.make_task(config).agent)


@functools.cache
def record_task(text):
    config = with_settings(CONFIGS["rl"].get_config(), json.loads(text))
    of_rl = wrapped(rl, "make_environment", "side_by_side", "begin", "roll_out", "gae", "ppo_loss")
    of_step = wrapped(rl_step, "make_optimizer", "cpc_loss", "to_cosines")
    with of_rl as some, of_step as others:
        jax.eval_shape(rl_step.make_task(config).init, 0)
    return {name: one.call_args for name, one in {**some, **others}.items()}


def record_agent(config):
    return record_task(json.dumps(flatten(config)))


def argument(name, which):
    return lambda config: (record_agent(config)[name] or ((None,) * 9,))[0][which]


class Seeded(NamedTuple):
    params: Any


def record_agent_fit(config):
    task = rl_step.make_task(config)._replace(init=Seeded)
    jitted = calls(rl_run, run_training=(Seeded(0), ""), jit_step=None)
    with jitted as found, calls(rl_run.evaluate, describe=["a record"]):
        mesh = make_mesh(devices=jax.devices()[:1])
        rl_run.train(config, task, lambda params, seed: seed, FOLDER, mesh)
        made = found["run_training"].call_args.args[2]
        records = made.evaluate(jax.device_get(made.state))
    return {**made._asdict(), **made.cadence._asdict(), "records": records}


CONV, PPO = {"environment.name": "t_maze", "model.encoder": "conv"}, {"policy.name": "ppo"}
TABLES["rl"] = {
    "seed": Case(7, of(record_agent_fit, "state"), Seeded(7)),
    "num_env_steps": Case(480, of(record_agent_fit, "num_steps"), 10),
    "log_rollouts": Case(3, of(record_agent_fit, "log_every"), 3),
    "save_rollouts": Case(4, of(record_agent_fit, "save_every"), 4),
    "logger": Case("trackio", services.services_of, TOLD),
    "evaluate.num_steps": Case(0, of(record_agent_fit, "records"), []),
    "environment.name": Case("t_maze", argument("make_environment", 0), "t_maze"),
    "environment.num": Case(6, argument("begin", 2), 6),
    "environment.resets": Case(2, of(record_agent, "side_by_side", 1, "num_resets"), 2),
    "environment.stagger": Case(5, argument("begin", 4), 5),
    "model.encoder": Case("conv", agent, others={"environment.name": "t_maze"}),
    "model.widths": Case((7,), agent),
    "model.channels": Case((3,), agent, others=CONV),
    "model.strides": Case((2,), agent, others=CONV),
    "model.width": Case(7, agent, others=CONV),
    "model.memory": Case("lstm", agent),
    "model.memory_width": Case(7, agent),
    "model.critic_widths": Case((3,), agent),
    "policy.name": Case("ppo", lambda c: argument("ppo_loss", 3)(c) or 0),
    "policy.unroll": Case(8, argument("roll_out", 4), 8),
    "policy.discount": Case(0.5, argument("gae", 4), 0.5),
    "policy.gae_lambda": Case(0.5, argument("gae", 5), 0.5),
    "policy.clip": Case(0.01, argument("ppo_loss", 3), 0.01, PPO),
    "policy.epochs": Case(3, lambda c: rl_step.make_task(c).steps_per_launch, 3, PPO),
    "policy.minibatches": Case(2, lambda c: rl_step.make_task(c).steps_per_launch, 2, PPO),
    "cpc.num_offsets": Case(2, agent),
    "cpc.given_actions": Case(True, agent),
    "cpc.rule": Case("own_sequence", lambda c: argument("cpc_loss", 2)(c).name, "own_sequence"),
    "cpc.cosine": Case(False, lambda c: argument("to_cosines", 0)(c) is None, True),
    "cpc.temperature": Case(0.5, of(record_agent, "cpc_loss", 1, "temperature"), 0.5),
    **cases_of("optim.", of(record_agent, "make_optimizer", 1), name="rmsprop", learning_rate=0.5,
               schedule="linear", clip_norm=0.5),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "key"), [
    *(("shared", key) for key in SHARED), *((k, key) for k, keys in TABLES.items() for key in keys),
])  # fmt: skip
def test_keys_have_an_effect(kind, key):
    case, kind = (SHARED[key], "series") if kind == "shared" else (TABLES[kind][key], kind)
    settings = {**SMALL[kind], **case.others}
    before, after = (
        case.effect(with_settings(CONFIGS[kind].get_config(), {**settings, **changed}))
        for changed in ({}, {key: case.value})
    )
    assert not same(before, after)
    assert case.want is CHANGES or same(after, case.want), after


@pytest.mark.parametrize("config", ["rl_t_maze", "text_words"])
def test_single_device_kinds_reject_several_processes(monkeypatch, tmp_path, config):
    for name, value in {"COORDINATOR_ADDRESS": "127.0.0.1:1", "NUM_PROCESSES": "2"}.items():
        monkeypatch.setenv(f"JAX_{name}", value)
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    with pytest.raises(UserError, match="got 2 processes"):
        run_config(importlib.import_module(f"configs.{config}").get_config(), str(tmp_path))
