"""Bidirectional CPC on the nine voices (Kawakami et al. 2020): contexts in both directions of time.

cpc train --config audio_voices_bidirectional --workdir runs/both

The paper trains on some 8,000 hours of many languages (from memory) and evaluates recognition in
other languages, not on these recordings. Its network and data differ from this config, which uses
the settings of `every_offset` in audio_voices.py with a second context over the same latents in
reverse. For a first look, see docs/results/family.md.
"""

from configs import audio_voices


def get_config():
    """Return the demo with a second context, of the future."""
    c = audio_voices.every_offset()
    c.model.directions = ("forward", "backward")
    c.model.context_width = 256  # per direction, so that both have the width of the demo's c
    return c
