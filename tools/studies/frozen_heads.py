"""Train pooling heads on the features of a frozen ImageNet backbone and compare them: minutes, not hours.

    python tools/studies/frozen_heads.py CONFIG --data-dir 101_ObjectCategories --weights DIR --docs docs/frozen_heads

CONFIG is a file of tools/studies/configs/frozen/. Feature maps of all images are computed once, upright and mirrored.
Each head (reduction, pooling, classifier) is trained by SGD; rate, or rate and weight decay, are chosen from the same
number of values for each, on images held out of the training images of the first draw. The test images are looked at
once per draw. What the heads can be told apart by is the pooling alone: the features are the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from compare_report import markdown, mcnemar, mean_per_class, spread
from frozen_features import Maps, feature_maps
from image_tensors import hold_out, per_class
from pooling_head import Head, answers, train_head
from safetensors.torch import save_file
from started import use_weights
from torch import Tensor

from timm_gcp.common.files import replacing, write_text

KEYS = ("title", "data", "model", "input", "train", "tune", "heads", "seeds")


def read_config(path: str) -> dict[str, Any]:
    """Read a study.

    Raises:
        ValueError: A key is unknown or missing.
    """
    study = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(study, dict) or set(study) != set(KEYS):
        raise ValueError(f"{path} must have the keys {', '.join(KEYS)}.")
    return study


def draw(study: dict[str, Any], targets: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of a draw's training images and of its test images."""
    return per_class(targets, study["data"]["train_per_class"], seed)


def trial_draw(study: dict[str, Any], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the images that trials train on and of those held out, both training images of the first draw."""
    rows, _ = draw(study, targets, study["seeds"][0])
    kept, held = hold_out(targets[rows], study["data"]["held_out"])
    return rows[kept], rows[held]


def settings_of(study: dict[str, Any], name: str) -> dict[str, Any]:
    """A head's settings, without the values to try."""
    return {key: value for key, value in study["heads"][name].items() if key != "tune"}


def ordered(study: dict[str, Any], records: dict[str, Any]) -> dict[str, Any]:
    """The records that are there, in the order of the study's heads."""
    return {name: records[name] for name in study["heads"] if name in records}


def slug(name: str) -> str:
    """A head's name in a file name."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def saved_head(folder: Path, name: str, part: str | int) -> Path:
    """File of a trained head; `part` is the draw, or "trial" for the best trial's."""
    return folder / f"{slug(name)}-{part}.safetensors"


def _save(head: Head, folder: Path | None, name: str, part: str | int) -> None:
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(saved_head(folder, name, part)) as partial:
            save_file(head.state_dict(), partial)


def run_head(study: dict[str, Any], maps: Maps, name: str, save: Path | None = None) -> dict[str, Any]:
    """Tune one head on held-out images of the first draw, then train and test it on every draw, and save all."""
    settings, grid = settings_of(study, name), study["heads"][name].get("tune", study["tune"])
    how, seeds = study["train"], study["seeds"]
    trials: list[dict[str, float]] = []
    kept, held = trial_draw(study, maps.targets)
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        head = train_head(maps, kept, settings, {**how, **chosen}, seeds[0])
        right = answers(head, maps, held)
        trials.append({**chosen, "held_out": 100 * sum(right) / len(right)})
        if trials[-1] == max(trials, key=lambda trial: trial["held_out"]):
            _save(head, save, name, "trial")
        print(name, trials[-1], flush=True)
    best = max(trials, key=lambda trial: trial["held_out"])
    chosen = {key: best[key] for key in grid}
    tests = {}
    for seed in seeds:
        rows, others = draw(study, maps.targets, seed)
        head = train_head(maps, rows, settings, {**how, **chosen}, seed)
        tests[str(seed)] = answers(head, maps, others)
        _save(head, save, name, seed)
        print(name, "draw", seed, f"{100 * sum(tests[str(seed)]) / len(others):.2f}", flush=True)
    return {
        "trials": trials,
        "chosen": chosen,
        "right": {seed: "".join("01"[r] for r in v) for seed, v in tests.items()},
    }


def keep_heads(study: dict[str, Any], maps: Maps, name: str, chosen: dict[str, float], save: Path) -> None:
    """Train a head that is in the record already with the values chosen there, where `save` lacks it."""
    settings = settings_of(study, name)
    first = study["seeds"][0]
    parts = [("trial", trial_draw(study, maps.targets)[0], first)]
    parts += [(str(seed), draw(study, maps.targets, seed)[0], seed) for seed in study["seeds"]]
    for part, rows, seed in parts:
        if not saved_head(save, name, part).is_file():
            _save(train_head(maps, rows, settings, {**study["train"], **chosen}, seed), save, name, part)


def tables(study: dict[str, Any], records: dict[str, Any], targets: Tensor) -> str:
    """Test accuracy, mean per class, gain over the first head with McNemar's test, chosen values; then the trials."""
    first = next(iter(study["heads"]))
    rows, trials = [], []
    for name, record in records.items():
        right = {seed: [digit == "1" for digit in line] for seed, line in record["right"].items()}
        base = {seed: [digit == "1" for digit in line] for seed, line in records.get(first, record)["right"].items()}
        top1 = [100 * sum(line) / len(line) for line in right.values()]
        mean = []
        for seed, line in right.items():
            others = draw(study, targets, int(seed))[1]
            mean.append(mean_per_class(targets[others].tolist(), tuple(line)))
        paired = [mcnemar(right[seed], base[seed]) for seed in right] if name != first and first in records else []
        gain = [100 * (sum(right[s]) - sum(base[s])) / len(right[s]) for s in right] if paired else []
        rows.append([
            name, spread(top1), spread(mean), f"{sum(gain) / len(gain):+.2f}" if gain else "",
            "; ".join(f"{ours} : {theirs}, {p:.2g}" for ours, theirs, p in paired),
            ", ".join(f"{key} {value:g}" for key, value in record["chosen"].items()),
        ])  # fmt: skip
        trials += [
            [name, ", ".join(f"{key} {trial[key]:g}" for key in record["chosen"]), f"{trial['held_out']:.2f}"]
            for trial in record["trials"]
        ]
    head = ["Head", "Test top-1", "Mean per class", f"Gain over {first}", f"Only it right : only {first}, p", "Chosen"]
    return markdown(head, rows) + "\n" + markdown(["Head", "Trial", "Held-out top-1"], trials)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that both stages have."""
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="image folder, a folder a class")
    parser.add_argument("--weights", metavar="DIR", help="folder of the weights of the backbone")
    parser.add_argument("--cache", default="output/studies/frozen", metavar="DIR", help="folder of images and features")
    parser.add_argument("--docs", required=True, metavar="DIR", help="folder of record and tables")


def main() -> int:
    """Run what is missing, write records and tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", metavar="CONFIG", help="study: a YAML file of tools/studies/configs/")
    add_arguments(parser)
    parser.add_argument("--save", metavar="DIR", help="keep the trained heads there")
    parser.add_argument(
        "--end",
        nargs="+",
        default=[],
        metavar="NAME",
        help="modules that fine_tuned_ends.py will train: keep their input",
    )
    parser.add_argument("--heads", nargs="+", metavar="NAME", help="only these heads")
    args = parser.parse_args()
    use_weights(args.weights)
    try:
        study = {**read_config(args.config), "file": args.config}
        unknown = [name for name in args.heads or () if name not in study["heads"]]
        if unknown:
            raise ValueError(f"no head {', '.join(unknown)} in {args.config}; it has {', '.join(study['heads'])}.")
        maps = feature_maps(study, args.data_dir, Path(args.cache), args.end, last=True)
    except (ValueError, FileNotFoundError) as error:
        print(f"frozen_heads.py: error: {error}", file=sys.stderr)
        return 1
    record = Path(args.docs) / f"{Path(args.config).stem}.json"
    records: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {}
    for name in args.heads or study["heads"]:
        if name not in records:
            records[name] = run_head(study, maps, name, Path(args.save) if args.save else None)
            write_text(record, json.dumps(ordered(study, records), indent=1) + "\n")
        elif args.save:
            keep_heads(study, maps, name, records[name]["chosen"], Path(args.save))
    text = f"# {study['title']}\n\n{tables(study, ordered(study, records), maps.targets)}"
    write_text(record.with_suffix(".md"), text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
