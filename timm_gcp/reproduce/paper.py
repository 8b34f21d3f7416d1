"""The figures that the paper prints, as data. Accuracies and AP in %, scores of Table 4 in % of AlexNet's.

Rows are keyed by what was trained: backbone (timm's name of the GAP network), pooling, and what else tells them apart.
"""

from __future__ import annotations

IMAGENET_IMAGES = 1_281_167  # training images of ImageNet-1k

TITLES = {
    "mobilenetv2_100": "MobileNetV2",
    "shufflenet_v2_x1_0": "ShuffleNet V2",
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "resnet101": "ResNet-101",
    "resnet152": "ResNet-152",
}
BACKBONES = tuple(name for name in TITLES if name != "resnet152")  # the six that are trained with GCP
RESNETS = tuple(name for name in BACKBONES if name.startswith("resnet"))

# Table 1: the gradient with respect to the weight of the last convolution, by method.
TABLE_1 = {
    "GAP": "η Cᵀ ∂L/∂Z ∂X/∂W, C constant",
    "GCP": "≈ F⁻¹ ∂L/∂Z ∂X/∂W, F⁻¹ = η 2JX(2Kᵀ∘Λ^½ + ½Λ^(−½))",
    "GAP + K-FAC": "H⁻¹ Cᵀ ∂L/∂Z ∂X/∂W, H⁻¹ = η(∂L/∂X)⁻¹ ⊗ X̂⁻¹",
}

# Table 2: backbone, pooling, schedule -> batch size, epochs, matching epoch, top-1, top-5.
TABLE_2 = {
    ("mobilenetv2_100", "GAP", "norm"): (96, 400, None, 71.58, 90.30),
    ("mobilenetv2_100", "GCP", "adju"): (192, 150, 68, 73.97, 91.54),
    ("shufflenet_v2_x1_0", "GAP", "norm"): (1024, 240, None, 67.96, 87.84),
    ("shufflenet_v2_x1_0", "GCP", "adju"): (1024, 100, 78, 71.17, 89.74),
    ("resnet18", "GAP", "norm"): (256, 100, None, 70.47, 89.62),
    ("resnet18", "GCP", "adju"): (256, 50, 32, 74.86, 91.81),
    ("resnet34", "GAP", "norm"): (256, 100, None, 74.19, 91.61),
    ("resnet34", "GCP", "adju"): (256, 50, 38, 76.81, 93.09),
    ("resnet50", "GAP", "norm"): (256, 100, None, 76.17, 92.93),
    ("resnet50", "GCP", "adju"): (256, 50, 40, 78.03, 93.95),
    ("resnet50", "GAP", "K-FAC"): (4096, 35, None, 75.10, None),  # the paper quotes it from Osawa et al., CVPR 2019
    ("resnet50", "GCP", "fast"): (256, 30, 20, 75.31, 92.15),
    ("resnet101", "GAP", "norm"): (256, 100, None, 77.67, 93.89),
    ("resnet101", "GCP", "adju"): (256, 50, 41, 79.18, 94.51),
}

# Table 3: the learning rate in epoch e (ShuffleNet V2: at a step), as printed.
TABLE_3 = {
    ("mobilenetv2_100", "norm"): "0.045 × 0.98^e",
    ("mobilenetv2_100", "fast"): "0.06 × 0.92^e",
    ("mobilenetv2_100", "adju"): "linear(6e-2, 1e-3, 0), linear(1e-2, 1e-4, 50), linear(1e-3, 1e-5, 100)",
    ("shufflenet_v2_x1_0", "norm"): "0.5 × (1 − step / t_step), 240 epochs",
    ("shufflenet_v2_x1_0", "fast"): "0.5 × (1 − step / t_step), 60 epochs",
    ("shufflenet_v2_x1_0", "adju"): "0.5 × (1 − step / t_step), 100 epochs",
    ("resnet", "norm"): "0.1^((e // 30) + 1)",
    ("resnet", "fast"): "0.1 × (1 − (e − 1) / 52)^11",
    ("resnet", "adju"): "0.1 × (1 − (e − 1) / 49)^2",
}

# Table 4: backbone, pooling -> mCE, relative mCE, mFR (headed mFP there), mT5D.
TABLE_4 = {
    ("mobilenetv2_100", "GAP"): (87.1, 114.9, 79.8, 96.5),
    ("mobilenetv2_100", "GCP"): (81.7, 110.6, 64.3, 87.6),
    ("shufflenet_v2_x1_0", "GAP"): (92.7, 126.7, 94.7, 108.2),
    ("shufflenet_v2_x1_0", "GCP"): (85.2, 112.6, 75.2, 95.5),
    ("resnet18", "GAP"): (84.7, 103.9, 72.8, 87.0),
    ("resnet18", "GCP"): (76.3, 101.3, 53.2, 77.1),
    ("resnet34", "GAP"): (77.9, 98.7, 61.7, 79.5),
    ("resnet34", "GCP"): (72.4, 96.9, 47.7, 72.4),
    ("resnet50", "GAP"): (76.7, 105.0, 58.0, 78.3),
    ("resnet50", "GCP"): (70.7, 97.9, 47.5, 74.6),
    ("resnet101", "GAP"): (70.3, 93.7, 52.6, 73.9),
    ("resnet101", "GCP"): (65.5, 89.1, 42.1, 68.3),
}

# Table 5: backbone, schedule, D -> top-1, top-5.
TABLE_5 = {
    ("mobilenetv2_100", "norm", 256): (74.36, 91.90),
    ("mobilenetv2_100", "norm", 128): (73.28, 91.30),
    ("mobilenetv2_100", "adju", 256): (73.97, 91.54),
    ("mobilenetv2_100", "adju", 128): (72.58, 90.90),
    ("resnet50", "norm", 256): (78.56, 94.16),
    ("resnet50", "norm", 128): (78.21, 93.93),
    ("resnet50", "adju", 256): (78.03, 93.95),
    ("resnet50", "adju", 128): (77.64, 93.67),
}

# Table 6: detector, backbone, method -> AP, AP50, AP75, APS, APM, APL of boxes on val2017.
TABLE_6 = {
    ("fasterrcnn", "resnet50", "GAP"): (36.4, 58.2, 39.2, 21.8, 40.0, 46.2),
    ("fasterrcnn", "resnet50", "GCP_D"): (36.6, 58.4, 39.5, 21.3, 40.8, 47.0),
    ("fasterrcnn", "resnet50", "GCP_M"): (37.1, 59.1, 39.9, 22.0, 40.9, 47.6),
    ("fasterrcnn", "resnet101", "GAP"): (38.7, 60.6, 41.9, 22.7, 43.2, 50.4),
    ("fasterrcnn", "resnet101", "GCP_D"): (39.5, 60.7, 43.1, 22.9, 44.1, 51.4),
    ("fasterrcnn", "resnet101", "GCP_M"): (39.6, 61.2, 43.1, 23.3, 43.9, 51.3),
    ("maskrcnn", "resnet50", "GAP"): (37.2, 58.9, 40.3, 22.2, 40.7, 48.0),
    ("maskrcnn", "resnet50", "GCP_D"): (37.3, 58.8, 40.4, 22.0, 41.1, 48.2),
    ("maskrcnn", "resnet50", "GCP_M"): (37.9, 59.4, 41.3, 22.4, 41.5, 49.0),
    ("maskrcnn", "resnet101", "GAP"): (39.4, 60.9, 43.3, 23.0, 43.7, 51.4),
    ("maskrcnn", "resnet101", "GCP_D"): (40.3, 61.5, 44.0, 24.1, 44.7, 52.5),
    ("maskrcnn", "resnet101", "GCP_M"): (40.7, 62.0, 44.6, 23.9, 45.2, 52.9),
}

# Table 7: the same of masks, Mask R-CNN.
TABLE_7 = {
    ("maskrcnn", "resnet50", "GAP"): (34.1, 55.5, 36.2, 16.1, 36.7, 50.0),
    ("maskrcnn", "resnet50", "GCP_D"): (34.2, 55.3, 36.4, 15.8, 37.1, 50.1),
    ("maskrcnn", "resnet50", "GCP_M"): (34.7, 56.3, 36.8, 16.4, 37.5, 50.6),
    ("maskrcnn", "resnet101", "GAP"): (35.9, 57.7, 38.4, 16.8, 39.1, 53.6),
    ("maskrcnn", "resnet101", "GCP_D"): (36.5, 58.2, 38.9, 17.3, 39.9, 53.5),
    ("maskrcnn", "resnet101", "GCP_M"): (36.7, 58.7, 39.1, 17.6, 39.9, 53.7),
}

# Table 8: backbone, down-sampling -> top-1, top-5 on ImageNet; AP, AP50, AP75 of Faster R-CNN.
TABLE_8 = {
    ("resnet18", "w/o DS"): (75.47, 92.23, 30.0, 50.7, 31.4),
    ("resnet18", "w/ DS"): (74.48, 91.68, 30.3, 51.0, 32.2),
    ("resnet50", "w/o DS"): (78.56, 94.16, 36.6, 58.4, 39.5),
    ("resnet50", "w/ DS"): (78.10, 94.09, 36.8, 58.5, 39.7),
    ("resnet101", "w/o DS"): (79.48, 94.75, 39.5, 60.7, 43.1),
    ("resnet101", "w/ DS"): (79.11, 94.56, 39.6, 60.9, 43.4),
}

# Table 9 (Appendix V): backbone, pooling -> parameters in millions, GFLOPs (multiply-adds), training and inference in
# ms per image on four Titan Xp, top-1 and top-5 (headed "Err." there). GCP has an "8k" covariance.
TABLE_9 = {
    ("resnet18", "GAP"): (11.69, 1.81, 0.77, 0.60, 70.47, 89.59),
    ("resnet18", "GCP"): (19.60, 3.11, 1.21, 0.85, 75.07, 92.14),
    ("resnet34", "GAP"): (21.80, 3.66, 1.17, 0.88, 74.19, 91.60),
    ("resnet34", "GCP"): (29.71, 5.56, 1.61, 1.10, 76.80, 93.11),
    ("resnet50", "GAP"): (25.56, 3.86, 1.85, 1.29, 76.02, 92.97),
    ("resnet50", "GCP"): (32.32, 6.19, 2.22, 1.49, 78.56, 93.72),
    ("resnet101", "GAP"): (44.55, 7.57, 2.79, 1.72, 77.67, 93.83),
    ("resnet101", "GCP"): (51.31, 9.90, 3.14, 1.83, 79.47, 94.30),
    ("resnet152", "GAP"): (60.19, 11.28, 3.54, 2.55, 78.13, 94.04),
}

# Section 3.2 and Appendix I: steps of training, steps between two probes, range of step sizes, by backbone.
FIGURE_2 = {
    "mobilenetv2_100": (500_000, 1000, (0.045, 1.5)),
    "resnet18": (100_000, 500, (0.1, 75.0)),
}
FIGURE_2_POINTS = 50
