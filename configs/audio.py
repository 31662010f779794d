"""Every key of configs of kind audio."""

from typing import Any

from configs.defaults import (
    EVERY,
    INPUT,
    LOSS,
    MOST_LAYERS,
    MOST_OFFSETS,
    MOST_STEPS,
    NEGATIVES,
    OPTIM,
    PRECISION,
    RUN,
    WIDEST,
)
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("audio", "of data", words=("audio",)),
    **with_defaults(RUN, num_steps=1200, eval_every=400, save_every=400),
    "data": {
        "source": Key(
            "voices",
            "where recordings come from",
            words=("voices", "folder", "librispeech_tfds", "synthetic"),
        ),
        "path": Key("", "folder, librispeech_tfds: where they are", is_path=True),
        "split": Key("train_clean100", "librispeech_tfds: which part"),
        "speaker_level": Key(1, "folder: which directory level names the speaker", low=1, high=100),
        "train_list": Key(
            "",
            "utterance ids, one a line; without lists the voices' own split, else a seeded one",
            is_path=True,
        ),
        "test_list": Key("", "the same, to test on", is_path=True),
        "test_fraction": Key(0.15, "of utterances, without lists", low=0, below=1),
        "phones": Key(
            "", 'alignment: "utterance-id label label ...", one label each 10 ms', is_path=True
        ),
        "item_file": Key(
            "",
            "item file of ZeroSpeech: the tokens of its recordings, for abx beside those of phones",
            is_path=True,
        ),
        "window_samples": Key(
            20480,
            "of a training sequence: 1.28 s, 128 latents; shorter clips are filled up",
            low=1,
            high=2**26,
        ),
        "one_speaker": Key(
            False, "whether each batch holds one speaker (Table 2 of the paper, same speaker)"
        ),
        **with_defaults(INPUT, batch_size=8),
    },
    "augment": {
        "side": Key(
            "none",
            "what is augmented in training: contexts (past), latents (future), both by draws of "
            "their own, or nothing; but for nothing windows pass the encoder twice",
            words=("none", "past", "future", "both"),
        ),
        "effects": Key(
            ("pitch", "noise", "reverb"),
            "applied one after the other; noise: another window of the batch",
            words=("pitch", "noise", "reverb", "band_reject", "dropout"),
        ),
        "pitch_cents": Key(300.0, "up or down by at most so much", above=0, high=1200),
        "snr_low_db": Key(5.0, "noise: the signal is above it by at least so much"),
        "snr_high_db": Key(20.0, "noise: and by at most so much"),
        "reverb_seconds": Key(
            0.5, "of the largest room, until sound has decayed by 60 dB", above=0, high=10
        ),
        "band_hz": Key(1000.0, "band_reject: the widest that is taken out", above=0, high=8000),
        "dropout_ms": Key(50.0, "dropout: the longest silence", above=0),
    },
    "model": {
        "encoder": Key(
            "conv",
            "of the waveform, as the paper's; or of log-mel energies",
            words=("conv", "log_mel"),
        ),
        "width": Key(128, "of z; the paper: 512", low=1, high=WIDEST),
        "norm": Key("none", "of the encoder", words=("none", "layer", "channel", "batch", "group")),
        "padding": Key("causal", "of the encoder", words=("causal", "same", "valid")),
        "num_codes": Key(
            0, "of which the nearest replaces each latent (VQ-CPC); 0: none", low=0, high=WIDEST
        ),
        "code_width": Key(64, "of z, where there are codes", low=1, high=WIDEST),
        "code_decay": Key(
            0.99, "of the averages that codes are, over batches; VQ-CPC: 0.999", low=0, below=1
        ),
        "commitment": Key(
            0.25, "weight of the squares by which latents differ from their codes", low=0, high=1
        ),
        "restart_codes": Key(False, "whether codes that are hardly used begin anew at latents"),
        "context": Key(
            "gru",
            "the network of c; conv: dilated, to reach back by powers of 2",
            words=("gru", "lstm", "conv", "conv_undilated", "transformer"),
        ),
        "context_width": Key(256, "of c, as in the paper", low=1, high=WIDEST),
        "context_layers": Key(1, "of the context network", low=1, high=MOST_LAYERS),
        "predictor": Key(
            "linear",
            "of the latents ahead, from c: the paper's W_k, those and a bias (affine), W_k of a "
            "layer that they share, or of a Transformer layer each (transformers)",
            words=("linear", "affine", "hidden", "transformer", "transformers"),
        ),
        "directions": Key(
            ("forward",),
            "of time, each with a context and predictor of its own; forward,backward: c of both "
            "side by side, twice as wide",
            words=("forward", "backward"),
        ),
        "modules": Key(
            1,
            "that each have a loss of their own and give no gradient to those below; 1: the "
            "network as a whole; 6: each of five layers and the context",
            low=1,
            high=MOST_LAYERS,
        ),
        "segment_threshold": Key(
            0.0,
            "of the change at which a segment ends, if frames fall into segments that predict the "
            "next one; 0: they do not",
            low=0,
            below=1,
        ),
        "segment_offsets": Key(
            0,
            "segments ahead that are predicted, beside the latents that contexts of their own "
            "predict; 0: latents and segments predict the next one, latents without contexts",
            low=0,
            high=MOST_OFFSETS,
        ),
        "num_offsets": Key(12, "latents ahead that are predicted", low=1, high=MOST_OFFSETS),
        **PRECISION,
    },
    "loss": {
        **LOSS,
        "align_to": Key(
            0,
            "latents ahead to which the predictions, of no fixed offset then, are aligned in "
            "order (ACPC); 0: each prediction is of its own offset",
            low=0,
            high=MOST_OFFSETS,
        ),
        "align_by": Key(
            "sum", "all alignments by their likelihood, or the best alone", words=("sum", "best")
        ),
    },
    "negatives": {
        **NEGATIVES,
        "overlap": Key(
            False, "whether windows are negatives of each other where they hold the same sound"
        ),
    },
    "optim": OPTIM,
    "evaluate": {
        "num_windows": Key(
            128, "held-out windows for the bound; 0: no evaluation", low=0, high=2**30
        ),
    },
    "probe": {
        "tasks": Key(
            ("phones", "speakers"),
            "what is read off the features; ctc: phones in their order, without times; abx: "
            "whether distances alone tell phones apart; boundaries: whether frames change where "
            "phones do; codes: bits a second of quantised z",
            words=("phones", "speakers", "ctc", "abx", "boundaries", "codes"),
        ),
        "features": Key(
            ("c", "mfcc", "random c"),
            "of the run, of an untrained network (random), and baselines; mfcc context: each frame "
            "of MFCC beside its 8 neighbours on either side, 170 ms; and the network trained whole "
            "on the labels, from a new start (supervised) or from the run's weights (tuned)",
            words=("c", "z", "mfcc", "mfcc context", "random c", "random z", "supervised", "tuned"),
        ),
        "delay": Key(
            0,
            "latents by which c is read after the frame that it is to tell: contexts lag behind",
            low=0,
            high=MOST_OFFSETS,
        ),
        "hidden_width": Key(
            64,
            "of a probe with one hidden layer beside the linear one; 0: linear alone",
            low=0,
            high=WIDEST,
        ),
        "num_epochs": Key(3, "of the fit, over all training frames", low=1, high=10**6),
        "hours": Key(0.0, "of training sound for the phone probe; 0: all", low=0),
        "minutes_per_speaker": Key(
            4.0, "of the speaker probe, to train and to test; 0: all", low=0
        ),
        "lose_last_frame": Key(
            False, "abx: cut each token's last frame, as Libri-light and published errors do"
        ),
        "layer_decay": Key(
            1.0, "tuned: of the learning rate from a layer to the one below", above=0, high=1
        ),
        "ctc_head": Key("linear", "of ctc, over 8 frames every 4", words=("linear", "lstm")),
        "ctc_minutes": Key(
            (10.0, 30.0, 60.0), "of labelled sound, each by itself, for ctc; 0: all", low=0
        ),
        "ctc_steps": Key(
            1500, "of ctc at most: it stops by held-out utterances", low=1, high=MOST_STEPS
        ),
        "ctc_beam": Key(
            8, "prefixes kept, for a second error rate; 1: the likeliest path alone", low=1,
            high=10**4,
        ),
        "every": EVERY,
    },
}  # fmt: skip


def get_config() -> Any:
    """Return the defaults."""
    return make_config(KEYS)
