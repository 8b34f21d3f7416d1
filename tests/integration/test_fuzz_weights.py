"""Seeded fuzz over weight files and configurations: the right answer, or one clear sentence that names the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hostile
import memory
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.record import checked_record
from timm_gcp.weights.record_sources import record_from_args, record_from_folder

BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}


@pytest.fixture(scope="module", autouse=True)
def bounded() -> Iterator[None]:
    with memory.limited():
        yield


@cache
def _saved(kind: str) -> bytes:
    import io

    if kind == "safetensors":
        return save(WEIGHTS, metadata={"arch": "x"})
    file = io.BytesIO()
    torch.save(WEIGHTS, file, _use_new_zipfile_serialization=kind == "zip")
    return file.getvalue()


def answer_or_sentence(path: Path) -> dict[str, Any] | None:
    """What a file holds; None where it is refused, in one line with its name."""
    try:
        found = read_checkpoint(path)
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error) and "weights_only`" not in str(error)
        return None
    for value in found.values():
        if isinstance(value, torch.Tensor):
            value.sum()  # its memory is there
    return found


# (share of the file, new byte), some of them in one place; and a length to cut to, or nothing.
EDITS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_changed_bytes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"

    @BOUNDED
    @given(EDITS, st.none() | st.floats(0, 1))
    def check(edits: list[tuple[float, int]], kept: float | None) -> None:
        content = bytearray(_saved(kind))
        for share, byte in edits:
            content[int(share * len(content))] = byte
        if kept is not None:
            del content[int(kept * len(content)) :]
        path.write_bytes(content)
        found = answer_or_sentence(path)
        if bytes(content) == _saved(kind):
            assert found is not None and all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)
        elif kind == "zip" and found is not None and found.keys() == WEIGHTS.keys():  # each member has its checksum
            assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)

    check()


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([0, -1, 1 << 31, 1 << 62, 10**400, "F32", "I64", "F8_E4M3", "", "\x1b[2J", "../x"])
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def test_safetensors_headers(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    entry = st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "F13", None, 3]),
            "shape": st.lists(st.integers(-1, 4) | st.sampled_from([1 << 40, "2", None]), max_size=3) | JSON,
            "data_offsets": st.lists(st.integers(-4, 32) | st.sampled_from(["0", None, 1 << 60]), max_size=3) | JSON,
        },
    )
    headers = st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__"]) | st.text(max_size=4), entry | JSON, max_size=3
    )

    @BOUNDED
    @given(headers | JSON, st.integers(0, 40))
    def check(header: Any, data: int) -> None:
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"\1" * data)
        found = answer_or_sentence(path)
        if found is not None:  # every byte of the data belongs to one tensor
            assert sum(tensor.numel() * tensor.element_size() for tensor in found.values()) == data

    check()


def test_configurations(tmp_path: Path) -> None:
    good = hostile.good_config(label_names=["a", "b", "c"], timm_gcp={"class_map": {"a": 0}, "recipe": {"lr": 0.1}})
    (tmp_path / "config.json").write_text(json.dumps(good))
    assert record_from_folder(tmp_path).architecture == hostile.SETTINGS["model"]
    inner = [("pretrained_cfg", key) for key in good["pretrained_cfg"]]
    inner += [("model_args", "reduce_dim"), ("timm_gcp", "class_map"), ("timm_gcp", "recipe"), ("timm_gcp", "metrics")]
    places = st.sampled_from([(key,) for key in good] + inner)

    @BOUNDED
    @given(st.lists(st.tuples(places, JSON), min_size=1, max_size=3))
    def check(edits: list[tuple[tuple[str, ...], Any]]) -> None:
        config = json.loads(json.dumps(good))
        for place, value in edits:
            holder = config if len(place) == 1 else config.get(place[0])
            if isinstance(holder, dict):
                holder[place[-1]] = value
        (tmp_path / "config.json").write_text(json.dumps(config))
        refused_or_plain(lambda: record_from_folder(tmp_path), tmp_path)

    check()


def test_arguments_of_a_run(tmp_path: Path) -> None:
    keys = [*hostile.SETTINGS, "timm_gcp", "img_size", "crop_pct", "interpolation", "dataset", "data_dir", "gp"]

    @BOUNDED
    @given(st.dictionaries(st.sampled_from(keys), JSON, max_size=4))
    def check(changed: dict[str, Any]) -> None:
        refused_or_plain(lambda: record_from_args({**hostile.SETTINGS, **changed}, str(tmp_path)), tmp_path)

    check()


def refused_or_plain(read: Any, path: Path) -> None:
    """What is read is plain, bounded and reads as itself again; or there is one sentence with the path."""
    try:
        record = read()
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return
    if record.architecture:
        plain = json.loads(json.dumps(record.plain(), allow_nan=False))
        again = checked_record(plain, "x", record.origin, record.full)
        assert again.plain() == plain
        assert all(side <= 2048 for side in record.data_config.get("input_size", ()))
