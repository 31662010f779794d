"""A minimal run directory whose numbers are chosen by a test."""

from cpc.files import write_sealed
from cpc.results import Score, write_scores
from experiments.command.run_dir import record_state
from tests.fake_run import write_records


def probe_score(features, accuracy, half=0.01, method="linear", **more):
    return Score(
        "classes", "clothes", "image", features, method, "accuracy", accuracy,
        low=accuracy - half, high=accuracy + half, step=20,
    )._replace(**more)  # fmt: skip


def record(step, split, nats, **more):
    return {
        "step": step, "split": split, "rule": "one_per_sequence", "is_bound": True,
        "offsets": [2, 3], "n": [8, 8], "log_n": [2.08, 2.08], "offset_loss": [2.08 - nats] * 2,
        "bound": [nats - 0.5, nats + 0.5], "nats": nats, **more,
    }  # fmt: skip


def write_run(path, seed=0, step=20, nats=1.0, scores=(), log=(), **model):
    """Write a run; keywords are model settings, `log` contains further records."""
    (path / "probes").mkdir(parents=True)
    config = {
        "seed": seed,
        "num_steps": 20,
        "log_every": len(model) + 1,  # differs between configs but is not a column
        "model": {"norm": "none", **model},
        "probe": {"tasks": ["linear"] if scores else []},
    }
    write_sealed(path / "config.json", config)
    write_sealed(path / "environment.json", {"command": "python -m x"})
    train = {"seconds": 30.0, "steps_per_second": 2.0, "per_step_unit": "images", "per_step": 8}
    train["num_steps"] = 20
    write_records(path, [record(step, "train", nats, **train), record(step, "test", nats), *log])
    if scores:
        write_scores(path, [score._replace(seed=seed) for score in scores])
        write_sealed(path / "probes" / "done.json", {"step": 20, "tasks": ["linear"]})
    if step == 20:
        (path / "report.html").write_text("")
    progress = {"step": step, "num_steps": 20, "steps_per_second": 2.0}
    progress["nats"] = f"{nats:.2f} (k = 2–3)"
    record_state(path, "finished" if step == 20 else "running", **progress)
    return path
