"""A config is interpreted once, into a plan of plain values."""

import importlib
import subprocess
import sys

import pytest

from tests.commands import ROOT
from tests.plans import plan_of

NAMES = ("audio_voices", "image_fashion_mnist", "series_ar1", "text_sentences")


def config_of(name):
    return importlib.import_module(f"configs.{name}").get_config()


@pytest.mark.parametrize("name", NAMES)
def test_plans_of_equal_configs_are_equal_and_others_are_not(name):
    config = config_of(name)
    plan = plan_of(config)
    assert plan == plan_of(config_of(name))
    config.negatives.temperature = 0.5
    assert plan != plan_of(config)


def test_a_plan_keeps_its_config():
    config = config_of("series_ar1")
    plan = plan_of(config)
    config.seed = 7
    assert plan.config.seed == 0
    with pytest.raises(AttributeError):
        plan.config.seed = 7


def test_a_plan_says_in_words_what_is_trained():
    config = config_of("audio_voices")
    config.negatives.window, config.negatives.queue = 3, 4096
    config.negatives.choose, config.negatives.num_sampled = "hardest", 5
    plan = plan_of(config)
    assert plan.negatives == "batch & outside_window(3), 5 hardest, queue of 4,096"
    assert plan.rule.name.startswith("batch & outside_window(3) & outside_overlap(")
    assert not plan.is_bound
    assert "batch & outside_window(3)" in repr(plan)


def test_making_and_printing_plans_starts_no_device():
    code = f"""
import importlib, jax
from tests.plans import plan_of
for name in {NAMES!r}:
    print(plan_of(importlib.import_module(f"configs.{{name}}").get_config()))
from jax._src import xla_bridge
assert not xla_bridge._backends, xla_bridge._backends
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
