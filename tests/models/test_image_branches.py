"""CPC of images in gradient-isolated modules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import noise, random_variables

from cpc.models import (
    ImageCPC,
    LinearPredictor,
    MaskedRowConv,
    ResNet,
    SmallConvEncoder,
    Stage,
    end_at,
)
from cpc.types import UserError

GRID = (3, 3, 8, 8, 1)
SMALL = SmallConvEncoder((4, 6, 8), norm="layer")
RESNET = ResNet((Stage(1, 4), Stage(1, 6, 4)), norm="layer", pooled_stem=False, stem_width=4)


def make(encoder=SMALL, **options):
    module = ImageCPC(
        encoder,
        functools.partial(MaskedRowConv, 6, 1),
        functools.partial(LinearPredictor, 1, options.get("target_width") or encoder.widths[-1]),
        channels=1,
        **options,
    )
    return module, random_variables(module, jnp.zeros((1, *GRID)))


def energy(outputs):
    return jnp.tanh(outputs.predictions[:, :-1, :, 0] * outputs.z[:, 1:]).sum()


def is_own(keys, number, bounds):
    """Whether module `number` of the encoder's layers, cut at `bounds`, has the parameter."""
    is_last = number == len(bounds) - 1
    if keys[0] != "encoder":
        names = ("contexts", "predictors", "targets") if is_last else ()
        return keys[0].startswith((f"predictor_of_{number}", f"target_of_{number}", *names))
    layers = range(*bounds[number - 1 : number + 1])
    digits = [int(digit) for digit in keys[1] if digit.isdigit()]
    layer = 0 if keys[1] == "stem" else digits[0] if digits else None
    # The last norm belongs to the module after the last cut, unless that has no stage.
    return bool(layers) and is_last if layer is None else layer in layers


@pytest.mark.parametrize(("encoder", "cuts", "target_width"), [
    (SMALL, (1, 3), 5), (RESNET, (1,), None)
])  # fmt: skip
def test_losses_train_their_own_module_alone(encoder, cuts, target_width):
    """The gradients are those without isolation, of the module's own parameters, and 0 else."""
    module, variables = make(encoder, cuts=cuts, target_width=target_width)
    x, bounds, params = noise(2, *GRID), [0, *cuts, encoder.num_layers], variables["params"]

    def losses(params):
        outputs = module.apply({"params": params}, x)[::-1]
        return jnp.stack([energy(one) for one in outputs])

    def first_without_isolation(params):
        layer, _ = SMALL.upto(1, {})
        z = layer.apply({"params": params["encoder"]}, x.reshape(-1, 8, 8, 1)).reshape(2, 3, 3, -1)
        predictions = jnp.einsum("bijh,hkd->bijkd", z, params["predictor_of_1_down"]["W"]["kernel"])
        target = params["target_of_1_down"]
        return jnp.tanh(
            predictions[:, :-1, :, 0] * (z @ target["kernel"] + target["bias"])[:, 1:]
        ).sum()

    @jax.jit
    def differentiate(params):
        _, pull = jax.vjp(losses, params)
        found = jax.vmap(pull)(jnp.eye(len(cuts) + 1))[0]
        return found, jax.grad(first_without_isolation)(params) if encoder is SMALL else None

    found, wanted = differentiate(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        keys = [part.key for part in path]
        for number in range(1, len(bounds)):
            expected = is_own(keys, number, bounds)
            assert (np.abs(leaf[number - 1]).max() > 0) == expected, (number, keys)
    if wanted is not None:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a[0], b, rtol=1e-4, atol=1e-5), found, wanted
        )


def test_branches_and_shorter_parts_keep_the_cuts_within():
    module, variables = make(cuts=(1, 3), directions=("down", "left"))
    assert module.branches == [(n, side) for n in (3, 2, 1) for side in ("down", "left")]
    shorter, _ = end_at(module, variables, "z2")
    assert (shorter.cuts, shorter.encoder.widths) == ((1,), (4, 6))
    with pytest.raises(UserError, match="1 to 3"):
        make(cuts=(4,))
