"""Advantages and losses compared with rlax and distrax."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.rl import entropy, gae, log_prob, policy_gradient_loss, ppo_loss

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

META, CASES = load_golden("policy_losses.json")


@pytest.mark.parametrize("name", CASES)
def test_equals_rlax(name):
    params, inputs, outputs = CASES[name]
    clip, of_gae = params["clip"], {key: params[key] for key in ("discount", "lambda_")}
    arrays = {key: jnp.asarray(value) for key, value in inputs.items()}
    logits, old_logits, actions = (arrays.pop(key) for key in ("logits", "old_logits", "actions"))
    advantages, _ = gae(**arrays, **of_gae)

    def mean_ppo(logits):
        old = log_prob(old_logits, actions)
        return ppo_loss(log_prob(logits, actions), old, advantages, clip).mean()

    def mean_policy_gradient(logits):
        return policy_gradient_loss(log_prob(logits, actions), advantages).mean()

    found = lambda logits: {  # noqa: E731
        "advantages": advantages,
        "log_probs": log_prob(logits, actions),
        "entropy": entropy(logits),
        "ppo": mean_ppo(logits),
        "ppo_gradient": jax.grad(mean_ppo)(logits),
        "policy_gradient": mean_policy_gradient(logits),
        "policy_gradient_gradient": jax.grad(mean_policy_gradient)(logits),
    }
    found = jax.jit(found)(logits)
    assert found.keys() == outputs.keys()
    tolerance = META["tolerance"]
    for key, value in found.items():
        np.testing.assert_allclose(
            value, outputs[key], tolerance["f32_rtol"], tolerance["f32_atol"], err_msg=key
        )
