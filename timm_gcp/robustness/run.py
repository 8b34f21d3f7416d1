"""Score models on ImageNet-C or ImageNet-P, or on any data set made likewise."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from timm_gcp.common.files import file_sha256, write_text
from timm_gcp.common.interrupt import on_interrupt
from timm_gcp.common.messages import listed
from timm_gcp.datasets.class_map import digest, read_class_map
from timm_gcp.datasets.fashion_mnist import FASHION_MNIST_CLASSES
from timm_gcp.datasets.folders import class_indices, survey
from timm_gcp.inference.classes import check_order
from timm_gcp.inference.image_data import check_classes
from timm_gcp.robustness import figures, imagenet_c, imagenet_p, report, scores
from timm_gcp.robustness.corruptions import (
    EXTRA_CORRUPTIONS,
    MIN_SIZE,
    SEVERITIES,
    TEST_CORRUPTIONS,
    import_package,
)
from timm_gcp.robustness.imagenet_c import BENCHMARK_SIZE, CLEAN, Cell
from timm_gcp.robustness.inference import Classifier, load_classifiers
from timm_gcp.robustness.perturbations import EXTRA_PERTURBATIONS, TEST_PERTURBATIONS
from timm_gcp.robustness.results import (
    ALEXNET,
    open_result,
    read_baseline,
    result_path,
    save_result,
)
from timm_gcp.robustness.sources import (
    FASHION_MNIST,
    FashionMnistSource,
    FolderSource,
    Framing,
    Source,
)

IMAGENET_CLASSES = 1000
CLEAN_RESIZE = 256  # of the benchmark's clean set, before its crop of 224

Measure = Callable[[list[dict[str, Any]], Callable[[int], None]], int]


def run(args: argparse.Namespace) -> int:
    """Measure what is not measured yet, then write and print the tables; returns the exit status."""
    _check(args)
    if args.on_the_fly:
        import_package()
    prepare = _prepare_c if args.benchmark == "c" else _prepare_p
    baseline = read_baseline(args.baseline, args.benchmark) if args.baseline else None
    classifiers = load_classifiers(args)
    of_imagenet = all(classifier.num_classes == IMAGENET_CLASSES for classifier in classifiers)
    if args.baseline is None and args.benchmark == "c" and not args.on_the_fly and of_imagenet:
        baseline = read_baseline(ALEXNET, "c")
    settings, measure = prepare(args, classifiers)
    results, speed = _measure(args, classifiers, settings, measure)
    _report(args, results, baseline, speed)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Check what needs no model: better now than after it is loaded."""
    if args.seed < 0:
        raise ValueError(f"--seed must not be negative; got {args.seed}")
    if args.dataset not in ("", FASHION_MNIST):
        raise ValueError(f"--dataset must be {FASHION_MNIST}, or left out for an image folder; got {args.dataset!r}")
    if args.dataset and not args.on_the_fly:
        raise ValueError(f"--dataset {args.dataset} holds clean images: add --on-the-fly")
    if args.dataset and args.class_map:
        raise ValueError(f"--class-map is for image folders, {args.dataset} has an order of its own: drop it")
    if args.benchmark == "c":
        names = args.corruptions
        imagenet_c.wanted_cells(names or (), args.severities)
        left_out = [n for n in TEST_CORRUPTIONS if names and n not in names]
        left_out += [f"severity {s}" for s in SEVERITIES if s not in args.severities]
    else:
        names = args.perturbations
        imagenet_p.check_choice(names or (), args.difficulty, args.on_the_fly)
        left_out = [n for n in TEST_PERTURBATIONS if names and n not in names]
    if left_out and not args.partial:
        raise ValueError(f"{', '.join(left_out)} left out: add --partial (the score has another name then)")


def _prepare_c(args: argparse.Namespace, classifiers: Sequence[Classifier]) -> tuple[dict[str, Any], Measure]:
    names = args.corruptions or TEST_CORRUPTIONS + (() if args.on_the_fly and not args.extra else EXTRA_CORRUPTIONS)
    cells = imagenet_c.wanted_cells(names, args.severities)
    classes, class_map, known = _classes(args, classifiers)
    settings: dict[str, Any] = {}

    if args.on_the_fly:
        source, framing = _clean_source(args, classes, class_map, known), _framing(classifiers)
        settings["framing"] = [framing.size, framing.canvas, framing.interpolation]
        cells = [Cell(CLEAN, 0), *cells]
    else:
        cells = imagenet_c.cells_on_disk(args.data_dir, cells, args.partial)
        settings["clean"] = args.clean_dir.resolve().name if args.clean_dir else None
        clean_framing = Framing(BENCHMARK_SIZE, CLEAN_RESIZE)
        clean = FolderSource(args.clean_dir, classes, class_map, args.limit, known) if args.clean_dir else None
    if not args.dataset:  # which class has which index decides every error
        root = args.data_dir if args.on_the_fly else args.data_dir / cells[0].corruption / str(cells[0].severity)
        settings["classes"] = digest(class_indices(survey(root), class_map, classes, known))

    def measure(results: list[dict[str, Any]], save: Callable[[int], None]) -> int:
        def missing(part: Sequence[Cell]) -> list[Cell]:
            return [cell for cell in part if not all(imagenet_c.is_done(result, cell) for result in results)]

        datasets: list[imagenet_c.CorruptedFolders | imagenet_c.CorruptedSource] = []
        if args.on_the_fly:
            datasets.append(imagenet_c.CorruptedSource(source, framing, missing(cells), args.seed))
        else:
            if clean is not None:
                datasets.append(imagenet_c.CorruptedSource(clean, clean_framing, missing([Cell(CLEAN, 0)])))
            folders = imagenet_c.CorruptedFolders
            datasets.append(folders(args.data_dir, missing(cells), classes, class_map, args.limit, args.partial, known))
        return sum(
            imagenet_c.evaluate(classifiers, results, dataset, args.batch_size, args.workers, save)
            for dataset in datasets
        )

    return settings, measure


def _prepare_p(args: argparse.Namespace, classifiers: Sequence[Classifier]) -> tuple[dict[str, Any], Measure]:
    names = list(args.perturbations or TEST_PERTURBATIONS + (() if args.on_the_fly else EXTRA_PERTURBATIONS))
    settings: dict[str, Any] = {"difficulty": args.difficulty}
    if args.on_the_fly:
        classes, class_map, known = _classes(args, classifiers)
        source, framing = _clean_source(args, classes, class_map, known), _framing(classifiers)
        settings["framing"] = [framing.size, framing.canvas, framing.interpolation]
    else:
        names = imagenet_p.perturbations_on_disk(args.data_dir, names, args.difficulty, args.partial)

    def measure(results: list[dict[str, Any]], save: Callable[[int], None]) -> int:
        missing = [name for name in names if not all(name in result["flip_probability"] for result in results)]
        dataset: imagenet_p.Clips | imagenet_p.Sequences
        if args.on_the_fly:
            dataset = imagenet_p.Sequences(source, framing, missing, args.difficulty, args.seed)
        else:
            dataset = imagenet_p.Clips(args.data_dir, missing, args.difficulty, args.limit)
        return imagenet_p.evaluate(classifiers, results, dataset, args.difficulty, args.batch_size, args.workers, save)

    return settings, measure


def _shared_classes(classifiers: Sequence[Classifier]) -> int:
    counts = {classifier.num_classes for classifier in classifiers}
    if len(counts) > 1:
        told = ", ".join(f"{c.label}: {c.num_classes}" for c in classifiers)
        raise ValueError(f"models of one run must have the same classes; got {told}")
    return counts.pop()


def _classes(
    args: argparse.Namespace, classifiers: Sequence[Classifier]
) -> tuple[int, dict[str, int] | None, tuple[str, ...] | None]:
    """Number of classes, index of each class folder where it is told, and the weights' own names where they have some.

    Raises:
        ValueError: The models, or the weights and the class map, differ in their classes.
    """
    classes, class_map = _shared_classes(classifiers), read_class_map(args.class_map, args.data_dir)
    known = _shared_names(classifiers)
    check_order(class_map, known)
    if class_map is None and known is None:
        class_map = _trained_order(classifiers)
    return classes, class_map, known


def _trained_order(classifiers: Sequence[Classifier]) -> dict[str, int] | None:
    """Index of each class folder in the models' training, where all of them say the same one."""
    maps = [classifier.loaded.class_map for classifier in classifiers]
    return None if any(other != maps[0] for other in maps) else maps[0]


def _shared_names(classifiers: Sequence[Classifier]) -> tuple[str, ...] | None:
    """Return the class names that the models' weights carry, None where none does."""
    known = {classifier.names for classifier in classifiers if classifier.names is not None}
    if len(known) > 1:
        told = "; ".join(f"{c.label}: {listed(c.names, 3)}" for c in classifiers if c.names is not None)
        raise ValueError(f"models of one run must have the same classes; got {told}")
    return known.pop() if known else None


def _clean_source(
    args: argparse.Namespace, classes: int, class_map: Mapping[str, int] | None, known: tuple[str, ...] | None
) -> Source:
    if args.dataset == FASHION_MNIST:
        check_classes(FASHION_MNIST, FASHION_MNIST_CLASSES, classes, known)
        return FashionMnistSource(args.data_dir, classes, args.limit)
    return FolderSource(args.data_dir, classes, class_map, args.limit, known)


def _framing(classifiers: Sequence[Classifier]) -> Framing:
    """Return how the models' own configurations frame an image; models of one run must agree."""
    found = {}
    for classifier in classifiers:
        config = classifier.loaded.data_config
        canvas = math.floor(classifier.size / config["crop_pct"])
        found[classifier.label] = Framing(classifier.size, canvas, config["interpolation"])
    if len(set(found.values())) > 1:
        told = "; ".join(f"{label}: {f.size} px of {f.canvas}, {f.interpolation}" for label, f in found.items())
        raise ValueError(
            f"models of one run must frame images alike ({told}): set --img-size, --crop-pct and --interpolation"
        )
    framing = next(iter(found.values()))
    if framing.size < MIN_SIZE:
        raise ValueError(f"corruptions need {MIN_SIZE} px or more; the models take {framing.size}: set --img-size")
    return framing


def _settings(args: argparse.Namespace, classifier: Classifier, index: int) -> dict[str, Any]:
    """Return what decides a model's results, so that those of another run aren't taken for them."""
    return {
        "model": args.model[index],
        "weights": file_sha256(args.checkpoint[index]) if args.checkpoint else "pretrained",
        "use_ema": args.use_ema,
        "model_kwargs": args.model_kwargs,
        "num_classes": classifier.num_classes,
        "mean": [round(x, 6) for x in classifier.mean.flatten().tolist()],
        "std": [round(x, 6) for x in classifier.std.flatten().tolist()],
        "amp": args.amp_dtype if args.amp else None,
        "data": args.data_dir.resolve().name,
        "dataset": args.dataset,
        "on_the_fly": args.on_the_fly,
        "seed": args.seed,
        "limit": args.limit,
    }


def _measure(
    args: argparse.Namespace, classifiers: Sequence[Classifier], settings: dict[str, Any], measure: Measure
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Fill in the models' result files; return them and the speed of this run."""
    paths = [result_path(args.output, args.benchmark, classifier.label) for classifier in classifiers]
    if len(set(paths)) != len(paths):
        raise ValueError(
            f"two labels lead to one file ({', '.join(p.name for p in paths)}): choose others with --label"
        )
    results = []
    for i, (classifier, path) in enumerate(zip(classifiers, paths, strict=True)):
        own = _settings(args, classifier, i) | settings
        results.append(open_result(path, args.benchmark, classifier.label, own, args.restart))
    start = time.perf_counter()
    with on_interrupt(lambda: f"The parts measured so far are in {args.output}: the same command goes on from there."):
        images = measure(results, lambda i: save_result(paths[i], results[i]))
    seconds = time.perf_counter() - start
    rate = images / seconds if images else None
    return results, {"images": images, "models": len(classifiers), "seconds": seconds, "images_per_second": rate}


def _report(
    args: argparse.Namespace, results: list[dict[str, Any]], baseline: dict[str, Any] | None, speed: dict[str, Any]
) -> None:
    """Write CSV, JSON, Markdown and PNG, and print one of them."""
    c = args.benchmark == "c"
    scored = [(scores.score_c if c else scores.score_p)(result, baseline) for result in results]
    markdown = (report.markdown_c if c else report.markdown_p)(results, scored, baseline)
    content = {
        "benchmark": args.benchmark,
        "baseline": baseline["model"] if baseline else None,
        "models": [{**result, "scores": score} for result, score in zip(results, scored, strict=True)],
        "speed": speed,
    }
    text = json.dumps(content, indent=1) + "\n"
    stem = Path(args.output) / f"robustness_{args.benchmark}"
    write_text(stem.with_suffix(".json"), text)
    write_text(stem.with_suffix(".md"), markdown)
    write_text(stem.with_suffix(".csv"), (report.csv_c if c else report.csv_p)(results))
    (figures.draw_c if c else figures.draw_p)(results, stem.with_suffix(".png"))
    if args.json:
        print(text, end="")
        return
    print(markdown)
    if speed["images_per_second"]:
        print(
            f"{speed['images']} images by {speed['models']} model(s) in {speed['seconds']:.1f} s: "
            f"{speed['images_per_second']:.1f} images/s"
        )
    else:
        print("nothing left to measure: all results were there (--restart measures again)")
    print(f"written: {stem}.csv .json .md .png")
