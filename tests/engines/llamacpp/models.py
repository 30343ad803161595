# SPDX-License-Identifier: Apache-2.0
"""Models of random weights for llama.cpp: models.py FOLDER [ARCHITECTURE…] [--seed N] [--mid] writes
FOLDER/ARCHITECTURE.gguf, or FOLDER/ARCHITECTURE-mid.gguf, and prints their paths. Equal arguments give equal files.
FOLDER/refused gets models that stateport::llamacpp has to refuse.

Weights are large enough that one token changes what is decoded a hundred tokens later. Sizes are the smallest that keep
the parts of a real model of the architecture: its recurrent layers, attention with fewer heads of keys than of queries,
experts where it has them. Tensors and keys are those that llama.cpp's loader asks for (src/models/*.cpp)."""
from __future__ import annotations

import argparse
import math
import pathlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
from scenario import END, START, WORDS

SEED, CONTEXT, VOCABULARY = 16, 32768, WORDS.stop
KERNEL, HEAD, GROUPS = 4, 32, 2  # of every convolution but LFM2's; dimensions of a head; groups of B and C
EXPERTS, EXPERTS_USED = 4, 2
PEAK = 2.0  # of queries and keys: attention looks at a few tokens, not at the mean of all
CHAT = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
        "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


@dataclass(frozen=True)
class Size:
    embedding: int
    feed_forward: int
    state: int  # of a channel of a scan
    repeats: int  # of the architecture's layers
    dtype: type[np.floating]  # of matrices

    @property
    def heads(self) -> int:
        return self.embedding // HEAD

    @property
    def key_heads(self) -> int:
        return max(1, self.heads // 4)


TINY = Size(embedding=128, feed_forward=256, state=16, repeats=1, dtype=np.float32)
MID = Size(embedding=768, feed_forward=2048, state=128, repeats=3, dtype=np.float16)  # Granite: 98 M parameters


class Model:
    """A GGUF file: each method adds the tensors of one part of layer i. Shapes are numpy's: the reverse of ggml's."""

    def __init__(self, path: pathlib.Path, architecture: str, size: Size, seed: int) -> None:
        self.size, self.seed = size, seed
        self.writer = gguf.GGUFWriter(path, architecture)
        self.writer.add_name(f"random {architecture}")
        self.writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if size is MID else gguf.LlamaFileType.ALL_F32)
        self.writer.add_context_length(CONTEXT)
        self.writer.add_embedding_length(size.embedding)
        self.writer.add_layer_norm_rms_eps(1e-5)
        self._add_vocabulary()

    def _add_vocabulary(self) -> None:
        """SentencePiece: control tokens, bytes, and the numbers from 0 as words. llama-server ends at the first request
        if it has no vocabulary. Only words are decoded: in `output`, the rows of all other tokens are 0."""
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|im_start|>", "<|im_end|>"]
        types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256,
                 gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
        words = [f"\u2581{i}" for i in range(len(WORDS))]
        if (tokens.index("<|im_start|>"), tokens.index("<|im_end|>"), len(tokens)) != (START, END, WORDS.start):
            raise ValueError("the vocabulary is not that of scenario.py")
        self.writer.add_vocab_size(VOCABULARY)
        self.writer.add_tokenizer_model("llama")
        self.writer.add_tokenizer_pre("default")
        self.writer.add_token_list([*tokens, *words])
        self.writer.add_token_scores([0.0] * len(tokens) + [-float(i) for i in range(len(words))])
        self.writer.add_token_types([*types, *[gguf.TokenType.NORMAL] * len(words)])
        self.writer.add_bos_token_id(1)
        self.writer.add_eos_token_id(2)
        self.writer.add_unk_token_id(0)
        self.writer.add_add_bos_token(False)
        self.writer.add_add_space_prefix(False)
        self.writer.add_chat_template(CHAT)

    def _random(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def matrix(self, name: str, *shape: int, gain: float = 1.0, zeros: int = 0) -> None:
        """[…, outputs, inputs]: outputs are as large as inputs, times gain; the first `zeros` of them are 0."""
        values = self._random(name).standard_normal(shape, dtype=np.float32) * (gain / math.sqrt(shape[-1]))
        values[:zeros] = 0
        self.writer.add_tensor(name + ".weight", values.astype(self.size.dtype))

    def vector(self, name: str, *shape: int, mean: float = 0.0, deviation: float = 0.1) -> None:
        values = self._random(name).standard_normal(shape, dtype=np.float32) * np.float32(deviation) + np.float32(mean)
        self.writer.add_tensor(name, values)

    def norm(self, name: str, *shape: int, mean: float = 1.0) -> None:
        self.vector(name + ".weight", *shape, mean=mean)

    def _between(self, name: str, low: float, high: float, shape: Sequence[int]) -> npt.NDArray[np.float64]:
        return np.exp(self._random(name).uniform(math.log(low), math.log(high), shape))

    def decay(self, i: int, steps: int, *shape: int) -> None:
        """A, and the bias of the step size: what a channel keeps of a token halves after 1 to 1,000 tokens."""
        name = f"blk.{i}.ssm_a"
        self.writer.add_tensor(name, (-self._between(name, 0.01, 0.3, shape)).astype(np.float32))
        name = f"blk.{i}.ssm_dt.bias"
        self.writer.add_tensor(name, np.log(np.expm1(self._between(name, 0.05, 1, [steps]))).astype(np.float32))

    def ends(self, output_norm: str = "output_norm") -> None:
        self.matrix("token_embd", VOCABULARY, self.size.embedding, gain=math.sqrt(self.size.embedding))
        self.norm(output_norm, self.size.embedding)
        self.matrix("output", VOCABULARY, self.size.embedding, gain=4, zeros=WORDS.start)

    def attention(self, i: int, *, gated: bool = False, normalized: bool = False) -> None:
        """gated: as in Qwen3-Next, queries carry a gate. normalized: queries and keys are."""
        size, gain = self.size, 1.0 if normalized else PEAK
        self.matrix(f"blk.{i}.attn_q", size.heads * HEAD * (2 if gated else 1), size.embedding, gain=gain)
        self.matrix(f"blk.{i}.attn_k", size.key_heads * HEAD, size.embedding, gain=gain)
        self.matrix(f"blk.{i}.attn_v", size.key_heads * HEAD, size.embedding)
        self.matrix(f"blk.{i}.attn_output", size.embedding, size.heads * HEAD)
        if normalized:
            self.norm(f"blk.{i}.attn_q_norm", HEAD, mean=PEAK)
            self.norm(f"blk.{i}.attn_k_norm", HEAD, mean=PEAK)

    def mamba2(self, i: int) -> None:
        inner, heads = 2 * self.size.embedding, 2 * self.size.embedding // HEAD
        convolved = inner + 2 * GROUPS * self.size.state
        self.matrix(f"blk.{i}.ssm_in", inner + convolved + heads, self.size.embedding)
        self._convolution(i, convolved)
        self.decay(i, heads, heads, 1)
        self.vector(f"blk.{i}.ssm_d", heads, 1, mean=0.2)
        self.norm(f"blk.{i}.ssm_norm", GROUPS, inner // GROUPS)
        self.matrix(f"blk.{i}.ssm_out", self.size.embedding, inner)

    def mamba1(self, i: int) -> None:
        inner, state, rank = 2 * self.size.embedding, self.size.state, self.size.embedding // 16
        self.matrix(f"blk.{i}.ssm_in", 2 * inner, self.size.embedding)
        self._convolution(i, inner)
        self.matrix(f"blk.{i}.ssm_x", rank + 2 * state, inner)
        for name, width in (("dt", rank), ("b", state), ("c", state)):
            self.norm(f"blk.{i}.ssm_{name}_norm", width)
        self.matrix(f"blk.{i}.ssm_dt", inner, rank)
        self.decay(i, inner, inner, state)
        self.vector(f"blk.{i}.ssm_d", inner, mean=0.2)
        self.matrix(f"blk.{i}.ssm_out", self.size.embedding, inner)

    def _convolution(self, i: int, channels: int, *, bias: bool = True) -> None:
        # llama.cpp convolves in 32 bits.
        self.vector(f"blk.{i}.ssm_conv1d.weight", channels, KERNEL, deviation=1 / math.sqrt(KERNEL))
        if bias:
            self.vector(f"blk.{i}.ssm_conv1d.bias", channels)

    def delta_net(self, i: int) -> None:
        """Qwen3-Next's: heads of keys and of values, twice as many of the second."""
        keys, values = self.size.heads, 2 * self.size.heads
        convolved = (2 * keys + values) * HEAD
        self.matrix(f"blk.{i}.attn_qkv", convolved, self.size.embedding)
        self.matrix(f"blk.{i}.attn_gate", values * HEAD, self.size.embedding)
        self.matrix(f"blk.{i}.ssm_ba", 2 * values, self.size.embedding)
        self._convolution(i, convolved, bias=False)
        self.decay(i, values, values)
        self.norm(f"blk.{i}.ssm_norm", HEAD)
        self.matrix(f"blk.{i}.ssm_out", self.size.embedding, values * HEAD)

    def short_convolution(self, i: int, kernel: int) -> None:
        embedding = self.size.embedding
        self.vector(f"blk.{i}.shortconv.conv.weight", embedding, kernel, deviation=1 / math.sqrt(kernel))
        self.matrix(f"blk.{i}.shortconv.in_proj", 3 * embedding, embedding)
        self.matrix(f"blk.{i}.shortconv.out_proj", embedding, embedding)

    def feed_forward(self, i: int, *, gate: bool = True) -> None:
        embedding, width = self.size.embedding, self.size.feed_forward
        for name in ("ffn_gate", "ffn_up") if gate else ("ffn_up",):
            self.matrix(f"blk.{i}.{name}", width, embedding)
        self.matrix(f"blk.{i}.ffn_down", embedding, width)

    def experts(self, i: int, width: int) -> None:
        embedding = self.size.embedding
        self.matrix(f"blk.{i}.ffn_gate_inp", EXPERTS, embedding)
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            self.matrix(f"blk.{i}.{name}", EXPERTS, width, embedding)
        self.matrix(f"blk.{i}.ffn_down_exps", EXPERTS, embedding, width)

    def scan_keys(self, inner: int, rank: int, groups: int = 0, state: int = 0) -> None:
        self.writer.add_ssm_conv_kernel(KERNEL)
        self.writer.add_ssm_inner_size(inner)
        self.writer.add_ssm_state_size(state or self.size.state)
        self.writer.add_ssm_time_step_rank(rank)
        if groups:
            self.writer.add_ssm_group_count(groups)

    def mamba2_keys(self) -> None:
        self.scan_keys(2 * self.size.embedding, 2 * self.size.embedding // HEAD, GROUPS)

    def attention_keys(self, layers: Sequence[str]) -> None:
        """Layers without attention have no heads of keys."""
        self.writer.add_block_count(len(layers))
        self.writer.add_head_count(self.size.heads)
        self.writer.add_head_count_kv([self.size.key_heads if "attention" in layer else 0 for layer in layers])
        self.writer.add_rope_dimension_count(HEAD)

    def expert_keys(self) -> None:
        self.writer.add_expert_count(EXPERTS)
        self.writer.add_expert_used_count(EXPERTS_USED)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def granitehybrid(model: Model) -> None:
    layers = ["mamba", "mamba", "attention", "mamba"] * model.size.repeats
    model.attention_keys(layers)
    model.mamba2_keys()
    model.writer.add_feed_forward_length(model.size.feed_forward)
    model.writer.add_rope_scaling_finetuned(False)  # Granite 4 has no positions
    for i, layer in enumerate(layers):
        model.norm(f"blk.{i}.attn_norm", model.size.embedding)
        if layer == "mamba":
            model.mamba2(i)
        else:
            model.attention(i)
        model.norm(f"blk.{i}.ffn_norm", model.size.embedding)
        model.feed_forward(i)
    model.ends()


def lfm2(model: Model) -> None:
    layers, kernel = ["convolution", "attention"] * 2 * model.size.repeats, 3
    model.attention_keys(layers)
    model.writer.add_shortconv_l_cache(kernel)
    model.writer.add_feed_forward_length(model.size.feed_forward)
    for i, layer in enumerate(layers):
        model.norm(f"blk.{i}.attn_norm", model.size.embedding)
        if layer == "convolution":
            model.short_convolution(i, kernel)
        else:
            model.attention(i, normalized=True)
        model.norm(f"blk.{i}.ffn_norm", model.size.embedding)
        model.feed_forward(i)
    model.ends("token_embd_norm")


def qwen3next(model: Model) -> None:
    layers = ["linear", "linear", "linear", "attention"] * model.size.repeats
    model.attention_keys(["attention"] * len(layers))  # heads of keys are read for all layers
    model.writer.add_key_length(HEAD)
    model.writer.add_value_length(HEAD)
    model.writer.add_full_attention_interval(4)
    model.scan_keys(2 * model.size.heads * HEAD, 2 * model.size.heads, model.size.heads, HEAD)
    model.expert_keys()
    width = model.size.feed_forward // 4
    model.writer.add_feed_forward_length(model.size.feed_forward)
    model.writer.add_expert_feed_forward_length(width)
    model.writer.add_expert_shared_feed_forward_length(width)
    for i, layer in enumerate(layers):
        model.norm(f"blk.{i}.attn_norm", model.size.embedding)
        if layer == "linear":
            model.delta_net(i)
        else:
            model.attention(i, gated=True, normalized=True)
        model.norm(f"blk.{i}.post_attention_norm", model.size.embedding)
        model.experts(i, width)
        model.vector(f"blk.{i}.ffn_gate_inp_shexp.weight", model.size.embedding)
        for name in ("ffn_gate_shexp", "ffn_up_shexp"):
            model.matrix(f"blk.{i}.{name}", width, model.size.embedding)
        model.matrix(f"blk.{i}.ffn_down_shexp", model.size.embedding, width)
    model.ends()


def falcon_h1(model: Model) -> None:
    """Every layer has both."""
    layers = ["attention and mamba"] * 3 * model.size.repeats
    model.attention_keys(layers)
    model.mamba2_keys()
    model.writer.add_feed_forward_length(model.size.feed_forward)
    for i in range(len(layers)):
        model.norm(f"blk.{i}.attn_norm", model.size.embedding)
        model.mamba2(i)
        model.attention(i)
        model.vector(f"blk.{i}.ffn_norm", model.size.embedding, mean=1)  # the loader wants no ".weight" here
        model.feed_forward(i)
    model.ends()


def nemotron_h(model: Model) -> None:
    """A layer is one of three."""
    layers = ["mamba", "feed forward", "mamba", "attention", "mamba", "feed forward"] * model.size.repeats
    model.attention_keys(layers)
    model.mamba2_keys()
    model.writer.add_layer_norm_eps(1e-5)
    widths = [model.size.feed_forward if layer == "feed forward" else 0 for layer in layers]
    model.writer.add_feed_forward_length(widths)
    for i, layer in enumerate(layers):
        model.norm(f"blk.{i}.attn_norm", model.size.embedding)
        if layer == "mamba":
            model.mamba2(i)
        elif layer == "attention":
            model.attention(i)
        else:
            model.feed_forward(i, gate=False)
    model.ends()


def jamba(model: Model) -> None:
    layers = ["mamba", "mamba", "attention", "mamba"] * model.size.repeats
    model.attention_keys(layers)
    model.scan_keys(2 * model.size.embedding, model.size.embedding // 16)
    model.expert_keys()
    model.writer.add_feed_forward_length(model.size.feed_forward)
    for i, layer in enumerate(layers):
        model.norm(f"blk.{i}.attn_norm", model.size.embedding)
        if layer == "mamba":
            model.mamba1(i)
        else:
            model.attention(i)
        model.norm(f"blk.{i}.ffn_norm", model.size.embedding)
        if i % 2 == 1:
            model.experts(i, model.size.feed_forward)
        else:
            model.feed_forward(i)
    model.ends()


def mamba2(model: Model) -> None:
    """No attention: llama.cpp's memory holds a state, and no KV."""
    layers = 4 * model.size.repeats
    model.writer.add_block_count(layers)
    model.writer.add_head_count(0)
    model.writer.add_feed_forward_length(0)
    model.mamba2_keys()
    for i in range(layers):
        model.norm(f"blk.{i}.attn_norm", model.size.embedding)
        model.mamba2(i)
    model.ends()


def lfm2_windows(model: Model) -> None:
    """Attention sees the last tokens alone. llama.cpp keeps their KV beside the recurrent state."""
    model.writer.add_sliding_window(256)
    lfm2(model)


# By the name that the file and llama.cpp have for it.
ARCHITECTURES: dict[str, Callable[[Model], None]] = {
    "granitehybrid": granitehybrid, "lfm2": lfm2, "qwen3next": qwen3next, "falcon-h1": falcon_h1,
    "nemotron_h": nemotron_h, "jamba": jamba, "mamba2": mamba2}


def write(path: pathlib.Path, architecture: str, parts: Callable[[Model], None], size: Size, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    model = Model(path, architecture, size, seed)
    parts(model)
    model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes models of random weights for llama.cpp.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help=", ".join(ARCHITECTURES) + "; all")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--mid", action="store_true", help="about 100 M parameters of 16 bits, for times")
    arguments = parser.parse_args()
    names = arguments.architectures or list(ARCHITECTURES)
    for name in names:
        if name not in ARCHITECTURES:
            parser.error(f"no architecture {name!r}: there are {', '.join(ARCHITECTURES)}")
    for name in names:
        path = arguments.folder / (name + ("-mid.gguf" if arguments.mid else ".gguf"))
        write(path, name, ARCHITECTURES[name], MID if arguments.mid else TINY, arguments.seed)
        print(path)
    write(arguments.folder / "refused" / "lfm2-windows.gguf", "lfm2", lfm2_windows, TINY, arguments.seed)


if __name__ == "__main__":
    main()
