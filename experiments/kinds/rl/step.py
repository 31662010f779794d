"""What a step of reinforcement learning is: a rollout, the policy's loss on it, and CPC's.

A launch collects a rollout with the parameters as they are, and then makes the steps that these
data are good for: one of A2C, some of PPO. All that it begins with is in the state, environments
and memories too, so that it can be stopped, resumed, and vmapped over seeds.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc import negatives, rl
from cpc.losses import OffsetSums, cpc_loss
from cpc.models.agent import Agent, DenseEncoder, Heard, PixelEncoder
from cpc.negatives import RULES
from cpc.train import TrainState, init_state, make_optimizer, make_train_step, scan_steps
from cpc.types import CPCOutputs, Position, Rule, UserError
from experiments.command.config import Config
from experiments.training.checks import reject
from experiments.training.objective import to_cosines

#: Of each other environment the latent at the positive's time, if it could be a positive of this
#: offset, too: draws from the very distribution of the positives, so that log N - L is a bound.
STRICT = Rule(
    "one_per_episode",
    lambda anchor, candidate, offset: (
        negatives.one_per_sequence(anchor, candidate, offset) & (candidate.group >= offset)
    ),
    independent=True,
    aligned=True,
)
#: By how many environments the targets of the control are off.
SHIFT = 1


class Task(NamedTuple):
    """What a config asks for."""

    many: Callable[[int], rl.Environment]
    """many(num) -> so many environments side by side, as one."""
    agent: Agent
    steps_per_launch: int
    num_launches: int
    schedule: Callable[[Any], Any]
    init: Callable[[Any], TrainState]
    """init(seed) -> the state before the first launch; to be jitted or vmapped."""
    launch: Callable[..., TrainState]
    """launch(state) -> the state after one more rollout and its steps."""


def check(config: Config) -> None:
    """Check that the keys of a config go together."""
    policy, cpc, num = config.policy, config.cpc, config.environment.num
    minibatch, predicted = num // policy.minibatches, cpc.num_environments
    is_alone = 1 in (minibatch, predicted) and cpc.rule != "own_sequence"
    reject(config,
        (cpc.weight and policy.unroll <= cpc.num_offsets, "policy.unroll cpc.num_offsets",
         "a rollout has no step that far ahead; raise the first or lower the second"),
        (policy.name == "a2c" and (policy.epochs, policy.minibatches) != (1, 1),
         "policy.name policy.epochs policy.minibatches",
         "a2c makes one step on each rollout; set policy.epochs and policy.minibatches to 1, or "
         "policy.name=ppo"),
        (num % policy.minibatches, "policy.minibatches environment.num",
         "the first must divide the second"),
        (predicted > minibatch, "cpc.num_environments",
         f"a minibatch has {minibatch}; lower it, or set it to 0 for all of them"),
        (cpc.weight and is_alone, "cpc.rule environment.num cpc.num_environments",
         "one environment is predicted at a step, and the rule takes its negatives from others; "
         "raise environment.num or cpc.num_environments, or lower policy.minibatches"),
        (config.num_env_steps < num * policy.unroll, "num_env_steps",
         f"one rollout has {num * policy.unroll}; raise it, or lower environment.num or "
         "policy.unroll"),
        (config.environment.resets > num, "environment.resets environment.num",
         "lower the first, or set it to 0 for as many"),
        (not config.model.widths, "model.widths",
         "give the width of at least one layer"),
        (len(config.model.channels) != len(config.model.strides), "model.channels model.strides",
         "give as many of one as of the other"),
    )  # fmt: skip


def make_agent(config: Config, environment: rl.Environment) -> Agent:
    """Return the agent of a config."""
    model, shape = config.model, environment.observation_shape
    if model.encoder == "conv" and len(shape) != 3:
        raise UserError(
            f"model.encoder is conv, and {config.environment.name} shows {shape}, no picture "
            "(y, x, channels): set model.encoder=dense"
        )
    encoder = DenseEncoder(tuple(model.widths))
    if model.encoder == "conv":
        encoder = PixelEncoder(tuple(model.channels), tuple(model.strides), model.width)
    return Agent(
        environment.num_actions,
        encoder,
        model.memory,
        model.memory_width,
        config.cpc.num_offsets,
        config.cpc.given_actions,
        tuple(model.critic_widths),
    )


def make_task(config: Config) -> Task:
    """Return what a config asks for."""
    check(config)
    policy, num = config.policy, config.environment.num
    environment = rl.make_environment(config.environment.name)
    many = functools.partial(
        rl.side_by_side, environment, num_resets=config.environment.resets or None
    )
    together = many(num)
    agent = make_agent(config, environment)
    per_launch = policy.epochs * policy.minibatches
    num_launches = config.num_env_steps // (num * policy.unroll)
    tx, schedule = make_optimizer(**config.optim, num_steps=num_launches * per_launch)
    loss_fn = make_loss(config, agent)
    train_step = make_train_step(loss_fn, tx)
    collect = make_collect(config, agent, together)

    def init(seed):
        root = jax.random.key(seed)
        of_params, of_worlds, rng = (jax.random.fold_in(root, i) for i in range(3))
        memory = agent.begin(num)
        worlds = rl.begin(together, memory, num, of_worlds, config.environment.stagger)
        first = Heard(worlds.observation[None], worlds.previous[None], worlds.is_first[None])
        params = agent.init(of_params, first, memory)["params"]
        batches = jax.eval_shape(functools.partial(collect, params), worlds, rng)[1]
        one = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), batches)
        _, (_, metrics) = jax.eval_shape(loss_fn, params, worlds, one, rng)
        return init_state(params, worlds, tx, rng, metrics)

    def launch(state: TrainState, _: Any = None) -> TrainState:
        rng = jax.random.fold_in(jax.random.fold_in(state.rng, 2**31 - 1), state.step)
        worlds, batches = collect(state.params, state.extra, rng)
        healthy = state.failure[0] < 0
        worlds = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), worlds, state.extra)
        return scan_steps(train_step, state._replace(extra=worlds), batches)

    return Task(many, agent, per_launch, num_launches, schedule, init, launch)


def make_collect(config: Config, agent: Agent, together: rl.Environment) -> Callable:
    """collect(params, worlds, rng) -> (worlds a rollout later, its minibatches (steps, ...))."""
    policy, num = config.policy, config.environment.num
    num_minibatches = policy.epochs * policy.minibatches
    act = functools.partial(take_step, agent)

    def collect(params, worlds, rng):
        of_rollout, of_parts = jax.random.split(rng)
        before = worlds.memory
        worlds, rollout = rl.roll_out(
            together, functools.partial(act, params), worlds, of_rollout, policy.unroll
        )
        seen, came, is_first = worlds.observation, worlds.previous, worlds.is_first
        _, values, _ = act(params, seen[None], came[None], is_first[None], worlds.memory)
        advantages, targets = rl.gae(
            rollout.reward,
            rollout.value,
            rollout.is_last,
            values[0],
            policy.discount,
            policy.gae_lambda,
        )
        whole = {"steps": rollout, "advantages": advantages, "targets": targets}
        if num_minibatches == 1:
            return worlds, jax.tree.map(lambda x: x[None], {**whole, "memory": before})
        orders = jax.vmap(lambda key: jax.random.permutation(key, num))(
            jax.random.split(of_parts, policy.epochs)
        ).reshape(num_minibatches, -1)

        def pick(tree, axis):
            return jax.tree.map(lambda x: jnp.moveaxis(jnp.take(x, orders, axis), axis, 0), tree)

        return worlds, {**pick(whole, 1), "memory": pick(before, 0)}

    return collect


def take_step(
    agent: Agent, params: Any, observation: Any, previous: Any, is_first: Any, memory: Any
) -> tuple[Any, Any, Any]:
    """Return logits, values and the memory after steps, as `cpc.rl.roll_out` asks for them."""
    heard = Heard(observation, previous, is_first)
    out: Any = agent.apply({"params": params}, heard, memory)
    return out.logits, out.values, out.memory


def make_loss(config: Config, agent: Agent) -> Callable:
    """loss_fn(params, worlds, batch, rng) -> (loss, (worlds, metrics)), of a minibatch."""
    policy, cpc, is_ppo = config.policy, config.cpc, config.policy.name == "ppo"

    def loss_fn(params, worlds, batch, rng):
        steps: rl.Rollout = batch["steps"]
        heard = Heard(steps.observation, steps.previous, steps.is_first)
        out: Any = agent.apply({"params": params}, heard, batch["memory"])
        log_probs = rl.log_prob(out.logits, steps.action)
        if is_ppo:
            advantages = rl.standardize(batch["advantages"])
            of_policy = rl.ppo_loss(log_probs, steps.log_prob, advantages, policy.clip)
            of_values = rl.value_loss(
                out.values, batch["targets"], old_values=steps.value, clip=policy.clip
            )
        else:
            of_policy = rl.policy_gradient_loss(log_probs, batch["advantages"])
            of_values = rl.value_loss(out.values, batch["targets"])
        entropy = rl.entropy(out.logits)
        loss = (of_policy + policy.value * of_values - policy.entropy * entropy).mean()
        metrics = {
            "policy_loss": of_policy.mean(),
            "value_loss": of_values.mean(),
            "entropy": entropy.mean(),
            "episodes": steps.is_last.sum(),
            "episode_return": steps.episode_return.sum(),
            "episode_length": steps.episode_length.sum(),
        }
        if cpc.weight:
            parts = out.z, out.c, steps
            if cpc.num_environments:
                num = steps.is_first.shape[1]
                drawn = jax.random.choice(rng, num, (cpc.num_environments,), replace=False)
                parts = jax.tree.map(lambda x: x[:, drawn], parts)
            z, c, of_parts = parts
            value, sums = predict(config, agent, params, z, c, of_parts, RULES[cpc.rule])
            loss += cpc.weight * value
            metrics |= {"offsets": sums}
        return loss, (worlds, metrics)

    return loss_fn


def predict(
    config: Config, agent: Agent, params: Any, z: Any, c: Any, steps: rl.Rollout, rule: Rule
) -> tuple[Any, OffsetSums]:
    """Return the loss of CPC, the mean over offsets, and the sums of each."""
    cpc = config.cpc
    predictions: Any = agent.apply({"params": params}, c, steps.action, method="predict")
    outputs = CPCOutputs(*(jnp.swapaxes(x, 0, 1) for x in (z, c, predictions)))
    if cpc.targets == "other":  # as much to compute, and nothing to know
        outputs = outputs._replace(z=jnp.roll(outputs.z, SHIFT, axis=0))
    if cpc.cosine:
        outputs = to_cosines(outputs)
    value, sums = cpc_loss(outputs, positions(steps), rule, temperature=cpc.temperature)
    return value / cpc.num_offsets, sums


def positions(steps: rl.Rollout) -> Position:
    """Return where the steps of a rollout (t, b) are, as (b, t).

    A sequence is an episode; the group is how many steps ago it began.
    """
    episode = jnp.cumsum(steps.is_first.T, axis=1)
    b, t = episode.shape
    sequence = (t + 1) * jnp.arange(b)[:, None] + episode
    time = jnp.broadcast_to(jnp.arange(t), (b, t))
    return Position(sequence, time, jnp.zeros((b, t), jnp.int32), steps.age.T)
