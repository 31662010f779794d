# %% [markdown]
# # Audio: train small, look, listen, probe
#
# `make demo` trains for minutes and writes a page. This notebook makes the same run smaller, in a
# minute, and looks into it: at the sound, the bound, the latents, the probe, and at what the model
# takes for the future when it is wrong. It uses the demo's voices if `make demo` has prepared them,
# otherwise synthetic sound.

# %%
import pathlib
import sys
import tempfile

sys.path.insert(0, "..")  # where configs and experiments are

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
# ## The run
# A config is the demo's, except for the settings below. Its window is cut into latents of 10 ms. A
# quarter of the test utterances is enough for a look.

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
# ## What it hears
# The loudness of every utterance is the same, so that it tells nothing of the speaker.

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
# This is the command `python -m experiments.train`, with its audit of the negatives, its probe and
# its report, in a directory that is thrown away. With another one the same cell would resume.

# %%
run_command(config, str(workdir))
run = read_run(workdir)

# %% [markdown]
# ## The bound, and whether it can be believed
# Log N - L of a training batch is an *estimate*: its candidates are latents of the same few
# windows. The strict bound has one candidate from each of the other held-out windows. Its state
# tells if it can be read: at *chance* nothing is known yet; *warn*, from 0.6 log N, and
# *saturated*, from 0.9 log N, mean that the ceiling hides how much is known.

# %%
figures = workdir / "figures"
display(*(Image(str(figures / name), width=700) for name in ("curves.png", "bound.png")))
strict = last_evaluation(run, strict=True)
for row in strict.itertuples():
    print(f"offset {row.offset:2}: {row.bound:5.2f} nats, {row.state}")
assert strict.is_bound.all()
assert strict.bound.max() > 0.2

# %% [markdown]
# ## z and c
# z says what is heard now, c what has been heard so far: a unit of c changes more slowly. Units are
# in the order of their loudest moments.

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
    kept = (latents[1:] * latents[:-1]).sum() / np.square(latents).sum()
    print(f"{name}: correlation with itself 10 ms later {kept:.2f}")

# %% [markdown]
# ## Who speaks?
# A linear probe reads the speaker off the frozen features, from 20 seconds of each. MFCC say what
# that is worth. On the voices a network so small and young loses to them; the README has the end of
# the demo, where c is far ahead.

# %%
run.scores[["unit", "features", "value", "low", "high", "chance"]]

# %% [markdown]
# Means of c over pieces of test utterances, as in the paper's Figure 2: one colour, one speaker.

# %%
Image(str(figures / "speakers.png"), width=700)

# %% [markdown]
# ## What it confuses
# Anchors of held-out windows are scored against every latent of the batch. Of the anchors that take
# a latent of another window for their future, this is the one that does so with most conviction.

# %%
window = config.data.window_samples
whole = data.select(recordings.test, np.flatnonzero(recordings.test.lengths >= window))
draw = data.make_batches(whole, window_samples=window, batch_size=16, seed=9)
batch = draw(0)
outputs, _ = jax.jit(model.apply)(variables, {"x": batch["x"]})
(b, t), number = outputs.z.shape[:2], min(2, config.model.num_offsets - 1)
k = choose_offsets(config)[number]
margin = t // 4
scores = jnp.einsum("btd,und->btun", outputs.predictions[:, :, number], outputs.z)
scores = np.array(scores)  # (window, time) of the anchor, then of the candidate
positive = np.stack([scores[:, i, :, i + k].diagonal() for i in range(t - k)], 1)
negatives = scores[:, : t - k].copy()
negatives[np.arange(b), :, np.arange(b)] = -np.inf  # other windows alone
negatives[..., :margin], negatives[..., t - margin :] = -np.inf, -np.inf  # sound lies around them
lead = negatives.max((2, 3)) - positive
print(f"{100 * (lead < 0).mean():.0f} % of the anchors find their future {10 * k} ms ahead")
lead = lead[:, margin : t - k - margin]
row, time = np.unravel_index(lead.argmax(), lead.shape)
time += margin
other, place = np.unravel_index(negatives[row, time].argmax(), (b, t))
print(f"window {row}, 10 ms frame {time + k}, and what it takes for it: window {other}, {place}")

# %%
hop = data.SAMPLE_RATE_HZ // 100
for name, window, at in (
    ("what the anchor has heard", row, time - margin),
    ("around its future", row, time + k),
    ("around what scores higher", other, place),
):
    clip = batch["x"][window, hop * max(0, at - margin) : hop * (at + margin)]
    print(name)
    display(Audio(clip, rate=data.SAMPLE_RATE_HZ))

# %% [markdown]
# `make demo` trains a wider network on longer windows, for 2,400 steps. Set `workdir` to its
# `runs/voices` and `config` to its config, leave out the training, and look again.
