"""CPC in both directions of time, and in modules that no gradient passes."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import (
    CPC,
    GRU,
    TIME_DIRECTIONS,
    ConvEncoder,
    LinearPredictor,
    LogMelEncoder,
    Pretrained,
    end_at,
    load_pretrained,
    make_model,
    module_ends,
    reverse_time,
    save,
    stream_contexts,
)
from cpc.models.description import build, describe
from cpc.types import CPCOutputs, UserError

BOTH = {"directions": TIME_DIRECTIONS}
GREEDY = {"cuts": (2, 5)}
AUDIO = {"kind": "audio", "shape": [640], "sample_rate_hz": 16000, "rms": 0.05}


def made(encoder=None, **options) -> tuple[Any, Any]:
    module = CPC(encoder or ConvEncoder(8), GRU(6), LinearPredictor(3, 8), **options)
    return module, random_variables(module, jnp.zeros((1, 1600)))


def noise(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.slow
def test_one_direction_and_one_module_are_encoder_context_and_predictor():
    module, variables = made()
    x, params = noise(2, 1600), variables["params"]
    assert sorted(params) == ["context", "encoder", "predictor"]
    z = module.encoder.apply({"params": params["encoder"]}, x)
    c = module.context.apply({"params": params["context"]}, z)
    predictions = module.predictor.apply({"params": params["predictor"]}, c)
    for found, wanted in zip(module.apply(variables, x), (z, c, predictions), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, [7, 10]])
@pytest.mark.parametrize("direction", TIME_DIRECTIONS)
def test_a_context_sees_nothing_that_its_direction_has_not_passed(direction, number):
    """Forward nothing later, backward nothing earlier, and neither what is filled up; exactly."""
    # A latent is of five samples of its own.
    module, variables = made(ConvEncoder(8, (5,), (5,), norm="layer"), **BOTH)
    part = slice(0, 6) if direction == "forward" else slice(6, 12)
    num_samples = None if number is None else 5 * jnp.array(number)

    def context(x):
        c = module.apply(variables, x, False, num_samples, method="embed")[1]
        return jnp.square(c[0, 4, part]).sum()

    gradient = np.abs(jax.grad(context)(noise(2, 50))).reshape(2, 10, 5).max(-1)
    seen = np.arange(10) <= 4 if direction == "forward" else np.arange(10) >= 4
    seen &= np.arange(10) < (10 if number is None else number[0])
    np.testing.assert_array_equal(gradient[0] > 0, seen)
    assert gradient[1].max() == 0


@pytest.mark.slow
def test_the_backward_branch_is_the_forward_one_of_what_is_reversed():
    module, variables = made(ConvEncoder(8, (5,), (5,)), **BOTH)
    params = variables["params"]
    x, number = noise(2, 50), jnp.array([37, 50])
    forward, backward = module.apply(variables, x, False, number)
    plain = module.clone(directions=TIME_DIRECTIONS[:1])
    swapped = {
        "encoder": {**params["encoder"], "kernel0": params["encoder"]["kernel0"][::-1]},
        "context": params["context_backward"],
        "predictor": params["predictor_backward"],
    }
    for row, length in enumerate((7, 10)):  # of 37 samples there are 7 latents
        wanted = plain.apply({"params": swapped}, x[row : row + 1, : 5 * length][:, ::-1])
        for found, one in zip(backward, wanted, strict=True):
            np.testing.assert_allclose(found[row, :length], one[0], atol=1e-6)
    for found, one in zip(forward, plain.apply(variables, x, False, number), strict=True):
        np.testing.assert_array_equal(found, one)
    z, c = module.apply(variables, x, False, number, method="embed")
    np.testing.assert_array_equal(z, forward.z)
    turned = reverse_time(backward.c, jnp.array([7, 10]))
    np.testing.assert_array_equal(c, np.concatenate([forward.c, turned], axis=-1))


def test_time_reversed_twice_is_time():
    x = noise(3, 5, 2)
    for number in ([1, 3, 5], [5, 5, 5]):
        once = reverse_time(x, jnp.array(number))
        np.testing.assert_array_equal(reverse_time(once, jnp.array(number)), x)
        for row, n in enumerate(number):
            np.testing.assert_array_equal(once[row, :n], x[row, :n][::-1])


def energy(outputs):
    """Of predictions against targets, as a loss has it."""
    ahead = outputs.predictions[:, :-1, 0] * outputs.z[:, 1:]
    return jnp.tanh(ahead).sum()


def layers_of(module):
    """Names of the parts of each module's own, from the first: layers, context and predictors."""
    bounds = [0, *module.cuts, module.encoder.num_layers]
    parts = []
    for n, (start, stop) in enumerate(itertools.pairwise(bounds), start=1):
        is_last = n == len(module.cuts) + 1
        own = {"context", "predictor"} if is_last else {f"predictor_of_{n}"}
        parts.append((own, range(start, stop)))
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("make", [ConvEncoder, LogMelEncoder])
@pytest.mark.parametrize("cuts", [(2,), (1, 3), (2, 5), (1, 2, 3, 4, 5)])
def test_no_gradient_passes_from_a_module_to_another(make, cuts):
    module, variables = made(make(8, norm="layer"), cuts=cuts)
    x = noise(2, 3200)
    for branch, (number, _) in enumerate(module.branches):

        def loss(params, branch=branch):
            return energy(module.apply({"params": params}, x)[branch])

        gradient = jax.grad(loss)(variables["params"])
        own, layers = layers_of(module)[number - 1]
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
            names = [part.key for part in path]
            is_own = names[0] in own
            if names[0] == "encoder":
                name = next(name for name in names if name[-1].isdigit())
                is_own = int(name[-1]) in layers
            assert (np.abs(leaf).max() > 0) == is_own, (number, names)


@pytest.mark.slow
def test_gradients_within_a_module_are_those_of_the_module_alone():
    """Trained by itself, on what the modules below it give as if it were data."""
    module, variables = made(cuts=(2, 4))
    params, x = variables["params"], noise(2, 3200)

    def total(params):
        return sum(energy(one) for one in module.apply({"params": params}, x))

    together = jax.grad(total)(params)
    first = CPC(ConvEncoder(8, (10, 8), (5, 4)), Nothing(), LinearPredictor(3, 8))
    second = CPC(ConvEncoder(8, (4, 4), (2, 2), channels=8), Nothing(), LinearPredictor(3, 8))
    third = CPC(ConvEncoder(8, (4,), (2,), channels=8), GRU(6), LinearPredictor(3, 8))
    given = x
    for n, (alone, start) in enumerate([(first, 0), (second, 2), (third, 4)], start=1):
        number = alone.encoder.num_layers
        names = {f"{kind}{i}": f"{kind}{i + start}" for kind in ("kernel", "bias")
                 for i in range(number)}  # fmt: skip
        predictor = "predictor" if n == 3 else f"predictor_of_{n}"

        def pick(params, names=names, predictor=predictor, n=n):
            encoder = {name: params["encoder"][there] for name, there in names.items()}
            parts = {"encoder": encoder, "predictor": params[predictor]}
            return parts | ({"context": params["context"]} if n == 3 else {})

        def loss(own, alone=alone, given=given):
            outputs: Any = alone.apply({"params": own}, given)
            return energy(CPCOutputs(*(leaf[:, :20] for leaf in outputs)))

        wanted = jax.grad(loss)(pick(params))
        for path, leaf in jax.tree_util.tree_leaves_with_path(wanted):
            found = dict(jax.tree_util.tree_leaves_with_path(pick(together)))[path]
            np.testing.assert_allclose(found, leaf, rtol=1e-5, atol=1e-5)
        given = alone.apply({"params": pick(params)}, given, method="encode")


class Nothing(GRU):
    """No context: the latents themselves."""

    def __call__(self, z):
        """Return the latents."""
        return z


@pytest.mark.slow
def test_earlier_modules_predict_at_their_own_stride_as_much_as_the_last():
    module, variables = made(cuts=(2, 5))
    last, second, first = module.apply(variables, noise(2, 3200))
    assert last.z.shape == second.z.shape == first.z.shape == (2, 20, 8)
    np.testing.assert_array_equal(first.z, first.c)
    shorter, own = end_at(module, variables, "z2")
    z = shorter.apply(own, noise(2, 3200), method="encode")
    assert z.shape[1] == 160  # 20 samples a latent
    np.testing.assert_array_equal(first.z, z[:, :20])
    np.testing.assert_array_equal(second.z, last.z)  # a context is a module of its own


@pytest.mark.parametrize("options", [BOTH, GREEDY, BOTH | GREEDY])
def test_what_is_exported_embeds_the_same(tmp_path, options):
    module, variables = made(**options)
    assert build(describe(module)) == module
    wanted = jax.jit(make_model(module).embed)(variables, noise(2, 1600))
    save(tmp_path, Pretrained(module, variables, AUDIO, {}))
    read = load_pretrained(tmp_path)
    found = jax.jit(make_model(read.module).embed)(read.variables, noise(2, 1600))
    jax.tree.map(np.testing.assert_array_equal, tuple(found), tuple(wanted))
    assert wanted[1].shape[-1] == 6 * len(module.directions)
    assert make_model(module).linear_maps(variables["params"]) is None


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["z2", "c1"])
def test_a_layer_of_both_directions_or_of_modules(layer):
    module = CPC(ConvEncoder(8), GRU(6, 2), LinearPredictor(3, 8), TIME_DIRECTIONS, (2, 4))
    variables = random_variables(module, jnp.zeros((1, 1600)))
    shorter, own = end_at(module, variables, layer)
    z, c = shorter.apply(own, noise(1, 1600), method="embed")
    if layer == "z2":
        assert shorter.cuts == ()
        assert z.shape[1] == 80
        return
    for direction, half in zip(("context", "context_backward"), (c[..., :6], c[..., 6:]),
                               strict=True):  # fmt: skip
        frame = z if direction == "context" else z[:, ::-1]
        wanted = GRU(6).apply({"params": own["params"][direction]}, frame)
        wanted = wanted if direction == "context" else wanted[:, ::-1]
        np.testing.assert_allclose(half, wanted, atol=1e-6)


def test_contexts_of_both_directions_do_not_stream():
    module, variables = made(**BOTH)
    with pytest.raises(UserError, match="see a recording to its end"):
        next(stream_contexts(module, variables, iter([jnp.zeros((1, 3, 8))])))
    greedy, variables = made(**GREEDY)
    z = noise(1, 6, 8)
    c = [*stream_contexts(greedy, variables, iter([z[:, :4], z[:, 4:]]))]
    wanted = GRU(6).apply({"params": variables["params"]["context"]}, z)
    np.testing.assert_allclose(np.concatenate(c, axis=1), wanted, atol=1e-6)


@pytest.mark.parametrize(("options", "words"), [
    ({"directions": ("backward",)}, "choose forward, or forward,backward"),
    ({"directions": ()}, "choose forward, or forward,backward"),
    ({"cuts": (3, 2)}, "after the layers .3, 2.: name some of 1 to 5, ascending"),
    ({"cuts": (6,)}, "name some of 1 to 5"),
    ({"cuts": (0,)}, "name some of 1 to 5"),
])  # fmt: skip
def test_mistakes_are_sentences(options, words):
    with pytest.raises(UserError, match=words):
        CPC(ConvEncoder(8), GRU(6), LinearPredictor(3, 8), **options)
    with pytest.raises(UserError, match="is 7: an encoder of 5 layers"):
        module_ends(5, 7)
