"""Fine-tune pooling heads together with the last stages of their backbone: the second of two stages.

    python tools/studies/fine_tuned_ends.py CONFIG --data-dir 101_ObjectCategories --weights DIR \
        --heads DIR --docs docs/fine_tuned_ends

CONFIG is a file of tools/studies/configs/fine_tuned/. It names the study of frozen_heads.py that is its first stage;
`--heads` is what that study's `--save` kept. Each head goes on from there, on the same draws, with the stages `end` of
the network trained along; the stages before them stay as they are, so that their output is computed once. The rate of
the stages is chosen from the same number of values for each head, on the images held out of the first draw's training
images (by a head that has not seen them); the head's rate is a fixed share of the one it was trained with.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from frozen_features import Maps, end_of, feature_maps
from frozen_heads import (
    add_arguments,
    draw,
    ordered,
    read_config,
    saved_head,
    settings_of,
    slug,
    tables,
    trial_draw,
)
from pooling_head import Head, answers, train
from safetensors.torch import load_file, save_file
from started import use_weights
from timm import create_model
from torch import Tensor, nn

from timm_gcp.common.files import replacing, write_text

KEYS = ("title", "frozen", "end", "train", "tune", "heads")


def read_study(path: str) -> dict[str, Any]:
    """Read a study, with the keys of its first stage under "frozen".

    Raises:
        ValueError: A key is unknown or missing, or a head is not one of the first stage's.
    """
    study = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(study, dict) or set(study) != set(KEYS):
        raise ValueError(f"{path} must have the keys {', '.join(KEYS)}.")
    first = str(Path(path).parent / study["frozen"])
    study["frozen"] = {**read_config(first), "file": first}
    for name in study["heads"]:
        if name not in study["frozen"]["heads"]:
            raise ValueError(f"no head {name} in {first}; it has {', '.join(study['frozen']['heads'])}.")
    return study


def start_head(study: dict[str, Any], maps: Maps, name: str, file: Path) -> Head:
    """A head as the first stage kept it.

    Raises:
        FileNotFoundError: It isn't there.
    """
    if not file.is_file():
        raise FileNotFoundError(f"no {file}: run frozen_heads.py with --save first, and name that folder by --heads.")
    channels = create_model(**study["frozen"]["model"]).num_features
    head = Head(channels, int(maps.targets.max()) + 1, settings_of(study["frozen"], name))
    head.load_state_dict(load_file(file))
    return head


def fine_tune(
    study: dict[str, Any], maps: Maps, rows: Tensor, model: Any, head: Head, rates: tuple[float, float], seed: int
) -> nn.Sequential:
    """Train the model's last stages and the head, whose rates are `rates`, on the images `rows`; return both, as one.

    Each image is upright or mirrored by chance. The stages' batch-norm keeps its statistics, with which the head was
    trained before; its scales and shifts are trained.
    """
    torch.manual_seed(seed)
    how = study["train"]
    end = end_of(model, study["end"]).to(memory_format=torch.channels_last)
    net = nn.Sequential(end, head)
    net.train()
    for module in end.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    losses = train(net, list(zip(net, rates, strict=True)), maps, rows, how, torch.channels_last)
    print("  losses of the epochs:", ", ".join(f"{loss:.3f}" for loss in losses), flush=True)
    return net.eval()


def whole_state(model: Any, head: Head) -> dict[str, Tensor]:
    """State of the model with the head in the place of its own pooling and classifier."""
    classifier = model.pretrained_cfg["classifier"]
    state = {key: value for key, value in model.state_dict().items() if not key.startswith(f"{classifier}.")}
    names = {"pool": "global_pool", "fc": classifier}
    for key, value in head.state_dict().items():
        part, _, rest = key.partition(".")
        state[f"{names[part]}.{rest}"] = value
    return {key: value.contiguous() for key, value in state.items()}


def run_head(study: dict[str, Any], maps: Maps, name: str, heads: Path, chosen: float, save: Path) -> dict[str, Any]:
    """Tune the stages' rate on held-out images of the first draw, then fine-tune and test on every draw."""
    seeds = study["frozen"]["seeds"]
    head_rate = chosen * study["train"]["head_rate"]
    trials = []
    kept, held = trial_draw(study["frozen"], maps.targets)
    for lr in study["tune"]["lr"]:
        head = start_head(study, maps, name, saved_head(heads, name, "trial"))
        model = create_model(**study["frozen"]["model"])
        right = answers(fine_tune(study, maps, kept, model, head, (lr, head_rate), seeds[0]), maps, held)
        trials.append({"lr": lr, "held_out": 100 * sum(right) / len(right)})
        print(name, trials[-1], flush=True)
    lr = max(trials, key=lambda trial: trial["held_out"])["lr"]
    tests = {}
    for seed in seeds:
        rows, others = draw(study["frozen"], maps.targets, seed)
        head = start_head(study, maps, name, saved_head(heads, name, seed))
        model = create_model(**study["frozen"]["model"])
        net = fine_tune(study, maps, rows, model, head, (lr, head_rate), seed)
        tests[str(seed)] = "".join("01"[right] for right in answers(net, maps, others))
        print(name, "draw", seed, f"{100 * tests[str(seed)].count('1') / len(others):.2f}", flush=True)
        if seed == seeds[0]:
            save.mkdir(parents=True, exist_ok=True)
            told = {"head": name, "seed": seed, "lr": lr, "head_lr": head_rate}
            with replacing(save / f"{slug(name)}.safetensors") as partial:
                metadata = {key: str(value) for key, value in told.items()}
                save_file(whole_state(model, head), partial, metadata=metadata)
    return {"trials": trials, "chosen": {"lr": lr}, "right": tests}


def main() -> int:
    """Run what is missing, write records and tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", metavar="CONFIG", help="study: a YAML file of tools/studies/configs/fine_tuned/")
    add_arguments(parser)
    parser.add_argument("--heads", required=True, metavar="DIR", help="trained heads: --save of frozen_heads.py")
    parser.add_argument(
        "--record", required=True, metavar="FILE", help="record of frozen_heads.py, its .json in --docs"
    )
    parser.add_argument(
        "--save", default="output/studies/fine_tuned", metavar="DIR", help="keep the first draw's networks there"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these heads")
    args = parser.parse_args()
    use_weights(args.weights)
    try:
        study = read_study(args.config)
        if not Path(args.record).is_file():
            raise FileNotFoundError(f"no {args.record}: run frozen_heads.py first, and name its record by --record.")
        first = json.loads(Path(args.record).read_text())
        names = args.only or study["heads"]
        for name in names:
            if name not in study["heads"] or name not in first:
                raise ValueError(f"{name} is not a head of both {args.config} and {args.record}; run its first stage.")
        maps = feature_maps(study["frozen"], args.data_dir, Path(args.cache), study["end"])
        record = Path(args.docs) / f"{Path(args.config).stem}.json"
        records: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {}
        for name in names:
            if name not in records:
                rate = first[name]["chosen"]["lr"]
                records[name] = run_head(study, maps, name, Path(args.heads), rate, Path(args.save))
                write_text(record, json.dumps(ordered(study, records), indent=1) + "\n")
    except (ValueError, FileNotFoundError) as error:
        print(f"fine_tuned_ends.py: error: {error}", file=sys.stderr)
        return 1
    shown = tables({**study["frozen"], "heads": study["heads"]}, ordered(study, records), maps.targets)
    text = f"# {study['title']}\n\n{shown}"
    write_text(record.with_suffix(".md"), text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
