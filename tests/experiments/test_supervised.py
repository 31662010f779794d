"""Networks trained on labels: loss, training loop, audio and image classifiers."""

import functools
import re
import signal
import types
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from configs import audio_synthetic, image_fashion_mnist
from cpc import data
from cpc.data import Images
from cpc.data.recordings import root_mean_square
from cpc.models import ConvEncoder, Model
from cpc.results import Score, read_scores
from cpc.train import init_state, jit_step, make_mesh, replicate, scale_by_layer
from cpc.types import UserError
from experiments.bench.step import count_compilations
from experiments.command.config import with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio import probes as audio_probes
from experiments.kinds.audio import supervised as audio_supervised
from experiments.kinds.audio import tasks as audio_frames
from experiments.kinds.audio.data import AudioData, Frames, Phones, frame_samples
from experiments.kinds.image import kind as image
from experiments.kinds.image import probes as image_supervised
from experiments.training.contrastive import make_probe
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask
from experiments.training.supervised import (
    PATIENCE,
    Recipe,
    cool_down,
    cross_entropy,
    make_own_optimizer,
    plan_evaluations,
    train_on_labels,
    train_until_best,
)
from tests.data.packages import recordings_of

LOSS = jax.jit(jax.value_and_grad(cross_entropy))


def test_cross_entropy_ignores_unlabelled_rows():
    rng = np.random.default_rng(0)
    scores = 5 * rng.standard_normal((3, 4, 6))
    labels = rng.integers(-1, 6, (3, 4)).astype(np.int32)
    kept, own = scores[labels >= 0], labels[labels >= 0]
    log_p = kept - np.log(np.exp(kept).sum(1, keepdims=True))
    expected = -log_p[np.arange(len(own)), own].mean()
    scores[labels < 0] = np.nan
    value, gradient = LOSS(jnp.float32(scores), labels)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert (np.asarray(gradient)[labels < 0] == 0).all()
    shares = np.exp(log_p) - np.eye(6)[own]
    np.testing.assert_allclose(np.asarray(gradient)[labels >= 0], shares / len(own), atol=1e-7)
    value, gradient = LOSS(jnp.float32(scores), np.full_like(labels, -1))
    assert (float(value), float(jnp.abs(gradient).max())) == (0.0, 0.0)
    assert cross_entropy(jnp.ones((2, 4), jnp.bfloat16), jnp.array([0, 3])).dtype == jnp.float32


def toy(
    unlabelled=0.0, num_steps=40, stop_at=None, drawn=None, accuracy=None, evaluate_every=1,
    save_every=0, **options,
):  # fmt: skip
    """Train a scalar model on rows that are separable only after subtracting their mean."""

    def centred(params, extra, batch, rng, train):
        mean = batch["x"].mean() if train else extra["mean"]
        return (batch["x"] - mean) * params, {"mean": mean}

    def draw(step):
        if drawn is not None:
            drawn.append(step)
        if step == stop_at:
            signal.raise_signal(signal.SIGTERM)
        label = np.random.default_rng(step).permutation(np.arange(8) % 2)
        label = np.where(np.arange(8) < 6, label, -1).astype(np.int32)
        x = 100 + np.where(label >= 0, 2.0 * label - 1, unlabelled)
        return {"x": x[:, None].astype(np.float32), "label": label}

    records = []
    writer: Any = types.SimpleNamespace(write=records.append, close=lambda: None)
    config = {"log_every": 10, "save_every": save_every, "data": {"num_threads": 2}}
    answer, words = train_on_labels(
        ConfigDict(config), centred, {"params": jnp.ones(1), "mean": jnp.zeros(())}, draw,
        Recipe(optax.adam(0.1), num_steps, evaluate_every, accuracy),
        num_classes=2, rng=jax.random.key(0), writers=(writer,), **options,
    )  # fmt: skip
    return answer, words, records


def near(share):
    """Return an accuracy that peaks when the confidence of the network is `share`."""

    def accuracy(answer):
        return 1 - abs(float(jnp.exp(answer(np.array([[100.1]], np.float32))).max()) - share)

    return accuracy


def test_training_learns_the_labels():
    answer, words, records = toy()
    assert words == "best at step 40 of 40, the most"  # nothing is held out
    one_step = toy(num_steps=1, accuracy=lambda _: 0.5)[1]
    assert one_step == "best at step 0 of 1, the most"  # without a cooldown
    log_p = np.asarray(answer(np.array([[99.0], [101.0]], np.float32)))
    np.testing.assert_allclose(np.exp(log_p).sum(1), 1, rtol=1e-6)
    assert log_p.argmax(1).tolist() == [0, 1]
    assert np.exp(log_p).max(1).min() > 0.9
    assert [record["step"] for record in records] == [10, 20, 30, 40]
    assert records[-1]["loss"] < records[0]["loss"] < np.log(2)


@pytest.mark.parametrize(("accuracies", "best", "last"), [
    ([*[0.1] * 4, 0.5, 0.9, *[0.8] * 99], 10, 26),
    ([0.1, 0.5, 0.9, *[0.8] * 99], 4, 24),  # scores before the first four evaluations do not count
    ([0.5, 0.5, *[np.nan] * 98], 0, 24),  # neither equal accuracy nor NaN is an improvement
    ([*range(32), *[0] * 9], 63, 79),
])  # fmt: skip
def test_training_stops_when_accuracy_stops_improving(accuracies, best, last):
    """Stop after six evaluations without improvement; the cooldown is a fifth of the steps."""
    given, found = iter(accuracies), []
    due, cooldown = plan_evaluations(Recipe(optax.identity(), 80, 2, len))

    def advance(state, end):  # a step adds 1 to everything
        params, own = (one + end - state.step for one in (state.params, state.extra["own"]))
        extra = {**state.extra, "own": own}
        return state._replace(step=jnp.int32(end), params=params, extra=extra), ""

    def measure(state):
        found.append((int(state.step), float(state.params), float(state.extra["own"])))
        return next(given)

    zero, tx = jnp.zeros(()), optax.chain(cool_down())
    kept = {"params": zero, "extra": zero, "step": jnp.int32(0), "accuracy": jnp.float32(-1)}
    state = init_state(zero, {"own": zero, "best": kept}, tx, jax.random.key(0), {})
    state, reason = train_until_best(state, advance, measure, due, cooldown)
    assert (reason, PATIENCE, int(state.step)) == ("", 6, last)
    constant = [step for step in (*range(0, 62, 2), 63, 66) if 1.2 * step < last + 1]
    begin = constant[-1]
    assert found == [*((n, n, n) for n in constant), (last, *[best + last - begin] * 2)]
    kept = state.extra["best"]
    assert [int(kept[name]) for name in ("step", "params", "extra")] == [best] * 3
    assert [int(at) for at in state.opt_state[-1][1:]] == [begin, last]


def test_cooldown_starts_from_the_best_parameters(monkeypatch):
    """Compare with a hand-written loop: best at step 4, cooldown in steps 20 to 23."""
    given, made = iter([0.1, 0.5, 0.9, *[0.8] * 8, 0.95]), []
    monkeypatch.setattr("cpc.train.jit_step", lambda *a: made.append(jit_step(*a)) or made[-1])
    answer, words, records = toy(num_steps=80, accuracy=lambda _: next(given), evaluate_every=2)
    assert words == "best at step 24 of 24"
    assert [step._cache_size() for step in made] == [1]
    held = [(one["step"], one["accuracy"]) for one in records if one["split"] == "held-out"]
    assert held == [*zip(range(0, 22, 2), [0.1, 0.5, 0.9, *[0.8] * 8], strict=True), (24, 0.95)]
    tx, kept = optax.adam(0.1), {}

    @jax.jit
    @jax.grad
    def gradient(params, x, label):
        scale, weight, bias = params
        scores = x[:, None] * scale @ weight + bias
        return optax.softmax_cross_entropy_with_integer_labels(scores, label).mean()

    params = jnp.ones(1), jnp.zeros((1, 2)), jnp.zeros(2)
    state, advance = tx.init(params), jax.jit(tx.update)
    for step, rate in enumerate([*[1.0] * 21, 3 / 4, 1 / 2, 1 / 4]):
        kept[step] = params
        params = kept[4] if step == 20 else params
        label = np.random.default_rng(step).permutation(np.arange(8) % 2)[:6]
        x = 2.0 * label - 1
        mean = x.sum() / 8  # the two unlabelled rows are 0
        update, state = advance(gradient(params, x - mean, label), state)
        params = jax.tree.map(lambda one, own, rate=rate: one + rate * own, params, update)
    scale, weight, bias = params
    expected = jax.nn.log_softmax(jnp.array([[0.5 - mean]]) * scale @ weight + bias)
    np.testing.assert_allclose(answer(np.array([[100.5]], np.float32)), expected, rtol=1e-4)


@pytest.mark.parametrize(("accuracy", "stop_at", "best"), [
    (None, 12, 40), (near(0.76), 45, 20), (near(0.7), 105, 120),
])  # fmt: skip
def test_resumed_training_equals_uninterrupted_training(tmp_path, accuracy, stop_at, best):
    x, drawn, folder = np.array([[99.0], [100.5]], np.float32), [], tmp_path / "labels"
    options = {"num_steps": 400 if accuracy else 40, "accuracy": accuracy, "evaluate_every": 10}
    expected, words, _ = toy(**options)
    assert words.startswith(f"best at step {best} of ")
    options |= {"folder": folder, "save_every": 20, "settings": {"seed": 0}, "drawn": drawn}
    with pytest.raises(UserError, match=r"SIGTERM at step \d+"):
        toy(stop_at=stop_at, **options)
    for first in (stop_at, None):  # a finished training is not repeated
        drawn.clear()
        answer, same_words, _ = toy(**options)
        np.testing.assert_array_equal(answer(x), expected(x))
        assert same_words == words
        assert drawn[0] == 0  # one batch is drawn for its shapes
        assert 0 not in drawn[1:]
        assert bool(drawn[1:]) == bool(first)
    if accuracy is None:  # checkpoints of another training are not used
        drawn.clear()
        toy(**{**options, "settings": {"seed": 1}})
        assert drawn.count(0) == 2


@pytest.mark.parametrize(("step", "number"), [(20, 3), (120, 12)])
def test_signal_during_an_evaluation_stops_training(tmp_path, step, number):
    x, seen, drawn = np.array([[99.0], [100.5]], np.float32), [], []

    def interrupted(answer):
        seen.append(answer)
        if len(seen) == number:
            signal.raise_signal(signal.SIGTERM)
        return near(0.76)(answer)

    options = {"num_steps": 400, "evaluate_every": 10, "folder": tmp_path / "labels"}
    with pytest.raises(UserError, match=f"SIGTERM at step {step}:"):
        toy(accuracy=interrupted, **options)
    answer, words, _ = toy(accuracy=near(0.76), drawn=drawn, **options)
    assert words == "best at step 20 of 120"
    np.testing.assert_array_equal(answer(x), toy(num_steps=20)[0](x))
    assert all(one >= step for one in drawn[1:])


@pytest.fixture
def config():
    return with_settings(audio_synthetic.get_config(), {
        "num_steps": 40, "log_every": 60, "optim.warmup_steps": 5, "optim.learning_rate": 1e-2,
        "optim.weight_decay": 1e-3, "data.window_samples": 2560, "data.batch_size": 8,
        "model.width": 16, "model.context_width": 16, "model.num_offsets": 3,
        "probe.features": ("supervised",),
    })  # fmt: skip


@pytest.fixture(scope="module")
def sound():
    """Return tones whose pitch gives phone and speaker; the first frame is unlabelled."""
    rng, labels, sounds = np.random.default_rng(0), {}, []
    lengths = 160 * np.array([10, *rng.integers(20, 40, 27), *[30] * 12])  # few shapes to test
    for i, length in enumerate(lengths):
        phones = np.repeat(rng.integers(0, 2, 5), 8)[: length // 160].astype(np.int32)
        phase = 2 * np.pi * np.cumsum(np.repeat(400.0 * 2 ** (2 * phones + i % 2), 160)) / 16000
        sounds.append((8000 * np.sin(phase)).astype(np.int16))
        phones[0] = -1
        labels[f"u{i}"] = phones
    rms = np.array([root_mean_square(sound) for sound in sounds], np.float32)
    recordings = recordings_of(sounds, "ab" * 20, rms=rms)
    train, test = data.select(recordings, range(28)), data.select(recordings, range(28, 40))
    return AudioData(train, test, {"toy": Phones(labels, ("low", "high"))})


def test_scores_of_audio(config, sound, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audio_supervised, "MAX_RUNS", 5)
    model = audio.build_model(config)
    context = ProbeContext(config, None, model, None, tmp_path, 0, tmp_path.joinpath)
    (question,) = audio_frames.phone_tasks(config, sound)
    (score,) = question.answer(context, FeatureSet("supervised", Frames({}, 160)))
    assert (score.task, score.data, score.unit) == ("phones", "toy", "frame")
    assert (score.features, score.method) == ("supervised", "linear")
    assert score.value > 0.9, score
    assert score.low > score.chance, score
    assert re.fullmatch(r"l2 0\.001, best at step \d+ of \d+(, the most)?", score.setting)
    trained, tested = (int(part.lengths.sum()) // 160 for part in (sound.train, sound.test))
    assert (score.num_train, score.num_test) == (trained - 28, tested - 12)
    assert len(score.outcomes.sums) == 12
    said = capsys.readouterr().out
    assert "/200  loss" in said
    assert ", by 3 held-out utterances of 28\n" in said


def test_early_stopping_utterances_and_settings_of_a_training(config, sound, tmp_path, monkeypatch):
    def end(*args, settings, **_):
        given.append(settings)
        answer = lambda x: np.zeros((len(x), x.shape[1] // 160, 2), np.float32)  # noqa: E731
        args[4].accuracy(answer)
        return answer, "ended"

    batches, read_all = mock.Mock(wraps=data.make_batches), mock.Mock(wraps=data.read_all)
    for name, own in (("make_batches", batches), ("train_on_labels", end), ("read_all", read_all)):
        monkeypatch.setattr(audio_supervised, name, own)
    model, few, held = audio.build_model(config), data.select(sound.train, range(12)), []
    labels, given = [np.zeros(int(n) // 160, np.int32) for n in few.lengths], []
    train = functools.partial(audio_supervised.train_supervised, config, tmp_path, model, few)
    for config.seed in 2 * [*range(4)]:
        read_all.reset_mock()
        train(labels, 2, {})
        drawn = batches.call_args[0][0]
        read = {part.names[i] for (part, i), _ in read_all.call_args_list}
        assert not {*drawn.names} & read
        assert {*drawn.names} | read == {*few.names}
        assert (len(read), max(drawn.lengths)) == (1, max(few.lengths))
        held.append(tuple(read))
    assert len(set(held[:4])) > 1
    assert held[:4] == held[4:]
    given.clear()
    others = [np.maximum(own, i == 3) for i, own in enumerate(labels)]
    for own in ((labels, 2), (labels, 2), (others, 2), (labels, 3)):
        train(*own, {})
    assert [one == given[0] for one in given] == [True, True, False, False]


def test_labels_are_sampled_at_the_middle_of_each_frame(config, sound, tmp_path, monkeypatch):
    encoder, given = ConvEncoder(4, strides=(5, 4, 2, 2, 4)), []
    model: Any = types.SimpleNamespace(module=types.SimpleNamespace(encoder=encoder))
    monkeypatch.setattr(
        audio_frames.evaluate, "probe_scores", lambda *args, **_: given.append(args) or []
    )
    (question,) = audio_frames.phone_tasks(config, sound)
    context = ProbeContext(config, None, model, None, tmp_path, 0, tmp_path.joinpath)
    names = {name: name for part in question.parts for name in part.names}
    for feature, stride in (("c", 320), ("mfcc", 160)):
        assert frame_samples(feature, model) == stride
        question.answer(context, FeatureSet(feature, Frames(names, stride)))
        train, test, *labels = given.pop()
        for features, found in zip((train, test), labels, strict=True):
            for name, own in zip(features[feature], found, strict=True):
                every = np.repeat(sound.phones["toy"].labels[name], 160)
                assert own.tolist() == every[stride // 2 :: stride][: len(own)].tolist()
                assert len(own) == len(every) // stride


def test_each_utterance_is_embedded_once_without_recompilation(config, sound, monkeypatch):
    model = audio.build_model(config)
    x = jnp.zeros((1, 2560))
    variables = jax.jit(model.init)(jax.random.key(0), {"x": x})
    train, test = (data.select(part, range(2)) for part in (sound.train, sound.test))
    given: Any = (config, None, model, replicate(variables, make_mesh(1)), *[None] * 3)
    embed = functools.partial(audio_probes.embed, ProbeContext(*given))
    random = embed(("random c", "random z"), [train, test])
    read_all = mock.Mock(wraps=data.read_all)
    monkeypatch.setattr(audio_probes, "read_all", read_all)
    with count_compilations() as compilations:
        both = embed(("c", "z"), [train, test, test])
        assert compilations() == 0
    read = [part.names[i] for (part, i), _ in read_all.call_args_list]
    assert sorted(read) == sorted((*train.names, *test.names))
    alone = embed(("c", "W_1 c"), [train, test])
    for i, name in enumerate(train.names):
        wanted = jax.jit(model.embed)(variables, jnp.asarray(data.read_all(train, i)[None]))
        for feature, found in zip("zc", wanted, strict=True):
            np.testing.assert_allclose(both[feature][name], found[0], atol=1e-5)
            assert np.abs(random[f"random {feature}"][name] - found[0]).max() > 0.01
        np.testing.assert_array_equal(both["c"][name], alone["c"][name])
        outputs, _ = model.apply(variables, {"x": jnp.asarray(data.read_all(train, i)[None])})
        nearest = outputs.predictions[0, :, 0]
        np.testing.assert_allclose(alone["W_1 c"][name], nearest, atol=1e-5)


def dark_and_light():
    config = image_fashion_mnist.get_config()
    config.data.batch_size, config.probe.num_epochs, config.probe.regions = 4, 1, 1
    config.optim.name, config.optim.learning_rate = "adam", 0.1
    labels = np.arange(20, dtype=np.int32) % 2
    pixels = np.random.default_rng(0).integers(0, 9, (20, 2, 2, 1)) + 200 * labels[:, *[None] * 3]
    model = Model(
        init=lambda rng, batch: {"params": {"scale": jnp.ones(3)}},
        apply=lambda *args: None,
        embed=lambda variables, x: (x * variables["params"]["scale"], None),
        linear_maps=lambda params: None,
        module=None,
    )
    preprocess = lambda batch, rng, train: {"x": jnp.float32(batch["x"]) / 255 - 0.5}  # noqa: E731
    return config, Images(pixels.astype(np.uint8), labels, ("dark", "light")), model, preprocess


def test_image_classifier_starts_from_scratch_or_pretrained_weights():
    config, images, model, preprocess = dark_and_light()
    pixels, labels = images.pixels, images.labels
    learned = replicate({"params": {"scale": jnp.array([1.0, 2.0, 3.0])}}, make_mesh(8))
    for start in (None, learned):
        answer, _ = image_supervised.train_classifier(config, images, model, preprocess, start)
        assert answer(pixels).tolist() == labels.tolist()
    config.probe.num_epochs = 30  # 150 steps are more than enough
    answer, words = image_supervised.train_classifier(
        config, images, model, preprocess, None, images
    )
    assert answer(pixels).tolist() == labels.tolist()
    assert "the most" not in words


def test_image_classifier_resumes_unless_labels_changed(monkeypatch, tmp_path):
    config, images, *others = dark_and_light()
    take = mock.Mock(return_value=((lambda x: x), ""))
    monkeypatch.setattr(image_supervised, "train_on_labels", take)
    wrong = Images(images.pixels, 1 - images.labels, images.class_names)
    for own, stop_by in ((images, None), (images, images), (wrong, images)):
        image_supervised.train_classifier(config, own, *others, None, stop_by, tmp_path)
    stops = [args[4].accuracy is not None for args, _ in take.call_args_list]
    given = [own for _, own in take.call_args_list]
    assert stops == [False, True, True]
    assert {own["folder"] for own in given} == {tmp_path}
    assert given[0]["settings"] == given[1]["settings"] != given[2]["settings"]


def test_classifiers_use_the_optimizer_of_the_run_with_a_short_warm_up(config, monkeypatch):
    made = mock.Mock(return_value=(optax.scale_by_sign(), None))
    monkeypatch.setattr("experiments.training.step.make_optimizer", made)
    config.optim.warmup_steps, params = 100, {"encoder": {"conv0": 1.0}}
    for config.optim.name in ("lion", "schedule_free"):
        tx = make_own_optimizer(config, 100, 0.5, ("encoder",), "cosine")
        assert tx.update(params, tx.init(params))[0] == {"encoder": {"conv0": 0.5}}
    given = [options for _, options in made.call_args_list]
    assert [options["name"] for options in given] == ["lion", "adam"]
    own = {"num_steps": 100, "warmup_steps": 10, "schedule": "cosine"}
    own |= {name: config.optim[name] for name in ("learning_rate", "clip_norm", "weight_decay")}
    assert own.items() <= given[0].items()


def test_fine_tuning_updates_batch_norm_statistics(monkeypatch):
    config, images, model, preprocess = dark_and_light()

    def apply(variables, x, train, *, method, mutable):
        assert (train, method, mutable) == (True, "encode", ["batch_stats"])
        z = 2 * x * variables["params"]["scale"]
        return z, {"batch_stats": variables["batch_stats"] + 1}

    def take(config, features, variables, draw, recipe, **options):
        for train in (True, False):
            given = variables["params"], {"batch_stats": 0}, {"x": images.pixels}
            x, found = features(*given, options["rng"], train)
            want = (1 + train) * preprocess({"x": images.pixels}, None, train)["x"].mean((1, 2))
            np.testing.assert_allclose(x, np.tile(want, 3), rtol=1e-6)
            assert found == {"batch_stats": int(train)}
        return lambda x: x, ""

    monkeypatch.setattr(image_supervised, "train_on_labels", take)
    model = model._replace(module=types.SimpleNamespace(apply=apply))
    start = {"params": {"scale": jnp.ones(3)}, "batch_stats": 0}
    image_supervised.train_classifier(config, images, model, preprocess, start)


@pytest.mark.parametrize("encoder", ["small", "resnet18"])
def test_layer_decay_orders_image_encoder_layers_by_depth(encoder):
    config = image_fashion_mnist.get_config()
    config.model.encoder, config.model.stages = encoder, 2
    batch = jnp.zeros((1, *image.describe_input(config)["shape"]))
    params = jax.eval_shape(image.build_model(config).init, jax.random.key(0), {"x": batch})
    tx = scale_by_layer(0.5, ("encoder",))
    rates, _ = tx.update(jax.tree.map(lambda _: 1.0, params["params"]), optax.EmptyState())
    found = {name: {*jax.tree.leaves(own)} for name, own in rates["encoder"].items()}
    order = sorted(name for name in found if name != "stem")[::-1]
    order += ["stem"] if "stem" in found else []
    assert [found[name] for name in order] == [{0.5**depth} for depth in range(1, len(found) + 1)]
    assert len(found) > 2


def test_interrupted_probes_keep_scores_and_checkpoints(config, tmp_path, monkeypatch):
    score = Score("phones", "first", "frame", "supervised", "whole network", "accuracy", 0.5)
    config.probe.tasks, found = ("phones",), []
    networks = tmp_path / "probes" / "networks-3"
    (networks / "of another command").mkdir(parents=True)

    def train(context, features):
        found.append(context.folder_of("first").exists())
        context.folder_of("first").mkdir(parents=True, exist_ok=True)
        return [score]

    def interrupt(context, features):
        yield score._replace(data="second")
        if len(found) < 3:
            raise KeyboardInterrupt

    tasks = [ProbeTask("phones", answer) for answer in (train, interrupt)]
    monkeypatch.setattr(audio_probes, "TASKS", {"phones": lambda *_: tasks})
    model = audio.build_model(config)
    variables = jax.eval_shape(model.init, jax.random.key(0), {"x": jnp.zeros((1, 5120))})
    probe = functools.partial(
        make_probe(audio, config, tmp_path, AudioData(None, None, {}), model), variables
    )
    for step in (3, 4):  # each step has its own networks
        with pytest.raises(KeyboardInterrupt):
            probe(step)
    kept = sorted((one.step, one.data) for one in read_scores(tmp_path))
    assert kept == [(3, "first"), (3, "second"), (4, "first"), (4, "second")]
    probe(3)
    probe(3)
    assert found == [False, False, True, False]
    assert [path.name for path in networks.iterdir()] == ["of another command"]
    (networks / "of another command").rmdir()
    probe(3)
    assert not networks.exists()
