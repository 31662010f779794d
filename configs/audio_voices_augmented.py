"""The demo with its past augmented: contexts of altered sound predict latents of clean sound.

python -m experiments.audio --config configs/audio_voices_augmented.py --workdir runs/augmented

Pitch and artificial reverberation, as CPC2 has them (Kharitonov et al. 2020), who report 18 to 22 %
less ABX error, relative, on LibriSpeech-100. A first look: docs/family.md. Against the demo, over
seeds:
python -m experiments.studies.augmentation --workdir runs/augmentation (docs/augmentation.md).
"""

from typing import Any

from configs import audio_voices


def get_config() -> Any:
    """The demo, augmented."""
    c = audio_voices.get_config()
    c.augment.side = "past"
    c.augment.effects = ("pitch", "reverb")
    return c
