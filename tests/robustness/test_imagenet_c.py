from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")

from robustness_sets import SIZE, classifier

from timm_gcp.robustness import imagenet_c
from timm_gcp.robustness.corruptions import TEST_CORRUPTIONS, corrupt, image_seed
from timm_gcp.robustness.imagenet_c import Cell, CorruptedFolders, CorruptedSource
from timm_gcp.robustness.results import open_result
from timm_gcp.robustness.sources import FolderSource, Framing

CELLS = [Cell("clean", 0), Cell("gaussian_noise", 2), Cell("impulse_noise", 5), Cell("glass_blur", 1)]


def empty(tmp_path, label="m"):
    return open_result(tmp_path / f"{label}.json", "c", label, {}, restart=False)


def literal_error(folder, threshold) -> float:
    """Error of `ByBrightness` by plain loops over the files."""
    wrong = []
    for label, name in enumerate(("ant", "bee")):
        for path in sorted((folder / name).iterdir()):
            wrong.append(int(np.asarray(Image.open(path)).mean() / 255 > threshold) != label)
    return float(np.mean(wrong))


def test_errors_of_a_tree_on_disk(c_tree, tmp_path):
    cells = imagenet_c.wanted_cells(["snow", "fog"], [1, 4])
    models = [classifier("a", 0.5), classifier("b", 0.3)]
    results = [empty(tmp_path, "a"), empty(tmp_path, "b")]
    saved = []
    seen = imagenet_c.evaluate(models, results, CorruptedFolders(c_tree, cells, 2), 3, 0, saved.append)
    assert seen == 16 and saved == [0, 1] * 4
    for model, result in zip(models, results, strict=True):
        for cell in cells:
            expected = literal_error(c_tree / cell.corruption / str(cell.severity), model.loaded.model.threshold)
            assert result["corruption_error"][cell.corruption][str(cell.severity)] == expected
    assert results[0]["images"] == {f"{cell.corruption}/{cell.severity}": 4 for cell in cells}
    errors = [e for r in results for by in r["corruption_error"].values() for e in by.values()]
    assert len(set(errors)) > 1  # a scorer that returns one number would not do


def test_a_done_cell_is_not_done_again(c_tree, tmp_path):
    result = empty(tmp_path)
    result["corruption_error"]["snow"] = {"1": 0.125}
    dataset = CorruptedFolders(c_tree, imagenet_c.wanted_cells(["snow"], [1, 2]), 2)
    imagenet_c.evaluate([classifier()], [result], dataset, 8, 0, lambda i: None)
    assert result["corruption_error"]["snow"]["1"] == 0.125 and "2" in result["corruption_error"]["snow"]


def test_images_on_disk_are_not_resized(c_tree):
    image, target = CorruptedFolders(c_tree, [Cell("snow", 1)], 2)[0, 3]
    assert (image.numpy() == np.asarray(Image.open(c_tree / "snow/1/bee/1.png"))).all() and target == 1


def test_limit_is_spread_over_the_classes(c_tree):
    dataset = CorruptedFolders(c_tree, [Cell("snow", 1), Cell("fog", 1)], 2, limit=2)
    assert dataset.counts == [2, 2] and len(dataset) == 4
    assert [dataset[0, i][1] for i in range(2)] == [0, 1]
    assert dataset.paths[0] is dataset.paths[1]  # one list in memory


def test_missing_parts_are_all_listed(c_tree, tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(c_tree / "snow", root / "snow")
    shutil.rmtree(root / "snow" / "3")
    shutil.copytree(c_tree / "snow" / "1", root / "spatter" / "1")
    cells = imagenet_c.wanted_cells(["snow", "fog", "spatter", "saturate"], [1, 3])
    with pytest.raises(ValueError, match=r"lacks snow/3, fog/1, fog/3, spatter/3: .*--partial"):
        imagenet_c.cells_on_disk(root, cells, partial=False)
    assert imagenet_c.cells_on_disk(root, cells, partial=True) == [Cell("snow", 1), Cell("spatter", 1)]
    # An extra corruption that is absent altogether isn't missed.
    only = imagenet_c.wanted_cells(["snow", "saturate"], [1])
    assert imagenet_c.cells_on_disk(root, only, partial=False) == [Cell("snow", 1)]
    with pytest.raises(ValueError, match="holds none of the corruptions"):
        imagenet_c.cells_on_disk(root, imagenet_c.wanted_cells(["fog"], [1]), partial=True)
    with pytest.raises(FileNotFoundError, match=r"no folder .*none"):
        imagenet_c.cells_on_disk(tmp_path / "none", cells, partial=True)


def test_cells_cut_short_are_refused(c_tree, tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(c_tree / "snow", root / "snow")
    (root / "snow" / "2" / "ant" / "0.png").unlink()
    cells = imagenet_c.wanted_cells(["snow"], [1, 2])
    with pytest.raises(ValueError, match=r"different numbers of images \(snow/1: 4, snow/2: 3\)"):
        CorruptedFolders(root, cells, 2)
    assert CorruptedFolders(root, cells, 2, partial=True).counts == [4, 3]


def test_images_of_different_size_are_refused(c_tree, tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(c_tree / "snow" / "1", root / "snow" / "1")
    Image.new("RGB", (40, 40)).save(root / "snow" / "1" / "ant" / "0.png")
    dataset = CorruptedFolders(root, [Cell("snow", 1)], 2)
    with pytest.raises(ValueError, match="images of one batch differ in size"):
        imagenet_c.evaluate([classifier()], [empty(tmp_path)], dataset, 4, 0, lambda i: None)


def test_wanted_cells_rejects():
    with pytest.raises(ValueError, match="unknown corruption 'rain'; choose from gaussian_noise"):
        imagenet_c.wanted_cells(["rain"], [1])
    with pytest.raises(ValueError, match="severities are 1, 2, 3, 4, 5; got 6"):
        imagenet_c.wanted_cells(["snow"], [6])
    assert len(imagenet_c.wanted_cells(TEST_CORRUPTIONS, [1, 2, 3, 4, 5])) == 75


def pictures(dataset, batch_size, workers) -> list[np.ndarray]:
    from timm_gcp.robustness.streams import stream

    return [
        image.numpy()
        for _, _, _, batch in stream(dataset, dataset.counts, batch_size, workers, imagenet_c._stack)
        for image in batch[0]
    ]


def test_on_the_fly_does_not_depend_on_workers_batches_or_the_subset(clean_tree):
    framing = Framing(SIZE, 52)
    whole = CorruptedSource(FolderSource(clean_tree, 2), framing, CELLS, seed=3)
    first = pictures(whole, 2, 0)
    np.random.seed(5)
    torch.manual_seed(5)
    for batch_size, workers in ((5, 2), (1, 0)):
        assert all((a == b).all() for a, b in zip(first, pictures(whole, batch_size, workers), strict=True))
    half = CorruptedSource(FolderSource(clean_tree, 2, limit=3), framing, CELLS[::-1], seed=3)
    assert half.source.positions.tolist() == [0, 2, 4]
    for part, cell in enumerate(half.cells):
        for i, position in enumerate(half.source.positions):
            assert (half[part, i][0].numpy() == first[CELLS.index(cell) * 6 + position]).all()
    other = pictures(CorruptedSource(FolderSource(clean_tree, 2), framing, CELLS, seed=4), 2, 0)
    assert all((a == b).all() for a, b in zip(first[:6], other[:6], strict=True))  # clean
    assert all((a != b).any() for a, b in zip(first[6:], other[6:], strict=True))


def test_on_the_fly_corrupts_the_framed_image(clean_tree):
    source, framing = FolderSource(clean_tree, 2), Framing(SIZE, 52)
    dataset = CorruptedSource(source, framing, CELLS, seed=3)
    clean = framing.crop(source.read(4)[0])
    assert (dataset[0, 4][0].numpy() == clean).all()
    own = image_seed(3, 4, "glass_blur", 1)
    assert (dataset[3, 4][0].numpy() == corrupt(clean, "glass_blur", 1, own)).all()
    assert dataset[3, 4][1] == 1
