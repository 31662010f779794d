"""Where data come from: folders, prepared sets of tfds, Debian packages, a synthetic source."""
