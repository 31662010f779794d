# %% [markdown]
# # Augmentation in time: heard and drawn
#
# Contexts are computed from augmented sound and predict latents of the original, so information
# that an effect destroys cannot help the prediction (Kharitonov et al. 2020). The config
# `configs/audio_voices_augmented.py` trains this way. This notebook plays and draws each effect on
# a recording: one of the demo's voices if `make demo` has prepared them, otherwise synthetic sound.

# %%
import io
import sys

sys.path.insert(0, "..")  # where configs and experiments are

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Audio, Image, display

from configs import audio_synthetic, audio_voices
from cpc.data import SAMPLE_RATE_HZ
from cpc.data.augment_sound import EFFECTS, shift_pitch
from cpc.data.sources import voices
from experiments.kinds.audio.augmentation import apply_each, draw_sounds, preprocess
from experiments.kinds.audio.data import load_data
from experiments.kinds.audio.kind import draw_windows

# %%
config = (audio_voices if voices.is_prepared() else audio_synthetic).get_config()
if voices.is_prepared():
    config.data.window_samples = 2 * SAMPLE_RATE_HZ
config.augment.side, config.augment.effects = "past", EFFECTS
recordings = load_data(config, print)
batch = draw_windows(config, recordings.train, seed=0)(0)

# %% [markdown]
# ## Each effect, and all of them
# Draw again with another key.

# %%
examples = apply_each(config, batch, jax.random.key(3))
for name, x in examples.items():
    print(name)
    display(Audio(x, rate=SAMPLE_RATE_HZ))

# %%
drawn = io.BytesIO()
draw_sounds(examples).savefig(drawn, format="jpeg", dpi=100)
Image(drawn.getvalue())

# %% [markdown]
# ## Shift the pitch by any amount
# Length and tempo do not change. Training draws shifts of at most 300 cents, a minor third.

# %%
shift = jax.jit(shift_pitch)
for cents in (-300.0, 300.0):
    print(f"{cents:+.0f} cents")
    moved = shift(jnp.asarray(examples["clean"]), jnp.float32(cents))
    display(Audio(np.asarray(moved), rate=SAMPLE_RATE_HZ))

# %% [markdown]
# ## The batch of a training step
# It has two copies: contexts are computed from x, latents from the target. Evaluation and probes
# use only the recordings.

# %%
key = jax.random.key(0)
seen = jax.eval_shape(lambda batch: preprocess(config, batch, key, train=True), batch)
print({name: seen[name].shape for name in ("x", "target")})
print("in evaluation:", "target" in preprocess(config, batch, key, train=False))
