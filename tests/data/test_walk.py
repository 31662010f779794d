from packages import refuse

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
    known = (".hidden", ".git/a.npy", "._a.npy", "README", "LICENSE.txt", "deep/notes.md", "s.json")
    listed = ("c.edf", "d.fif", "deep/e.csv.gz", "f", "g.mp4", "h.npy.part", "license.mat", "x.txt")
    touch(tmp_path, *read, *known, *listed)
    found = find_data(tmp_path, {".npy", ".csv"}, DOCUMENTS | {".json"})
    assert below(tmp_path, found.files) == set(read)
    assert below(tmp_path, (name for name, _ in found.left_out)) == set(listed)
    assert all(name in reason for name, reason in found.left_out)
    assert found.unreadable == []


def test_links_are_followed_once_and_other_folders_are_listed(tmp_path, monkeypatch):
    """Two links of two folders to each other are 2^40 paths. A real path comes before a link."""
    root = tmp_path / ".cache"  # the folder itself may be hidden
    touch(root, "ann/a.wav", "bob/b.wav", "locked/c.wav", "run/run.lock", "run/d.wav")
    touch(tmp_path, "other/e.wav")
    for folder, other in (("ann", "bob"), ("bob", "ann")):
        for i in range(2):
            (root / folder / f"{i}").symlink_to(root / other)
            (root / folder / f"up{i}").symlink_to(root)
    for name in ("cyd", "dan"):
        (root / name).symlink_to(tmp_path / "other")
    refuse(monkeypatch, "locked")
    found = find_data(root, {".wav"})
    assert below(root, found.files) == {"ann/a.wav", "bob/b.wav", "cyd/e.wav"}
    links = {f"{name}/{link}" for name in ("ann", "bob") for link in ("0", "1", "up0", "up1")}
    assert below(root, (name for name, _ in found.left_out)) == {*links, "dan", "run"}
    ((locked, reason),) = found.unreadable
    assert locked == f"{root}/locked"
    assert "cannot be read: Permission denied" in reason
