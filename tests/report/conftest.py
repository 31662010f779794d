import pytest

from tests.fake_run import write_fake_run


@pytest.fixture
def workdir(tmp_path):
    """Return a run directory that a test may damage, without the slow speaker map."""
    write_fake_run(tmp_path, num_steps=500)
    (tmp_path / "probes" / "speaker_map.npz").unlink()
    return tmp_path
