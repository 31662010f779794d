"""Networks trained whole on labels: the loss, the loop, the scores of audio, the one of images."""

import re
import signal
import types
from typing import Any

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
from cpc.train import make_mesh, replicate
from cpc.types import UserError
from experiments.bench.step import count_compilations
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio import probes as audio_probes
from experiments.kinds.audio import supervised as audio_supervised
from experiments.kinds.audio import tasks as audio_frames
from experiments.kinds.audio.data import AudioData, Frames, Phones, frame_samples
from experiments.kinds.image import kind as image
from experiments.kinds.image import probes as image_supervised
from experiments.training.contrastive import make_probe
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask, kept_until_done
from experiments.training.supervised import (
    PATIENCE,
    Recipe,
    cross_entropy,
    hold_out,
    make_own_optimizer,
    train_on_labels,
)

LOSS = jax.jit(jax.value_and_grad(cross_entropy))


def test_cross_entropy_is_that_of_the_labelled_rows():
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
    """Rows far from zero, told apart once their mean, which the network keeps, is taken off."""

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

    class Keep:
        def write(self, record):
            records.append(record)

        def close(self):
            pass

    config = {"log_every": 10, "save_every": save_every, "data": {"num_threads": 2}}
    answer, words = train_on_labels(
        ConfigDict(config), centred, {"params": jnp.ones(1), "mean": jnp.zeros(())}, draw,
        Recipe(optax.adam(0.1), num_steps, evaluate_every, accuracy),
        num_classes=2, rng=jax.random.key(0), writers=(Keep(),), **options,
    )  # fmt: skip
    return answer, words, records


def near(share):
    """An accuracy that is highest on the way: the network becomes ever surer."""

    def accuracy(answer):
        return 1 - abs(float(jnp.exp(answer(np.array([[100.1]], np.float32))).max()) - share)

    return accuracy


def test_a_network_learns_what_labels_say():
    answer, words, records = toy()
    assert words == "best at step 40 of 40, the most"  # nothing is held out: the last counts
    log_p = np.asarray(answer(np.array([[99.0], [101.0]], np.float32)))
    np.testing.assert_allclose(np.exp(log_p).sum(1), 1, rtol=1e-6)
    assert log_p.argmax(1).tolist() == [0, 1]
    assert np.exp(log_p).max(1).min() > 0.9
    assert [record["step"] for record in records] == [10, 20, 30, 40]
    assert records[-1]["loss"] < records[0]["loss"] < np.log(2)


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [
        ([*[0.1] * 4, 0.5, 0.9, *[0.8] * 99], "best at step 10 of 26"),
        ([0.1, 0.5, 0.9, *[0.8] * 99], "best at step 4 of 24"),  # the first four do not count
        ([0.5, 0.5, *[np.nan] * 98], "best at step 0 of 24"),  # as good is not better, nor NaN
        (np.r_[np.arange(32), [0] * 9], "best at step 63 of 79, the most"),
    ],
)
def test_a_training_ends_when_it_does_not_improve(accuracies, words):
    """Six in a row that are no better, or its steps end it, and a cooldown of a fifth of them."""
    given = iter(accuracies)
    answer, said, records = toy(num_steps=80, accuracy=lambda _: next(given), evaluate_every=2)
    assert (said, PATIENCE) == (words, 6)
    best, last = (int(word.strip(",")) for word in said.split() if word.strip(",").isdecimal())
    found = [(r["step"], r["accuracy"]) for r in records if r["split"] == "held-out"]
    constant = [step for step in (*range(0, 62, 2), 63, 66) if 1.2 * step < last + 1]
    np.testing.assert_array_equal(found, [*zip((*constant, last), accuracies, strict=False)])
    x = np.array([[99.0], [100.5]], np.float32)
    expected = toy(num_steps=best)[0](x) if best else np.full((2, 2), np.log(0.5), np.float32)
    np.testing.assert_array_equal(answer(x), expected)


def test_a_cooldown_falls_to_zero_from_the_best():
    """By hand: the best of step 4, Adam's moments of step 20, the batches of steps 20 to 23."""
    given = iter([0.1, 0.5, 0.9, *[0.8] * 8, 0.95])
    answer, words, _ = toy(num_steps=80, accuracy=lambda _: next(given), evaluate_every=2)
    assert words == "best at step 24 of 24"
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
        mean = x.sum() / 8  # two rows of no label are 0
        update, state = advance(gradient(params, x - mean, label), state)
        params = jax.tree.map(lambda one, own, rate=rate: one + rate * own, params, update)
    scale, weight, bias = params
    expected = jax.nn.log_softmax(jnp.array([[0.5 - mean]]) * scale @ weight + bias)
    np.testing.assert_allclose(answer(np.array([[100.5]], np.float32)), expected, rtol=1e-4)


STOPS = {"num_steps": 400, "accuracy": near(0.76), "evaluate_every": 10}
COOLED = {**STOPS, "accuracy": near(0.7)}


@pytest.mark.parametrize(
    ("options", "stop_at"),
    [({}, 12), (STOPS, 45), (COOLED, 105)],
)
def test_a_training_on_labels_resumes(tmp_path, options, stop_at):
    """Before the best, after it, within the last evaluations or the cooldown."""
    x, folder = np.array([[99.0], [100.5]], np.float32), tmp_path / "labels"
    options = {"folder": folder, "save_every": 20, "settings": {"seed": 0}, **options}
    with pytest.raises(
        UserError, match=r"stopped by SIGTERM at step \d+: the same command resumes"
    ):
        toy(stop_at=stop_at, **options)
    drawn = []
    answer, words, _ = toy(drawn=drawn, **options)
    options.pop("folder")
    expected, same_words, _ = toy(**options)
    np.testing.assert_array_equal(answer(x), expected(x))
    assert words == same_words
    best = {40: 40, 400: 120 if options.get("accuracy") is COOLED["accuracy"] else 20}
    assert words.startswith(f"best at step {best[options.get('num_steps', 40)]} of ")
    assert 1 not in drawn
    assert drawn.count(0) == 1  # for its shapes
    drawn.clear()
    answer, words, _ = toy(drawn=drawn, folder=folder, **options)  # once done, it answers at once
    assert (words, drawn) == (same_words, [0])
    np.testing.assert_array_equal(answer(x), expected(x))


@pytest.mark.parametrize(("step", "number"), [(20, 3), (120, 12)])
def test_a_signal_in_an_evaluation_is_heard(tmp_path, step, number):
    """In that of the best parameters, which a resumed training must not pass over, and the last."""

    def interrupted(answer):
        seen.append(answer)
        if len(seen) == number:
            signal.raise_signal(signal.SIGTERM)
        return near(0.76)(answer)

    options, x = {"num_steps": 400, "evaluate_every": 10}, np.array([[99.0], [100.5]], np.float32)
    seen, drawn, folder = [], [], tmp_path / "labels"
    with pytest.raises(UserError, match=f"stopped by SIGTERM at step {step}:"):
        toy(accuracy=interrupted, folder=folder, **options)
    answer, words, _ = toy(accuracy=near(0.76), folder=folder, drawn=drawn, **options)
    assert words == "best at step 20 of 120"
    np.testing.assert_array_equal(answer(x), toy(num_steps=20)[0](x))
    assert all(one >= step for one in drawn[1:])  # the first is for its shapes


def test_checkpoints_of_another_training_on_labels_are_not_used(tmp_path):
    options = {"folder": tmp_path / "labels", "save_every": 5, "settings": {"seed": 0}}
    with pytest.raises(UserError, match="SIGTERM"):
        toy(stop_at=12, **options)
    drawn = []
    toy(drawn=drawn, **{**options, "settings": {"seed": 1}})
    assert drawn.count(0) == 2


def test_a_tenth_is_held_out():
    held = hold_out(range(5, 45), seed=0)
    assert len(set(held)) == 4
    assert set(held) < set(range(5, 45))
    np.testing.assert_array_equal(held, hold_out(range(5, 45), seed=0))
    assert (held != hold_out(range(5, 45), seed=1)).any()


@pytest.fixture
def config():
    config = audio_synthetic.get_config()
    config.num_steps, config.optim.warmup_steps, config.log_every = 40, 5, 60
    config.optim.learning_rate, config.optim.weight_decay = 1e-2, 1e-3
    config.data.window_samples, config.data.batch_size = 2560, 8
    config.model.width = config.model.context_width = 16
    config.model.num_offsets = 3
    config.probe.features = ("supervised",)
    return config


@pytest.fixture(scope="module")
def sound():
    """Tones of 10 to 40 frames, their pitch a speaker's and a phone's; the first frame unnamed."""
    rng = np.random.default_rng(0)
    lengths = 160 * np.array([10, *rng.integers(20, 40, 27), *[30] * 12])  # few shapes to test
    speakers = tuple("ab"[i % 2] for i in range(40))
    labels, sounds = {}, []
    for i, length in enumerate(lengths):
        phones = np.repeat(rng.integers(0, 2, 5), 8)[: length // 160].astype(np.int32)
        pitch = 400.0 * 2 ** (2 * phones + i % 2)
        phase = 2 * np.pi * np.cumsum(np.repeat(pitch, 160)) / 16000
        sounds.append((8000 * np.sin(phase)).astype(np.int16))
        phones[0] = -1
        labels[f"u{i}"] = phones
    rms = np.array([root_mean_square(sound) for sound in sounds], np.float32)
    recordings = data.Recordings(
        tuple(labels), speakers, lengths, lambda i, start, stop: sounds[i][start:stop], rms=rms
    )
    train, test = data.select(recordings, range(28)), data.select(recordings, range(28, 40))
    return AudioData(train, test, {"toy": Phones(labels, ("low", "high"))})


def test_networks_that_were_not_asked_for_are_kept(tmp_path):
    """Another command was stopped in one of them, and goes on from it."""
    made = tmp_path / "probes" / "networks-5"
    (made / "stopped").mkdir(parents=True)
    with kept_until_done(tmp_path, 5) as folder_of:
        folder_of("own").mkdir()
    assert [path.name for path in made.iterdir()] == ["stopped"]
    with kept_until_done(tmp_path, 5) as folder_of:
        folder_of("stopped")
    assert not made.exists()


def test_scores_of_audio(config, sound, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audio_supervised, "MOST_RUNS", 5)
    model = audio.build_model(config)
    context = ProbeContext(config, None, model, None, tmp_path, 0, tmp_path.joinpath)
    (question,) = audio_frames.phone_tasks(config, sound)
    (score,) = question.answer(context, FeatureSet("supervised", Frames({}, 160)))
    assert (score.task, score.data, score.unit) == ("phones", "toy", "frame")
    assert score.value > 0.9, score
    assert score.low > score.chance, score
    assert (score.features, score.method) == ("supervised", "linear")
    assert re.fullmatch(r"l2 0\.001, best at step \d+ of \d+(, the most)?", score.setting)
    trained, tested = (int(part.lengths.sum()) // 160 for part in (sound.train, sound.test))
    assert (score.num_train, score.num_test) == (trained - 28, tested - 12)
    assert len(score.outcomes.sums) == 12
    said = capsys.readouterr().out
    assert "/200  loss" in said
    assert ", by 3 held-out utterances of 28\n" in said


def test_labels_that_were_corrected_are_another_training(config, sound, tmp_path, monkeypatch):
    """A stopped one had gone on with what it had learned of the wrong ones."""
    given = []

    def take(*args, settings, **options):
        given.append(settings)
        return (lambda x: x), ""

    monkeypatch.setattr(audio_supervised, "train_on_labels", take)
    model = audio.build_model(config)
    labels = [np.zeros(int(n) // 160, np.int32) for n in sound.train.lengths]
    others = [np.maximum(own, i == 3) for i, own in enumerate(labels)]
    for own, num_classes in ((labels, 2), (labels, 2), (others, 2), (labels, 3)):
        given_to = config, tmp_path, model, sound.train, own, num_classes, {}
        audio_supervised.train_supervised(*given_to)
    assert given[0] == given[1]
    assert given[0] != given[2]
    assert given[0] != given[3]


def test_a_training_of_one_step_makes_it():
    """A fifth of it had been kept for a cooldown."""
    assert toy(num_steps=1, accuracy=lambda _: 0.5)[1] == "best at step 0 of 1, the most"


def test_utterances_to_stop_by_are_neither_trained_on_nor_tested(
    config, sound, tmp_path, monkeypatch
):
    """The longest is trained on: it may be the only one that holds a window."""
    drawn, read = [], set()

    def record_batches(recordings, **options):
        drawn.append(recordings)
        return data.make_batches(recordings, **options)

    def end(*args, **options):
        args[4].accuracy(lambda x: np.zeros((len(x), x.shape[1] // 160, 2), np.float32))
        return (lambda x: np.zeros((len(x), x.shape[1] // 160, 2), np.float32)), "ended"

    def record_read(recordings, i):
        read.add(recordings.names[i])
        return data.read_all(recordings, i)

    monkeypatch.setattr(audio_supervised, "make_batches", record_batches)
    monkeypatch.setattr(audio_supervised, "train_on_labels", end)
    monkeypatch.setattr(audio_supervised, "read_all", record_read)
    model, held = audio.build_model(config), []
    few = data.select(sound.train, range(3))
    for seed in range(8):
        config.seed = seed
        labels = [np.zeros(int(n) // 160, np.int32) for n in few.lengths]
        audio_supervised.train_supervised(config, tmp_path, model, few, labels, 2, {})
        trained = {*drawn[-1].names}
        assert not trained & read
        assert trained | read == {*few.names}
        assert (len(read), max(drawn[-1].lengths)) == (1, max(few.lengths))
        held.append(tuple(sorted(read)))
        read.clear()
    assert len(set(held)) > 1


def test_features_of_any_frame_distance_are_probed_with_the_labels_of_their_frames(
    config, sound, tmp_path
):
    """Zero crossings, which tell the phone, in frames of 20 ms; beside MFCC, which have 10 ms."""
    encoder = ConvEncoder(4, strides=(5, 4, 2, 2, 4))
    model: Any = types.SimpleNamespace(module=types.SimpleNamespace(encoder=encoder))

    def crossings(x, stride):
        frames = x[: len(x) // stride * stride].reshape(-1, stride)
        return np.float32(np.diff(np.sign(frames), axis=1) != 0).mean(1)[:, None]

    config.probe.hidden_width = 0
    (question,) = audio_frames.phone_tasks(config, sound)
    context = ProbeContext(config, None, model, None, tmp_path, 0, tmp_path.joinpath)
    for name, stride in (("c", 320), ("mfcc", 160)):
        assert frame_samples(name, model) == stride
        made = {
            own: crossings(data.read_all(part, i), stride)
            for part in question.parts
            for i, own in enumerate(part.names)
        }
        (score,) = question.answer(context, FeatureSet(name, Frames(made, stride)))
        assert score.value > 0.97, score
        # Of each utterance the first 10 ms have no label.
        unlabelled = len(sound.test) * sum(stride * t + stride // 2 < 160 for t in range(4))
        assert score.num_test == int(sound.test.lengths.sum()) // stride - unlabelled


def test_each_utterance_is_embedded_once_by_one_program_for_both_networks(
    config, sound, monkeypatch
):
    """Also if the trained weights lie on a mesh, as after a training."""
    model = audio.build_model(config)
    x = jnp.zeros((1, 2560))
    variables = jax.jit(model.init)(jax.random.key(0), {"x": x})
    train, test = (data.select(part, range(2)) for part in (sound.train, sound.test))
    embed, read = audio_probes.make_embed(config, model, replicate(variables, make_mesh(1))), []
    random = embed(("random c", "random z"), [train, test])

    def spy(recordings, index):
        read.append(recordings.names[index])
        return data.read_all(recordings, index)

    monkeypatch.setattr(audio_probes, "read_all", spy)
    with count_compilations() as compilations:
        both = embed(("c", "z"), [train, test, test])
        assert compilations() == 0
    assert sorted(read) == sorted((*train.names, *test.names))
    alone = embed(("c",), [train, test])["c"]
    for i, name in enumerate(train.names):
        wanted = jax.jit(model.embed)(variables, jnp.asarray(data.read_all(train, i)[None]))
        for feature, found in zip("zc", wanted, strict=True):
            np.testing.assert_allclose(both[feature][name], found[0], atol=1e-5)
            assert np.abs(random[f"random {feature}"][name] - found[0]).max() > 0.01
        np.testing.assert_array_equal(both["c"][name], alone[name])


def test_a_network_needs_another_utterance_to_stop_by(config, sound):
    config.probe.tasks, config.probe.hours = ("phones",), 1e-6
    with pytest.raises(UserError, match="toy has one labelled training utterance"):
        audio_probes.probe_tasks(config, sound)


def dark_and_light():
    """A config, 20 images of two classes, and a network of three numbers."""
    config = image_fashion_mnist.get_config()
    config.data.batch_size, config.probe.num_epochs, config.probe.regions = 4, 1, 1
    config.optim.name, config.optim.learning_rate = "adam", 0.1
    rng = np.random.default_rng(0)
    labels = np.arange(20, dtype=np.int32) % 2
    pixels = (rng.integers(0, 9, (20, 2, 2, 1)) + 200 * labels[:, None, None, None]).astype(
        np.uint8
    )
    images = Images(pixels, labels, ("dark", "light"))
    model = Model(
        init=lambda rng, batch: {"params": {"scale": jnp.ones(3)}},
        apply=lambda *args: None,
        embed=lambda variables, x: (x * variables["params"]["scale"], None),
        linear_maps=lambda params: None,
        module=None,
    )
    prepare = lambda batch, rng, train: {"x": jnp.float32(batch["x"]) / 255 - 0.5}  # noqa: E731
    return config, images, model, prepare


def test_the_images_network_starts_anew_or_from_what_was_learned_on_many_devices():
    config, images, model, prepare = dark_and_light()
    pixels, labels = images.pixels, images.labels
    learned = replicate({"params": {"scale": jnp.array([1.0, 2.0, 3.0])}}, make_mesh(8))
    for start in (None, learned):
        answer, _ = image_supervised.train_classifier(config, images, model, prepare, start)
        assert answer(pixels).tolist() == labels.tolist()
    config.probe.num_epochs = 30  # 150 steps: it knows all long before
    answer, words = image_supervised.train_classifier(config, images, model, prepare, None, images)
    assert answer(pixels).tolist() == labels.tolist()
    assert "the most" not in words


def test_a_stopped_training_of_the_images_network_goes_on(monkeypatch, tmp_path):
    """From its folder, unless the labels are others; it is evaluated if there is something to."""
    given, (config, images, *others) = [], dark_and_light()

    def take(config, features, variables, draw, recipe, **options):
        given.append((recipe.accuracy is not None, options["folder"], options["settings"]))
        return lambda x: x, ""

    monkeypatch.setattr(image_supervised, "train_on_labels", take)
    wrong = Images(images.pixels, 1 - images.labels, images.class_names)
    for own, stop_by in ((images, None), (images, images), (wrong, images)):
        image_supervised.train_classifier(config, own, *others, None, stop_by, tmp_path)
    assert [one[:2] for one in given] == [(False, tmp_path), (True, tmp_path), (True, tmp_path)]
    assert given[0][2] == given[1][2] != given[2][2]


def test_networks_trained_on_labels_take_the_optimizer_of_their_run(monkeypatch):
    """Of schedule-free it would have to be the average that is evaluated."""
    config, given = audio_synthetic.get_config(), []
    config.optim.weight_decay = 0.5

    def make(**options):
        given.append(options)
        return optax.identity(), None

    monkeypatch.setattr("experiments.training.step.make_optimizer", make)
    for config.optim.name in ("lion", "schedule_free"):
        make_own_optimizer(config, 100, 1.0, ())
    assert [options["name"] for options in given] == ["lion", "adam"]
    for name in ("learning_rate", "clip_norm", "weight_decay"):
        assert given[0][name] == config.optim[name]


def test_the_rate_of_a_short_training_rises_and_falls():
    """100 steps of few labels had been all warm-up, which ended at the highest rate."""
    config = dark_and_light()[0]
    assert config.optim.warmup_steps >= 100
    tx = make_own_optimizer(config, 100, 1.0, ("encoder",), "cosine")
    params = {"model": {"encoder": jnp.ones(1)}}
    state, rates = tx.init(params), []
    for _ in range(100):
        update, state = tx.update(params, state, params)
        rates.append(abs(float(jax.tree.leaves(update)[0][0])))
    assert np.argmax(rates) in (9, 10)
    assert rates[-1] < 0.01 * max(rates)


def test_batch_norm_of_the_images_network_sees_the_batches(monkeypatch):
    """It had been that of evaluation, mean 0 and variance 1, throughout a training from scratch."""
    config, images, model, prepare = dark_and_light()

    def apply(variables, x, train, *, method, mutable):
        assert (train, method, mutable) == (True, "encode", ["batch_stats"])
        z = 2 * x * variables["params"]["scale"]
        return z, {"batch_stats": variables["batch_stats"] + 1}

    def take(config, features, variables, draw, recipe, **options):
        for train in (True, False):
            given = {"x": images.pixels}, options["rng"], train
            x, found = features(variables["params"], {"batch_stats": 0}, *given)
            want = prepare({"x": images.pixels}, None, train)["x"].mean((1, 2))
            np.testing.assert_allclose(x, np.tile((1 + train) * want, 3), rtol=1e-6)
            assert found == {"batch_stats": int(train)}
        return lambda x: x, ""

    monkeypatch.setattr(image_supervised, "train_on_labels", take)
    model = model._replace(module=types.SimpleNamespace(apply=apply))
    start = {"params": {"scale": jnp.ones(3)}, "batch_stats": 0}
    image_supervised.train_classifier(config, images, model, prepare, start)


@pytest.mark.parametrize("encoder", ["small", "resnet18"])
def test_layers_of_the_images_network_learn_less_the_further_down_they_lie(monkeypatch, encoder):
    """The first steps of Adam are of one size, so that rates are read off the updates."""
    config = image_fashion_mnist.get_config()
    config.optim.name = "adam"
    config.probe.layer_decay = 0.5
    config.model.width, config.model.context_width = 8, 8
    config.model.encoder, config.model.stages = encoder, 2
    model = image.build_model(config)
    images = Images(np.zeros((2, 28, 28, 1), np.uint8), np.arange(2, dtype=np.int32), ("a", "b"))
    batch = jnp.zeros((1, *image.describe_input(config)["shape"]))
    start = jax.tree.map(
        lambda leaf: jnp.ones(leaf.shape, leaf.dtype),
        jax.eval_shape(model.init, jax.random.key(0), {"x": batch}),
    )
    prepare = lambda *args: {"x": batch}  # noqa: E731
    found = {}

    def take(config, features, variables, draw, recipe, **options):
        params = {"model": variables["params"], "head": jnp.ones(3)}
        state = recipe.tx.init(params)
        for _ in range(3):
            update, state = jax.jit(recipe.tx.update)(params, state, params)
        rates = jax.tree.map(lambda leaf: float(leaf.ravel()[0]), update)
        whole, own = rates["head"], rates["model"]["encoder"]
        found.update({name: {rate / whole for rate in jax.tree.leaves(own[name])} for name in own})
        return lambda x: x, ""

    monkeypatch.setattr(image_supervised, "train_on_labels", take)
    image_supervised.train_classifier(config, images, model, prepare, start)
    order = sorted(name for name in found if name != "stem")[::-1]
    for depth, name in enumerate([*order, *(["stem"] if "stem" in found else [])], start=1):
        assert max(found[name]) == min(found[name]) == pytest.approx(0.5**depth, rel=1e-3), name
    assert len(found) > 2


def test_a_stop_loses_no_answer_and_no_network_of_that_step(tmp_path, monkeypatch):
    """Each may be trained for an hour, and the second be interrupted."""
    config = audio_synthetic.get_config()
    config.model.width = config.model.context_width = 8
    config.probe.tasks, config.probe.features = ("phones",), ("supervised",)
    score = Score("phones", "first", "frame", "supervised", "whole network", "accuracy", 0.5)
    found = []

    def train(context, features):
        found.append(context.folder_of("first").exists())
        context.folder_of("first").mkdir(parents=True, exist_ok=True)
        return [score]

    def interrupt(context, features):
        if len(found) < 3:
            raise KeyboardInterrupt
        return []

    tasks = [ProbeTask("phones", answer) for answer in (train, interrupt)]
    monkeypatch.setattr(audio_probes, "TASKS", {"phones": lambda *_: tasks})
    model = audio.build_model(config)
    variables = jax.eval_shape(model.init, jax.random.key(0), {"x": jnp.zeros((1, 5120))})

    def probe(step):
        data = AudioData(None, None, {})
        make_probe(audio, config, tmp_path, data, model)(variables, step)

    for step in (3, 4):  # another step has another network
        with pytest.raises(KeyboardInterrupt):
            probe(step)
    assert [(one.data, one.step) for one in read_scores(tmp_path)] == [("first", 3), ("first", 4)]
    probe(3)
    probe(3)
    assert found == [False, False, True, False]
