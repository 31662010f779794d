"""Check that torch reads its own checkpoints with equal results.

    python -m tests.goldens.read_torch

Needs the extra torch, which the test environment lacks; prints nothing on success.
"""

import pathlib

import jax.numpy as jnp
import numpy as np

from cpc.models import load_cpc_audio, make_model


def main():
    folder = pathlib.Path(__file__).parent
    expected = np.load(folder / "checkpoint.npz")
    for name in ("checkpoint_hub.pt", "checkpoint_training.pt"):
        pretrained = load_cpc_audio(folder / name)
        model = make_model(pretrained.module)
        z, c = model.embed(pretrained.variables, jnp.asarray(expected["x"]))
        np.testing.assert_allclose(z, expected["z"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(c, expected["c"], rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    main()
