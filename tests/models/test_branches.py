"""CPC in both directions of time, and in gradient-isolated modules."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc.models import (
    CPC,
    GRU,
    TIME_DIRECTIONS,
    CausalConv,
    ConvEncoder,
    LinearPredictor,
    LogMelEncoder,
    SegmentalCPC,
    end_at,
    module_ends,
    stream_contexts,
)
from cpc.types import UserError

BOTH = {"directions": TIME_DIRECTIONS}
GREEDY = {"cuts": (2, 5)}
#: One latent per 5 samples, which it sees alone.
FRAMES = ConvEncoder(8, (5,), (5,), norm="layer")


def make(encoder=FRAMES, context=GRU(6), **options):
    module = CPC(encoder, context, LinearPredictor(3, 8), **options)
    return module, random_variables(module, jnp.zeros((1, 1600)))


def test_the_backward_branch_is_the_forward_one_in_reversed_time():
    module, variables = make(**BOTH)
    params = variables["params"]
    x, number = noise(2, 50), jnp.array([37, 50])  # 37 samples give 7 latents

    @jax.jit
    def apply(variables, x, number=None):
        outputs = module.apply(variables, x, False, number)
        return outputs, module.apply(variables, x, False, number, method="embed")

    (forward, backward), (z, c) = whole = apply(variables, x, number)
    close = functools.partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(lambda a, b: close(a[1], b[1]), apply(variables, x), whole)  # all samples exist
    plain = module.clone(directions=TIME_DIRECTIONS[:1])
    swapped = {
        "encoder": {**params["encoder"], "kernel0": params["encoder"]["kernel0"][::-1]},
        "context": params["context_backward"],
        "predictor": params["predictor_backward"],
    }
    run = jax.jit(plain.apply)
    turned = jnp.stack([jnp.pad(row[:n][::-1], (0, 50 - n)) for row, n in ((x[0], 35), (x[1], 50))])
    for own, wanted in (
        (backward, run({"params": swapped}, turned)),
        (forward, run(variables, jnp.where(jnp.arange(50) < number[:, None], x, 0))),
    ):
        for row, length in enumerate((7, 10)):
            for found, one in zip(own, wanted, strict=True):
                close(found[row, :length], one[row, :length])
    np.testing.assert_array_equal(z, forward.z)
    np.testing.assert_array_equal(c[..., :6], forward.c)
    for row, length in enumerate((7, 10)):
        np.testing.assert_array_equal(c[row, :length, 6:], backward.c[row, :length][::-1])


def energy(outputs):
    """Return a loss of predictions against targets one step ahead."""
    return jnp.tanh(outputs.predictions[:, :-1, 0] * outputs.z[:, 1:]).sum()


def test_losses_train_their_own_module_alone():
    """The gradients are those without isolation, of the module's own parameters, and 0 else."""
    cuts, encoder = (1, 3), LogMelEncoder(8, (2, 1, 2), norm="layer")  # cut as its ConvEncoder is
    module, variables = make(encoder, CausalConv(4, 1), cuts=cuts)
    plain, params, x = module.clone(cuts=()), variables["params"], noise(2, 640)
    ends = [end_at(plain, {"params": {"encoder": {}}}, f"z{cut}")[0].encoder for cut in cuts]

    def isolated(params):
        outputs = module.apply({"params": params}, x)
        return jnp.stack([energy(one) for one in outputs[::-1]]), outputs

    def reference(params):
        """Return the same losses with gradients through the whole encoder."""
        last = plain.apply({"params": params}, x)
        losses = []
        for n, end in enumerate(ends, start=1):
            own = {"params": params["encoder"]}
            z = end.apply(own, x)[:, : last.z.shape[1]]
            predictions = module.predictor.apply({"params": params[f"predictor_of_{n}"]}, z)
            losses.append(energy(last._replace(z=z, predictions=predictions)))
        return jnp.stack([*losses, energy(last)])

    @jax.jit
    def differentiate(params):
        values, pull, outputs = jax.vjp(isolated, params, has_aux=True)
        wanted, pull_wanted = jax.vjp(reference, params)
        rows = jnp.eye(3)
        return (values, wanted), outputs, jax.vmap(pull)(rows)[0], jax.vmap(pull_wanted)(rows)[0]

    values, outputs, found, wanted = differentiate(params)
    np.testing.assert_allclose(*values, rtol=1e-5)
    for one, is_last in zip(outputs, (True, False, False), strict=True):
        assert one.z.shape == outputs[0].z.shape
        assert is_last or (one.z == one.c).all()
    layers = [range(1), range(1, 3), range(0)]
    names = [{"predictor_of_1"}, {"predictor_of_2"}, {"context", "predictor"}]
    leaves = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True)
    for (path, leaf), one in leaves:
        keys = [part.key for part in path]
        for n in range(3):
            is_own = keys[0] in names[n]
            if keys[0] == "encoder":
                is_own = int(next(k for k in keys if k[-1].isdigit())[-1]) in layers[n]
            assert (np.abs(leaf[n]).max() > 0) == is_own, (n, keys)
            if is_own:
                np.testing.assert_allclose(leaf[n], one[n], rtol=1e-4, atol=1e-5)


def test_a_shorter_part_ends_in_both_directions_and_drops_later_cuts():
    module, _ = make(ConvEncoder(8), **BOTH, **GREEDY)
    assert module.branches == [*itertools.product((3, 2, 1), TIME_DIRECTIONS)]
    assert module.linear_maps({}) is None
    module = CPC(ConvEncoder(8), GRU(6, 2), LinearPredictor(3, 8), TIME_DIRECTIONS, (2, 4))
    variables = random_variables(module, jnp.zeros((1, 1600)))
    assert end_at(module, variables, "z2")[0].cuts == ()
    assert end_at(module, variables, "z3")[0].cuts == (2,)
    shorter, own = end_at(module, variables, "c1")
    assert shorter == module.clone(context=GRU(6))
    for name in ("context", "context_backward"):
        one = variables["params"][name]
        kept = {key: value for key, value in one.items() if key.endswith("0")}
        jax.tree.map(np.testing.assert_array_equal, own["params"][name], kept)
    segmental = SegmentalCPC(ConvEncoder(8), GRU(6), LinearPredictor(1, 8), 8)
    for whole, words in ((module, "both directions"), (segmental, "of segments")):
        with pytest.raises(UserError, match=words):
            next(stream_contexts(whole, variables, iter([jnp.zeros((1, 3, 8))])))
    greedy, variables = make(ConvEncoder(8), **GREEDY)
    assert next(stream_contexts(greedy, variables, iter([noise(1, 4, 8)]))).shape == (1, 4, 6)


@pytest.mark.parametrize(("options", "words"), [
    ({"directions": ("backward",)}, "forward"), ({"directions": ()}, "forward"),
    ({"cuts": (3, 2)}, r"\[3, 2\]"), ({"cuts": (6,)}, "1 to 5"), ({"cuts": (0,)}, "1 to 5"),
])  # fmt: skip
def test_mistakes_are_reported(options, words):
    with pytest.raises(UserError, match=words):
        make(ConvEncoder(8), **options)
    with pytest.raises(UserError, match="is 7"):
        module_ends(5, 7)
