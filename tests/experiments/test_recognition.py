"""Phone recognition by CTC: head, training, utterances and scores."""

import re
from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import audio_synthetic
from cpc.data import SAMPLE_RATE_HZ, select
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio import recognition, supervised
from experiments.kinds.audio.recognition import (
    Labelled,
    check_phones,
    fit_head,
    standardized_features,
    windows_of,
)
from experiments.training import supervised as labelled
from experiments.training.contrastive import make_probe
from tests import plans
from tests.experiments.test_audio import TINY


@pytest.fixture
def config():
    settings = {"probe.ctc_minutes": (0.0,), "probe.ctc_steps": 120, "log_every": 0}
    return with_settings(audio_synthetic.get_config(), TINY | settings)


@pytest.fixture(scope="module")
def data():
    """Return thirty utterances of one second, six of them for testing."""
    made = plans.speech(2, 15, 1.0)
    train, test = (select(made.train, rows) for rows in (range(24), range(24, 30)))
    return made._replace(train=train, test=test)


def network(config):
    model = audio.build_model(config)
    x = np.zeros((1, config.data.window_samples), np.float32)
    return model, jax.jit(model.init)(jax.random.key(7), {"x": x})


def test_head_equals_a_convolution_over_8_frames_every_4():
    x = np.random.default_rng(0).normal(size=(2, 22, 3)).astype(np.float32)
    kernel = np.random.default_rng(1).normal(size=(8, 3, 5)).astype(np.float32)
    want = jax.lax.conv_general_dilated(
        x, kernel, (4,), ((2, 2),), dimension_numbers=("NWC", "WIO", "NWC")
    )
    found = windows_of(jnp.asarray(x)) @ kernel.reshape(24, 5)
    assert found.shape == (2, 5, 5)
    np.testing.assert_allclose(found, want[:, :5], rtol=1e-4, atol=1e-5)


def draw_speech(seed, num=24):
    """Return noisy utterances of three phones with 8 frames each."""
    rng = np.random.default_rng(seed)
    phones = [rng.permutation(3).tolist() for _ in range(num)]
    frames = [np.eye(3)[np.repeat(own, 8)] + 0.1 * rng.normal(size=(24, 3)) for own in phones]
    return Labelled([one.astype(np.float32) for one in frames], phones)


def test_head_learns_the_order_of_phones(config, tmp_path, monkeypatch):
    """The LSTM remembers more than 8 frames; answers do not depend on the batch."""
    monkeypatch.setattr(recognition, "LSTM_WIDTH", 32)
    config.probe.ctc_head = "lstm"
    train, test = draw_speech(0), draw_speech(1)
    answer, words = fit_head(
        config, standardized_features(train.inputs), train, 3, tmp_path / "head"
    )
    assert re.fullmatch(r"best at step \d+ of \d+(, the most)?", words)
    given = map(recognition.evaluate.greedy_decode, answer(test.inputs))
    edits = map(recognition.evaluate.count_edits, test.phones, given)
    assert sum(map(sum, edits)) < 0.05 * sum(map(len, test.phones))
    first = test.inputs[0]
    (log_p,), (together, _) = answer([first]), answer([first[:20], test.inputs[1]])
    assert log_p.shape == (6, 4)
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1, rtol=1e-5)
    (alone,) = answer([first[:20]])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    other = first.copy()
    other[0] += 1
    assert (np.abs(answer([other])[0] - log_p).max(-1) > 1e-6).all()


def test_early_stopping_uses_held_out_likelihood_while_answers_are_empty(
    config, tmp_path, monkeypatch
):
    train, take = draw_speech(0), mock.Mock(return_value=(None, ""))
    monkeypatch.setattr(recognition, "train_on_labels", take)
    fit_head(config, standardized_features(train.inputs), train, 3, tmp_path / "head")
    *_, draw, recipe = take.call_args[0]
    drawn = {x.tobytes() for step in range(40) for x in draw(step)["x"]}
    _, held = recognition.hold_out(24, config.seed)
    assert drawn == {x.tobytes() for i, x in enumerate(train.inputs) if i not in held}

    def answer(of_blank):
        scores = np.full((1, 6, 4), 1.0)
        scores[..., 3] = of_blank
        return lambda x: np.repeat(np.asarray(jax.nn.log_softmax(scores)), len(x), axis=0)

    surely_empty, empty = (recipe.accuracy(answer(score)) for score in (9.0, 2.0))
    assert 0 < surely_empty < empty < 1e-3

    # A constant answer is right one time in thirty and scores no more than its likelihood.
    inputs = [np.repeat(x, 12, axis=0) for x in train.inputs]
    long = Labelled(inputs, [phones * 10 for phones in train.phones])
    fit_head(config, standardized_features(inputs), long, 3, tmp_path / "head")
    constant = lambda x: np.full((len(x), x.shape[1] // 4, 4), -np.log(4.0))  # noqa: E731
    same = take.call_args[0][-1].accuracy(constant)
    assert 0 < same < 1e-3


def test_training_utterances_continue_mirrored():
    short, longer = np.arange(6.0)[:, None] + 1, np.arange(16.0)[:, None]
    draw = recognition.draw_utterances(Labelled([short, longer], [[0], [1]]), 1, seed=0)
    drawn = draw(0)
    row = drawn["x"][list(drawn["num_samples"]).index(6), :, 0]
    np.testing.assert_array_equal(row, [*range(1, 7), *range(6, 0, -1), 1, 2, 3, 4])


def test_features_are_standardized_by_training_utterances():
    train = [np.array([[1.0, 10.0], [3.0, 30.0]]), np.array([[2.0, 20.0]])]
    network = standardized_features(train)
    found, _ = network.features({}, {}, {"x": np.concatenate(train)[None]}, None, True)
    np.testing.assert_allclose(found[0].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(found[0].std(0), 1, rtol=1e-4)


@pytest.mark.parametrize(("feature", "decay"), [("tuned", 0.5), ("supervised", 1.0)])
def test_only_fine_tuning_starts_from_the_run(config, data, tmp_path, monkeypatch, feature, decay):
    config.probe.tasks, config.probe.features = ("phones", "ctc"), (feature,)
    config.probe.layer_decay = 0.5
    model, variables = network(config)
    starts, scale = [], mock.Mock(return_value=optax.identity())

    def end(config, features, start, draw, recipe, *, num_classes, **options):
        starts.append(start["params"].get("network", start["params"]))
        frames = lambda x: max(1, x.shape[1] // 160)  # noqa: E731
        return lambda x: np.zeros((len(x), frames(x), num_classes), np.float32), "ended"

    for module, of_rates in ((supervised, labelled.train), (recognition, recognition)):
        monkeypatch.setattr(module, "train_on_labels", end)
        monkeypatch.setattr(of_rates, "scale_by_layer", scale)
    make_probe(audio, config, tmp_path, data, model)(variables, 3)
    assert len(starts) == 2
    for start in starts:
        same = jax.tree.map(np.array_equal, start, variables["params"])
        assert all(jax.tree.leaves(same)) == (feature == "tuned")
    assert [args[0] for args, _ in scale.call_args_list] == [decay] * 2


def test_scores_and_edit_rates_of_both_decoders(config, data, tmp_path, capsys):
    config.probe.tasks, config.probe.features = ("ctc",), ("mfcc",)
    config.probe.ctc_minutes, config.probe.ctc_steps, config.probe.ctc_beam = (0.2, 0.2), 12, 3
    names, (model, variables) = data.test.names, network(config)
    scores = make_probe(audio, config, tmp_path, data, model)(variables, 5)
    assert [score.method for score in scores] == ["linear", "linear, beam 3"]
    assert [score.setting for score in scores] == ["0.2 min"] * 2
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "% sub" in line]
    kinds = [[float(one) for one in re.findall(r"([\d.]+)% \w+ions", line)] for line in lines]
    labels = data.phones["synthetic"].labels
    truth = [recognition.phones_in_order(labels[name], ()) for name in names]
    for score, own in zip(scores, kinds, strict=True):
        assert (score.task, score.data, score.unit) == ("CTC", "synthetic", "phone")
        assert not score.higher_is_better
        assert score.num_test == sum(map(len, truth))
        assert score.low <= score.value <= score.high
        assert score.outcomes.sums.sum() / score.outcomes.counts.sum() == score.value
        assert score.metric == "phone error rate"
        assert (len(own), sum(own)) == (3, pytest.approx(100 * score.value, abs=0.2))
    trained = recognition.subsets_of(data.train, (0.2,))["0.2 min"]
    own = [recognition.phones_in_order(labels[data.train.names[i]], ()) for i in trained]
    assert scores[0].num_train == sum(map(len, own))
    assert (tmp_path / "scores.json").exists()


def test_subsets_are_named_by_their_minutes(data):
    def of_minutes(number, each):
        lengths = np.full(number, int(each * 60 * SAMPLE_RATE_HZ))
        return replace(select(data.train, range(number)), lengths=lengths)

    train = of_minutes(6, 0.35)  # 2.1 minutes
    found = recognition.subsets_of(train, (0.5, 1.0, 60.0, 0.0))
    sizes = {name: len(own) for name, own in found.items()}
    assert sizes == {"0.5 min": 2, "1 min": 3, "2.1 min": 6}
    train = of_minutes(24, 0.436)  # 10.46 minutes
    for minutes in ((10.0, 0.0), (0.0, 10.0)):
        found = recognition.subsets_of(train, minutes)
        assert sorted(map(len, found.values())) == [23, 24], "two subsets were requested"


def test_unusable_phones_are_rejected():
    for phones, subsets, words in (
        (([[1], [2]], [[], []]), {"": [0, 1]}, "test utterances of x"),
        (([[1], [2]], [[1]]), {"": [0], " ": [0, 1]}, "one labelled training utterance of x"),
    ):
        with pytest.raises(UserError, match=words):
            check_phones(phones, subsets, "x")
