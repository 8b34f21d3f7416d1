#!/usr/bin/env bash
# Install, then classify the sample images with the bundled weights. Where Debian's package dataset-fashion-mnist is
# installed, or $FASHION_MNIST names a folder made by `timm-gcp data fashion-mnist`, validate the GCP weights and their
# GAP twin on its 10,000 test images, too.
set -euo pipefail
cd "$(dirname "$0")/.."

python3 -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check .
timm_gcp=.venv/bin/timm-gcp
"$timm_gcp" predict samples/fashion_mnist --model shufflenet_v2_x1_0_gcp.adju_fmnist

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
