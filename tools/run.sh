#!/usr/bin/env bash
# Install, then classify the sample photographs with the bundled GCP weights and their GAP twin, and draw them with
# their five likeliest classes: output/photos/gcp.png and gap.png. Where Debian's package dataset-fashion-mnist is
# installed, or $FASHION_MNIST names a folder made by `timm-gcp data fashion-mnist`, validate the pair trained on it on
# its 10,000 test images, too.
set -euo pipefail
cd "$(dirname "$0")/.."

python3 -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check .
timm_gcp=.venv/bin/timm-gcp
"$timm_gcp" predict samples/photos --model mobilenetv2_100_gcp_d128.caltech101 --figure output/photos/gcp.png
"$timm_gcp" predict samples/photos --model mobilenetv2_100.caltech101 --figure output/photos/gap.png

if [ -z "${FASHION_MNIST:-}" ] && [ -d /usr/share/datasets/fashion-mnist ]; then
    FASHION_MNIST=output/fashion_mnist
fi
if [ -z "${FASHION_MNIST:-}" ]; then
    echo "No Fashion-MNIST here: install dataset-fashion-mnist, or set FASHION_MNIST to its folder, to validate, too."
    exit 0
fi
"$timm_gcp" data fashion-mnist --root "$FASHION_MNIST"
for model in shufflenet_v2_x1_0_gcp shufflenet_v2_x1_0; do
    "$timm_gcp" validate --model "$model.adju_fmnist" --pretrained --data-dir "$FASHION_MNIST" \
        --dataset torch/fashion_mnist --output "output/validate/$model"
done
