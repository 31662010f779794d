# %% [markdown]
# # Audio: train a small model and inspect it
#
# `make demo` trains for minutes and writes a report. This notebook trains a smaller model in about
# a minute, shows its input, bound, latents and probe, and plays sounds that it mistakes for the
# future. It uses the demo's voices if `make demo` has downloaded them, otherwise synthetic sound.

# %%
import pathlib
import sys
import tempfile

sys.path.insert(0, "..")  # contains configs and experiments

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Audio, Image, display

from configs import audio_synthetic, audio_voices
from cpc import data
from cpc.data.sources import voices
from cpc.results import last_evaluation, read_run
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import load_data
from experiments.kinds.audio.model import choose_offsets
from experiments.train import run as run_command
from experiments.training import step as training

# %% [markdown]
# ## Configuration
# The config is the demo's with the changes below. Only every fourth test utterance is used.

# %%
is_prepared = voices.is_prepared()
config = (audio_voices if is_prepared else audio_synthetic).get_config()
config.num_steps = config.eval_every = config.save_every = 120
config.log_every = 20
config.data.batch_size, config.data.window_samples = 8, min(10240, config.data.window_samples)
config.model.width = config.model.context_width = 32
config.optim.learning_rate, config.optim.warmup_steps = 4e-3, 10
config.evaluate.num_windows = 64
config.probe.tasks = ("speakers",)
config.probe.features = ("c", "mfcc")
config.probe.minutes_per_speaker, config.probe.hidden_width = 0.3, 0
workdir = pathlib.Path(tempfile.mkdtemp())
recordings = load_data(config, print)
if is_prepared:
    train, test = (workdir / f"{name}.txt" for name in ("train", "test"))
    train.write_text("\n".join(recordings.train.names))
    test.write_text("\n".join(recordings.test.names[::4]))
    config.data.train_list, config.data.test_list = str(train), str(test)
    recordings = load_data(config, print)

# %% [markdown]
# ## Sound
# All utterances are scaled to the same loudness, so loudness does not identify the speaker.

# %%
x = data.read_all(recordings.test, 0)
figure, (above, below) = plt.subplots(2, sharex=True, figsize=(9, 4), layout="constrained")
above.plot(np.arange(len(x)) / data.SAMPLE_RATE_HZ, x, linewidth=0.3)
above.set(title=f"{recordings.test.names[0]}, speaker {recordings.test.speakers[0]}")
below.specgram(x, NFFT=400, Fs=data.SAMPLE_RATE_HZ, noverlap=240, vmin=-120)
below.set(xlabel="seconds", ylabel="Hz")
Audio(x, rate=data.SAMPLE_RATE_HZ)

# %% [markdown]
# ## Training
# This cell does what `cpc train` does: it audits the negatives, trains, probes and writes a report,
# here in a temporary directory. In the directory of an interrupted run, it would resume that run.

# %%
run_command(config, str(workdir))
run = read_run(workdir)

# %% [markdown]
# ## Estimate and bound
# In a training batch, log N - L is an *estimate* of mutual information, because many candidates
# come from the same window. The strict bound uses one candidate from each of the other held-out
# windows. Its state is *chance* if nothing has been learned yet; *warn* (above 0.6 log N) and
# *saturated* (above 0.9 log N) mean that the ceiling log N hides part of the information.

# %%
figures = workdir / "figures"
display(*(Image(str(figures / name), width=700) for name in ("curves.png", "bound.png")))
strict = last_evaluation(run, strict=True)
for row in strict.itertuples():
    print(f"offset {row.offset:2}: {row.bound:5.2f} nats, {row.state}")
assert strict.is_bound.all()
assert strict.bound.max() > 0.2

# %% [markdown]
# ## Latents and contexts
# z describes the current sound and c all sound so far, so units of c change more slowly. Units are
# sorted by the time of their largest absolute value.

# %%
variables, _ = training.read_variables(workdir)
model = audio.build_model(config)
z, c = jax.device_get(jax.jit(model.embed)(variables, x[None, :48_000]))
figure, panels = plt.subplots(2, sharex=True, figsize=(9, 4.5), layout="constrained")
for axes, name, latents in zip(panels, "zc", (z[0], c[0]), strict=True):
    latents = (latents - latents.mean(0)) / (latents.std(0) + 1e-6)
    order = np.abs(latents).argmax(0).argsort()
    axes.imshow(latents[:, order].T, aspect="auto", vmin=-3, vmax=3, cmap="RdBu_r")
    axes.set(ylabel=f"unit of {name}")
panels[1].set(xlabel="latents of 10 ms")

# %%
for name, latents in (("z", z[0]), ("c", c[0])):
    latents = latents - latents.mean(0)
    correlation = (latents[1:] * latents[:-1]).sum() / np.square(latents).sum()
    print(f"{name}: correlation of successive frames {correlation:.2f}")

# %% [markdown]
# ## Speaker probe
# A linear probe predicts the speaker from frozen features, fitted on 18 seconds per speaker. MFCCs
# are the baseline. On the voices, a network this small and briefly trained is worse than MFCCs; in
# the results of the full demo in the README, c is far better.

# %%
run.scores[["unit", "features", "value", "low", "high", "chance"]]

# %% [markdown]
# Means of c over parts of test utterances, coloured by speaker, as in Figure 2 of the paper:

# %%
Image(str(figures / "speakers.png"), width=700)

# %% [markdown]
# ## Confusions
# Each anchor of a held-out batch is scored against all latents of the batch. The next cells play
# the anchor that most clearly prefers a latent of another window to its true future.

# %%
window = config.data.window_samples
whole = data.select(recordings.test, np.flatnonzero(recordings.test.lengths >= window))
batch = data.make_batches(whole, window_samples=window, batch_size=16, seed=9)(0)
outputs, _ = jax.jit(model.apply)(variables, {"x": batch["x"]})
(b, t), number = outputs.z.shape[:2], min(2, config.model.num_offsets - 1)
k, margin = choose_offsets(config)[number], t // 4
predictions = outputs.predictions[:, : t - k, number]
positive = np.asarray((predictions * outputs.z[:, k:]).sum(-1))
negatives = np.array(jnp.einsum("btd,und->btun", predictions, outputs.z))
negatives[np.arange(b), :, np.arange(b)] = -np.inf  # exclude the own window
negatives[..., :margin], negatives[..., t - margin :] = -np.inf, -np.inf  # to play the surroundings
difference = negatives.max((2, 3)) - positive
print(f"{100 * (difference < 0).mean():.0f} % of anchors score their future in {10 * k} ms highest")
difference = difference[:, margin : t - k - margin]
row, time = np.unravel_index(difference.argmax(), difference.shape)
time += margin
other, frame = np.unravel_index(negatives[row, time].argmax(), (b, t))
print(f"window {row}, frame {time + k} is confused with window {other}, frame {frame}")

# %%
hop = data.SAMPLE_RATE_HZ // 100
for name, window, at in (
    ("sound before the anchor", row, time - margin),
    ("its true future", row, time + k),
    ("the latent with a higher score", other, frame),
):
    clip = batch["x"][window, hop * max(0, at - margin) : hop * (at + margin)]
    print(name)
    display(Audio(clip, rate=data.SAMPLE_RATE_HZ))

# %% [markdown]
# `make demo` trains a wider network on longer windows for 1,200 steps. To inspect its run instead,
# set `workdir` to `runs/voices` and `config` to the unchanged config, and skip the training.
