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

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import unflatten_dict

from configs import (
    audio,
    audio_synthetic,
    audio_voices_paper,
    image,
    image_fashion_mnist,
    series,
    text,
)
from configs import rl as configs_rl
from cpc import losses, negatives, rl
from cpc.data import Images, augment
from cpc.evaluate import Units
from cpc.files import flatten
from cpc.losses import OffsetSums
from cpc.models import resnet_stages
from cpc.models.description import build, describe
from cpc.models.load import Pretrained
from cpc.rl.outside import OUTSIDE
from cpc.train import make_mesh
from cpc.types import CPCOutputs, Position, UserError
from experiments.command.config import with_settings
from experiments.kinds.audio import augmentation as audio_augmentation
from experiments.kinds.audio import data as audio_data
from experiments.kinds.audio import kind as audio_kind
from experiments.kinds.audio import probes as audio_probes
from experiments.kinds.audio import recognition as audio_recognition
from experiments.kinds.audio import tasks as audio_frames
from experiments.kinds.audio import units as audio_units
from experiments.kinds.audio.data import AudioData, Phones
from experiments.kinds.image import data as image_data
from experiments.kinds.image import kind as image_kind
from experiments.kinds.image import probes as image_probes
from experiments.kinds.registry import CONTRASTIVE
from experiments.kinds.rl import run as rl_run
from experiments.kinds.rl import step as rl_step
from experiments.kinds.series import kind as series_kind
from experiments.kinds.series import probes as series_probes
from experiments.kinds.text import data as text_data
from experiments.kinds.text import kind as text_kind
from experiments.kinds.text import probes as text_probes
from experiments.sweep.cells import Cell
from experiments.sweep.jobs import check_cell
from experiments.train import run as run_config
from experiments.training import loop, objective, weights
from experiments.training import probes as training_probes
from experiments.training import step as training
from experiments.training.contrastive import interpret, make_probe
from experiments.training.objective import BranchOutputs, init_objective, objective_loss
from experiments.training.probes import ProbeContext
from experiments.training.records import probes_due
from tests import services
from tests.experiments.test_clips import noise
from tests.plans import fields, meaning, plan_of, plan_of_offsets, problem_of, speech

CONFIGS = {"audio": audio, "image": image, "series": series, "text": text, "rl": configs_rl}
#: Settings of small configs.
SMALL = {
    "series": {
        "data.num_files": 10, "data.window_steps": 8, "data.batch_size": 4, "model.width": 4,
        "model.context_width": 4, "model.num_offsets": 2, "num_steps": 100,
        "optim.warmup_steps": 10, "eval_every": 10, "save_every": 10},
    "text": {
        "data.source": "grammar", "data.num_documents": 20, "data.max_vocabulary": 60,
        "data.run_sentences": 6, "data.max_words": 10, "data.batch_size": 4,
        "data.block_sentences": 10, "model.width": 4, "model.context_width": 4,
        "model.embedding_width": 4, "model.num_offsets": 2, "probe.features": ("z",),
        "probe.tasks": ("next",)},
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


def small(kind):
    return with_settings(CONFIGS[kind].get_config(), SMALL[kind])


def same(a, b):
    a, b = jax.tree.flatten(a), jax.tree.flatten(b)
    return a[1] == b[1] and all(
        np.shape(x) == np.shape(y) and np.array_equal(x, y) for x, y in zip(a[0], b[0], strict=True)
    )


def check(case, config, key):
    config = with_settings(config, case.others)
    before, after = case.effect(config), case.effect(with_settings(config, {key: case.value}))
    assert not same(before, after)
    assert case.want is CHANGES or same(after, case.want), after


@contextlib.contextmanager
def calls(module, **answers):
    """Replace functions of a module by recorders of their calls."""
    found = {}

    def recorder(name, answer):
        def record(*args, **options):
            found[name] = (args, options)
            return answer(*args, **options) if callable(answer) else answer

        return record

    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            patch.setattr(module, name, recorder(name, answer))
        yield found


def from_data(load, get):
    return lambda config: get(load(config, str))


def of_problem(load, get):
    return lambda config: get(problem_of(config, load(config, str)))


def of(effect, *path):
    """Return an entry of an effect."""
    return lambda config: functools.reduce(operator.getitem, path, effect(config))


def cases_of(section, effect, others=types.MappingProxyType({}), **values):
    """Return cases of a section's keys, whose effects are entries of those names."""
    return {f"{section}{name}": Case(value, of(effect, name), value, others)
            for name, value in values.items()}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Write labels, lists and vectors; sounds, texts and images are in memory."""
    root, labels = tmp_path_factory.mktemp("data"), " ".join("01"[i % 2] for i in range(30))
    for name, content in {
        "vectors.txt": "commona 1 0\ncommonb 0 1\nnew 1 1\n",
        "phones.txt": "".join(f"u{i} {labels}\n" for i in range(12)),
        "toy.item": "u0 0 0.1 a b c d\n", "labels.csv": "u3.wav,dog\n",
        "train.txt": "u0\nu1\n", "test.txt": "u2\nu3\nu4\n",
    }.items():  # fmt: skip
        (root / name).write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("CPC_DATA", str(root / "cache"))
        yield


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
#: `negatives.momentum` is a shared case; other keys are in `test_objective`.
OBJECTIVE = {key for settings, _ in MEANINGS for key in settings} | {
    "negatives.target_entropy", "negatives.temperature_low", "negatives.temperature_high",
}  # fmt: skip


def call_of_loss(settings):
    plan = plan_of_offsets(with_settings(audio_synthetic.get_config(), settings), (1, 2))
    zeros = OffsetSums(*(jnp.zeros(2) for _ in OffsetSums._fields))
    branch = outputs_of()
    with calls(objective, cpc_loss=(jnp.zeros(()), zeros)) as found:
        objective_loss(plan, *init_objective(plan, [branch]), [branch], jax.random.key(0))
    (outputs, _, rule), call = found["cpc_loss"]
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


# Models: fields of their modules.

HALF = {f"{part}.dtype": jnp.dtype("bfloat16") for part in ("encoder", "context", "predictor")}
CODES, RESNET, SEGMENTS = {"num_codes": 32}, {"encoder": "resnet18"}, {"segment_threshold": 0.3}
#: Key -> (value, changed fields, other keys that are set).
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
MODELS = {
    "audio": SIGNALS | {
        "encoder": ("log_mel", {"encoder": "LogMelEncoder"}),
        "num_cepstra": (20, {"encoder.num_cepstra": 20}, {"encoder": "cepstra"}),
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


def config_of(kind, keys):
    paper = {"audio": audio_voices_paper, "image": image_fashion_mnist}.get(kind, CONFIGS[kind])
    return with_settings(paper.get_config(), {f"model.{key}": keys[key] for key in keys})


def fields_of(kind, keys):
    module = CONTRASTIVE[kind].build_model(config_of(kind, keys)).module
    found = fields(module)
    described = fields(build(json.loads(json.dumps(describe(module)))))
    if kind != "image":  # its parts are functions
        assert {name: str(value) for name, value in described.items()} == {
            name: str(value) for name, value in found.items()
        }
    return found


@pytest.mark.parametrize(("kind", "key"), [(k, key) for k, keys in MODELS.items() for key in keys])
def test_model_keys_change_module_fields(kind, key):
    value, expected, *others = MODELS[kind][key]
    before, after = fields_of(kind, dict(*others)), fields_of(kind, {**dict(*others), key: value})
    assert all(before.get(name) != value and after[name] == value
               for name, value in expected.items())  # fmt: skip
    if not any(isinstance(after[one], str) and after[one][:1].isupper() for one in expected):
        assert {name for name in before if before[name] != after.get(name)} == {*expected}


@pytest.mark.parametrize(("key", "word", "changed"), [
    ("predictor", "affine", {"predictor.use_bias": True}),
    ("predictor", "transformers", {"predictor": "TransformersPredictor"}),
    ("context", "conv", {"context": "CausalConv", "context.dilated": True}),
    ("context", "conv_undilated", {"context": "CausalConv", "context.dilated": False}),
    ("context", "transformer", {"context": "CausalTransformer"}),
    ("context", "ssm", {"context": "StateSpace"}),
])  # fmt: skip
def test_choices_of_model_keys(key, word, changed):
    assert changed.items() <= fields_of("audio", {key: word}).items()


@pytest.mark.parametrize("padding", ["causal", "same", "valid"])
@pytest.mark.parametrize("encoder", ["conv", "log_mel"])
def test_audio_padding_gives_the_planned_number_of_latents(encoder, padding):
    config = config_of("audio", {"encoder": encoder, "padding": padding, "width": 32})
    x = jax.ShapeDtypeStruct((2, config.data.window_samples), jnp.float32)
    module = audio_kind.build_model(config).module.encoder
    z = jax.eval_shape(lambda x: module.init_with_output(jax.random.key(0), x)[0], x)
    assert z.shape[1] == audio_kind.num_latents(config)
    labels = {"u": np.arange(300, dtype=np.int32)}
    phones = {"toy": Phones(labels, ("a",) * 300)}
    sound = AudioData(types.SimpleNamespace(names=("u",)), None, phones)
    batch = {"utterance": np.array([0, 0]), "start": np.array([160, 400]), "speaker": np.zeros(2)}
    found = audio_kind.label_latents(config, sound, batch)["phone"]
    assert found.shape == (2, z.shape[1])
    assert found[:, 0].tolist() == [1, 3]  # 400 samples are 2.5 labels


SUP_CON = {"loss.name": "sup_con", **COSINE}


@pytest.mark.parametrize(("settings", "words"), [
    *(({"loss.name": name, **COSINE, "loss.cosine": False}, r"loss\.cosine=True")
      for name in losses.LOSSES if losses.LOSSES[name].description.needs_cosines),
    *(({"loss.name": name, **COSINE, key: value}, r"loss\.bias=0 and loss\.learn_bias=False")
      for name in ("debiased", "hard_weighted")
      for key, value in (("loss.bias", -2.0), ("loss.learn_bias", True))),
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
    ({"optim.accumulate": 3}, "accumulate is 3 and data.batch_size is 8"),
    ({"optim.accumulate": 2, "model.norm": "batch"}, "model.norm is 'batch'"),
    ({"steps_per_launch": 7}, "steps_per_launch 7"),
    ({"kind": "smell"}, "kind must .*'smell'"),
    ({"model.horizon": 11}, "model.horizon is 11 and model.num_offsets is 12"),
    ({"model.horizon": 12, "loss.align_to": 12}, "loss.align_to is 12"),
    ({"model.horizon": 2, "model.num_offsets": 1, "model.segment_threshold": 0.3},
     "model.segment_threshold is 0.3"),
    ({"model.context_blocks": 3}, "3 blocks"),
    ({"model.context_blocks": 2, "model.context": "lstm"}, "gru"),
    *(({f"model.{key}": value}, str(value if isinstance(value, str | int) else value[0]))
      for key, value in (
        ("encoder", "mel"), ("context", "rnn"), ("dtype", "float16"), ("norm", "no"),
        ("padding", "no"), ("directions", ("down",)), ("directions", ("backward",)),
        ("modules", 7))),
])  # fmt: skip
def test_incompatible_keys_are_rejected_before_reading_data(settings, words):
    config = with_settings(audio_voices_paper.get_config(), {"data.batch_size": 8, **settings})
    with pytest.raises(UserError, match=words):
        interpret(CONTRASTIVE["audio"], config)


# Training, on series.


def series_problem(config):
    return problem_of(config, series_kind.load_data(config, str))


def fit(config):
    state = types.SimpleNamespace(params={"model": {}}, ema=None, extra={}, step=0)
    with calls(
        training, make_step=(state, None, None), make_evaluation=None, run_training=(state, "")
    ) as found:
        training.train(pathlib.Path(), series_problem(config), None, make_mesh(1))
    made = found["run_training"][0][2]
    with calls(loop, prefetch=()) as found:
        made.batches(0)
    return {**made._asdict(), **made.cadence._asdict(), **found["prefetch"][1]}


def record_step(config):
    with calls(
        training, make_optimizer=(None, None), make_loss=None, make_state=jnp.zeros(()),
        make_train_step=None, make_launch=None, jit_step=None,
    ) as found:  # fmt: skip
        training.make_step(series_problem(config), make_mesh(1))
    return found


def traced_arguments(config, module, name):
    problem = series_problem(config)
    record = calls(module, **{name: getattr(module, name)})
    with record as found, calls(training, init_state=jnp.zeros(())):
        training.make_state(problem, training.make_loss(problem), None)
    return found[name][0] if found else (None,) * 5


def probed_steps(config):
    return [step for step in range(0, config.num_steps + 1, 10) if probes_due(config, step)]


def trained_parts(config):
    problem = series_problem(config)
    with calls(training, init_state=jnp.zeros(())) as found:
        training.make_state(problem, training.make_loss(problem), None)
    return sorted(found["init_state"][0][0]["model"])


def read_source(config):
    with calls(weights, read_model=None, fit_weights=None) as found:
        weights.read_start(series_kind, config, None)
    return found["read_model"][0][:2] if found else ("", None)


def parts_taken(config):
    model, given = series_kind.build_model(config), series_kind.describe_input(config)
    entries = weights.expected_entries(model.module, given["shape"])
    found = unflatten_dict({k: np.zeros(x.shape) for k, x in entries.items()}, sep="/")
    start = weights.fit_weights(series_kind, config, Pretrained(model.module, found, given))
    return sorted({name.split("/")[1] for name in start.arrays})


TOLD = [("init", (), None), ("log", ({"test/bound/1": 1.5},), 2), ("finish", (), None)]
SHARED = {
    **cases_of("", fit, num_steps=70, steps_per_launch=5, log_every=7, eval_every=20,
               save_every=20),
    **cases_of("data.", fit, num_threads=5),
    **cases_of("optim.", of(record_step, "make_optimizer", 1), name="muon", learning_rate=0.5,
               warmup_steps=3, schedule="constant", clip_norm=0.5, weight_decay=0.5),
    **cases_of("optim.", of(record_step, "make_train_step", 1), ema_decay=0.5),
    "logger": Case("trackio", services.services_of, TOLD),
    "optim.accumulate": Case(2, lambda c: traced_arguments(c, training, "apply_in_parts")[4], 2),
    "negatives.momentum": Case(
        0.75, lambda c: traced_arguments(c, optax, "incremental_update")[2] or 0, 0.25),
    "probe.every": Case(20, probed_steps, [0, 20, 40, 60, 80]),
    "freeze": Case(("encoder",), trained_parts, ["context", "predictor"]),
    "start_from": Case("runs/a", read_source, ("runs/a", None)),
    "start_from_step": Case("best", read_source, ("runs/a", "best"), {"start_from": "runs/a"}),
    "start_from_parts": Case(("context",), parts_taken, ["context"]),
}  # fmt: skip


@pytest.mark.parametrize("key", SHARED)
def test_shared_keys_have_an_effect(key):
    check(SHARED[key], small("series"), key)


@pytest.mark.parametrize("kind", CONTRASTIVE)
def test_every_kind_trains_its_plan(kind, monkeypatch):
    draws = {"audio": "draw_windows", "image": "make_image_batches", "series": "make_windows"}
    draw = draws.get(kind, "make_runs")
    monkeypatch.setattr(f"experiments.kinds.{kind}.kind.{draw}", lambda *args, **options: None)
    config = CONFIGS[kind].get_config()
    config.evaluate = {name: 0 for name in config.evaluate}
    plan, data = plan_of(config), types.SimpleNamespace(train=None, test=None)
    assert CONTRASTIVE[kind].make_problem(plan, data).plan is plan


@pytest.mark.parametrize("kind", [*CONTRASTIVE, "rl"])
def test_every_key_has_a_case(kind):
    keys, cases = set(flatten(CONFIGS[kind].KEYS)), {"kind", *TABLES[kind]}
    if kind != "rl":
        cases |= {*SHARED, *OBJECTIVE, *(f"model.{key}" for key in MODELS[kind])}
    own = pathlib.Path(__file__).with_name(f"test_{kind}.py").read_text()
    named = {key for key in keys if f'"{key}"' in own or key.replace(".", "__") in own}
    assert cases <= keys
    assert keys - cases <= (named if kind in ("series", "text", "rl") else set())


@pytest.mark.parametrize("kind", CONTRASTIVE)
def test_every_choice_of_probe_tasks_is_a_task(kind):
    tasks = importlib.import_module(f"experiments.kinds.{kind}.probes").TASKS
    assert {*tasks} == {*CONTRASTIVE[kind].KEYS["probe"]["tasks"].words}


ROOT = pathlib.Path(configs_rl.__file__).parent
CARDS = sorted(path.stem for path in ROOT.glob("*_*.py") if path.stem[0] != "_")


@pytest.mark.parametrize("card", CARDS)
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
    variables: Any = {"params": {}}
    model = types.SimpleNamespace(init=lambda *_: variables, embed=embed, module=module)
    quiet = calls(training_probes, write_scores=None, print_scores=None)
    with quiet, calls(audio_probes, write_latest=None), calls(audio_recognition, digest=""):
        return make_probe(CONTRASTIVE[kind], config, FOLDER, data, model)(variables, 0)


def probe_calls(load, module, name, get, answer=()):
    def effect(config):
        found = []

        def record(*args, **options):
            found.append(get(args, options))
            return answer(*args) if callable(answer) else answer

        with pytest.MonkeyPatch.context() as patch:
            data = load(config, str)
            patch.setattr(module, name, record)
            probe(config, data)
        return found

    return effect


def option(name):
    return lambda args, options: options[name]


def features_of(args, options):
    return list(args[0])


def num_epochs(args, options):
    return options["updates"].num_epochs


# Series


def drawn(config):
    batch = series_problem(config).draw(0)
    return batch["x"].shape, batch["x"]


series_fits = functools.partial(probe_calls, series_kind.load_data, series_probes, "probe_scores")
LEFT_OUT = probe_calls(
    series_kind.load_data, series_probes, "leave_one_out_scores", lambda args, options: args[0]
)
TABLES: dict[str, dict[str, Case]] = {"series": {
    "seed": Case(1, drawn),
    "data.rate_hz": Case(250.0, lambda c: series_kind.describe_input(c)["rate_hz"] or 0, 250.0),
    "data.correlation": Case(0.1, drawn),
    "data.num_files": Case(
        12, lambda c: len(series_kind.load_data(c, str).train.sequences.names), 12),
    "evaluate.num_windows": Case(9, lambda c: series_problem(c).held_out.number, 3),
    "probe.tasks": Case((), series_fits(option("task")), []),
    "probe.features": Case(("z", "raw"), series_fits(features_of), [["z"], ["raw"]]),
    "probe.hidden_width": Case(5, series_fits(option("hidden_widths")), [(0, 5)] * 4),
    "probe.num_epochs": Case(7, series_fits(num_epochs), [7] * 4),
    "probe.leave_one_out": Case(True, LEFT_OUT, ["c", "z", "raw", "random c"]),
}}  # fmt: skip


# Text


def text_drawn(config):
    batch = problem_of(config, text_data.load_data(config, str)).draw(0)
    return batch["x"].shape, batch["x"]


def record_text_reads(config):
    with calls(text_data.data, read_text_folder=None) as found:
        text_data.read_corpus(config, str)
    (path, *_), options = found["read_text_folder"]
    return {"path": str(path), **options}


def parts_of_text(config):
    made = text_data.load_data(config, str)
    return [len(part.sentence_starts) - 1 for part in (made.train, made.test)]


def with_probes(get):
    def effect(config):
        made, model = text_data.load_data(config, str), text_kind.build_model(config)
        params = {"encoder": {"embedding": np.ones((41, 4), np.float32)}}
        return get(config, made, model, {"params": params})

    return effect


def task_scores(config, made, model, variables):
    context = ProbeContext(config, made, model, variables, FOLDER, 0, FOLDER.joinpath)
    (task,) = text_probes.probe_tasks(config, made)
    sets = text_probes.feature_sets(context, [task])
    return [score for one in sets for score in task.answer(context, one)]


def num_folds(config, made, model, variables):
    made = made._replace(tasks={"movies": (("a b", "b c") * 20, np.arange(40) % 2)})
    given = {"items": np.arange(2), "correct": np.ones(2), "l2s": (1.0,), "num_unconverged": 0}
    config = with_settings(config, {"probe.tasks": ("movies",), "probe.features": ("bag",)})
    with calls(text_probes.evaluate, cross_validate=types.SimpleNamespace(**given)) as found:
        task_scores(config, made, model, variables)
    return found["cross_validate"][1]["num_folds"]


def num_snippets(config):
    config = with_settings(config, {"probe.tasks": ("movies",)})
    rows = {name: [("x", 1.0)] * 9 for name in ("movies", "products", "newspaper")}
    with calls(text_data, read_snippets=rows):
        return len(text_data.read_tasks(config, str)["movies"][0])


OF_TEXTS = {"data.source": "files", "data.path": "texts"}
TABLES["text"] = {
    "seed": Case(1, text_drawn),
    **cases_of("data.", record_text_reads, OF_TEXTS, path="two.txt", form="lines", lowercase=False,
               min_count=60, max_vocabulary=2, max_skipped_fraction=0.2),
    "data.document_fraction": Case(1.0, text_drawn),
    "data.run_sentences": Case(5, lambda c: text_drawn(c)[0], (4, 5, 10)),
    "data.max_words": Case(5, lambda c: text_drawn(c)[0], (4, 6, 5)),
    "data.batch_size": Case(6, lambda c: text_drawn(c)[0], (6, 6, 10)),
    "data.test_fraction": Case(0.5, parts_of_text),
    "data.block_sentences": Case(25, parts_of_text),
    "data.num_documents": Case(30, lambda c: sum(parts_of_text(c)), 1500),
    "data.order": Case(0.1, text_drawn),
    "evaluate.num_runs": Case(9, lambda c: problem_of(
        c, text_data.load_data(c, str)).held_out.number, 3),
    "probe.tasks": Case(("genre", "next"), with_probes(lambda config, made, *_: [
        task.name for task in text_probes.probe_tasks(config, made)]), ["genre", "next"]),
    "probe.features": Case(("mean",), with_probes(lambda *args: {
        one.features for one in task_scores(*args)}), {"mean"}, {"probe.features": ("bag",)}),
    "probe.word_vectors": Case("vectors.txt", with_probes(
        lambda *args: len(text_probes.widen(*args)[0])), 42),
    "probe.num_folds": Case(4, with_probes(num_folds), 4),
    "probe.max_sentences": Case(5, num_snippets, 5),
}  # fmt: skip


# Audio


def load_clips(config, log):
    with calls(audio_data.data, pack_folder=noise((4800,) * 12)):
        return audio_data.load_data(config, log)


def record_packing(config):
    with calls(audio_data.data, pack_folder=noise((4800,) * 12)) as found:
        audio_data.load_data(config, str)
    (root, *_), options = found["pack_folder"]
    return {"path": str(root), **options}


of_clips = functools.partial(from_data, load_clips)
problem_of_clips = functools.partial(of_problem, load_clips)


def names_of(part):
    return of_clips(lambda data: sorted(getattr(data, part).names))


def from_tfds(config):
    with calls(audio_data.data, read_librispeech_tfds=None, pack=synthetic().train) as found:
        audio_data.load_data(with_settings(config, {"data.source": "librispeech_tfds"}), str)
    return found["read_librispeech_tfds"][0][1]


synthetic = functools.cache(lambda: speech(3, 8, 3.0))


def empty_ctc_answer(*_):
    return lambda x: np.zeros((len(x), x.shape[1] // 4 or 1, 5), np.float32), ""


def load_synthetic(config, log):
    return synthetic()


audio_fits = functools.partial(probe_calls, load_synthetic, audio_frames, "probe_scores")
ctc_heads = functools.partial(
    probe_calls, load_synthetic, audio_recognition, "train_on_labels", answer=empty_ctc_answer
)
LAST_FRAME = probe_calls(load_synthetic, audio_frames, "abx_scores", lambda args, options: args[-1])
LAYER_DECAY = probe_calls(
    load_synthetic, audio_recognition, "fit_head", lambda args, options: args[1].layer_decay,
    lambda *_: (lambda xs: [np.zeros((len(x) // 640, 5)) for x in xs], ""),
)  # fmt: skip


def of_task(task):
    return lambda args, options: len(args[2]) if options["task"] == task else None


def probe_delay(config):
    config = with_settings(config, {"probe.tasks": ("speakers",), "probe.features": ("z", "c")})
    z, c = (features[0] for (features,) in audio_fits(lambda args, _: args[0].values())(config))
    return [i for i in range(9) if np.array_equal(2 * z[i : i + 5], c[:5])]


def decoders_of(config):
    with calls(audio_recognition, train_on_labels=empty_ctc_answer()):
        return {score.method for score in probe(config, synthetic())}


def augment_args(config):
    batch = {"x": jnp.zeros((4, 1600), jnp.int16), "scale": jnp.ones(4), "speaker": jnp.zeros(4)}
    with calls(audio_augmentation, unpack=batch, augment_sound=batch["x"]) as found:
        made = audio_augmentation.preprocess(config, batch, jax.random.key(0), True)
    return sorted(made), [found[name][0][2:] for name in found if name == "augment_sound"]


def best_option(config):
    plan = plan_of(config)
    outputs = CPCOutputs(jnp.zeros((4, 8, 2)), jnp.zeros((4, 8, 2)), jnp.zeros((4, 8, 2, 2)))
    branch, sums = BranchOutputs(outputs, Position.grid(4, 8)), [jnp.zeros(2)]
    with calls(objective, acpc_loss=(jnp.zeros(()), sums, jnp.zeros(2))) as found:
        objective_loss(plan, {}, {}, [branch], jax.random.key(0))
    return found["acpc_loss"][1]["best"]


BY_CTC = {"probe.tasks": ("ctc",), "probe.features": ("mfcc",), "probe.ctc_minutes": (0.0,)}
TUNED, PAST = BY_CTC | {"probe.features": ("tuned",)}, {"augment.side": "past"}
TABLES["audio"] = {
    "augment.side": Case("past", augment_args),
    "augment.effects": Case(("dropout",), augment_args, others=PAST),
    **{f"augment.{name}": Case(value, augment_args, others=PAST | {"augment.effects": (effect,)})
       for name, value, effect in (
        ("pitch_cents", 50.0, "pitch"), ("snr_low_db", -10.0, "noise"),
        ("snr_high_db", 60.0, "noise"), ("reverb_seconds", 0.1, "reverb"),
        ("band_hz", 4000.0, "band_reject"), ("dropout_ms", 20.0, "dropout"))},
    "seed": Case(1, problem_of_clips(lambda problem: problem.draw(0)["x"])),
    "data.source": Case("synthetic", names_of("train")),
    **cases_of("data.", record_packing, path="part0", speaker_level=2, max_skipped_fraction=0.2),
    "data.split": Case("test_clean", from_tfds, "test_clean"),
    "data.train_list": Case("train.txt", names_of("train"), ["u0", "u1"],
                            {"data.test_list": "test.txt"}),
    "data.test_list": Case("test.txt", names_of("test"), ["u2", "u3", "u4"],
                           {"data.train_list": "train.txt"}),
    "data.test_fraction": Case(0.6, of_clips(lambda data: len(data.test))),
    "data.phones": Case("phones.txt", of_clips(lambda data: [*data.phones]), ["phones"]),
    "data.file_labels": Case("labels.csv", of_clips(lambda data: data.file_labels), {"u3": "dog"}),
    "data.item_file": Case("toy.item", of_clips(lambda data: [*data.items]), ["toy.item"]),
    "data.window_samples": Case(3200, problem_of_clips(lambda p: p.draw(0)["x"].shape), (4, 3200)),
    "data.one_speaker": Case(True, problem_of_clips(
        lambda p: max(len({*p.draw(i)["speaker"].tolist()}) for i in range(4))), 1),
    "model.horizon": Case(34, audio_kind.choose_offsets, tuple(range(1, 35, 3))),
    "model.num_offsets": Case(1, audio_kind.choose_offsets, (12,), {"model.horizon": 12}),
    "negatives.overlap": Case(True, problem_of_clips(
        lambda problem: "outside_overlap" in problem.plan.rule.name), False),
    "loss.align_to": Case(3, lambda c: plan_of(c).geometry.branches[0].offsets, (2, 3),
                          {"model.num_offsets": 2}),
    "loss.align_by": Case("best", best_option, True, {"loss.align_to": 4, "model.num_offsets": 2}),
    "data.batch_size": Case(6, problem_of_clips(lambda p: p.draw(0)["x"].shape), (6, 1600)),
    "evaluate.num_windows": Case(9, problem_of_clips(lambda problem: (
        problem.held_out.number if problem.held_out else 0)), 3),
    "probe.tasks": Case(("speakers",), audio_fits(option("task")), ["speakers"] * 3),
    "probe.features": Case(("z",), audio_fits(features_of), [["z"]] * 2),
    "probe.delay": Case(2, probe_delay, [2]),
    "probe.hidden_width": Case(0, audio_fits(option("hidden_widths")), [(0,)] * 6),
    "probe.num_epochs": Case(7, audio_fits(num_epochs), [7] * 6),
    "probe.hours": Case(0.005, audio_fits(of_task("phones")), [6, None] * 3),
    "probe.minutes_per_speaker": Case(0.1, audio_fits(of_task("speakers")), [None, 6] * 3),
    "probe.lose_last_frame": Case(True, LAST_FRAME, [True], {
        "probe.tasks": ("abx",), "probe.features": ("mfcc",)}),
    "probe.num_units": Case(
        7, probe_calls(load_synthetic, audio_units, "fit_units", lambda args, options: args[1],
                     lambda *_: Units(np.zeros((7, 39), np.float32), 1.0)), [7], {
            "probe.tasks": ("units",), "probe.features": ("mfcc",)}),
    "probe.layer_decay": Case(0.5, LAYER_DECAY, [0.5], TUNED),
    "probe.ctc_head": Case("lstm", ctc_heads(lambda args, options: [*args[2]["params"]]),
                           [["network", "lstm"]], BY_CTC),
    "probe.ctc_minutes": Case((0.1, 0.2), ctc_heads(lambda args, options: len(args[3](0)["x"])),
                              [8, 8], BY_CTC),
    "probe.ctc_steps": Case(7, ctc_heads(lambda args, options: args[4].num_steps), [7], BY_CTC),
    "probe.ctc_beam": Case(3, decoders_of, {"linear", "linear, beam 3"}, BY_CTC),
}  # fmt: skip


# Images


@functools.cache
def images_of(split):
    number, rng = {"train": 12, "test": 8, "other": 6}[split], np.random.default_rng(len(split))
    pixels = rng.integers(0, 256, (number, 20, 20, 3), np.uint8)
    return Images(pixels, np.arange(number, dtype=np.int32) % 2, ("a", "b"))


def load_images(config, log):
    with calls(image_data.data, read_image_folder=lambda _, split, **how: images_of(split)):
        return image_data.load_data(config, log)


of_images = functools.partial(from_data, load_images)
image_problem = functools.partial(of_problem, load_images)


def image_reads(config):
    names = ("read_image_folder", "read_images_tfds", "locate_images_tfds")
    with calls(image_data.data, **dict.fromkeys(names)) as found:
        for part in image_data.make_reader(config, str):
            part("some")
    return {name: (tuple(map(str, args)), options) for name, (args, options) in found.items()}


def shape_of_image(config):
    return image_kind.describe_input(config)["shape"]


def prepare_calls(config):
    x = jnp.zeros((2, 20, 20, 3), jnp.uint8)
    names = ("cut_for_evaluation", "crop_and_flip", "augment_patches", "jitter_patches")
    found = []
    for train in (True, False):
        with calls(augment, **dict.fromkeys(names, x)) as called:
            image_data.preprocess(config, {"x": x}, jax.random.key(0), train)
        found.append({name: ([one for one in args if isinstance(one, int)], options)
                      for name, (args, options) in called.items()})  # fmt: skip
    return found


def cropped(config):
    train, test = prepare_calls(config)
    assert len(test) == 1  # only a center crop
    return train["crop_and_flip"][0], test["cut_for_evaluation"][1]["crop"]


def classify(x):
    return np.zeros((len(x), 2), np.float32)


def image_fits(get, name):
    home, answer = {
        "fit_linear": (image_probes, (classify, "")),
        "knn_predict": (image_probes.evaluate, lambda train, labels, held: classify(held)),
        "train_on_labels": (image_probes, (classify, "")),
    }[name]
    made = answer if name == "knn_predict" else lambda *_: answer
    return probe_calls(load_images, home, name, get, made)


def relative_layer_rate(args, options):
    """Return the learning rate below the head relative to the head's."""
    params = {"encoder": {"conv0": jnp.ones(1)}, "head": jnp.ones(1)}
    tx = args[4].tx
    state = tx.init(params)
    for _ in range(3):  # warm-up starts at 0
        found, state = tx.update(params, state, params)
    return round(float(found["encoder"]["conv0"][0] / found["head"][0]), 5)


def count_tested_images(config):
    """Return how many of ten images are tested, in 10 groups at level 2 and 2 at level 3."""
    images = Images(np.zeros((10, 2, 2, 1), np.uint8), np.zeros(10, np.int32), ("a",),
                    describe=lambda number: f"/in/one/{number}/{number % 2}/x.png")  # fmt: skip
    return len(image_data.split_groups(config, [images] * 3)[-1])


FEW, LINEAR, KNN = (
    {"probe.tasks": (task,), "probe.features": ("z",)} for task in ("few_labels", "linear", "knn")
)
FINE_TUNED = {"probe.tasks": ("few_labels", "fine_tuned"), "probe.features": (),
              "probe.fractions": (1.0,)}  # fmt: skip
WIDTH = image_fits(lambda args, options: args[1].shape[1], "fit_linear")
COUNT = image_fits(lambda args, options: len(args[1]), "fit_linear")
IN_GROUPS = {"data.source": "folder", "data.path": "/in", "data.split": "one",
             "data.test_split": "one", "data.group_level": 2}  # fmt: skip
TABLES["image"] = {
    "seed": Case(1, image_problem(lambda problem: problem.draw(0)["image"])),
    "data.source": Case("tfds", image_reads, others={"data.name": "mnist"}),
    "data.name": Case("cifar10", lambda c: {
        name: (*args, *options.values()) for name, (args, options) in image_reads(c).items()}, {
            "read_images_tfds": ("images", "cifar10", "some", 20, 3, 0.1, str),
            "locate_images_tfds": ("images", "cifar10", "some")},
        {"data.source": "tfds", "data.name": "mnist"}),
    "data.path": Case("two", lambda c: image_reads(c)["read_image_folder"][0], ("two", "some")),
    **cases_of("data.", of(image_reads, "read_image_folder", 1), size=10, channels=1,
               max_skipped_fraction=0.2),
    "data.split": Case("other", of_images(lambda data: len(data.train)), 6),
    "data.probe_split": Case("other", of_images(lambda data: len(data.probe)), 6),
    "data.test_split": Case("other", of_images(lambda data: len(data.test)), 6),
    "data.group_level": Case(3, count_tested_images, 5, IN_GROUPS),
    "data.test_fraction": Case(0.5, count_tested_images, 5, IN_GROUPS),
    "model.first_offset": Case(1, image_kind.choose_offsets, (1,), {"model.stride": 4}),
    "model.patch": Case(6, shape_of_image, [2, 2, 6, 6, 3]),
    "model.stride": Case(4, shape_of_image, [3, 3, 8, 8, 3]),
    "data.batch_size": Case(2, image_problem(lambda problem: problem.draw(0)["x"].shape[0]), 2),
    "augment.crop": Case(8, cropped, ([8], 8)),
    "augment.grey": Case(True, lambda c: [
        one["cut_for_evaluation"][1]["grey"] for one in prepare_calls(c)], [True, True]),
    "augment.jitter": Case(5, lambda c: prepare_calls(c)[0].get("jitter_patches", ([],))[0], [5]),
    **cases_of("augment.", lambda c: prepare_calls(c)[0]["augment_patches"][1], color_drop=1.0,
               rotation_degrees=30.0, shear=0.3, elastic_pixels=2.0, brightness=0.5, contrast=0.5),
    "evaluate.num_images": Case(3, image_problem(lambda p: p.held_out.number), 1),
    "probe.tasks": Case(("few_labels",), COUNT, others=LINEAR),
    "probe.features": Case(("pixels",), WIDTH, [20 * 20 * 3], {"probe.tasks": ("linear",)}),
    "probe.regions": Case(1, WIDTH, [3], LINEAR | {"probe.regions": 2}),
    "probe.solver": Case("lbfgs", image_fits(lambda args, options: args[0], "fit_linear"),
                         ["lbfgs"], LINEAR),
    "probe.num_images": Case(5, COUNT, [5], LINEAR),
    "probe.num_neighbours": Case(
        3, image_fits(lambda args, options: options["k"], "knn_predict"), [3], KNN),
    "probe.fractions": Case((1.0,), COUNT, [12], FEW),
    "probe.num_subsets": Case(1, COUNT, [6, 12], FEW),
    "probe.num_epochs": Case(
        100, image_fits(lambda args, options: args[4].num_steps, "train_on_labels"), [275],
        {"probe.tasks": ("supervised",)}),  # one of 12 images is held out
    "probe.layer_decay": Case(
        0.5, image_fits(relative_layer_rate, "train_on_labels"), [0.5, 1.0], FINE_TUNED),
}  # fmt: skip


# Agents


def agent(config):
    return fields(rl_step.make_task(config).agent)


@functools.cache
def record_task(text):
    config = with_settings(configs_rl.get_config(), json.loads(text))
    names = {rl: ("make_environment", "begin", "roll_out", "gae", "ppo_loss"),
             rl_step: ("make_optimizer", "cpc_loss", "to_cosines")}  # fmt: skip
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(calls(module, **{name: getattr(module, name) for name in own}))
            for module, own in names.items()
        ]
        jax.eval_shape(rl_step.make_task(config).init, 0)
    return found[0] | found[1]


def record_agent(config):
    return record_task(json.dumps(flatten(config)))


def argument(name, which):
    return lambda config: record_agent(config).get(name, ((None,) * 9, {}))[0][which]


def count_resets(config):
    with calls(rl, side_by_side=rl.side_by_side) as found:
        rl_step.make_task(config).many(9)
    return found["side_by_side"][1]["num_resets"]


class Seeded(NamedTuple):
    params: Any


def record_agent_fit(config):
    task = rl_step.make_task(config)._replace(init=Seeded)
    jitted = calls(rl_run, run_training=(Seeded(0), ""), jit_step=None)
    with jitted as found, calls(rl_run.evaluate, describe=["a record"]):
        mesh = make_mesh(devices=jax.devices()[:1])
        rl_run.train(config, task, lambda params, seed: seed, FOLDER, mesh)
        made = found["run_training"][0][2]
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
    "environment.resets": Case(2, count_resets, 2),
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
    "cpc.rule": Case("own_sequence", lambda c: argument("cpc_loss", 2)(c).name,
                     "own_sequence"),
    "cpc.cosine": Case(False, lambda c: argument("to_cosines", 0)(c) is None, True),
    "cpc.temperature": Case(0.5, of(record_agent, "cpc_loss", 1, "temperature"), 0.5),
    **cases_of("optim.", of(record_agent, "make_optimizer", 1), name="rmsprop", learning_rate=0.5,
               schedule="linear", clip_norm=0.5),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "key"), [(k, key) for k, keys in TABLES.items() for key in keys])
def test_keys_of_a_kind_have_an_effect(kind, key):
    check(TABLES[kind][key], small(kind), key)


@pytest.mark.parametrize("config", ["rl_t_maze", "text_words"])
def test_single_device_kinds_reject_several_processes(monkeypatch, tmp_path, config):
    for name, value in {"COORDINATOR_ADDRESS": "127.0.0.1:1", "NUM_PROCESSES": "2"}.items():
        monkeypatch.setenv(f"JAX_{name}", value)
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    with pytest.raises(UserError, match="got 2 processes"):
        run_config(importlib.import_module(f"configs.{config}").get_config(), str(tmp_path))
