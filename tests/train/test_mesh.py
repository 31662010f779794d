from unittest import mock

import jax
import numpy as np
import pytest

from cpc import train
from cpc.types import UserError


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about a machine without accelerators")
@pytest.mark.parametrize(("kind", "error", "said"), [
    ("gpu", None, r"No gpu device was found here: choose 'auto', .*jax\[cuda\]'"),
    ("tpu", None, r"No tpu device was found here: choose 'auto', .*jax\[tpu\]'"),
    ("auto", RuntimeError("?"), "No device was found here: pip"),  # JAX_PLATFORMS=cuda, no GPU
    ("gpu", AssertionError(), "JAX_PLATFORMS"),
])  # fmt: skip
def test_missing_device_is_reported(kind, error, said, monkeypatch):
    if error:
        monkeypatch.setattr(jax, "devices", mock.Mock(side_effect=error))
    with pytest.raises(UserError, match=said):
        train.choose_devices(kind)


def test_mesh_sizes():
    assert train.choose_devices("cpu") == train.choose_devices() == jax.devices()
    with pytest.raises(UserError, match="'gpus'"):
        train.choose_devices("gpus")
    assert train.make_mesh().size == 8
    assert train.make_mesh(3).size == 3
    assert train.make_mesh(devices=jax.devices()[4:]).devices.tolist() == jax.devices()[4:]
    for wrong in (0, 9):
        with pytest.raises(UserError, match=f"{wrong} devices .* 8 are here"):
            train.make_mesh(wrong)


def test_batch_is_split_by_rows():
    mesh = train.make_mesh(4)
    x = np.arange(24.0, dtype=np.float32).reshape(8, 3)
    batch = train.put_batch({"x": x, "deep": {"y": np.arange(8)}}, mesh)
    assert batch["x"].sharding == train.batch_sharding(mesh)
    np.testing.assert_array_equal(batch["x"], x)
    shards = [np.asarray(shard.data) for shard in batch["x"].addressable_shards]
    np.testing.assert_array_equal(shards, x.reshape(4, 2, 3))
    assert batch["deep"]["y"].shape == (8,)
    with pytest.raises(UserError, match=r"12 .* 8 devices"):
        train.put_batch({"x": np.zeros((12, 2))}, train.make_mesh(8))
    train.check_batch_size(16, train.make_mesh(8))
