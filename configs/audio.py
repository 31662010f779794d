"""Every key of configs of kind audio."""

from configs import defaults
from configs.defaults import MAX_LAYERS, MAX_OFFSETS, MAX_STEPS, MAX_WIDTH
from configs.keys import Key, make_config, with_defaults

#: Values of `data.source` that name recordings, as opposed to synthetic sound.
RECORDED = ("voices", "folder", "librispeech_tfds")

KEYS = {
    "kind": Key("audio", "kind of data", words=("audio",)),
    **with_defaults(defaults.RUN, num_steps=1200, eval_every=400, save_every=400),
    "data": {
        "source": Key(
            "voices", "where recordings come from",
            words=("voices", "folder", "librispeech_tfds", "synthetic")),
        "path": Key(
            "", "folder, librispeech_tfds: where the recordings are",
            is_path=True, sources=("folder", "librispeech_tfds")),
        "split": Key("train_clean100", "librispeech_tfds: which part to use"),
        "speaker_level": Key(1, "folder: which directory level names the speaker", low=1, high=100),
        "train_list": Key(
            "", "file of training utterance ids, one per line; without lists the voices' own "
            "split is used, or a seeded one", is_path=True, sources=RECORDED),
        "test_list": Key(
            "", "file of test utterance ids, one per line", is_path=True, sources=RECORDED),
        "test_fraction": Key(
            0.15, "fraction of utterances to test on, without lists", low=0, below=1),
        "phones": Key(
            "", 'file of alignments, "utterance-id label label ...", one label every 10 ms',
            is_path=True, sources=RECORDED),
        "item_file": Key(
            "", "ZeroSpeech item file whose tokens abx uses as well as those of the phones",
            is_path=True, sources=RECORDED),
        "window_samples": Key(
            20480, "length of a training sequence: 1.28 s, 128 latents; shorter clips are padded "
            "and masked", low=1, high=2**26),
        "one_speaker": Key(
            False, "whether each batch holds a single speaker (the paper's Table 2, same speaker)"),
        **with_defaults(defaults.INPUT, batch_size=8),
    },
    "augment": {
        "side": Key(
            "none", "what is augmented in training: contexts (past), latents (future), both "
            "independently, or nothing; unless nothing, the encoder runs twice per window",
            words=("none", "past", "future", "both")),
        "effects": Key(
            ("pitch", "noise", "reverb"), "effects, applied one after the other; noise is another "
            "window of the batch", words=("pitch", "noise", "reverb", "band_reject", "dropout")),
        "pitch_cents": Key(300.0, "pitch: largest shift, up or down", above=0, high=1200),
        "snr_low_db": Key(5.0, "noise: lowest signal-to-noise ratio"),
        "snr_high_db": Key(20.0, "noise: highest signal-to-noise ratio"),
        "reverb_seconds": Key(
            0.5, "reverb: time in which sound decays by 60 dB in the largest room", above=0, high=10
        ),
        "band_hz": Key(1000.0, "band_reject: widest band that is removed", above=0, high=8000),
        "dropout_ms": Key(50.0, "dropout: longest silence", above=0),
    },
    "model": {
        "encoder": Key(
            "conv", "conv: strided convolutions of the waveform, as in the paper; log_mel: of "
            "log-mel energies; cepstra: of their cosine transform, which hides the pitch",
            words=("conv", "log_mel", "cepstra")),
        "num_cepstra": Key(13, "cepstra: number of coefficients", low=1, high=80),
        "width": Key(128, "width of z; the paper: 512", low=1, high=MAX_WIDTH),
        "norm": Key(
            "none", "normalization in the encoder",
            words=("none", "layer", "channel", "batch", "group")),
        "padding": Key("causal", "padding in the encoder", words=("causal", "same", "valid")),
        "num_codes": Key(
            0, "size of the codebook that quantizes the latents (VQ-CPC); 0: none",
            low=0, high=MAX_WIDTH),
        "code_width": Key(64, "width of z, if there are codes", low=1, high=MAX_WIDTH),
        "code_decay": Key(
            0.99, "decay of the running averages that make the codes; VQ-CPC: 0.999", low=0, below=1
        ),
        "commitment": Key(
            0.25, "weight of the squared distance between latents and their codes", low=0, high=1),
        "restart_codes": Key(
            False, "whether codes that are hardly used restart at latents of the batch"),
        "context": Key(
            "gru", "network of c; the dilation of conv doubles from layer to layer",
            words=("gru", "lstm", "conv", "conv_undilated", "transformer")),
        "context_width": Key(256, "width of c; the paper: 256", low=1, high=MAX_WIDTH),
        "context_layers": Key(1, "layers of the context network", low=1, high=MAX_LAYERS),
        "context_blocks": Key(
            1, "gru: blocks of recurrent weights, each of its own part of c; 1: every unit reads "
            "all", low=1, high=MAX_WIDTH),
        "predictor": Key(
            "linear", "prediction of latents from c: one W_k per offset (linear, the paper), with "
            "a bias (affine), above a shared hidden layer (hidden) or Transformer layer "
            "(transformer), or one Transformer layer per offset (transformers)",
            words=("linear", "affine", "hidden", "transformer", "transformers")),
        "directions": Key(
            ("forward",), "directions of time, each with its own context and predictor; for "
            "forward,backward c is both side by side, twice as wide",
            words=("forward", "backward")),
        "modules": Key(
            1, "parts with a loss of their own and no gradient between them; 1: the whole "
            "network; 6: each of five layers and the context", low=1, high=MAX_LAYERS),
        "segment_threshold": Key(
            0.0, "how far a peak of change must stand out to end a segment; segments then predict "
            "the next ones; 0: no segments", low=0, below=1),
        "segment_offsets": Key(
            0, "segments ahead that are predicted while frames predict from contexts of their "
            "own; 0: both predict only the next one, frames without contexts",
            low=0, high=MAX_OFFSETS),
        "num_offsets": Key(
            12, "number of latents ahead that are predicted", low=1, high=MAX_OFFSETS),
        "horizon": Key(
            0, "latents ahead that the last prediction is of, the others spread evenly from the "
            "next latent to it; 0: predictions are of the next num_offsets latents",
            low=0, high=MAX_OFFSETS),
        **defaults.PRECISION,
    },
    "loss": {
        **defaults.LOSS,
        "align_to": Key(
            0, "latents ahead that the predictions are aligned to, in order (ACPC); 0: prediction "
            "k is of the latent k ahead", low=0, high=MAX_OFFSETS),
        "align_by": Key(
            "sum", "sum: all alignments, by likelihood; best: only the likeliest",
            words=("sum", "best")),
    },
    "negatives": {
        **defaults.NEGATIVES,
        "overlap": Key(
            False, "whether windows that share some sound may be negatives of each other"),
    },
    "optim": defaults.OPTIM,
    "evaluate": {
        "num_windows": Key(
            128, "held-out windows for the bound; 0: no evaluation", low=0, high=2**30),
    },
    "probe": {
        "tasks": Key(
            ("phones", "speakers"), "what is probed; ctc: phone sequences, without times; abx: "
            "whether distances alone tell phones apart; boundaries: whether frames change where "
            "phones do; codes: bits per second of quantized z; units: agreement of clusters with "
            "phones; verification: equal error rate of pairs of utterances by speaker",
            words=("phones", "speakers", "ctc", "abx", "boundaries", "codes", "units",
                   "verification")),
        "features": Key(
            ("c", "mfcc", "random c"), "features of the run, of an untrained network (random) and "
            "baselines; mfcc context: each MFCC frame with its 8 neighbors on either side, 170 "
            "ms; W_1 c: prediction of the next latent; layers: sum of all layers with learned "
            "weights, for phones and speakers; and the whole network trained on the labels, from "
            "scratch (supervised) or from the run's weights (tuned)",
            words=("c", "z", "W_1 c", "layers", "mfcc", "mfcc context", "random c", "random z",
                   "supervised", "tuned"),
        ),
        "delay": Key(
            0, "latents after a frame at which c is read to classify it, because contexts lag",
            low=0, high=MAX_OFFSETS),
        "hours": Key(0.0, "hours of training sound for the phone probe; 0: all", low=0),
        "minutes_per_speaker": Key(
            4.0, "minutes per speaker for the speaker probe, in training and in test; 0: all", low=0
        ),
        "lose_last_frame": Key(
            False, "abx: drop the last frame of each token, as Libri-light and published errors do"
        ),
        "num_units": Key(100, "units: clusters of k-means, usually 50 to 500", low=2, high=5000),
        "layer_decay": Key(
            1.0, "tuned: factor of the learning rate from each layer to the one below",
            above=0, high=1),
        "ctc_head": Key(
            "linear", "ctc: head, which reads 8 frames every 4", words=("linear", "lstm")),
        "ctc_minutes": Key(
            (10.0, 30.0, 60.0), "ctc: minutes of labeled sound, each a fit of its own; 0: all",
            low=0),
        "ctc_steps": Key(
            1500, "ctc: maximum number of steps; held-out utterances may stop it earlier",
            low=1, high=MAX_STEPS),
        "ctc_beam": Key(
            8, "ctc: prefixes kept for a second error rate; 1: only the likeliest path",
            low=1, high=10**4),
        **with_defaults(defaults.PROBE, hidden_width=64),
    },
}  # fmt: skip


def get_config():
    """Return the defaults."""
    return make_config(KEYS)
