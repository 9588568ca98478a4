"""Models that other people wrote, small: each a function of its weights and a batch, data-parallel over four devices.

A library that is not installed leaves out its models. `python -m tests.models.zoo` runs all of them, and writes the
table of docs/tables; `--print` prints it and writes nothing; names of models print their rows.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli.run_folder import run_folder
from tests.generators.readme_tables import write
from tests.models.sizes import processor_seconds

BATCH, AXES = 4, ("y", "x")
KEY = 7
Built = tuple[Callable[..., Any], Any, Any]
"""A function, its weights, and its batch."""


@dataclass(frozen=True)
class Model:
    """A model of a library, which is imported when it is built."""

    library: str
    build: Callable[[Any], Built]

    def __call__(self) -> Built:
        os.environ.setdefault("KERAS_BACKEND", "jax")
        return self.build(importlib.import_module(self.library))


def images(size: int = 16, channels: int = 3) -> Any:
    return np.random.default_rng(0).standard_normal((BATCH, size, size, channels), dtype=np.float32)


def rows(length: int = 8, width: int = 16) -> Any:
    return np.random.default_rng(1).standard_normal((BATCH, length, width), dtype=np.float32)


def tokens(length: int = 8) -> Any:
    return np.random.default_rng(2).integers(0, 60, (BATCH, length), np.int32)


def key() -> Any:
    return jax.random.key(KEY)


# --- Flax ------------------------------------------------------------------------------------------------------------


def linen(make: Callable[[Any], Callable[[Any, Any], Any]], batch: Callable[[], Any]) -> Callable[[Any], Built]:
    """A Flax module whose compact call is given."""

    def build(nn: Any) -> Built:
        call = make(nn)

        class Module(nn.Module):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                return call(self, x)

        module, x = Module(), batch()
        return module.apply, jax.jit(module.init)(key(), x), x

    return build


def _linen_cnn(nn: Any) -> Any:
    def call(_: Any, x: Any) -> Any:
        for features in (8, 16):
            x = nn.avg_pool(nn.relu(nn.Conv(features, (3, 3))(x)), (2, 2), strides=(2, 2))
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1))))

    return call


def _linen_resnet(nn: Any) -> Any:
    def block(x: Any, features: int, stride: int) -> Any:
        y = nn.relu(nn.BatchNorm(use_running_average=True)(nn.Conv(features, (3, 3), (stride,) * 2)(x)))
        y = nn.BatchNorm(use_running_average=True)(nn.Conv(features, (3, 3))(y))
        return nn.relu(y + (x if y.shape == x.shape else nn.Conv(features, (1, 1), (stride,) * 2)(x)))

    def call(_: Any, x: Any) -> Any:
        x = nn.max_pool(nn.relu(nn.Conv(8, (7, 7), (2, 2))(x)), (3, 3), strides=(2, 2), padding="SAME")
        for features, stride in ((8, 1), (16, 2)):
            x = block(x, features, stride)
        return nn.Dense(10)(x.mean((1, 2)))

    return call


def _linen_transformer(nn: Any) -> Any:
    def call(_: Any, ids: Any) -> Any:
        x = nn.Embed(64, 16)(ids) + nn.Embed(8, 16)(jnp.arange(8))
        for _ in range(2):
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x), mask=nn.make_causal_mask(ids))
            x = x + nn.Dense(16)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
        return nn.Dense(64)(nn.RMSNorm()(x))

    return call


def _linen_unet(nn: Any) -> Any:
    def call(_: Any, x: Any) -> Any:
        first = nn.silu(nn.GroupNorm(4)(nn.Conv(8, (3, 3))(x)))
        low = nn.silu(nn.Conv(16, (3, 3), strides=(2, 2))(first))
        back = nn.ConvTranspose(8, (2, 2), strides=(2, 2))(low)
        return nn.Conv(3, (3, 3))(jnp.concatenate([first, back], -1))

    return call


def _linen_lstm(nn: Any) -> Any:
    return lambda _, x: nn.Dense(4)(nn.RNN(nn.OptimizedLSTMCell(12))(x))


def _linen_gru(nn: Any) -> Any:
    return lambda _, x: nn.Bidirectional(nn.RNN(nn.GRUCell(8)), nn.RNN(nn.GRUCell(8)))(x)


def _linen_mixer(nn: Any) -> Any:
    def call(_: Any, x: Any) -> Any:
        x = nn.Conv(16, (4, 4), strides=(4, 4))(x).reshape(x.shape[0], -1, 16)
        for _ in range(2):
            y = nn.LayerNorm()(x).swapaxes(1, 2)
            x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(y))).swapaxes(1, 2)
            x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
        return nn.Dense(10)(x.mean(1))

    return call


def _linen_fourier(nn: Any) -> Any:
    """FNet: attention is a Fourier transform."""

    def call(_: Any, x: Any) -> Any:
        for _ in range(2):
            x = nn.LayerNorm()(x + jnp.fft.fft2(x).real)
            x = nn.LayerNorm()(x + nn.Dense(16)(nn.gelu(nn.Dense(32)(x))))
        return nn.Dense(4)(x)

    return call


def _linen_moe(nn: Any) -> Any:
    def call(_: Any, x: Any) -> Any:
        shares = nn.softmax(nn.Dense(4)(x))
        best, which = jax.lax.top_k(shares, 2)
        experts = jnp.stack([nn.Dense(16)(nn.silu(nn.Dense(32)(x))) for _ in range(4)], -2)
        chosen = jnp.take_along_axis(experts, which[..., None], -2)
        return (chosen * (best / best.sum(-1, keepdims=True))[..., None]).sum(-2)

    return call


def nnx(make: Callable[[Any, Any], Any], batch: Callable[[], Any]) -> Callable[[Any], Built]:
    """A module of Flax NNX."""

    def build(library: Any) -> Built:
        graph, state = library.split(make(library, library.Rngs(0)))
        return lambda state, x: library.merge(graph, state)(x), state, batch()

    return build


def _nnx_mlp(lib: Any, rngs: Any) -> Any:
    return lib.Sequential(
        lib.Linear(16, 32, rngs=rngs), lib.BatchNorm(32, use_running_average=True, rngs=rngs), lib.relu,
        lib.Linear(32, 4, rngs=rngs),
    )  # fmt: skip


def _nnx_attention(lib: Any, rngs: Any) -> Any:
    norm, attend = lib.LayerNorm(16, rngs=rngs), lib.MultiHeadAttention(4, 16, decode=False, rngs=rngs)
    return lib.Sequential(norm, attend, lib.LoRALinear(16, 8, lora_rank=2, rngs=rngs))


def _nnx_cnn(lib: Any, rngs: Any) -> Any:
    return lib.Sequential(lib.Conv(3, 8, (3, 3), rngs=rngs), lib.gelu, lib.GroupNorm(8, num_groups=4, rngs=rngs))


# --- Equinox ---------------------------------------------------------------------------------------------------------


def equinox(make: Callable[[Any], Any], batch: Callable[[], Any]) -> Callable[[Any], Built]:
    """A module of Equinox, which takes one example."""

    def build(eqx: Any) -> Built:
        weights, rest = eqx.partition(make(eqx), eqx.is_array)
        return lambda weights, x: jax.vmap(eqx.combine(weights, rest))(x), weights, batch()

    return build


def vectors() -> Any:
    return rows()[:, 0]


def channels_first() -> Any:
    return images().transpose(0, 3, 1, 2)


def _eqx_cnn(eqx: Any) -> Any:
    nn, (a, b, c) = eqx.nn, jax.random.split(key(), 3)
    flat = nn.Lambda(jnp.ravel)
    return nn.Sequential([nn.Conv2d(3, 8, 3, key=a), nn.MaxPool2d(2, 2), nn.Lambda(jax.nn.relu),
                          nn.Conv2d(8, 8, 3, stride=2, key=b), flat, nn.Linear(72, 10, key=c)])  # fmt: skip


def _eqx_attention(eqx: Any) -> Any:
    attend = eqx.nn.MultiheadAttention(4, 16, key=key())
    norm, place = jax.vmap(eqx.nn.RMSNorm(16)), eqx.nn.RotaryPositionalEmbedding(16)

    class Block(eqx.Module):
        attend: Any

        def __call__(self, x: Any) -> Any:
            y = place(norm(x))
            return x + self.attend(y, y, y)

    return Block(attend)


def _eqx_gru(eqx: Any) -> Any:
    class Network(eqx.Module):
        cell: Any
        out: Any

        def __call__(self, x: Any) -> Any:
            last, _ = jax.lax.scan(lambda h, row: (self.cell(row, h), None), jnp.zeros(8), x)
            return self.out(last)

    a, b = jax.random.split(key())
    return Network(eqx.nn.GRUCell(16, 8, key=a), eqx.nn.Linear(8, 3, key=b))


# --- Haiku -----------------------------------------------------------------------------------------------------------


def haiku(make: Callable[[Any], Callable[[Any, bool], Any]], batch: Callable[[], Any]) -> Callable[[Any], Built]:
    """A function of Haiku, of a batch and of whether it trains."""

    def build(hk: Any) -> Built:
        call = hk.without_apply_rng(hk.transform_with_state(make(hk)))
        x = batch()
        weights, state = jax.jit(call.init, static_argnums=2)(key(), x, True)
        return lambda given, x: call.apply(*given, x, False)[0], (weights, state), x

    return build


def _haiku_mlp(hk: Any) -> Any:
    return lambda x, _: hk.nets.MLP([32, 16, 4])(x)


def _haiku_resnet(hk: Any) -> Any:
    sizes = {"channels_per_group": (8, 8, 16, 16), "bottleneck": False}
    return lambda x, trains: hk.nets.ResNet((1, 1, 1, 1), 10, **sizes)(x, trains)


def _haiku_mobilenet(hk: Any) -> Any:
    return lambda x, trains: hk.nets.MobileNetV1((1, 2), (8, 16), 10)(x, trains)


def _haiku_wavenet(hk: Any) -> Any:
    """Gated causal convolutions, each of twice the reach of the one before."""

    def call(x: Any, _: bool) -> Any:
        skips = 0.0
        for reach in (1, 2, 4):
            a, b = jnp.split(hk.Conv1D(32, 2, rate=reach, padding=hk.pad.causal)(x), 2, axis=-1)
            y = jnp.tanh(a) * jax.nn.sigmoid(b)
            skips, x = skips + hk.Linear(8)(y), x + hk.Linear(16)(y)
        return hk.Linear(4)(jax.nn.relu(skips))

    return call


# --- Penzai and jraph ------------------------------------------------------------------------------------------------


def penzai(models: Any) -> Built:
    """A multilayer perceptron of named axes."""
    pz = importlib.import_module("penzai.pz")
    model = models.MLP.from_config(name="mlp", init_base_rng=key(), feature_sizes=[16, 32, 4])
    model, weights = pz.unbind_variables(model, freeze=True)

    def call(weights: Any, x: Any) -> Any:
        bound = pz.bind_variables(model, weights)
        return bound(pz.nx.wrap(x).tag("batch", "features")).untag("batch", "features").unwrap()

    return call, weights, vectors()


def graphs(jraph: Any) -> Built:
    """A graph network: messages along the twelve edges of a ring of six nodes, for each example."""
    rng = np.random.default_rng(3)
    senders = np.array([*range(6), *range(6)])
    receivers = np.array([*np.roll(range(6), 1), *np.roll(range(6), -1)])
    weights = {name: rng.standard_normal((16, 16), np.float32) / 4 for name in ("edge", "node")}

    def call(weights: Any, nodes: Any) -> Any:
        network = jraph.GraphNetwork(
            lambda edges, sent, received, _: jnp.tanh((edges + sent - received) @ weights["edge"]),
            lambda nodes, sent, received, _: jax.nn.relu((nodes + received) @ weights["node"]) + sent,
        )

        def one(nodes: Any) -> Any:
            sizes = {"n_node": np.array([6]), "n_edge": np.array([12])}
            edges, rest = jnp.zeros((12, 16)), jnp.zeros((1, 1))
            graph = jraph.GraphsTuple(nodes, edges, receivers, senders, globals=rest, **sizes)
            return network(network(graph)).nodes

        return jax.vmap(one)(nodes)

    return call, weights, rows(6)


# --- Keras -----------------------------------------------------------------------------------------------------------


def keras(make: Callable[[Any], Any], batch: Callable[[], Any]) -> Callable[[Any], Built]:
    """A model of Keras, in inference."""

    def build(library: Any) -> Built:
        made = make(library)
        weights = [[v.value for v in group] for group in (made.trainable_variables, made.non_trainable_variables)]
        return lambda w, x: made.stateless_call(*w, x, training=False)[0], weights, batch()

    return build


def _keras_transformer(library: Any) -> Any:
    layers = library.layers
    ids = layers.Input((8,), dtype="int32")
    x = layers.Embedding(64, 16)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True))
    return library.Model(ids, layers.Dense(64)(layers.Dense(32, activation="gelu")(x)))


def _keras_separable(library: Any) -> Any:
    layers = library.layers
    steps = [layers.SeparableConv2D(8, 3, activation="swish"), layers.DepthwiseConv2D(3), layers.BatchNormalization(),
             layers.UpSampling2D(2), layers.GlobalMaxPooling2D(), layers.Dense(10, activation="softmax")]  # fmt: skip
    return library.Sequential([layers.Input((16, 16, 3)), *steps])


def _dense_net(library: Any) -> Any:
    sizes = {"stackwise_num_repeats": [2, 2], "growth_rate": 4, "image_shape": (16, 16, 3)}
    return library.models.DenseNetBackbone(**sizes)


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def hugging_face(name: str, batch: Callable[[], Any], **sizes: Any) -> Callable[[Any], Built]:
    """A Flax model of transformers, made of its config."""

    def build(library: Any) -> Built:
        config = getattr(library, f"{name}Config")(**sizes)
        model = getattr(library, f"Flax{name}Model")(config, seed=0)
        return lambda weights, x: model(x, params=weights)[0], model.params, batch()

    return build


def autoencoder(diffusers: Any) -> Built:
    """The autoencoder of Stable Diffusion, small."""
    sizes = {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 2, "sample_size": 16}
    kinds = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    module = diffusers.FlaxAutoencoderKL(**sizes, **kinds)
    return lambda weights, x: module.apply({"params": weights}, x).sample, module.init_weights(key()), channels_first()


TEXT = {
    "max_position_embeddings": 16,
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}
VISION = {"image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 32}  # fmt: skip

# --- the list --------------------------------------------------------------------------------------------------------

LINEN, NNX, EQUINOX, HAIKU, KERAS, HF = "flax.linen", "flax.nnx", "equinox", "haiku", "keras", "transformers"

ZOO: dict[str, Model] = {
    "CNN": Model(LINEN, linen(_linen_cnn, images)),
    "ResNet": Model(LINEN, linen(_linen_resnet, images)),
    "decoder": Model(LINEN, linen(_linen_transformer, tokens)),
    "U-Net": Model(LINEN, linen(_linen_unet, images)),
    "LSTM": Model(LINEN, linen(_linen_lstm, rows)),
    "bidirectional GRU": Model(LINEN, linen(_linen_gru, rows)),
    "MLP-Mixer": Model(LINEN, linen(_linen_mixer, images)),
    "FNet": Model(LINEN, linen(_linen_fourier, rows)),
    "mixture of experts": Model(LINEN, linen(_linen_moe, rows)),
    "MLP with batch norm": Model(NNX, nnx(_nnx_mlp, vectors)),
    "attention and LoRA": Model(NNX, nnx(_nnx_attention, rows)),
    "CNN with group norm": Model(NNX, nnx(_nnx_cnn, images)),
    "MLP": Model(EQUINOX, equinox(lambda eqx: eqx.nn.MLP(16, 4, 32, 2, key=key()), vectors)),
    "CNN of one example": Model(EQUINOX, equinox(_eqx_cnn, channels_first)),
    "attention, rotary": Model(EQUINOX, equinox(_eqx_attention, rows)),
    "GRU": Model(EQUINOX, equinox(_eqx_gru, rows)),
    "MLP of nets": Model(HAIKU, haiku(_haiku_mlp, vectors)),
    "ResNet of nets": Model(HAIKU, haiku(_haiku_resnet, images)),
    "MobileNet of nets": Model(HAIKU, haiku(_haiku_mobilenet, images)),
    "separable convolutions": Model(KERAS, keras(_keras_separable, images)),
    "transformer": Model(KERAS, keras(_keras_transformer, tokens)),
    "BERT": Model(HF, hugging_face("Bert", tokens, **TEXT)),
    "GPT-2": Model(HF, hugging_face("GPT2", tokens, vocab_size=64, n_embd=16, n_layer=2, n_head=4, n_positions=8)),
    "GPT-Neo": Model(HF, hugging_face("GPTNeo", tokens, vocab_size=64, hidden_size=16, num_layers=2, num_heads=4,
                                      attention_types=[[["global", "local"], 1]], max_position_embeddings=8)),
    "BLOOM": Model(HF, hugging_face("Bloom", tokens, vocab_size=64, hidden_size=16, n_layer=2, n_head=4)),
    "Llama": Model(HF, hugging_face("Llama", tokens, **TEXT, num_key_value_heads=4)),
    "Mistral": Model(HF, hugging_face("Mistral", tokens, **TEXT, num_key_value_heads=2)),
    "Gemma": Model(HF, hugging_face("Gemma", tokens, **TEXT, num_key_value_heads=1, head_dim=8)),
    "ViT": Model(HF, hugging_face("ViT", channels_first, **VISION)),
    "ResNet of transformers": Model(HF, hugging_face("ResNet", channels_first, embedding_size=8, hidden_sizes=[8, 16],
                                                     depths=[1, 1], layer_type="basic")),
    "ALBERT": Model(HF, hugging_face("Albert", tokens, **TEXT, embedding_size=8)),
    "OPT": Model(HF, hugging_face("OPT", tokens, vocab_size=64, hidden_size=16, num_hidden_layers=2, ffn_dim=32,
                                  num_attention_heads=4, max_position_embeddings=16, word_embed_proj_dim=8)),
    "DINOv2": Model(HF, hugging_face("Dinov2", channels_first, **VISION, use_swiglu_ffn=True)),
    "RegNet": Model(HF, hugging_face("RegNet", channels_first, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                                     groups_width=4)),
    "RoFormer": Model(HF, hugging_face("RoFormer", tokens, **TEXT)),
    "autoencoder": Model("diffusers", autoencoder),
    "WaveNet": Model(HAIKU, haiku(_haiku_wavenet, rows)),
    "MLP of named axes": Model("penzai.models.simple_mlp", penzai),
    "graph network": Model("jraph", graphs),
    "DenseNet": Model("keras_hub", keras(_dense_net, images)),
}  # fmt: skip

# --- what happens to one ---------------------------------------------------------------------------------------------

TEXTS = ("ttir", "ttnn", "python", "cpp")
COLUMNS = ("model", "library", "by hand", "shard_map", "plain jit", "lines", "emitted", "ttnn")


def ways(function: Callable[..., Any], mesh: Any) -> dict[str, Callable[..., Any]]:
    """The three ways to split the batch over all devices."""
    split = P(AXES)

    def by_hand(weights: Any, x: Any) -> Any:
        made = function(jax.tree.map(lambda w: jm.full_to_shard(w, P()), weights), jm.full_to_shard(x, split))
        return jax.tree.map(lambda y: jm.shard_to_full(y, split), made)

    # Recurrent networks start from zeros, which by JAX's types do not vary over the devices as what follows does.
    mapped = jax.shard_map(function, mesh=mesh, in_specs=(P(), split), out_specs=split, check_vma=False)
    return {
        "by hand": jm.jit(by_hand, mesh=mesh),
        "shard_map": jm.jit(mapped, mesh=mesh),
        "plain jit": jm.jit(function, mesh=mesh, in_shardings=(P(), split), out_shardings=split),
    }


def largest_difference(got: Any, want: Any) -> float:
    """The largest difference of any number, as a part of the largest number."""
    apart = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert x.shape == y.shape
        apart = max(apart, float(np.abs(x - y).max()) / max(1.0, float(np.abs(y).max())))
    return apart


TOLERANCE = 1e-4


def run(name: str) -> dict[str, Any]:
    """Runs a model in every way: its values, texts, exported program, and the real ttnn's verdict if there is one."""
    start = processor_seconds()
    function, weights, batch = ZOO[name]()
    mesh = jm.make_mesh((2, 2), AXES)
    want = jax.jit(function)(weights, batch)
    found: dict[str, Any] = {"model": name, "library": ZOO[name].library}
    for way, program in ways(function, mesh).items():
        traced = program.trace(weights, batch)
        lowered = traced.lower()
        texts = [stage.as_text(t) for stage, t in zip((traced, lowered, lowered, lowered), TEXTS, strict=True)]
        assert all(texts)
        found[way] = largest_difference(lowered.compile()(weights, batch), want)
        if way == "plain jit":
            found["lines"] = texts[1].count("\n")
            found["emitted"] = emitted(lowered, weights, batch)
            if os.environ.get("JAXMESH_TTNN_PYTHON"):
                verdict = lowered.judge()
                found["ttnn"] = "accepted" if verdict else f"refused: {verdict.refusal.reason}"
    return {**found, "seconds": processor_seconds() - start}


def emitted(lowered: Any, *args: Any) -> str:
    """Whether the exported program gives what is expected, on the emulated ttnn."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        lowered.export(Path(folder) / "model", *args, languages=["python"])
        code = run_folder(Path(folder) / "model", ["--check"])
    return "ok" if code == 0 else f"differs: {said.getvalue()}"


def row(found: dict[str, Any]) -> str:
    def shown(column: str) -> str:
        value = found.get(column, "")
        if not isinstance(value, float):
            return str(value)
        return f"{value:.1f}" if column == "seconds" else f"{value:.0e}"

    return "| " + " | ".join(map(shown, COLUMNS)) + " |"


def main(arguments: Sequence[str]) -> None:
    jm.emulate(4)
    names = [a for a in arguments if a in ZOO]
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for name in names or ZOO:
        try:
            lines.append(row(run(name)))
        except ImportError as error:
            lines.append(f"| {name} | {ZOO[name].library} |  |  |  |  |  |  | not installed: {error.name} |")
        except Exception as error:
            lines.append(f"| {name} | {ZOO[name].library} | {type(error).__name__}: {str(error)[:200]} |")
        print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(
        [
            *lines,
            "",
            "Largest differences from the unsharded model, as parts of its largest number; `lines` are those of the "
            "TTNN text, and `ttnn` is the verdict of the real library.",
        ]
    )
    if names or "--print" in arguments:
        print(text)
    else:
        write("zoo", text)


if __name__ == "__main__":
    main(sys.argv[1:])
