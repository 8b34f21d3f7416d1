from __future__ import annotations

import json

import pytest

from timm_gcp.robustness import results


def test_result_path_is_a_plain_file_name(tmp_path):
    assert results.result_path(tmp_path, "c", "local-dir:/a b/c").parent == tmp_path


def test_open_result_goes_on_only_with_the_same_settings(tmp_path):
    path = tmp_path / "m_c.json"
    result = results.open_result(path, "c", "m", {"seed": 0, "limit": None}, restart=False)
    assert result["corruption_error"] == {} and result["clean_error"] is None
    result["corruption_error"]["snow"] = {"1": 0.5}
    results.save_result(path, result)
    assert results.open_result(path, "c", "m", {"seed": 0, "limit": None}, False) == result
    with pytest.raises(ValueError, match=r"limit was None, now 5; seed was 0, now 1.*--restart"):
        results.open_result(path, "c", "m", {"seed": 1, "limit": 5}, False)
    assert results.open_result(path, "c", "m", {"seed": 1}, restart=True)["corruption_error"] == {}
    assert set(results.open_result(tmp_path / "p", "p", "m", {}, False)) >= {"flip_probability", "top5_distance"}


def test_read_result_rejects(tmp_path):
    with pytest.raises(FileNotFoundError, match="no result file"):
        results.read_result(tmp_path / "none.json", "c")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ValueError, match="not a JSON object"):
        results.read_result(broken, "c")
    broken.write_text(json.dumps({"model": "m", "corruption_error": {}}))
    assert results.read_result(broken, "c")["model"] == "m"
    with pytest.raises(ValueError, match=r"not a result file of `timm-gcp robustness p`: no flip_probability"):
        results.read_result(broken, "p")


def test_baselines(tmp_path):
    assert results.read_baseline("none", "c") is None
    alexnet = results.read_baseline("alexnet", "c")
    assert alexnet["clean_error"] == 0.43478 and len(alexnet["corruption_error"]) == 15
    with pytest.raises(ValueError, match=r"torchvision:alexnet --pretrained"):
        results.read_baseline("alexnet", "p")
    with pytest.raises(FileNotFoundError, match="no result file"):
        results.read_baseline(str(tmp_path / "x.json"), "p")
