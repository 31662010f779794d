"""The task "codes": how many bits a second quantised latents take."""

import numpy as np

from cpc.data import SAMPLE_RATE_HZ
from cpc.evaluate import code_scores, read_rows
from cpc.results import Score
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData
from experiments.training.checks import name_of
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask


def code_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of all test utterances."""
    source = name_of(config)

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        if features.name not in ("z", "random z"):
            return []
        by_utterance, stride = features.values
        frames = [np.asarray(read_rows(by_utterance[name])) for name in data.test.names]
        seconds = stride / SAMPLE_RATE_HZ
        return list(code_scores(frames, seconds, data=source, features=features.name))

    return [ProbeTask("codes", answer, parts=(data.test,))]
