"""A model directory written by Plait loads in transformers and gives the same loss.

For every family: trains a tiny model for three steps, then compares `plait-run eval` with transformers' own loss of the
checkpoint on the same rows. Usage: check_model_dir.py [path of plait-run]
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/bin/plait-run")
TOLERANCE = 1e-5  # relative; both sides compute in fp32
FAMILIES = {
    "llama": ["--family", "llama", "--kv-heads", "2"],
    "llama, tied head": ["--family", "llama", "--head", "tied"],
    "mistral": ["--family", "mistral", "--kv-heads", "2"],
    "qwen2": ["--family", "qwen2", "--kv-heads", "2"],
    "gpt2": ["--family", "gpt2"],
}


def plait(*words):
    """Standard output of plait-run with these words."""
    return subprocess.run([BINARY, *map(str, words)], check=True, capture_output=True, text=True).stdout


def loss_by_transformers(model_dir, rows):
    """Mean next-token cross entropy over all rows."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    ids = torch.tensor(rows)
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits  # T tokens are T - 1 positions
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), ids[:, 1:].flatten()).item()


def check(name, flags):
    """True if both losses agree."""
    generator = random.Random(1)
    rows = [[generator.randrange(96) for _ in range(24)] for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tokens = folder / "rows.json"
        tokens.write_text(json.dumps({"tokens": rows}))
        plait("train", "--tokens", tokens, "--vocab", 96, "--layers", 2, "--hidden", 32, "--heads", 4, "--steps", 3,
              "--out", folder / "run", *flags)
        model_dir = folder / "run/checkpoints/step-000003"
        own = json.loads(plait("eval", "--model", model_dir, "--tokens", tokens, "--format", "json"))["loss"]
        other = loss_by_transformers(model_dir, rows)
    agrees = abs(own - other) <= TOLERANCE * other
    print(f"{name}: plait {own:.7f}, transformers {other:.7f}: {'same' if agrees else 'DIFFERENT'}")
    return agrees


if __name__ == "__main__":
    results = [check(name, flags) for name, flags in FAMILIES.items()]
    sys.exit(0 if all(results) else 1)
