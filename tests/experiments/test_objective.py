"""Every loss, every choice of negatives and every temperature rule trains the same config."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic
from cpc import data, losses, negatives
from cpc.losses import cpc_loss
from cpc.train import make_mesh, put_batch
from cpc.types import CPCOutputs, Position, UserError
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.training import audit
from experiments.training import step as training
from experiments.training.objective import (
    BranchOutputs,
    init_objective,
    objective_loss,
    temperature,
)
from experiments.training.plan import check_loss
from experiments.training.records import make_evaluation
from experiments.training.sequences import positions
from tests.plans import plan_of_offsets, problem_of

LOSSES = tuple(losses.LOSSES)
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
    (LOSSES[i % len(LOSSES)], choice, TEMPERATURES[(i + i // 3) % 3])
    for i, choice in enumerate(NEGATIVES)
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


def name_of(case):
    return case if isinstance(case, str) else "-".join(map(str, case.values())) or "all"


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "choice", "temperature_rule"), MATRIX, ids=name_of)
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
        place = positions(batch, batch["speaker"], outputs.z.shape[1])
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
    "of", [{}, {"choose": "proposed", "num_sampled": 8}, {"queue": 32}], ids=name_of
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


@pytest.mark.slow
def test_learned_bias_and_cosine():
    config = make_config("sigmoid", cosine=True, learn_bias=True, bias=-2.0)
    plan, branches = plan_of_offsets(config, (1, 2)), [outputs_of(100.0)]
    params, state = init_objective(plan, branches)
    assert float(params["bias"]) == -2.0

    def loss(params):
        return objective_loss(plan, params, state, branches, jax.random.key(0))[0]

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
    assert plan_of_offsets(make_config(loss, choice), (1,)).is_bound is is_bound


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("negatives.choose", "hardest", "set negatives.num_sampled"),
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
        plan_of_offsets(config, (1,))


OUTPUTS, POSITIONS, _ = outputs_of()
UNIT = OUTPUTS._replace(
    z=OUTPUTS.z / jnp.linalg.norm(OUTPUTS.z, axis=-1, keepdims=True),
    predictions=OUTPUTS.predictions / jnp.linalg.norm(OUTPUTS.predictions, axis=-1, keepdims=True),
)
bind = functools.partial
#: Keys of a config, and what `cpc_loss` is to be given for them. Each of the keys must matter.
MEANINGS = [
    ({"negatives.rule": "excluding_sequence"}, {"rule": negatives.excluding_sequence}),
    ({"negatives.rule": "own_sequence"}, {"rule": negatives.own_sequence}),
    ({"negatives.rule": "same_group"}, {"rule": negatives.same_group}),
    ({"negatives.rule": "one_per_sequence"}, {"rule": negatives.one_per_sequence}),
    ({"negatives.window": 1}, {"rule": negatives.batch & negatives.outside_window(1)}),
    (
        {"negatives.shards": 3, "data.batch_size": 3},
        {"rule": negatives.batch & negatives.within_shards(3, 3)},
    ),
    ({"negatives.temperature": 0.5}, {"temperature": 0.5}),
    ({"negatives.num_sampled": 3}, {"choose": negatives.uniform_subset(3)}),
    (
        {"negatives.choose": "hardest", "negatives.num_sampled": 3},
        {"choose": negatives.hardest(3)},
    ),
    (
        {"negatives.choose": "semi_hard", "negatives.margin": 0.3},
        {"choose": negatives.semi_hard(0.3)},
    ),
    (
        {"negatives.choose": "ring", "negatives.ring_low": 20.0, "negatives.ring_high": 60.0},
        {"choose": negatives.percentile_ring(20.0, 60.0)},
    ),
    ({"negatives.choose": "mixed", "negatives.num_sampled": 3}, {"choose": negatives.mixed(3, 3)}),
    (
        {
            "negatives.choose": "proposed",
            "negatives.num_sampled": 3,
            "negatives.proposal": "through",
            "loss.name": "nce",
        },
        {
            "choose": negatives.proposed(3, "through"),
            "loss": bind(losses.nce, log_noise_positive=0.0, log_noise_negatives=0.0),
        },
    ),
    ({"loss.cosine": True}, {"outputs": UNIT}),
    ({"loss.name": "sigmoid", "loss.bias": -1.0}, {"loss": losses.sigmoid, "bias": -1.0}),
    (
        {"loss.name": "nce", "loss.bias": 0.5},
        {
            "loss": bind(losses.nce, log_noise_positive=0.0, log_noise_negatives=0.0),
            "bias": 0.5,
        },
    ),
    ({"loss.name": "decoupled"}, {"loss": losses.decoupled}),
    ({"loss.name": "sup_con", "loss.cosine": True}, {"loss": losses.sup_con, "outputs": UNIT}),
    (
        {"loss.name": "debiased", "loss.prior": 0.3, "loss.cosine": True},
        {"loss": bind(losses.debiased, prior=0.3), "outputs": UNIT},
    ),
    (
        {
            "loss.name": "hard_weighted",
            "loss.prior": 0.3,
            "loss.concentration": 2.0,
            "loss.cosine": True,
        },
        {"loss": bind(losses.hard_weighted, prior=0.3, concentration=2.0), "outputs": UNIT},
    ),
    *(
        (
            {"loss.name": f"triplet_{mining}", "loss.margin": 0.2, "loss.cosine": True},
            {"loss": bind(losses.triplet, margin=0.2, mining=mining), "outputs": UNIT},
        )
        for mining in ("hard", "semi_hard", "all")
    ),
]


def numbers(loss, settings):
    """The value; what the gradient sees of a proposal changes the gradient alone."""
    if "negatives.proposal" in settings:
        return jax.tree.leaves(jax.jit(jax.grad(loss))(OUTPUTS))
    return [jax.jit(loss)(OUTPUTS)]


def loss_of(settings, like):
    config = audio_synthetic.get_config()
    for key, value in settings.items():
        section, name = key.split(".")
        config[section][name] = value
    plan = plan_of_offsets(config, (1, 2))

    def loss(outputs):
        branches = [BranchOutputs(outputs, POSITIONS)]
        params, state = init_objective(plan, branches)
        return objective_loss(plan, params, state, branches, jax.random.key(5))[0]

    return numbers(loss, like)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "meaning"), MEANINGS, ids=[",".join(settings) for settings, _ in MEANINGS]
)
def test_every_key_means_what_it_says(settings, meaning):
    """The loss is that of `cpc_loss` called by hand, and each key that is left out shows."""
    options = {"rule": negatives.batch, "rng": jax.random.fold_in(jax.random.key(5), 0), **meaning}
    is_unit = options.pop("outputs", None) is UNIT

    def by_hand(outputs):
        def unit(x):
            return x / jnp.linalg.norm(x, axis=-1, keepdims=True) if is_unit else x

        outputs = CPCOutputs(unit(outputs.z), outputs.c, unit(outputs.predictions))
        return cpc_loss(outputs, POSITIONS, **options)[0]

    found = loss_of(settings, settings)
    for a, b in zip(found, numbers(by_hand, settings), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for key in settings:
        rest = {other: value for other, value in settings.items() if other != key}
        if rest and key in ("data.batch_size", "loss.cosine", "negatives.num_sampled"):
            continue  # without it, the rest is refused
        without = zip(found, loss_of(rest, settings), strict=True)
        assert any(not np.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in without), key


def test_a_learned_temperature_stays_within_its_bounds():
    choice = {"temperature_low": 0.5, "temperature_high": 2.0}
    plan = plan_of_offsets(make_config(choice=choice, temperature_rule="learned"), (1,))
    for raw, limit in ((-100.0, 0.5), (100.0, 2.0)):
        params = {"raw_temperature": jnp.float32(raw)}
        assert float(temperature(plan, params, {})) == pytest.approx(limit)


@pytest.mark.parametrize("name", ["debiased", "hard_weighted"])
def test_a_bias_of_a_loss_with_a_floor_is_refused(name):
    options = make_config(name, cosine=True).loss
    check_loss(options)
    for key, value in (("bias", -2.0), ("learn_bias", True)):
        given = options.copy_and_resolve_references()
        given[key] = value
        with pytest.raises(UserError, match=rf"{name}.*loss\.bias=0 and loss\.learn_bias=False"):
            check_loss(given)


@pytest.mark.parametrize("name", [name for name in LOSSES if needs_cosines(name)])
def test_what_presumes_cosines_is_refused_without(name):
    options = make_config(name).loss
    check_loss(options)
    options.cosine = False
    with pytest.raises(UserError, match=r"loss\.cosine=True"):
        check_loss(options)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"rule": "own_sequence"}, "all candidates are of the positive's group"),
        ({"rule": "same_group"}, "all candidates are of the positive's group"),
        ({"num_sampled": 3}, "num_sampled=0"),
        ({"choose": "ring"}, "choose=uniform"),
    ],
)
def test_sup_con_is_refused_without_negatives_of_all_other_groups(choice, message):
    with pytest.raises(UserError, match=message):
        plan_of_offsets(make_config("sup_con", choice), (1,))


def test_sup_con_is_refused_where_a_batch_is_of_one_speaker():
    config = make_config("sup_con")
    config.data.one_speaker = True
    with pytest.raises(UserError, match="one_speaker=False"):
        audio.check(config)


@pytest.mark.parametrize("choice", [{"rule": "own_sequence"}, {"shards": 2}])
def test_a_queue_that_the_rule_takes_nothing_of_is_refused(choice):
    with pytest.raises(UserError, match="takes none of its latents"):
        plan_of_offsets(make_config(choice={"queue": 64, **choice}), (1,))


def test_temperature_starts_within_its_bounds():
    config = make_config(temperature_rule="learned")
    config.negatives.temperature = 1000.0
    with pytest.raises(UserError, match=r"temperature is 1000\.0"):
        plan_of_offsets(config, (1,))
