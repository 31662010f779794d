"""Contrastive predictive coding in JAX (van den Oord, Li and Vinyals, 2018)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):
        if name != "__version__":
            raise AttributeError(f"module 'cpc' has no attribute {name!r}")
        from importlib import metadata  # keeps `import cpc` fast

        try:
            return metadata.version("cpc-jax")
        except metadata.PackageNotFoundError:  # an uninstalled checkout
            return "0+unknown"
