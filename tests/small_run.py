"""A run directory of a few lines, whose numbers a test chooses."""

import json


def probe_row(features, accuracy, half=0.01, probe="linear", **more):
    return {
        "task": "classes", "data": "clothes", "unit": "image", "features": features,
        "probe": probe, "accuracy": accuracy, "low": accuracy - half, "high": accuracy + half,
        **more,
    }  # fmt: skip


def record(step, split, nats, **more):
    return {
        "step": step, "split": split, "rule": "one_per_sequence", "is_bound": True,
        "offsets": [2, 3], "n": [8, 8], "log_n": [2.08, 2.08], "offset_loss": [2.08 - nats] * 2,
        "bound": [nats - 0.5, nats + 0.5], "nats": nats, **more,
    }  # fmt: skip


def write_run(path, seed=0, step=20, nats=1.0, rows=(), log=(), **model):
    """Settings of the model are keywords; `log` are further records."""
    (path / "probes").mkdir(parents=True)
    config = {
        "seed": seed,
        "num_steps": 20,
        "log_every": len(model) + 1,  # differs where something else does, and is no column
        "model": {"norm": "none", **model},
        "probe": {"tasks": ["linear"] if rows else []},
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "environment.json").write_text(json.dumps({"command": "python -m x"}))
    train = {"seconds": 30.0, "steps_per_second": 2.0, "per_step_unit": "images", "per_step": 8}
    records = [record(step, "train", nats, **train), record(step, "test", nats), *log]
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if rows:
        (path / "probes" / "classes.json").write_text(json.dumps({"step": 20, "rows": list(rows)}))
        (path / "probes" / "done.json").write_text(json.dumps({"step": 20, "tasks": ["linear"]}))
    if step == 20:
        (path / "report.html").write_text("")
    return path
