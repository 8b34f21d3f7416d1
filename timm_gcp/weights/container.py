"""The outside of a weight file, before anything in it is used: kind, length, checksums, and how much it asks for.

A damaged file is told by its own figures: a safetensors header says where each tensor lies, a zip archive has a
checksum for each member. A file may hold tensors that are larger than the file (compressed, or one number repeated),
within `allowance`; one that asks for more is refused, so that a small file can't take the machine's memory.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from timm_gcp.common.messages import one_line

_SNIFF = 512  # bytes that tell the kind of file
AGAIN = "Download it again"
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # bytes, as safetensors itself allows
_ALWAYS = 64 << 20  # bytes that any file may ask for
_TIMES = 16  # its own size that a larger file may


def allowance(size: int) -> int:
    """Bytes of memory that the tensors of a file of `size` bytes may take."""
    return max(_ALWAYS, _TIMES * size)


def check_asked(path: Path, asked: float, what: str) -> None:
    """Refuse what takes far more memory than the file that asks for it has bytes.

    Raises:
        ValueError: It asks for more; names the file and both sizes.
    """
    size = path.stat().st_size
    if asked > allowance(size):
        raise ValueError(
            f"{path} asks for {asked:,.0f} bytes of memory for {what}, but is itself only {size:,} bytes long: it is "
            f"damaged, or made to exhaust the memory. {AGAIN} from a source that you trust."
        )


def check_file(path: str | Path) -> str:
    """Kind of a weight file, `'safetensors'` or `'torch'`, found out from its first bytes and its length.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is empty, a web page, a Git LFS pointer, something else, or a safetensors file whose header
            doesn't fit it.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {what}. Name a checkpoint: .pth, .pth.tar, .bin or .safetensors.")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_SNIFF)
    if not size:
        raise ValueError(f"{path} is empty. {AGAIN}.")
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        raise ValueError(
            f"{path} is a web page, not weights: the server answered with a page (a login, a quota or a virus-scan "
            f"warning) that was saved under this name. {AGAIN} through the browser, or with `timm-gcp weights fetch`."
        )
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"{path} is a Git LFS pointer, not weights. Run `git lfs pull` in its repository.")
    if start.startswith(b"PK\x03\x04"):
        return "torch"
    length = struct.unpack("<Q", start[:8])[0] if size >= 8 else 0
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        _check_safetensors(path, size, length)
        return "safetensors"
    if start.startswith(b"\x80"):  # a bare pickle; a safetensors file may start so too, so it comes first
        return "torch"
    if start[257:262] == b"ustar":
        raise ValueError(f"{path} is a tar archive. Unpack it and name the checkpoint inside.")
    raise ValueError(
        f"{path} is neither a PyTorch checkpoint nor a safetensors file: it starts with {start[:8]!r}. {AGAIN}."
    )


def check_zip(path: Path) -> tuple[bool, Counter[int]]:
    """Check every member of a PyTorch archive by its checksum.

    Returns:
        Whether all are stored, not compressed, so that the file can be mapped into memory; and the sizes of its members
        in bytes, each with the number of members that have it.

    Raises:
        ValueError: The archive or a member is damaged, encrypted, named twice, compressed in another way than
            torch reads, or unpacks to far more than the file holds.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if len(set(names)) < len(names):
                raise ValueError(f"{path} is damaged: two members of the archive have the same name. {AGAIN}.")
            for member in members:
                if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(
                        f"{path}: its member {member.filename!r} is encrypted, or compressed in a way that PyTorch "
                        "doesn't read. Save it again with torch.save."
                    )
            check_asked(path, sum(member.file_size for member in members), "what it has packed")
            broken = archive.testzip()
    except Exception as error:  # zipfile has a dozen kinds for what it meets in damaged bytes
        if isinstance(error, PermissionError) or str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path} is damaged or cut short ({one_line(error)}). {AGAIN}.") from error
    if broken is not None:
        raise ValueError(f"{path} is damaged: the checksum of its member {broken!r} is wrong. {AGAIN}.")
    stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    return stored, Counter(member.file_size for member in members)


def read_header(path: Path) -> dict[str, Any]:
    """Header of a safetensors file that `check_file` has accepted."""
    with path.open("rb") as file:
        header = file.read(struct.unpack("<Q", file.read(8))[0])
    return dict(json.loads(header))


def _check_safetensors(path: Path, size: int, length: int) -> None:
    """Compare a safetensors file with what its header says of each tensor: type, shape and place."""
    damaged = f"{path} is damaged: it has no readable safetensors header. {AGAIN}."
    if not 2 <= length <= _LONGEST_HEADER:
        raise ValueError(damaged)
    with path.open("rb") as file:
        header = file.read(8 + min(length, size))[8:]
    if len(header) < length:
        raise ValueError(f"{path} is cut short: {size:,} bytes, less than its header of {length:,}. {AGAIN}.")
    try:
        entries = json.loads(header, object_pairs_hook=_without_repeats)
        metadata = entries.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError("its metadata are not texts")
        ends = _placed(entries)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(damaged if not str(error) else f"{damaged[:-1]} ({one_line(error)}).") from error
    expected = 8 + length + ends
    if size != expected:
        what = "is cut short" if size < expected else "is damaged"
        raise ValueError(f"{path} {what}: {size:,} bytes, its header says {expected:,}. {AGAIN}.")


def _without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it names {key!r} twice")
        found[key] = value
    return found


def _placed(entries: Mapping[str, Any]) -> int:
    """Bytes of all tensors of a header, which have to follow each other without gap or overlap."""
    places = []
    for name, entry in entries.items():
        kind, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if kind not in _ITEM_BYTES:
            raise ValueError(f"{name!r} has the unknown type {kind!r}")
        if not isinstance(shape, list) or any(type(side) is not int or not 0 <= side < 1 << 48 for side in shape):
            raise ValueError(f"{name!r} has the shape {shape!r}")
        if type(start) is not int or type(stop) is not int or not 0 <= start <= stop:
            raise ValueError(f"{name!r} lies from {start!r} to {stop!r}")
        if stop - start != math.prod(shape) * _ITEM_BYTES[kind]:
            raise ValueError(f"{name!r} has {stop - start} bytes for {kind} {shape}")
        places.append((start, stop, name))
    end = 0
    for start, stop, name in sorted(places):
        if start != end:
            raise ValueError(f"{name!r} overlaps another tensor or leaves a gap")
        end = stop
    return end
