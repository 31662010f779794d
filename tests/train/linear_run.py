"""A complete training of a linear model, for tests of the loop; also a command."""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from cpc import train
from cpc.train.step import make_launch


def loss_fn(params, extra, batch, rng):
    noise = 0.01 * jax.random.normal(rng, batch["y"].shape)
    errors = batch["x"] @ params["layer"]["kernel"] + params["layer"]["bias"] - batch["y"] + noise
    loss = jnp.mean(jnp.square(errors))
    extra = {"mean": 0.9 * extra["mean"] + 0.1 * jnp.mean(batch["x"], axis=0)}
    return loss, (extra, {"per_k": jnp.stack([loss, 2 * loss]), "seen": len(batch["y"])})


def new_state(tx, seed=0):
    params = {"layer": {"kernel": jnp.array([0.5, -0.5, 0.25]), "bias": jnp.zeros(())}}
    zeros = {"per_k": jnp.zeros(2), "seen": jnp.zeros(())}
    extra = {"mean": jnp.zeros(3)}
    return train.init_state(params, extra, tx, jax.random.key(seed), zeros, ema=True)


def batch_of_step(step, rows=16):
    rng = np.random.default_rng((7, step))
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    return {"x": x, "y": (x @ np.float32([1.0, 2.0, 3.0]) + 0.5).astype(np.float32)}


def batches(mesh, *, nan_at=None):
    def from_step(start):
        step = start
        while True:
            batch = batch_of_step(step)
            if step == nan_at:
                batch["x"][3, 1] = np.nan
            yield train.put_batch(batch, mesh)
            step += 1

    return from_step


def evaluate(state):
    batch = batch_of_step(10**6)
    kernel, bias = state.params["layer"]["kernel"], state.params["layer"]["bias"]
    return [{"loss": float(jnp.mean(jnp.square(batch["x"] @ kernel + bias - batch["y"])))}]


@functools.cache
def make_step(loss, num_devices, steps_per_launch):
    """Return optimizer and compiled step, shared by all runs of a test process."""
    tx, _ = train.make_optimizer(learning_rate=0.05, warmup_steps=3, num_steps=100, clip_norm=10.0)
    step = train.make_train_step(loss, tx, ema_decay=0.9)
    state = train.replicate(new_state(tx), train.make_mesh(num_devices))
    return tx, train.jit_step(make_launch(step) if steps_per_launch > 1 else step, state)


def run(
    workdir,
    num_steps,
    *,
    stop=lambda: "",
    evaluate=evaluate,
    loss=loss_fn,
    num_devices=1,
    log=print,
    log_every=5,
    eval_every=10,
    save_every=10,
    steps_per_launch=1,
    **data,
):
    workdir = pathlib.Path(workdir)
    mesh = train.make_mesh(num_devices)
    tx, step = make_step(loss, num_devices, steps_per_launch)
    state, made = train.replicate(new_state(tx), mesh), batches(mesh, **data)
    with train.open_checkpoints(workdir / "checkpoints", log=log) as checkpoint:
        restored = checkpoint.restore(state)
        state = restored[0] if restored else state
        writers = [train.JsonlWriter(workdir / "metrics.jsonl", int(state.step))]
        try:
            return train.fit(
                state,
                step,
                made if steps_per_launch == 1 else lambda i: zip(*[made(i)] * steps_per_launch),  # noqa: B905
                num_steps=num_steps,
                evaluate=evaluate,
                cadence=train.Cadence(log_every, eval_every, save_every, steps_per_launch),
                sinks=train.Sinks(checkpoint, writers, {"problem": "linear"}),
                stop=stop,
            )
        finally:
            for writer in writers:
                writer.close()


def host(state):
    plain = state._replace(rng=jax.random.key_data(state.rng))
    leaves = jax.tree_util.tree_flatten_with_path(plain)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def main():
    """Train until a signal arrives; print the last step and the signal."""
    with train.stop_on_signals() as stop:
        result = run(sys.argv[1], 10**6, stop=stop)
    sys.stdout.write(f"{int(result.state.step)} {result.reason}")


if __name__ == "__main__":
    main()
