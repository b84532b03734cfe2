"""Training steps of PyTorch, one for each line on standard input: a peer of `plait train`, driven by scripts/bench-peers.

A llama as its users write it: separate projections, RMSNorm, rotary embedding, scaled_dot_product_attention, SwiGLU, fused AdamW,
micro-batches of one row whose gradients accumulate. Each line on standard output is JSON: {"seconds", "loss", "peak_mb", "import_mb"}.
Memory is the largest resident set of a process (MB, 1e6 bytes); of pipelines that of the rank with most.
"""

import argparse
import json
import os
import pathlib
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from torch.nn import functional

PIPELINES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B",
             "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble", "zbv": "ScheduleZBVZeroBubble"}
RANKS = 2
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def resident_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        batch, tokens, hidden = x.shape
        q, k, v = (f(x).view(batch, tokens, self.heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).reshape(batch, tokens, hidden))


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden, eps), nn.RMSNorm(hidden, eps)
        self.self_attn, self.mlp = Attention(config), Mlp(config)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stage(nn.Module):
    """Layers [first, last) with the token table before the first and the head behind the last one."""

    def __init__(self, config, first, last, tokens, dtype):
        super().__init__()
        layers = config["num_hidden_layers"]
        if first == 0:
            self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleDict({str(i): Layer(config) for i in range(first, last)})
        if last == layers:
            self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
            self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        width = config["hidden_size"] // config["num_attention_heads"]
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        angles = torch.outer(torch.arange(tokens, dtype=torch.float64),
                             theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)).repeat(1, 2)
        self.register_buffer("cos", angles.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angles.sin().to(dtype), persistent=False)

    def forward(self, x):
        if hasattr(self, "embed_tokens"):
            x = self.embed_tokens(x)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x)) if hasattr(self, "lm_head") else x


def make_stage(options, first, last):
    folder = pathlib.Path(options.model)
    config = json.loads((folder / "config.json").read_text())
    stage = Stage(config, first, last, options.tokens, TYPES[options.dtype])
    weights = {name.removeprefix("model."): tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()
               if not path.name.startswith("optimizer")}
    stage.load_state_dict({name: weights[name] for name in stage.state_dict()})
    for parameter in stage.parameters():
        parameter.data = parameter.data.to(TYPES[options.weights])
    return stage


def optimizer_of(parameters):
    parameters = list(parameters)
    return torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
                              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                             lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def autocast(options):
    """16-bit products over fp32 weights; with --weights bf16 everything is 16 bits wide anyhow."""
    return torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16" and options.weights == "fp32")


def rows_of(options, step):
    rows = json.loads(pathlib.Path(options.rows).read_text())["tokens"]
    count = options.microbatches
    return torch.tensor([rows[(step * count + i) % len(rows)] for i in range(count)])


def layers_of(options):
    return json.loads((pathlib.Path(options.model) / "config.json").read_text())["num_hidden_layers"]


def answer(import_mb, peak_mb, seconds, loss):
    print(json.dumps({"seconds": seconds, "loss": loss, "peak_mb": peak_mb, "import_mb": import_mb}), flush=True)


def run_one(options):
    torch.set_num_threads(options.threads)
    import_mb = resident_mb()
    model = make_stage(options, 0, layers_of(options))
    optimizer = optimizer_of(model.parameters())

    def microbatch(ids):
        with autocast(options):
            loss = loss_of(model(ids[:, :-1]), ids[:, 1:])
        return loss / options.microbatches

    if options.mode == "compile":
        microbatch = torch.compile(microbatch)
    for step, _ in enumerate(sys.stdin):
        rows = rows_of(options, step)
        start = time.perf_counter()
        total = 0.0
        for i in range(options.microbatches):
            loss = microbatch(rows[i:i + 1])
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        answer(import_mb, resident_mb(), time.perf_counter() - start, total)


def pipeline_rank(rank, options, lines, answers):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    import_mb = resident_mb()
    chunks = 1 if options.mode in ("gpipe", "1f1b") else 2
    count = RANKS * chunks
    mine = [rank] if chunks == 1 else [rank, count - 1 - rank] if options.mode == "zbv" else [rank, rank + RANKS]
    layers = layers_of(options)
    modules = [make_stage(options, layers * i // count, layers * (i + 1) // count) for i in mine]
    stages = [pipelining.PipelineStage(module, i, count, torch.device("cpu")) for module, i in zip(modules, mine, strict=True)]
    make = getattr(schedules, PIPELINES[options.mode])
    schedule = make(stages if chunks > 1 else stages[0], options.microbatches, loss_fn=loss_of)
    optimizer = optimizer_of(p for module in modules for p in module.parameters())
    has_loss = count - 1 in mine
    while lines.get():
        step = pipeline_rank.step = getattr(pipeline_rank, "step", -1) + 1
        rows = rows_of(options, step)
        dist.barrier()
        start = time.perf_counter()
        losses = []
        with autocast(options):
            schedule.step(*([rows[:, :-1]] if 0 in mine else []), target=rows[:, 1:] if has_loss else None,
                          losses=losses if has_loss else None, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        answers.put((import_mb, resident_mb(), time.perf_counter() - start, torch.stack(losses).mean().item() if losses else None))


def run_pipeline(options):
    context = mp.get_context("spawn")
    lines, answers = [context.SimpleQueue() for _ in range(RANKS)], context.SimpleQueue()
    ranks = [context.Process(target=pipeline_rank, args=(rank, options, lines[rank], answers), daemon=True) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for _ in sys.stdin:
        for queue in lines:
            queue.put(True)
        got = [answers.get() for _ in range(RANKS)]
        largest = max(got, key=lambda one: one[1] - one[0])
        answer(largest[0], largest[1], max(one[2] for one in got), next(one[3] for one in got if one[3] is not None))
    for queue in lines:
        queue.put(False)
    for process in ranks:
        process.join(5)
        process.kill()  # one that does not come to its end would be waited for at exit


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", required=True, choices=["eager", "compile", *PIPELINES])
    parser.add_argument("--threads", type=int, default=1, help="of eager and compile")
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--rows", required=True, help='JSON {"tokens": [[...]]}')
    parser.add_argument("--tokens", type=int, required=True, help="predictions of a row")
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--dtype", choices=list(TYPES), default="fp32")
    parser.add_argument("--weights", choices=list(TYPES), default="fp32", help="type of weights and optimizer")
    parser.add_argument("--port", type=int, default=29611)
    options = parser.parse_args()
    if options.mode in PIPELINES:
        run_pipeline(options)
    else:
        run_one(options)


if __name__ == "__main__":
    main()
