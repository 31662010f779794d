"""Construction of environments by name, from this package or from optional libraries."""

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from cpc.rl.environment import Environment, Outcome
from cpc.rl.hidden_ball import VARIANTS, make_hidden_ball
from cpc.rl.t_maze import make_t_maze
from cpc.types import UserError

#: Constructors of this package's environments by name.
OWN: Mapping[str, Callable[[], Environment]] = {
    **{f"hidden_ball:{variant}": partial(make_hidden_ball, variant) for variant in VARIANTS},
    "t_maze": make_t_maze,
    "t_maze:seen_again": partial(make_t_maze, seen_again=True),
}
CRAFTAX = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)


def make_environment(name: str) -> Environment:
    """Return an environment by its name in `OWN`, or as gymnax:ID, navix:ID or craftax:ID.

    Episodes end as in these libraries, including time limits. They do not restart automatically;
    see `auto_reset`. Observations and rewards are converted to float32.

    >>> make_environment("t_maze").observation_shape
    (3, 7, 3)
    """
    library, colon, identifier = name.partition(":")
    if name in OWN:
        return OWN[name]()
    if colon and library in OUTSIDE:
        return OUTSIDE[library](identifier)
    spellings = [f"{known}:{identifier}" for known in OUTSIDE if colon]
    hint = _hint(name, [*OWN, *spellings], [*OWN, *(f"{known}:ID" for known in OUTSIDE)])
    raise UserError(f"environment {name} does not exist: {hint}")


def _gymnax(identifier):
    """Return a gymnax environment (Lange 2022): classic control, MinAtar and bsuite."""
    with _needs("gymnax"):
        import gymnax  # pyright: ignore[reportMissingImports]
    _find("gymnax", identifier, gymnax.registered_envs)
    environment, params = gymnax.make(identifier)
    actions = environment.action_space(params)
    if not hasattr(actions, "n"):
        raise UserError(f"gymnax:{identifier} has continuous actions: choose another environment")

    def step(key, state, action):
        observation, state, reward, is_terminated, _ = environment.step_env(
            key, state, action, params
        )
        return state, observation, reward, is_terminated | environment.is_truncated(state, params)

    return _adapt(lambda key: environment.reset_env(key, params)[::-1], step, actions.n)


def _navix(identifier):
    """Return a navix environment (Pignatelli et al. 2024): MiniGrid in 7 x 7 first-person view."""
    with _needs("navix"):
        import navix  # pyright: ignore[reportMissingImports]
    _find("navix", identifier, navix.registry())
    environment = navix.make(identifier, observation_fn=navix.observations.symbolic_first_person)

    def reset(key):
        first = environment.reset(key)
        return first, first.observation

    def step(key, state, action):
        del key  # the state contains its own key
        after = environment.step(state, action)
        return after, after.observation, after.reward, after.is_done()

    return _adapt(reset, step, len(environment.action_set))


def _craftax(identifier):
    """Return a Craftax environment (Matthews et al. 2024); its resets are expensive."""
    with _needs("craftax"):
        import craftax.craftax_env  # pyright: ignore[reportMissingImports]
    _find("craftax", identifier, CRAFTAX)
    environment = craftax.craftax_env.make_craftax_env_from_name(identifier, auto_reset=False)
    params = environment.default_params

    def step(key, state, action):
        observation, state, reward, is_last, _ = environment.step(key, state, action, params)
        return state, observation, reward, is_last

    num_actions = environment.action_space(params).n
    return _adapt(lambda key: environment.reset(key, params)[::-1], step, num_actions)


#: Constructors of environments from other libraries, by prefix.
OUTSIDE: Mapping[str, Callable[[str], Environment]] = {
    "gymnax": _gymnax,
    "navix": _navix,
    "craftax": _craftax,
}


def _adapt(reset: Callable[..., Any], step: Callable[..., Any], num_actions: int) -> Environment:
    def reset_in_float(key):
        state, observation = reset(key)
        return state, observation.astype(jnp.float32)

    def step_in_float(key, state, action):
        state, observation, reward, is_last = step(key, state, action)
        reward = jnp.asarray(reward, jnp.float32)
        return state, Outcome(observation.astype(jnp.float32), reward, jnp.asarray(is_last, bool))

    _, observation = jax.eval_shape(reset_in_float, jax.random.key(0))
    return Environment(reset_in_float, step_in_float, int(num_actions), observation.shape)


def _find(library: str, identifier: str, known: Iterable[str]) -> None:
    if identifier not in known:
        hint = _hint(identifier, known, known)
        raise UserError(f"environment {library}:{identifier} does not exist: {hint}")


def _hint(name: str, candidates: Iterable[str], known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, candidates, 1)
    return f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}"


@contextlib.contextmanager
def _needs(library: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(f"{library} is not installed: pip install 'cpc-jax[{library}]'") from error
