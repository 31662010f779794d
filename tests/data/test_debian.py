import json

import packages
import pytest
from packages import quiet

from cpc.data.sources.debian import fetch_archive, find_archive, unpack
from cpc.files import file_sha256
from cpc.types import UserError


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    packages.fake_apt(tmp_path / "mirror", monkeypatch)
    return tmp_path / "mirror"


@pytest.fixture
def package(mirror):
    return packages.build_deb(mirror, "sounds", {"usr/share/x.txt": b"hello"})


def calls(mirror):
    return (mirror / "calls").read_text().splitlines()


def flip_bit(archive):
    content = bytearray(archive.read_bytes())
    content[200] ^= 1
    archive.write_bytes(content)


def test_fetched_once_and_verified_each_time(mirror, package, tmp_path):
    said = []
    archive, sha256 = fetch_archive(package, tmp_path / "debs", said.append)
    assert sha256 == package.sha256
    (tmp_path / "out").mkdir()
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/usr/share/x.txt").read_bytes() == b"hello"
    assert fetch_archive(package, tmp_path / "debs", said.append) == (archive, sha256)
    assert (len(calls(mirror)), len(said)) == (1, 1)
    flip_bit(archive)
    assert fetch_archive(package, tmp_path / "debs", said.append) == (archive, sha256)
    assert "damaged" in said[1]
    assert file_sha256(archive) == package.sha256
    assert len(calls(mirror)) == 2
    archive.write_bytes(b"no archive")
    with pytest.raises(UserError, match="dpkg-deb -x"):
        unpack(archive, tmp_path)


def test_empty_lists_are_fetched_privately(mirror, package, tmp_path):
    (mirror / "mode").write_text("lists")
    fetch_archive(package, tmp_path / "cache" / "debs", quiet)
    first, update, second = calls(mirror)
    assert first == "-q download sounds"
    assert update.endswith("update")
    assert f"Dir::State::Lists={tmp_path}/cache/apt/lists" in update
    assert f"Dir::State::Lists={tmp_path}/cache/apt/lists" in second
    assert (tmp_path / "cache/apt/lists/partial").is_dir()


def test_another_build_counts_as_apt_verified_it(mirror, package, tmp_path):
    known = package._replace(version="0-1", sha256="0" * 64)
    said = []
    archive, sha256 = fetch_archive(known, tmp_path / "debs", said.append)
    assert archive.name == "sounds_9-1_all.deb"
    assert any("differs from the known build" in line for line in said)
    manifest = json.loads((tmp_path / "debs" / "manifest.json").read_text())
    assert manifest["sounds"]["sha256"] == package.sha256
    assert fetch_archive(known, tmp_path / "debs", said.append) == (archive, sha256)
    assert len(calls(mirror)) == 1
    flip_bit(archive)
    assert find_archive(known, tmp_path / "debs", quiet) is None


def test_a_failed_fetch_is_reported_and_redone(mirror, package, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="Unable to locate package nothing"):
        fetch_archive(package._replace(name="nothing"), tmp_path / "debs", quiet)
    for mode, words in (("offline", "no network"), ("half", "sounds` failed: E: connection reset")):
        (mirror / "mode").write_text(mode)
        with pytest.raises(UserError, match=words):
            fetch_archive(package, tmp_path / "debs", quiet)
    assert not list((tmp_path / "debs").glob("*.deb"))  # the partial file is in a folder of its own
    (mirror / "mode").write_text("ok")
    archive, _ = fetch_archive(package, tmp_path / "debs", quiet)
    assert file_sha256(archive) == package.sha256
    assert not list((tmp_path / "debs").glob("sounds*.part"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get and dpkg-deb"):
        fetch_archive(package, tmp_path / "others", quiet)


def test_a_manifest_of_something_else_is_none(mirror, package, tmp_path):
    """Nor does it lead to a file outside, which would be removed as a damaged archive."""
    content = b'{"sounds": {"file": "../precious_1_all.deb", "sha256": "0"}}'
    folder = tmp_path / "debs"
    folder.mkdir()
    (tmp_path / "precious_1_all.deb").write_text("mine")
    copy = folder / "sounds_9-1_all.deb"
    copy.write_bytes((mirror / "sounds_9-1_all.deb").read_bytes())
    (folder / "manifest.json").write_bytes(content)
    assert find_archive(package, folder, pytest.fail) == (copy, package.sha256)
    copy.write_bytes(b"not an archive")
    assert find_archive(package, folder, quiet) is None
    assert not copy.exists()
    assert (tmp_path / "precious_1_all.deb").read_text() == "mine"
    copy.mkdir()  # in the place of the archive
    assert find_archive(package, folder, quiet) is None
