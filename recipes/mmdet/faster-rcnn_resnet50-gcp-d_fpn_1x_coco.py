# ruff: noqa: C408, D100
# Faster R-CNN with FPN on ResNet-50 after GCP, as GCP_D: stride 2 in the last stage. Otherwise as GCP_M.
# To expect on COCO val2017, by the paper: AP 36.6 (Table 6). Not run.
_base_ = "./faster-rcnn_resnet50-gcp-m_fpn_1x_coco.py"

model = dict(backbone=dict(last_stage="stride2"))
