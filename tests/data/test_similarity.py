"""Word pairs out of a wheel that is read and never run."""

import zipfile

from cpc.data.sources import similarity


def test_members_are_read_from_the_zip(tmp_path, monkeypatch):
    wheel = tmp_path / "gensim.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(similarity.FOLDER + "wordsim353.tsv", "# a\nlove\tSex\t6.77\n")
        file.writestr(similarity.FOLDER + "simlex999.txt", "old\tnew\t1.58\n")
        file.writestr(similarity.FOLDER + "questions-words.txt", ": one\nA B C D\nE F\n")
    monkeypatch.setattr(similarity, "fetch", lambda *given: wheel)
    judged = similarity.read_judgements()
    assert judged.pairs["wordsim353"].words == (("love", "sex"),)
    assert judged.pairs["simlex999"].similarity.tolist() == [1.58]
    assert judged.analogies == [("a", "b", "c", "d")]
