"""The s3prl upstream of an export, with a stand-in for torch.

docs/released_weights.md names the versions of torch and s3prl that were tried.
"""

import importlib
import importlib.util
import pathlib
import sys
import types

import jax
import numpy as np
import pytest

from cpc import models
from cpc.data.recordings import bring_to_loudness
from cpc.types import UserError
from experiments.export.__main__ import write_expert
from tests import fake_torch


class Tensor(fake_torch.Tensor):
    device, cpu = "cpu", fake_torch.Tensor.detach
    shape = property(lambda self: self.array.shape)

    def to(self, device):
        assert device == "cpu"
        return self


class Module:
    def __call__(self, *args):
        return self.forward(*args)


@pytest.fixture
def torch(monkeypatch):
    nn = types.SimpleNamespace(Module=Module)
    made = types.SimpleNamespace(nn=nn, from_numpy=Tensor)
    monkeypatch.setitem(sys.modules, "torch", made)


def export(folder, context_width, rms, padding="causal"):
    encoder = models.ConvEncoder(8, padding=padding)
    module = models.CPC(encoder, models.GRU(context_width), models.LinearPredictor(2, 8))
    variables = models.make_model(module).init(jax.random.key(0), {"x": np.zeros((1, 1600), "f")})
    given = {"kind": "audio", "shape": [1600], "rms": rms, "sample_rate_hz": 16_000}
    models.save(folder, models.Pretrained(module, variables, given))
    write_expert(folder, given)


def entry(folder, monkeypatch, package):
    """Return hubconf as imported by torch.hub or as part of s3prl."""
    sys.modules.pop("expert", None)
    if package:
        (folder.parent / "__init__.py").touch()
        monkeypatch.syspath_prepend(folder.parent)
        (folder / "__init__.py").touch()
        return importlib.import_module(f"{folder.name}.hubconf")
    monkeypatch.syspath_prepend(folder)
    spec = importlib.util.spec_from_file_location("hubconf.py", folder / "hubconf.py")
    hubconf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hubconf)
    return hubconf


@pytest.mark.parametrize(("package", "rms"), [(False, None), (True, 0.05)])
def test_features_equal_the_model(torch, tmp_path, monkeypatch, package, rms):
    folder = tmp_path / f"exported{package}"
    export(folder, 8, rms)
    upstream = entry(folder, monkeypatch, package).cpc_jax()
    assert upstream.get_downsample_rates("hidden_states") == 160
    rng = np.random.default_rng(0)
    wavs = [0.3 * rng.standard_normal(n).astype("f") for n in (3300, 700, 90)]
    before = [wav.copy() for wav in wavs]
    features = upstream([Tensor(wav) for wav in wavs])
    z, c = features["hidden_states"]
    assert z.shape == c.shape == (3, 20, 8)
    assert (z is features["z"], c is features["c"]) == (True, True)
    embed = models.load(folder)
    for row, wav in enumerate(wavs):
        np.testing.assert_array_equal(wav, before[row])
        frames = max(1, len(wav) // 160)
        x = wav if rms is None else bring_to_loudness(wav, rms)
        for found, expected in zip((z, c), embed(x, normalize=False), strict=True):
            np.testing.assert_allclose(found.array[row, :frames], expected, rtol=1e-4, atol=1e-5)
            assert not found.array[row, frames:].any()


def test_longest_of_a_batch_is_continued_mirrored(torch, tmp_path, monkeypatch):
    export(tmp_path / "exported", 8, None, padding="same")
    upstream = entry(tmp_path / "exported", monkeypatch, False).cpc_jax()
    wav = 0.3 * np.random.default_rng(0).standard_normal(2560).astype("f")
    alone, _ = upstream([Tensor(wav)])["hidden_states"]  # 2560 samples fill its array
    own, _ = models.load(tmp_path / "exported")(wav, normalize=False)
    np.testing.assert_allclose(alone.array[0], own, rtol=1e-4, atol=1e-5)


def test_released_checkpoint_as_ckpt(torch, tmp_path, monkeypatch):
    golden = pathlib.Path(__file__).parents[1] / "goldens"
    export(tmp_path / "exported", 4, None)
    upstream = entry(tmp_path / "exported", monkeypatch, False).cpc_jax(
        ckpt=str(golden / "checkpoint_weights.npz")
    )
    expected = np.load(golden / "checkpoint.npz")
    z, c = upstream([Tensor(x) for x in expected["x"]])["hidden_states"]
    upstream = entry(tmp_path / "exported", monkeypatch, False).cpc_jax()
    features = upstream([Tensor(np.zeros(1600, "f"))])  # with unequal widths, only c
    assert [one.shape for one in features["hidden_states"]] == [(1, 10, 4)]
    assert features["z"].shape == (1, 10, 8)
    # Beyond the end torch pads with zeros, this code mirrors.
    np.testing.assert_allclose(z.array[:, :-1], expected["z"][:, :-1], atol=1e-5)
    np.testing.assert_allclose(c.array[:, :-1], expected["c"][:, :-1], atol=1e-5)


def test_models_of_other_kinds_are_rejected(tmp_path):
    with pytest.raises(UserError, match=r"s3prl .*image"):
        write_expert(tmp_path, {"kind": "image"})
