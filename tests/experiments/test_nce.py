"""Theory as experiments: the quick form end to end, and its numbers against other sources."""

import contextlib
import doctest
import importlib
import io
import json
import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from markupsafe import escape

from cpc.types import UserError

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
_, GRADIENTS = load_golden("nce_mle_gradient.json")
_, IDENTITY = load_golden("infonce_identity.json")
_, MARGINS = load_golden("m_eff.json")


@pytest.fixture(scope="module")
def experiment():
    """The experiment as a module; its flags are parsed, as absl wants."""
    from absl import flags

    from experiments.studies.nce import __main__ as nce

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    return nce


def run(experiment, workdir, quick=True):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        experiment.run(str(workdir), quick)
    return said.getvalue()


@pytest.fixture(scope="module")
def quick(experiment, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "nce"
    return workdir, run(experiment, workdir)


@pytest.mark.whole
@pytest.mark.slow
def test_everything_agrees_and_the_page_says_so(quick):
    workdir, said = quick
    findings = json.loads((workdir / "nce.json").read_text())
    assert len(findings) == 9
    page = (workdir / "report.html").read_text()
    for name, one in findings.items():
        wrong = [row for row in one["rows"] if not row["agrees"]]
        assert not wrong, f"{name}: {wrong}"
        assert all(row["reason"] for row in one["rows"])
        assert (workdir / "figures" / f"{name}.png").stat().st_size > 10_000
        assert f'alt="{one["title"]}"' in page
    assert "They do not agree" not in page
    assert all(escape(one["claim"]) in page for one in findings.values())
    assert said.splitlines()[-1] == f"report: {workdir / 'report.html'}"
    assert "NO" not in said


@pytest.mark.slow
def test_the_same_command_again_measures_only_what_is_missing(experiment, quick, monkeypatch):
    workdir, _ = quick
    findings = json.loads((workdir / "nce.json").read_text())
    calls = []
    names = experiment.experiments(True)
    measured = {name: lambda name=name: calls.append(name) or findings[name] for name in names}
    monkeypatch.setattr(experiment, "experiments", lambda quick: measured)
    left_out = {name: one for name, one in findings.items() if name != "identity"}
    (workdir / "nce.json").write_text(json.dumps(left_out))
    run(experiment, workdir)
    assert calls == ["identity"]
    assert json.loads((workdir / "nce.json").read_text()) == findings


@pytest.mark.slow
def test_a_finding_with_a_changed_digit_is_measured_again(experiment, quick, tmp_path, monkeypatch):
    findings = json.loads((quick[0] / "nce.json").read_text())
    calls = []
    monkeypatch.setattr(
        experiment,
        "experiments",
        lambda quick: {
            name: lambda name=name: calls.append(name) or findings[name] for name in findings
        },
    )
    damaged = json.loads(json.dumps(findings))
    damaged["identity"]["rows"][0]["measured"] += 1e-3
    workdir = tmp_path / "nce"
    shutil.copytree(quick[0], workdir)
    (workdir / "nce.json").write_text(json.dumps(damaged))
    run(experiment, workdir)
    assert calls == ["identity"]
    assert json.loads((workdir / "nce.json").read_text()) == findings


def test_a_disagreement_is_named():
    from experiments.studies.nce.findings import check, finding, format_table, verdict
    from experiments.studies.nce.page import numbers_table

    rows = [check("one", 1.0, 1.0, 0.1, "rounding"), check("nothing", np.nan, 0.0, 9.9, "rounding")]
    found = finding("Two", "1 and 0", "1 and NaN", rows, {})
    assert [r["agrees"] for r in rows] == [True, False]
    assert verdict(found) == "DISAGREES (nothing)"
    assert numbers_table(found).strong == [1]
    assert format_table({"two": found}).splitlines()[-1].endswith("NO")


@pytest.mark.parametrize(
    ("relation", "agree"),
    [("=", [True, True, False]), ("<=", [True, True, False]), (">=", [True, True, True])],
)
def test_relations(relation, agree):
    from experiments.studies.nce.findings import check

    measured = (1.0, 1.09, 1.11)
    rows = [check("x", value, 1.0, 0.1, "rounding", relation) for value in measured]
    assert [r["agrees"] for r in rows] == agree


@pytest.mark.parametrize("name", ["V10", "V4", "V30"])
def test_gradient_tends_to_the_likelihoods(name):
    """T2: relative errors at k = 1 to 10,000; below 1e-3 float32 leaves two digits."""
    from experiments.studies.nce.noise import limit_constant, relative_errors

    _, inputs, expected = GRADIENTS[name]
    theta, data, noise = (np.array(inputs[key]) for key in ("theta", "pd", "q"))
    errors = relative_errors(theta, data, noise, inputs["k"])
    np.testing.assert_allclose(errors, expected["relative_error"], rtol=1e-3, atol=3e-6)
    constant = limit_constant(theta, data, noise)
    assert constant == pytest.approx(1e4 * expected["relative_error"][-1], rel=0.1)


def test_noise_that_is_the_model():
    """T13: k / (k + 1) of the likelihood's gradient where stopped; a constant where not."""
    from experiments.studies.nce.noise import nce_ascent

    _, inputs, expected = GRADIENTS["V10"]
    theta, data = (jnp.asarray(inputs[key], jnp.float32) for key in ("theta", "pd"))
    likelihood = np.array(expected["mle_gradient"])
    shares, constants = expected["self_noise_ratio"], expected["self_noise_objective"]
    for k, share, constant in zip(inputs["k"][:4], shares, constants, strict=False):
        value, gradient = nce_ascent(theta, theta, data, float(k), "stopped")
        np.testing.assert_allclose(gradient, share * likelihood, atol=2e-6)
        assert float(value) == pytest.approx(constant, rel=1e-5)
        value, gradient = nce_ascent(theta, theta, data, float(k), "through")
        np.testing.assert_allclose(gradient, 0.0, atol=2e-6)
        assert float(value) == pytest.approx(constant, rel=1e-5)


@pytest.mark.slow
def test_fitted_means_of_the_three_modes():
    """T12: fixed and frozen noise find the mean at the rate of theory, the third stays at 0."""
    from experiments.studies.nce.noise import fit_means, fixed_noise_deviation

    for mode, deviation in (("fixed", fixed_noise_deviation(0.3, 4)), ("stopped", np.sqrt(1.25))):
        fits = np.asarray(fit_means(jax.random.key(1), mode, 1000, 4, 200, 0.3))
        expected = deviation / np.sqrt(1000)
        assert fits.mean() == pytest.approx(0.3, abs=4 * expected / np.sqrt(200))
        assert fits.std() == pytest.approx(expected, rel=4 / np.sqrt(400))
    fits = np.asarray(fit_means(jax.random.key(1), "through", 1000, 4, 200, 0.3))
    np.testing.assert_allclose(fits, 0.0, atol=1e-6)
    # Noise that is the data's own law, and so much of any noise that the likelihood is left.
    assert fixed_noise_deviation(0.0, 4) == pytest.approx(np.sqrt(1 + 1 / 4), rel=1e-9)
    assert fixed_noise_deviation(0.3, 10**7) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("name", IDENTITY)
def test_identity_of_every_table(name):
    from experiments.studies.nce.bound import information_seen

    _, inputs, expected = IDENTITY[name]
    for i, n in enumerate(inputs["N"]):
        seen = information_seen(np.array(inputs["P"]), n)
        assert seen["bound"] == pytest.approx(expected["bound"][i], abs=2e-6)
        assert seen["identity"] == pytest.approx(expected["I_minus_KL"][i], abs=1e-12)
        assert seen["usual"] == pytest.approx(expected["paper_bound"][i], abs=1e-12)


@pytest.mark.parametrize(
    ("accuracy", "independent", "copies", "nats"),
    [(0.6, 1, 999, 0.500), (0.6, 999, 1, 0.02012), (0.95, 7, 128, 0.571), (0.95, 5, 2, 0.4975)],
)
def test_dependent_negatives(accuracy, independent, copies, nats):
    """T21: above I of .02014 and of .49463 wherever negatives repeat."""
    from experiments.studies.nce.bound import best_with_repeats

    found = best_with_repeats(accuracy, independent, copies)
    assert found == pytest.approx(nats, abs=6e-4 if nats > 0.1 else 6e-6)


@pytest.mark.parametrize(
    ("convention", "published"),
    [
        ("log q off all, hits kept", (0, 0, 0)),
        ("log q off all, hits removed", (0.0032, 0.0095, 0.0133)),
        ("log Kq off negatives, hits removed", (0.1323, 0.1012, 0.0779)),
        ("log Kq off negatives, hits kept", (0.1161, 0.0717, 0.0443)),
        ("no correction", (0.0901, 0.1294, 0.1505)),
    ],
)
def test_sampled_softmax_bias(convention, published):
    """T18, at K = 2, 4 and 6: samples by their counts, not in all their orders."""
    from experiments.studies.nce.sampled import DATA, NOISE, softmax_bias

    found = softmax_bias(DATA, NOISE, (2, 4, 6), convention)
    np.testing.assert_allclose(np.abs(found).max(1), published, atol=6e-5)


def test_counts_are_those_of_all_samples():
    from experiments.studies.nce.enumerate import count_draws

    q = np.array([0.2, 0.3, 0.5])
    counts, probability = count_draws(3, q)
    draws = np.array(np.meshgrid(*[range(3)] * 3)).reshape(3, -1).T
    seen = {}
    for draw in draws:
        key = tuple(np.bincount(draw, minlength=3))
        seen[key] = seen.get(key, 0) + q[draw].prod()
    assert seen.keys() == {tuple(row) for row in counts}
    np.testing.assert_allclose([seen[tuple(row)] for row in counts], probability, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", MARGINS)
def test_losses_at_the_threshold(name):
    """T8: InfoNCE and the hinge it rounds off, in the same unit."""
    from experiments.studies.nce.hardness import losses_at

    _, inputs, expected = MARGINS[name]
    tau, num, beta = inputs["tau"], inputs["K"], inputs["beta"]
    soft, hinge = losses_at(np.array(inputs["alpha"]), beta, tau, num)
    atol = 3e-7 / tau * np.abs(inputs["alpha"]).max()
    np.testing.assert_allclose(soft, expected["loss"], rtol=2e-6, atol=atol)
    np.testing.assert_allclose(hinge, expected["hinge"], rtol=2e-6, atol=atol)


@pytest.mark.parametrize("name", ["nce.findings", "nce.enumerate"])
def test_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(f"experiments.studies.{name}"))
    assert (failed, tried > 0) == (0, True)


@pytest.mark.slow
def test_quick_and_full_do_not_share_a_directory(experiment, quick):
    with pytest.raises(UserError, match="quick is True there and False here"):
        run(experiment, quick[0], quick=False)


def test_no_workdir(experiment):
    with pytest.raises(UserError, match="--workdir is required"):
        experiment.run(None, True)


def test_a_page_without_findings_is_a_sentence(tmp_path):
    from experiments.studies.nce.page import write_theory_report

    with pytest.raises(UserError, match=r"has no nce\.json"):
        write_theory_report(tmp_path)


@pytest.mark.slow
def test_the_command_explains_itself():
    done = commands.run("experiments.studies.nce", "--help")
    for words in ("--workdir", "--quick", "cpc nce --workdir runs/nce"):
        assert words in done.stdout
