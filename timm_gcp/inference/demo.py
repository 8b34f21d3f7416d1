"""A page in the browser: the likeliest classes of one photo by several models, and where each of them looks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from timm_gcp.inference.contributions import contributions
from timm_gcp.inference.images import open_image
from timm_gcp.inference.model import Loaded
from timm_gcp.inference.overlay import overlay, shown_image

TOP = 5
_LEAST_SIDE = 320  # pixels of the shown map
_INTRO = (
    "# timm_gcp\n\nDrop a photo. Each model's likeliest classes are listed, and below them the image as the model sees "
    "it: red positions speak for the class that is shown, blue ones against it."
)


def look(loaded: Loaded, image: Any, rank: int = 1) -> tuple[dict[str, float], Any, str]:
    """Classify one image and map what drives one of its likeliest classes.

    Args:
        loaded: The model.
        image: An image of Pillow.
        rank: Which of the likeliest classes the map is of, from 1.

    Returns:
        Probabilities by class name, the likeliest first; the map as an image; a caption of the map.

    Raises:
        ValueError: An image that can't be read, or a model without a feature map.
    """
    from timm.data import create_transform

    transform = create_transform(**loaded.data_config, is_training=False)
    pixels = transform(open_image(image, loaded.data_config["input_size"][0], name="the image"))
    tensor = pixels[None].to(loaded.device)
    with torch.inference_mode(), loaded.autocast:
        probabilities = loaded.model(tensor).float().softmax(dim=1)[0]
    values, classes = probabilities.topk(min(TOP, len(probabilities)))
    names = [_name(loaded, index) for index in classes.tolist()]
    chosen = min(rank, len(names)) - 1
    drawn, _ = contributions(loaded.model, tensor, classes[chosen : chosen + 1])
    shown = shown_image(pixels, loaded.data_config["mean"], loaded.data_config["std"])
    caption = f"{names[chosen]}, {values[chosen]:.1%} ({drawn.shape[1]}×{drawn.shape[2]} positions)"
    map_image = overlay(shown, drawn[0])
    enlarged = -(-_LEAST_SIDE // min(map_image.size))
    if enlarged > 1:
        map_image = map_image.resize([enlarged * side for side in map_image.size])
    return dict(zip(names, values.tolist(), strict=True)), map_image, caption


def _name(loaded: Loaded, index: int) -> str:
    return loaded.label_names[index] if loaded.label_names else f"class {index}"


def build_page(models: Sequence[Loaded], images: Sequence[Path] = ()) -> Any:
    """The page as `gradio.Blocks`; `launch()` serves it.

    Args:
        models: Shown side by side, in this order.
        images: Files offered to click on.

    Raises:
        ImportError: Gradio is not installed.
    """
    try:
        import gradio
    except ImportError as error:
        raise ImportError("the demo needs gradio: pip install 'timm-gcp[demo]'.") from error

    def answer(image: Any, rank: int) -> list[Any]:
        if image is None:
            return [None, None] * len(models)
        found = []
        for loaded in models:
            try:
                top, drawn, caption = look(loaded, image, int(rank))
            except ValueError as error:
                raise gradio.Error(str(error)) from error
            found += [top, gradio.Image(drawn, label=caption)]
        return found

    with gradio.Blocks(title="timm_gcp", analytics_enabled=False) as page:
        gradio.Markdown(_INTRO)
        with gradio.Row():
            image = gradio.Image(type="pil", label="Photo", height=320)
            rank = gradio.Slider(1, TOP, value=1, step=1, label="Map of which class: 1 is the likeliest")
        with gradio.Row():
            outputs: list[Any] = []
            for loaded in models:
                with gradio.Column():
                    outputs.append(gradio.Label(num_top_classes=TOP, label=loaded.name))
                    outputs.append(gradio.Image(label="Where it looks", interactive=False, height=360))
        if images:
            gradio.Examples([[str(path)] for path in images], inputs=[image])
        for changed in (image.change, rank.change):
            changed(functools.partial(answer), [image, rank], outputs, api_name="look")
    return page
