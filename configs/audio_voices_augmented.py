"""The demo with augmented past, where contexts of augmented sound predict latents of clean sound.

cpc train --config audio_voices_augmented --workdir runs/augmented

The effects are pitch shifts and artificial reverberation, as in CPC2 (Kharitonov et al. 2020),
which reports a relative ABX error reduction of 18 to 22 % on LibriSpeech-100. For a first look, see
docs/results/family.md. The sweep that compares sides and effects over seeds is in
docs/augmentation.md.
"""

from configs import audio_voices


def get_config():
    """Return the demo with pitch shifts and reverberation in the input of contexts."""
    c = audio_voices.every_offset()
    c.augment.side = "past"
    c.augment.effects = ("pitch", "reverb")
    return c
