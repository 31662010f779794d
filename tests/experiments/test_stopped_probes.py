"""A signal between two features stops the probes of a run."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from configs import audio_synthetic, series_files
from cpc.train import Stopped, stop_on_signals
from experiments.kinds.audio import probes as audio
from experiments.kinds.series import probes as series
from experiments.training.probes import ProbeContext, Probes, ProbeTask, run_probes


@pytest.mark.parametrize(("module", "config", "number"), [
    (audio, audio_synthetic, 1), (series, series_files, 2),  # training and test
])  # fmt: skip
def test_signal_stops_before_the_next_feature(module, config, number, tmp_path, monkeypatch):
    asked, config = [], config.get_config()

    def make(*given):
        asked.append(given)
        if len(asked) == 1:  # a second signal would end the process
            signal.raise_signal(signal.SIGTERM)
        return {}

    config.probe.features = ("mfcc", "c") if module is audio else ("c", "random c")
    name, answer = ("embed", make) if module is audio else ("make_features", lambda _: make)
    monkeypatch.setattr(module, name, answer)
    data = SimpleNamespace(train=None, test=None)
    context: Any = ProbeContext(config, data, None, None, tmp_path, 1, tmp_path.joinpath)
    tasks = [ProbeTask("any", lambda context, features: ())] * 2
    with stop_on_signals(), pytest.raises(Stopped, match="SIGTERM"):
        run_probes(context, tasks, Probes(None, module.feature_sets))
    assert len(asked) == number
