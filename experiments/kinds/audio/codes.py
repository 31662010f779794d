"""The task "codes": how many bits a second quantised latents take."""

import numpy as np

from cpc.data import SAMPLE_RATE_HZ
from cpc.evaluate import code_scores, read_rows
from cpc.results import Score
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData, name_of
from experiments.kinds.audio.question import Asked, Feature, Question


def code_questions(config: Config, data: AudioData) -> list[Question]:
    """Return what is asked of all test utterances."""
    source = name_of(config)

    def answer(asked: Asked, feature: Feature) -> list[Score]:
        if feature.name not in ("z", "random z"):
            return []
        frames = [np.asarray(read_rows(feature.frames[name])) for name in data.test.names]
        seconds = feature.stride / SAMPLE_RATE_HZ
        return list(code_scores(frames, seconds, data=source, features=feature.name))

    return [Question("codes", source, (data.test,), answer)]
