"""What the study of negatives measures of a run, against what the run itself recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.results.scores import read_records
from cpc.train import restore_params
from experiments.kinds.registry import read_contrastive
from experiments.studies import negatives as study
from experiments.train import run
from tests.experiments.test_clips import make_config
from tests.plans import problem_of


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    config = make_config(negatives__temperature=0.2, loss__cosine=True, data__window_samples=4000)
    config.num_steps, config.eval_every, config.save_every = 30, 30, 30
    config.evaluate.num_windows, config.probe.tasks = 128, ()
    run(config, str(folder))
    modality, config = read_contrastive(folder)
    data = modality.load_data(config, lambda line: None)
    problem = problem_of(config, data)
    arrays = jax.tree.map(jnp.asarray, restore_params(folder / "checkpoints")[0])
    params, extra = ({"objective": {}, **arrays[part]} for part in ("params", "extra"))
    arrays = {**arrays, "params": params, "extra": {"model": {}, **extra}}
    return folder, modality, config, data, problem, arrays


@pytest.mark.slow
def test_hard_negatives_are_those_that_the_run_counted(found):
    """Its pairwise accuracy is the fraction of negatives that the positive beats."""
    folder, _, _, _, problem, arrays = found
    hardness = study.measure_hardness(problem, arrays)
    record = [r for r in read_records(folder, []) if r["split"] == "test" and "series" not in r][-1]
    beaten = 1 - hardness["beat the positive"]["mean"]
    assert beaten == pytest.approx(np.mean(record["acc_pairwise"]), abs=0.02)
    near = hardness["have 1 / e of its weight"]
    assert near["mean"] > hardness["beat the positive"]["mean"]
    for row in near["rows"]:
        assert row["needed"] >= row["by_mean"]  # anchors differ


@pytest.mark.slow
def test_more_negatives_make_less_noise(found, monkeypatch):
    _, modality, config, data, _, arrays = found
    monkeypatch.setattr(study, "SIZES", (4, 16, 64, 10_000))
    rows = study.measure_gradient(modality, config, data, arrays)["rows"]
    assert [row["k"] for row in rows] == [4, 16, 64]  # and not more than there are
    noise = [row["of_mean"] for row in rows]
    assert noise[0] > 2 * noise[1] > 4 * noise[2] > 0
    assert rows[-1]["cosine"] > max(rows[0]["cosine"], 0.99)


@pytest.mark.slow
def test_no_more_are_drawn_than_anchors_have(found, monkeypatch):
    """Of the own sequence, that is, which a batch has eight of."""
    _, modality, config, data, _, arrays = found
    monkeypatch.setattr(study, "SIZES", (4, 16, 64))
    config = config.copy_and_resolve_references()
    config.negatives.rule = "own_sequence"
    num_latents = modality.geometry(config).num_latents
    rows = study.measure_gradient(modality, config, data, arrays)["rows"]
    assert [row["k"] for row in rows] == [k for k in (4, 16, 64) if k < num_latents]
    assert len(rows) < 3
    assert rows[-1]["of_mean"] > 0


@pytest.mark.slow
def test_labels_by_lag_and_windows(found, monkeypatch):
    _, _, config, _, problem, _ = found
    monkeypatch.setattr(study, "LABEL_BATCHES", 30)
    labels = study.measure_labels(config, problem)
    (one,) = labels.values()
    assert one["chance"][0] == 1
    assert one["chance"][1] > one["chance"][-1]
    widths = [window["width"] for window in one["windows"] if window["width"] is not None]
    assert widths == sorted(widths)


@pytest.mark.slow
def test_the_page_of_a_run(found):
    folder, _, _, _, problem, arrays = found
    page = study.write_study(
        folder,
        {
            "step": 30,
            "rule": "batch",
            "labels": {},
            "hardness": study.measure_hardness(problem, arrays),
            "gradient": {
                "rows": [{"k": 4, "of_mean": 0.5, "of_batches": 0.25, "cosine": 0.9}],
            },
        },
    )
    text = page.with_suffix(".md").read_text()
    assert "| 4 | 0.5 | 0.25 | 0.9 |" in text
