"""A signal while probes are fitted within a run ends them between two features."""

import signal
from types import SimpleNamespace

import numpy as np
import pytest

from configs import audio_synthetic, image_fashion_mnist, series_files
from cpc.data import Images
from cpc.train import Stopped, raise_if_stopped, stop_on_signals
from experiments.kinds.audio import probes as audio
from experiments.kinds.audio.question import Question
from experiments.kinds.image import probes as image
from experiments.kinds.series import probes as series
from experiments.kinds.text import probes as text


class Features:
    """Features that are asked for: a signal comes with the first of them."""

    def __init__(self):
        self.asked = []

    def __call__(self, name):
        self.asked.append(name)
        if len(self.asked) == 1:  # a second one would end the process
            signal.raise_signal(signal.SIGTERM)


def probe_audio(features, folder, monkeypatch):
    config = audio_synthetic.get_config()
    config.probe.tasks, config.probe.features = (), ("mfcc", "supervised")
    questions = [Question("any", "any", (), lambda asked, one: features(one.name) or ())] * 2
    monkeypatch.setattr(audio, "ask_all", lambda config, data: questions)
    monkeypatch.setattr(audio, "make_embed", lambda *args: lambda names, parts: {})
    monkeypatch.setattr(audio, "frame_samples", lambda name, model: 160)
    audio.run_tasks(config, folder, None, None, None, 1)  # pyright: ignore[reportArgumentType]


def probe_image(features, *_):
    config = image_fashion_mnist.get_config()
    config.probe.tasks, config.probe.features = ("knn",), ("pixels", "z")
    images = Images(np.zeros((2, 4, 4, 1), np.uint8), np.arange(2, dtype=np.int32), ("a", "b"))
    make = lambda name: features(name) or (np.zeros((2, 1)),) * 2  # noqa: E731
    list(image.class_scores(config, images, images, make))


def probe_series(features, folder, monkeypatch):
    config = series_files.get_config()
    config.probe.tasks, config.probe.features = ("files",), ("c", "random c")
    monkeypatch.setattr(series, "make_features", lambda *args: lambda name, part: features(name))
    monkeypatch.setattr(series, "labels_of", lambda *args: [])
    monkeypatch.setattr(series, "probe_scores", lambda *args, **options: [])
    model = SimpleNamespace(module=SimpleNamespace(encoder=SimpleNamespace(stride=1)))
    data = SimpleNamespace(train=None, test=None, file_names=("a", "b"))
    series.run_tasks(config, folder, data, model, None, 1)  # pyright: ignore[reportArgumentType]


def probe_text(features, _, monkeypatch):
    found = SimpleNamespace(items=np.arange(2), l2s=[1.0], correct=np.ones(2), num_unconverged=0)
    monkeypatch.setattr(text, "own_bag", lambda sentences: None)
    monkeypatch.setattr(text, "widen", lambda *args: (None,) * 3)
    monkeypatch.setattr(text.data, "encode_sentences", lambda *args, **options: None)
    monkeypatch.setattr(text, "cross_validate", lambda *args, **options: features("bag") or found)
    config = SimpleNamespace(
        probe=SimpleNamespace(features=("bag", "bag"), num_folds=2),
        data=SimpleNamespace(max_words=1, lowercase=True),
    )
    own = SimpleNamespace(tasks={"CR": (("one", "two"), np.arange(2))})
    list(text.sentence_scores(config, own, None, None, "CR"))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("probe", [probe_audio, probe_image, probe_series, probe_text])
def test_the_next_feature_is_not_asked_for(probe, tmp_path, monkeypatch):
    features = Features()
    with stop_on_signals(), pytest.raises(Stopped, match="stopped by SIGTERM"):
        probe(features, tmp_path, monkeypatch)
    assert len(features.asked) == (2 if probe is probe_series else 1)  # of training and test


def test_without_a_signal_nothing_is_raised():
    raise_if_stopped()
    with stop_on_signals():
        raise_if_stopped()
