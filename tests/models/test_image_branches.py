"""CPC of images in modules that no gradient passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import (
    ImageCPC,
    LinearPredictor,
    MaskedRowConv,
    Pretrained,
    ResNet,
    SmallConvEncoder,
    Stage,
    end_at,
    load,
    make_model,
    save,
)
from cpc.models.description import build, describe
from cpc.types import UserError

GRID = {"kind": "image", "shape": [3, 3, 8, 8, 1]}
SMALL = SmallConvEncoder((4, 6, 8), norm="layer")
STAGES = (Stage(1, 4), Stage(1, 6), Stage(1, 8))
RESNET = ResNet(STAGES, norm="layer", pooled_stem=False, stem_width=4)


def made(encoder=SMALL, **options):
    module = ImageCPC(
        encoder,
        functools.partial(MaskedRowConv, 6, 1),
        functools.partial(LinearPredictor, 1, options.get("target_width") or 8),
        channels=1,
        **options,
    )
    return module, random_variables(module, jnp.zeros((1, *GRID["shape"])))


def noise(number=2, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(number, *GRID["shape"])), "f")


def energy(outputs):
    return jnp.tanh(outputs.predictions[:, :-1, :, 0] * outputs.z[:, 1:]).sum()


@pytest.mark.slow
@pytest.mark.parametrize("target_width", [None, 5])
@pytest.mark.parametrize(("encoder", "cuts"), [
    (SMALL, (1, 2)), (SMALL, (2, 3)), (RESNET, (1, 2)),
])  # fmt: skip
def test_no_gradient_passes_from_a_module_to_another(encoder, cuts, target_width):
    module, variables = made(encoder, cuts=cuts, target_width=target_width)
    x, bounds = noise(), [0, *cuts, 3]

    @functools.partial(jax.jit, static_argnums=1)
    def gradient_of(params, branch):
        return jax.grad(lambda p: energy(module.apply({"params": p}, x)[branch]))(params)

    for branch, (number, direction) in enumerate(module.branches):
        layers = range(*bounds[number - 1 : number + 1])
        own = {f"predictor_of_{number}_{direction}", f"target_of_{number}_{direction}"}
        if number == len(cuts) + 1:
            own = {f"{part}_{direction}" for part in ("contexts", "predictors", "targets")}
        gradient = gradient_of(variables["params"], branch)
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
            part, name = path[0].key, path[1].key
            is_own = part in own
            if part == "encoder":
                digits = [int(digit) for digit in name if digit.isdigit()]
                # The last norm belongs to what follows the last cut, though no stage may be left.
                layer = {"stem": 0}.get(name, digits[0] if digits else None)
                is_own = layer in layers if layer is not None else bool(layers) and number == 3
            assert (np.abs(leaf).max() > 0) == is_own, (number, part, name)


@pytest.mark.slow
def test_gradients_within_a_module_are_those_of_the_module_alone():
    module, variables = made(cuts=(2,))
    params, x = variables["params"], noise()
    together = jax.grad(lambda p: sum(energy(one) for one in module.apply({"params": p}, x)))(
        params
    )
    alone = ImageCPC(
        SmallConvEncoder((4, 6), norm="layer"),
        Nothing,
        functools.partial(LinearPredictor, 1, 6),
        channels=1,
    )
    names = ("conv0", "conv1", "norm0", "norm1")

    def pick(tree):
        encoder = {name: tree["encoder"][name] for name in names}
        return {"encoder": encoder, "predictors_down": tree["predictor_of_1_down"]}

    wanted = jax.grad(lambda own: energy(alone.apply({"params": own}, x)[0]))(pick(params))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), pick(together), wanted
    )


class Nothing(MaskedRowConv):
    """No context: the latents themselves."""

    def __call__(self, z):
        """Return the latents."""
        return z


@pytest.mark.slow
def test_one_module_is_what_there_was():
    module, variables = made()
    assert {*variables["params"]} == {"encoder", "contexts_down", "predictors_down"}
    z = SMALL.apply({"params": variables["params"]["encoder"]}, noise().reshape(-1, 8, 8, 1))
    outputs = module.apply(variables, noise())[0]
    np.testing.assert_array_equal(outputs.z, z.reshape(2, 3, 3, 8))


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [SMALL, RESNET])
def test_what_is_exported_embeds_the_same(tmp_path, encoder):
    module, variables = made(encoder, cuts=(1, 3), directions=("down", "left"))
    assert describe(build(describe(module))) == describe(module)
    wanted = jax.jit(make_model(module).embed)(variables, noise())
    save(tmp_path, Pretrained(module, variables, GRID, {}))
    for found, one in zip(load(tmp_path)(noise()), wanted, strict=True):
        np.testing.assert_array_equal(found, one)
    shorter, own = end_at(module, variables, "z2")
    assert shorter.cuts == (1,)
    assert shorter.apply(own, noise(), method="encode").shape[-1] == 6


def test_cuts_that_there_are_not():
    with pytest.raises(UserError, match="name some of 1 to 3, ascending"):
        made(cuts=(4,))
