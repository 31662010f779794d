"""Every loss, every choice of negatives and every temperature rule trains the same config."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic
from cpc import data, negatives
from cpc.losses import cpc_loss
from cpc.train import make_mesh, put_batch
from cpc.types import CPCOutputs, Position, UserError
from experiments import audio, objective, training
from experiments.audio_data import AudioData

LOSSES = (
    "info_nce",
    "ranking_nce",
    "nce",
    "negative_sampling",
    "sampled_softmax",
    "sampled_logistic",
    "nt_xent",
    "sup_con",
    "decoupled",
    "debiased",
    "hard_weighted",
    "sigmoid",
    "triplet_hard",
    "triplet_semi_hard",
    "triplet_all",
)
NEGATIVES = (
    {},
    {"num_sampled": 5},
    {"choose": "hardest", "num_sampled": 4},
    {"choose": "semi_hard"},
    {"choose": "ring"},
    {"choose": "mixed", "num_sampled": 4},
    {"choose": "proposed", "num_sampled": 4},
    {"queue": 64},
    {"queue": 64, "momentum": 0.9},
    {"rule": "excluding_sequence", "window": 2},
    {"rule": "one_per_sequence"},
)
TEMPERATURES = ("fixed", "learned", "entropy")
# Every loss, choice and temperature rule, not the whole cube.
MATRIX = [
    (loss, NEGATIVES[i % len(NEGATIVES)], TEMPERATURES[(i + i // 3) % 3])
    for i, loss in enumerate(LOSSES)
]


def make_config(loss="info_nce", choice=None, temperature="fixed", **more):
    config = audio_synthetic.get_config()
    config.num_steps, config.optim.warmup_steps = 4, 1
    config.data.batch_size, config.data.window_samples = 4, 3200
    config.model.width = config.model.context_width = 8
    config.model.num_offsets = 2
    config.loss.name = loss
    config.negatives.temperature_rule = temperature
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
    problem = audio.make_problem(config, made, lambda variables, step: {})
    mesh = make_mesh(1)
    state, step, _ = training.make_step(config, problem, mesh)
    before = jax.tree.map(np.array, state.params)
    traces = []
    for i in range(num_steps):
        state = step(state, put_batch(problem.draw(i), mesh))
        traces.append(step._cache_size())
    assert traces[-1] == 1, "a step was traced anew"
    return problem, before, state


def name_of(case):
    return case if isinstance(case, str) else "-".join(map(str, case.values())) or "all"


@pytest.mark.parametrize(("loss", "choice", "temperature"), MATRIX, ids=name_of)
def test_matrix_trains(made, loss, choice, temperature):
    config = make_config(loss, choice, temperature)
    _, before, state = take_steps(config, made)
    assert state.failure.tolist() == [-1, -1]
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, state.params)
    assert all(value > 0 for value in jax.tree.leaves(moved)), moved
    metrics = jax.device_get(state.metrics)
    assert np.isfinite(metrics["loss"])
    assert (metrics["offsets"].anchors > 0).all()
    low, high = config.negatives.temperature_low, config.negatives.temperature_high
    assert low <= metrics["temperature"] / metrics["steps"] <= high
    if temperature == "fixed":
        assert metrics["temperature"] == metrics["steps"]


def test_queue_is_of_earlier_batches(made):
    """Two batches of 4 windows of 20 latents in a queue of 128: the third step sees all of it."""
    config = make_config(choice={"queue": 128, "rule": "excluding_sequence"})
    _, _, state = take_steps(config, made)
    queue = state.extra["objective"]["queues"][0]
    np.testing.assert_array_equal(np.sort(np.unique(queue.pushed)), [1, 2])
    assert queue.exists.all()
    anchors, n = state.metrics["offsets"].anchors[0], state.metrics["offsets"].n[0]
    # 1 positive, 60 of the other windows; then also 80 and 128 of the queue.
    assert float(n / anchors) == pytest.approx(((1 + 60) * 3 + 80 + 128) / 3)


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


def test_keys_of_a_momentum_encoder_get_no_gradient(made):
    """At the first step the slow encoder is the encoder: its gradient is that of fixed keys."""
    config = make_config(choice={"momentum": 0.9})
    problem = audio.make_problem(config, made, lambda variables, step: {})
    state, _, _ = training.make_step(config, problem, make_mesh(1))
    batch = jax.tree.map(jnp.asarray, problem.draw(0))
    gradient = jax.jit(jax.grad(training.make_loss(problem), has_aux=True))(
        state.params, state.extra, batch, jax.random.key(0)
    )[0]

    def with_fixed_keys(params):
        prepared = problem.prepare(batch, jax.random.key(0), True)
        outputs, _ = problem.model.apply({"params": params}, prepared, True)
        outputs = outputs._replace(z=jax.lax.stop_gradient(outputs.z))
        place = audio.positions(batch, outputs.z.shape[1])
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
    place = Position(jnp.arange(3)[:, None], jnp.arange(6)[None], *(jnp.zeros((1, 1), int),) * 2)
    return CPCOutputs(z, z, predictions), place


def test_entropy_is_held():
    """After some steps the weights' entropy is the wanted share, whatever the scores' scale."""
    choice = {"target_entropy": 0.6, "temperature_high": 1000.0}
    config = make_config(choice=choice, temperature="entropy")
    made = objective.build_objective(config, (1, 2))
    score = jax.jit(lambda *args: made.score(*args, jax.random.key(0), True))
    for scale in (1.0, 10.0):
        views = [outputs_of(scale)]
        params, state = made.init(views)
        for _ in range(12):
            _, _, state, metrics = score(params, state, views)
        outputs = views[0][0]
        shares = []
        for k in (1, 2):
            anchors = [(i, t) for i in range(3) for t in range(6 - k)]
            scores = jnp.stack([outputs.predictions[i, t, k - 1] for i, t in anchors])
            scores = scores @ outputs.z.reshape(-1, 4).T / metrics["temperature"]
            where = np.ones((len(anchors), 18), bool)
            for row, (i, t) in enumerate(anchors):
                where[row, 6 * i + t + k] = False
            shares.append(negatives.entropy(scores, 1.0, jnp.asarray(where)))
        assert float(jnp.concatenate(shares).mean() / np.log(17)) == pytest.approx(0.6, abs=2e-3)


def test_learned_bias_and_cosine():
    config = make_config("sigmoid", cosine=True, learn_bias=True, bias=-2.0)
    made = objective.build_objective(config, (1, 2))
    views = [outputs_of(100.0)]
    params, state = made.init(views)
    assert float(params["bias"]) == -2.0

    def loss(params):
        return made.score(params, state, views, jax.random.key(0), True)[0]

    value, gradient = jax.value_and_grad(loss)(params)
    assert float(value) < 100  # scores of that size would cost thousands
    assert float(gradient["bias"]) != 0


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
    assert objective.build_objective(make_config(loss, choice), (1,)).is_bound is is_bound


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("loss.name", "infonce", "loss.name is 'infonce'"),
        ("negatives.choose", "best", "negatives.choose is 'best'"),
        ("negatives.choose", "hardest", "set negatives.num_sampled"),
        ("negatives.temperature_rule", "free", "negatives.temperature_rule is 'free'"),
        ("negatives.temperature_low", 0.0, "temperature_low"),
        ("negatives.proposal", "fixed", "proposal"),
    ],
)
def test_mistakes_are_sentences(key, value, sentence):
    config = make_config()
    section, name = key.split(".")
    config[section][name] = value
    if name == "proposal":
        config.negatives.choose, config.negatives.num_sampled = "proposed", 4
    with pytest.raises(UserError, match=sentence):
        objective.build_objective(config, (1,))


def test_temperature_starts_within_its_bounds():
    config = make_config(temperature="learned")
    config.negatives.temperature = 1000.0
    with pytest.raises(UserError, match=r"temperature is 1000\.0"):
        objective.build_objective(config, (1,))
