"""Agents from end to end: what is predicted and what is not, resume, seeds at once, mistakes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import rl as configs_rl
from cpc import rl
from cpc.models.agent import Heard
from cpc.negatives import RULES
from cpc.results import read_run, read_scores
from cpc.results.score import read_records
from cpc.types import UserError
from experiments.command.config import check_config, with_settings
from experiments.kinds.rl import evaluate, run, step
from experiments.train import run as run_config
from experiments.training import loop


def config_of(**given):
    tiny = {
        "num_env_steps": 240, "log_rollouts": 1, "environment.num": 4, "model.widths": (8,),
        "model.memory_width": 8, "policy.unroll": 12, "cpc.num_offsets": 3,
        "evaluate.num_steps": 24,
    }  # fmt: skip
    settings = {name.replace("__", "."): value for name, value in given.items()}
    return with_settings(configs_rl.get_config(), {**tiny, **settings})


def played(config, seed=0):
    """An agent's rollout, and what it makes of it."""
    task = step.make_task(config)
    state = jax.jit(task.init)(jnp.uint32(seed))

    @jax.jit
    def play(params, worlds):
        act = functools.partial(step.take_step, task.agent, params)
        environment = task.many(config.environment.num)
        _, rollout = rl.roll_out(environment, act, worlds, jax.random.key(seed), 12)
        heard = Heard(rollout.observation, rollout.previous, rollout.is_first)
        return rollout, task.agent.apply({"params": params}, heard, worlds.memory)

    rollout, out = play(state.params, state.extra)
    return task, state, rollout, out


@pytest.mark.slow
def test_the_policy_that_acts_is_the_one_that_learns():
    """Step by step, as it acts, and whole, as it is trained: the same memory, policy and values."""
    for memory in ("gru", "lstm", "none"):
        _, _, rollout, out = played(config_of(model__memory=memory))
        assert rollout.is_last.any()
        np.testing.assert_allclose(
            rl.log_prob(out.logits, rollout.action), rollout.log_prob, atol=1e-6
        )
        np.testing.assert_allclose(out.values, rollout.value, atol=1e-6)


def pairs_of(is_first):
    """(t, b) -> number of anchors of each offset that have a target in their episode, naively."""
    t, b = is_first.shape
    episode = np.cumsum(is_first, 0)
    return [
        sum(episode[i, j] == episode[i + k, j] for i in range(t - k) for j in range(b))
        for k in (1, 2, 3)
    ]


def predicted(config, task, state, rollout, out, rule):
    return step.predict(config, task.agent, state.params, out.z, out.c, rollout, rule)


@pytest.mark.slow
@pytest.mark.parametrize("rule", configs_rl.KEYS["cpc"]["rule"].words)
def test_nothing_is_predicted_across_an_end(rule):
    config = config_of(cpc__rule=rule)
    _, _, rollout, _ = of = played(config)
    _, sums = predicted(config, *of, RULES[rule])
    assert rollout.is_first[1:].any()
    if rule != "own_sequence":  # a short episode may have no other latent
        assert sums.anchors.tolist() == pairs_of(np.asarray(rollout.is_first))


@pytest.mark.slow
def test_no_gradient_goes_across_an_end():
    """Neither by the memory nor by a target: what came before an episode has none from it."""
    config = config_of(cpc__rule="own_sequence", environment__num=2)
    task, state, rollout, _ = played(config)
    first = np.flatnonzero(np.asarray(rollout.is_first)[:, 0])
    start = int(first[first > 0][0])

    def later(observation):
        heard = Heard(observation, rollout.previous, rollout.is_first)
        out = task.agent.apply({"params": state.params}, heard, state.extra.memory)
        where = (jnp.arange(len(observation)) >= start)[:, None]
        own = jnp.where(where, out.values[:, :1], 0).sum()
        return own + jnp.where(where[..., None], out.c[:, :1], 0).sum()

    gradient = np.asarray(jax.grad(later)(rollout.observation))
    assert (gradient[:start, 0] == 0).all()
    assert (gradient[start:, 0] != 0).any()


@pytest.mark.slow
def test_strict_negatives_could_be_positives_themselves():
    config = config_of(environment__num=16)
    _, _, rollout, _ = of = played(config)
    _, sums = predicted(config, *of, step.STRICT)
    age, episode = np.asarray(rollout.age), np.cumsum(rollout.is_first, 0)
    for k in (1, 2, 3):
        wanted = [
            1 + sum(age[i + k, other] >= k for other in range(16) if other != j)
            for i in range(12 - k)
            for j in range(16)
            if episode[i, j] == episode[i + k, j]
        ]
        counted = [n for n in wanted if n > 1]
        assert float(sums.n[k - 1]) == sum(counted)
        assert (age[k:][episode[k:] == episode[:-k]] >= k).all()


@pytest.mark.slow
def test_targets_of_another_environment_know_nothing():
    config = config_of(cpc__targets="other", cpc__cosine=False)
    *of, out = played(config)
    loss, _ = predicted(config, *of, out, RULES["batch"])
    moved = out._replace(z=jnp.roll(out.z, step.SHIFT, axis=1))
    same = with_settings(config, {"cpc.targets": "own"})
    assert loss == predicted(same, *of, moved, RULES["batch"])[0]
    assert loss != predicted(same, *of, out, RULES["batch"])[0]


@pytest.mark.slow
def test_given_actions_predictions_are_an_open_loop():
    """Those k ahead depend on the actions up to then, and on no later one, nor on pictures."""
    config = config_of(cpc__given_actions=True)
    task, state, rollout, out = played(config)

    def predicted(actions):
        return task.agent.apply({"params": state.params}, out.c, actions, method="predict")

    other = rollout.action.at[5].set((rollout.action[5] + 1) % 3)
    moved = np.abs(np.asarray(predicted(other) - predicted(rollout.action))).max((1, 3)) > 0
    wanted = [[i <= 5 <= i + k for k in range(3)] for i in range(12)]
    assert moved.tolist() == wanted


@pytest.mark.slow
def test_a_step_may_predict_some_environments():
    """Those drawn, as if there were no others; each two of them are drawn now and then."""
    config = config_of(environment__num=4)
    task, state, rollout, out = played(config)
    pairs = [(i, j) for i in range(4) for j in range(i)]

    def of_pair(pair):
        parts = jax.tree.map(lambda x: x[:, jnp.array(pair)], (out.z, out.c, rollout))
        return step.predict(config, task.agent, state.params, *parts, RULES["batch"])[1].loss

    zeros = jnp.zeros((12, 4))
    memory = state.extra.memory
    batch = {"steps": rollout, "memory": memory, "advantages": zeros, "targets": zeros}
    some = with_settings(config, {"cpc.num_environments": 2})
    loss = jax.jit(lambda rng: step.make_loss(some, task.agent)(state.params, {}, batch, rng))
    found = [loss(rng)[1][1]["offsets"].loss for rng in jax.random.split(jax.random.key(0), 60)]
    wanted = np.stack([of_pair(pair) for pair in pairs])
    distance = np.abs(np.stack(found)[:, None] - wanted).max(-1)
    assert (distance.min(1) < 1e-4).all()
    assert set(distance.argmin(1)) == set(range(len(pairs)))


def run_of(state, launch, number):
    launch = jax.jit(launch)
    for _ in range(number):
        state = launch(state)
    assert launch._cache_size() == 1
    return state


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["a2c", "ppo"])
def test_seeds_at_once_are_seeds_one_by_one(policy):
    parts = {"policy__epochs": 2, "policy__minibatches": 2} if policy == "ppo" else {}
    task = step.make_task(config_of(policy__name=policy, **parts))
    seeds = jnp.arange(2, dtype=jnp.uint32)
    together = run_of(jax.jit(jax.vmap(task.init))(seeds), jax.vmap(task.launch), 3)
    for i in range(2):
        alone = run_of(jax.jit(task.init)(seeds[i]), task.launch, 3)
        assert int(alone.step) == 3 * task.steps_per_launch
        for one, other in zip(jax.tree.leaves(alone.params), jax.tree.leaves(together.params),
                              strict=True):  # fmt: skip
            np.testing.assert_allclose(one, other[i], atol=2e-4)


@pytest.mark.slow
def test_minibatches_are_whole_environments_with_their_memories():
    """One minibatch of everything in another order is everything."""
    base = {"policy__name": "ppo", "cpc__weight": 0.0}
    one = step.make_task(config_of(**base))
    state = jax.jit(one.init)(jnp.uint32(0))
    ends = [
        run_of(state, step.make_task(config_of(**base, **more)).launch, 1).metrics["episodes"]
        for more in ({}, {"policy__minibatches": 4}, {"policy__epochs": 3})
    ]
    assert float(ends[1]) == float(ends[0])
    assert float(ends[2]) == 3 * float(ends[0])


@pytest.mark.slow
def test_a_step_of_ppo_that_clips_nothing_is_one_of_a2c():
    """At the first step on a rollout the ratio is 1: gradients differ by the advantages' scale."""
    losses = {}
    for name in ("a2c", "ppo"):
        config = config_of(policy__name=name, policy__entropy=0.0, policy__value=0.0,
                           cpc__weight=0.0)  # fmt: skip
        task, state, rollout, _ = played(config)
        advantages = rl.standardize(jax.random.normal(jax.random.key(3), rollout.reward.shape))
        batch = {"steps": rollout, "advantages": advantages, "targets": rollout.value,
                 "memory": state.extra.memory}  # fmt: skip
        loss_fn = step.make_loss(config, task.agent)
        losses[name] = jax.grad(lambda p, f=loss_fn, b=batch, s=state: f(p, s.extra, b, None)[0])(
            state.params
        )
    for one, other in zip(*map(jax.tree.leaves, losses.values()), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.slow
def test_environments_are_spread_over_their_episodes():
    task = step.make_task(config_of(environment__num=20))
    state = jax.jit(task.init)(jnp.uint32(0))
    rows = np.asarray(state.extra.states.row)
    assert sorted(set(rows)) == list(range(10))


@pytest.mark.whole
@pytest.mark.slow
def test_stopped_and_resumed_is_never_stopped_bit_for_bit(tmp_path, monkeypatch, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = config_of(policy__name="ppo", policy__minibatches=2)
    run_config(config, str(whole), "cpu")
    fit, calls = loop.fit, []

    def stops(*args, stop, **more):
        calls.append(1)
        asked = iter(range(10_000))
        wants = (lambda: "SIGTERM" if next(asked) > 1 else "") if len(calls) == 1 else stop
        return fit(*args, stop=wants, **more)

    monkeypatch.setattr(loop, "fit", stops)
    for _ in range(2):
        run_config(config, str(parts), "cpu")
    assert len(calls) == 2
    assert "resuming from step" in capsys.readouterr().out
    kept = [
        [
            {
                name: value
                for name, value in record.items()
                if not name.startswith(("seconds", "steps_per_second"))
            }
            for record in read_records(folder, [])
        ]
        for folder in (whole, parts)
    ]
    for one, other in zip(*kept, strict=True):
        assert {n: (v, other.get(n)) for n, v in one.items() if v != other.get(n)} == {}
    episodes = [dict(np.load(folder / "episode.npz")) for folder in (whole, parts)]
    assert all((episodes[0][name] == episodes[1][name]).all() for name in episodes[0])
    found = read_run(whole)
    strict = found.offsets[found.offsets.series == "strict"]
    assert strict.is_bound.all()
    assert strict.n.max() > 100
    assert {score.task for score in read_scores(whole)} == {"ball", "velocity", "row"}
    page = (whole / "report.html").read_text()
    for words in ("Return", "What the memory keeps", "An episode, and what the memory believes"):
        assert words in page


@pytest.mark.slow
def test_a_probe_reads_what_a_memory_holds():
    """Features that are the fact itself are read off; noise is chance."""
    config = config_of()
    rng = np.random.default_rng(0)
    facts = rng.integers(0, 4, (24, evaluate.NUM))
    facts[:6] = -1
    features = {"c": np.eye(4)[np.maximum(facts, 0)], "z": rng.normal(size=(24, evaluate.NUM, 4))}
    zeros = np.zeros(facts.shape)
    rollout = rl.Rollout(*([zeros] * 11), facts={"place": facts})
    watched = evaluate.Watched(rollout, features, None)
    scores = {score.features: score for score, _ in evaluate.probe_memory(config, watched)}
    assert scores["c"].value == 1
    assert abs(scores["z"].value - 0.25) < 0.05
    assert scores["c"].num_test == 18 * evaluate.NUM // 2


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"policy__unroll": 3}, "policy.unroll is 3 and cpc.num_offsets is 3"),
        ({"policy__epochs": 2}, "a2c makes one step"),
        (
            {"policy__name": "ppo", "policy__minibatches": 3},
            "minibatches is 3 and environment.num is 4",
        ),
        (
            {"policy__name": "ppo", "policy__minibatches": 4},
            "one environment is predicted at a step",
        ),
        ({"num_env_steps": 40}, "one rollout has 48"),
        ({"cpc__num_environments": 5}, "cpc.num_environments is 5: a minibatch has 4"),
        ({"cpc__num_environments": 1}, "one environment is predicted at a step"),
        ({"environment__resets": 5}, "environment.resets is 5 and environment.num is 4"),
        ({"model__encoder": "conv"}, "no picture"),
        ({"model__encoder": "conv", "model__channels": (3,)}, "as many of one"),
        ({"environment__name": "hidden_bal:seen_again"}, "did you mean hidden_ball:seen_again"),
    ],
)
def test_mistakes_are_one_sentence(given, sentence):
    with pytest.raises(UserError, match=sentence):
        run.interpret(run, config_of(**given))


def test_every_config_is_sound():
    from configs import rl_hidden_ball, rl_hidden_ball_ppo, rl_paper, rl_t_maze

    for module in (rl_hidden_ball, rl_hidden_ball_ppo, rl_t_maze):
        check_config(module.get_config(), configs_rl.KEYS)
        step.make_task(module.get_config())
    check_config(rl_paper.get_config(), configs_rl.KEYS)


@pytest.mark.slow
def test_the_papers_agent_on_small_pictures():
    """30 steps ahead, where no episode has more than 24 steps: what lies beyond adds nothing."""
    from configs import rl_paper

    small = {
        "environment.name": "t_maze", "environment.num": 4, "environment.resets": 2,
        "environment.stagger": 3, "model.channels": (2,), "model.strides": (1,), "model.width": 5,
        "model.memory_width": 6, "num_env_steps": 800,
    }  # fmt: skip
    task = step.make_task(with_settings(rl_paper.get_config(), small))
    before = jax.jit(task.init)(jnp.uint32(0))
    after = jax.jit(task.launch)(before)
    anchors = np.asarray(after.metrics["offsets"].anchors)
    assert anchors.shape == (30,)
    longest = int(np.flatnonzero(anchors).max()) + 1
    assert 1 <= longest < 24
    assert (np.diff(anchors[:longest]) <= 0).all()
    cell, hidden = after.extra.memory
    assert cell.shape == hidden.shape == (4, 6)
    moved = [np.abs(s.params["predictor"]["W"]["kernel"]) for s in (before, after)]
    moved = np.abs(moved[1] - moved[0]).max((0, 2))  # by offset
    assert (moved[:longest] > 0).all()
    assert (moved[longest:] == 0).all()
