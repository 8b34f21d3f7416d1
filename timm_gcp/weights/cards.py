"""Model cards in the Hub's form, made from the table of published weights: metadata in YAML, then this Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timm_gcp.weights import catalog as table
from timm_gcp.weights.card_metadata import DATASETS, data_name, front_matter
from timm_gcp.weights.cards_bundled import beside_twin, limits, training
from timm_gcp.weights.data_config import describe
from timm_gcp.weights.record import Record

PAPER = "What Deep CNNs Benefit from Global Covariance Pooling: An Optimization Perspective (CVPR 2020)"
PAPER_URL = "https://arxiv.org/abs/2003.11241"
MEASURED = "`timm-gcp validate` on this file"


def card(
    name: str,
    metadata: Mapping[str, str] | None = None,
    licence: str | None = None,
    record: Record | None = None,
    repo: str = "",
    measured: tuple[float, float] | None = None,
) -> str:
    """Model card of a weight folder: the `README.md` beside its weights.

    Args:
        name: `arch.tag`.
        metadata: Metadata of its `model.safetensors`: source, digest, triangle order.
        licence: SPDX id, where someone who may has said so.
        record: The record of weights that are not in the table.
        repo: `OWNER/NAME` on the Hub, where the card goes there.
        measured: Top-1 and top-5 accuracy in % that were measured with the weights of an entry of the table.
    """
    import yaml

    head = yaml.safe_dump(front_matter(name, licence, record), sort_keys=False, allow_unicode=True)
    text = body(name, metadata, licence, repository=True, record=record, repo=repo, measured=measured)
    return f"---\n{head}---\n\n# {name}\n\n{text}"


def body(
    name: str,
    metadata: Mapping[str, str] | None = None,
    licence: str | None = None,
    repository: bool = False,
    record: Record | None = None,
    repo: str = "",
    measured: tuple[float, float] | None = None,
) -> str:
    """Text of a card: what the weights are, how to use them, figures, source, limits.

    Args:
        name: `arch.tag`.
        metadata: Metadata of its `model.safetensors`.
        licence: SPDX id, where someone who may has said so.
        repository: Whether the text stands in a repository of its own, or is a section of a page.
        record: The record of weights that are not in the table.
        repo: `OWNER/NAME` on the Hub.
        measured: Top-1 and top-5 accuracy in % that were measured with the weights of an entry of the table.
    """
    level = "##" if repository else "###"
    parts = [_what(name, metadata or {}, record), f"{level} Usage\n\n{_usage(name, repo)}"]
    shipped = table.BUNDLED_WEIGHTS.get(name)
    if shipped is not None:
        scores = _table([(MEASURED, shipped.top1, shipped.top5)])
        if shipped.mean_per_class is not None:
            scores += f"\n\nMean accuracy over the classes, by the same command: {shipped.mean_per_class:.2f} %."
        twin = beside_twin(name)
        parts += [
            f"{level} Figures\n\n{scores}",
            f"{level} Training\n\n{training(shipped)}",
            *([f"{level} Beside its twin\n\n{twin}"] if twin else []),
            f"{level} Limits\n\n{limits(shipped)}",
        ]
        return "\n\n".join(parts) + "\n"
    entry = table.WEIGHTS.get(name)
    if entry is not None:
        figures = [(figure.origin, figure.top1, figure.top5) for figure in entry.figures]
        figures += [(MEASURED, *measured)] if measured else []
        parts += [f"{level} Figures\n\n{_table(figures)}"]
    elif record is not None and record.full:
        parts += [f"{level} Training\n\n{_record(record)}"]
    parts += [
        f"{level} Source\n\n{_source(entry, metadata or {}, licence)}",
        f"{level} Limits\n\n{_limits(entry, measured is not None)}",
    ]
    return "\n\n".join(parts) + "\n"


def _what(name: str, metadata: Mapping[str, str], record: Record | None = None) -> str:
    arch = name.split(".")[0]
    facts, entry = table.ARCHITECTURES.get(arch), table.WEIGHTS.get(name)
    if facts is None:
        return f"Weights of timm's `{arch}`."
    width = int(metadata.get("dimension") or facts.dimension or 0)
    chosen = record.model_args.get("normalization", "newton_schulz") if record is not None else "newton_schulz"
    steps = record.model_args.get("n_iter", 5) if record is not None else 5
    if width and (chosen, steps) != ("newton_schulz", 5):
        pooling = (
            f"global covariance pooling: D = {width}, normalisation {chosen}, {width * (width + 1) // 2:,} features"
        )
    elif not width:
        pooling = "global average pooling, the twin to compare global covariance pooling with"
    else:
        pooling = (
            f"global covariance pooling: D = {width}, five Newton–Schulz steps towards the square root, "
            f"{width * (width + 1) // 2:,} features"
        )
    shipped = table.BUNDLED_WEIGHTS.get(name)
    if shipped is not None:
        how = "Fine-tuned from ImageNet weights" if shipped.start else "Trained"
        by = "with this package's own recipe" if shipped.recipe else "by this package's own study"
        return (
            f"`{arch}` with {pooling}. {how} on {DATASETS[shipped.dataset]} {by}, and part of the package. "
            f"{shipped.params / 1e6:.2f} M parameters."
        )
    if entry is None:
        return f"`{arch}` with {pooling}."
    return (
        f"`{arch}` with {pooling}. Trained by the authors of [{PAPER}]({PAPER_URL}) on {DATASETS[entry.dataset]} with "
        f"their schedule {entry.source_name.split('_')[2]} (`--sched {entry.schedule}`; recipe `{entry.recipe}`). "
        f"{facts.params / 1e6:.2f} M parameters, {facts.gmacs:.2f} GMACs at 224×224."
    )


def _record(record: Record) -> str:
    """Data, scores, classes, settings and preprocessing as a list."""
    rows = {
        "Data": data_name(record),
        "Metrics on the validation images": ", ".join(f"{key} {value:.4g}" for key, value in record.metrics.items()),
        "Classes": ", ".join(record.label_names or ()),
        "Recipe": ", ".join(f"{key} {value}" for key, value in record.recipe.items()),
        "Model arguments": ", ".join(f"{key}={value}" for key, value in record.model_args.items()),
        "Images": describe(record.data_config),
    }
    return "\n".join(f"- {key}: {value}" for key, value in rows.items() if value)


def _usage(name: str, repo: str = "") -> str:
    arch = name.split(".")[0]
    if repo:
        load = f'model = timm.create_model("hf-hub:{repo}", pretrained=True).eval()'
        note = ""
    elif arch in table.OURS:
        load = f'model = timm.create_model("{name}", pretrained=True).eval()'
        note = ""
    else:  # timm knows no such tag of its own model
        load = f'model = timm.create_model("local-dir:" + str(store.find("{name}")), pretrained=True).eval()'
        note = f"`{arch}` is timm's own model, so its weights are named by their folder.\n\n"
    hub_or_ours = repo or arch in table.OURS
    ours = "import timm_gcp" if hub_or_ours else "from timm_gcp.weights import store"
    ours += "  # registers the model" if arch in table.OURS else ""
    imports = f"import timm\n{ours}"
    config = "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"
    return f"{note}```python\n{imports}\n\n{load}\n{config}\n```"


def _table(figures: Sequence[tuple[str, float, float]]) -> str:
    rows = [f"| {origin} | {top1:.2f} | {top5:.2f} |" for origin, top1, top5 in figures]
    return "\n".join(["| according to | top-1 % | top-5 % |", "|---|---|---|", *rows])


def _source(entry: table.Weights | None, metadata: Mapping[str, str], licence: str | None) -> str:
    lines = []
    if entry is not None:
        lines.append(
            f"- File `{entry.source_name}` of {entry.source_url}, on Google Drive: "
            f"https://drive.google.com/open?id={entry.google_drive_id}"
        )
        digest = entry.sha256 or metadata.get("source_sha256")
        lines.append(f"- SHA-256 of the file: {f'`{digest}`' if digest else 'not recorded yet'}")
        lines.append(f"- Licence: {licence or entry.licence or entry.licence_note}")
    else:
        if "source" in metadata:
            lines.append(f"- Made from `{metadata['source']}`, SHA-256 `{metadata.get('source_sha256', 'unknown')}`")
        third_party = metadata.get("layout") in table.THIRD_PARTY_LAYOUTS
        lines.append(f"- Licence: {licence or (table.NO_LICENCE if third_party else 'not stated')}")
    if metadata.get("triangle_order"):
        lines.append(f"- Triangle order of the classifier in that file: {metadata['triangle_order']}")
    return "\n".join(lines)


def _limits(entry: table.Weights | None, measured: bool = False) -> str:
    if entry is None:
        return "Nothing is known about these weights beyond what this card says."
    again = (
        "" if measured else "The figures are the authors' own; they have not been measured again with this package. "
    )
    return (
        f"{again}ImageNet-1k's 1000 classes and their biases are all that the model knows; other data need fine-tuning."
    )
