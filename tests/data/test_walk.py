import pytest

from cpc.data.walk import DOCUMENTS, find_data


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def below(folder, names):
    return {str(name).removeprefix(f"{folder}/") for name in names}


def test_every_file_is_read_listed_or_known(tmp_path):
    read = ("a.npy", "deep/er/b.CSV", "readme.csv")
    known = (".hidden", "._a.npy", "README", "LICENSE.txt", "deep/notes.md", "sidecar.json")
    listed = ("c.edf", "d.fif", "deep/e.csv.gz", "f", "g.mp4", "h.npy.part", "license.mat", "x.txt")
    touch(tmp_path, *read, *known, *listed)
    found = find_data(tmp_path, {".npy", ".csv"}, DOCUMENTS | {".json"})
    assert below(tmp_path, found.files) == set(read)
    assert below(tmp_path, (name for name, _ in found.left_out)) == set(listed)
    assert all(name in reason for name, reason in found.left_out)
    assert found.unreadable == []


@pytest.mark.parametrize(
    ("name", "word"), [("b.m4a", "ffmpeg -i b.m4a b.flac"), ("a.m4a", "a.wav")]
)
def test_a_file_of_another_format_gets_advice(tmp_path, name, word):
    touch(tmp_path, "a.wav", name)
    found = find_data(tmp_path, {".wav"}, advice="ffmpeg -i {name} {stem}.flac")
    ((_, reason),) = found.left_out
    assert word in reason


def test_folders_passed_over_are_listed(tmp_path):
    touch(tmp_path, "a.wav", "run/run.lock", "run/b.wav")
    (tmp_path / "again").symlink_to(tmp_path)
    found = find_data(tmp_path, {".wav"})
    assert below(tmp_path, found.files) == {"a.wav"}
    assert below(tmp_path, (name for name, _ in found.left_out)) == {"again", "run"}
