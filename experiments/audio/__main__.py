r"""Contrastive predictive coding on sound, raw or log-mel (van den Oord et al. 2018, section 3.1).

Trains, watches the information, probes the frozen features and writes a report:

    cpc audio --config audio_voices --workdir runs/voices

`cpc audio --keys [SECTION]` lists the keys of a config; any can be set, and the same command again
resumes:

    cpc audio --config audio_voices --workdir runs/low \
        --config.optim.learning_rate=1e-4
"""

from experiments.audio.modality import AUDIO
from experiments.run import main

if __name__ == "__main__":
    main(AUDIO)
