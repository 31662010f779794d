"""Environments of other libraries by name, with fakes of these libraries."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.rl.outside import OUTSIDE, OWN, make_environment
from cpc.types import UserError


def fake_gymnax(*, are_discrete=True):
    """A walk to 3 with gymnax's interface, truncated after 5 steps."""

    def step(key, state, action, params):
        state = state[0] + action, state[1] + 1
        return jnp.stack(state), state, action, state[0] >= 3, {}

    environment = types.SimpleNamespace(
        action_space=lambda params: types.SimpleNamespace(**({"n": 2} if are_discrete else {})),
        reset_env=lambda key, params: (jnp.arange(2), (params["start"], jnp.int32(0))),
        step_env=step,
        is_truncated=lambda state, params: state[1] >= 5,
    )
    return types.SimpleNamespace(
        registered_envs=["Walk-v1"], make=lambda name: (environment, {"start": jnp.int32(1)})
    )


def fake_navix(seen):
    class Timestep(tuple):
        observation = property(lambda self: jnp.full((7, 7, 3), self[0], jnp.uint8))
        reward = property(lambda self: 0.5 * self[0])
        is_done = lambda self: self[0] == 2  # noqa: E731

    jax.tree_util.register_pytree_node(
        Timestep, lambda x: (tuple(x), None), lambda _, x: Timestep(x)
    )

    def make(name, observation_fn):
        seen.append(observation_fn)
        return types.SimpleNamespace(
            reset=lambda key: Timestep([jnp.int32(0)]),
            step=lambda timestep, action: Timestep([timestep[0] + action]),
            action_set=(None,) * 7,
        )

    return types.SimpleNamespace(
        registry=lambda: {"Navix-Empty-5x5-v0": None},
        make=make,
        observations=types.SimpleNamespace(symbolic_first_person="first person"),
    )


def fake_craftax(asked):
    def step(key, state, action, params):
        return jnp.full((9, 7, 3), 0.25), state + 1, params["worth"], state >= 1, {}

    def make(name, auto_reset):
        asked.append((name, auto_reset))
        return types.SimpleNamespace(
            default_params={"worth": 2.0},
            action_space=lambda params: types.SimpleNamespace(n=17),
            reset=lambda key, params: (jnp.zeros((9, 7, 3)), jnp.int32(0)),
            step=step,
        )

    module = types.ModuleType("craftax")
    module.craftax_env = types.ModuleType("craftax.craftax_env")
    module.craftax_env.make_craftax_env_from_name = make
    return module


def play(environment, actions):
    state, first = environment.reset(jax.random.key(0))
    found = []
    for action in actions:
        state, outcome = jax.jit(environment.step)(jax.random.key(1), state, jnp.int32(action))
        assert outcome.observation.dtype == outcome.reward.dtype == jnp.float32
        assert outcome.observation.shape == first.shape == environment.observation_shape
        assert outcome.is_last.dtype == bool
        found.append((outcome.observation, float(outcome.reward), bool(outcome.is_last)))
    return first, found


def test_gymnax_terminates_and_truncates(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", fake_gymnax())
    environment = make_environment("gymnax:Walk-v1")
    assert (environment.num_actions, environment.observation_shape) == (2, (2,))
    first, found = play(environment, [1, 0, 1])
    np.testing.assert_array_equal(first, [0, 1])
    np.testing.assert_array_equal([o for o, *_ in found], [[2, 1], [2, 2], [3, 3]])
    assert [rest for _, *rest in found] == [[1, False], [0, False], [1, True]]
    _, found = play(environment, [0] * 5)
    assert [is_last for *_, is_last in found] == [False] * 4 + [True]
    monkeypatch.setitem(sys.modules, "gymnax", fake_gymnax(are_discrete=False))
    with pytest.raises(UserError, match="gymnax:Walk-v1 has continuous actions"):
        make_environment("gymnax:Walk-v1")


def test_navix_in_first_person(monkeypatch):
    seen = []
    monkeypatch.setitem(sys.modules, "navix", fake_navix(seen))
    environment = make_environment("navix:Navix-Empty-5x5-v0")
    assert (environment.num_actions, environment.observation_shape) == (7, (7, 7, 3))
    first, found = play(environment, [1, 0, 1])
    assert seen == ["first person"]
    assert float(first.max()) == 0
    values = [(float(o.max()), *rest) for o, *rest in found]
    assert values == [(1, 0.5, False), (1, 0.5, False), (2, 1.0, True)]


def test_craftax_without_its_resets(monkeypatch):
    asked, name = [], "Craftax-Classic-Pixels-v1"
    module = fake_craftax(asked)
    monkeypatch.setitem(sys.modules, "craftax", module)
    monkeypatch.setitem(sys.modules, "craftax.craftax_env", module.craftax_env)
    environment = make_environment(f"craftax:{name}")
    assert asked == [(name, False)]
    assert (environment.num_actions, environment.observation_shape) == (17, (9, 7, 3))
    _, found = play(environment, [3, 3])
    values = [(float(o.max()), *rest) for o, *rest in found]
    assert values == [(0.25, 2.0, False), (0.25, 2.0, True)]


def test_missing_libraries_are_reported(monkeypatch):
    for name in OWN:
        environment = make_environment(name)
        _, observation = environment.reset(jax.random.key(0))
        assert observation.shape == environment.observation_shape
    for library in OUTSIDE:
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(UserError, match=rf"pip install 'cpc-jax\[{library}\]'"):
            make_environment(f"{library}:Any-v0")


@pytest.mark.parametrize(("name", "hint"), [
    ("t_mase", "mean t_maze"), ("gymnaks:CartPole-v1", "mean gymnax:CartPole-v1"),
    ("atari", "t_maze, .*gymnax:ID, navix:ID, craftax:ID"), ("gymnax:Wolk-v1", "mean Walk-v1"),
    ("gymnax:xyz", "gymnax:xyz .*Walk-v1"),
])  # fmt: skip
def test_unknown_names_are_rejected(monkeypatch, name, hint):
    monkeypatch.setitem(sys.modules, "gymnax", fake_gymnax())
    monkeypatch.setitem(sys.modules, "craftax", fake_craftax([]))
    monkeypatch.setitem(sys.modules, "craftax.craftax_env", types.ModuleType("craftax_env"))
    with pytest.raises(UserError, match=hint):
        make_environment(name)
