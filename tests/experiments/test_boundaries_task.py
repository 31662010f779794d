"""The task "boundaries" on made-up speech: features that change with the phone find its edges."""

from typing import Any, cast

import numpy as np
import pytest

from cpc.data import make_synthetic, phone_chain, split_by_utterance
from cpc.types import UserError
from experiments.kinds.audio.data import AudioData, Frames, Phones
from experiments.kinds.audio.tasks import boundaries_of, boundary_tasks
from experiments.training.probes import FeatureSet, ProbeContext

#: Of a run, of which boundaries ask nothing but features.
NOTHING: Any = ProbeContext(*[None] * 7)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def data():
    made = make_synthetic(
        num_speakers=2, utterances_per_speaker=6, seconds=4.0, chain=phone_chain(4), seed=0
    )
    train, test = split_by_utterance(made.recordings, 0.3, 0)
    return AudioData(train, test, {"synthetic": Phones(labels_of(made.labels), tuple("abcd"))})


def labels_of(names):
    """Phones of 50 to 120 ms, none after itself: what is heard is of no matter here."""
    rng, labels = np.random.default_rng(0), {}
    for name in names:
        phones = np.cumsum(rng.integers(1, 4, 80)) % 4
        labels[name] = np.repeat(phones, rng.integers(5, 13, 80))[:400].astype(np.int32)
    return labels


def test_features_of_the_phone_find_its_edges_and_noise_is_at_chance(data):
    (question,) = boundary_tasks(None, data)
    labels, rng = data.phones["synthetic"].labels, np.random.default_rng(0)
    told = {name: np.eye(4, dtype=np.float32)[x.clip(0)] for name, x in labels.items()}
    noise = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in told.items()}
    coarse = {name: x[1::2] for name, x in told.items()}
    for features, stride, low, high in ((told, 160, 0.99, 1), (coarse, 320, 0.95, 1),
                                        (noise, 160, -2, 0.7)):  # fmt: skip
        by_f1, by_r = cast(Any, question.answer)(NOTHING, FeatureSet("c", Frames(features, stride)))
        assert low <= by_r.value <= high
        assert by_r.low <= by_r.value <= by_r.high
        assert by_f1.low <= by_f1.value <= by_f1.high
        assert by_f1.outcomes.sums.sum() / by_f1.outcomes.counts.sum() == by_f1.value
        assert by_f1.chance < 0.8
        true = [boundaries_of(labels[name]) for name in data.test.names]
        assert by_f1.num_test == sum(map(len, true))
    assert list(question.answer(NOTHING, FeatureSet("supervised", Frames({}, 160)))) == []


def test_what_cannot_be_asked_is_said(data):
    one = {name: np.zeros_like(x) for name, x in data.phones["synthetic"].labels.items()}
    with pytest.raises(UserError, match="no training utterance of synthetic has two phones"):
        boundary_tasks(None, data._replace(phones={"synthetic": Phones(one, ("a",))}))
    with pytest.raises(UserError, match="take boundaries out"):
        boundary_tasks(None, data._replace(phones={}))
