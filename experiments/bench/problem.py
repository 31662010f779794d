"""The audio problem of a config, made as experiments.audio makes it, with nothing to probe."""

from cpc.data import SAMPLE_RATE_HZ
from experiments import audio, training
from experiments.audio_data import AudioData
from experiments.launch import Config
from experiments.training import Problem


def make_problem(config: Config, data: AudioData) -> Problem:
    """Model, loss and batches of a config."""
    rule = training.build_rule(config)
    hours = config.data.batch_size * config.data.window_samples / SAMPLE_RATE_HZ / 3600
    return Problem(
        model=audio.build_model(config.model),
        score=audio.make_score(config, rule),
        rule=rule,
        draw=audio.draw_windows(config, data.train, config.seed),
        draw_test=audio.draw_windows(config, data.test, config.seed + 1),
        audio_hours=hours,
        probe=lambda variables, step: {},
    )
