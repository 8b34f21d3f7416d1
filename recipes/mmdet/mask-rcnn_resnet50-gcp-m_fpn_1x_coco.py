# ruff: noqa: C408, D100
# Mask R-CNN with FPN on ResNet-50 after GCP, as GCP_M.
#
# Written for mmdet 3.3, mmengine 0.10 and mmpretrain 1.2: no training was run with it.
# To expect on COCO val2017, by the paper: box AP 37.9 (Table 6), mask AP 34.7 (Table 7).
_base_ = [
    "mmdet::_base_/models/mask-rcnn_r50_fpn.py",
    "mmdet::_base_/datasets/coco_instance.py",
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
        pretrained=True,
        out_indices=(1, 2, 3, 4),
        last_stage="maxpool",
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
