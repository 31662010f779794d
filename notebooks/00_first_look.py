# %% [markdown]
# # A first look: the parts of CPC, one by one
#
# `cpc train` runs a whole experiment. This notebook builds its parts by hand, on synthetic sound
# with known mutual information: speakers with constant voices say phones from a Markov chain.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from cpc import data, negatives
from cpc.estimators import Tracker, bound_over_sequences
from cpc.losses import cpc_loss, info_nce
from cpc.models import CPC, GRU, ConvEncoder, LinearPredictor, make_model
from cpc.train import init_state, jit_step, make_optimizer, make_train_step
from cpc.types import Position

# %% [markdown]
# ## Data
# `draw(step)` is a pure function, so a step has the same batch in every run.

# %%
chain = data.phone_chain(8)
synthetic = data.make_synthetic(
    num_speakers=4, utterances_per_speaker=500, seconds=0.2, chain=chain, seed=0
)
draw = data.make_batches(synthetic.recordings, window_samples=3200, batch_size=16, seed=0)
batch = draw(0)
{name: (value.shape, value.dtype) for name, value in batch.items()}

# %%
figure, axes = plt.subplots(figsize=(8, 2))
axes.plot(np.arange(1600) / 16, batch["x"][0, :1600], linewidth=0.5)
axes.set(xlabel="milliseconds", title="100 ms of a window")

# %% [markdown]
# ## Model
# The encoder maps the waveform x to latents z, one every 10 ms. A causal network maps them to
# contexts c. The predictor returns W_k c, a prediction of the latent k steps ahead, for each k.

# %%
encoder = ConvEncoder(width=32)
model = make_model(CPC(encoder, GRU(32), LinearPredictor(num_offsets=6, width=32)))
variables = jax.jit(model.init)(jax.random.key(0), batch)
outputs, _ = jax.eval_shape(model.apply, variables, batch)
print("stride", encoder.stride, "samples; receptive field", encoder.receptive_field, "samples")
print({name: array.shape for name, array in outputs._asdict().items()})

# %% [markdown]
# ## Loss
# InfoNCE is a cross-entropy over N candidates, log N if all scores are equal. Rules, joined by `&`,
# select the negatives: here the latents of the batch more than one step from the positive.

# %%
print(info_nce(jnp.zeros(1), jnp.zeros((1, 127))), np.log(128))
rule = negatives.batch & negatives.outside_window(1)


def loss_fn(params, extra, batch, rng):
    outputs, extra = model.apply({"params": params, **extra}, batch, True, rng)
    positions = Position.grid(*outputs.z.shape[:2], group=batch["speaker"])
    loss, sums = cpc_loss(outputs, positions, rule)
    return loss, (extra, {"offsets": sums})


# %% [markdown]
# ## Training, with the mean of log N - L over all steps

# %%
tx, _ = make_optimizer(learning_rate=3e-3, warmup_steps=20, num_steps=200, schedule="cosine")
params = variables["params"]
_, (_, metrics) = jax.eval_shape(loss_fn, params, {}, batch, jax.random.key(0))
state = init_state(params, {}, tx, jax.random.key(1), metrics)
step = jit_step(make_train_step(loss_fn, tx), state)
for i in range(200):
    state = step(state, draw(i))
track = Tracker(rule.is_bound, rule.name)(state.metrics["offsets"])
print("training mean of log N - L:", np.round(track.value, 2), "nats; log N:", track.log_n[0])

# %% [markdown]
# ## A lower bound
# Latents of other windows are independent negatives, so log N - L is a lower bound. The exact value
# is that of the speaker and of two phones k - 2 frames apart, as a latent spans three frames.

# %%
test = data.make_batches(synthetic.recordings, window_samples=3200, batch_size=128, seed=9)(0)


@jax.jit
def evaluate(params, batch):
    outputs, _ = model.apply({"params": params}, batch)
    return bound_over_sequences(outputs.z, outputs.predictions)


bound = Tracker(True)(evaluate(state.params, test))
truth = {k: data.synthetic_information(k - 2, chain, num_speakers=4) for k in range(3, 7)}

figure, axes = plt.subplots(figsize=(5, 3))
offsets = np.arange(1, 7)
axes.errorbar(offsets, bound.value, np.subtract(bound.high, bound.value), label="lower bound")
axes.plot(list(truth), list(truth.values()), "k:", label="exact information")
axes.axhline(bound.log_n[0], color="tab:red", linestyle="--", label="log N")
axes.set(xlabel="offset k", ylabel="nats")
axes.legend()
assert all(bound.low[k - 1] <= information for k, information in truth.items())
