"""Deliberate breaks: replacements in the source that same_results.py --self-test has to see."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Break:
    name: str
    file: str
    old: str
    new: str
    chain: str
    """A chain that has to differ."""
    seen_in: str
    """Part of a name of --expect that has to be among its differing values."""

    def apply(self, tree: Path) -> None:
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.name}: {self.file} has {self.old!r} not once"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


BREAKS = (
    Break(
        "weight",
        file="retexo/models/conv/gcn.py",
        old="return (in_degree + 1).rsqrt()",
        new="return (in_degree + 1.0001).rsqrt()",
        chain="gcn-1-part",
        seen_in="train.checkpoint",
    ),
    Break(
        "byte",
        file="retexo/comm/traffic_meter.py",
        old="        self._sent[tag, peer] += num_bytes",
        new='        self._sent[tag, peer] += num_bytes + (tag.kind == "metrics")',
        chain="sockets",
        seen_in="train.summary.bytes.metrics",
    ),
    Break(
        "mask",
        file="retexo/trainers/layerwise.py",
        old="nodes_in_rounds(context.partition.train_mask)",
        new="nodes_in_rounds(context.partition.train_mask | context.partition.val_mask)",
        chain="gcn-1-part",
        seen_in="train.metrics",
    ),
    Break(
        "prediction",
        file="retexo/results/predictions.py",
        old='_numbered_columns("p", self.probabilities)',
        new='_numbered_columns("p", self.probabilities * (1 + 2**-20))',
        chain="gcn-1-part",
        seen_in="predict.predictions",
    ),
    Break(
        "partition array",
        file="partitioning/directory/write_directory.py",
        old="self.edges[PLAIN_RELATION].out_degree[new_ids]",
        new="self.edges[PLAIN_RELATION].out_degree[new_ids[::-1].copy()]",
        chain="gcn-1-part",
        seen_in="parts.*.out_deg",
    ),
    Break(
        "threshold",
        file="retexo/tasks/classification_scores.py",
        old="return 1 / (1 + math.exp(-margin))",
        new="return 1 / (1 + math.exp(-margin - 0.01))",
        chain="rare-class",
        seen_in="train.summary.chosen.threshold",
    ),
    Break(
        "edge of a new node",
        file="partitioning/update/graph_addition.py",
        old="return {PLAIN_RELATION: add_missing_reverse(relations[PLAIN_RELATION], count)}",
        new="return relations",
        chain="tables",
        seen_in="results.joined-frame",
    ),
    Break(
        "resumed round",
        file="retexo/rounds/round_state.py",
        old='torch.set_rng_state(saved["random"])',
        new="pass",
        chain="resume",
        seen_in="train.checkpoint",
    ),
    Break(
        "secure sum",
        file="retexo/sites/secure_sums.py",
        old=").round()",
        new=").floor()",
        chain="sites-secure",
        seen_in="train-north.checkpoint",
    ),
    Break(
        "exported logit",
        file="retexo/trainers/graph_module.py",
        old="self.heads.calibrate(self.smooth(start, blocks))",
        new="self.smooth(start, blocks)",
        chain="export",
        seen_in="results.pt2-logits",
    ),
)
