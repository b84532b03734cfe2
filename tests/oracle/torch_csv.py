"""Compares Plait's PyTorch CSV files and lowering with PyTorch itself, on sizes and orders beyond the kept fixtures.

    make oracle                                   # all of it
    python tests/oracle/torch_csv.py --plait build/release/bin/plait --random 300 --seed 1

Two comparisons, byte for byte:
  * random valid schedules (placements, orders, pairs) with random options: PyTorch's passes against
    `plait schedule lower FILE --format csv-comms`, and `plait schedule show FILE` of both files against the files;
  * the programs of PyTorch's schedule classes over a grid of sizes against `plait schedule show NAME --order torch`
    (idle cells apart), and their lowering.
Needs torch 2.15 (the passes are private there and may move).
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile

import torch.distributed.pipelining.schedules as torch_schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

Action, Kind = torch_schedules._Action, torch_schedules._ComputationType
KINDS = {"F": Kind.FORWARD, "I": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT, "B": Kind.FULL_BACKWARD}

CLASSES = [  # name in PyTorch, name and flags in Plait, stages per rank that it takes
    ("LoopedBFS", ["looped-bfs"], (1, 2, 3)),
    ("Interleaved1F1B", ["interleaved-1f1b", "--order", "torch"], (1, 2, 3)),
    ("InterleavedZeroBubble", ["interleaved-zb", "--order", "torch"], (1, 2, 3)),
    ("ZBVZeroBubble", ["zb-v"], (2,)),
    ("DualPipeV", ["dualpipev"], (2,)),
]


def csv_of(rows):
    return "".join(",".join("" if a is None else repr(a) for a in rows[r]) + "\r\n" for r in sorted(rows)).encode()


def random_schedule(rng):
    """A valid order by drawing ready operations: (home rank of each stage, micro-batches, rows)."""
    ranks, chunks, microbatches = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 6)
    stages = ranks * chunks
    style = rng.choice(["loop", "v", "any"])
    if style == "loop":
        home = [s % ranks for s in range(stages)]
    elif style == "v":
        home = [s % ranks if s // ranks % 2 == 0 else ranks - 1 - s % ranks for s in range(stages)]
    else:
        home = list(range(ranks)) + [rng.randrange(ranks) for _ in range(stages - ranks)]
        rng.shuffle(home)
    split, pairs, eager = rng.random(), rng.random() < 0.4, rng.random() < 0.4
    left = set()
    for s in range(stages):
        for m in range(microbatches):
            left |= {(s, k, m) for k in ("FIW" if rng.random() < split else "FB")}
    done, rows = set(), {r: [] for r in range(ranks)}

    def ready(op):
        s, kind, m = op
        if kind == "F":
            return s == 0 or (s - 1, "F", m) in done
        if kind == "W":
            return (s, "I", m) in done
        return (s, "F", m) in done and (s + 1 == stages or bool({(s + 1, "B", m), (s + 1, "I", m)} & done))

    while left:
        choices = sorted(op for op in left if ready(op))
        if eager:
            choices = [op for op in choices if op[1] in "BI"] or choices
        ops = [rng.choice(choices)]
        rank = home[ops[0][0]]
        partners = [op for op in choices if home[op[0]] == rank and (op[1] == "F") != (ops[0][1] == "F")]
        if pairs and partners and rng.random() < 0.5:
            ops.append(rng.choice(partners))
            ops.sort(key=lambda op: op[1] != "F")
        if rng.random() < 0.1:
            rows[rank].append(None)
        actions = tuple(Action(s, KINDS[kind], m) for s, kind, m in ops)
        rows[rank].append(actions[0] if len(actions) == 1 else Action(-1, Kind.OVERLAP_F_B, None, actions))
        done |= set(ops)
        left -= set(ops)
    return home, microbatches, rows


def random_options(rng, ranks):
    """(options of PyTorch's passes, flags of Plait)."""
    options = {"active": 3, "lookahead": "full", "defer_wait": False, "defer_recv": False, "sends": None}
    flags = []
    if rng.random() < 0.4:
        options["active"] = rng.randint(1, 5)
        flags += ["--max-active-stages", str(options["active"])]
    if rng.random() < 0.5:
        options["lookahead"] = rng.choice(["auto", tuple(rng.randint(1, options["active"]) for _ in range(ranks))])
        text = options["lookahead"] if options["lookahead"] == "auto" else ",".join(map(str, options["lookahead"]))
        flags += ["--unshard-lookahead", text]
    if rng.random() < 0.4:
        options["defer_wait"] = True
        flags.append("--defer-reduce-grad-wait")
    if rng.random() < 0.4:
        options["defer_recv"] = True
        flags.append("--defer-recv")
    if rng.random() < 0.5:
        options["sends"] = rng.randint(0, 4)
        flags += ["--max-outstanding-sends", str(options["sends"])]
    return options, flags


def lowered(home, microbatches, rows, active=3, lookahead="full", defer_wait=False, defer_recv=False, sends=None):
    ahead = torch_schedules._resolve_unshard_lookahead(lookahead, len(rows), active)
    out = {r: torch_schedules._add_unshard_reshard(row, active, unshard_lookahead=ahead[r]) for r, row in rows.items()}
    out = {r: torch_schedules._add_reduce_grad(row, microbatches, defer_wait) for r, row in out.items()}
    out = torch_schedules._add_send_recv(out, lambda s: home[s], len(home))
    out = torch_schedules._add_wait_send(out)
    if defer_recv:
        out = torch_schedules._defer_recv_ops(out, lambda s: home[s])
    if sends is not None:
        out = torch_schedules._add_wait_send_budget(out, lambda s: home[s], sends)
    return out


class Comparison:
    def __init__(self, plait, folder):
        self.plait, self.folder, self.done, self.failed = plait, folder, 0, 0

    def run(self, *args):
        # The loader settings that a borrowed PyTorch may need are not Plait's.
        env = {k: v for k, v in os.environ.items() if not k.startswith("LD_")}
        return subprocess.run([self.plait, "schedule", *args], capture_output=True, env=env)

    def file(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as out:
            out.write(data)
        return path

    def expect(self, what, result, expected):
        """`expected` is None where PyTorch refuses."""
        self.done += 1
        same = result.returncode != 0 if expected is None else (result.returncode == 0 and result.stdout == expected)
        if not same:
            self.failed += 1
            print(f"DIFFERS: {what}\n  {result.stderr.decode()[:500]}")


def compare_random(compare, count, seed):
    for number in range(seed, seed + count):
        rng = random.Random(number)
        home, microbatches, rows = random_schedule(rng)
        options, flags = random_options(rng, len(rows))
        data = csv_of(rows)
        path = compare.file("compute.csv", data)
        compare.expect(f"seed {number}: show", compare.run("show", path, "--format", "csv"), data)
        try:
            comms = csv_of(lowered(home, microbatches, rows, **options))
        except ValueError:
            comms = None
        result = compare.run("lower", path, "--format", "csv-comms", *flags)
        compare.expect(f"seed {number}: lower {' '.join(flags)}", result, comms)
        if comms is not None:
            path = compare.file("comms.csv", comms)
            compare.expect(f"seed {number}: show comms", compare.run("show", path, "--format", "csv-comms"), comms)


def without_idle(data):
    return [[cell for cell in line.split(b",") if cell] for line in data.splitlines()]


def compare_classes(compare):
    for name, plait_name, chunk_counts in CLASSES:
        for ranks in (1, 2, 3, 4, 5, 8):
            for chunks in chunk_counts:
                for microbatches in (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 20):
                    try:
                        rows = get_schedule_ops(name, ranks, microbatches, chunks)
                        if not isinstance(rows, dict):
                            rows = dict(enumerate(rows))
                        home = {}
                        for rank, row in rows.items():
                            for action in row:
                                for part in () if action is None else action.sub_actions or (action,):
                                    home[part.stage_index] = rank
                        comms = csv_of(lowered([home[s] for s in range(len(home))], microbatches, rows))
                    except (ValueError, AssertionError, RuntimeError, KeyError, IndexError, ZeroDivisionError):
                        continue  # PyTorch does not take these sizes
                    data = csv_of(rows)
                    size = ["--ranks", str(ranks), "--microbatches", str(microbatches), "--chunks", str(chunks)]
                    what = f"{name} p{ranks} v{chunks} m{microbatches}"
                    result = compare.run("show", *plait_name, *size, "--format", "csv")
                    compare.done += 1
                    if result.returncode != 0 or without_idle(result.stdout) != without_idle(data):
                        compare.failed += 1
                        print(f"DIFFERS: show {' '.join(plait_name)} against {what}\n  {result.stderr.decode()[:300]}")
                    path = compare.file("compute.csv", data)
                    compare.expect(f"lower {what}", compare.run("lower", path, "--format", "csv-comms"), comms)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--plait", default=os.path.join(root, "build/release/bin/plait"))
    parser.add_argument("--random", type=int, default=300, help="random schedules to compare")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-classes", action="store_true", help="random schedules only")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare = Comparison(args.plait, folder)
        print(f"random schedules: seeds {args.seed}..{args.seed + args.random - 1}")
        compare_random(compare, args.random, args.seed)
        if not args.no_classes:
            compare_classes(compare)
    print(f"{compare.done} comparisons with PyTorch, {compare.failed} differ")
    return 1 if compare.failed else 0


if __name__ == "__main__":
    sys.exit(main())
