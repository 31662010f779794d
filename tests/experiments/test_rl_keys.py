"""Every key of a config of an agent changes what it names: a shape, a call, a loss."""

import importlib
import pathlib
import re
from typing import Any, NamedTuple

import jax
import pytest

from configs import rl as configs_rl
from cpc import rl
from cpc.files import flatten
from cpc.train import make_mesh
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.rl import run, step
from experiments.train import run as run_config
from tests import services
from tests.experiments.test_keys import Case, calls, check

TINY = {
    "num_env_steps": 960, "environment.num": 4, "environment.stagger": 3, "model.widths": (6, 5),
    "model.channels": (2,), "model.strides": (1,), "model.memory_width": 4, "model.width": 5,
    "policy.unroll": 12, "cpc.num_offsets": 3,
}  # fmt: skip


def shapes(config):
    """Of the parameters, by name."""
    params = jax.eval_shape(step.make_task(config).init, 0).params
    return {name: leaf.shape for name, leaf in flatten(params).items()}


def argument(name, which):
    """What the step calls a function of `cpc.rl` with."""

    def effect(config):
        with calls(rl, **{name: getattr(rl, name)}) as found:
            task = step.make_task(config)
            jax.eval_shape(task.launch, jax.eval_shape(task.init, 0))
        return found[name][0][which]

    return effect


def resets(config):
    """Of the rollouts, and of an evaluation."""
    with calls(rl, side_by_side=rl.side_by_side) as found:
        step.make_task(config).many(9)
    return found["side_by_side"][1]["num_resets"]


@pytest.mark.parametrize("config", ["rl_t_maze", "text_words"])
def test_one_process_trains_what_one_device_does(monkeypatch, tmp_path, config):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    with pytest.raises(UserError, match="one device, and this is one of 2 processes"):
        run_config(importlib.import_module(f"configs.{config}").get_config(), str(tmp_path))


def optimizer(option):
    def effect(config):
        with calls(step, make_optimizer=step.make_optimizer) as found:
            step.make_task(config)
        return found["make_optimizer"][1][option]

    return effect


class Seeded(NamedTuple):
    """A state that shows the seed."""

    params: Any


def fitted(option):
    """What the loop is called with."""

    def effect(config):
        found = {}

        def run_training(folder, config, training, console):
            found.update(training._asdict(), **training.cadence._asdict())
            found["records"] = training.evaluate(jax.device_get(training.state))
            return training.state, ""

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "run_training", run_training)
            patch.setattr(run.evaluate, "describe", lambda config, watched: ["a record"])
            patch.setattr(run, "jit_step", lambda launch, state: launch)
            task = step.make_task(config)._replace(init=Seeded)
            mesh = make_mesh(devices=jax.devices()[:1])
            folder = pathlib.Path("missing")
            run.train(config, task, lambda params, seed: seed, folder, mesh)
        return found[option]

    return effect


def program(config):
    """A rollout and its steps, traced and not compiled."""
    task = step.make_task(config)
    text = str(jax.make_jaxpr(task.launch)(jax.eval_shape(task.init, 0)))
    return re.sub("0x[0-9a-f]+", "", text)


PPO = {"policy.name": "ppo"}
PICTURES = {"environment.name": "t_maze"}
CONV = {**PICTURES, "model.encoder": "conv"}
CASES = {
    "seed": Case(7, fitted("state"), Seeded(7)),
    "num_env_steps": Case(480, fitted("num_steps"), 10),
    "log_rollouts": Case(3, fitted("log_every"), 3),
    "save_rollouts": Case(4, fitted("save_every"), 4),
    "evaluate.num_steps": Case(0, fitted("records"), []),
    "environment.name": Case("t_maze", shapes),
    "environment.num": Case(6, argument("begin", 2), 6),
    "environment.resets": Case(2, resets, 2),
    "environment.stagger": Case(5, argument("begin", 4), 5),
    "model.encoder": Case("conv", shapes, beside=PICTURES),
    "model.widths": Case((7,), shapes),
    "model.channels": Case((3,), shapes, beside=CONV),
    "model.strides": Case((2,), shapes, beside=CONV),
    "model.width": Case(7, shapes, beside=CONV),
    "logger": Case(
        "trackio",
        services.services_of,
        [("init", (), None), ("log", ({"test/bound/1": 1.5},), 2), ("finish", (), None)],
    ),
    "model.memory": Case("lstm", shapes),
    "model.memory_width": Case(7, shapes),
    "model.critic_widths": Case((3,), shapes),
    "policy.name": Case("ppo", program),
    "policy.unroll": Case(8, argument("roll_out", 4), 8),
    "policy.discount": Case(0.5, argument("gae", 4), 0.5),
    "policy.gae_lambda": Case(0.5, argument("gae", 5), 0.5),
    "policy.entropy": Case(0.5, program),
    "policy.value": Case(0.5, program),
    "policy.clip": Case(0.01, program, beside=PPO),
    "policy.epochs": Case(3, lambda c: step.make_task(c).steps_per_launch, 3, PPO),
    "policy.minibatches": Case(2, lambda c: step.make_task(c).steps_per_launch, 2, PPO),
    "cpc.weight": Case(0.0, program),
    "cpc.num_offsets": Case(2, shapes),
    "cpc.num_environments": Case(2, program),
    "cpc.given_actions": Case(True, shapes),
    "cpc.targets": Case("other", program),
    "cpc.rule": Case("own_sequence", program),
    "cpc.cosine": Case(False, program),
    "cpc.temperature": Case(0.5, program),
    "optim.name": Case("rmsprop", optimizer("name"), "rmsprop"),
    "optim.learning_rate": Case(0.5, optimizer("learning_rate"), 0.5),
    "optim.schedule": Case("linear", optimizer("schedule"), "linear"),
    "optim.clip_norm": Case(0.5, optimizer("clip_norm"), 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", CASES)
def test_key(key):
    check(CASES[key], with_settings(configs_rl.get_config(), TINY), key)


def test_every_key_has_a_case():
    assert set(flatten(configs_rl.KEYS)) == {"kind", *CASES}


def test_an_encoder_without_layers():
    with pytest.raises(UserError, match="width of at least one layer"):
        step.make_task(with_settings(configs_rl.get_config(), {"model.widths": ()}))
