from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

pytest.importorskip("av", reason="the robustness extra isn't installed")
pytest.importorskip("cv2", reason="the robustness extra isn't installed")

from robustness_sets import SIZE, classifier, levels, write_clip

from timm_gcp.robustness import imagenet_p, metrics
from timm_gcp.robustness.corruptions import image_seed
from timm_gcp.robustness.imagenet_p import Clips, Sequences
from timm_gcp.robustness.perturbations import perturb
from timm_gcp.robustness.results import open_result
from timm_gcp.robustness.sources import FolderSource, Framing


def empty(tmp_path):
    return open_result(tmp_path / "m.json", "p", "m", {}, restart=False)


@pytest.fixture
def p_tree(tmp_path):
    root = tmp_path / "imagenet-p"
    dark, light = 60, 200
    write_clip(root / "rotate" / "ant" / "a.mp4", levels([dark, light, light, light]))
    write_clip(root / "rotate" / "bee" / "b.mp4", levels([light, light, light, light]))
    write_clip(root / "shot_noise" / "ant" / "a.mp4", levels([dark, light, light, light]))
    write_clip(root / "shot_noise_2" / "ant" / "a.mp4", levels([dark, dark, light, light]))
    return root


def test_read_clip_agrees_with_another_decoder(tmp_path):
    import cv2

    ramp = np.linspace(20, 235, SIZE).astype(np.uint8)
    frames = np.stack([np.stack([np.tile(np.roll(ramp, 4 * t), (SIZE, 1))] * 3, axis=-1) for t in range(5)])
    write_clip(tmp_path / "x" / "c.mp4", frames)
    ours = imagenet_p.read_clip(tmp_path / "x" / "c.mp4")
    capture = cv2.VideoCapture(str(tmp_path / "x" / "c.mp4"))
    theirs = []
    while (frame := capture.read())[0]:
        theirs.append(frame[1][..., ::-1])
    assert ours.shape == frames.shape == np.shape(theirs)
    assert np.abs(ours.astype(int) - np.array(theirs)).mean() < 1.5
    assert np.abs(ours.astype(int) - frames).mean() < 6  # and with what was encoded, but for compression


def test_read_clip_rejects(tmp_path, monkeypatch):
    (tmp_path / "x.mp4").write_bytes(b"no film")
    with pytest.raises(ValueError, match=r"can't decode clip .*x\.mp4"):
        imagenet_p.read_clip(tmp_path / "x.mp4")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match="package av"):
        imagenet_p.read_clip(tmp_path / "x.mp4")


def test_clip_without_frames(tmp_path, monkeypatch):
    import av

    write_clip(tmp_path / "a" / "c.mp4", levels([9, 9]))
    real = av.open(str(tmp_path / "a" / "c.mp4"))

    class Silent:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            real.close()

        def decode(self, video):
            return iter(())

    monkeypatch.setattr(av, "open", lambda _: Silent())
    with pytest.raises(ValueError, match="has no frames"):
        imagenet_p.read_clip(tmp_path / "a" / "c.mp4")


@pytest.mark.parametrize("batch_size", [1, 64])
def test_flips_of_known_clips(p_tree, tmp_path, batch_size):
    result = empty(tmp_path)
    clips = Clips(p_tree, ["rotate", "shot_noise"])
    seen = imagenet_p.evaluate([classifier()], [result], clips, 1, batch_size, 0, lambda i: None)
    assert seen == 12 and result["images"] == {"rotate": 2, "shot_noise": 1}
    # [0, 1, 1, 1]: one flip in three against the frame before, three in three against the first.
    assert result["flip_probability"] == {"rotate": pytest.approx(1 / 6), "shot_noise": 1.0}
    # Of two classes both change places: a distance of 2 at each flip.
    assert result["top5_distance"] == {"rotate": pytest.approx(2 / 6), "shot_noise": 2.0}


def test_difficulty_two(p_tree, tmp_path):
    result = empty(tmp_path)
    clips = Clips(p_tree, ["rotate", "shot_noise"], difficulty=2)
    imagenet_p.evaluate([classifier()], [result], clips, 2, 64, 0, lambda i: None)
    assert result["flip_probability"]["rotate"] == pytest.approx((1 / 2 + 0) / 2)  # pairs two frames apart
    assert result["flip_probability"]["shot_noise"] == pytest.approx(2 / 3)  # the folder shot_noise_2


def test_a_done_perturbation_is_not_done_again(p_tree, tmp_path):
    result = empty(tmp_path)
    result["flip_probability"]["rotate"] = result["top5_distance"]["rotate"] = 0.25
    saved = []
    clips = Clips(p_tree, ["rotate", "shot_noise"])
    imagenet_p.evaluate([classifier()], [result], clips, 1, 64, 0, saved.append)
    assert result["flip_probability"]["rotate"] == 0.25 and saved == [0]


def test_rankings_on_the_device_are_those_of_metrics():
    tied = classifier()
    logits = torch.randint(0, 5, (7, 30), generator=torch.Generator().manual_seed(0)).float()
    tied.loaded.model.forward = lambda x: logits
    frames = torch.zeros(7, SIZE, SIZE, 3, dtype=torch.uint8)
    assert (imagenet_p._rankings(tied, frames, 64) == metrics.ranking(logits.numpy())).all()


def test_parts_on_disk(p_tree, tmp_path):
    names = ["rotate", "tilt", "shot_noise", "gaussian_noise", "shear"]
    with pytest.raises(ValueError, match=r"lacks tilt, gaussian_noise: .*--partial"):
        imagenet_p.perturbations_on_disk(p_tree, names, 1, partial=False)
    with pytest.raises(ValueError, match="lacks tilt, gaussian_noise_2:"):
        imagenet_p.perturbations_on_disk(p_tree, names, 2, partial=False)
    assert imagenet_p.perturbations_on_disk(p_tree, names, 1, partial=True) == ["rotate", "shot_noise"]
    with pytest.raises(ValueError, match="holds none of the perturbations"):
        imagenet_p.perturbations_on_disk(p_tree, ["tilt"], 1, partial=True)
    with pytest.raises(FileNotFoundError, match="no folder"):
        imagenet_p.perturbations_on_disk(tmp_path / "none", names, 1, partial=True)
    (p_tree / "tilt").mkdir()
    with pytest.raises(ValueError, match=r"no clips in .*tilt: expected class/clip\.mp4"):
        Clips(p_tree, ["tilt"])
    assert Clips(p_tree, ["rotate"], limit=1).counts == [1]


def test_choices_are_checked():
    with pytest.raises(ValueError, match="unknown perturbation 'rain'; choose from gaussian_noise"):
        imagenet_p.check_choice(["rain"], 1, on_the_fly=False)
    imagenet_p.check_choice(["shear"], 1, on_the_fly=False)
    with pytest.raises(ValueError, match="unknown perturbation 'shear'"):
        imagenet_p.check_choice(["shear"], 1, on_the_fly=True)
    with pytest.raises(ValueError, match="--difficulty must be one of 1, 2, 3; got 4"):
        imagenet_p.check_choice([], 4, on_the_fly=True)


def test_sequences_on_the_fly(clean_tree):
    source, framing = FolderSource(clean_tree, 2, limit=3), Framing(SIZE, 52)
    dataset = Sequences(source, framing, ["translate", "shot_noise"], difficulty=2, seed=1)
    assert dataset.counts == [3, 3] and len(dataset) == 6
    canvas = framing.resize(source.read(1)[0])
    assert canvas.shape[:2] == (52, 52) and source.positions[1] == 2
    own = image_seed(1, 2, "shot_noise", 2)
    assert (dataset[1, 1].numpy() == perturb(canvas, SIZE, "shot_noise", own, 2)).all()
