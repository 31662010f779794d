import jax
import pytest

from cpc import train

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture
def settings():
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_cache_takes_small_programs(tmp_path, settings):
    train.enable_compilation_cache(tmp_path / "cache")
    assert [getattr(jax.config, name) for name in SETTINGS] == [str(tmp_path / "cache"), 0, -1]
