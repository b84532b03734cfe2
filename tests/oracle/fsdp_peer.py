"""PyTorch's FSDP on two ranks gives the losses of `plait train --schedule fsdp`, and how long both take.

The same model directory, rows and SGD; fp32, two ranks of one thread each, PyTorch over gloo. Runs alternate.
Usage: fsdp_peer.py [path of plait-run]
"""

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/bin/plait-run")
RANKS, ROWS_OF_RANK, STEPS, RUNS = 2, 2, 12, 2
LAYERS, HIDDEN, HEADS, TOKENS, VOCAB = 4, 128, 4, 128, 96
LR = 0.05
TOLERANCE = 1e-4  # relative


def train_by_plait(folder, model_dir, tokens, run):
    """Losses and seconds of every step."""
    out = folder / f"run-{run}"
    subprocess.run(
        [BINARY, "train", "--init-from", model_dir, "--tokens", tokens, "--schedule", "fsdp", "--ranks", str(RANKS),
         "--microbatches", str(RANKS), "--chunks", str(LAYERS // RANKS), "--microbatch-size", str(ROWS_OF_RANK),
         "--steps", str(STEPS), "--optimizer", "sgd", "--lr", str(LR), "--lr-schedule", "constant", "--warmup", "0",
         "--weight-decay", "0", "--clip", "none", "--no-shuffle", "--dtype", "fp32", "--sample-tokens", "0", "--out",
         out], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["step_s"] for line in lines]


def rank_of_torch(rank, port, model_dir, rows, queue):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    ids = torch.tensor(rows)
    per_step = RANKS * ROWS_OF_RANK
    losses, seconds = [], []
    for step in range(STEPS):
        begin = step * per_step + rank * ROWS_OF_RANK
        mine = ids[[(begin + i) % len(rows) for i in range(ROWS_OF_RANK)]]
        start = time.perf_counter()
        logits = model(mine[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        seconds.append(time.perf_counter() - start)
        losses.append(total.item() / RANKS)
    if rank == 0:
        queue.put((losses, seconds))
    dist.destroy_process_group()


def train_by_torch(model_dir, rows, run):
    queue = mp.get_context("spawn").SimpleQueue()
    context = mp.spawn(rank_of_torch, (29500 + run, str(model_dir), rows, queue), nprocs=RANKS, join=False)
    result = queue.get()
    while not context.join():
        pass
    return result


def main():
    generator = random.Random(1)
    rows = [[generator.randrange(VOCAB) for _ in range(TOKENS + 1)] for _ in range(STEPS * RANKS * ROWS_OF_RANK)]
    own_seconds, other_seconds, worst = [], [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tokens = folder / "rows.json"
        tokens.write_text(json.dumps({"tokens": rows}))
        subprocess.run([BINARY, "train", "--tokens", tokens, "--vocab", str(VOCAB), "--layers", str(LAYERS), "--hidden",
                        str(HIDDEN), "--heads", str(HEADS), "--steps", "1", "--sample-tokens", "0", "--out",
                        folder / "start"], check=True, capture_output=True, text=True)
        model_dir = folder / "start/checkpoints/step-000001"
        for run in range(RUNS):
            own, own_times = train_by_plait(folder, model_dir, tokens, run)
            other, other_times = train_by_torch(model_dir, rows, run)
            worst = max([worst, *(abs(a - b) / b for a, b in zip(own, other, strict=True))])
            own_seconds += own_times[2:]  # the first steps warm up
            other_seconds += other_times[2:]
    same = worst <= TOLERANCE
    print(f"fsdp, {RANKS} ranks, {STEPS} steps: losses {own[0]:.6f} to {own[-1]:.6f}, largest difference {worst:.1e}: "
          f"{'same' if same else 'DIFFERENT'}")
    print(f"step, median of {len(own_seconds)}: plait {1e3 * statistics.median(own_seconds):.1f} ms, "
          f"PyTorch {1e3 * statistics.median(other_seconds):.1f} ms")
    return same


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
