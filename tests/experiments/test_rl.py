"""Agents: predictions, minibatches, vmapped seeds, resume and input checks."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import rl as configs_rl
from configs import rl_paper, rl_t_maze
from cpc import rl
from cpc.models.agent import AgentInput
from cpc.negatives import RULES
from cpc.results import read_run, read_scores
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.rl import evaluate, run, step
from tests.fake_run import run_and_resume, untimed_records

NUM, UNROLL = 8, 12


TINY = {
    "num_env_steps": 192, "log_rollouts": 1, "save_rollouts": 1, "environment.num": NUM,
    "model.widths": (8,), "model.memory_width": 8, "policy.unroll": UNROLL,
    "cpc.num_offsets": 3, "evaluate.num_steps": 24,
}  # fmt: skip


def config_of(**given):
    settings = {name.replace("__", "."): value for name, value in given.items()}
    return with_settings(configs_rl.get_config(), TINY | settings)


@functools.cache
def play_rollout():
    task = step.make_task(config_of())

    @jax.jit
    def play(seed):
        state = task.init(seed)
        act = functools.partial(step.take_step, task.agent, state.params)
        _, rollout = rl.roll_out(task.many(NUM), act, state.extra, jax.random.key(seed), UNROLL)
        out = task.agent.apply({"params": state.params}, inputs_of(rollout), state.extra.memory)
        return state, rollout, out

    return task, *play(jnp.uint32(0))


def inputs_of(rollout):
    return AgentInput(rollout.observation, rollout.previous, rollout.is_first)


def test_acting_and_learning_passes_agree():
    _, _, rollout, out = play_rollout()
    assert rollout.is_last.any()
    found = rl.log_prob(out.logits, rollout.action)
    np.testing.assert_allclose(found, rollout.log_prob, atol=1e-6)
    np.testing.assert_allclose(out.values, rollout.value, atol=1e-6)


def test_lstm_state_is_reset_at_episode_starts():
    agent = step.make_task(config_of(model__memory="lstm")).agent
    inputs, begin = inputs_of(play_rollout()[2]), agent.begin(NUM)

    @jax.jit
    def both():
        params = agent.init(jax.random.key(0), inputs, begin)["params"]

        def act(memory, one):
            given = jax.tree.map(lambda x: x[None], one)
            logits, values, memory = step.take_step(agent, params, *given, memory)
            return memory, (logits[0], values[0])

        held = jax.tree.map(lambda x: x + 1, begin)
        out, other = (agent.apply({"params": params}, inputs, one) for one in (begin, held))
        found = (out.memory, (out.logits, out.values)), jax.lax.scan(act, begin, inputs)
        return found, (out.logits, other.logits)

    found, logits = both()
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    began = np.cumsum(inputs.is_first, 0) > 0
    np.testing.assert_allclose(*(one[began] for one in logits), atol=1e-6)


def test_predictions_stay_within_episodes_and_environments():
    task, state, rollout, out = play_rollout()

    @jax.jit
    def predict(params, rollout, out):
        def ask(out, rule, **given):
            return step.predict(config_of(**given), task.agent, params, out.z, out.c, rollout, rule)

        moved = out._replace(z=jnp.roll(out.z, step.SHIFT, axis=1))
        return {
            "batch": ask(out, RULES["batch"]), "strict": ask(out, step.STRICT),
            "other": ask(out, RULES["batch"], cpc__targets="other"),
            "moved": ask(moved, RULES["batch"]),
        }  # fmt: skip

    found = predict(state.params, rollout, out)
    losses = {name: float(loss) for name, (loss, _) in found.items()}
    assert losses["other"] == losses["moved"] != losses["batch"]
    age, episode = np.asarray(rollout.age), np.cumsum(rollout.is_first, 0)
    assert rollout.is_first[1:].any()
    for k in (1, 2, 3):
        inside = episode[:-k] == episode[k:]
        assert found["batch"][1].anchors[k - 1] == inside.sum()
        counted = [
            1 + sum(age[i + k, other] >= k for other in range(NUM) if other != j)
            for i, j in zip(*np.nonzero(inside), strict=True)
        ]
        assert float(found["strict"][1].n[k - 1]) == sum(n for n in counted if n > 1)
        assert (age[k:][inside] >= k).all()


def test_predictions_depend_on_actions_up_to_their_offset():
    agent = step.make_task(config_of(cpc__given_actions=True)).agent
    _, _, rollout, out = play_rollout()
    other = rollout.action.at[5].set((rollout.action[5] + 1) % 3)

    @jax.jit
    def predict():
        params = agent.init(jax.random.key(0), inputs_of(rollout), agent.begin(NUM))
        return [agent.apply(params, out.c, a, method="predict") for a in (rollout.action, other)]

    moved = np.abs(np.subtract(*predict())).max((1, 3)) > 0
    assert moved.tolist() == [[i <= 5 <= i + k for k in range(3)] for i in range(UNROLL)]


def batch_of(rollout, state):
    advantages = rl.standardize(jax.random.normal(jax.random.key(3), rollout.reward.shape))
    return {
        "steps": rollout, "advantages": advantages, "targets": rollout.value + 1,
        "memory": state.extra.memory,
    }  # fmt: skip


def test_loss_may_use_a_subset_of_environments():
    """Sums of seven drawn environments equal the sums of a loss on these seven."""
    task, state, rollout, out = play_rollout()
    loss_fn = step.make_loss(config_of(cpc__num_environments=NUM - 1), task.agent)
    kept = jnp.stack([jnp.delete(jnp.arange(NUM), i) for i in range(NUM)])

    @jax.jit
    def compare(params, batch):
        def subset_sums(own):
            parts = jax.tree.map(lambda x: x[:, own], (out.z, out.c, rollout))
            return step.predict(config_of(), task.agent, params, *parts, RULES["batch"])[1]

        drawn = jax.random.split(jax.random.key(0), 60)
        found = jax.lax.map(lambda rng: loss_fn(params, {}, batch, rng)[1][1], drawn)
        both = jax.lax.map(subset_sums, kept), found["offsets"]
        return [sums.loss / sums.anchors for sums in both]

    expected, found = map(np.asarray, compare(state.params, batch_of(rollout, state)))
    distance = np.abs(found[:, None] - expected).max(-1)
    assert (distance.min(1) < 1e-5).all()
    assert set(distance.argmin(1)) == set(range(NUM))


def test_loss_is_a_weighted_sum_and_first_ppo_step_equals_a2c():
    task, state, rollout, _ = play_rollout()
    batch = batch_of(rollout, state)
    parts, alone = ({"policy__entropy": entropy, "policy__value": value, "cpc__weight": weight}
                    for entropy, value, weight in ((0.3, 0.7, 2.0), (0.0, 0.0, 0.0)))  # fmt: skip
    loss_fn, a2c, ppo = (
        step.make_loss(config_of(**own), task.agent)
        for own in (parts, alone, {**alone, "policy__name": "ppo"})
    )

    @jax.jit
    def compare(params):
        own = [jax.grad(lambda p, f=f: f(p, {}, batch, None)[0])(params) for f in (a2c, ppo)]
        return loss_fn(params, {}, batch, None), *own

    (loss, (_, found)), a2c, ppo = compare(state.params)
    sums = found["offsets"]
    parts = found["policy_loss"] + 0.7 * found["value_loss"] - 0.3 * found["entropy"]
    assert float(loss) == pytest.approx(float(parts + 2 * (sums.loss / sums.anchors).mean()))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), a2c, ppo)
    assert max(float(np.abs(x).max()) for x in jax.tree.leaves(a2c)) > 1e-3


def test_minibatches_hold_whole_environments():
    task, state, *_ = play_rollout()
    together, rng = task.many(NUM), jax.random.key(0)
    settings = {"policy__name": "ppo", "policy__epochs": 2, "policy__minibatches": 2}
    one, some = (
        jax.jit(step.make_collect(config_of(policy__discount=0.8, **own), task.agent, together))
        for own in ({}, settings)
    )
    worlds, _ = one(state.params, state.extra, rng)  # afterwards memories are not zero
    later, whole = one(state.params, worlds, rng)
    _, parts = some(state.params, worlds, rng)
    _, after = one(state.params, later, rng)
    whole, after = (jax.tree.map(lambda x: np.asarray(x[0]), one) for one in (whole, after))
    steps, gae_lambda = whole["steps"], config_of().policy.gae_lambda
    given = steps.reward, steps.value, steps.is_last, after["steps"].value[0], 0.8, gae_lambda
    advantages, targets = rl.gae(*map(jnp.asarray, given[:4]), *given[4:])
    np.testing.assert_allclose(whole["advantages"], advantages, atol=1e-5)
    np.testing.assert_allclose(whole["targets"], targets, atol=1e-5)
    distance = np.abs(np.asarray(parts["memory"])[:, :, None] - whole["memory"]).max(-1)
    order = distance.argmin(-1)
    assert [sorted(epoch.ravel()) for epoch in order.reshape(2, -1)] == [list(range(NUM))] * 2
    assert order[:2].tolist() != order[2:].tolist()
    for name in ("steps", "advantages", "targets"):
        for part, same in zip(*map(jax.tree.leaves, (parts[name], whole[name])), strict=True):
            np.testing.assert_array_equal(part, np.moveaxis(same[:, order], 1, 0))
    assert distance.min(-1).max() == 0


def test_environments_start_at_different_times():
    config = config_of(environment__num=20, num_env_steps=240)
    many, spread = step.make_task(config).many(20), config.environment.stagger
    worlds = jax.jit(lambda: rl.begin(many, jnp.zeros((20, 1)), 20, jax.random.key(0), spread))()
    assert sorted(set(np.asarray(worlds.states.row))) == list(range(10))


def test_vmapped_seeds_equal_single_seeds(monkeypatch):
    """The paper's agent on a small maze, with offsets beyond the longest episode."""
    monkeypatch.setattr(rl, "make_environment", lambda name: rl.make_t_maze(2, max_steps=6))
    small = {
        "environment.num": 4, "environment.resets": 2, "environment.stagger": 3,
        "model.channels": (2,), "model.strides": (1,), "model.width": 5, "model.memory_width": 6,
        "policy.unroll": 10, "cpc.num_offsets": 8, "num_env_steps": 400,
    }  # fmt: skip
    task = step.make_task(with_settings(rl_paper.get_config(), small))

    @jax.jit
    @jax.vmap
    def train(seed):
        state = task.init(seed)
        return state, jax.lax.scan(lambda now, _: (task.launch(now), None), state, None, 2)[0]

    (before, other), (_, same) = (train(jnp.uint32(jnp.array(own))) for own in ((0, 1), (1, 2)))
    before, alone = (jax.tree.map(lambda x: x[1], one) for one in (before, other))
    for one, own in zip(*map(jax.tree.leaves, (alone.params, same.params)), strict=True):
        np.testing.assert_allclose(one, own[0], atol=2e-4)
    assert int(alone.step) == 2 * task.steps_per_launch
    assert all(part.shape == (4, 6) for part in alone.extra.memory)
    anchors = np.asarray(alone.metrics["offsets"].anchors)
    longest = int(np.flatnonzero(anchors).max()) + 1
    assert 1 <= longest < 6
    assert (np.diff(anchors[:longest]) <= 0).all()
    moved = alone.params["predictor"]["W"]["kernel"] - before.params["predictor"]["W"]["kernel"]
    moved = np.abs(moved).max((0, 2))  # per offset
    assert (moved[: longest - 1] > 0).all()
    assert (moved[longest:] == 0).all()


@pytest.mark.whole
def test_resumed_run_equals_uninterrupted_run(tmp_path, monkeypatch, capsys):
    config = config_of(policy__name="ppo", policy__minibatches=2)
    whole, parts = run_and_resume(config, tmp_path, monkeypatch, capsys)
    assert untimed_records(whole)[-1]["step"] == 4
    episodes = [dict(np.load(folder / "episode.npz")) for folder in (whole, parts)]
    assert all((episodes[0][name] == episodes[1][name]).all() for name in episodes[0])
    strict = read_run(whole).offsets.query("series == 'strict'")
    assert strict.is_bound.all()
    assert strict.n.max() > 100
    scores = read_scores(whole)
    assert {score.task for score in scores} == {"ball", "velocity", "row"}
    assert {score.step for score in scores} == {4}


def test_memory_probe_finds_facts_and_not_noise():
    rng = np.random.default_rng(0)
    facts = rng.integers(0, 4, (24, evaluate.NUM))
    facts[:6] = -1
    features = {"c": np.eye(4)[np.maximum(facts, 0)], "z": rng.normal(size=(24, evaluate.NUM, 4))}
    rollout = rl.Rollout(*([np.zeros(facts.shape)] * 11), facts={"place": facts})
    given = evaluate.Watched(rollout, features, None)
    scores = {score.features: score for score, _ in evaluate.probe_memory(config_of(), given)}
    assert scores["c"].value == 1
    assert abs(scores["z"].value - 0.25) < 0.05
    assert scores["c"].num_test == 18 * evaluate.NUM // 2


def fake_rollout(*ends):
    """Return a fake rollout with episode ends at (time, environment, return, length)."""
    is_last, returns, lengths = np.zeros((6, 2), bool), np.zeros((6, 2)), np.zeros((6, 2), int)
    for time, column, total, length in ends:
        at = time, column
        is_last[at], returns[at], lengths[at] = True, total, length
    rollout = types.SimpleNamespace(is_last=is_last, episode_return=returns, episode_length=lengths)
    return types.SimpleNamespace(rollout=rollout)


def test_returns_use_complete_episodes_equally_per_environment(capsys):
    describe = functools.partial(evaluate.describe, config_of(cpc__weight=0.0))
    assert describe(fake_rollout()) == []
    assert describe(fake_rollout((3, 0, 9.0, 4))) == []  # began before the rollout
    short, long = [(0, 0, 9.0, 4), (2, 0, 1.0, 2)], [(1, 1, 9.0, 4), (5, 1, 4.0, 4)]
    expected = [{"return": 2.5, "episode_length": 3.0}]
    assert describe(fake_rollout(*short, *long)) == expected
    assert describe(fake_rollout(*short, (4, 0, 1.0, 2), *long)) == expected
    capsys.readouterr()
    assert describe(fake_rollout(*short, long[0])) == []
    assert "evaluate.num_steps" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "words"), [
    ({"policy__unroll": 3}, "policy.unroll is 3 and cpc.num_offsets is 3"),
    ({"policy__epochs": 2}, "policy.epochs is 2"),
    ({"policy__name": "ppo", "policy__minibatches": 3}, "policy.minibatches is 3"),
    ({"num_env_steps": 40}, "num_env_steps is 40"),
    ({"cpc__num_environments": 9}, "cpc.num_environments is 9"),
    ({"cpc__num_environments": 1}, "cpc.rule"),
    ({"environment__resets": 9}, "environment.resets is 9 and environment.num is 8"),
    ({"model__encoder": "conv"}, "model.encoder"),
    ({"model__encoder": "conv", "model__channels": (3,)}, "model.channels"),
    ({"model__widths": ()}, "model.widths"),
    ({"environment__name": "hidden_bal:seen_again"}, "hidden_ball:seen_again"),
])  # fmt: skip
def test_invalid_settings_are_rejected(given, words):
    with pytest.raises(UserError, match=words):
        run.interpret(run, config_of(**given))


@pytest.mark.nightly
@pytest.mark.parametrize("memory", ["gru", "none"])
def test_t_maze_needs_memory(monkeypatch, memory):
    monkeypatch.setattr(rl, "make_environment", lambda name: rl.make_t_maze(2, max_steps=9))
    given = {"policy.unroll": 10, "optim.learning_rate": 5e-3, "cpc.weight": 0.0}
    config = with_settings(rl_t_maze.get_config(), {"model.memory": memory, **given})
    task = step.make_task(config)

    @jax.jit
    @jax.vmap
    def train(seed):
        def launch(state, _):
            state = task.launch(state)
            return state, (state.metrics["episode_return"], state.metrics["episodes"])

        return jax.lax.scan(launch, task.init(seed), None, 180)[1]

    sums, counts = train(jnp.arange(2))  # over all rollouts
    returns = (sums[:, -1] - sums[:, -21]) / (counts[:, -1] - counts[:, -21])
    low, high = (0.95, 1.0) if memory == "gru" else (0.35, 0.65)
    assert ((returns > low) & (returns <= high)).all()
