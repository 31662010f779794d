# %% [markdown]
# # Augmentation in time: sounds and spectrograms
#
# Contexts are computed from augmented sound and predict latents of the original, so information
# that an effect destroys does not help the prediction (Kharitonov et al. 2020). The config
# `audio_voices_augmented` trains this way. This notebook plays and draws each effect on one of the
# demo's voices if `make demo` has downloaded them, otherwise on synthetic sound.

# %%
import io
import sys

sys.path.insert(0, "..")  # contains configs and experiments

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
# ## Each effect, and all of them together
# Another key draws other parameters.

# %%
examples = apply_each(config, batch, jax.random.key(3))
for name, x in examples.items():
    print(name)
    display(Audio(x, rate=SAMPLE_RATE_HZ))

# %%
image = io.BytesIO()
draw_sounds(examples).savefig(image, format="jpeg", dpi=100)
Image(image.getvalue())

# %% [markdown]
# ## Pitch shifts
# A shift preserves length and tempo. Training draws shifts of at most 300 cents, a minor third.

# %%
shift = jax.jit(shift_pitch)
for cents in (-300.0, 300.0):
    print(f"{cents:+.0f} cents")
    shifted = shift(jnp.asarray(examples["clean"]), jnp.float32(cents))
    display(Audio(np.asarray(shifted), rate=SAMPLE_RATE_HZ))

# %% [markdown]
# ## A training batch
# A training batch has two copies: contexts are computed from `x` and latents from `target`.
# Evaluation and probes use only the original recordings.

# %%
key = jax.random.key(0)
training_batch = jax.eval_shape(lambda batch: preprocess(config, batch, key, train=True), batch)
print({name: training_batch[name].shape for name in ("x", "target")})
print("target in evaluation:", "target" in preprocess(config, batch, key, train=False))
