"""Training steps of an agent, with the policy loss and the CPC loss.

A launch, one jitted call, collects a rollout with the current parameters, and then makes
one A2C step or several PPO steps. The state includes environments and memories, so that launches
can be resumed and vmapped over seeds.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc import negatives, rl
from cpc.losses import OffsetSums, cpc_loss
from cpc.models.agent import Agent, AgentInput, DenseEncoder, PixelEncoder
from cpc.negatives import RULES
from cpc.train import TrainState, init_state, make_optimizer, make_train_step, scan_steps
from cpc.types import CPCOutputs, Position, Rule, UserError
from experiments.command.config import Config
from experiments.training.checks import reject
from experiments.training.objective import to_cosines

#: Rule whose candidates are latents of other environments at the positive's time. Candidates could
#: also be positives of the offset and are distributed like positives, so that log N - L is a bound.
STRICT = Rule(
    "one_per_episode",
    lambda anchor, candidate, offset: (
        negatives.one_per_sequence(anchor, candidate, offset) & (candidate.group >= offset)
    ),
    independent=True,
    aligned=True,
)
#: Number of environments by which the control experiment's targets are shifted.
SHIFT = 1


class Task(NamedTuple):
    """An agent with its environments and training functions."""

    many: Callable[[int], rl.Environment]
    """Function many(num) that returns a vectorized environment."""
    agent: Agent
    steps_per_launch: int
    num_launches: int
    schedule: Callable[[Any], Any]
    init: Callable[[Any], TrainState]
    """Function init(seed) that returns the initial state, for use in jit and vmap."""
    launch: Callable[..., TrainState]
    """Function launch(state) that returns the state after another rollout and its steps."""


def check(config: Config) -> None:
    """Check that a config's keys are consistent."""
    policy, cpc, num = config.policy, config.cpc, config.environment.num
    minibatch, predicted = num // policy.minibatches, cpc.num_environments
    is_alone = 1 in (minibatch, predicted) and cpc.rule != "own_sequence"
    reject(config,
        (cpc.weight and policy.unroll <= cpc.num_offsets, "policy.unroll cpc.num_offsets",
         "offsets exceed a rollout; raise policy.unroll or lower cpc.num_offsets"),
        (policy.name == "a2c" and (policy.epochs, policy.minibatches) != (1, 1),
         "policy.name policy.epochs policy.minibatches",
         "a2c makes one step per rollout; set epochs and minibatches to 1, or policy.name=ppo"),
        (num % policy.minibatches, "policy.minibatches environment.num",
         "minibatches must divide the number of environments; change policy.minibatches"),
        (predicted > minibatch, "cpc.num_environments",
         f"a minibatch has {minibatch} environments; set cpc.num_environments=0 to use all"),
        (cpc.weight and is_alone, "cpc.rule environment.num cpc.num_environments",
         "the rule needs several environments per step; raise both, or lower policy.minibatches"),
        (config.num_env_steps < num * policy.unroll, "num_env_steps",
         f"a single rollout has {num * policy.unroll} steps; raise num_env_steps"),
        (config.environment.resets > num, "environment.resets environment.num",
         "lower environment.resets, or set it to 0 for one reset per environment"),
        (not config.model.widths, "model.widths",
         "set model.widths to the width of at least one layer"),
        (len(config.model.channels) != len(config.model.strides), "model.channels model.strides",
         "set the same number of channels and strides"),
    )  # fmt: skip


def make_agent(config: Config, environment: rl.Environment) -> Agent:
    """Build the agent of a config for an environment."""
    model, shape = config.model, environment.observation_shape
    if model.encoder == "conv" and len(shape) != 3:
        raise UserError(f"model.encoder=conv needs images (got shape {shape}): set it to dense")
    encoder = DenseEncoder(tuple(model.widths))
    if model.encoder == "conv":
        encoder = PixelEncoder(tuple(model.channels), tuple(model.strides), model.width)
    memory, predictor = (model.memory, model.memory_width), config.cpc
    offsets = predictor.num_offsets, predictor.given_actions
    return Agent(environment.num_actions, encoder, *memory, *offsets, tuple(model.critic_widths))


def make_task(config: Config) -> Task:
    """Build a config's agent, environments and training functions."""
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
        params_rng, worlds_rng, rng = (jax.random.fold_in(root, i) for i in range(3))
        memory = agent.begin(num)
        worlds = rl.begin(together, memory, num, worlds_rng, config.environment.stagger)
        first = AgentInput(worlds.observation[None], worlds.previous[None], worlds.is_first[None])
        params = agent.init(params_rng, first, memory)["params"]
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
    """Return collect(params, worlds, rng), which returns worlds and minibatches (steps, ...)."""
    policy, num = config.policy, config.environment.num
    num_minibatches = policy.epochs * policy.minibatches
    act = functools.partial(take_step, agent)

    def collect(params, worlds, rng):
        rollout_rng, order_rng = jax.random.split(rng)
        before = worlds.memory
        worlds, rollout = rl.roll_out(
            together, functools.partial(act, params), worlds, rollout_rng, policy.unroll
        )
        last = worlds.observation[None], worlds.previous[None], worlds.is_first[None]
        _, values, _ = act(params, *last, worlds.memory)
        steps = rollout.reward, rollout.value, rollout.is_last, values[0]
        advantages, targets = rl.gae(*steps, policy.discount, policy.gae_lambda)
        whole = {"steps": rollout, "advantages": advantages, "targets": targets}
        if num_minibatches == 1:
            return worlds, jax.tree.map(lambda x: x[None], {**whole, "memory": before})
        orders = jax.vmap(lambda key: jax.random.permutation(key, num))(
            jax.random.split(order_rng, policy.epochs)
        ).reshape(num_minibatches, -1)

        def gather(tree, axis):
            return jax.tree.map(lambda x: jnp.moveaxis(jnp.take(x, orders, axis), axis, 0), tree)

        return worlds, {**gather(whole, 1), "memory": gather(before, 0)}

    return collect


def take_step(
    agent: Agent, params: Any, observation: Any, previous: Any, is_first: Any, memory: Any
) -> tuple[Any, Any, Any]:
    """Return logits, values and new memory, with the policy signature of `cpc.rl.roll_out`."""
    inputs = AgentInput(observation, previous, is_first)
    out: Any = agent.apply({"params": params}, inputs, memory)
    return out.logits, out.values, out.memory


def make_loss(config: Config, agent: Agent) -> Callable:
    """Return loss_fn(params, worlds, minibatch, rng), which returns (loss, (worlds, metrics))."""
    policy, cpc, is_ppo = config.policy, config.cpc, config.policy.name == "ppo"

    def loss_fn(params, worlds, batch, rng):
        steps: rl.Rollout = batch["steps"]
        inputs = AgentInput(steps.observation, steps.previous, steps.is_first)
        out: Any = agent.apply({"params": params}, inputs, batch["memory"])
        log_probs = rl.log_prob(out.logits, steps.action)
        if is_ppo:
            advantages = rl.standardize(batch["advantages"])
            policy_loss = rl.ppo_loss(log_probs, steps.log_prob, advantages, policy.clip)
            value_loss = rl.value_loss(
                out.values, batch["targets"], old_values=steps.value, clip=policy.clip
            )
        else:
            policy_loss = rl.policy_gradient_loss(log_probs, batch["advantages"])
            value_loss = rl.value_loss(out.values, batch["targets"])
        entropy = rl.entropy(out.logits)
        loss = (policy_loss + policy.value * value_loss - policy.entropy * entropy).mean()
        means = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        metrics: dict[str, Any] = {name: value.mean() for name, value in means.items()}
        metrics["episodes"] = steps.is_last.sum()
        for name in ("episode_return", "episode_length"):
            metrics[name] = getattr(steps, name).sum()
        if cpc.weight:
            z, c, parts = out.z, out.c, steps
            if cpc.num_environments:
                num = steps.is_first.shape[1]
                drawn = jax.random.choice(rng, num, (cpc.num_environments,), replace=False)
                z, c, parts = jax.tree.map(lambda x: x[:, drawn], (z, c, parts))
            value, sums = predict(config, agent, params, z, c, parts, RULES[cpc.rule])
            loss += cpc.weight * value
            metrics |= {"offsets": sums}
        return loss, (worlds, metrics)

    return loss_fn


def predict(
    config: Config, agent: Agent, params: Any, z: Any, c: Any, steps: rl.Rollout, rule: Rule
) -> tuple[Any, OffsetSums]:
    """Return the mean CPC loss over offsets, and each offset's loss sums."""
    cpc = config.cpc
    predictions: Any = agent.apply({"params": params}, c, steps.action, method="predict")
    outputs = CPCOutputs(*(jnp.swapaxes(x, 0, 1) for x in (z, c, predictions)))
    if cpc.targets == "other":  # control experiment: same cost, but unpredictable targets
        outputs = outputs._replace(z=jnp.roll(outputs.z, SHIFT, axis=0))
    if cpc.cosine:
        outputs = to_cosines(outputs)
    value, sums = cpc_loss(outputs, positions(steps), rule, temperature=cpc.temperature)
    return value / cpc.num_offsets, sums


def positions(steps: rl.Rollout) -> Position:
    """Return positions (b, t) for a rollout's steps (t, b).

    Sequences are episodes. A step's group is the number of steps since its episode started.
    """
    episode = jnp.cumsum(steps.is_first.T, axis=1)
    b, t = episode.shape
    sequence = (t + 1) * jnp.arange(b)[:, None] + episode
    time = jnp.broadcast_to(jnp.arange(t), (b, t))
    return Position(sequence, time, jnp.zeros((b, t), jnp.int32), steps.age.T)
