"""The task "verification", which verifies speakers by distances between test utterances."""

import numpy as np

from cpc.data import select
from cpc.evaluate import read_rows, verification_score
from cpc.results import Score
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask

#: Maximum number of test utterances, which are compared pairwise.
MAX_UTTERANCES = 1000


def verification_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a task that decides from mean features whether two utterances share a speaker."""
    drawn = np.random.default_rng(0).permutation(len(data.test))[:MAX_UTTERANCES]
    test = select(data.test, sorted(drawn.tolist()))
    if not 1 < len({*test.speakers}) < len(test):
        raise UserError(
            "verification needs two test speakers, one of them with two utterances (got "
            f"{len(test):,} utterances by {len({*test.speakers}):,}): add test "
            "utterances, or set data.speaker_level"
        )

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        by_utterance = features.values.by_utterance
        if not by_utterance:
            return []
        means = np.stack([read_rows(by_utterance[name]).mean(axis=0) for name in test.names])
        return [verification_score(means, test.speakers, data=data.name, features=features.name)]

    return [ProbeTask("verification", answer, parts=(test,))]
