"""A signal while probes are fitted within a run ends them between two features."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from configs import audio_synthetic, series_files
from cpc.train import Stopped, stop_on_signals
from experiments.kinds.audio import probes as audio
from experiments.kinds.series import probes as series
from experiments.training.probes import ProbeContext, Probes, ProbeTask, run_probes


class Features:
    """Features that are asked for: a signal comes with the first of them."""

    def __init__(self):
        self.asked = []

    def __call__(self, name):
        self.asked.append(name)
        if len(self.asked) == 1:  # a second one would end the process
            signal.raise_signal(signal.SIGTERM)


def ask(config, folder, feature_sets, answer=lambda context, features: (), data=None):
    context: Any = ProbeContext(config, data, None, None, folder, 1, folder.joinpath)
    nothing: Any = None
    run_probes(context, [ProbeTask("any", answer)] * 2, Probes(nothing, feature_sets))


def probe_audio(features, folder, monkeypatch):
    config = audio_synthetic.get_config()
    config.probe.features = ("mfcc", "c", "random c")
    monkeypatch.setattr(
        audio, "make_embed", lambda *args: lambda names, parts: features(names) or {}
    )
    monkeypatch.setattr(audio, "passes", lambda names: [(name,) for name in names])
    ask(config, folder, audio.feature_sets)


def probe_series(features, folder, monkeypatch):
    config = series_files.get_config()
    config.probe.features = ("c", "random c")
    monkeypatch.setattr(series, "make_features", lambda *args: lambda name, part: features(name))
    ask(config, folder, series.feature_sets, data=SimpleNamespace(train=None, test=None))


@pytest.mark.parametrize("probe", [probe_audio, probe_series])
def test_the_next_feature_is_not_asked_for(probe, tmp_path, monkeypatch):
    features = Features()
    with stop_on_signals(), pytest.raises(Stopped, match="stopped by SIGTERM"):
        probe(features, tmp_path, monkeypatch)
    assert len(features.asked) == (2 if probe is probe_series else 1)  # of training and test
