"""What the authors' release and paper say about their 40 ImageNet-1k checkpoints.

The release's figures and the paper's do not always agree; both are kept. Tables of the paper: `convergence` compares
LRnorm with GAP to LRadju with GCP, `dimension` compares D = 256 with D = 128, `down-sampling` compares the strides of
the last ResNet stage.
"""

from __future__ import annotations

# fmt: off
# Architecture here, file name, top-1 and top-5 accuracy in % as the release lists them, Google Drive id.
ROWS = (
    ("mobilenetv2_100", "MobileNetV2_GAP_LRnorm", 71.62, 90.18, "1NTKVzjpuJtDEBBShgBPailKdhntUXwKs"),
    ("mobilenetv2_100", "MobileNetV2_GAP_LRfast", 69.29, 89.01, "1_OeoWrDUoSsRDFOA0-ZmIOzmWyelv9op"),
    ("mobilenetv2_100", "MobileNetV2_GAP_LRadju", 71.27, 90.08, "177K9xr89XJ-Upax2NB3WNb9s6X1eWZA7"),
    ("mobilenetv2_100_gcp", "MobileNetV2_GCP_LRnorm", 74.39, 91.86, "18OpYWyBUGqSIiY4m0BqKsHNo22IuNB80"),
    ("mobilenetv2_100_gcp", "MobileNetV2_GCP_LRfast", 72.45, 90.51, "1VHTcaoZU-IoeQlflbpPZJrmlP79vgMYF"),
    ("mobilenetv2_100_gcp", "MobileNetV2_GCP_LRadju", 73.97, 91.53, "1b77p7IkLVMGKcvBb2p7tHgjr_I6tZjWh"),
    ("mobilenetv2_100_gcp_d128", "MobileNetV2_GCP_LRnorm_128", 73.28, 91.26, "1D5ab0tRhIWvFsV9vR67-GQtnen71MFmB"),
    ("mobilenetv2_100_gcp_d128", "MobileNetV2_GCP_LRadju_128", 72.58, 90.87, "1ZSZBIgknAOX3oC0sx6gsfbmMEV0gFKJ4"),
    ("shufflenet_v2_x1_0", "ShuffleNetV2_GAP_LRnorm", 67.96, 87.84, "1MtG2wGDk-JweO1vzX_7LxBvJvF_jCo1r"),
    ("shufflenet_v2_x1_0", "ShuffleNetV2_GAP_LRfast", 66.13, 86.54, "1apUs5zfR_ZdJO00tJHZwYHi2dIv6zVpm"),
    ("shufflenet_v2_x1_0", "ShuffleNetV2_GAP_LRadju", 67.15, 87.35, "1xnmnY7Dk6A5UaKSkS3xx71dz-kiMLrzw"),
    ("shufflenet_v2_x1_0_gcp", "ShuffleNetV2_GCP_LRnorm", 71.83, 90.04, "1fEOyjZrXdcGuXvj8l0XwYCdt5uQx6fAM"),
    ("shufflenet_v2_x1_0_gcp", "ShuffleNetV2_GCP_LRfast", 70.29, 89.00, "1-r46jSo8qooPeQdymyToaL3pQNTmOHtr"),
    ("shufflenet_v2_x1_0_gcp", "ShuffleNetV2_GCP_LRadju", 71.17, 89.74, "1P-RlJat6XL7BxD5oCDz_ifKDq7NNRYqj"),
    ("resnet18", "ResNet18_GAP_LRnorm", 70.47, 89.59, "1hK56OuyrXiEIrp7D3CroaGM2L2-FSTl0"),
    ("resnet18", "ResNet18_GAP_LRfast", 66.02, 86.69, "1870WX_VaHZd5qgcyUXaqtJ-EFpqx9uX4"),
    ("resnet18", "ResNet18_GAP_LRadju", 69.62, 89.00, "1ttvh_nt6JURkkLHKhVr9r-VwcwXd7cfS"),
    ("resnet18_gcp", "ResNet18_GCP_LRnorm", 75.48, 92.23, "1D4ZmTHJ5dmTTpdL2IA3UJUIm54cF45na"),
    ("resnet18_gcp", "ResNet18_GCP_LRfast", 72.02, 89.97, "1PkMvpWj6FH1d4RxgNKkqoalt3mqRo9J8"),
    ("resnet18_gcp", "ResNet18_GCP_LRadju", 74.86, 91.81, "1BnO-zTz_L3zqO9bW4c-YE9Ao0d2qDZuD"),
    ("resnet34", "ResNet34_GAP_LRnorm", 74.19, 91.60, "1V-4n8sxtCmp5iiWws1kBhYXFXsG6fVrX"),
    ("resnet34", "ResNet34_GAP_LRfast", 69.88, 89.25, "1c5RxEeipeWt07OlOT1BYWRJhf3XcEDA9"),
    ("resnet34", "ResNet34_GAP_LRadju", 73.13, 91.14, "1-NgzG9zN5nY0jJpV07yKtfKIJ0CpQCkb"),
    ("resnet34_gcp", "ResNet34_GCP_LRnorm", 77.11, 93.33, "15k8roxdmpq8iwasi6Piysh8HK4vlsG_m"),
    ("resnet34_gcp", "ResNet34_GCP_LRfast", 73.88, 91.42, "1I145XHsrAjfuseIdCqesxK825-FrA6Zj"),
    ("resnet34_gcp", "ResNet34_GCP_LRadju", 76.81, 93.04, "1C3m6uicOuYoWiqRrt8ZUjgloa6iSLw-Y"),
    ("resnet50", "ResNet50_GAP_LRnorm", 76.02, 92.97, "17MyDHCKS8wla8GZvwSbfNfQAJ12KofV_"),
    ("resnet50", "ResNet50_GAP_LRfast", 71.08, 90.04, "10yk2wFB_q1VICyTu4CrjWUv-_fnV9Dt2"),
    ("resnet50", "ResNet50_GAP_LRadju", 75.32, 92.47, "1PMNcVO_CNR2JUgXRhBCrqSg9Btj4m4cO"),
    ("resnet50_gcp", "ResNet50_GCP_LRnorm", 78.56, 94.09, "1TmnusKSArjKTTb28cnw2OzrUVc_DAi98"),
    ("resnet50_gcp", "ResNet50_GCP_LRfast", 75.31, 92.11, "1at9nxW658Yeh-jqCUc544ex4_j_iA2VJ"),
    ("resnet50_gcp", "ResNet50_GCP_LRadju", 78.03, 93.95, "1t2j5LNLr51TZ3O1QtYmgRyPe8zDSg9yr"),
    ("resnet50_gcp_d128", "ResNet50_GCP_LRnorm_128", 78.02, 94.02, "1taR2AvNC32YnF9ge4To30JUVa4SNq62g"),
    ("resnet50_gcp_d128", "ResNet50_GCP_LRadju_128", 77.72, 93.73, "1t6r70Vx4J7ev6Lhm0SAalptyF3gQ_5Qk"),
    ("resnet101", "ResNet101_GAP_LRnorm", 77.67, 93.83, "1N-Wu6VAiOHfD4DqbCm-IfupkxZWjUvTc"),
    ("resnet101", "ResNet101_GAP_LRfast", 73.13, 91.06, "1uXVyPGOTgBxwAl1gowyuCgcFRqXT3G0Y"),
    ("resnet101", "ResNet101_GAP_LRadju", 77.53, 93.53, "16JhBYDeQI6-kKAAILFDCfeoPt5nUVAv3"),
    ("resnet101_gcp", "ResNet101_GCP_LRnorm", 79.47, 94.71, "1y8oI2IodJuG7R_gIdrYoXSTPafmszwMh"),
    ("resnet101_gcp", "ResNet101_GCP_LRfast", 76.38, 92.82, "1iLAV7Hu3jWTRINJ6wRumqkReZEpqubHr"),
    ("resnet101_gcp", "ResNet101_GCP_LRadju", 79.18, 94.47, "17lNCi6r8CXHM6-Z8Q7YckRReeZXsRQwQ"),
)
# File name -> top-1, top-5 and the table in which the paper prints them for the same network and schedule.
PAPER = {
    "MobileNetV2_GAP_LRnorm": (71.58, 90.30, "convergence"),
    "MobileNetV2_GCP_LRnorm": (74.36, 91.90, "dimension"),
    "MobileNetV2_GCP_LRadju": (73.97, 91.54, "convergence"),
    "MobileNetV2_GCP_LRnorm_128": (73.28, 91.30, "dimension"),
    "MobileNetV2_GCP_LRadju_128": (72.58, 90.90, "dimension"),
    "ShuffleNetV2_GAP_LRnorm": (67.96, 87.84, "convergence"),
    "ShuffleNetV2_GCP_LRadju": (71.17, 89.74, "convergence"),
    "ResNet18_GAP_LRnorm": (70.47, 89.62, "convergence"),
    "ResNet18_GCP_LRnorm": (75.47, 92.23, "down-sampling"),
    "ResNet18_GCP_LRadju": (74.86, 91.81, "convergence"),
    "ResNet34_GAP_LRnorm": (74.19, 91.61, "convergence"),
    "ResNet34_GCP_LRadju": (76.81, 93.09, "convergence"),
    "ResNet50_GAP_LRnorm": (76.17, 92.93, "convergence"),
    "ResNet50_GCP_LRnorm": (78.56, 94.16, "dimension"),
    "ResNet50_GCP_LRfast": (75.31, 92.15, "convergence"),
    "ResNet50_GCP_LRadju": (78.03, 93.95, "convergence"),
    "ResNet50_GCP_LRnorm_128": (78.21, 93.93, "dimension"),
    "ResNet50_GCP_LRadju_128": (77.64, 93.67, "dimension"),
    "ResNet101_GAP_LRnorm": (77.67, 93.89, "convergence"),
    "ResNet101_GCP_LRnorm": (79.48, 94.75, "down-sampling"),
    "ResNet101_GCP_LRadju": (79.18, 94.51, "convergence"),
}
# fmt: on
