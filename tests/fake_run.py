"""A run directory with plausible numbers and without training."""

import pathlib
import re
import shutil

import numpy as np

from cpc.files import write_arrays, write_sealed
from cpc.report import engine
from cpc.results import Score, write_scores
from cpc.results.score import read_records
from cpc.train.metrics import JsonlWriter

OFFSETS = list(range(1, 13))
NUM_POINTS = 200


def draw_nothing(monkeypatch):
    """Replace figure rendering, which takes a second per figure."""
    monkeypatch.setattr(engine, "to_png", lambda *_: b"a figure")


def fake_record(step, rule, is_bound, candidates, information, rng):
    """Return a record whose offsets range from well to badly predicted, below log N."""
    k = np.array(OFFSETS)
    log_n = np.full(12, np.log(candidates))
    wanted = information * (1 - np.exp(-step / 700)) * np.exp(-(k - 1) / 6) + 0.25
    bound = np.minimum(wanted + 0.03 * rng.standard_normal(12), log_n - 0.01)
    share = bound / log_n
    chance = step == 0
    state = np.select(
        [np.full(12, chance), share > 0.97, share > 0.85], ["chance", "saturated", "warn"], "fine"
    )
    grown = 1 - np.exp(-step / 500)
    return {
        "step": step, "split": "test", "rule": rule, "is_bound": is_bound,
        "loss": float((log_n - bound).sum()), "offsets": OFFSETS, "n": [candidates] * 12,
        "log_n": log_n.tolist(), "offset_loss": (log_n - bound).tolist(), "bound": bound.tolist(),
        "bound_low": (bound - 0.12).tolist(), "bound_high": (bound + 0.12).tolist(),
        "acc_top1": np.clip(0.9 * np.exp(bound - log_n) + 1 / candidates, 0, 1).tolist(),
        "chance_top1": [1 / candidates] * 12, "acc_pairwise": (1 - 0.5 * np.exp(-bound)).tolist(),
        "state": state.tolist(), "std_z": 0.4 + 0.2 * grown, "rank_z": 30 + 20 * grown,
        "std_c": 0.2 + 0.2 * grown, "rank_c": 10 + 50 * (1 - np.exp(-step / 900)),
        "another_key": "ignored",
    }  # fmt: skip


def write_records(workdir, records, start_step=0, identity=None):
    writer = JsonlWriter(workdir / "metrics.jsonl", start_step, identity)
    for record in records:
        writer.write(record)
    writer.close()


def untimed_records(workdir):
    """Return the records of metrics.jsonl without time and speed, which vary between runs."""
    clock = ("seconds", "steps_per_second")
    return [{k: v for k, v in r.items() if k not in clock} for r in read_records(workdir, [])]


def run_and_resume(config, folder, monkeypatch, capsys):
    """Run a config, and a copy without its last checkpoint again; return both folders."""
    from experiments.train import run

    whole, parts = folder / "whole", folder / "parts"
    run(config, str(whole), "cpu")
    assert (whole / "report.html").exists()
    shutil.copytree(whole, parts)
    *_, first, last = sorted(int(path.name) for path in (parts / "checkpoints").iterdir())
    shutil.rmtree(parts / "checkpoints" / str(last))
    capsys.readouterr()
    draw_nothing(monkeypatch)  # figures were drawn for the first page
    run(config, str(parts), "cpu")
    assert f"resuming from step {first}" in capsys.readouterr().out
    assert untimed_records(parts) == untimed_records(whole)
    return whole, parts


def remove_seals(workdir):
    path = workdir / "metrics.jsonl"
    path.write_text(re.sub(r', "crc32": "\w{8}"', "", path.read_text()))


def write_metrics(workdir, num_steps, rng):
    records = []
    for step in range(100, num_steps + 1, 50):
        record = fake_record(step, "batch", False, 1024, 4.6, rng) | {"split": "train"}
        for key in ("std_z", "rank_z", "std_c", "rank_c"):
            del record[key]
        record |= {"learning_rate": 5e-4 * min(1, step / 300), "gradient_norm": 1.5 + rng.random()}
        record |= {"steps_per_second": 6.5 + 0.3 * rng.standard_normal(), "seconds": step / 6.5}
        record |= {"per_step": 0.003, "per_step_unit": "h audio", "num_steps": num_steps}
        records.append(record)
    for step in range(0, num_steps + 1, 250):
        records.append(fake_record(step, "batch", False, 1024, 4.4, rng))
        records.append(fake_record(step, "one_per_sequence", True, 64, 4.2, rng))
    write_records(workdir, records)


def probe_scores():
    phones = Score(
        "phones", "festvox-ru", "frame", "c", "linear", "accuracy", 0.0, chance=0.213,
        step=2000, num_train=502_446, num_test=93_926, setting="l2 1e-05",
    )  # fmt: skip
    speakers = phones._replace(task="speakers", data="voices", chance=0.26)
    by_frame = {("c", "linear"): 0.562, ("c", "hidden"): 0.634, ("z", "linear"): 0.441,
                ("mfcc", "linear"): 0.614, ("random c", "linear"): 0.351}  # fmt: skip
    scores = [
        phones._replace(features=features, method=method, value=accuracy)
        for (features, method), accuracy in by_frame.items()
    ]
    of_speakers = {"c": (0.871, 0.992), "mfcc": (0.713, 0.961), "random c": (0.311, 0.452)}
    for features, (frame, utterance) in of_speakers.items():
        one = speakers._replace(features=features, value=frame)
        scores += [one, one._replace(value=utterance, unit="utterance", num_test=93)]
    return [s._replace(low=s.value - 0.012, high=min(1.0, s.value + 0.012)) for s in scores]


def write_speaker_map(folder, rng):
    speaker = np.arange(NUM_POINTS) % 10
    features = np.float32(rng.standard_normal((NUM_POINTS, 64)))
    names = np.array([f"voice-{n}" for n in range(10)])
    write_arrays(folder / "speaker_map.npz", features=features, speaker=speaker, names=names)


def write_fake_run(workdir: pathlib.Path, num_steps: int = 2000) -> pathlib.Path:
    rng = np.random.default_rng(0)
    workdir.mkdir(parents=True, exist_ok=True)
    config = {
        "name": "audio_voices", "seed": 0, "data": {"source": "voices"},
        "model": {"context": "gru", "context_width": 128}, "negatives": {"rule": "batch"},
    }  # fmt: skip
    environment = {
        "jax": "0.10.2", "devices": ["TFRT_CPU_0"], "git_revision": "74d1b99c0ffee0123456789",
        "command": "cpc train --config audio_voices --workdir runs/voices",
    }  # fmt: skip
    write_sealed(workdir / "config.json", config)
    write_sealed(workdir / "environment.json", environment)
    (workdir / "skipped.txt").write_text("1004/is.flac: no samples\n1009/<b>.flac: no samples\n")
    write_metrics(workdir, num_steps, rng)
    write_scores(workdir, probe_scores())
    write_speaker_map(workdir / "probes", rng)
    return workdir


def add_records(workdir, *records):
    write_records(workdir, records, start_step=10**9)
