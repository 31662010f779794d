"""The objective of a config: what each key of loss and negatives is to the loss, and a few trained.

What the losses, rules and samplers compute is tested where they are; here a plan names them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic
from cpc import data, losses, negatives
from cpc.losses import OffsetSums, cpc_loss
from cpc.train import make_mesh, put_batch
from cpc.types import CPCOutputs, Position, UserError
from experiments.command.config import with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.training import audit, objective
from experiments.training import step as training
from experiments.training.objective import (
    BranchOutputs,
    init_objective,
    objective_loss,
    temperature,
)
from experiments.training.records import make_evaluation
from tests.plans import meaning, plan_of_offsets, problem_of

#: Every branch of the step: a queue with a slow encoder, and each temperature rule.
MATRIX = [
    ("info_nce", {"queue": 64, "momentum": 0.9}, "entropy"),
    ("nce", {"choose": "proposed", "num_sampled": 4}, "learned"),
    ("triplet_all", {"choose": "mixed", "num_sampled": 4}, "fixed"),
    ("sup_con", {"rule": "excluding_sequence", "window": 2}, "fixed"),
]


def needs_cosines(name):
    return losses.LOSSES[name].description.needs_cosines


def make_config(loss="info_nce", choice=None, temperature_rule="fixed", **more):
    config = audio_synthetic.get_config()
    config.num_steps, config.optim.warmup_steps = 4, 1
    config.data.batch_size, config.data.window_samples = 4, 3200
    config.model.width = config.model.context_width = 8
    config.model.num_offsets = 2
    config.loss.name, config.loss.cosine = loss, needs_cosines(loss)
    config.negatives.temperature_rule = temperature_rule
    for key, value in (choice or {}).items():
        config.negatives[key] = value
    for key, value in more.items():
        config.loss[key] = value
    return config


@pytest.fixture(scope="module")
def made():
    synthetic = data.make_synthetic(
        num_speakers=2,
        utterances_per_speaker=6,
        seconds=0.2,
        chain=data.phone_chain(4),
        seed=0,
    )
    return AudioData(*data.split_by_utterance(synthetic.recordings, 0.4, 0), {})


def take_steps(config, made, num_steps=3):
    problem = problem_of(config, made)
    mesh = make_mesh(1)
    state, step, _ = training.make_step(problem, mesh)
    before = jax.tree.map(np.array, state.params)
    traces = []
    for i in range(num_steps):
        state = step(state, put_batch(problem.draw(i), mesh))
        traces.append(step._cache_size())
    assert traces[-1] == 1, "a step was traced anew"
    return problem, before, state


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "choice", "temperature_rule"), MATRIX, ids=str)
def test_matrix_trains(made, loss, choice, temperature_rule):
    config = make_config(loss, choice, temperature_rule)
    _, before, state = take_steps(config, made)
    assert state.failure.tolist() == [-1, -1]
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, state.params)
    assert all(value > 0 for value in jax.tree.leaves(moved)), moved
    metrics = jax.device_get(state.metrics)
    assert np.isfinite(metrics["loss"])
    assert (metrics["offsets"].anchors > 0).all()
    low, high = config.negatives.temperature_low, config.negatives.temperature_high
    assert low <= metrics["temperature"] / metrics["steps"] <= high
    if temperature_rule == "fixed":
        assert metrics["temperature"] == metrics["steps"]


@pytest.mark.slow
def test_queue_is_of_earlier_batches(made):
    """Two batches of 4 windows of 20 latents in a queue of 128: the third step sees all of it."""
    choice = {"queue": 128, "rule": "excluding_sequence", "overlap": True}  # for a known number
    config = make_config(choice=choice)
    _, _, state = take_steps(config, made)
    queue = state.extra["objective"]["queues"][0]
    np.testing.assert_array_equal(np.sort(np.unique(queue.pushed)), [1, 2])
    assert queue.exists.all()
    anchors, n = state.metrics["offsets"].anchors[0], state.metrics["offsets"].n[0]
    # 1 positive, 60 of the other windows; then also 80 and 128 of the queue.
    assert float(n / anchors) == pytest.approx(((1 + 60) * 3 + 80 + 128) / 3)


@pytest.mark.slow
@pytest.mark.parametrize("choose", ["hardest", "uniform"])
def test_more_may_be_drawn_of_a_queue_than_a_batch_has(made, choose):
    """A batch has 80 latents; in the audit and in evaluations these are all that there are."""
    choice = {"queue": 256, "choose": choose, "num_sampled": 100}
    config = make_config(choice=choice)
    problem, _, state = take_steps(config, made, num_steps=4)
    sums = state.metrics["offsets"]
    assert np.max(sums.n / sums.anchors) > 90
    rows = {row.name: row.value for row in audit.audit_problem(problem)}
    assert 50 < rows["negatives_mean"] < 80  # windows that overlap are none
    record, _ = make_evaluation(problem, lambda *args: [], make_mesh(1))(state)
    assert all(50 < n <= 80 for n in record["n"])


@pytest.mark.slow
def test_momentum_encoder_follows_slowly(made):
    config = make_config(choice={"queue": 16, "momentum": 0.9})
    _, before, state = take_steps(config, made, num_steps=1)
    slow = state.extra["objective"]["slow"]
    same = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(same, slow, before["model"])  # the first step starts from it
    _, before, state = take_steps(config, made, num_steps=2)
    slow = state.extra["objective"]["slow"]
    far = jax.tree.map(lambda a, b: np.abs(a - b).max(), before["model"], state.params["model"])
    near = jax.tree.map(lambda a, b: np.abs(a - b).max(), before["model"], slow)
    assert max(jax.tree.leaves(near)) > 0
    assert max(jax.tree.leaves(near)) < 0.5 * max(jax.tree.leaves(far))


@pytest.mark.slow
def test_keys_of_a_momentum_encoder_get_no_gradient(made):
    """At the first step the slow encoder is the encoder: its gradient is that of fixed keys."""
    problem = problem_of(make_config(choice={"momentum": 0.9}), made)
    state, _, _ = training.make_step(problem, make_mesh(1))
    batch = jax.tree.map(jnp.asarray, problem.draw(0))
    gradient = jax.jit(jax.grad(training.make_loss(problem), has_aux=True))(
        state.params, state.extra, batch, jax.random.key(0)
    )[0]

    def with_fixed_keys(params):
        prepared = problem.prepare(batch, jax.random.key(0), True)
        outputs, _ = problem.model.apply({"params": params}, prepared, True)
        outputs = outputs._replace(z=jax.lax.stop_gradient(outputs.z))
        place = Position.grid(4, outputs.z.shape[1])
        return cpc_loss(outputs, place, negatives.batch)[0]

    expected = jax.jit(jax.grad(with_fixed_keys))(state.params["model"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        gradient["model"],
        expected,
    )


def outputs_of(scale=1.0):
    keys = jax.random.split(jax.random.key(0), 2)
    z = scale * jax.random.normal(keys[0], (3, 6, 4))
    predictions = scale * jax.random.normal(keys[1], (3, 6, 2, 4))
    positions = Position.grid(3, 6, group=np.arange(3) // 2)
    return BranchOutputs(CPCOutputs(z, z, predictions), positions)


@pytest.mark.slow
@pytest.mark.parametrize(
    "of", [{}, {"choose": "proposed", "num_sampled": 8}, {"queue": 32}], ids=str
)
def test_entropy_is_held(of):
    """After some steps the weights' entropy is the wanted share, whatever the scores' scale.

    Of all that may be drawn, where they are drawn by their weights; of the queue's, too.
    """
    choice = {"target_entropy": 0.6, "temperature_high": 1000.0, **of}
    plan = plan_of_offsets(make_config(choice=choice, temperature_rule="entropy"), (1, 2))
    score = jax.jit(lambda *args: objective_loss(plan, *args, jax.random.key(0)))
    for scale in (1.0, 10.0):
        branches = [outputs_of(scale)]
        params, state = init_objective(plan, branches)
        for _ in range(12):
            before = state
            _, _, state, metrics = score(params, state, branches)
        outputs = branches[0].outputs
        keys, shares = outputs.z.reshape(-1, 4), []
        if "queue" in of:
            assert before["queues"][0].exists.all()
            keys = jnp.concatenate([keys, before["queues"][0].keys])
        for k in (1, 2):
            anchors = [(i, t) for i in range(3) for t in range(6 - k)]
            scores = jnp.stack([outputs.predictions[i, t, k - 1] for i, t in anchors])
            scores = scores @ keys.T / metrics["temperature"]
            where = np.ones(scores.shape, bool)
            for row, (i, t) in enumerate(anchors):
                where[row, 6 * i + t + k] = False
            shares.append(negatives.entropy(scores, 1.0, jnp.asarray(where)))
        found = float(jnp.concatenate(shares).mean() / np.log(len(keys) - 1))
        assert found == pytest.approx(0.6, abs=2e-3)


@pytest.mark.parametrize(
    ("loss", "choice", "is_bound"),
    [
        ("info_nce", {"rule": "one_per_sequence"}, True),
        ("info_nce", {"rule": "one_per_sequence", "num_sampled": 2}, True),
        ("info_nce", {"rule": "one_per_sequence", "choose": "hardest", "num_sampled": 2}, False),
        ("info_nce", {"rule": "one_per_sequence", "queue": 8}, False),
        ("info_nce", {"rule": "one_per_sequence", "momentum": 0.9}, False),
        ("info_nce", {}, False),
        ("decoupled", {"rule": "one_per_sequence"}, False),
        ("sigmoid", {"rule": "one_per_sequence"}, False),
    ],
)
def test_tag(loss, choice, is_bound):
    assert plan_of_offsets(make_config(loss, choice), (1,)).is_bound is is_bound


#: Of `audio_synthetic`, with offsets 1 and 2.
USUAL = {
    "rule": "batch", "choose": None, "loss": ("info_nce", {}), "temperature": 1.0, "bias": 0.0,
    "is_cosine": False, "queue": None, "offsets": (1, 2),
}  # fmt: skip
HARDEST, RING, SEMI = (
    negatives.hardest(3),
    negatives.percentile_ring(20, 60),
    negatives.semi_hard(0.3),
)
NO_NOISE = {"log_noise_positive": 0.0, "log_noise_negatives": 0.0}
COSINE = {"loss.cosine": True}
THREE = {"negatives.num_sampled": 3}
#: Keys of a config, and what of a call of `cpc_loss` they change: that, and nothing else.
MEANINGS = [
    *(({"negatives.rule": word}, {"rule": word}) for word in negatives.RULES if word != "batch"),
    ({"negatives.window": 1}, {"rule": "batch & outside_window(1)"}),
    ({"negatives.shards": 4}, {"rule": "batch & within_shards(4)"}),
    (THREE, {"choose": negatives.uniform_subset(3)}),
    ({"negatives.choose": "hardest", **THREE}, {"choose": HARDEST}),
    ({"negatives.choose": "semi_hard", "negatives.margin": 0.3}, {"choose": SEMI}),
    ({"negatives.choose": "ring", "negatives.ring_low": 20, "negatives.ring_high": 60},
     {"choose": RING}),
    ({"negatives.choose": "mixed", **THREE}, {"choose": negatives.mixed(3, 3)}),
    ({"negatives.choose": "proposed", "negatives.proposal": "through", **THREE},
     {"choose": negatives.proposed(3, "through")}),
    ({"negatives.choose": "with_zero"}, {"choose": negatives.with_zero()}),
    ({"negatives.queue": 9}, {"queue": 9}),
    ({"negatives.temperature": 0.5}, {"temperature": 0.5}),
    ({"negatives.temperature": 0.5, "negatives.temperature_rule": "learned"}, {"temperature": 0.5}),
    (COSINE, {"is_cosine": True}),
    ({"loss.name": "sigmoid", "loss.bias": -1.0}, {"loss": (losses.sigmoid, {}), "bias": -1.0}),
    ({"loss.name": "nce", "loss.bias": 0.5, "loss.learn_bias": True},
     {"loss": (losses.nce, NO_NOISE), "bias": 0.5}),
    ({"loss.name": "decoupled"}, {"loss": (losses.decoupled, {})}),
    ({"loss.name": "sup_con", **COSINE}, {"loss": (losses.sup_con, {}), "is_cosine": True}),
    ({"loss.name": "debiased", "loss.prior": 0.3, **COSINE},
     {"loss": (losses.debiased, {"prior": 0.3}), "is_cosine": True}),
    ({"loss.name": "hard_weighted", "loss.prior": 0.3, "loss.concentration": 2.0, **COSINE},
     {"loss": (losses.hard_weighted, {"prior": 0.3, "concentration": 2.0}), "is_cosine": True}),
    *(({"loss.name": f"triplet_{mining}", "loss.margin": 0.2, **COSINE},
       {"loss": (losses.triplet, {"margin": 0.2, "mining": mining}), "is_cosine": True})
      for mining in ("hard", "semi_hard", "all")),
]  # fmt: skip
#: What the tests of this file cover, for `test_keys`.
COVERED = {key for settings, _ in MEANINGS for key in settings} | {
    "negatives.momentum", "negatives.target_entropy", "negatives.temperature_low",
    "negatives.temperature_high",
}  # fmt: skip


def call_of_loss(settings, monkeypatch):
    """What `cpc_loss` is called with under a config, in comparable words."""
    plan = plan_of_offsets(with_settings(audio_synthetic.get_config(), settings), (1, 2))
    calls = []

    def record(outputs, positions, rule, **options):
        calls.append({**options, "rule": rule, "outputs": outputs})
        return jnp.zeros(()), OffsetSums(*(jnp.zeros(2) for _ in OffsetSums._fields))

    monkeypatch.setattr(objective, "cpc_loss", record)
    branch = outputs_of()
    objective_loss(plan, *init_objective(plan, [branch]), [branch], jax.random.key(0))
    (call,) = calls
    lengths = jnp.linalg.norm(call["outputs"].z, axis=-1)
    return {
        "rule": call["rule"].name,
        "choose": meaning(call["choose"]),
        "loss": meaning(call["loss"]),
        "temperature": round(float(call["temperature"]), 6),
        "bias": float(call["bias"]),
        "is_cosine": bool(np.allclose(lengths, 1, atol=1e-3)),
        "queue": None if call["memory"] is None else len(call["memory"][0]),
        "offsets": call["offsets"],
    }


@pytest.mark.parametrize(("settings", "changed"), MEANINGS, ids=[",".join(s) for s, _ in MEANINGS])
def test_every_key_means_what_it_says(settings, changed, monkeypatch):
    changed = {name: meaning(value) for name, value in changed.items()}
    assert call_of_loss(settings, monkeypatch) == USUAL | changed


def test_a_bias_is_learned_if_it_is_to_be():
    config = make_config("sigmoid", learn_bias=True, bias=-2.0)
    params, _ = init_objective(plan_of_offsets(config, (1, 2)), [outputs_of()])
    assert {name: float(value) for name, value in params.items()} == {"bias": -2.0}


def test_a_learned_temperature_stays_within_its_bounds():
    choice = {"temperature_low": 0.5, "temperature_high": 2.0}
    plan = plan_of_offsets(make_config(choice=choice, temperature_rule="learned"), (1,))
    for raw, limit in ((-100.0, 0.5), (100.0, 2.0)):
        params = {"raw_temperature": jnp.float32(raw)}
        assert float(temperature(plan, params, {})) == pytest.approx(limit)


SUP_CON = {"loss.name": "sup_con", **COSINE}


@pytest.mark.parametrize(("settings", "words"), [
    *(({"loss.name": name}, r"loss\.cosine=True") for name in losses.LOSSES if needs_cosines(name)),
    *(({"loss.name": name, **COSINE, key: value}, r"loss\.bias=0 and loss\.learn_bias=False")
      for name in ("debiased", "hard_weighted")
      for key, value in (("loss.bias", -2.0), ("loss.learn_bias", True))),
    *(({**SUP_CON, "negatives.rule": rule}, "all candidates are of the positive's group")
      for rule in ("own_sequence", "same_group")),
    ({**SUP_CON, **THREE}, "num_sampled=0"),
    ({**SUP_CON, "negatives.choose": "ring"}, "choose=uniform"),
    ({"negatives.choose": "hardest"}, "set negatives.num_sampled"),
    ({"negatives.queue": 64, "negatives.rule": "own_sequence"}, "takes none of its latents"),
    ({"negatives.queue": 64, "negatives.shards": 2}, "takes none of its latents"),
    ({"negatives.temperature_low": 3.0, "negatives.temperature_high": 2.0}, "must ascend"),
    ({"negatives.temperature_rule": "learned", "negatives.temperature": 1000.0},
     r"temperature is 1000\.0"),
])  # fmt: skip
def test_an_objective_that_cannot_be_is_one_sentence(settings, words):
    with pytest.raises(UserError, match=words):
        plan_of_offsets(with_settings(audio_synthetic.get_config(), settings), (1,))


def test_sup_con_is_refused_where_a_batch_is_of_one_speaker():
    config = with_settings(make_config("sup_con"), {"data.one_speaker": True})
    with pytest.raises(UserError, match="one_speaker=False"):
        audio.check(config)
