"""Plans: a config is interpreted once into plain values."""

import importlib
import tracemalloc

import numpy as np
import pytest

from configs import audio_synthetic
from cpc.negatives import RULES
from cpc.types import Position, UserError
from experiments.command.config import with_settings
from experiments.training.plan import Branch, Geometry, check_window, make_rule
from tests.commands import run
from tests.plans import plan_of

NAMES = ("audio_voices", "image_fashion_mnist", "series_ar1", "text_sentences")


def config_of(name):
    return importlib.import_module(f"configs.{name}").get_config()


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_equal_for_equal_configs(name):
    config = config_of(name)
    plan = plan_of(config)
    assert plan == plan_of(config_of(name))
    config.negatives.temperature = 0.5
    assert plan != plan_of(config)
    assert plan.config.negatives.temperature != 0.5, "a plan keeps its config"
    with pytest.raises(AttributeError):
        plan.config.seed = 7


def test_plan_names_its_parts():
    config = config_of("audio_voices")
    config.negatives.window, config.negatives.queue = 3, 4096
    config.negatives.choose, config.negatives.num_sampled = "hardest", 5
    plan = plan_of(config)
    assert plan.negatives == "batch & outside_window(3), 5 hardest, queue of 4,096"
    assert plan.rule.name.startswith("batch & outside_window(3) & outside_overlap(")
    assert not plan.is_bound
    assert "batch & outside_window(3)" in repr(plan)


def test_plans_do_not_start_a_device():
    assert run("tests.plans", *NAMES).stdout.count("Plan(config=") == len(NAMES)


def has_negatives(config, length):
    offsets = tuple(range(1, config.model.num_offsets + 1))
    geometry = Geometry(length, 8, (Branch("forward", offsets),))
    try:
        check_window(config, make_rule(config), geometry)
    except UserError:
        return False
    return True


def count_every_pair(config, length):
    """Count admitted pairs of the first window's anchors with all candidates."""
    if length < 2:
        return False
    rule, batch_size = make_rule(config), config.data.batch_size
    sequence, time = np.divmod(np.arange(batch_size * length), length)
    candidates = Position(sequence, time, np.zeros_like(time), np.zeros_like(time))
    for k in range(1, min(config.model.num_offsets, length - 1) + 1):
        first = np.arange(length - k)[:, None]
        if not np.any(rule(Position(0 * first, first, 0 * first, 0 * first), candidates, k)):
            return False
    return True


def test_has_negatives_equals_counting_pairs():
    rng, found = np.random.default_rng(0), []
    for _ in range(200):
        batch_size, length = (int(n) for n in rng.integers(1, (5, 9)))
        config = with_settings(audio_synthetic.get_config(), {
            "data.batch_size": batch_size,
            "negatives.rule": str(rng.choice([*RULES])),
            "negatives.window": int(rng.integers(0, 9)),
            "negatives.shards": int(rng.choice([s for s in (1, 2, 3, 4) if batch_size % s == 0])),
            "model.num_offsets": int(rng.integers(1, 9)),
        })  # fmt: skip
        found.append(count_every_pair(config, length))
        assert has_negatives(config, length) == found[-1]
    assert 30 < sum(found) < 170


def test_has_negatives_needs_little_memory():
    config = with_settings(audio_synthetic.get_config(), {"data.batch_size": 2**17})
    tracemalloc.start()
    assert has_negatives(config, 10**6)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
