# ruff: noqa: C408, D100
# Faster R-CNN with FPN on ResNet-50 after GCP, as GCP_M, with MMDetection's own model, data and 1x schedule.
#
#   bash tools/dist_train.sh PATH/faster-rcnn_resnet50-gcp-m_fpn_1x_coco.py 4
# in a checkout of MMDetection, on 4 GPUs.
#
# Written for mmdet 3.3, mmengine 0.10 and mmpretrain 1.2, whose TIMMBackbone wraps timm's models: no training was run
# with it, see docs/detection.md. To expect on COCO val2017, by the paper: AP 37.1 (Table 6).
_base_ = [
    "mmdet::_base_/models/faster-rcnn_r50_fpn.py",
    "mmdet::_base_/datasets/coco_detection.py",
    "mmdet::_base_/schedules/schedule_1x.py",
    "mmdet::_base_/default_runtime.py",
]

custom_imports = dict(imports=["mmpretrain.models", "timm_gcp"], allow_failed_imports=False)

model = dict(
    backbone=dict(
        _delete_=True,
        type="mmpretrain.TIMMBackbone",
        model_name="resnet50_gcp",
        features_only=True,
        pretrained=True,  # or False with init_cfg, see docs/detection.md
        out_indices=(1, 2, 3, 4),
        last_stage="maxpool",  # GCP_M; "stride2" is GCP_D
        # The wrapper has no norm_eval and no frozen_stages: this norm stands for the first, the learning rate of 0
        # below for the second.
        norm_layer="timm_gcp.detection.backbone.EvalBatchNorm2d",
    ),
    neck=dict(in_channels=[256, 512, 1024, 2048]),
)

train_dataloader = dict(batch_size=2)  # on 4 GPUs: the paper's mini-batch of 8
optim_wrapper = dict(
    optimizer=dict(type="SGD", lr=0.01, momentum=0.9, weight_decay=0.0001),
    paramwise_cfg=dict(
        custom_keys={
            "backbone.timm_model.conv1": dict(lr_mult=0.0, decay_mult=0.0),
            "backbone.timm_model.bn1": dict(lr_mult=0.0, decay_mult=0.0),
            "backbone.timm_model.layer1": dict(lr_mult=0.0, decay_mult=0.0),
        }
    ),
)
auto_scale_lr = dict(enable=False, base_batch_size=8)
