"""The task "codes" of audio: bits a second of the test utterances' quantised latents."""

import jax
import numpy as np
import pytest

from configs import audio_synthetic
from cpc.data import make_synthetic, phone_chain
from cpc.results import read_scores
from cpc.types import UserError
from experiments.kinds.audio import kind
from experiments.kinds.audio.data import AudioData
from experiments.training.contrastive import make_probe


@pytest.fixture
def config():
    config = audio_synthetic.get_config()
    config.model.width = config.model.context_width = 8
    config.model.num_codes, config.model.code_width = 4, 3
    config.probe.tasks, config.probe.features = ("codes",), ("z", "c", "random z")
    return config


@pytest.mark.slow
def test_bits_of_all_test_utterances_are_scores_of_z_alone(config, tmp_path):
    made = make_synthetic(
        num_speakers=2, utterances_per_speaker=2, seconds=0.5, chain=phone_chain(4), seed=0
    )
    data = AudioData(made.recordings, made.recordings, {})
    kind.check(config)
    model = kind.build_model(config)
    variables = model.init(jax.random.key(0), {"x": np.zeros((1, 8000), "f")})
    probe = make_probe(kind, config, tmp_path, data, model)
    scores = probe(variables, 3)
    assert {score.features for score in scores} == {"z", "random z"}
    assert len(read_scores(tmp_path)) == len(scores) == 4
    rate, perplexity = (score for score in scores if score.features == "z")
    assert rate.value == pytest.approx(100 * np.log2(perplexity.value), abs=1e-9)
    assert 1 <= perplexity.value <= 4
    assert (rate.num_test, perplexity.num_test) == (2, 200)


def test_codes_of_latents_that_are_none_are_a_sentence(config):
    config.model.num_codes = 0
    with pytest.raises(UserError, match=r"set model\.num_codes"):
        kind.check(config)


def test_codes_ask_for_z(config):
    config.probe.features = ("c",)
    with pytest.raises(UserError, match=r"add z to probe\.features"):
        kind.check(config)
