"""The task "verification": whether distances between test utterances tell speakers apart."""

import numpy as np

from cpc.evaluate import read_rows, verification_score
from cpc.results import Score
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask


def verification_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of pairs of all test utterances."""
    speakers = data.test.speakers
    if not 1 < len({*speakers}) < len(speakers):
        raise UserError(
            "verification needs two test speakers, one of them with two utterances (got "
            f"{len(speakers):,} utterances by {len({*speakers}):,}): add some, or set "
            "data.speaker_level"
        )

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        by_utterance = features.values.by_utterance
        if not by_utterance:  # networks that are trained on labels
            return []
        means = [np.mean(read_rows(by_utterance[name]), axis=0) for name in data.test.names]
        score = verification_score(
            np.stack(means), speakers, data=data.name, features=features.name, seed=config.seed
        )
        return [score]

    return [ProbeTask("verification", answer, parts=(data.test,))]
