"""Public functions give equal values and dtypes with and without `jax_enable_x64`."""

import inspect
import itertools
import math
import re
import sys
import types
import typing
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
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
           "format_audit", "hit_rate", "log_uniform", "probabilities", "solve_alpha", "uniform",
           "unigram", "abx_score", "cell_errors", "cell_weights", "code_entropy", "code_scores",
           "cut_tokens", "make_cells"}  # fmt: skip
#: Functions that another function or `unfold` calls.
INDIRECT = {"audit", "begin", "make_environment", "predict", "roll_out", "side_by_side"}
#: Functions whose results have the dtype of their inputs.
SELECT = {"hardest", "mix_keys", "percentile_ring", "semi_hard", "uniform_draws", "uniform_subset",
          "with_zero", "push", "adam_cosine", "paper_sgd", "frame_distances"}  # fmt: skip
#: Functions that take over a second each, and most of the time of all.
SLOW = {"cpc_loss", "acpc_loss", "streaming_info_nce", "debiased", "audit_rule", "audit_sampler",
        "fit_lbfgs_probe", "solve_temperature", "fit_layer_weights", "audit_queue",
        "beyond_normal", "fit_probes", "aligned_losses", "bound_over_sequences",
        "candidate_sampling"}  # fmt: skip
#: Sizes of axes by their name in annotations; 4 for others.
SIZES = {"m": 5, "n": 24, "p": 2, "k": 2, "d": 3, "_": 3, "t": 6, "a": 6, "h": 6, "s": 1600, "2": 2}
LABELS = np.arange(24) // 2 % 3
BATCH = Position.grid(4, 6)
FLAT = jax.tree.map(np.ravel, BATCH)
HERE = jax.tree.map(lambda p: p[:5], FLAT)
TABLE = negatives.alias_table(np.arange(1.0, 12))
#: Required arguments that cannot be made from their annotation.
VALUES = {
    "activations": lambda x: [x(5, 2), x(4, 2)],
    "anchor": lambda x: jax.tree.map(lambda p: p[:, None], FLAT),
    "anchors": lambda x: HERE,
    "bigrams.weights": lambda x: np.ones(3) / 3,
    "candidate": lambda x: FLAT,
    "candidates": lambda x: FLAT,
    "accidental_hits.candidates": lambda x: jnp.arange(24),
    "chain": lambda x: np.full((3, 3), 1 / 3),
    "ctc_nats.labels": lambda x: jnp.array([[1, 2, 0, -1]] * 4),
    "ctc_nats.num_frames": lambda x: jnp.array([4, 3, 4, 4]),
    "draw": lambda x: lambda key: negatives.draw(key, TABLE, (5,)),
    "dtw.distances": lambda x: jnp.abs(x(3, 4, 5)),
    "dtw.lengths": lambda x: np.array([[4, 5], [2, 3], [4, 1]]),
    "embed": lambda x: lambda batch: jnp.asarray(batch).reshape(len(batch), -1, 2),
    "features": lambda x: np.asarray(x(24, 3)) + np.eye(3)[LABELS],
    "high": lambda x: np.float64(10.0),
    "images": lambda x: np.asarray(x(3, 2, 1)),
    "joint": lambda x: np.eye(3) / 3,
    "latents": lambda x: Latents(jax.tree.map(jnp.asarray, BATCH), jnp.ones((4, 6), bool)),
    "low": lambda x: np.float64(0.01),
    "mode": lambda x: "stopped",
    "name": lambda x: "copy",
    "noise": lambda x: negatives.bigrams(np.array([0, 1, 2, 0, 2, 1, 0, 2]), np.ones(3) / 3),
    "num_classes": lambda x: 20,
    "observe.counts": lambda x: jnp.ones(4, jnp.int32),
    "offsets": lambda x: (1, 2),
    "outputs": lambda x: CPCOutputs(x(4, 6, 5), x(4, 6, 6), x(4, 6, 2, 5)),
    "pairs": lambda x: np.array([[0, 1], [1, 2]]),
    "percentile_ring.high": lambda x: 75,
    "percentile_ring.low": lambda x: 25,
    "plan": lambda x: Plan(negatives.one_per_sequence, None, None, (1, 2), None, None),
    "positions": lambda x: BATCH,
    "push.positions": lambda x: HERE,
    "push.queue": lambda x: negatives.make_queue(7, 3),
    "queue": lambda x: negatives.push(negatives.make_queue(7, 3), x(24, 3), FLAT, 3, x(24) > 0),
    "rng": lambda x: KEY,
    "rule": lambda x: negatives.batch,
    "shape": lambda x: (3, 4),
    "stride": lambda x: 2,
    "sum_anchors.scores": lambda x: AnchorScores(*(x(2, 4, 6) for _ in AnchorScores._fields)),
    "table": lambda x: TABLE,
    "tokens": lambda x: [np.asarray(x(n, 3)) for n in (2, 5, 3)],
    "train_labels": lambda x: LABELS,
    "waveform": lambda x: np.asarray(x(8)),
    "waveforms": lambda x: [np.asarray(x(8))],
}
SLOW_FIT = {"num_classes": 3, "weight_decays": (1e-3,), "updates": evaluate.Updates(1, 20)}
#: Optional arguments of one or several calls.
OPTIONS = {
    "audit_rule": [{"sampler": negatives.uniform_draws(3), "num_anchors": 8}],
    "audit_sampler": [{"labels": None, "num_rounds": 3}],
    "candidate_sampling": [{"sampler": negatives.log_uniform_sampler(4), "rng": KEY}],
    "cpc_loss": [
        {"rule": negatives.one_per_sequence, "loss": losses.sigmoid},
        {"block": 3, "columns": 5, "bias": 0.0},
    ],
    "fit_lbfgs_probe": [{"l2s": (0.1,)}],
    "fit_probe": [SLOW_FIT],
    "fit_probes": [SLOW_FIT | {"hidden_widths": (0, 2)}],
    "gaussian_task": [{"cubic": True}],
    "markov_task": [{"emissions": None}],
    "streaming_info_nce": [{"block": 3}, {"block": 3, "columns": 7}],
    "streaming_symmetric_info_nce": [{"block": 3}],
    "value_loss": [{"old_values": None}],
}


def list_kinds(annotation):
    """Return the types that an annotation allows, except None."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if is_union else (annotation,)
    return [kind for kind in kinds if kind is not types.NoneType]


def make_argument(x, kinds, last):
    """Return a number or an array of the first or the last kind; numbers are positive."""
    kind = kinds[-last]
    if not hasattr(kind, "dim_str"):
        return 0.5 if float in kinds else 3
    axes = kind.dim_str.split()
    axes = [axis.strip("#") for axis in axes if len(axes) == 1 or axis not in ("...", "*lanes")]
    shape = [SIZES.get(axis, 4) for axis in axes]
    make = np.asarray if kind.array_type is np.ndarray else jnp.asarray
    if "bool" in kind.dtypes:
        return make(x(*shape) > -0.5)
    if "float32" not in kind.dtypes:
        return make(np.arange(math.prod(shape)).reshape(shape) // 2 % 3)
    if "int32" in kind.dtypes:
        return make(np.arange(1.0, 12))
    return make(abs(x(*shape)) + 0.1 if float in kinds else x(*shape))


def make_calls(name, x):
    """Return arguments of the first kinds without optional arrays, and of the last kinds with."""
    calls, known, own = [], [], name.rpartition(".")[2]
    for options, last in itertools.product(OPTIONS.get(own, [{}]), (False, True)):
        made = dict(options)
        for key, parameter in inspect.signature(FUNCTIONS[name]).parameters.items():
            kinds = list_kinds(parameter.annotation)
            is_array = any(hasattr(kind, "dim_str") for kind in kinds)
            if parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD:
                make = VALUES.get(f"{own}.{key}", VALUES.get(key))
                made.setdefault(key, make(x) if make else make_argument(x, kinds, last))
            elif last and is_array and key not in made:
                made[key] = make_argument(x, kinds, last)
        types_and_shapes = [(k, type(v), getattr(v, "shape", ())) for k, v in made.items()]
        if types_and_shapes not in known:
            calls.append(made)
        known.append(types_and_shapes)
    return calls


def act(observation, previous, is_first, memory):
    logits = jnp.stack([observation.reshape(1, observation.shape[1], -1)[..., :4].sum(-1)] * 4, -1)
    return logits.astype(jnp.float32), logits[..., 0].astype(jnp.float32), memory


def unfold(x, result):
    """Return the arrays of a result, after calling functions that it consists of."""
    if isinstance(result, estimators.Task):
        sides = result.sample(KEY, 5)
        return *sides, result.log_ratio(*sides)
    if isinstance(result, negatives.AuditRow):
        return result.value
    if isinstance(result, negatives.Bigrams):
        return result._replace(table=None)  # has thresholds of the highest precision
    if isinstance(result, rl.Environment):
        world = rl.side_by_side(result, 3, 2)
        worlds = rl.begin(world, jnp.zeros(3, jnp.float32), 3, KEY, 4)
        return rl.roll_out(world, jax.jit(act), worlds, KEY, 6)
    if isinstance(result, evaluate.Probe):
        return result.mean, result.std, result.params, evaluate.predict(result, np.asarray(x(9, 3)))
    if isinstance(result, optax.GradientTransformation):
        return result.update({"w": x(3)}, result.init({"w": x(3)}), {"w": x(3)})[0]
    if type(result) in (list, tuple):
        return [unfold(x, one) for one in (result[2:22:6] if len(result) == 40 else result)]
    if callable(result):
        candidates = KEY, jnp.array([[3], [7]]), 6
        scores = KEY, x(4), x(4, 9), x(4, 9) > -0.7
        return result(*(candidates if len(inspect.signature(result).parameters) == 3 else scores))
    return result


def differentiate(function, arguments):
    """Return a function's result, after differentiating its first array by all float arrays."""
    leaves, tree = jax.tree.flatten(arguments)
    is_float = [isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    places = np.flatnonzero(is_float).tolist()

    def total(*arrays):
        given = leaves.copy()
        for i, array in zip(places, arrays, strict=True):
            given[i] = array
        result = function(**tree.unflatten(given))
        return jax.tree.leaves(result)[0].sum(), result

    return jax.grad(total, range(len(places)), has_aux=True)(*(leaves[i] for i in places))[1]


FUNCTIONS = {
    f"{package.__name__}.{name}": value
    for package in (losses, negatives, estimators, evaluate, rl)
    for name, value in vars(package).items()
    if callable(value) and not inspect.isclass(value) and name not in ON_HOST | INDIRECT
    if {"jax", "jnp", "lax"} & {*vars(sys.modules.get(getattr(value, "__module__", ""), object))}
}


@pytest.fixture
def x64():
    """Return a switch for all threads that is reset afterwards."""
    yield lambda on: jax.config.update("jax_enable_x64", on)
    jax.config.update("jax_enable_x64", False)


def draw(name, dtype):
    """Return a function that makes inputs of a dtype that depend only on their shape."""

    def x(*shape):
        rng = np.random.default_rng([zlib.crc32(name.encode()), *shape])
        with jax.ensure_compile_time_eval():
            return jnp.asarray(rng.normal(size=shape) if shape else 0.5, dtype)

    return x


def run(name, x):
    """Return random bits and dtypes of traced arrays, and values computed on the host."""
    calls, function, host = make_calls(name, x), FUNCTIONS[name], []

    def call():
        if function in vars(losses).values():
            return [differentiate(function, arguments) for arguments in calls]
        return [unfold(x, function(**arguments)) for arguments in calls]

    def trace():
        leaves = jax.tree.leaves(call())
        host.extend(leaf for leaf in leaves if not isinstance(leaf, jax.core.Tracer))
        return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]

    try:
        jaxpr = jax.make_jaxpr(trace)()
    except NOT_TRACED:
        return "", [np.asarray(leaf) for leaf in jax.tree.leaves(call())]
    bits = " ".join(re.findall(r"random_bits\[[^]]*\]", str(jaxpr)))
    arrays = [np.zeros(0, out.dtype) for out in jaxpr.out_avals]
    return "".join(bits.split()), [*arrays, *map(np.asarray, host)]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.nightly] * (name.rpartition(".")[2] in SLOW))
    for name in FUNCTIONS
])  # fmt: skip
def test_x64_has_no_effect(name, x64):
    """With float64 inputs dtypes equal those of float32; selecting functions get float32."""
    bits, want = run(name, draw(name, jnp.float32))
    x64(True)
    assert jnp.zeros(1).dtype == jnp.float64
    selects = name.rpartition(".")[2] in SELECT
    again, found = run(name, draw(name, jnp.float32 if selects else jnp.float64))
    assert again == bits
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert one.dtype == other.dtype
