"""Robustness of classifiers against the first of them, both benchmarks made on the fly, in one command.

    python tools/studies/robustness_twins.py --data-dir IMAGENETTE/val --output OUT --label GAP GCP \\
        --model shufflenet_v2_x1_0 shufflenet_v2_x1_0_gcp --checkpoint GAP/last.pth.tar GCP/last.pth.tar --clips 200

`--pretrained` in place of checkpoints takes the models' own weights, `--dataset torch/fashion_mnist` takes the test set
of Fashion-MNIST. The first model is the baseline of the normalised scores. OUT receives what `timm-gcp robustness`
writes, and `robustness.md` with both summaries; what is measured already is not measured again. Options that aren't
named here go to both benchmarks (`--limit`, `--img-size`, `--batch-size`, ...); `--clips` is the second's `--limit`,
whose images become clips of 31 frames.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timm_gcp.cli import main as timm_gcp_command
from timm_gcp.common.files import write_text
from timm_gcp.robustness import report
from timm_gcp.robustness.results import result_path

HEADER = "<!-- Written by tools/studies/robustness_twins.py. -->"


def run(benchmark: str, output: Path, options: Sequence[str]) -> dict[str, Any]:
    """Run one benchmark twice: to measure, then against the first model's own results. Return its JSON."""
    words = ["robustness", benchmark, "--on-the-fly", "--output", str(output), *options]
    if benchmark == "c":
        words.append("--extra")
    file = output / f"robustness_{benchmark}.json"
    with contextlib.redirect_stdout(io.StringIO()):  # the second run prints all of this, and the ratios
        failed = timm_gcp_command([*words, "--baseline", "none"])
    if failed:
        sys.exit(1)
    first = json.loads(file.read_text())
    baseline = result_path(output, benchmark, first["models"][0]["model"])
    if timm_gcp_command([*words, "--baseline", str(baseline)]):
        sys.exit(1)
    return {**json.loads(file.read_text()), "speed": first["speed"]}


def verdict(contents: dict[str, dict[str, Any]]) -> str:
    """Say for each model and score whether it is better than the first model, and by how much."""
    lines = []
    for benchmark, keys in (("c", ("mCE", "relative_mCE")), ("p", ("mFR", "mT5D"))):
        base, *others = contents[benchmark]["models"]
        for other in others:
            for key in keys:
                score = other["scores"].get(key)
                if score is None:
                    lines.append(f"- {other['model']}, {key}: not defined against {base['model']}.")
                    continue
                side = "as good as" if score == 100 else "better than" if score < 100 else "worse than"
                lines.append(f"- {other['model']}, {key}: {score:.1f}, {side} {base['model']} (100 by definition).")
    return "\n".join(lines)


def write_report(contents: dict[str, dict[str, Any]], output: Path) -> None:
    """Write `robustness.md`: what each model scores against the first, tables, figures."""
    parts = [HEADER, verdict(contents)]
    for benchmark in ("c", "p"):
        content = contents[benchmark]
        models, scores = content["models"], [model["scores"] for model in content["models"]]
        markdown = report.markdown_c if benchmark == "c" else report.markdown_p
        parts += [markdown(models, scores, models[0]).strip(), f"![bar chart](robustness_{benchmark}.png)"]
        speed = content["speed"]
        if speed["images"]:
            parts.append(f"{speed['images']} images in {speed['seconds']:.0f} s.")
    write_text(output / "robustness.md", "\n\n".join(parts) + "\n")


def main() -> int:
    """Parse the arguments and run both benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output/robustness_twins"), metavar="DIR")
    parser.add_argument("--clips", metavar="N", help="images that become clips, evenly spaced; --limit if left out")
    args, options = parser.parse_known_args()
    of_p = [*options, "--limit", args.clips] if args.clips else options
    contents = {benchmark: run(benchmark, args.output, options if benchmark == "c" else of_p) for benchmark in "cp"}
    write_report(contents, args.output)
    print(f"written: {args.output / 'robustness.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
