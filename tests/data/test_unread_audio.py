"""Sound that libsndfile passes over without a word."""

import pytest

from cpc.data.unread_audio import mp3_seconds

#: MPEG 1, layer III, 128 kbit/s at 44.1 kHz: 1,152 samples in 417 bytes.
FRAME = bytes([0xFF, 0xFB, 0x90, 0]) + bytes(413)


@pytest.mark.parametrize("num_bytes", [0, 1, 2, 3, 4, 417])
def test_a_file_may_end_inside_of_a_header(num_bytes):
    """The first frame is not counted, as another one has to follow."""
    begun = num_bytes >= 4
    expected = (1 + begun) * 1152 / 44_100
    assert mp3_seconds(2 * FRAME + FRAME[:num_bytes]) == pytest.approx(expected)
