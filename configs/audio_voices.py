"""The demo: CPC on raw waveforms of ten real voices, 6.3 hours, from Debian packages.

python -m experiments.audio --config configs/audio_voices.py --workdir runs/voices

The network of section 3.1 of van den Oord et al. (2018) with 128 channels for 512. On 2 CPU cores
10 minutes with downloads and probes; measured: strict bound 2.49 nats, phones of festvox-ru 57.6 %
(linear on c; MFCC 59.7 %, random 36.2 %), ten speakers by frame 90.4 % (MFCC 69.5 %).
"""

from typing import Any

from ml_collections import ConfigDict

from configs import defaults


def get_config() -> Any:
    """Every key that an audio experiment knows, with the demo's values."""
    c: Any = ConfigDict()
    c.seed = 0
    c.num_steps = 1200
    c.steps_per_launch = 1  # steps that the device does without the host
    c.log_every = 50
    c.eval_every = 400
    c.save_every = 400

    c.data = ConfigDict()
    c.data.source = "voices"  # voices, folder, librispeech_tfds or synthetic
    c.data.path = ""  # of folder and librispeech_tfds
    c.data.split = "train_clean100"  # of librispeech_tfds
    c.data.speaker_level = 1  # folder: which directory level names the speaker
    c.data.train_list = ""  # utterance ids, one a line; without lists a seeded split by utterance
    c.data.test_list = ""
    c.data.test_fraction = 0.15
    c.data.phones = ""  # alignment: "utterance-id label label ...", one label each 10 ms
    c.data.window_samples = 20480  # 1.28 s: 128 latents
    c.data.batch_size = 8  # windows of the global batch, on however many devices
    c.data.one_speaker = False  # True: each batch holds one speaker (Table 2, same speaker)
    c.data.num_threads = 2
    c.data.max_skipped_fraction = 0.1  # more unreadable files than that are an error

    c.model = ConfigDict()
    c.model.width = 128  # of z; the paper: 512
    c.model.norm = "none"  # none, layer, channel, batch or group
    c.model.padding = "causal"  # causal, same or valid
    c.model.context = "gru"  # gru, lstm, conv or transformer
    c.model.context_width = 256  # as in the paper
    c.model.context_layers = 1
    c.model.num_offsets = 12
    c.model.remat = False  # compute the encoder again for the gradient: less memory
    c.model.dtype = "float32"  # of the computation; parameters and loss are always float32

    c.loss = defaults.loss()
    c.negatives = defaults.negatives()
    c.optim = defaults.optim()
    c.optim.learning_rate = 2e-3  # the paper: 2e-4, for 300,000 steps

    c.evaluate = ConfigDict()
    c.evaluate.num_windows = 128  # held-out windows for the bound

    c.probe = ConfigDict()
    c.probe.tasks = ("phones", "speakers")
    c.probe.features = ("c", "mfcc", "random c")  # also z, random z, supervised
    c.probe.hidden_width = 64  # of the probe with one hidden layer; 0: linear probes only
    c.probe.num_epochs = 3  # of the fit, over all training frames
    c.probe.hours = 0.0  # of training sound for the phone probe; 0: all
    c.probe.minutes_per_speaker = 4.0  # of the speaker probe, to train and to test; 0: all
    c.probe.every = 0  # steps; 0: once, at the end
    return c
