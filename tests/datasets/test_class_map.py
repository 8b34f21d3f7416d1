"""Class maps and the order of classes."""

from __future__ import annotations

import pickle

import pytest

from timm_gcp.datasets.class_map import check_fits, class_order, digest, names_of, read_class_map


def test_natural_order():
    assert class_order(["10", "2", "1", "b", "A"]) == ["1", "2", "10", "A", "b"]
    with pytest.raises(ValueError, match="'01' and '1' have the same place in natural order"):
        class_order(["1", "01"])


def test_text_and_pickle_agree_with_timm(tmp_path):
    from timm.data.readers.class_map import load_class_map

    (tmp_path / "m.txt").write_text("cat\ndog \nemu\n\n")
    (tmp_path / "m.pkl").write_bytes(pickle.dumps({"dog": 1, "cat": 0, "emu": 2}))
    wanted = {"cat": 0, "dog": 1, "emu": 2}
    assert read_class_map(tmp_path / "m.txt") == read_class_map(tmp_path / "m.pkl") == wanted
    assert read_class_map("m.txt", tmp_path) == wanted
    assert wanted.items() <= load_class_map(str(tmp_path / "m.txt")).items()
    assert read_class_map(None) is None and read_class_map("") is None


class Evil:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.txt", b"a\n\nb\n", "line 2 is empty, which would leave class 1 without a name"),
        ("m.txt", b"a\nb\na\n", "names 'a' twice, in lines 1 and 3"),
        ("m.txt", b"\n", "names no class"),
        ("m.txt", b"\xff\xfe\x00", "is not a text file in UTF-8"),
        ("m.csv", b"a", r"must end in \.txt or \.pkl"),
        ("m.pkl", b"no pickle", "is not a pickled dict"),
        ("m.pkl", pickle.dumps(["a"]), "is not a pickled dict"),
        ("m.pkl", pickle.dumps(Evil()), "is not a pickled dict"),
        ("m.pkl", pickle.dumps({"a": 0, "b": 0}), "an index of its own"),
        ("m.pkl", pickle.dumps({"a": -1}), "an index of its own, from 0 up"),
        ("m.pkl", pickle.dumps({1: 0}), "an index of its own"),
    ],
)
def test_files_that_are_no_class_map(tmp_path, capsys, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_class_map(tmp_path / name)
    assert "ran" not in capsys.readouterr().out


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no class map at 'none\.txt'"):
        read_class_map("none.txt", tmp_path)


def test_names_and_bounds():
    assert names_of({"b": 1, "a": 0}, 2) == ("a", "b")
    with pytest.raises(ValueError, match=r"names 1 of the model's 3 classes: name 0, 2, too"):
        names_of({"b": 1}, 3)
    with pytest.raises(ValueError, match=r"names 4 classes; the model has 3 classes \(no place for 'd'\)"):
        check_fits({"a": 0, "d": 3}, 3, "the class map")


def test_digest_is_of_the_content():
    assert digest({"a": 0, "b": 1}) == digest({"b": 1, "a": 0}) != digest({"a": 1, "b": 0})
