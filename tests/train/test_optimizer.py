import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cpc import train
from cpc.types import UserError


def updates_of(tx, gradients, params, *scales):
    """Return the parameters after one step per scale of the gradients."""

    @jax.jit
    def run(params):
        state = tx.init(params)
        for scale in scales or (1,):
            scaled = jax.tree.map(lambda leaf, scale=scale: scale * leaf, gradients)
            updates, state = tx.update(scaled, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return run(params)


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("adam", {"b1": 0.8, "b2": 0.95, "eps": 1e-6}, optax.adam(0.1, 0.8, 0.95, 1e-6)),
    ("lion", {"b1": 0.5, "b2": 0.25}, optax.lion(0.1, 0.5, 0.25, weight_decay=0.0)),
    ("rmsprop", {"b2": 0.5, "eps": 0.04}, optax.rmsprop(0.1, 0.5, 0.04)),
])  # fmt: skip
def test_equals_the_optax_optimizer(name, options, expected):
    params, gradients = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.3, 7.0])}
    tx, rate = train.make_optimizer(learning_rate=0.1, num_steps=10, name=name, **options)
    found, wanted = (updates_of(one, gradients, params, 1, -0.4, 0.2) for one in (tx, expected))
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=1e-6)
    assert float(rate(0)) == pytest.approx(0.1)


def test_returned_schedule_is_used():
    """Adam moves by the rate for any constant gradient."""
    tx, rate = train.make_optimizer(learning_rate=1.0, warmup_steps=4, num_steps=8)
    params = {"w": jnp.zeros(())}
    moved = updates_of(tx, {"w": jnp.ones(())}, params, 1, 1, 1)["w"]
    assert float(moved) == pytest.approx(-float(rate(0) + rate(1) + rate(2)), rel=1e-5)


def test_gradients_are_clipped_by_global_norm():
    """A huge eps makes Adam linear in the gradient."""
    numbers = {"learning_rate": 1.0, "num_steps": 1, "eps": 1e6}
    gradients = {"a": jnp.array([30.0]), "b": jnp.array([40.0])}
    params = jax.tree.map(jnp.zeros_like, gradients)
    free = updates_of(train.make_optimizer(**numbers)[0], gradients, params)
    tx, _ = train.make_optimizer(**numbers, clip_norm=5.0)
    clipped = updates_of(tx, gradients, params)
    np.testing.assert_allclose(clipped["a"], free["a"] / 10, rtol=1e-3)
    np.testing.assert_allclose(clipped["b"], free["b"] / 10, rtol=1e-3)


def test_muon_orthogonalizes_matrices_and_uses_nadam_otherwise():
    """Muon matches the RMS of Adam updates (Liu et al. 2025), 0.2.

    Five Newton-Schulz steps bring singular values to 0.7 to 1.2 times the target, which is
    0.2 times the square root of the larger side.
    """
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    gradients = {
        "encoder": {"kernel0": draw(3, 5, 8), "bias0": draw(8), "conv": draw(3, 3, 2, 8)},
        "context": {"input0": {"kernel": draw(8, 12)}, "recurrent0": draw(2, 4, 12)},
        "predictor": {"W": {"kernel": draw(8, 3, 5), "bias": draw(3, 5)}},
        "offsets": {"norm": {"scale": draw(3, 8)}, "linear": {"kernel": draw(3, 8, 5)}},
        "embedding": draw(9, 4),
    }  # fmt: skip
    params = jax.tree.map(jnp.zeros_like, gradients)
    muon, _ = train.make_optimizer(learning_rate=0.1, num_steps=1, name="muon")
    moved = updates_of(muon, gradients, params)
    matrices = {
        "a convolution": moved["encoder"]["kernel0"].reshape(15, 8),
        "one of pictures": moved["encoder"]["conv"].reshape(18, 8),
        "a matrix": moved["context"]["input0"]["kernel"],
        **{f"block {n}": moved["context"]["recurrent0"][n] for n in range(2)},
        **{f"W_{k}": moved["predictor"]["W"]["kernel"][:, k] for k in range(3)},
        **{f"offset {k}": moved["offsets"]["linear"]["kernel"][k] for k in range(3)},
    }
    for name, matrix in matrices.items():
        sizes = np.linalg.svd(matrix, compute_uv=False) / (0.1 * 0.2 * max(matrix.shape) ** 0.5)
        assert 0.6 < sizes.min() < sizes.max() < 1.3, name
    nadam = updates_of(optax.nadam(0.1), gradients, params)
    for part in (
        lambda tree: tree["encoder"]["bias0"],
        lambda tree: tree["predictor"]["W"]["bias"],
        lambda tree: tree["offsets"]["norm"]["scale"],
        lambda tree: tree["embedding"],
    ):
        np.testing.assert_allclose(part(moved), part(nadam), rtol=1e-4)


def test_schedule_free_equals_its_definition():
    """Equals the method of Defazio et al. 2024 in float64."""
    steps, goal, b1, b2, eps = 6, np.array([[1.0, -2.0], [0.5, 3.0]]), 0.9, 0.99, 1e-8
    tx, rate = train.make_optimizer(
        learning_rate=0.3, warmup_steps=3, num_steps=20, name="schedule_free", b1=b1, b2=b2
    )
    params = {"w": jnp.zeros((2, 2))}
    state = tx.init(params)
    z = x = y = second = np.zeros((2, 2))
    weights = largest = 0.0

    @jax.jit
    def step(state, params):
        updates, state = tx.update({"w": params["w"] - goal}, state, params)
        params = optax.apply_updates(params, updates)
        return state, params, train.schedule_free_average(state, params)

    for n in range(steps):
        state, params, average = step(state, params)
        second = b2 * second + (1 - b2) * (y - goal) ** 2
        z = z - float(rate(n)) * (y - goal) / (np.sqrt(second / (1 - b2 ** (n + 1))) + eps)
        largest = max(largest, float(rate(n)))  # of the current step
        weights += largest**2
        x = x + largest**2 / weights * (z - x)
        y = b1 * x + (1 - b1) * z
        np.testing.assert_allclose(params["w"], y, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(average["w"], x, rtol=2e-4, atol=1e-5)
    assert train.schedule_free_average(optax.adam(0.1).init(params), params) is None


@pytest.mark.parametrize("name", ["adam", "lion", "muon", "schedule_free"])
def test_weight_decay_excludes_biases_and_scales(name):
    """Weights are matrices and convolution kernels; predictors have biases per offset."""
    tx, _ = train.make_optimizer(
        learning_rate=0.1, warmup_steps=2, num_steps=2, name=name, weight_decay=0.5
    )
    shapes = {"matrix": (2, 2), "kernel3": (3, 2, 2), "bias": (4, 2), "scale": (4, 2)}
    params = {key: jnp.ones(shape) for key, shape in shapes.items()}
    after = updates_of(tx, jax.tree.map(jnp.zeros_like, params), params)
    for key, wanted in zip(shapes, (0.975, 0.975, 1, 1), strict=True):
        np.testing.assert_allclose(after[key], wanted, rtol=1e-6)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"schedule": "step"}, "'step'.*'cosine'"), ({"name": "sgd"}, "'sgd'.*'muon'"),
    ({"name": "lion", "eps": 1e-6}, "lion does not use eps"),
    ({"name": "schedule_free", "schedule": "cosine"}, "'constant'"),
    ({"name": "rmsprop", "weight_decay": 0.1}, "weight_decay"), ({"clip_norm": -1.0}, "clip"),
    ({"learning_rate": 0.0}, "learning.rate"), ({"learning_rate": float("nan")}, "learning.rate"),
    ({"warmup_steps": 11}, "warmup_steps is 11.* 10"),
])  # fmt: skip
def test_invalid_options_are_rejected(wrong, message):
    with pytest.raises(UserError, match=message):
        train.make_optimizer(**{"learning_rate": 0.1, "num_steps": 10, **wrong})


def test_layer_decay_by_depth():
    """Blocks are ordered by both numbers; unnumbered layers are above them, the stem below."""
    halvings = {
        "model": {
            "encoder": {"stage1_block0": {"w": 3}, "stage0_block1": 4, "stage0_block0": 5,
                        "stem": {"kernel": 6}, "norm": 3},
            "context": {"norm": 1, "conv1": {"kernel2": 1}, "conv0": 2},
            "context_backward": {"conv1": {"kernel2": 1}, "conv0": 2},
        },
        "head": (0, 0),
    }  # fmt: skip
    below = {"context": {"input": 3, "block1": 1, "block0": 2}}  # input is below blocks
    scale = train.scale_by_layer(0.5, ("context", "encoder"))
    for wanted in (halvings, below):
        params = jax.tree.map(lambda _: 1.0, wanted)
        found, _ = scale.update(params, scale.init(params))
        assert found == jax.tree.map(lambda number: 0.5**number, wanted)
    same, _ = train.scale_by_layer(1.0, ("context", "encoder")).update(params, optax.EmptyState())
    assert same == params
