"""Public functions give equal values and dtypes with and without `jax_enable_x64`."""

import functools
import inspect
import re
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import estimators, evaluate, losses, negatives, rl
from cpc.losses.blocks import Plan
from cpc.losses.tiles import AnchorScores, Latents
from cpc.types import CPCOutputs, Position

KEY = jax.random.key(0)
NOT_TRACED = (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)
#: Functions in modules that use JAX, but without JAX arrays.
ON_HOST = {"certify", "cca", "ksg", "describe", "describe_aligned",
           "describe_fit", "beam_decode", "collapse", "count_edits",
           "greedy_decode", "image_scores", "ball_information", "auto_reset", "label_subset",
           "few_label_score", "seeds_interval", "read_rows", "with_neighbours", "expected_count",
           "format_audit", "log_uniform", "probabilities", "solve_alpha", "uniform",
           "unigram", "abx_score", "cell_errors", "cell_weights", "code_entropy", "code_scores",
           "cut_tokens", "make_cells"}  # fmt: skip
LABELS = np.array([0, 1, 2, 0, 1, 2] * 4)
#: Functions whose results have the dtype of their inputs.
SELECT = {"hardest", "mix_keys", "percentile_ring", "semi_hard", "uniform_draws", "uniform_subset",
          "with_zero", "push", "adam_cosine", "paper_sgd", "frame_distances"}  # fmt: skip


def losses_and_slopes(function, *arrays):
    """Return losses and float32 gradients of their sum, which have the inputs' dtype."""

    def total(*arrays):
        value = function(*arrays)
        return jax.tree.leaves(value)[0].sum(), value

    places = tuple(range(len(arrays)))
    slopes, value = jax.jit(jax.grad(total, places, has_aux=True))(*arrays)
    return value, [slope.astype(jnp.float32) for slope in slopes]


def of_scores(loss, several=False, **options):
    """Return a case of a loss of scores whose options are arrays of the dtype in use."""

    def case(x):
        options_here = {k: x(value=v) for k, v in options.items()}
        positive, where = x(5, 2) if several else x(5), x(5, 7) > -0.5
        function = functools.partial(loss, where=where, **options_here)
        return losses_and_slopes(function, positive, x(5, 7))

    return case


def outputs(x, b=3, t=4, k=2):
    return CPCOutputs(x(b, t, 5), x(b, t, 6), x(b, t, k, 5))


def flat(b=3, t=4):
    return jax.tree.map(np.ravel, Position.grid(b, t))


def cpc(x, function=losses.cpc_loss, **options):
    def loss(z, predictions):
        given = CPCOutputs(z, x(3, 4, 6), predictions)
        return function(given, Position.grid(3, 4), **options)

    z, _, predictions = outputs(x)
    return losses_and_slopes(loss, z, predictions)


def streaming(function):
    def case(x):
        loss = lambda q, k: function(q, k, flat(), flat(), negatives.batch, 1, block=5)  # noqa: E731
        return losses_and_slopes(loss, x(12, 5), x(12, 5))

    return case


def aligned(x):
    plan = Plan(negatives.one_per_sequence, None, None, (1, 2), None, None)
    latents = Latents(jax.tree.map(jnp.asarray, Position.grid(3, 4)), jnp.ones((3, 4), bool))
    return losses.aligned_losses(x(2, 3, 4, 5), x(3, 4, 5), latents, KEY, plan, 1)


def anchors(x):
    return losses.sum_anchors(AnchorScores(*(x(2, 3, 4) for _ in AnchorScores._fields)))


def sampled_loss(x):
    sampler = negatives.log_uniform_sampler(40)
    args = x(40, 3), x(40), jnp.array([3, 17]), x(2, 3), 12, sampler
    return losses.candidate_sampling(*args, rng=KEY)


def pairs(loss):
    return lambda x: loss(x(3, 2), x(3, 4), x(3, 2) > -1, x(3, 2, 4) > -1)


LOSSES = {
    **{
        name: of_scores(getattr(losses, name))
        for name in ("info_nce", "nt_xent", "ranking_nce", "sup_con", "negative_sampling")
    },
    "decoupled": of_scores(losses.decoupled, temperature=0.5, positive_weight=1.5),
    "debiased": of_scores(functools.partial(losses.debiased, prior=0.2), temperature=0.5),
    "hard_weighted": of_scores(
        functools.partial(losses.hard_weighted, prior=0.1), concentration=0.8, temperature=0.5
    ),
    "sigmoid": of_scores(losses.sigmoid, temperature=0.5, bias=-2.0),
    "triplet": of_scores(losses.triplet, margin=0.5),
    "nce": of_scores(
        losses.nce, True, log_noise_positive=-1.0, log_noise_negatives=-2.0, log_normalizer=0.3
    ),
    "sampled_softmax": of_scores(losses.sampled_softmax, True, log_q_positive=-1.0),
    "sampled_logistic": of_scores(losses.sampled_logistic, True, log_q_negatives=0.5),
    "acpc_loss": lambda x: cpc(x, losses.acpc_loss, rule=negatives.batch, num_frames=3),
    "aligned_losses": aligned,
    "alignment": lambda x: losses.alignment(x(3, 4), x(3, 4) + 1),
    "candidate_sampling": sampled_loss,
    "cpc_loss": lambda x: [
        cpc(x, rule=negatives.batch, temperature=x(value=0.5)),
        cpc(x, rule=negatives.one_per_sequence, loss=losses.sigmoid, bias=x(value=-1.0)),
        cpc(x, rule=negatives.batch, block=3, columns=5),
    ],
    "decoupled_weights": lambda x: losses.decoupled_weights(x(5)),
    "full_logistic": lambda x: losses.full_logistic(x(2, 4), jnp.array([1, 3])),
    "full_softmax": lambda x: losses.full_softmax(x(2, 4), jnp.array([1, 3])),
    "logistic_pairs": pairs(losses.logistic_pairs),
    "path_cost": lambda x: losses.path_cost(x(2, 5, 3)),
    "path_weights": lambda x: losses.path_weights(x(2, 5, 3)),
    "softmax_pairs": pairs(losses.softmax_pairs),
    "streaming_info_nce": streaming(losses.streaming_info_nce),
    "streaming_symmetric_info_nce": streaming(losses.streaming_symmetric_info_nce),
    "sum_anchors": anchors,
    "uniformity": lambda x: losses.uniformity(x(4, 3)),
    "view_scores": lambda x: losses.view_scores(x(3, 4), x(3, 4) + 1),
}

RULE = lambda rule: lambda x: rule(*_pair(), 1)  # noqa: E731
TABLE = negatives.alias_table(np.arange(1.0, 30))


def _pair():
    here = flat()
    return jax.tree.map(lambda p: p[:, None], here), jax.tree.map(lambda p: p[None], here)


def chosen(sampler):
    return lambda x: sampler(KEY, x(4), x(4, 9), x(4, 9) > -0.7)


def drawn(sampler):
    return lambda x: sampler(KEY, jnp.array([[3], [7]]), 6)


def bigram_noise():
    return negatives.bigrams(np.array([0, 1, 2, 0, 2, 1, 0, 2]), np.ones(3) / 3)


def pushed(x):
    queue = negatives.make_queue(5, 2)
    return negatives.push(queue, x(12, 2), flat(), 3, x(12) > 0)


def audited(x):
    rows = negatives.audit_rule(
        negatives.batch, Position.grid(3, 4), [1, 2], sampler=negatives.uniform_draws(3), rng=KEY,
        num_anchors=8,
    )  # fmt: skip
    return [row.value for row in rows if row.value is not None]


def audited_sampler(x):
    draw = lambda key: negatives.draw(key, TABLE, (5,))  # noqa: E731
    rows = negatives.audit_sampler(draw, np.arange(1.0, 30), np.arange(3), num_rounds=3)
    return [row.value for row in rows if row.value is not None]


NEGATIVES = {
    name: RULE(getattr(negatives, name))
    for name in ("batch", "excluding_sequence", "one_per_sequence", "own_sequence", "same_group")
} | {
    "accidental_hits": lambda x: negatives.accidental_hits(jnp.array([3, 5]), jnp.array([3, 2])),
    "ages": lambda x: negatives.ages(pushed(x), 7),
    "alias_table": lambda x: TABLE,
    "audit": audited,
    "audit_queue": lambda x: [row.value for row in negatives.audit_queue(pushed(x), 7)],
    "audit_rule": audited,
    "audit_sampler": audited_sampler,
    "audit_table": lambda x: [row.value for row in negatives.audit_table(np.arange(5.0))],
    "bigram_log_q": lambda x: negatives.bigram_log_q(
        bigram_noise(), jnp.array([0, -1]), jnp.array([[1, 2], [0, 1]])
    ),
    "bigrams": lambda x: (*bigram_noise()[:3], bigram_noise().log_u),
    "bounded_temperature": lambda x: negatives.bounded_temperature(x(value=0.3), 0.1, 2.0),
    "draw": lambda x: negatives.draw(KEY, TABLE, (3, 4)),
    "draw_bigrams": lambda x: negatives.draw_bigrams(KEY, bigram_noise(), jnp.array([0, -1]), 9),
    "draw_unique": lambda x: negatives.draw_unique(KEY, TABLE, 7),
    "entropy": lambda x: negatives.entropy(x(3, 5), x(value=0.5)),
    "fixed_sampler": drawn(negatives.fixed_sampler(np.arange(1.0, 12), unique=False)),
    "hardest": chosen(negatives.hardest(3)),
    "hit_rate": lambda x: negatives.hit_rate(0.1, 7),
    "hold_entropy": lambda x: negatives.hold_entropy(
        x(value=1.0), x(4, 9), x(4, 9) > -1, x(value=0.5), np.float64(0.01), 10.0
    ),
    "is_positive": RULE(negatives.is_positive),
    "learned_unigram_sampler": lambda x: drawn(
        negatives.learned_unigram_sampler(jnp.arange(1, 12, dtype=jnp.int32))
    )(x),
    "log_uniform_sampler": drawn(negatives.log_uniform_sampler(20)),
    "make_queue": lambda x: negatives.make_queue(3, 2),
    "mix_keys": lambda x: negatives.mix_keys(KEY, x(3, 4, 5), 6),
    "mixed": chosen(negatives.mixed(3, 4)),
    "negative_weights": lambda x: negatives.negative_weights(x(3, 5), x(value=0.5)),
    "observe": lambda x: negatives.observe(jnp.ones(4, jnp.int32), jnp.array([1, -1, 1])),
    "percentile_ring": chosen(negatives.percentile_ring(25, 75)),
    "propose": lambda x: tuple(negatives.propose(KEY, x(3, 5), 4, "stopped")),
    "proposed": chosen(negatives.proposed(4, "stopped", 0.5)),
    "push": pushed,
    "raw_temperature": lambda x: negatives.raw_temperature(x(value=0.3), np.float64(0.1), 2.0),
    "sample_uniform": lambda x: negatives.sample_uniform(KEY, x(4, 9) > -0.5, 3),
    "semi_hard": chosen(negatives.semi_hard(0.5)),
    "solve_temperature": lambda x: jax.jit(negatives.solve_temperature)(x(4, 9), 1.5, x(4, 9) > -1),
    "uniform_draws": chosen(negatives.uniform_draws(5)),
    "uniform_sampler": drawn(negatives.uniform_sampler(9)),
    "uniform_subset": chosen(negatives.uniform_subset(3)),
    "unigram_sampler": drawn(negatives.unigram_sampler(np.arange(9))),
    "with_zero": chosen(negatives.with_zero()),
}


def of_task(task):
    sides = task.sample(KEY, 5)
    return *sides, task.log_ratio(*sides)


ESTIMATORS = {
    name: lambda x, estimator=getattr(estimators, name): estimator(x(6, 6))
    for name in ("club", "donsker_varadhan", "info_nce", "js", "js_objective", "ml_cpc", "nwj")
} | {
    "ar1_information": lambda x: estimators.ar1_information(0.9, 2),
    "beyond_normal": lambda x: [of_task(task) for task in estimators.beyond_normal()[2:22:6]],
    "binary_symmetric_task": lambda x: of_task(estimators.binary_symmetric_task(0.8)),
    "bound_over_sequences": lambda x: estimators.bound_over_sequences(x(3, 4, 5), x(3, 4, 2, 5)),
    "discrete_task": lambda x: of_task(estimators.discrete_task("copy", np.eye(3) / 3)),
    "flo": lambda x: estimators.flo(x(6, 6), x(6)),
    "gaussian_task": lambda x: of_task(estimators.gaussian_task(3, 1.5, cubic=True)),
    "interpolated": lambda x: estimators.interpolated(x(6, 6), x(6), x(value=0.4)),
    "markov_task": lambda x: of_task(estimators.markov_task(np.full((3, 3), 1 / 3), 1)),
    "mine": lambda x: estimators.mine(x(6, 6), x(value=0.5)),
    "one_hot_task": lambda x: of_task(estimators.one_hot_task(4)),
    "smile": lambda x: estimators.smile(x(6, 6), x(value=1.0)),
    "split_by_group": lambda x: estimators.split_by_group(
        x(4, 4, 5), x(4, 4, 2, 5), jnp.array([0, 0, 1, 1])
    ),
    "tuba": lambda x: estimators.tuba(x(6, 6), x(6)),
}


def fitted(fit, *args, **options):
    def case(x):
        features = np.asarray(x(24, 3)) + np.eye(3)[LABELS]
        probe = fit(features, LABELS, *args, num_classes=3, **options)
        return probe.mean, probe.std, evaluate.predict(probe, features)

    return case


def updates(make):
    def case(x):
        transform = make(0.1, 8)
        return transform.update({"w": x(3)}, transform.init({"w": x(3)}), {"w": x(3)})[0]

    return case


SLOW_FIT = {"weight_decays": (1e-3,), "updates": evaluate.Updates(1, 20)}
ONE_EACH = np.arange(24)
RIDGE = fitted(evaluate.fit_ridge_probe)
EVALUATE = {
    "adam_cosine": updates(evaluate.adam_cosine),
    "ctc_nats": lambda x: evaluate.ctc_nats(
        x(2, 6, 4), jnp.array([6, 5]), jnp.array([[1, 2], [0, -1]])
    ),
    "dtw": lambda x: evaluate.dtw(jnp.abs(x(3, 4, 5)), np.array([[4, 5], [2, 3], [4, 1]])),
    "dtw_distances": lambda x: evaluate.dtw_distances(
        [np.asarray(x(n, 3)) for n in (2, 5, 3)], np.array([[0, 1], [1, 2]])
    ),
    "embed_images": lambda x: evaluate.embed_images(
        lambda batch: batch.mean((1, 2)), np.asarray(x(3, 2, 2, 1)), 2
    ),
    "embed_utterances": lambda x: evaluate.embed_utterances(
        lambda batch: jnp.asarray(batch).reshape(len(batch), -1, 2), [np.asarray(x(8))], 2
    ),
    "embed_pieces": lambda x: evaluate.embed_pieces(
        lambda batch: jnp.asarray(batch).reshape(len(batch), -1, 2), np.asarray(x(8)), 2
    ),
    "feature_spread": lambda x: evaluate.feature_spread(x(9, 3)),
    "fit_layer_weights": lambda x: evaluate.fit_layer_weights(
        np.asarray(x(24, 2, 3)), LABELS, num_classes=3
    ),
    "fit_lbfgs_probe": fitted(evaluate.fit_lbfgs_probe, l2s=(0.1,)),
    "fit_probe": fitted(evaluate.fit_probe, ONE_EACH, **SLOW_FIT),
    "fit_probes": lambda x: [
        probe.params[-1]
        for probe in evaluate.fit_probes(
            np.asarray(x(24, 3)), LABELS, ONE_EACH, num_classes=3, hidden_widths=(0, 2), **SLOW_FIT
        )
    ],
    "fit_ridge_probe": RIDGE,
    "frame_distances": lambda x: evaluate.frame_distances(x(1, 4, 3), x(1, 5, 3)),
    "knn_predict": lambda x: evaluate.knn_predict(
        np.asarray(x(24, 3)), LABELS, np.asarray(x(5, 3)), num_classes=3, k=4
    ),
    "mfcc": lambda x: evaluate.mfcc(x(2, 1600)),
    "most_exciting": lambda x: evaluate.most_exciting([x(5, 2), x(4, 2)], 3),
    "nearest": lambda x: evaluate.nearest(np.asarray(x(9, 3)), np.asarray(x(4, 3)), k=3),
    "paper_sgd": updates(evaluate.paper_sgd),
    "predict": RIDGE,
}


def act(observation, previous, is_first, memory):
    logits = jnp.stack([observation.reshape(1, observation.shape[1], -1)[..., :4].sum(-1)] * 4, -1)
    return logits.astype(jnp.float32), logits[..., 0].astype(jnp.float32), memory


def rolled_out(name):
    def case(x):
        world = rl.side_by_side(rl.make_environment(name), 3, 2)
        worlds = rl.begin(world, jnp.zeros(3, jnp.float32), 3, KEY, 4)
        return rl.roll_out(world, jax.jit(act), worlds, KEY, 6)

    return case


STEPS = lambda f: lambda x: f(x(4, 3), x(4, 3) + 1)  # noqa: E731
IN_MAZE, AT_BALL = rolled_out("t_maze"), rolled_out("hidden_ball:seen_again")
RL = {
    "begin": IN_MAZE,
    "entropy": lambda x: rl.entropy(x(3, 4)),
    "gae": lambda x: rl.gae(x(4, 3), x(4, 3), x(4, 3) > 1, x(3), 0.9, 0.8),
    "log_prob": lambda x: rl.log_prob(x(3, 4), jnp.array([0, 3, 1])),
    "make_environment": IN_MAZE,
    "make_hidden_ball": AT_BALL,
    "make_t_maze": IN_MAZE,
    "policy_gradient_loss": STEPS(rl.policy_gradient_loss),
    "ppo_loss": lambda x: rl.ppo_loss(x(4, 3), x(4, 3) + 0.1, x(4, 3), 0.2, x(4, 3) > 0),
    "roll_out": AT_BALL,
    "side_by_side": IN_MAZE,
    "standardize": lambda x: rl.standardize(x(4, 3)),
    "value_loss": STEPS(rl.value_loss),
}


PACKAGES = {
    losses: LOSSES, negatives: NEGATIVES, estimators: ESTIMATORS, evaluate: EVALUATE, rl: RL
}  # fmt: skip
CASES = {
    f"{package.__name__}.{name}": case
    for package, cases in PACKAGES.items()
    for name, case in cases.items()
}


def public_functions():
    for package in PACKAGES:
        for name, value in vars(package).items():
            if name[0] == "_" or name in ON_HOST:
                continue
            module = vars(sys.modules.get(getattr(value, "__module__", ""), object))
            if callable(value) and not inspect.isclass(value) and {"jax", "jnp", "lax"} & {*module}:
                yield f"{package.__name__}.{name}"


def test_all_public_functions_have_a_case():
    assert {*CASES} == {*public_functions()}


@pytest.fixture
def x64():
    """Return a switch for all threads that is reset afterwards."""
    yield lambda on: jax.config.update("jax_enable_x64", on)
    jax.config.update("jax_enable_x64", False)


def draw(name, dtype):
    """Return a function that makes inputs of a dtype that depend only on their shape."""

    def x(*shape, value=None):
        rng = np.random.default_rng([zlib.crc32(name.encode()), *shape])
        with jax.ensure_compile_time_eval():
            return jnp.asarray(rng.normal(size=shape) if value is None else value, dtype)

    return x


def run(name, x):
    """Return random bits and dtypes of traced arrays, and values computed on the host."""
    host = []

    def trace():
        leaves = jax.tree.leaves(CASES[name](x))
        host.extend(leaf for leaf in leaves if not isinstance(leaf, jax.core.Tracer))
        return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]

    try:
        jaxpr = jax.make_jaxpr(trace)()
    except NOT_TRACED:
        return "", [np.asarray(leaf) for leaf in jax.tree.leaves(CASES[name](x))]
    bits = " ".join(re.findall(r"random_bits\[[^]]*\]", str(jaxpr)))
    arrays = [np.zeros(0, out.dtype) for out in jaxpr.out_avals]
    return "".join(bits.split()), [*arrays, *map(np.asarray, host)]


@pytest.mark.parametrize("name", {case: name for name, case in CASES.items()}.values())
def test_x64_has_no_effect(name, x64):
    """With float64 inputs dtypes equal those of float32; selecting functions get float32."""
    x = draw(name, jnp.float32)
    bits, want = run(name, x)
    x64(True)
    assert jnp.zeros(1).dtype == jnp.float64
    selects = name.rpartition(".")[2] in SELECT
    again, found = run(name, draw(name, jnp.float32 if selects else jnp.float64))
    assert again == bits
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert one.dtype == other.dtype
