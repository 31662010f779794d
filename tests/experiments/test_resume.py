"""Resumed runs equal uninterrupted runs bit for bit, in each kind."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic, image_fashion_mnist
from cpc.results import read_run
from cpc.train import make_mesh
from experiments.command.config import with_settings
from experiments.kinds.image.data import ImageData
from experiments.kinds.series.data import load_data
from experiments.training import step
from tests import plans
from tests.experiments import test_audio, test_clips, test_image, test_series, test_text
from tests.fake_run import untimed_records

EVERY_STEP = {"num_steps": 6, "log_every": 1, "eval_every": 3, "save_every": 2}


def audio():
    """Short clips, batch norm, averaging, augmentation and a frozen part."""
    settings = {
        "model.encoder": "log_mel", "model.norm": "batch", "optim.ema_decay": 0.9,
        "evaluate.num_windows": 0, "augment.side": "past", "augment.effects": ("dropout",),
        "augment.dropout_ms": 20.0, "freeze": ("context",),
    }  # fmt: skip
    settings = test_audio.TINY | settings | EVERY_STEP
    return test_clips.problem_of(with_settings(audio_synthetic.get_config(), settings))


def image():
    settings = {
        "data.batch_size": 4, "model.encoder": "small", "model.width": 8, "model.context_width": 8,
        "model.context_layers": 1, "model.directions": ("left",), "model.num_offsets": 2,
        "optim.warmup_steps": 1, "evaluate.num_images": 4, "negatives.queue": 32,
    }  # fmt: skip
    config = with_settings(image_fashion_mnist.get_config(), settings | EVERY_STEP)
    return plans.problem_of(config, ImageData(*[test_image.image_set([0, 1] * 4)] * 3))


def series():
    config = test_series.tiny(**EVERY_STEP)
    return plans.problem_of(config, load_data(config, str))


def text():
    return test_text.problem_of(test_text.tiny(**EVERY_STEP))


@pytest.mark.parametrize("make", [audio, image, series, text])
def test_resumed_run_equals_uninterrupted_run(make, tmp_path, monkeypatch, capsys):
    describe, stopped, problem = step.describe_record, [None], make()

    def stop(record):
        if record["step"] == 1 and not stopped:
            stopped.append(record)
            signal.raise_signal(signal.SIGTERM)
        return describe(record)

    def run(name):
        (tmp_path / name).mkdir(exist_ok=True)
        reason, variables = step.train(tmp_path / name, problem, no_probe, mesh)
        return reason, jax.device_get(variables), untimed_records(tmp_path / name)

    # Compiled once for the three trainings.
    mesh, no_probe = make_mesh(1), lambda *_: []
    state, *functions = step.make_step(problem, mesh)
    evaluate = step.make_evaluation(problem, no_probe, mesh)

    def make_step(*_):
        return jax.tree.map(jnp.copy, state), *functions  # steps donate their state

    monkeypatch.setattr(step, "make_step", make_step)
    monkeypatch.setattr(step, "make_evaluation", lambda *_: evaluate)
    monkeypatch.setattr(step, "describe_record", stop)
    _, whole, wanted = run("whole")
    stopped.clear()
    reason, _, some = run("parts")
    assert (reason, 2 <= len(some) < len(wanted)) == ("SIGTERM", True)
    reason, resumed, found = run("parts")
    assert (reason, found) == ("", wanted)
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    path = tmp_path / "parts" / "metrics.jsonl"
    assert read_run(path.parent).problems == []
    if make is not series:
        return
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    lost, content = f"1 of {len(wanted)} records", path.read_bytes()
    for _ in range(2):  # resuming the finished run does not hide it
        (sentence,) = read_run(path.parent).problems
        assert lost in sentence
        run("parts")
        assert lost in capsys.readouterr().out
        assert path.read_bytes() == content
