"""Models that would not run with a covariance head are refused at the swap and left as they were."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn

from timm_gcp import GlobalCovPool2d, swap_pooling
from timm_gcp.models.swap_check import remember, run_on_zeros


def state(model: nn.Module) -> tuple:
    """All that a refusal has to leave alone, weights by value."""
    modules = [(name, id(module), module.training) for name, module in model.named_modules()]
    attributes = {key: repr(value) for key, value in vars(model).items() if not key.startswith("_")}
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    tensors = {key: tensor.sum().item() for key, tensor in model.state_dict().items()}
    return type(model), modules, attributes, sorted(vars(model)), hooks, tensors


def refused(model: nn.Module, text: str, **options) -> None:
    model.eval()
    next(model.children()).train()
    before = state(model)
    x = torch.randn(2, 3, 64, 64)
    wanted = copy.deepcopy(model).eval()(x)
    with pytest.raises(ValueError, match=text) as caught:
        swap_pooling(model, 8, **options)
    assert "\n" not in str(caught.value)
    assert state(model) == before
    assert torch.equal(model.eval()(x), wanted)


class Widening(timm.models.ResNet):
    """A ResNet with a convolution of 32 channels between its features and its pooling."""

    def __init__(self) -> None:
        super().__init__(timm.models.resnet.BasicBlock, (1, 1, 1, 1), channels=(8, 8, 8, 16), num_classes=5)
        pool = self.global_pool
        del self.global_pool, self.fc
        self.widen = nn.Conv2d(16, 32, 1)
        self.global_pool, self.fc, self.head_hidden_size = pool, nn.Linear(32, 5), 32

    def forward_head(self, x, pre_logits=False):
        x = self.global_pool(self.widen(x))
        return x if pre_logits else self.fc(x)


def test_a_head_that_widens_before_it_pools():
    """The sentence says which channels to give."""
    model = Widening()
    refused(model, "the pooling of Widening gets 32 channels where its forward_features gives 16; give channels=32")
    swap_pooling(model, 8, channels=32)
    assert model.global_pool.in_chans == 32
    x = torch.randn(2, 3, 64, 64)
    assert model.train()(x).shape == (2, 5)
    assert model.forward_head(model.forward_features(x), pre_logits=True).shape == (2, 36)


class Odd(timm.models.ResNet):
    """A ResNet whose own forward looks at the pooled features."""

    def __init__(self, after) -> None:
        super().__init__(timm.models.resnet.BasicBlock, (1, 1, 1, 1), channels=(8, 8, 8, 16), num_classes=3)
        self.after = after

    def forward_head(self, x, pre_logits=False):
        return self.after(self, self.global_pool(x))


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (lambda m, x: m.fc(x * torch.ones(16)), r"with it, its forward fails for images of 64×64 \(.*36.*16.*\)"),
        (lambda m, x: {16: {"logits": m.fc}}[x.shape[1]]["logits"](x), r"with it, its forward fails .* \(36\)"),
        (lambda m, x: x if x.shape[1] == 36 else m.fc(x), r"with it, its forward gives \(1, 36\), not \(1, 3\)"),
        (lambda m, x: m.fc(x) if x.shape[1] == 16 else [m.fc(x)], r"with it, its forward gives list, not \(1, 3\)"),
    ],
)
def test_a_forward_that_needs_its_old_head(after, text):
    refused(Odd(after), "Odd can't take a covariance head: " + text)


def test_a_model_without_classifier():
    model = swap_pooling(timm.create_model("test_resnet", num_classes=0), 8)
    assert model.eval()(torch.randn(2, 3, 64, 64)).shape == (2, 36)
    refused_model = Odd(lambda m, x: x[:, :16])
    refused_model.reset_classifier(0)
    refused(refused_model, r"with it, its forward gives \(1, 16\), not \(1, 36\)")


def test_what_is_not_a_forward_is_put_back_too(monkeypatch):
    """Whatever stops the swap half way."""
    model = timm.create_model("test_convnext", num_classes=3)
    monkeypatch.setattr(GlobalCovPool2d, "train", lambda self, mode=True: 1 / 0)
    before = state(model)
    with pytest.raises(ZeroDivisionError):
        swap_pooling(model, 8)
    assert state(model) == before


def test_channels_given_are_taken_at_their_word():
    model = timm.create_model("test_resnet", num_classes=3)
    model.forward = None  # would fail if called
    swap_pooling(model, 8, channels=96)
    assert model.global_pool.in_chans == 96


def test_on_the_meta_device():
    with torch.device("meta"):
        model = Widening()
    with pytest.raises(ValueError, match="give channels=32"):
        swap_pooling(model, 8)


def test_image_of_the_full_size_where_a_small_one_fails():
    model = timm.create_model("test_resnet", num_classes=3, in_chans=1)
    sizes = []

    def forward(image):
        sizes.append(tuple(image.shape))
        if image.shape[-1] < 100:
            raise RuntimeError("too small")
        return torch.is_grad_enabled(), model.training

    assert run_on_zeros(model, forward) == (False, False)
    assert sizes == [(1, 1, 64, 64), (1, 1, 160, 160)]
    assert model.training
    with pytest.raises(RuntimeError, match=r"fails for images of 160×160 \(ZeroDivisionError|division"):
        run_on_zeros(model, lambda image: 1 / 0)
    model.pretrained_cfg = {**model.pretrained_cfg, "fixed_input_size": True}
    sizes.clear()
    run_on_zeros(model, forward)
    assert sizes == [(1, 1, 160, 160)]


def test_remember():
    model = timm.create_model("test_resnet", num_classes=3)
    before, restore = state(model), remember(model)
    model.layer1, model.extra, model.num_classes = nn.Identity(), 3, 7
    model.layer2[0].conv1 = nn.Identity()
    restore()
    assert state(model) == before
