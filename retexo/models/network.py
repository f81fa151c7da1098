"""Networks: their convolutions by name, what each layer reads of the node types, its parameters.

model=NAME selects the module retexo/models/conv/NAME.py. To add one, add that module, and its
settings to MODELS of retexo/settings/options.py.

A plain graph has one node type and one relation. A layer of its network is a Stage.

On a heterogeneous graph, trained layer by layer: only nodes of the target type have labels, so a
stage is computed on them alone. With X_s the features of type s, A_r the mean over a relation's
in-edges, and r = (s, r, target) all relations into the target:

    stage 0    h = relu(LN([X W_own ; sum over r of A_r X_s W_r] + b))
    stage k    h = relu(LN([X W_own ; sum over r of A_r X_s W_r ; sum over r of A_r q_s U_r] + b))

    logits = h V + c
    q_t = [sum over near relations (s, r, t) of A_r X_s P_s ; A_r X_s for each far one]

with q_s in place of X_s in later layers. q are the rows that types pass to the next layer. P_s is
W_own for the target, and the sum of W_r (later U_r) over the relations from s to the target. A type
is far while no trained weight reads its rows; they are passed as they are, and a later stage learns
weights for them. With task.scorer=dot h has neither relu nor LN, and products over r of
(A_r X_s W_r + b), which are both ends of an edge, in place of the sums.

Trained end to end: a TypedLayer has a stage for each type that it computes.

F_t width of a type's features, 0 for none; D width of a group, which q has too; C classes, L
layers.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn

from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE, EdgeType
from partitioning.setting_fields import one_of, within
from retexo.models import conv
from retexo.models.conv.rgcn import NUM_BASES
from retexo.models.convolution import Convolution, LayerShape, RelationInput, xavier
from retexo.models.relational import RelationalConvolution
from retexo.models.scorer import Scorer
from retexo.models.stage import Skip, Stage
from retexo.settings.objective_settings import MAX_WIDTH
from retexo.settings.options import MODELS, ModelSettings


class ConvolutionModule(Protocol):
    """Interface of a module in retexo/models/conv/."""

    def build(self, layer: LayerShape, options: Any) -> Convolution:
        """Build the convolution of one layer with initial parameters.

        Args:
            options: an instance of the model's class in retexo.settings.options.
        Raises:
            InputError: for settings that the convolution does not support.
        """


CONVOLUTIONS: dict[str, ConvolutionModule] = {
    module.name: cast(ConvolutionModule, import_module(f"{conv.__name__}.{module.name}"))
    for module in iter_modules(conv.__path__)
}


def find_convolution(name: str) -> ConvolutionModule:
    """Return the module of model=NAME. Raises InputError for an unknown name."""
    if name not in CONVOLUTIONS:
        raise InputError(f"model={name}: no such model; choose one of {', '.join(CONVOLUTIONS)}")
    return CONVOLUTIONS[name]


def build_convolution(layer: LayerShape, model: ModelSettings) -> Convolution:
    """Build the convolution of one layer. Raises InputError for bad settings."""
    return find_convolution(model.name).build(layer, model)


def hidden_convolution(model: ModelSettings) -> Convolution:
    """Build a hidden layer on torch's meta device. Raises InputError for bad settings."""
    with torch.device("meta"):
        return build_convolution(LayerShape(1, model.hidden_dim, False), model)


def models_that(fits: Callable[[Convolution], bool]) -> list[str]:
    """Return the names of the models whose convolution, with their own defaults, fits."""
    kinds = {name: hidden_convolution(default_model_settings(name, 1, 1)) for name in CONVOLUTIONS}
    return [name for name, kind in kinds.items() if fits(kind)]


def default_model_settings(name: str, num_layers: int, hidden_dim: int) -> ModelSettings:
    """Return the model's own defaults, but one head, no dropout and no skip connections.

    InputError for an unknown name or sizes that are refused.
    """
    find_convolution(name)
    sizes = {"num_layers": num_layers, "hidden_dim": hidden_dim, "heads": 1, "dropout": 0.0}
    none = {"self_weight": False, "input_skip": False, "output": "activation"}
    return MODELS[name](name=name, **none, **sizes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Schema:
    """Node types and relations of a graph; a plain graph has one of each."""

    target: str
    widths: Mapping[str, int]
    """F_t of each type."""
    relations: tuple[EdgeType, ...]

    @classmethod
    def of_plain_graph(cls, num_features: int) -> Self:
        """One node type with one relation."""
        return cls(PLAIN_TYPE, {PLAIN_TYPE: num_features}, (PLAIN_RELATION,))

    @property
    def is_plain(self) -> bool:
        """Whether it is that of a plain graph."""
        return self.target == PLAIN_TYPE

    @property
    def description(self) -> str:
        """Return the node types with their widths, and the relations, for messages."""
        types = ", ".join(f"{name} ({width})" for name, width in self.widths.items())
        return f"{types} with {', '.join('__'.join(relation) for relation in self.relations)}"

    def relations_into(self, node_type: str) -> list[EdgeType]:
        """Return the relations whose destinations are of a type."""
        return [relation for relation in self.relations if relation[2] == node_type]

    def most_alike(self, model: ModelSettings) -> int:
        """Return the largest number of relations that a stage reads from one source type."""
        alike = Counter(
            (source, to)
            for source, _, to in self.relations
            if to == self.target or not model.input_skip  # which computes other types, too
        )
        return max(alike.values(), default=0)

    def types_with_rows(self, layer: int) -> list[str]:
        """Return the types with input rows in a layer.

        These are features in the first layer, and passed rows in later ones.
        """
        if layer == 0:
            return [name for name, width in self.widths.items() if width]
        before = self.types_with_rows(layer - 1)
        reached = {relation[2] for relation in self.relations if relation[0] in before}
        return [name for name in self.widths if name in reached]

    def types_within_hops(self, hops: int) -> set[str]:
        """Return the target and the types from which at most `hops` relations lead to it."""
        reached = {self.target}
        for _ in range(hops):
            reached |= {relation[0] for relation in self.relations if relation[2] in reached}
        return reached

    def passing_types(self, layer: int, num_layers: int) -> list[str]:
        """Return the types that pass rows from a layer: those that still reach the target."""
        hops_left = num_layers - 2 - layer
        reached = self.types_within_hops(hops_left) if hops_left >= 0 else set()
        sources = {relation[0] for relation in self.relations if relation[2] in reached}
        return [name for name in self.types_with_rows(layer + 1) if name in sources]

    def target_relations(self, layer: int) -> list[EdgeType]:
        """Return the relations into the target whose sources have input rows of a layer."""
        sources = self.types_with_rows(layer)
        return [relation for relation in self.relations_into(self.target) if relation[0] in sources]

    def weighted_types(self, layer: int) -> set[str]:
        """Return the types whose rows a layer's stage has weights for (the near ones)."""
        own = {self.target} if layer == 0 and self.widths[self.target] else set()
        return own | {relation[0] for relation in self.target_relations(layer)}

    def passed_columns(
        self, layer: int, widths: Mapping[str, int], projected: int
    ) -> dict[EdgeType, slice]:
        """Return the columns of q that each relation adds to.

        Args:
            layer: the layer that passes q.
            widths: of the layer's rows, by type.
            projected: D.
        """
        near, columns = self.weighted_types(layer), {}
        for name in self.types_with_rows(layer + 1):
            into = [relation for relation in self.relations_into(name) if relation[0] in widths]
            end = projected if any(relation[0] in near for relation in into) else 0
            for relation in into:
                first = 0 if relation[0] in near else end
                columns[relation] = slice(
                    first, first + (projected if relation[0] in near else widths[relation[0]])
                )
                end = max(end, columns[relation].stop)
        return columns

    def passed_widths(
        self, layer: int, widths: Mapping[str, int], projected: int
    ) -> dict[str, int]:
        """Return the width of q by type; arguments as in passed_columns."""
        widths_passed: dict[str, int] = {}
        for relation, place in self.passed_columns(layer, widths, projected).items():
            widths_passed[relation[2]] = max(widths_passed.get(relation[2], 0), place.stop)
        return widths_passed


@dataclass(frozen=True)
class Architecture:
    """Everything that a network's shape depends on; part of a checkpoint."""

    model: ModelSettings
    schema: Schema
    num_classes: int
    scorer: str = ""
    """For link prediction (retexo.models.scorer); empty for other tasks."""
    num_edge_features: int = 0
    """K that are read of a plain graph; attention reads an edge weight as one of them."""
    head: str = "mlp"
    """task.scorer of labelled edges, in a heterogeneous graph"""

    @property
    def num_features(self) -> int:
        """Return the width of the target's features."""
        return self.schema.widths[self.schema.target]

    def to_json(self) -> dict[str, Any]:
        """One flat object: the settings of the model and of its convolution, and the sizes.

        Relations are lists of three.
        """
        model = asdict(self.model)
        if not self.schema.is_plain:
            sizes = {"num_classes": self.num_classes, "task.scorer": self.head}
            return {**model, **asdict(self.schema), **sizes}
        sizes = {name: getattr(self, name) for name in ("num_features", "num_classes")}
        scorer = {"scorer": self.scorer} if self.scorer else {}
        return {**model, **sizes, **scorer, "num_edge_features": self.num_edge_features}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the inverse of to_json.

        Raises KeyError, TypeError, ValueError, and InputError for an unknown model, a setting of it
        that is refused, another output than a layer can have, a width of embeddings that is out of
        range, or another number of bases, which earlier versions let users set, where relations
        share them.
        """
        find_convolution(content["name"])
        kind = MODELS[content["name"]]
        model = kind(**{field.name: content[field.name] for field in fields(kind)})
        one_of("activation", "aggregate")("model.output", model.output)
        if content.get("scorer"):
            within(1, MAX_WIDTH)("num_classes", content["num_classes"])
        if "relations" in content:
            relations = tuple(
                (str(source), str(name), str(to)) for source, name, to in content["relations"]
            )
            schema = Schema(str(content["target"]), dict(content["widths"]), relations)
        else:
            schema = Schema.of_plain_graph(content["num_features"])
        num_bases = content.get("num_bases", NUM_BASES)
        if num_bases != NUM_BASES and schema.most_alike(model) > min(num_bases, NUM_BASES):
            raise InputError(f"model.num_bases={num_bases}: relations share {NUM_BASES} bases now")
        return cls(
            model,
            schema,
            int(content["num_classes"]),
            content.get("scorer", ""),
            content.get("num_edge_features", 0),
            content.get("task.scorer", content.get("task.head", "mlp")),  # the former name
        )


class TypedLayer(nn.Module):
    """One layer of a network trained end to end: a stage without head for each computed type.

    h_t' = relu(LN(h_t W_t + sum over r = (s, r, t) of A_r h_s W_r + b))

    The last layer has neither norm nor ReLU. With task.scorer=dot it is hidden_dim wide, multiplies
    the relations' terms (both ends of an edge) and has a linear head.
    """

    head = head_norm = None
    scorer = None
    """There is no link prediction on heterogeneous graphs."""

    def __init__(self, stages: Mapping[str, Stage]) -> None:
        super().__init__()
        self.types = tuple(stages)
        self.trunk = nn.ModuleList(stages.values())
        """The trained modules."""

    def by_type(self) -> Iterator[tuple[str, Stage]]:
        """Yield each computed node type with its stage."""
        return zip(self.types, self.trunk, strict=True)  # type: ignore[arg-type]

    @property
    def conv(self) -> Convolution:
        """One type's convolution; those of all types are of the same kind."""
        return next(self.by_type())[1].conv

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        """Return the first weights of each type's inputs, type by type (Stage.first_weights)."""
        return tuple(weight for _, stage in self.by_type() for weight in stage.first_weights)


def build_network(architecture: Architecture, seed: int) -> list[Stage]:
    """Return the layers with the initial parameters of a seed, the same on every worker.

    On a heterogeneous graph model.input_skip says how the network is trained: with it layer by
    layer, without it end to end, by TypedLayers. The global random state stays as it is.
    InputError for settings that the convolution does not support.
    """
    stages: list[Any] = []
    schema, model = architecture.schema, architecture.model
    kind = hidden_convolution(model)
    rows = {name: width for name, width in schema.widths.items() if width or schema.is_plain}
    with torch.random.fork_rng(devices=[]):
        for layer in range(model.depth):
            torch.manual_seed(seed * 1_000 + layer)
            if schema.is_plain:
                stages.append(_build_plain(architecture, kind, layer, rows[PLAIN_TYPE]))
                rows = {PLAIN_TYPE: stages[-1].output_dim}
                if architecture.scorer:
                    stages[-1].scorer = Scorer(architecture.scorer, architecture.num_classes)
            elif model.input_skip:
                stages.append(_build_stage(architecture, layer, rows))
                rows = schema.passed_widths(layer, rows, stages[-1].conv.projected_width)
            else:
                stages.append(_build_typed(architecture, layer, rows))
                rows = dict.fromkeys(stages[-1].types, model.hidden_dim)
    return stages


def _build_plain(architecture: Architecture, kind: Convolution, layer: int, num_in: int) -> Stage:
    """Build the stage of a layer of a plain graph.

    kind: a convolution of any layer; num_in: width of the layer's rows.
    """
    model, num_features = architecture.model, architecture.num_features
    num_classes, num_edge_features = architecture.num_classes, architecture.num_edge_features
    is_last = layer == model.depth - 1
    conv_settings = model if layer else replace(model, dropout=model.features_dropout(num_in))
    skips = _skips(model, layer, linear=kind.linear_aggregation)
    if num_edge_features and not (kind.attention_heads or kind.reads_relations):
        skips, num_edge_features = (*skips, "edges"), 0  # attention reads each edge's
    if is_last and not skips:
        shape = LayerShape(num_in, num_classes, True, num_edge_features)
        return Stage(build_convolution(shape, conv_settings), None, model, is_last=True)
    adds_skips = kind.adds_skips or model.residual
    share = 0 if adds_skips else max(1, model.hidden_dim // (len(skips) + 1))
    width = max(1, model.hidden_dim - share * len(skips))
    conv = build_convolution(LayerShape(num_in, width, False, num_edge_features), conv_settings)
    conv.adds_skips = adds_skips
    known = {"rows": num_in, "edges": architecture.num_edge_features}
    widths = (known.get(name, num_features) for name in skips)
    return Stage(
        conv,
        num_classes,
        model,
        skips={
            name: xavier(width, share or conv.output_dim)
            for name, width in zip(skips, widths, strict=True)
        },
        features=not layer,
        is_last=is_last,
        outputs_aggregate=model.passes_aggregate and kind.linear_aggregation and not is_last,
    )


def _skips(model: ModelSettings, layer: int, *, linear: bool) -> tuple[Skip, ...]:
    """Return the skip connections of a stage."""
    if layer == 0 or not model.input_skip:
        return ("rows",) if model.self_weight else ()
    if linear and (model.lookahead or model.residual) and model.self_weight:
        return ("rows", "features", "aggregate")
    return ("features", "aggregate") if linear else ("features", "rows")


def _build_typed(architecture: Architecture, layer: int, rows: Mapping[str, int]) -> TypedLayer:
    """Build a layer of a network that is trained end to end: one stage per type.

    rows: widths of the types that the layer before computes, or that have features.
    """
    schema, model, stages = architecture.schema, architecture.model, {}
    last = layer == model.depth - 1
    is_product = last and architecture.head == "dot"
    width = model.hidden_dim if is_product or not last else architecture.num_classes
    computed = schema.types_within_hops(model.depth - 1 - layer)
    for name in schema.widths:
        group = tuple(
            RelationInput(
                relation[0],
                rows[relation[0]],
                model.dropout if layer else model.features_dropout(rows[relation[0]]),
            )
            for relation in schema.relations_into(name)
            if relation[0] in rows
        )
        if name not in computed or not (group or name in rows):
            continue
        conv = build_convolution(
            LayerShape(0, width, last, groups=(group,), num_own=rows.get(name, 0)), model
        )
        conv.adds_skips = True
        skips = {"rows": xavier(rows[name], width)} if name in rows else {}
        classes = architecture.num_classes if is_product else None if last else 1
        stage = Stage(conv, classes, model, skips=skips, features=not layer, is_last=is_product)  # type: ignore[arg-type]
        if is_product:
            _multiply_ends(stage)
        else:
            stage.head = None
        stages[name] = stage
    return TypedLayer(stages)


def _build_stage(architecture: Architecture, layer: int, rows: Mapping[str, int]) -> Stage:
    """Build the stage of a layer that is trained by itself.

    rows: widths of its input rows by type.
    """
    schema, model = architecture.schema, architecture.model
    own = schema.widths[schema.target]
    width = _group_width(architecture, layer)
    raw = tuple(
        RelationInput(source, schema.widths[source], model.features_dropout(schema.widths[source]))
        for source, *_ in schema.target_relations(0)
    )
    passed = (
        tuple(
            RelationInput(relation[0], rows[relation[0]])
            for relation in schema.target_relations(layer)
        )
        if layer
        else ()
    )
    groups = tuple(group for group in (raw, passed) if group)
    conv = build_convolution(LayerShape(0, width, False, groups=groups, num_own=own), model)
    skips = {"features": xavier(own, width)} if own else {}
    stage = Stage(conv, architecture.num_classes, model, skips=skips)  # type: ignore[arg-type]
    if architecture.head == "dot":
        _multiply_ends(stage)
    return stage


def _multiply_ends(stage: Stage) -> None:
    """Change a stage so that its head weighs products of both ends' embeddings (task.scorer=dot).

    It loses its norm, and its bias becomes ones.
    """
    assert isinstance(stage.conv, RelationalConvolution)
    stage.conv.multiplies, stage.norm = True, None
    nn.init.ones_(stage.conv.bias)  # each end counts by itself, too


def _group_width(architecture: Architecture, layer: int) -> int:
    """Return an equal share of hidden_dim for own features, neighbours' features and passed rows.

    Only for those that there are; a multiple of the number of heads.
    """
    schema, model = architecture.schema, architecture.model
    parts = (
        bool(schema.widths[schema.target])
        + bool(schema.target_relations(0))
        + bool(layer and schema.target_relations(layer))
    )
    width = max(1, model.hidden_dim // max(1, parts))
    heads = model.heads if hidden_convolution(model).attention_heads else 1
    return max(heads, width - width % heads)


@torch.no_grad()
def projections(stage: Stage, schema: Schema, layer: int) -> dict[str, Tensor]:
    """Return P_s of each near type, [F_s, D], from the weights of a layer's trained stage.

    In the first layer, the target's is the weight of the skip connection from the features.
    """
    weights: dict[str, Tensor] = {}
    assert isinstance(stage.conv, RelationalConvolution)
    for place, (source, _, _) in enumerate(schema.target_relations(layer)):
        weight = stage.conv.weight_of(len(stage.conv.groups) - 1, place)
        weights[source] = weights[source] + weight if source in weights else weight
    if layer == 0 and "features" in stage.skips:
        weights[schema.target] = stage.skips["features"]
    return {name: weight.detach() for name, weight in weights.items()}
