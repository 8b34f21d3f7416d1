from __future__ import annotations

import numpy as np
import pytest

from timm_gcp.robustness import report
from timm_gcp.robustness.corruptions import SEVERITIES, TEST_CORRUPTIONS
from timm_gcp.robustness.perturbations import TEST_PERTURBATIONS
from timm_gcp.robustness.results import read_baseline
from timm_gcp.robustness.scores import score_c, score_p


def c_result(model="m", clean=0.2, factor=1.0) -> dict:
    rng = np.random.RandomState(0)
    errors = {name: {str(s): float(factor * rng.uniform(0.3, 0.6)) for s in SEVERITIES} for name in TEST_CORRUPTIONS}
    return {"model": model, "clean_error": clean, "corruption_error": errors}


def p_result(model="m", factor=1.0, difficulty=1) -> dict:
    rng = np.random.RandomState(1)
    return {
        "model": model,
        "settings": {"difficulty": difficulty},
        "flip_probability": {name: float(factor * rng.uniform(0.1, 0.2)) for name in TEST_PERTURBATIONS},
        "top5_distance": {name: float(factor * rng.uniform(1, 2)) for name in TEST_PERTURBATIONS},
    }


def test_alexnet_scores_100():
    alexnet = read_baseline("alexnet", "c")
    scores = score_c(alexnet, alexnet)
    assert scores["mCE"] == 100.0 and scores["relative_mCE"] == 100.0 and scores["complete"]


def test_against_another_model():
    half, whole = c_result(factor=0.5, clean=0.1), c_result("base")
    scores = score_c(half, whole)
    assert scores["mCE"] == pytest.approx(50, abs=1e-12)
    assert scores["relative_mCE"] == pytest.approx(50, abs=1e-12)
    mean = np.mean([list(errors.values()) for errors in half["corruption_error"].values()])
    assert scores["mean_error"] == pytest.approx(mean, abs=1e-14)
    assert not scores["notes"]


def test_extra_corruptions_are_in_no_score():
    result, base = c_result(), c_result("base")
    with_extra = score_c(result, base)["mCE"]
    result["corruption_error"]["spatter"] = {str(s): 1.0 for s in SEVERITIES}
    scores = score_c(result, base)
    assert scores["mCE"] == with_extra
    assert scores["mean_error"] == score_c(c_result(), base)["mean_error"]
    assert scores["corruption_mean_error"]["spatter"] == 1.0


def test_a_part_is_not_called_mce():
    result = c_result()
    del result["corruption_error"]["snow"]["3"]
    scores = score_c(result, c_result("base"))
    assert not scores["complete"] and "mCE" not in scores and "relative_mCE" not in scores
    assert scores["partial_CE"] == pytest.approx(100)
    text = report.markdown_c([result], [scores], c_result("base"))
    assert "mCE" not in text and "in part" in text and "mean CE of what was measured" in text


def test_published_means_need_all_severities():
    result = c_result()
    del result["corruption_error"]["snow"]["3"]
    scores = score_c(result, read_baseline("alexnet", "c"))
    assert "snow" not in scores["ce"] and "fog" in scores["ce"]
    assert scores["notes"] == [("the baseline has no figures for severities 1, 2, 4, 5", "snow")]


def test_what_is_not_defined_is_noted_and_left_out():
    result, base = c_result(), c_result("base")
    base["corruption_error"]["fog"] = {str(s): 0.0 for s in SEVERITIES}
    base["corruption_error"]["snow"] = {str(s): 0.15 for s in SEVERITIES}  # below its clean error 0.2
    del base["corruption_error"]["frost"]
    scores = score_c(result, base)
    assert set(TEST_CORRUPTIONS) - set(scores["ce"]) == {"fog", "frost"}
    assert set(TEST_CORRUPTIONS) - set(scores["relative_ce"]) == {"fog", "frost", "snow"}
    assert "mCE" not in scores and len(scores["notes"]) == 3
    result["clean_error"] = None
    scores = score_c(result, c_result("base"))
    assert "mCE" in scores and "relative_mCE" not in scores
    assert scores["notes"] == [("relative scores need this model's error on clean images", "")]


def test_no_baseline_gives_unnormalised_values_only():
    scores = score_c(c_result(), None)
    assert scores["mean_error"] > 0 and not scores["ce"] and "mCE" not in scores
    scores = score_p(p_result(), None)
    assert scores["mean_flip_probability"] > 0 and not scores["flip_rate"] and "mFR" not in scores


def test_perturbation_scores():
    result, base = p_result(factor=0.5), p_result("base")
    scores = score_p(result, base)
    assert scores["mFR"] == pytest.approx(50) and scores["mT5D"] == pytest.approx(50)
    assert score_p(base, base)["mFR"] == 100.0
    result["flip_probability"]["speckle_noise"] = result["top5_distance"]["speckle_noise"] = 1.0
    assert score_p(result, base)["mFR"] == pytest.approx(50)
    del result["flip_probability"]["tilt"], result["top5_distance"]["tilt"]
    scores = score_p(result, base)
    assert "mFR" not in scores and scores["partial_FR"] == pytest.approx(50)
    base["flip_probability"]["snow"] = 0.0
    notes = score_p(p_result(), base)["notes"]
    assert notes == [("flip probability: the baseline never changes, so there is no ratio", "snow")]


def test_baseline_of_another_difficulty_is_refused():
    with pytest.raises(ValueError, match="baseline was measured at difficulty 2, this model at 1"):
        score_p(p_result(), p_result("base", difficulty=2))


def test_notes_of_one_kind_share_a_line():
    models, base = [c_result("a"), c_result("b")], c_result("base")
    for name in ("snow", "fog"):
        base["corruption_error"][name] = {str(s): 0.1 for s in SEVERITIES}
    text = report.markdown_c(models, [score_c(model, base) for model in models], base)
    assert "- a, b: nothing is added to the baseline's clean error, so the relative CE isn't defined: snow, fog" in text
    models[1]["clean_error"] = None
    text = report.markdown_c(models, [score_c(model, base) for model in models], base)
    assert text.endswith("isn't defined: snow, fog\n- b: relative scores need this model's error on clean images\n")


def test_reports_label_unnormalised_values():
    result, base = c_result(), c_result("base")
    text = report.markdown_c([result], [score_c(result, base)], base)
    assert "unnormalised" in text and "| mCE |" in text and "baseline's, base" in text
    mine, other = p_result(), p_result("base")
    text = report.markdown_p([mine], [score_p(mine, other)], other)
    assert text.count("unnormalised") >= 2 and "mFR" in text and "mT5D" in text
    rows = report.csv_c([result]).splitlines()
    assert len(rows) == 1 + 1 + 75 and rows[1].startswith("m,clean,clean,0,0.2")
    assert len(report.csv_p([mine, other]).splitlines()) == 1 + 20
